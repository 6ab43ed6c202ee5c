"""Where the reader knows that ranks have different weights."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import ForwardEntered

from .programs import IMPORTS, MODEL, only, program

START = IMPORTS + MODEL + "dist.init_process_group('gloo')\nrank = dist.get_rank()\n"
BY_RANK = "torch.manual_seed(1 + rank)\n"


@pytest.mark.parametrize(
    ("build", "alike"),
    [
        (f"{BY_RANK}model = Net()", False),
        (f"{BY_RANK}model = Net()\nmodel.train()\nprint(model)", False),
        (f"{BY_RANK}model = nn.Sequential(Net())", False),
        ("torch.manual_seed(int(os.environ['RANK']) * 7)\nmodel = Net()", False),
        ("model = Net()\nif rank == 0: model.load_state_dict(torch.load('a.pt'))", False),
        (f"{BY_RANK}net = Net()\nclass Outer(nn.Module): pass\nmodel = Outer()\nmodel.net = net", False),
        (f"{BY_RANK}model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))\nnn.init.ones_(model[0].weight)", None),
        ("torch.manual_seed(0)\nmodel = Net()", None),
        (f"{BY_RANK}torch.manual_seed(0)\nmodel = Net()", None),
        (f"model = Net()\n{BY_RANK}", None),
        ("import random\nrandom.seed(rank)\nmodel = Net()", None),
        ("if seed_apart:\n    torch.manual_seed(rank)\nelse:\n    torch.manual_seed(0)\nmodel = Net()", None),
        (f"{BY_RANK}model = Net()\nfor p in model.parameters(): nn.init.zeros_(p)", None),
        (f"{BY_RANK}model = Net()\nmodel.restore()", None),
        (f"from transformers import AutoModel\n{BY_RANK}model = AutoModel.from_pretrained('gpt2')", None),
        (f"from transformers import AutoModel\n{BY_RANK}model = AutoModel.from_config(config)", False),
        (f"{BY_RANK}model = Net()\nmodel.load_state_dict(torch.load('a.pt'))", None),
        (f"{BY_RANK}with torch.device('meta'):\n    model = Net()", None),
        ("model = Net()\nmodel.load_state_dict(torch.load('a.pt'))", None),
        ("mesh = dist.init_device_mesh('cpu', (2,))\ntorch.manual_seed(mesh.get_rank())\nmodel = Net()", None),
    ],
)
def test_which_models_ranks_begin_with(build: str, alike: bool | None) -> None:
    trace = program(f"{build}\nfully_shard(model)\nmodel(torch.ones(2, 8))", START)
    assert only(trace, ForwardEntered).alike is alike


def test_what_is_given_to_shards_is_given_to_all() -> None:
    text = f"{BY_RANK}model = Net()\nfully_shard(model)\nset_model_state_dict(model, torch.load('a.pt'))\nmodel(1)"
    assert only(program(text, START), ForwardEntered).alike is None
