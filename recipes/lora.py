"""Low-rank adapters beside frozen layers (LoRA, https://arxiv.org/abs/2106.09685)."""

import torch
from gpt import Model
from torch import Tensor, nn


class LoRA(nn.Module):
    """A frozen linear layer, and a product of rank `rank` that is trained, and zero to begin with."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def attach(model: Model, rank: int) -> Model:
    """Freeze the model, and put adapters beside its attentions' layers; before it is sharded."""
    model.requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.out = LoRA(block.qkv, rank), LoRA(block.out, rank)
    return model


def adapters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def whole_model(base: dict[str, Tensor], rank: int) -> Model:
    """What one process would train: the model with the weights in `base`, and adapters as seed 0 draws them."""
    model = Model()
    model.load_state_dict(base)
    torch.manual_seed(0)
    return attach(model, rank)
