"""`lint --fix` and `--diff`: what is written and what is not, what is printed, how the command exits."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from pytorch_fsdp2_dcp.validate.errors import UserError

from ..commands import SKILL, assert_refused, fsdp2, fsdp2_json
from ..schemas import LINT
from .fixed import fix

BYPASSED = """\
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard

model = torch.nn.Linear(4, 4)
fully_shard(model)
loss = model.forward(torch.ones(2, 4)).sum()
"""
CALLED = BYPASSED.replace(".forward", "")
SAVED = BYPASSED + "torch.save(model.state_dict(), 'model.pt')\n"


def script(folder: Path, content: str | bytes = BYPASSED, name: str = "train.py") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_fix_writes_and_exits_with_0_when_nothing_is_left(tmp_path: Path) -> None:
    path = script(tmp_path)
    process = fsdp2("lint", "train.py", "--fix", cwd=tmp_path)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.splitlines() == [
        "1 file read: nothing found; 1 fixed",
        "fixed train.py: FS403 (safe): call the module, which runs its hooks",
    ]
    assert path.read_text() == CALLED
    before = path.stat().st_mtime_ns
    assert fsdp2("lint", "train.py", "--fix", cwd=tmp_path).returncode == 0
    assert path.stat().st_mtime_ns == before, "a file with nothing to fix is not written"


def test_what_is_unsafe_is_fixed_when_asked_for(tmp_path: Path) -> None:
    path = script(tmp_path, SAVED)
    process = fsdp2("lint", "train.py", "--fix", cwd=tmp_path)
    assert process.returncode == 1
    assert "train.py:8:1: FS601" in process.stdout
    assert process.stdout.splitlines()[-1] == "1 more can be fixed with --unsafe-fixes: look at them by --diff first"
    assert path.read_text() == SAVED.replace(".forward", "")
    process = fsdp2("lint", "train.py", "--fix", "--unsafe-fixes", cwd=tmp_path)
    assert process.returncode == 0
    assert "get_model_state_dict(model" in path.read_text()


def test_diff_shows_it_and_changes_nothing(tmp_path: Path) -> None:
    path = script(tmp_path)
    process = fsdp2("lint", "train.py", "--diff", cwd=tmp_path)
    assert process.returncode == 1
    assert process.stdout.splitlines()[:2] == ["--- train.py", "+++ train.py"]
    assert [line for line in process.stdout.splitlines() if line[:1] in "+-"][2:] == [
        "-loss = model.forward(torch.ones(2, 4)).sum()",
        "+loss = model(torch.ones(2, 4)).sum()",
    ]
    assert process.stderr == "1 finding would be fixed in 1 file\n"
    assert path.read_text() == BYPASSED
    assert fsdp2("lint", "train.py", "--diff", "--fix", cwd=tmp_path).stdout == process.stdout
    assert path.read_text() == BYPASSED
    assert fsdp2("lint", "train.py", "--diff", "--exit-zero", cwd=tmp_path).returncode == 0


def test_a_diff_of_nothing_is_empty_and_exits_with_0(tmp_path: Path) -> None:
    script(tmp_path, CALLED + "optimizer = torch.optim.SGD(model.parameters())\nfully_shard(model)\n")
    process = fsdp2("lint", "train.py", "--diff", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        SAVED.encode(),
        SAVED.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + SAVED.encode(),
        ("# -*- coding: latin-1 -*-\n# caf\xe9\n" + SAVED + "# na\xefve").encode("latin-1"),
        SAVED.encode().removesuffix(b"\n"),
    ],
    ids=["lf", "crlf", "bom", "latin-1", "no end of line"],
)
def test_the_diff_is_a_patch_that_makes_what_fix_makes(tmp_path: Path, content: bytes) -> None:
    path = script(tmp_path, content)
    command = [sys.executable, str(SKILL), "lint", "train.py", "--unsafe-fixes"]
    diff = subprocess.run([*command, "--diff"], cwd=tmp_path, capture_output=True, check=False).stdout
    subprocess.run([*command, "--fix"], cwd=tmp_path, capture_output=True, check=False)
    fixed = path.read_bytes()
    assert fixed != content
    path.write_bytes(content)
    subprocess.run(["git", "apply", "-p0", "-"], cwd=tmp_path, input=diff, check=True)
    assert path.read_bytes() == fixed


def test_the_rest_of_the_file_survives_byte_for_byte(tmp_path: Path) -> None:
    odd = b"\xef\xbb\xbf" + BYPASSED.encode().replace(b"\n", b"\r\n")
    odd += b"x =  1 ;y=2\t# caf\xc3\xa9 \x0c\r\nif x :\r\n\ty = '''a\n b'''\r\n\t\t\r\n#end"
    path = script(tmp_path, odd)
    assert fsdp2("lint", "train.py", "--fix", cwd=tmp_path).returncode == 0
    assert path.read_bytes() == odd.replace(b".forward", b"")


def test_the_mode_is_kept_and_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path = script(tmp_path / "real")
    path.chmod(0o755)
    (tmp_path / "link.py").symlink_to(path)
    assert fsdp2("lint", "link.py", "--fix", cwd=tmp_path).returncode == 0
    assert (tmp_path / "link.py").is_symlink()
    assert path.read_text() == CALLED
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = script(tmp_path)
    (text,) = fix(path).texts
    path.write_text("print('edited')\n")
    with pytest.raises(UserError, match="changed while it was fixed"):
        text.write()
    assert path.read_text() == "print('edited')\n"


def test_standard_input_comes_out_fixed(tmp_path: Path) -> None:
    process = fsdp2("lint", "-", "--fix", cwd=tmp_path, input=SAVED)
    assert process.returncode == 1
    assert process.stdout == SAVED.replace(".forward", "")
    assert "FS601" in process.stderr
    assert fsdp2("lint", "-", "--fix", cwd=tmp_path, input=CALLED).stdout == CALLED
    diff = fsdp2("lint", "-", "--diff", "--stdin-filename", "other.py", cwd=tmp_path, input=BYPASSED).stdout
    assert diff.startswith("--- other.py\n+++ other.py\n")


def test_what_is_suppressed_or_not_selected_is_not_fixed(tmp_path: Path) -> None:
    accepted = BYPASSED.replace(".sum()", ".sum()  # fsdp2: ignore[FS403] a test")
    path = script(tmp_path, accepted)
    assert fsdp2("lint", "train.py", "--fix", cwd=tmp_path).returncode == 0
    assert path.read_text() == accepted
    script(tmp_path, BYPASSED)
    assert fsdp2("lint", "train.py", "--fix", "--ignore", "FS403", cwd=tmp_path).returncode == 0
    assert path.read_text() == BYPASSED


def test_only_files_that_were_given_are_fixed_and_a_module_for_all_its_programs(tmp_path: Path) -> None:
    module = script(tmp_path, "def loss(model, x):\n    return model.forward(x).sum()\n", "losses.py")
    for name in ("a.py", "b.py"):
        program = BYPASSED.replace("import torch\n", "import torch\nfrom losses import loss as f\n", 1)
        script(tmp_path, program.replace("model.forward(torch.ones(2, 4)).sum()", "f(model, torch.ones(2, 4))"), name)
    assert fsdp2("lint", "a.py", "--fix", cwd=tmp_path).returncode == 1
    assert "forward" in module.read_text()
    assert fsdp2("lint", ".", "--fix", cwd=tmp_path).returncode == 0
    assert "forward" not in module.read_text()


def test_many_findings_are_fixed_at_once(tmp_path: Path) -> None:
    path = script(tmp_path, BYPASSED + "loss = model.forward(torch.ones(2, 4)).sum()\n" * 60)
    done = fix(path)
    assert len(done.fixes) == 61
    assert [t.text.count("forward") for t in done.texts] == [0]


def test_json_tells_of_fixes_that_hold_and_of_those_that_were_made(tmp_path: Path) -> None:
    script(tmp_path, SAVED + "torch.save(model.state_dict(), f'rank-{dcp}.pt')\nfully_shard(model)\n")
    document = fsdp2_json("lint", "train.py", cwd=tmp_path)
    jsonschema.validate(document, LINT)
    fixes = {f["code"]: f["fix"] for f in document["findings"]}
    assert fixes["FS403"] == {
        "message": "call the module, which runs its hooks",
        "applicability": "safe",
        "edits": [{"line": 7, "end_line": 8, "content": "loss = model(torch.ones(2, 4)).sum()\n"}],
    }
    assert fixes["FS601"]["applicability"] == "unsafe"
    document = fsdp2_json("lint", "train.py", "--fix", cwd=tmp_path)
    jsonschema.validate(document, LINT)
    assert [(f["code"], f["file"], f["line"]) for f in document["fixed"]] == [("FS403", "train.py", 7)]
    assert {f["code"] for f in document["findings"]} == {"FS601"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--unsafe-fixes"], "--fix and --diff"),
        (["--diff", "--format", "json"], "--diff prints a diff"),
        (["--diff", "--statistics"], "--diff prints a diff"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: list[str], words: str) -> None:
    script(tmp_path)
    assert_refused(fsdp2("lint", "train.py", *options, cwd=tmp_path), words)


def test_a_file_that_does_not_parse_is_told_and_the_others_are_fixed(tmp_path: Path) -> None:
    path = script(tmp_path)
    script(tmp_path, "import torch.distributed.checkpoint\ndef f(:\n", "broken.py")
    process = fsdp2("lint", "broken.py", "train.py", "--fix", cwd=tmp_path)
    assert_refused(process, "broken.py:2", "does not parse")
    assert path.read_text() == CALLED
