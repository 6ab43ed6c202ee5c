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


def assert_refused(process: subprocess.CompletedProcess[str], *words: str) -> None:
    """The command could not run: exit code 2, nothing but one line on stderr, with these words in it."""
    assert process.returncode == 2, process
    (line,) = process.stderr.strip().splitlines()
    for word in words:
        assert word in line, line
