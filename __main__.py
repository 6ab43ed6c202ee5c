"""One command, run in place (`python <skill-dir> VERB ...`) or installed (`fsdp2 VERB ...`)."""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - `python <skill-dir>` runs whatever Python is there
    sys.exit("fsdp2 needs Python 3.10 or newer; this is " + sys.version.split()[0])

import importlib
import importlib.machinery
import importlib.util
import io
import os
from pathlib import Path

PACKAGE = "pytorch_fsdp2_dcp"
ROOT = Path(__file__).resolve().parent


def register() -> None:
    """Make the skill's folder importable as `pytorch_fsdp2_dcp`, and as nothing else.

    Python puts the folder of the program that it runs first on `sys.path`, where our `validate/` and `templates/` would
    shadow modules of the same name in the user's project; so that entry goes.
    """
    if PACKAGE not in sys.modules:
        spec = importlib.machinery.ModuleSpec(PACKAGE, None, is_package=True)
        spec.submodule_search_locations = [str(ROOT)]
        sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    if sys.path and sys.path[0] and Path(sys.path[0]).resolve() == ROOT:
        del sys.path[0]


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return its exit code: 0 holds or done, 1 found or failed, 2 could not run."""
    command = importlib.import_module(f"{PACKAGE}.validate.command")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code: int = command.main(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `fsdp2 lint ... | head`: the reader has gone, nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as error:  # a full disk behind a redirection, say
        print(f"fsdp2: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer cannot be written either
        return 2


if __name__ == "__main__":
    register()
    sys.exit(main())
