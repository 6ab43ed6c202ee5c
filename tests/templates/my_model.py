"""A user's own model, with what makes sharding go wrong: shared parameters, and every kind of buffer."""

import random

import numpy as np
import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH, LAYERS = 256, 32, 64, 3


class Scale(nn.Module):
    """A gain, trained or not, without `reset_parameters`; and a count, saved, that each forward changes."""

    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((WIDTH,), 0.9), requires_grad=trained)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.layer_norm(x, (WIDTH,)) * self.gain


class Block(nn.Module):
    """Each position mixed with those before it, then an MLP, the first matrix of which may be another block's too."""

    def __init__(self, mask: Tensor, dropout: float, up: nn.Linear | None) -> None:
        super().__init__()
        self.norm1, self.norm2 = Scale(trained=True), Scale(trained=False)
        self.mix, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        if up is not None:
            self.up.weight = up.weight
        self.register_buffer("mask", mask, persistent=False)  # one for all blocks
        self.register_buffer("jitter", 1 + 0.01 * torch.randn(WIDTH), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        mask, jitter = self.mask[: x.shape[1], : x.shape[1]].to(x.dtype), self.jitter.to(x.dtype)
        x = x + self.dropout(mask @ self.mix(self.norm1(x)))
        return x + self.dropout(self.down(torch.tanh(self.up(self.norm2(x))))) * jitter


class Model(nn.Module):
    """The embedding is the output layer, one vector is there under two names, and one is not used."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        rate = torch.linspace(0.1, 0.2, LAYERS)[0].item()
        distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        mask = torch.where(distance >= 0, torch.exp(-rate * distance), 0.0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList()
        for index in range(LAYERS):
            self.blocks.append(Block(mask, dropout, self.blocks[0].up if index == 2 else None))
        shift = nn.Parameter(torch.randn(WIDTH) * 0.02)
        self.shift_in, self.shift_out = shift, shift
        self.unused = nn.Parameter(torch.ones(5))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("temperature", torch.tensor(0.7))
        self.register_buffer("phases", torch.polar(torch.ones(4), torch.rand(4)), persistent=False)
        self.register_buffer("turned", torch.rand(4, 6).t(), persistent=False)
        self.apply(self.init)
        self.blocks[1].mix.weight.data = torch.eye(WIDTH)

    def init(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=0.05)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.shift_in
        if self.training and self.blocks[0].dropout.p:  # noise from each of the generators that are not torch's
            x = x * random.uniform(0.99, 1.01) + np.random.normal(0, 1e-3)
        for block in self.blocks:
            x = block(x)
        return self.head(x + self.shift_out) / self.temperature.to(x.dtype)


def build_model() -> nn.Module:
    return Model()


def build_without_dropout() -> nn.Module:
    return Model(dropout=0)


class Forgetful(Model):
    """Leaves a parameter as it was allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten = nn.Parameter(torch.empty(5))
