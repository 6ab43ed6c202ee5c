"""The verb `lint`: what it prints, how it exits, what it refuses."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from pytorch_fsdp2_dcp.validate.command import main
from pytorch_fsdp2_dcp.validate.reader.walk.core import STATEMENTS

from ..commands import SKILL, assert_refused, fsdp2, fsdp2_json
from ..schemas import LINT

EARLY_OPTIMIZER = """\
import torch
from torch.distributed.fsdp import fully_shard

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
optimizer = torch.optim.AdamW(model.parameters())
fully_shard(model)
optimizer.step()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with one script in it, whose line 5 is FS401."""
    (tmp_path / "train.py").write_text(EARLY_OPTIMIZER)
    return tmp_path


def test_text_starts_with_a_summary_and_shows_both_places(project: Path) -> None:
    process = fsdp2("lint", "train.py", cwd=project)
    summary, finding, source, other = process.stdout.splitlines()
    assert process.returncode == 1
    assert summary == "1 file read: 1 error"
    assert finding.startswith("train.py:5:13: FS401 error: AdamW is built over")
    assert source == "    5 | optimizer = torch.optim.AdamW(model.parameters())"
    assert other == "    train.py:6: sharded here, later"


def test_json_is_as_the_contract_says(project: Path) -> None:
    document = fsdp2_json("lint", "train.py", cwd=project)
    jsonschema.validate(document, LINT)
    (finding,) = document["findings"]
    assert (finding["code"], finding["file"], finding["line"]) == ("FS401", "train.py", 5)
    assert (SKILL / finding["page"]).is_file()


def test_where_the_reader_fails_that_is_said_without_being_asked(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever reads `nothing found` must know that it was not looked for."""

    def failing(*_: object) -> bool:
        raise KeyError("x")

    monkeypatch.setitem(STATEMENTS, ast.Assign, failing)
    assert main(["lint", str(project / "train.py")]) == 0
    assert "the reader gave up here (KeyError: 'x'); please report it" in capsys.readouterr().err


def test_nothing_found_is_json_too_and_exit_code_0(project: Path) -> None:
    process = fsdp2("lint", "train.py", "--ignore", "FS4", "--format", "json", cwd=project)
    assert process.returncode == 0
    assert '"findings": []' in process.stdout


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--select", "FS401"], 1),
        (["--select", "FS4"], 1),
        (["--select", "fs4,FS6"], 1),
        (["--select", "FS6"], 0),
        (["--ignore", "FS401"], 0),
        (["--exit-zero"], 0),
    ],
)
def test_options_choose_the_rules_and_the_exit_code(project: Path, options: list[str], code: int) -> None:
    assert fsdp2("lint", "train.py", *options, cwd=project).returncode == code


def test_a_suppressed_finding_is_not_found_and_a_stale_suppression_is(project: Path) -> None:
    accepted = EARLY_OPTIMIZER.replace("model.parameters())", "model.parameters())  # fsdp2: ignore[FS401] a test")
    (project / "train.py").write_text(accepted)
    assert fsdp2("lint", "train.py", cwd=project).returncode == 0
    mended = accepted.replace("fully_shard(model)\n", "")
    (project / "train.py").write_text(mended)
    assert fsdp2_json("lint", "train.py", cwd=project)["findings"] == [], "a run may find it"
    (project / "train.py").write_text(mended.replace("FS401", "FS503"))  # which only the linter finds
    (finding,) = fsdp2_json("lint", "train.py", cwd=project)["findings"]
    assert (finding["code"], finding["line"]) == ("FS001", 5)


def test_a_suppression_counts_in_the_module_where_the_finding_is(project: Path) -> None:
    (project / "model.py").write_text(
        "import torch\n\n\ndef build(model):\n"
        "    return torch.optim.AdamW(model.parameters())  # fsdp2: ignore[FS401] a test\n"
    )
    (project / "train.py").write_text(
        "import torch\nfrom model import build\nfrom torch.distributed.fsdp import fully_shard\n\n"
        "net = torch.nn.Linear(4, 4)\noptimizer = build(net)\nfully_shard(net)\noptimizer.step()\n"
    )
    assert fsdp2_json("lint", "train.py", cwd=project)["findings"] == []
    (project / "model.py").write_text((project / "model.py").read_text().replace("  # fsdp2: ignore[FS401] a test", ""))
    (finding,) = fsdp2_json("lint", "train.py", cwd=project)["findings"]
    assert (finding["code"], finding["file"], finding["line"]) == ("FS401", "model.py", 5)


