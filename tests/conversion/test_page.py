"""`references/convert.md`: its commands print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ..checkpoint.saves import save
from ..references.pages import REFERENCES, Page, transcript


@pytest.mark.slow
def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    model = {
        "embed.weight": torch.randn(24, 16),
        "block.weight": torch.randn(16, 32),
        "block.bias": torch.randn(16),
        "head.weight": torch.randn(24, 16),
    }
    moments = {f"{key}.{name}": torch.rand_like(value) for key, value in model.items() for name in ("m", "v")}
    train = {"model": model, "step": 100, "optimizer": {"state": moments, "lr": 0.1}}
    save(tmp_path / "checkpoints/step-100", {"train": train, "rng-0": {"seed": 0}, "run": "a run"})
    page = Page(REFERENCES / "convert.md")
    assert len(page.blocks) == 2 * 5
    for printed, expected in transcript(page, tmp_path):
        assert printed == expected
    assert not list(tmp_path.glob("*.part-*"))
