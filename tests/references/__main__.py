"""Run the pages' code and write `references/verified.md`: `python -m tests.references [NAME...]`.

Without names it runs those programs that the file does not know as they are now, and with `--all` every one.
"""

from __future__ import annotations

import datetime
import sys
import tempfile
from pathlib import Path

from .. import conftest  # noqa: F401 - registers the package
from . import verified
from .pages import programs


def main() -> int:
    """The exit status: 1 when a program failed; its rows are then left out."""
    import torch

    known = verified.read()
    asked = set(sys.argv[1:])
    found, failures = {}, 0
    for program in programs():
        was = known.get(program.name)
        stale = was is None or was.digest != program.digest
        if was is not None and not stale and not asked & {program.name, "--all"}:
            found[program.name] = was
            continue
        from .running import run

        with tempfile.TemporaryDirectory() as folder:
            failed = run(program, Path(folder))
        print(f"{program.name}: {failed or 'holds'}", file=sys.stderr, flush=True)
        failures += bool(failed)
        if not failed:
            version = torch.__version__.split("+")[0]
            found[program.name] = verified.confirmed(program, version, datetime.date.today().isoformat())
    verified.write(found)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
