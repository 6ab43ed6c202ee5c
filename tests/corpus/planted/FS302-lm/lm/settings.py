from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    vocab: int = 4096
    dim: int = 384
    depth: int = 6
    length: int = 256


@dataclasses.dataclass(frozen=True)
class RunSettings:
    model: ModelSettings = dataclasses.field(default_factory=ModelSettings)
    steps: int = 2000
    save_every: int = 200
    keep: int = 3
    lr: float = 6e-4
    warmup: int = 100
    folder: str = "lm-runs"
    bf16: bool = True
