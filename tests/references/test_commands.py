"""Every command and flag that a page shows is one that the command's own `--help` knows."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.command import VERBS

from ..commands import SKILL, fsdp2
from .pages import Page, pages

pytestmark = pytest.mark.slow  # it asks this project's and torch's commands for their help

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
FORMAT_UTILS = "torch.distributed.checkpoint.format_utils"
OTHERS = {"sbatch", "srun", "kubectl", "pip", "export", "ray", "cp", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"}


@functools.cache
def flags(command: str) -> frozenset[str]:
    """The flags in a command's help: a verb, `torchrun`, or `train.py` for a generated script."""
    if command == "torchrun":
        from torch.distributed.run import get_args_parser

        return frozenset(FLAG.findall(get_args_parser().format_help().replace("_", "-")))
    if command == FORMAT_UTILS:
        asked = subprocess.run([sys.executable, "-m", command, "--help"], capture_output=True, text=True, check=True)
        return frozenset(FLAG.findall(asked.stdout))
    if command == "train.py":
        with tempfile.TemporaryDirectory() as folder:
            written = fsdp2("generate", "--out", command, cwd=Path(folder))
            assert written.returncode == 0, written.stderr
            asked = subprocess.run(
                [sys.executable, command, "--help"], cwd=folder, capture_output=True, text=True, check=True
            )
        return frozenset(FLAG.findall(asked.stdout))
    asked = fsdp2(command, "--help", cwd=Path.cwd())
    assert asked.returncode == 0, asked.stderr
    return frozenset(FLAG.findall(asked.stdout))


def commands(page: Page) -> list[str]:
    """The lines of the page's shell blocks, and the commands between backticks."""
    shown = [block.text.replace("\\\n", " ") for block in page.blocks if block.language == "bash"]
    lines = [line for text in shown for line in text.splitlines()]
    lines += re.findall(r"`((?:python|fsdp2|torchrun) [^`]+)`", page.prose)
    lines += [f"fsdp2 {line}" for line in re.findall(rf"`((?:{'|'.join(VERBS)}) [^`]+)`", page.prose)]
    return [line for line in lines if line.strip() and not line.strip().startswith("#")]


def check(line: str) -> None:
    """Raise AssertionError where the command, or a flag of it, is unknown."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    if words[:2] in (["python", "<skill-dir>"], ["python", "."]):
        words = ["fsdp2", *words[2:]]
    if words[0] == "fsdp2":
        verb = words[1]
        assert verb in VERBS or verb == "VERB", line
        if verb in VERBS:
            own = words[2 : words.index("--")] if "--" in words else words[2:]
            assert {w for word in own if (w := word.split("=")[0]).startswith("--")} <= flags(verb), line
    elif words[0] == "torchrun":
        script = next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))
        assert options(words[1:script]) <= flags("torchrun"), line
        assert options(words[script:]) <= flags("train.py"), line
    elif words[:2] == ["python", "-m"]:
        assert words[2] in (FORMAT_UTILS, "tests.references"), line
        if words[2] == FORMAT_UTILS:
            assert options(words[3:]) <= flags(FORMAT_UTILS), line
            assert words[3] in ("dcp_to_torch", "torch_to_dcp"), line
    else:
        assert words[0] in OTHERS, line


def options(words: list[str]) -> set[str]:
    """Those words that are flags, without values."""
    return {word.split("=")[0] for word in words if word.startswith("--") and word != "--"}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.path.stem)
def test_every_command_is_one_that_its_help_knows(page: Page) -> None:
    for line in commands(page):
        check(line)


def test_every_script_that_a_page_has_generated_is_generated(tmp_path: Path) -> None:
    """With the values that it gives to the options."""
    shown = {line.partition("generate")[2] for page in pages() for line in commands(page) if "> generate" in line}
    assert len(shown) >= 8
    for number, line in enumerate(sorted(shown)):
        folder = tmp_path / str(number)
        folder.mkdir()
        written = fsdp2("generate", *shlex.split(line, comments=True), cwd=folder)
        assert written.returncode == 0, (line, written.stderr)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.path.stem)
def test_every_flag_in_the_text_is_a_flag_of_something(page: Page) -> None:
    known = {flag for command in (*VERBS, "torchrun", "train.py") for flag in flags(command)} | {"--help"}
    known |= set(FLAG.findall((SKILL / "templates/launch/slurm.sh.jinja").read_text()))  # srun's
    alone = re.findall(r"`(--[a-z][a-z-]*)", page.prose)
    assert set(alone) <= known


@pytest.mark.parametrize(
    "line", ["fsdp2 lint --fast x.py", "fsdp2 check x.py", "torchrun --ranks 2 train.py", "torchrun train.py --fast"]
)
def test_a_flag_that_is_unknown_is_found(line: str) -> None:
    with pytest.raises(AssertionError):
        check(line)
