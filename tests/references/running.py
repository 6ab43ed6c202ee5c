"""Runs a page's program on ranks of this machine, as the project runs a user's script."""

from __future__ import annotations

from pathlib import Path

from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.launch.job import Job

from .pages import Program, setup_text


def run(program: Program, folder: Path) -> str:
    """Run it in an empty folder; what failed, empty when every rank came to its end."""
    cwd, scratch = folder / "cwd", folder / "scratch"
    cwd.mkdir()
    scratch.mkdir()
    script = cwd / f"{program.name}.py"
    script.write_text(program.script)
    (cwd / "setup.py").write_text(setup_text())
    job = Job(script=script, args=(), nproc=program.ranks, cwd=cwd, scratch=scratch, deadline=240)
    result = launcher("warm").run(job)
    if result.succeeded:
        return ""
    return "\n".join(f"rank {end.rank}: code {end.code} {end.error or ''}\n{end.output[-4000:]}" for end in result.ends)
