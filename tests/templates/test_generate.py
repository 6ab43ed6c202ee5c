"""The verb `generate`, and the text of every script that it can write."""

from __future__ import annotations

import ast
import itertools
import random
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.templates.options import OPTIONS, answer
from pytorch_fsdp2_dcp.templates.render import SCRIPT, render, version
from pytorch_fsdp2_dcp.validate import header

from ..combinations import Row
from ..commands import SKILL, assert_refused, fsdp2
from .inputs import own_modules, packages
from .rows import TABLE, covering, sample, spelled, works

SLOW = [pytest.mark.slow, pytest.mark.matrix]
LONGEST = 760  # lines, less one, of a script for which everything is chosen at once
BLOCKS = (
    *("init_distributed", "build_mesh", "build_model_meta", "build_optimizer", "data", "TrainState"),
    *("Checkpointer", "train_step", "export", "main"),
)
FLAGS = (
    *("--data", "--steps", "--global-batch", "--micro-batch", "--seq-len", "--lr", "--seed", "--checkpoint-dir"),
    *("--checkpoint-interval", "--keep-latest", "--dp-replicate", "--dp-shard", "--tp", "--log"),
)


@pytest.fixture(
    scope="module",
    params=[pytest.param(2, id="pairs"), pytest.param(3, id="triples", marks=SLOW)],
)
def scripts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Row]:
    """The scripts of combinations that hold every pair, or triple, of the options' examples."""
    folder = tmp_path_factory.mktemp("scripts")
    rows = {folder / f"train_{number}.py": row for number, row in enumerate(covering(request.param).rows)}
    for script, row in rows.items():
        script.write_text(render(answer(row)))
    return rows


@pytest.mark.parametrize("strength", [2, 3])
def test_the_combinations_hold_every_example_and_what_they_leave_out_is_refused(strength: int) -> None:
    """Whatever the other options are: tried with two hundred random ones for each."""
    rows, left_out = covering(strength).rows, covering(strength).left_out
    assert {chosen for row in rows for chosen in row.items()} == {(o, v) for o, vs in TABLE.items() for v in vs}
    dice = random.Random(strength)
    for impossible in left_out:
        for _ in range(200):
            row = {name: dice.choice(values) for name, values in TABLE.items()} | impossible
            assert not works(row), f"{spelled(row)} works, but {impossible} is in no combination"


def test_every_script_is_short_and_has_its_blocks_in_order(scripts: dict[Path, Row]) -> None:
    for script, row in scripts.items():
        text = script.read_text()
        assert len(text.splitlines()) < LONGEST, spelled(row)
        blocks = [block for block in BLOCKS if block != "export" or row["export"] != "none"]
        assert re.findall(r"^# --- (\w+) ---$", text, re.MULTILINE) == blocks


@pytest.mark.parametrize("async_mode", ["disabled", "async"])
def test_a_script_with_nothing_else_chosen_is_under_400_lines(async_mode: str) -> None:
    assert len(render(answer({"async_mode": async_mode})).splitlines()) < 400


@pytest.mark.parametrize("name", TABLE)
def test_a_script_for_which_one_thing_is_chosen_is_under_500_lines(name: str) -> None:
    """Pinned memory is another: with it, any mesh."""
    for value in TABLE[name]:
        chosen = {name: value, "block": "my_model:Block"} if value.startswith("my_model") else {name: value}
        if works({**answer({}), **chosen}):
            assert len(render(answer(chosen)).splitlines()) < 500, spelled({**answer({}), **chosen})


@pytest.mark.matrix
@pytest.mark.slow
def test_three_thousand_random_combinations_render_and_compile() -> None:
    for row in itertools.islice(sample(seed=0), 3000):
        text = render(answer(row))
        compile(text, spelled(row), "exec")
        assert len(text.splitlines()) < LONGEST, spelled(row)


def test_every_script_has_the_common_flags_and_carries_its_answers_and_how_to_drive_it(
    scripts: dict[Path, Row],
) -> None:
    for script, row in scripts.items():
        text = script.read_text()
        carried = header.parse(text)
        assert carried is not None
        assert (carried.version, carried.digest) == (version(), header.digest(text))
        assert answer(carried.answers) == answer(row)
        own = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
        for flag in (*FLAGS, carried.checkpoint_arg, carried.steps_arg, *carried.proof_args[::2]):
            assert not own.isdisjoint({flag, flag.removeprefix("--")}), spelled(row)


def test_every_script_is_clean_and_formatted_by_the_projects_rules_and_by_plain_ones(scripts: dict[Path, Row]) -> None:
    plain = ["--isolated", "--line-length", "120"]
    ours = ["--config", str(SKILL / "pyproject.toml")]
    for arguments in (
        ["check", *plain, "--select", "E,F,W,I,B,UP"],
        ["format", "--check", *plain],
        ["check", *ours],
        ["format", "--check", *ours],
    ):
        process = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, *scripts], capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.slow
