"""Runs the command as a user does: `python <skill-dir> VERB ...` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SKILL = Path(__file__).resolve().parents[1]


def fsdp2(*arguments: str, cwd: Path, input: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The finished process; its output is captured as text."""
    return subprocess.run(
        [sys.executable, str(SKILL), *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        input=input,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def fsdp2_json(*arguments: str, cwd: Path) -> Any:
    """The document that `--format json` prints."""
    return json.loads(fsdp2(*arguments, "--format", "json", cwd=cwd).stdout)


def measured(*arguments: str, cwd: Path) -> tuple[int, int]:
    """The exit code and the most memory that a run held, in bytes (getrusage would count this process in)."""
    program = _MEASURED.format(skill=str(SKILL / "__main__.py"))
    process = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    code, most = process.stderr.split()
    return int(code), int(most) * 1024


_MEASURED = """
import re, runpy, sys
sys.argv = ["fsdp2", *sys.argv[1:]]
try:
    runpy.run_path({skill!r}, run_name="__main__")
except SystemExit as left:
    print(left.code, re.search("VmHWM:[^0-9]*([0-9]+) kB", open("/proc/self/status").read())[1], file=sys.stderr)
"""


def assert_refused(process: subprocess.CompletedProcess[str], *words: str) -> None:
    """The command could not run: exit code 2, nothing but one line on stderr, with these words in it."""
    assert process.returncode == 2, process
    (line,) = process.stderr.strip().splitlines()
    for word in words:
        assert word in line, line
