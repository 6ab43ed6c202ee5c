"""`lint` takes any file: it says what is wrong with it or that it cannot be read, never crashes and never waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytorch_fsdp2_dcp.validate.fixes import FIXERS, Script
from pytorch_fsdp2_dcp.validate.linter import Outcome, lint, lint_one
from pytorch_fsdp2_dcp.validate.sources import SIZE_LIMIT, Source, decode, find_sources

from ..commands import assert_refused, fsdp2
from .test_lint import EARLY_OPTIMIZER

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
SEEDS = [path.read_bytes() for path in sorted(FIXTURES.rglob("*.py"))]
OURS = ("the linter failed", "the reader gave up", "process died")  # what only a mistake of ours makes it say

quick = settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
thorough = settings(quick, max_examples=1500)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A training script in which lines were deleted, doubled, swapped, shifted and replaced by parts of others."""
    lines = draw(st.sampled_from(SEEDS)).splitlines(keepends=True)
    other = draw(st.sampled_from(SEEDS)).splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(lines) - 1)))
        match draw(st.integers(0, 7)):
            case 0:
                del lines[at : at + draw(st.integers(1, 5))]
            case 1:
                lines[at:at] = lines[at : at + 3]
            case 2:
                lines[at:at] = [draw(st.sampled_from(other))]
            case 3:
                lines[at : at + 1] = [b"    " + line for line in lines[at : at + 1]]
            case 4:
                lines[at : at + 1] = [line.lstrip(b" ") for line in lines[at : at + 1]]
            case 5:
                name, by = draw(
                    st.sampled_from([(b"model", b"optimizer"), (b"self", b"cls"), (b"(", b"(*"), (b"=", b"+=")])
                )
                lines[at : at + 1] = [line.replace(name, by) for line in lines[at : at + 1]]
            case 6:
                lines[at : at + 1] = [line.replace(b"def ", b"async def ") for line in lines[at : at + 1]]
            case 7:
                lines[at:at] = [draw(st.binary(max_size=12))]
    return b"".join(lines)


def outcome(content: bytes) -> Outcome:
    found = lint_one(Source("fuzzed.py", Path("fuzzed.py"), named=True), content)
    said = [found.problem or "", *(note.text for note in found.notes)]
    assert not [text for text in said if any(ours in text for ours in OURS)], content.decode(errors="replace")
    return found


@quick
@given(mutated())
def test_mutated_scripts_are_judged_or_refused(content: bytes) -> None:
    outcome(content)


@pytest.mark.matrix
@pytest.mark.slow
@thorough
@given(mutated())
def test_many_mutated_scripts_are_judged_or_refused(content: bytes) -> None:
    outcome(content)


@quick
@given(st.binary(max_size=300))
def test_any_bytes_are_judged_or_refused(content: bytes) -> None:
    outcome(content)


