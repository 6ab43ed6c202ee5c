"""The questions that a generated script is the answer to: one declaration each, checked one by one and as a set."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..validate.errors import UserError
from .mesh import parse_mesh
from .models import HF, check_block, check_model, importable, kind

Answers = dict[str, str]
"""The chosen value of every option, by the option's name."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One question.

    * `name`: as in the script's header; the flag is made from it.
    * `default`: the value when none is chosen.
    * `values`: what can be chosen, in words, one entry a choice; `examples`: values that together take every branch of
      the templates.
    * `check`: raises UserError, without naming the option, for a value that cannot be used.
    """

    name: str
    help: str
    default: str
    values: tuple[str, ...]
    examples: tuple[str, ...]
    check: Callable[[str], None]

    @property
    def flag(self) -> str:
        """How the option is written on the command line."""
        return "--" + self.name.replace("_", "-")

    def refuse(self, value: str) -> None:
        """Raise UserError, with the flag and the reason, for a value that cannot be used."""
        try:
            self.check(value)
        except UserError as error:
            raise UserError(f"{self.flag} {value}: {error}") from error


def _check_mesh(text: str) -> None:
    parse_mesh(text)


def _check_optimizer(name: str) -> None:
    if name == "adafactor":  # as of torch 2.13: the norms of rows are partial sums, which it squares in place
        raise UserError("torch.optim.Adafactor does not run on sharded parameters (DTensor); expected adamw or sgd")
    _one_of("adamw", "sgd")(name)


def _one_of(*values: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in values:
            raise UserError(f"expected {' or '.join(values)}")

    return check


def _one_of_or_number(*values: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in values and not re.fullmatch("[1-9][0-9]{0,8}", value):
            raise UserError(f"expected {' or '.join(values)} or a number from 1")

    return check


def _switch(name: str, help_: str) -> Option:
    return Option(
        name=name, help=help_, default="off", values=("off", "on"), examples=("off", "on"), check=_one_of("off", "on")
    )


def _choice(name: str, help_: str, *values: str) -> Option:
    """An option with a few values, the first of which is the default."""
    return Option(name=name, help=help_, default=values[0], values=values, examples=values, check=_one_of(*values))


def _check_dataset(value: str) -> None:
    if value not in ("bytes", "tokens"):
        try:
            importable(value)
        except UserError as error:
            raise UserError("expected bytes or tokens or package.module:factory, which Python can import") from error


OPTIONS = (
    Option(
        name="mesh",
        help="how the ranks are arranged; one size may be -1, which fills the world",
        default="dp_shard=-1",
        values=(
            "dp_shard=-1",
            "dp_shard=SIZE",
            "dp_replicate=SIZE,dp_shard=SIZE",
            "dp_shard=SIZE,tp=SIZE",
            "dp_replicate=SIZE,dp_shard=SIZE,tp=SIZE",
        ),
        examples=(
            "dp_shard=-1",
            "dp_shard=2",
            "dp_replicate=2,dp_shard=-1",
            "dp_replicate=2,dp_shard=2",
            "dp_shard=-1,tp=2",
            "dp_shard=2,tp=2",
            "dp_replicate=2,dp_shard=1,tp=2",
        ),
        check=_check_mesh,
    ),
    Option(
        name="async_mode",
        help="how a checkpoint is written: while training waits, by a thread, or by a process out of shared (on GPUs: "
        "pinned) memory, which needs torch 2.9",
        default="async",
        values=("disabled", "async", "async_with_pinned_mem"),
        examples=("disabled", "async", "async_with_pinned_mem"),
        check=_one_of("disabled", "async", "async_with_pinned_mem"),
    ),
    _choice(
        "precision",
        "what is computed in; parameters, their gradients' sums and the optimizer stay fp32",
        "fp32",
        "bf16",
    ),
    Option(
        name="activation_checkpointing",
        help="which blocks compute their activations again in backward: none, all, or every N-th",
        default="none",
        values=("none", "full", "N"),
        examples=("none", "full", "2"),
        check=_one_of_or_number("none", "full"),
    ),
    _switch("compile", "torch.compile each block"),
    _switch("cpu_offload", "keep parameters, gradients and optimizer state in the memory of the CPU"),
    Option(
        name="reshard_after_forward",
        help="whether a block's parameters are freed between forward and backward: as FSDP2 does by default (all but "
        "the root's), always, never, or down to groups of N ranks",
        default="default",
        values=("default", "always", "never", "N"),
        examples=("default", "always", "never", "2"),
        check=_one_of_or_number("default", "always", "never"),
    ),
    Option(
        name="prefetch",
        help="how many blocks ahead parameters are gathered, in forward and backward: as FSDP2 does by default, or N",
        default="default",
        values=("default", "N"),
        examples=("default", "2"),
        check=_one_of_or_number("default"),
    ),
    Option(
        name="optimizer",
        help="sgd has momentum",
        default="adamw",
        values=("adamw", "sgd"),
        examples=("adamw", "sgd"),
        check=_check_optimizer,
    ),
    _choice("schedule", "of the learning rate, after a linear warm-up", "cosine", "linear", "constant", "wsd"),
    Option(
        name="model",
        help="the GPT that the script holds; what your factory, called without arguments, returns: an nn.Module that "
        "maps token ids (batch, length) to logits (batch, length, vocabulary); or a causal LM of transformers out of a "
        "folder or a config file, with weights where .safetensors are there (needs torch 2.9, transformers 4.56 and "
        "safetensors)",
        default="gpt",
        values=("gpt", "package.module:factory", "hf:PATH"),
        examples=("gpt", "my_model:build_model", "hf:my_llama"),
        check=check_model,
    ),
    Option(
        name="block",
        help="of a model of your own: the classes whose instances are sharded each, such as its layers",
        default="none",
        values=("none", "package.module:Block[,package.module:Other]"),
        examples=("none", "my_model:Block"),
        check=check_block,
    ),
    Option(
        name="dataset",
        help="what the script's --data is: text, read as bytes; token arrays (.bin, .npy), mapped into memory; or what "
        "your factory is called with, to return a dataset of --seq-len + 1 tokens an item, with a length (needs "
        "torchdata)",
        default="bytes",
        values=("bytes", "tokens", "package.module:factory"),
        examples=("bytes", "tokens", "my_dataset:build_dataset"),
        check=_check_dataset,
    ),
    _choice(
        "storage",
        "where checkpoints are: in a folder of the file system, or below a URI that fsspec knows (s3://, gs://, ...), "
        "which needs fsspec and its package for the protocol",
        "local",
        "fsspec",
    ),
    _switch(
        "initial_checkpoint",
        "the script gets --initial-checkpoint PATH (start from the weights of another run's checkpoint), "
        "--exclude-from-loading PREFIXES and --seed-checkpoint (one process writes step 0, from which any mesh starts)",
    ),
    _choice(
        "export",
        "the script gets --export FILE (the model's weights in one file, for torch.load or as safetensors), "
        "--export-dtype and --export-only (of the newest checkpoint)",
        "none",
        "pt",
        "safetensors",
    ),
    _choice(
        "metrics",
        "where they go: JSON lines (the script's --log FILE), and for tensorboard its --tensorboard FOLDER, for wandb "
        "its --wandb FOLDER (offline unless WANDB_MODE says otherwise), which need the package of that name",
        "jsonl",
        "tensorboard",
        "wandb",
    ),
    Option(
        name="launcher",
        help="what starts the script, written beside it as one more file: a bash file for one machine or for several, "
        "a Slurm batch file, a program for Ray Train, or a manifest for Kubeflow Trainer",
        default="none",
        values=("none", "torchrun", "multi-node", "slurm", "ray", "kubernetes"),
        examples=("none",),  # the script is the same for all
        check=_one_of("none", "torchrun", "multi-node", "slurm", "ray", "kubernetes"),
    ),
)


def conflicts(answers: Answers) -> Iterator[str]:
    """Why valid answers cannot work together, a sentence each."""
    mesh, reshard = parse_mesh(answers["mesh"]), answers["reshard_after_forward"]
    if answers["model"] != "gpt" and "tp" in mesh:
        yield f"--model {answers['model']} has no plan for tp={mesh['tp']}; expected a mesh without tp, or --model gpt"
    if kind(answers["model"]) == "own" and answers["block"] == "none":
        yield f"--model {answers['model']} needs --block: the class of its layers; expected package.module:Block"
    if kind(answers["model"]) != "own" and answers["block"] != "none":
        yield f"--block goes with a model of your own; expected none: the blocks of {answers['model']} are known"
    if reshard.isdecimal() and mesh["dp_shard"] % int(reshard) and mesh["dp_shard"] != -1:
        yield f"--reshard-after-forward {reshard} does not divide dp_shard={mesh['dp_shard']}; expected a divisor of it"


def answer(chosen: Mapping[str, str]) -> Answers:
    """A whole set of answers from those chosen, by option name. Raises UserError for what cannot work."""
    if unknown := sorted(chosen.keys() - {option.name for option in OPTIONS}):
        known = ", ".join(option.name for option in OPTIONS)
        raise UserError(f"there is no option `{unknown[0]}`; expected some of {known}")
    answers = {option.name: chosen.get(option.name, option.default) for option in OPTIONS}
    for name, value in answers.items():
        answers[name] = value if value.startswith(HF) else value.replace(" ", "")  # a path may hold some
    for option in OPTIONS:
        option.refuse(answers[option.name])
    for reason in conflicts(answers):
        raise UserError(reason)
    return answers
