"""The seconds that `validate` takes by the warm launcher and by torchrun, which come to the same verdicts.

Every kind of mesh with every asynchronous mode, and scripts that were written by hand, right and wrong, their proofs
given as `validate` gives them. One warm parent serves them all, as it does in the tests. Fails where a verdict differs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .ranks import ROOT, row

from pytorch_fsdp2_dcp.validate import header  # isort: skip
from pytorch_fsdp2_dcp.validate.launch import launcher  # isort: skip
from pytorch_fsdp2_dcp.validate.launch.job import Launcher  # isort: skip
from pytorch_fsdp2_dcp.validate.proofs import PROOFS  # isort: skip
from pytorch_fsdp2_dcp.validate.proofs.bench import Bench, Subject  # isort: skip
from pytorch_fsdp2_dcp.validate.proofs.lanes import give  # isort: skip

PROVED = {"trace", "resume", "reshard"}
GENERATED = [
    (mesh, mode, ranks)
    for mesh, ranks in (("dp_shard=-1", 2), ("dp_replicate=2,dp_shard=-1", 4), ("dp_shard=-1,tp=2", 4))
    for mode in ("disabled", "async", "async_with_pinned_mem")
]
BY_HAND = ("by_helpers.py", "early_optimizer.py", "raw_skeleton.py")


def verdicts(script: Path, ranks: int, run: Launcher) -> list[tuple[Any, ...]]:
    """What came of each proof: status, the sentence, and the rules that were broken."""
    carried = header.parse(script.read_text())
    data = ("--data", str(ROOT / "tests" / "fixtures" / "text.md"))
    with tempfile.TemporaryDirectory(prefix="fsdp2-bench-") as scratch:
        subject = Subject(
            script=script,
            args=(*carried.proof_args, *data) if carried else (),
            nproc=ranks,
            cwd=script.parent,
            checkpoint_arg=carried.checkpoint_arg if carried else None,
            stop_after=None,
            timeout=300,
            header=carried,
        )
        bench = Bench(subject, run, Path(scratch))
        found: list[tuple[Any, ...]] = []
        for verdict, _ in give([proof for proof in PROOFS if proof.name in PROVED], bench):
            codes = sorted((finding.code, finding.at.line) for finding in verdict.findings)
            found.append((verdict.name, verdict.status, verdict.reason, codes))
        return found


def main() -> None:
    """Print the row, of all scripts together."""
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory(prefix="fsdp2-bench-") as folder:
        place = Path(folder).resolve()
        scripts = [(ROOT / "tests" / "fixtures" / "scripts" / name, 2) for name in BY_HAND]
        for mesh, mode, ranks in GENERATED:
            scripts.append((place / f"{mesh}-{mode}.py", ranks))
            options = ("--mesh", mesh, "--async-mode", mode, "--out", str(scripts[-1][0]))
            subprocess.run([sys.executable, str(ROOT), "generate", *options], check=True, stdout=subprocess.DEVNULL)
        launchers = launcher("warm"), launcher("torchrun")
        verdicts(scripts[0][0], 1, launchers[0])  # the warm parent is started
        for script, ranks in scripts:
            both: list[list[tuple[Any, ...]]] = []
            for run, seconds in zip(launchers, (ours, theirs), strict=True):
                began = time.perf_counter()
                both.append(verdicts(script, ranks, run))
                seconds.append(time.perf_counter() - began)
            if both[0] != both[1]:
                sys.exit(f"{script.name}: the launchers differ: {both[0]} and {both[1]}")
            print(f"{script.stem}: {ours[-1]:.1f} s, {theirs[-1]:.1f} s", file=sys.stderr)
    whole = row(
        "`validate` of 12 scripts, warm against torchrun", "at least 4", [sum(ours)], [sum(theirs)], inverse=True
    )
    print(whole, flush=True)


if __name__ == "__main__":
    main()
