"""Bytes that a rank needs, by formulas: exact for what is sharded, an estimate for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UserError
from .mesh import Mesh
from .model import BF16, FP32, STATES, Model, Parameter

STEP_BYTES = 4  # AdamW counts the steps of each parameter in a tensor of its own, of one fp32 element


@dataclass(frozen=True)
class Training:
    """How a step is made, of so many micro-batches. Parameters, reduced gradients and optimizer state are fp32.

    As in generated scripts, gradients are reduced with the last micro-batch; until then each rank adds them up whole.
    """

    precision: str
    optimizer: str
    micro_batch: int
    seq_len: int
    checkpointing: bool
    micro_batches: int = 1

    @property
    def element(self) -> int:
        """Bytes of an element of what is gathered and computed."""
        return BF16 if self.precision == "bf16" else FP32

    @property
    def tokens(self) -> int:
        """The tokens of a micro-batch."""
        return self.micro_batch * self.seq_len


@dataclass(frozen=True)
class Memory:
    """Bytes of the rank that has most, which is rank 0; `how` is `tracked` or `formulas`.

    * `parameters`, `gradients`, `optimizer`, `buffers`: what a step ends with, sharded.
    * `activations`: what forward leaves for backward, the loss included.
    * `gathered`: whole parameters and gradients at the peak, with the buffers of their collectives.
    * `peak`, `where`: the most at any moment of a step after the first, and that moment.
    * `at_peak`: by category, what the peak is made of.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    activations: int
    gathered: int
    peak: int
    where: str
    at_peak: Mapping[str, int]
    how: str


def parameter_bytes(model: Model, mesh: Mesh, rank: int = 0) -> int:
    """Bytes of the parameters that a rank holds. FSDP2 pads what it allocates to the share of rank 0."""
    return FP32 * sum(parameter.local_numel(mesh, rank) for parameter in model.parameters)


def gradient_bytes(model: Model, mesh: Mesh, rank: int = 0) -> int:
    """Bytes of the gradients that a rank holds after backward: of the dtype and the share of the parameters."""
    return FP32 * sum(parameter.local_numel(mesh, rank) for parameter in model.parameters if parameter.trained)


def optimizer_bytes(model: Model, mesh: Mesh, optimizer: str, rank: int = 0) -> int:
    """Bytes of the optimizer state that a rank holds after a step.

    AdamW keeps two moments of each parameter and the number of its steps, SGD a momentum (torch.optim).
    """
    moments = len(STATES[optimizer]) * gradient_bytes(model, mesh, rank)
    trained = sum(parameter.trained for parameter in model.parameters)
    return moments + (STEP_BYTES * trained if optimizer == "adamw" else 0)


def estimate(model: Model, mesh: Mesh, training: Training) -> Memory:
    """Memory by formulas. Raises UserError where the layers of the model are not known by numbers.

    A block is gathered before its forward and again before its backward; the root stays gathered from forward to the
    end of backward (the docs of `fully_shard`, reshard_after_forward). The moments looked at: the loss; the backward of
    the last block, while the next is being gathered and the activations of all are still there; the end of backward,
    when the root's gradients are copied to be reduced in fp32 (torch.distributed.fsdp, foreach_reduce); and the step,
    where AdamW's `foreach` makes a temporary of the size of the parameters.
    """
    layers = model.transformer
    if layers is None:
        raise UserError("the formulas need a transformer of known shape; expected --config, or --params and its shape")
    tokens, element = training.tokens, training.element
    held, gradients = parameter_bytes(model, mesh), gradient_bytes(model, mesh)
    optimizer = optimizer_bytes(model, mesh, training.optimizer)
    buffers = sum(buffer.bytes for buffer in model.buffers)
    block = layers.block_activations(tokens, element, mesh.tp)
    kept = layers.layers * (layers.block_input(tokens, element, mesh.tp) if training.checkpointing else block)
    loss, loss_peak = layers.logits(tokens, element, mesh.tp)
    logits = tokens * layers.vocab * element  # which the script still holds by a name during backward
    units = {unit: sum(_whole(p, mesh) for p in parameters) for unit, parameters in model.units.items()}
    root, largest = units[""], max(size for unit, size in units.items() if unit)
    head = layers.vocab * layers.hidden // mesh.tp
    mlp = 2 * tokens * layers.intermediate * element // mesh.tp  # gradients of what is inside it
    moments: dict[str, dict[str, int]] = {
        "the loss": {"activations": kept + loss, "temporary": loss_peak - loss, "gathered": root * element},
        "backward of the last block": {
            "activations": kept + logits + (block if training.checkpointing else 0),
            "temporary": head * element + mlp,
            "gathered": (root + 3 * largest) * element,
        },
        "end of backward": {"gradients": gradients, "activations": logits, "gathered": root * (element + FP32)},
        "the optimizer's step": {"gradients": gradients, "temporary": held if training.optimizer == "adamw" else 0},
    }
    if training.micro_batches > 1:  # the last of them ends with the root's own sum, those of the blocks are reduced
        summed = FP32 * sum(units.values())
        for moment, share in (
            ("the loss", summed),
            ("backward of the last block", summed),
            ("end of backward", root * FP32),
        ):
            moments[moment]["gathered"] += share
    static = {"parameters": held, "optimizer": optimizer, "buffers": buffers}
    where = max(moments, key=lambda moment: sum(moments[moment].values()))
    at_peak = static | moments[where]
    return Memory(
        parameters=held,
        gradients=gradients,
        optimizer=optimizer,
        buffers=buffers,
        activations=kept + loss,
        gathered=max(moment.get("gathered", 0) for moment in moments.values()),
        peak=sum(at_peak.values()),
        where=where,
        at_peak=at_peak,
        how="formulas",
    )


def _whole(parameter: Parameter, mesh: Mesh) -> int:
    """Elements of a parameter when FSDP has gathered it."""
    return parameter.numel // (mesh.tp if parameter.split is not None else 1)
