"""Plan a run before it takes a GPU: memory of a rank, the checkpoint, how often to save, what fits.

The model is a config of Hugging Face (--config), one that your code builds (--model and --block), or numbers (--params,
--layers, --hidden). A real model makes a step under fake tensors and a fake process group, watched by torch's memory
tracker, so no GPU is needed and nothing is allocated; for numbers there are formulas. So there are for a config with tp
in the mesh; a model of yours is split over tp by your own function (--parallelize).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .errors import UserError
from .files import chosen_file, write_chosen
from .quantities import parse_count, parse_rate, parse_seconds, parse_size

EXAMPLES = (
    "fsdp2 plan --config my_llama/ --mesh dp_shard=-1 --nodes 4 --precision bf16",
    "fsdp2 plan --model my_model:build_model --block my_model:Block --mesh dp_shard=8 --micro-batch 4 --seq-len 1024",
    "fsdp2 plan --model my_model:build --block my_model:Block --mesh dp_shard=4,tp=2 --parallelize my_model:split",
    "fsdp2 plan --params 8B --layers 32 --hidden 4096 --nodes 2 --fits 80GB",
    "fsdp2 plan --config my_llama/ --nodes 64 --bandwidth 2GB/s --mtbf 2y --restart 10m --plot plan.svg",
    "fsdp2 plan --config my_llama/ --scale --format json",
)

SHAPE = {  # what goes with --params
    "layers": "blocks",
    "hidden": "width of the stream",
    "heads": "default: hidden / 128",
    "kv_heads": "default: as heads",
    "vocab": "default: 32000",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `plan`."""
    source = parser.add_argument_group("the model").add_mutually_exclusive_group(required=True)
    source.add_argument("--config", metavar="PATH", type=Path, help="a config.json of Hugging Face, or its folder")
    source.add_argument("--model", metavar="MODULE:FACTORY", help="called without arguments, returns an nn.Module")
    source.add_argument("--params", metavar="N", help="a decoder-only transformer of so many parameters, such as 8B")
    shape = parser.add_argument_group("more of the model")
    shape.add_argument(
        "--block", metavar="MODULE:CLASS", help="with --model: the classes that are sharded each, by comma"
    )
    shape.add_argument(
        "--parallelize", metavar="MODULE:FUNCTION",
        help="with --model and tp in the mesh: is given the model and the mesh of tp, and splits it in place",
    )  # fmt: skip
    for name, words in SHAPE.items():
        shape.add_argument(_flag(name), metavar="N", help=f"with --params: {words}")
    run = parser.add_argument_group("the run")
    run.add_argument(
        "--mesh",
        metavar="DIMS",
        default="dp_shard=-1",
        help="as of generate; -1 fills the nodes (default: dp_shard=-1)",
    )
    run.add_argument("--nodes", metavar="N", help="default: as many as the mesh needs, or 1")
    run.add_argument("--ranks-per-node", metavar="N", default="8", help="default: 8")
    run.add_argument(
        "--precision", choices=("fp32", "bf16"), default="fp32", help="what is computed in (default: fp32)"
    )
    run.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw", help="sgd has momentum (default: adamw)")
    run.add_argument("--micro-batch", metavar="N", default="1", help="sequences a rank computes at once (default: 1)")
    run.add_argument(
        "--micro-batches", metavar="N", default="1",
        help="of a step; with several, each rank adds up whole gradients until the last (default: 1)",
    )  # fmt: skip
    run.add_argument("--seq-len", metavar="N", default="2048", help="tokens of a sequence (default: 2048)")
    run.add_argument("--activation-checkpointing", choices=("none", "full"), default="none", help="default: none")
    saving = parser.add_argument_group("saving")
    speed = saving.add_mutually_exclusive_group()
    speed.add_argument("--bandwidth", metavar="RATE", help="bytes a second that a node writes, such as 2GB/s")
    speed.add_argument("--measure", metavar="DIR", type=Path, help="measure it, by writing 256 MiB there")
    saving.add_argument(
        "--staging-bandwidth", metavar="RATE", default="10GB/s",
        help="at which a rank copies its state to host memory in an async save (default: 10GB/s)",
    )  # fmt: skip
    saving.add_argument(
        "--mtbf", metavar="TIME", help="mean time between failures of one node, such as 2y: how often to save"
    )
    saving.add_argument(
        "--restart", metavar="TIME", default="5m", help="from a failure to training again (default: 5m)"
    )
    more = parser.add_argument_group("more questions")
    more.add_argument("--fits", metavar="SIZE", help="propose meshes whose peak is below this, such as 80GB")
    more.add_argument("--scale", action="store_true", help="DCP's planning at 64 to 16384 ranks")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="also draw memory by category and, with --mtbf, the time lost by how often is saved; .png or .svg, "
        "by matplotlib (extra plot)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Plan, print, and return the exit code: 0 done, 1 nothing fits (with --fits)."""
    _check(arguments)
    try:
        import torch  # noqa: F401  # first, for a word that it is missing
    except ModuleNotFoundError as error:
        raise UserError("plan needs torch, which is not installed here; expected torch 2.6 or newer") from error
    from .planning.memory import Training
    from .planning.plan import Question, answer
    from .planning.plot import SUFFIXES, has_matplotlib, picture
    from .planning.report import as_json, as_text

    target = None if arguments.plot is None else chosen_file("--plot", arguments.plot, SUFFIXES)
    if target is not None and not has_matplotlib():
        raise UserError(
            "--plot needs matplotlib, which is the extra plot and not installed here: pip install matplotlib"
        )

    plan = answer(
        Question(
            config=arguments.config,
            model=arguments.model,
            block=arguments.block,
            parallelize=arguments.parallelize,
            params=_count(arguments, "params"),
            shape={name: _count(arguments, name) for name in SHAPE},
            mesh=arguments.mesh,
            nodes=_count(arguments, "nodes"),
            ranks_per_node=_number(arguments, "ranks_per_node"),
            training=Training(
                precision=arguments.precision,
                optimizer=arguments.optimizer,
                micro_batch=_number(arguments, "micro_batch"),
                seq_len=_number(arguments, "seq_len"),
                checkpointing=arguments.activation_checkpointing == "full",
                micro_batches=_number(arguments, "micro_batches"),
            ),
            bandwidth=arguments.bandwidth and parse_rate("--bandwidth", arguments.bandwidth),
            measure=arguments.measure,
            staging_bandwidth=parse_rate("--staging-bandwidth", arguments.staging_bandwidth),
            mtbf=arguments.mtbf and parse_seconds("--mtbf", arguments.mtbf),
            restart=parse_seconds("--restart", arguments.restart),
            fits=arguments.fits and parse_size("--fits", arguments.fits),
            scale=arguments.scale,
        )
    )
    if target is not None:
        write_chosen("--plot", target, picture(plan, target.suffix))
    print(json.dumps(as_json(plan), indent=2) if arguments.format == "json" else "\n".join(as_text(plan)))
    sys.stdout.flush()
    return int(plan.limit is not None and not plan.fitting)


def _check(arguments: argparse.Namespace) -> None:
    """Raise UserError for options that do not go together."""
    shape = [name for name in SHAPE if getattr(arguments, name) is not None]
    if arguments.params is None and shape:
        raise UserError(f"{_flag(shape[0])} goes with --params; expected it without, or --params N")
    if arguments.params is not None and not {"layers", "hidden"} <= {*shape}:
        raise UserError("--params needs --layers and --hidden, as in --params 8B --layers 32 --hidden 4096")
    if (arguments.model is None) != (arguments.block is None):
        raise UserError("--model and --block go together: the factory, and the class of the layers that it builds")
    if arguments.parallelize is not None and arguments.model is None:
        raise UserError("--parallelize goes with --model; expected it without, or --model MODULE:FACTORY")
    if arguments.mtbf is not None and arguments.bandwidth is None and arguments.measure is None:
        raise UserError(
            "--mtbf needs to know how long a save takes; expected --bandwidth RATE or --measure DIR with it"
        )


def _count(arguments: argparse.Namespace, name: str) -> int | None:
    return None if getattr(arguments, name) is None else _number(arguments, name)


def _number(arguments: argparse.Namespace, name: str) -> int:
    return parse_count(_flag(name), getattr(arguments, name))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
