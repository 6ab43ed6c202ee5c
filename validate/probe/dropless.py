"""Switches dropout off. Its masks come from each rank's own generator, so that runs on other meshes differ by them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional

NAMES = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def install() -> None:
    """Let torch's functions for dropout leave nothing out; its modules call these."""
    for name in NAMES:
        setattr(functional, name, _nothing_dropped(getattr(functional, name)))
    functional.scaled_dot_product_attention = _attention(functional.scaled_dot_product_attention)


def _nothing_dropped(original: Any) -> Any:
    @functools.wraps(original)
    def kept(input: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        return input

    return kept


def _attention(original: Any) -> Any:
    @functools.wraps(original)
    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        *args: Any, **kwargs: Any,
    ) -> torch.Tensor:  # fmt: skip
        del dropout_p
        attended: torch.Tensor = original(query, key, value, attn_mask, 0.0, *args, **kwargs)
        return attended

    return attend