def test_every_script_needs_torch_the_standard_library_and_what_its_options_ask_for(scripts: dict[Path, Row]) -> None:
    for script, row in scripts.items():
        for node in ast.walk(ast.parse(script.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                allowed = {"torch", "numpy", *sys.stdlib_module_names, *packages(row), *own_modules(row)}
                assert name.split(".")[0] in allowed, spelled(row)


def test_a_script_has_nothing_of_a_mode_that_was_not_chosen() -> None:
    disabled = render(answer({"async_mode": "disabled"}))
    assert not re.search(r"async|Future|new_group|wait\(", disabled.replace('async_mode = "disabled"', ""))
    assert "dcp.save(" not in render(answer({"async_mode": "async"}))


@pytest.mark.slow
def test_the_linter_finds_nothing_in_any_script(scripts: dict[Path, Row], tmp_path: Path) -> None:
    process = fsdp2("lint", *map(str, scripts), cwd=tmp_path)
    assert process.returncode == 0, process.stdout + process.stderr


def test_every_template_is_used_by_the_script() -> None:
    templates = [path for path in SCRIPT.rglob("*.jinja")]
    included = {name for path in templates for name in re.findall(r'{% include "([\w./]+)" %}', path.read_text())}
    assert included == {path.relative_to(SCRIPT).as_posix() for path in templates} - {"train.py.jinja"}


def test_a_script_goes_to_a_file_or_to_stdout(tmp_path: Path) -> None:
    assert fsdp2("generate", "--out", "train.py", cwd=tmp_path).returncode == 0
    written = (tmp_path / "train.py").read_text()
    assert fsdp2("generate", "--out", "-", cwd=tmp_path).stdout == written == render(answer({}))
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


def test_an_existing_file_is_left_alone_unless_forced(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("mine\n")
    script.chmod(0o640)
    assert_refused(fsdp2("generate", "--out", "train.py", cwd=tmp_path), "train.py exists", "--force")
    assert script.read_text() == "mine\n"
    assert fsdp2("generate", "--out", "train.py", "--force", cwd=tmp_path).returncode == 0
    assert script.read_text() == render(answer({}))
    assert stat.S_IMODE(script.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mesh", "dp_replicate=2"), ("--mesh", "expected dp_shard=SIZE or dp_shard=-1")),
        (("--async-mode", "pinned"), ("--async-mode", "expected disabled or async or async_with_pinned_mem")),
        (("--out", "no/such/folder/train.py"), ("cannot be written",)),
        (("--out", ".", "--force"), ("cannot be written",)),
        (("--out", "torch.py"), ("imported instead of the module", "expected another name")),
        (("--out", "json.py"), ("imported instead of the module", "expected another name")),
        (("--model", "__future__:annotations", "--block", "a:B"), ("--model", "cannot be imported")),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    out = () if "--out" in arguments else ("--out", "train.py")
    assert_refused(fsdp2("generate", *out, *arguments, cwd=tmp_path), *words)
    assert not list(tmp_path.iterdir())


def test_the_list_names_every_option_its_values_and_its_default(tmp_path: Path) -> None:
    listed = fsdp2("generate", "--list", cwd=tmp_path).stdout
    for option in OPTIONS:
        assert option.flag in listed
        assert f"{option.default}  (default)" in listed
        assert all(value in listed for value in option.values)


def test_check_tells_a_fresh_script_from_an_edited_one_and_from_an_old_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = render(answer({"async_mode": "disabled"}))
    script.write_text(text)
    assert fsdp2("generate", "--check", "train.py", cwd=tmp_path).returncode == 0
    script.write_text(text + "print()\n")
    process = fsdp2("generate", "--check", "train.py", cwd=tmp_path)
    assert (process.returncode, "was edited" in process.stdout) == (1, True)
    script.write_text(older(text))
    process = fsdp2("generate", "--check", "train.py", cwd=tmp_path)
    assert (process.returncode, "generated by version 0.0.1" in process.stdout) == (1, True)


def test_update_renders_an_old_script_anew_with_its_own_answers(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = render(answer({"async_mode": "disabled"}))
    script.write_text(older(text))
    assert fsdp2("generate", "--update", "train.py", cwd=tmp_path).returncode == 0
    assert script.read_text() == text


def test_update_does_not_throw_edits_away_unless_forced(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    edited = render(answer({})) + "print()\n"
    script.write_text(edited)
    assert_refused(fsdp2("generate", "--update", "train.py", cwd=tmp_path), "was edited", "--force")
    assert script.read_text() == edited
    assert fsdp2("generate", "--update", "train.py", "--force", cwd=tmp_path).returncode == 0
    assert script.read_text() == render(answer({}))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["--update", "--check"])
def test_only_generated_scripts_are_updated_and_checked(verb: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print()\n")
    (tmp_path / "broken.py").write_text("# /// fsdp2\n# version = \n# ///\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    assert_refused(fsdp2("generate", verb, "none.py", cwd=tmp_path), "none.py", "expected a script")
    assert_refused(fsdp2("generate", verb, "mine.py", cwd=tmp_path), "mine.py", "no `# /// fsdp2` block")
    assert_refused(fsdp2("generate", verb, "broken.py", cwd=tmp_path), "broken.py", "not JSON")
    assert_refused(fsdp2("generate", verb, "binary.py", cwd=tmp_path), "binary.py", "not UTF-8")
    assert_refused(fsdp2("generate", verb, "mine.py", "--mesh", "dp_shard=-1", cwd=tmp_path), "options go with --out")


def older(text: str) -> str:
    """The script as an earlier version might have written it: another text, with the digest of that text."""
    carried = header.parse(text)
    assert carried is not None
    body = text.replace("A byte-level GPT", "A GPT")
    body = body.replace(f'version = "{carried.version}"', 'version = "0.0.1"')
    return body.replace(carried.digest, header.digest(body))
