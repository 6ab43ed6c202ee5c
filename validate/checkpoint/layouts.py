"""What a folder is: one checkpoint, the parts of one (as Accelerate saves), or the steps of a run; and who wrote it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..errors import UserError
from . import whole
from .contents import Contents
from .folders import Folder
from .metadata import merge, read_metadata
from .pickles import shown
from .safetensors import SUFFIX, missing_files, read_safetensors, safetensors_files
from .whole import Remark

_PART = re.compile(r"(?:pytorch_model_fsdp|optimizer)_\d+")  # as Accelerate and the Trainer of transformers name them
_STEP = re.compile(r"(\d+)(?:\.ckpt)?$")


@dataclass
class Checkpoint:
    """One checkpoint; `contents` is None when it has no metadata."""

    folder: Folder
    layout: str
    contents: Contents | None
    problems: list[Remark]
    notes: list[Remark]

    @property
    def whole(self) -> bool:
        return not self.problems

    @property
    def bytes(self) -> int:
        """Of all files in its folder."""
        return sum(self.folder.files().values())

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return [self]


@dataclass
class Parts:
    """A checkpoint in several folders, each one of DCP's."""

    folder: Folder
    checkpoints: list[Checkpoint]

    @property
    def whole(self) -> bool:
        return all(checkpoint.whole for checkpoint in self.checkpoints)

    @property
    def problems(self) -> list[Remark]:
        return [
            Remark(remark.kind, f"{checkpoint.folder.name}: {remark.message}")
            for checkpoint in self.checkpoints
            for remark in checkpoint.problems
        ]

    @property
    def bytes(self) -> int:
        return sum(checkpoint.bytes for checkpoint in self.checkpoints)


@dataclass
class Step:
    """A folder among those of a run; `found` is None where nothing in it can be read, and `why` then says why."""

    name: str
    number: int | None
    found: Checkpoint | Parts | None
    why: list[Remark] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return self.found is not None and self.found.whole

    @property
    def problems(self) -> list[Remark]:
        return self.why if self.found is None else self.found.problems


@dataclass
class Steps:
    """The checkpoints of a run, in the order of their steps."""

    folder: Folder
    steps: list[Step]

    @property
    def whole(self) -> bool:
        return all(step.whole for step in self.steps)

    @property
    def latest(self) -> Step | None:
        """The last one that is whole."""
        return next((step for step in reversed(self.steps) if step.whole), None)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Those of the latest whole step."""
        return self.latest.found.checkpoints if self.latest and self.latest.found else []


def survey(folder: Folder) -> Checkpoint | Parts | Steps:
    """What the folder is. Raises UserError for one that is no checkpoint and holds none, and for one not to be read."""
    if (found := _one(folder)) is not None:
        return found
    steps = [_step(folder.child(name)) for name in folder.folders()]
    if not any(step.found or step.why for step in steps):
        outside = (
            f" ({_some(folder.outsiders())}: links out of the folder are not followed)" if folder.outsiders() else ""
        )
        raise UserError(
            f"{folder.where}: no checkpoint, and no folder of checkpoints{outside}; expected a .metadata file with "
            f"*.distcp files beside it, *{SUFFIX} files, or folders that hold them"
        )
    steps = [step for step in steps if step.found or step.why or step.number is not None]
    for step in steps:
        if step.found is None and not step.why:
            step.why = [Remark("empty", "nothing of a checkpoint is in it: a save died before it wrote")]
    # Without a number first, such as `best` and `last`: the latest is one that has a step.
    return Steps(folder, sorted(steps, key=lambda step: (step.number is not None, step.number or 0, step.name)))


def _step(folder: Folder) -> Step:
    match = _STEP.search(folder.name)
    number = int(match[1]) if match else None
    try:
        return Step(folder.name, number, _one(folder))
    except UserError as error:  # one that cannot be read leaves the others
        return Step(folder.name, number, None, [Remark("unreadable", str(error))])


def _one(folder: Folder) -> Checkpoint | Parts | None:
    files = folder.files()
    names = whole.metadata_files(folder)
    if names:
        parts = [read_metadata(folder, name) for name in names]
        contents = parts[0] if len(parts) == 1 else merge(parts)
        notes = whole.notes(folder, contents)
        return Checkpoint(folder, _layout(folder, contents), contents, whole.problems(folder, contents), notes)
    parts_of_one = [name for name in folder.folders() if _PART.fullmatch(name)]
    if parts_of_one:
        return Parts(folder, [_part(folder.child(name)) for name in parts_of_one])
    if safetensors_files(folder):
        contents = read_safetensors(folder)
        missing = [Remark("file-missing", f"{name}: missing; the index names it") for name in missing_files(folder)]
        found = [*missing, *whole.problems(folder, contents)]
        return Checkpoint(folder, "safetensors", contents, found, whole.notes(folder, contents))
    if any(whole.rank_of(name) is not None for name in files) or whole.notes(folder, None):
        return Checkpoint(folder, "DCP", None, [whole.unfinished(folder)], whole.notes(folder, None))
    return None


def _some(names: set[str]) -> str:
    first, *rest = sorted(names)
    return shown(first) + (f" and {len(rest)} more" if rest else "")


def _part(folder: Folder) -> Checkpoint:
    found = _one(folder)
    if isinstance(found, Checkpoint):
        found.layout = "Accelerate"
        return found
    return Checkpoint(folder, "Accelerate", None, [whole.unfinished(folder)], [])


def _layout(folder: Folder, contents: Contents) -> str:
    """Who saves like this."""
    tops = {str(path[0]) for path in contents.paths.values() if path}
    if "meta.pt" in folder.files():
        return "Lightning"
    if "train" in tops and any(top.startswith("rng-") for top in tops):
        return "fsdp2 generate"
    if "train_state" in tops and tops & {"lr_scheduler", "dataloader"}:
        return "torchtitan"
    return "DCP"
