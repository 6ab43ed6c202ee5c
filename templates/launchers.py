"""The file beside a script that starts it: by torchrun on one machine or several, by Slurm, Ray or Kubernetes."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from ..validate.errors import UserError
from .mesh import parse_mesh
from .options import Answers
from .render import environment, version

LAUNCH = Path(__file__).with_name("launch")

NODE = 8  # GPUs of a usual machine
MICRO_BATCH = 4  # the script's default


@dataclass(frozen=True)
class Launcher:
    """What a value of `--launcher` writes: `suffix` takes the place of the script's `.py`, `template` is rendered."""

    suffix: str
    template: str
    executable: bool = False


LAUNCHERS = {
    "torchrun": Launcher(".torchrun.sh", "torchrun.sh.jinja", executable=True),
    "multi-node": Launcher(".multi-node.sh", "multi-node.sh.jinja", executable=True),
    "slurm": Launcher(".slurm.sh", "slurm.sh.jinja", executable=True),
    "ray": Launcher(".ray.py", "ray.py.jinja"),
    "kubernetes": Launcher(".kubernetes.yaml", "kubernetes.yaml.jinja"),
}

_GENERATED = re.compile(
    r"^# Written by `fsdp2 generate` (?P<version>\S+), digest (?P<digest>[0-9a-f]{16})\.$", re.MULTILINE
)


def launch_name(launcher: str, script: str) -> str:
    """The name of the file that starts the script of this name."""
    return script.removesuffix(".py") + LAUNCHERS[launcher].suffix


def render_launcher(answers: Answers, script: str) -> str:
    """The file that starts the script of this name, which lies in the same folder.

    Raises UserError for a name that cannot be written into all kinds of files.
    """
    if re.search(r'["\\\x00-\x1f\x7f]', script):
        raise UserError(f"{script!r} is the script's name; expected one without quotes, backslashes and line breaks")
    launcher = LAUNCHERS[answers["launcher"]]
    mesh = parse_mesh(answers["mesh"])
    world = 0 if -1 in mesh.values() else math.prod(mesh.values())  # 0: as many as there are
    nodes, ranks = _nodes(mesh)
    undigested = _generated("0" * 16)
    template = environment(LAUNCH).get_template(launcher.template)
    text = template.render(
        {
            "script": script,
            "launch": launch_name(answers["launcher"], script),
            "shell": shlex.quote,
            "name": _dns_label(script.removesuffix(".py")),
            "world": world,
            "nodes": nodes,
            "ranks": ranks,
            "global_batch": MICRO_BATCH * nodes * ranks // mesh.get("tp", 1),
            "generated": undigested,
        }
    )
    return text.replace(undigested, _generated(_digest(text)), 1)


def launch_written_by(text: str) -> str | None:
    """The version that wrote this launch file, or None if it was edited since or was never generated."""
    line = _GENERATED.search(text)
    return line["version"] if line is not None and line["digest"] == _digest(text) else None


def _nodes(mesh: dict[str, int]) -> tuple[int, int]:
    """How many machines, and ranks on each, an example of this mesh has: two machines if it fills the world."""
    fixed = math.prod(size for size in mesh.values() if size != -1)
    world = fixed if -1 not in mesh.values() else fixed * math.ceil(2 * NODE / fixed)
    ranks = max(ranks for ranks in range(1, NODE + 1) if world % ranks == 0)
    return world // ranks, ranks


def _dns_label(text: str) -> str:
    """A name that Kubernetes takes, short enough for what it appends to the names of a job's pods."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:40].strip("-") or "train"


def _generated(digest: str) -> str:
    return f"# Written by `fsdp2 generate` {version()}, digest {digest}."


def _digest(text: str) -> str:
    return hashlib.sha256(_GENERATED.sub("", text).encode()).hexdigest()[:16]
