"""From answers to the text of a script."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..validate import header
from ..validate.errors import UserError
from .mesh import DIMS, example_ranks, parse_mesh
from .models import as_source
from .options import OPTIONS, Answers

if TYPE_CHECKING:
    import jinja2

SCRIPT = Path(__file__).with_name("script")

PROOF_ARGS = (*("--steps", "8", "--checkpoint-interval", "2", "--micro-batch", "2", "--seq-len", "32"),)
"""A run of a few seconds that accumulates gradients, drops out, and saves often enough to remove a checkpoint."""

PROOF_GPT = ("--layers", "2", "--width", "32")
"""The built-in model's size; any other has the size that it has."""

PROOF_VOCABULARY = ("--vocab-size", "256")
"""Small too, where it is not that of bytes; data with more tokens needs `--vocab-size` after it."""


def version() -> str:
    """The version of this skill, from the one place that is there in place and installed: the head of SKILL.md."""
    skill = SCRIPT.parents[1].joinpath("SKILL.md").read_text("utf-8")
    match = re.search(r'^  version: "([^"]+)"$', skill, re.MULTILINE)
    assert match is not None
    return match[1]


@functools.cache  # it keeps the templates compiled
def environment(folder: Path) -> jinja2.Environment:
    """Renders the templates of a folder. Raises UserError when jinja2 is missing."""
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise UserError("jinja2 is not installed in this environment; expected jinja2 3.1 or newer") from error
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Python source, not HTML
    )


def render(answers: Answers) -> str:
    """The script for a valid set of answers. Raises UserError when jinja2 is missing."""
    mesh = parse_mesh(answers["mesh"])
    block = header.Header(
        version=version(),
        answers={option.name: value for option in OPTIONS if (value := answers[option.name]) != option.default},
        digest="",
        checkpoint_arg="--checkpoint-dir",
        steps_arg="--steps",
        proof_args=(
            *PROOF_ARGS,
            *(PROOF_GPT if answers["model"] == "gpt" else ()),
            *(() if answers["dataset"] == "bytes" else PROOF_VOCABULARY),
        ),
    )
    undigested = header.render(block)
    text = (
        environment(SCRIPT)
        .get_template("train.py.jinja")
        .render(
            {
                **answers,
                **as_source(answers["model"], answers["block"]),
                "header": undigested,
                "mesh": {dim: mesh.get(dim, 0) for dim in DIMS},
                "dims": list(mesh),
                "ranks": example_ranks(mesh),
                "policy": _policy(answers, mesh),
            }
        )
    )
    return text.replace(undigested, header.render(dataclasses.replace(block, digest=header.digest(text))), 1)


def _policy(answers: Answers, mesh: Mapping[str, int]) -> dict[str, str]:
    """The arguments that every `fully_shard` gets, as source."""
    sharded_over = ", ".join(f'"{dim}"' for dim in mesh if dim != "tp")
    policy = {"mesh": f"mesh[{sharded_over}]" if "tp" in mesh else "mesh"}
    reshard = answers["reshard_after_forward"]
    if reshard != "default":
        policy["reshard_after_forward"] = {"always": "True", "never": "False"}.get(reshard, reshard)
    if answers["precision"] == "bf16":
        policy["mp_policy"] = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
    if answers["cpu_offload"] == "on":
        policy["offload_policy"] = 'CPUOffloadPolicy(pin_memory=device.type != "cpu")'
    return policy
