"""Run every benchmark, one after the other, and print the table."""

from __future__ import annotations

import subprocess
import sys

from .ranks import HEAD, ROOT

print(HEAD, flush=True)
for name in ("step_time", "probe_cost", "async_stall", "bandwidth", "convert", "launchers", "lint_speed"):
    subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}"], cwd=ROOT, check=True)
