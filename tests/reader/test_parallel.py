"""Which parameters plans of tensor parallelism distribute, as far as clipping is concerned."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import GradientsClipped

from .programs import IMPORTS, MODEL, only, program

START = (
    IMPORTS
    + MODEL
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
)
mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
model = Net()
ALL = {
    "embed": RowwiseParallel(), "head": ColwiseParallel(),
    "blocks.*.norm": SequenceParallel(), "blocks.*.mlp.0": ColwiseParallel(),
}
"""
)


@pytest.mark.parametrize(
    ("plan", "mixed"),
    [
        ("ALL", None),
        ("{'embed': RowwiseParallel()}", True),
        ("{**ALL, 'head': PrepareModuleInput()}", True),
        ("{'embed': RowwiseParallel(), 'head': ColwiseParallel(), 'blocks.*': SequenceParallel()}", None),
        ("{'nothing': RowwiseParallel()}", None),
        ("{}", None),
        ("{'embed': RowwiseParallel(), **load()}", None),
        ("{'embed': RowwiseParallel(), f'blocks.{number()}': ColwiseParallel()}", None),
        ("load()", None),
    ],
)
def test_what_a_plan_leaves_out(plan: str, mixed: bool | None) -> None:
    text = f"parallelize_module(model, mesh['tp'], {plan})\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    assert only(program(text, START), GradientsClipped).mixed is mixed


@pytest.mark.parametrize(
    ("clipped", "mixed"),
    [
        ("clip_grad_norm_(model.parameters(), 1.0)", True),
        ("clip_grad_norm_(model.blocks.parameters(), 1.0)", None),
        ("clip_grad_norm_([p for p in model.parameters() if p.ndim > 1], 1.0)", None),
        ("clip_grad_norm_(load(model), 1.0)", None),
        ("clip_grad_value_(model.parameters(), 1.0)", None),
    ],
)
def test_what_is_clipped_together(clipped: str, mixed: bool | None) -> None:
    text = f"parallelize_module(model, mesh['tp'], {{'embed': RowwiseParallel()}})\nnn.utils.{clipped}"
    assert only(program(text, START), GradientsClipped).mixed is mixed