def test_standard_input_goes_by_the_name_that_is_given(project: Path) -> None:
    process = subprocess.run(
        [sys.executable, str(SKILL), "lint", "-", "--stdin-filename", "other.py"],
        cwd=project,
        input=EARLY_OPTIMIZER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    assert "other.py:5:13: FS401" in process.stdout


def test_a_folder_counts_all_its_files(project: Path) -> None:
    (project / "unrelated.py").write_text("print('hello')\n")
    document = fsdp2_json("lint", ".", cwd=project)
    assert document["files"] == 2
    assert len(document["findings"]) == 1


def test_a_file_that_does_not_parse_is_one_line_and_the_others_are_judged(project: Path) -> None:
    (project / "broken.py").write_text("import torch.distributed.checkpoint\ndef f(:\n")
    process = fsdp2("lint", "broken.py", "train.py", cwd=project)
    assert_refused(process, "broken.py:2", "does not parse")
    assert "FS401" in process.stdout


def test_a_file_that_is_not_utf8_is_one_line(project: Path) -> None:
    (project / "latin.py").write_bytes(b"# caf\xe9\n")
    assert_refused(fsdp2("lint", "latin.py", cwd=project), "latin.py:1", "not UTF-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.py"], "no such file or folder"),
        (["empty"], "no Python files"),
        (["train.py", "--select", "FS999"], "no rule has a code that begins so"),
        (["train.py", "--ignore", "FS"], "leave no rule to judge by"),
    ],
)
def test_what_cannot_be_linted_is_one_line(project: Path, arguments: list[str], words: str) -> None:
    (project / "empty").mkdir()
    assert_refused(fsdp2("lint", *arguments, cwd=project), words)


@pytest.mark.parametrize(
    ("other", "codes"),
    [
        ("", ["FS905"]),
        ("import torch\nfrom library import fsdp\n\n\ndef patch():\n    fsdp.fully_shard = print\n", []),
        ("class Mine:\n    def __init__(self):\n        self.fully_shard = print\n", ["FS905"]),
    ],
    ids=["alone", "torch is given another function", "an attribute of its own"],
)
def test_what_another_file_gives_torch_is_there(other: str, codes: list[str], tmp_path: Path) -> None:
    use = "from torch import nn\nfrom torch.distributed import fsdp\nfsdp.fully_shard(nn.Linear(1, 1), hook_module=1)\n"
    (tmp_path / "train.py").write_text(use)
    (tmp_path / "patches.py").write_text(other)
    assert [f["code"] for f in fsdp2_json("lint", ".", cwd=tmp_path)["findings"]] == codes


def test_keys_with_a_prefix_that_another_file_speaks_of_are_no_surprise(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nfrom torch.distributed.fsdp import fully_shard\n"
        "model = fully_shard(torch.compile(torch.nn.Linear(1, 1)))\ntorch.save(model.state_dict(), 'model.pt')\n"
    )
    assert [f["code"] for f in fsdp2_json("lint", ".", cwd=tmp_path)["findings"]] == ["FS601", "FS613"]
    (tmp_path / "evaluate.py").write_text("def clean(key):\n    return key.removeprefix('_orig_mod.')\n")
    assert [f["code"] for f in fsdp2_json("lint", ".", cwd=tmp_path)["findings"]] == ["FS601"]


@pytest.mark.parametrize(("pin", "codes"), [("torch==2.0.1", []), ("torch>=2.6", ["FS905"])])
def test_what_torch_had_before_the_table_begins_is_not_known(pin: str, codes: list[str], tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(f"{pin}\n")
    (tmp_path / "train.py").write_text("from torch.distributed.fsdp.flat_param import FlatParamHandle\n")
    assert [f["code"] for f in fsdp2_json("lint", ".", cwd=tmp_path)["findings"]] == codes


@pytest.mark.parametrize(
    ("saved", "codes"),
    [
        (None, ["FS903"]),
        ("torch.save(state, os.path.join(folder, 'rank_%d.pt' % rank))", []),
        ("torch.save(state, f'{folder}/rank_{dist.get_rank()}.pt')", []),
        ("torch.save(state, f'{folder}/step_{step}.pt')", ["FS903"]),
        ("print(f'{folder}/rank_{rank}.pt')", ["FS903"]),
    ],
    ids=["alone", "the same name", "the same name in other words", "another name", "not saved"],
)
def test_a_file_that_another_program_saves_is_nobody_elses(saved: str | None, codes: list[str], tmp_path: Path) -> None:
    (tmp_path / "merge.py").write_text(
        "import sys\nimport torch\nimport torch.distributed.checkpoint as dcp\n"
        "for rank in range(int(sys.argv[1])):\n"
        "    path = f'{sys.argv[2]}/rank_{rank}.pt'\n    torch.load(path, weights_only=False)\n"
    )
    if saved is not None:
        (tmp_path / "train.py").write_text(f"import torch\n\n\ndef save(state, folder, rank, step):\n    {saved}\n")
    assert [f["code"] for f in fsdp2_json("lint", ".", cwd=tmp_path)["findings"]] == codes


def test_a_file_without_a_name_may_be_one_that_another_program_saves(tmp_path: Path) -> None:
    (tmp_path / "evaluate.py").write_text(
        "import sys\nimport torch\nimport torch.distributed.checkpoint as dcp\n"
        "torch.load(sys.argv[1], weights_only=False)\n"
    )
    assert [f["code"] for f in fsdp2_json("lint", ".", cwd=tmp_path)["findings"]] == ["FS903"]
    (tmp_path / "train.py").write_text("import torch\n\n\ndef save(state, path):\n    torch.save(state, path)\n")
    assert fsdp2_json("lint", ".", cwd=tmp_path)["findings"] == []
