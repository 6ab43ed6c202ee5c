"""The whole path in two minutes: generate a script, lint, train, kill, resume, and see that nothing was lost.

    make demo                     # or: python recipes/demo.py, in an environment that has torch

Trains a small byte-level GPT on this skill's own pages, on two CPU ranks. One run goes straight to its end. Another,
in a directory of its own, is ended by SIGKILL in the middle and started again with the same command line; its losses
must then be the straight run's, bit for bit. At last `validate` proves the same of the script by itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SKILL = Path(__file__).resolve().parents[1]
STEPS = 60
KILL_AFTER = 35  # steps; checkpoints come every 10, so the resumed run has steps to do over


def main() -> int:
    """Run the demonstration; exit code 0 when the resumed run equals the straight one and the proofs passed."""
    with tempfile.TemporaryDirectory(prefix="fsdp2-demo-") as folder:
        script = Path(folder, "train.py")
        _say("1. Generate a script, and lint it")
        _fsdp2("generate", "--out", str(script))
        _fsdp2("lint", str(script))

        _say(f"2. Train it straight to its end: {STEPS} steps, two ranks")
        straight = Path(folder, "straight")
        _wait(_train(script, straight))

        _say(f"3. Train it again from scratch, and kill every process after step {KILL_AFTER}")
        stopped = Path(folder, "stopped")
        _kill_after(KILL_AFTER, _train(script, stopped), stopped)

        _say("4. Resume it: the same command line")
        done = _losses(stopped)
        _wait(_train(script, stopped))

        _say("5. Compare")
        equal = _compare(_losses(straight), _losses(stopped), max(done))

        _say("6. Let `validate` prove it of the script")
        proved = _fsdp2("validate", str(script), "--nproc", "2", "--prove", "trace,resume", "--", *_data())
    return 0 if equal and proved == 0 else 1


def _train(script: Path, run: Path) -> subprocess.Popen[bytes]:
    run.mkdir(exist_ok=True)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("--", str(script)),
            *_data(),
            *("--steps", str(STEPS), "--checkpoint-interval", "10", "--checkpoint-dir", str(run / "checkpoints")),
            *("--log", str(run / "log.jsonl"), "--global-batch", "8", "--micro-batch", "2", "--seq-len", "64"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def _data() -> tuple[str, str]:
    return "--data", str(SKILL / "references")


def _wait(process: subprocess.Popen[bytes]) -> None:
    if code := process.wait():
        sys.exit(f"the training script exited with {code}")


def _kill_after(step: int, process: subprocess.Popen[bytes], run: Path) -> None:
    while max(_losses(run), default=0) < step:
        if process.poll() is not None:
            sys.exit(f"the training script ended before step {step}, with {process.returncode}")
        time.sleep(0.05)
    for pid in [process.pid, *_descendants(process.pid)]:  # torchrun and both ranks: nobody gets to say goodbye
        os.kill(pid, signal.SIGKILL)
    process.wait()
    print(f"killed; its log ends with step {max(_losses(run))}, its checkpoints are:", end=" ")
    print(*sorted(p.name for p in (run / "checkpoints").iterdir()))


def _descendants(pid: int) -> list[int]:
    """The ids of a process's children, their children, and so on; torchrun gives each rank a session of its own."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    children = [child for child, parent in pairs if parent == pid]
    return children + [d for child in children for d in _descendants(child)]


def _losses(run: Path) -> dict[int, float]:
    """The loss of each step in the log; a last line that was being written when the process died does not count."""
    log = run / "log.jsonl"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return {record["step"]: record["loss"] for record in map(json.loads, lines)}


def _compare(straight: dict[int, float], resumed: dict[int, float], last_before: int) -> bool:
    print(f"{'step':>6}  {'straight':<22}{'killed and resumed':<22}")
    for step in sorted({1, 10, 20, 30, last_before, last_before + 1, 40, 50, STEPS} & straight.keys()):
        mark = "  <- the last step before the kill" if step == last_before else ""
        print(f"{step:>6}  {straight[step]!r:<22}{resumed.get(step)!r:<22}{mark}")
    equal = straight == resumed and len(straight) == STEPS
    verdict = "are equal bit for bit" if equal else "DIFFER"
    print(f"All {len(straight)} losses of the straight run and {len(resumed)} of the other {verdict}.")
    return equal


def _fsdp2(*arguments: str) -> int:
    print("$ fsdp2", *arguments, flush=True)
    return subprocess.run([sys.executable, str(SKILL), *arguments], check=False).returncode


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