API = b"from torch.distributed.fsdp import fully_shard\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 64,
        API + b"x = '\x00'\n",
        b"\x7fELF\x02\x01" + bytes(range(256)) * 8,
        b"\xff\xfe" + "import torch\n".encode("utf-16-le"),
        b"# -*- coding: no-such-encoding -*-\n",
        b"# -*- coding: rot13 -*-\n",
        b"# coding: utf-8\n\xe9\n",
        API + b"print 'python 2'\n",
        API + b"if x:\n\ty = 1\n        z = 2\n",
        API + b"x = " + b"(" * 5000 + b")" * 5000,
        API + b"x = " + b"-" * 20000 + b"1\n",
        API + b"x = " + b"+".join([b"1"] * 20000) + b"\n",
        API + b"x = a" + b".b" * 5000 + b"\n",
        API + b"x = f" + b"()" * 3000 + b"\n",
        API + b"".join(b" " * n + b"if x:\n" for n in range(95)) + b" " * 95 + b"pass\n",
        API + b"if a:\n    pass\n" + b"elif a:\n    pass\n" * 3000,
        API + b"x = [" + b"0, " * 200_000 + b"]\n",
        API + b"get_ipython().system('pip install torch')\n# In[3]:\n%matplotlib inline\n",
        API + b"# In[1]:\nget_ipython().run_line_magic('load_ext', 'tensorboard')\nfully_shard(model)\n",
        API + b"x = 1 \\\n\n\x0c\ndef f(): pass\r\ny = 2\rz = 3\n# fsdp2: ignore[FS401]\n",
        API + b"class A(A): pass\nclass B(B.C): B = B\nB()\nfully_shard(B())\n",
        API + b"def f(*a, **k): return f(*a, **k)\nf(*f, **f)\nfully_shard(f(fully_shard))\n",
        API + b"import fuzzed\nfrom fuzzed import *\nfrom . import fuzzed\nfrom ........ import x\n",
        API + b"match x:\n  case {'a': [1, *y], **z} if fully_shard(z): pass\n  case A(b=c) | None: del c\n",
        API + b"[fully_shard(m) for m in m if (m := m)]; lambda: (yield); x: int; x[...]: 1 = 2; del x[:], (a, b)\n",
    ],
    ids=range(26),
)  # fmt: skip
def test_odd_files_are_judged_or_refused(content: bytes) -> None:
    outcome(content)


def test_a_declared_encoding_is_honoured() -> None:
    latin = "# -*- coding: latin-1 -*-\n# caf\xe9\n" + EARLY_OPTIMIZER
    assert [f.code for f in outcome(latin.encode("latin-1")).findings] == ["FS401"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fifo", "device", "huge", "loop", "broken", "socket"])
def test_what_is_no_regular_file_is_refused_by_name_and_passed_over_in_a_folder(tmp_path: Path, kind: str) -> None:
    odd = tmp_path / "odd.py"
    if kind == "fifo":
        os.mkfifo(odd)
    elif kind == "device":
        odd.symlink_to("/dev/zero")
    elif kind == "huge":
        with odd.open("wb") as file:
            file.write(API)
            file.truncate(SIZE_LIMIT + 1)
    elif kind == "loop":
        odd.symlink_to(odd)
    elif kind == "broken":
        odd.symlink_to(tmp_path / "gone.py")
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(odd))
    assert_refused(fsdp2("lint", "odd.py", cwd=tmp_path), "odd.py: ")
    (tmp_path / "train.py").write_text(EARLY_OPTIMIZER)
    (tmp_path / "again").symlink_to(tmp_path)
    process = fsdp2("lint", ".", cwd=tmp_path)
    assert (process.returncode, process.stderr) == (1, "")
    assert process.stdout.count("FS401") == 1


def test_names_may_hold_any_character(tmp_path: Path) -> None:
    for name in (b"new\nline.py", b"caf\xe9.py", "snow☃.py".encode()):
        (tmp_path / os.fsdecode(name)).write_text(EARLY_OPTIMIZER)
    for output in ("text", "json", "sarif", "github"):
        process = fsdp2("lint", ".", "--format", output, cwd=tmp_path, PYTHONIOENCODING="utf-8")
        assert (process.returncode, process.stderr) == (1, ""), output
    assert len(fsdp2("lint", ".", cwd=tmp_path).stdout.splitlines()) == 1 + 3 * 3


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_folder: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    (found,) = lint([(source, None) for source in find_sources([str(tmp_path)])])
    assert found.problem == f"{tmp_path}: cannot be listed: Permission denied; expected a folder that can be read"


@quick
@given(mutated())
def test_fixers_take_any_script_that_is_judged(content: bytes) -> None:
    """Called as they are: what applies fixes would forgive them anything."""
    found = outcome(content)
    if found.problem is None:
        script = Script(decode("fuzzed.py", content))
        for finding in found.findings:
            if finding.code in FIXERS:
                for proposal in FIXERS[finding.code](script, finding):
                    assert proposal.text
