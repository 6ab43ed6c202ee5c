"""The scripts that are measured: mutants, each an edit of a generated script or a recipe, and scripts that are right.

A file in `edits/` begins with what it is, in lines of `key: value`, and goes on with an edit as those of the corpus:

    class: A               of the catalogue: wrong numerics, lost state, hangs, crashes, memory
    bug: in words
    base: generate --mesh dp_shard=-1,tp=2       or: recipe b_blocking.py
    args: --steps 22       what the script gets beside what its kind gets
    equivalent: why nothing that a run computes, saves or restores can tell this from the base; most have none
    @@ train.py
     a line before
    -a line that goes
    +a line that comes
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytorch_fsdp2_dcp.templates.mesh import example_ranks, parse_mesh
from pytorch_fsdp2_dcp.templates.options import answer
from pytorch_fsdp2_dcp.templates.render import render
from pytorch_fsdp2_dcp.validate import header
from pytorch_fsdp2_dcp.validate.proofs.bench import Subject

from ..corpus.measure import plant

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EDITS, RECIPES, SCRIPTS = HERE / "edits", ROOT / "recipes", ROOT / "tests" / "fixtures" / "scripts"
TEXT = ROOT / "tests" / "fixtures" / "text.md"
CLASSES = {"A": "wrong numerics", "B": "lost state", "C": "hangs", "D": "crashes", "E": "memory"}
TRAINED = ("--data", str(TEXT), "--batch", "4", "--epochs", "2")
"""A recipe takes 26 optimizer steps by these."""
MORE_RANKS = {"tensor_parallel.py": 4}  # else two
DEADLINE = 120.0  # seconds a run; most take less than five


@dataclass(frozen=True)
class Program:
    """A script to write and to judge; `edit` is empty for one that is right."""

    name: str
    base: str
    args: tuple[str, ...] = ()
    edit: str = ""
    group: str = "right"  # or a class of bugs
    bug: str = ""
    equivalent: str = ""

    @property
    def answers(self) -> dict[str, str]:
        """What the generator is asked for."""
        words = self.base.split()[1:]
        return {
            flag.removeprefix("--").replace("-", "_"): value
            for flag, value in zip(words[::2], words[1::2], strict=True)
        }

    def write(self, folder: Path) -> Subject:
        """Write the script, in a folder of its own, and tell how it is driven."""
        kind, _, rest = self.base.partition(" ")
        code, work = folder / "code", folder / "work"
        work.mkdir(parents=True)
        if kind == "generate":
            code.mkdir()
            script = code / "train.py"
            script.write_text(render(answer(self.answers)))
        elif kind == "recipe":
            shutil.copytree(RECIPES, code, ignore=shutil.ignore_patterns("__pycache__"))
            script = code / rest
        else:
            code.mkdir()
            script = Path(shutil.copy(SCRIPTS / rest, code))
        plant(code, self.edit)
        return self._subject(kind, script, work)

    def _subject(self, kind: str, script: Path, work: Path) -> Subject:
        args: tuple[str, ...] = ()
        checkpoint_arg, nproc = None, MORE_RANKS.get(script.name, 2)
        carried = header.parse(script.read_text()) if kind == "generate" else None
        if carried is not None:
            args = (*carried.proof_args, "--data", str(TEXT))
            checkpoint_arg = carried.checkpoint_arg
            nproc = example_ranks(parse_mesh(carried.answers.get("mesh", "dp_shard=-1")))
        elif kind == "recipe":
            args = TRAINED
            if script.name.startswith(("b_", "tensor_parallel")):
                args, checkpoint_arg = (*TRAINED, "--checkpoint-interval", "5"), "--checkpoint-dir"
        return Subject(
            script=script,
            args=(*args, *self.args),
            nproc=nproc,
            cwd=work,
            checkpoint_arg=checkpoint_arg,
            stop_after=None,
            timeout=DEADLINE,
            header=carried,
        )


def mutants() -> list[Program]:
    """All mutants, by class and name."""
    return [_mutant(path) for path in sorted(EDITS.glob("*.edits"))]


def _mutant(path: Path) -> Program:
    text = path.read_text()
    start = text.index("@@ ")
    said = dict(re.findall(r"^(\w+): (.+)$", text[:start], re.MULTILINE))
    assert set(said) <= {"class", "bug", "base", "args", "equivalent"}, f"{path.name}: {said}"
    return Program(
        name=path.stem,
        base=said["base"],
        args=tuple(said.get("args", "").split()),
        edit=text[start:],
        group=said["class"],
        bug=said["bug"],
        equivalent=said.get("equivalent", ""),
    )


def right() -> Iterator[Program]:
    """Scripts without a mistake: every mesh and way to save, other options of the generator, and other styles."""
    for mesh in ("dp_shard=-1", "dp_replicate=2,dp_shard=-1", "dp_shard=-1,tp=2", "dp_replicate=2,dp_shard=2,tp=2"):
        for mode in ("disabled", "async", "async_with_pinned_mem"):
            yield Program(f"right {mesh} {mode}", f"generate --mesh {mesh} --async-mode {mode}")
    for options in (
        "--precision bf16",
        "--activation-checkpointing full",
        "--cpu-offload on",
        "--reshard-after-forward never",
        "--optimizer sgd --schedule wsd",
        "--export pt",
        "--export safetensors",
        "--initial-checkpoint on",
    ):
        yield Program(f"right {options}", f"generate {options}")
    for recipe in ("a_one_process_after", "a_wrapped_after", "b_blocking", "b_asynchronous"):
        yield Program(f"right {recipe}.py", f"recipe {recipe}.py")
    yield Program("right tensor_parallel.py", "recipe tensor_parallel.py")
    for script in ("averages", "by_helpers", "in_background", "keeps_two"):
        yield Program(f"right {script}.py", f"script {script}.py")
