"""What lies on the disk between two runs: which checkpoints are whole, and damaged ones that are put there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from ..checkpoint.folders import open_folder
from ..checkpoint.layouts import Steps, survey
from ..errors import UserError

Damage = Literal["a truncated checkpoint", "a checkpoint that lacks a file", "an empty folder"]
DATA = ("*.distcp", "*.safetensors")


def problem(folder: Path) -> str | None:
    """Why the checkpoint in a folder is not whole; None where it is."""
    try:
        found = survey(open_folder(str(folder)))
    except UserError as error:
        return str(error)
    if isinstance(found, Steps):
        return "it is no checkpoint"
    return None if found.whole else found.problems[0].message


def newest(folder: Path) -> Path | None:
    """The checkpoint below a folder to which something was written last."""
    files = [file for pattern in (*DATA, ".metadata") for file in folder.rglob(pattern)]
    return max(files, key=lambda file: file.stat().st_mtime_ns).parent if files else None


def plant(damage: Damage, at: Path, whole: Path | None) -> bool:
    """Put a damaged checkpoint in the place of what is there; false where there is no whole one to damage."""
    if damage == "an empty folder":
        shutil.rmtree(at, ignore_errors=True)
        at.mkdir(parents=True)
        return True
    if whole is None or not (files := [file for pattern in DATA for file in whole.glob(pattern)]):
        return False
    shutil.rmtree(at, ignore_errors=True)
    shutil.copytree(whole, at)
    largest = at / max(files, key=lambda file: file.stat().st_size).name
    if damage == "a truncated checkpoint":
        with largest.open("r+b") as file:
            file.truncate(largest.stat().st_size // 2)
    else:
        largest.unlink()
    return True
