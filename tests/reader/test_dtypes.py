"""The dtype of parameters, and what is done to a sharded model, as the reader sees it."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import Attached, Cast, OptimizerBuilt, WrapperApiUsed

from .programs import IMPORTS, MODEL, SHARDED, only, program


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("model = Net()", None),
        ("model = Net().bfloat16()", "bfloat16"),
        ("model = Net().to('cuda', torch.half)", "float16"),
        ("model = Net().bfloat16(); model.to('cuda')", "bfloat16"),
        ("model = Net().bfloat16(); model.to(anywhere)", None),
        ("model = Net().bfloat16(); model.head.float()", None),
        ("model = Net().bfloat16(); model.requires_grad_(False)", None),
        ("model = Net().bfloat16(); [p.requires_grad_(True) for p in model.parameters()]", None),
        ("model = nn.Linear(8, 8, dtype=torch.bfloat16)", "bfloat16"),
        ("torch.set_default_dtype(torch.bfloat16); model = Net()", "bfloat16"),
        ("torch.set_default_dtype(torch.bfloat16); torch.set_default_dtype(anything); model = Net()", None),
    ],
)
def test_the_dtype_of_what_is_stepped(text: str, dtype: str | None) -> None:
    trace = program(
        f"from somewhere import anywhere, anything\n{text}\ntorch.optim.AdamW(model.parameters())", IMPORTS + MODEL
    )
    assert only(trace, OptimizerBuilt).dtype == dtype


def test_casts() -> None:
    trace = program("model.to('cpu'); model.half(); model.head.to(dtype=torch.float32); model.type(kind)", SHARDED)
    assert [(c.module.name, c.dtype) for c in trace.of(Cast)] == [
        ("model", "float16"),
        ("model.head", "float32"),
        ("model", None),
    ]


def test_what_is_attached_to_a_sharded_model() -> None:
    attached = only(program("model.extra = nn.Sequential(nn.ReLU(), nn.Linear(8, 8))", SHARDED), Attached)
    assert (attached.module.name, attached.to.name, attached.parameters) == ("model.extra", "model", ("1.weight",))
    for harmless in ("model.extra = nn.ReLU()", "model.head = model.head", "Net().extra = nn.Linear(8, 8)"):
        assert list(program(harmless, SHARDED).of(Attached)) == []


def test_the_wrappers_api() -> None:
    trace = program("with model.no_sync():\n    pass", SHARDED)
    assert only(trace, WrapperApiUsed).name == "no_sync"
    asked = program("if hasattr(model, 'no_sync'):\n    model.no_sync()", SHARDED)
    assert list(asked.of(WrapperApiUsed)) == []
