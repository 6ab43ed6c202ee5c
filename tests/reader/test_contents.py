"""What the reader knows of the values that parameters and buffers hold."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import ForwardEntered, Unset

from .programs import IMPORTS, MODEL, gave_up, only, program

START = (
    IMPORTS
    + MODEL
    + """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("table", torch.ones(8), persistent=False)
        self.register_buffer("kept", torch.ones(8))

    def forward(self, x):
        return x * self.scale * self.table * self.kept


with torch.device("meta"):
    model = nn.Sequential(nn.Linear(8, 8), Scale())
"""
)
NOTHING = Unset(everything=True)


@pytest.mark.parametrize(
    ("text", "unset"),
    [
        ("", NOTHING),
        ("model[0].reset_parameters()", Unset(parameters=("1.scale",), buffers=("1.table", "1.kept"))),
        ("model.load_state_dict({})", Unset(buffers=("1.table",))),
        ("nn.init.ones_(model[1].scale)", Unset(parameters=("0.weight",), buffers=("1.table", "1.kept"))),
        ("model[1].table.fill_(1); model.state_dict()", None),
        ("for p in model.parameters(): p.zero_()", None),
        ("model[1].anything(); model[0].weight.data = torch.ones(8, 8)", None),
        ("for name in ('0', '1'): getattr(model, name).reset_parameters()", None),
        ("library.fill(model)", None),
        ("print(model); model.train(); torch.optim.AdamW(model.parameters())", NOTHING),
        ("model[0].reset_parameters(); model.to_empty(device='cpu')", NOTHING),
    ],
)
def test_what_to_empty_left(text: str, unset: Unset | None) -> None:
    trace = program(f"import library\nmodel.to_empty(device='cpu')\n{text}\nmodel(torch.ones(8))", START)
    assert only(trace, ForwardEntered).unset == unset
    assert gave_up(trace) == []


def test_a_model_stays_on_the_meta_device_until_something_may_have_taken_it_from_there() -> None:
    assert only(program("model(torch.ones(8))", START), ForwardEntered).on_meta
    for text in ("model.to_empty(device='cpu')", "model[0].to_empty(device='cpu')", "model.load_weights()"):
        assert not only(program(f"{text}\nmodel(torch.ones(8))", START), ForwardEntered).on_meta
    assert not only(program("Net()(torch.ones(8))", START), ForwardEntered).on_meta
