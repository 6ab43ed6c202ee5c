"""What the script of a combination needs beside itself: packages that are optional, files, arguments."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from ..combinations import Row
from .training import TEXT

DATASET = "my_dataset:build_dataset"
MODEL, LLAMA = "my_model:build_model", "hf:my_llama"
PACKAGES: dict[tuple[str, str], tuple[str, ...]] = {
    ("dataset", DATASET): ("torchdata",),
    ("model", LLAMA): ("transformers", "safetensors"),
    ("metrics", "tensorboard"): ("tensorboard",),
    ("metrics", "wandb"): ("wandb",),
    ("storage", "fsspec"): ("fsspec",),
}
"""The packages, by the name that is imported, that an option's example needs beside torch and NumPy."""


def packages(row: Row) -> tuple[str, ...]:
    """The optional packages that a combination needs."""
    return tuple(package for chosen in row.items() for package in PACKAGES.get(chosen, ()))


def own_modules(row: Row) -> set[str]:
    """The modules of the user's own that options of a combination name, as `module:factory`."""
    return {value.partition(":")[0] for value in row.values() if ":" in value}


def missing(row: Row) -> str | None:
    """Why a combination cannot run in this environment; None when it can."""
    absent = [package for package in packages(row) if importlib.util.find_spec(package) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def prepare(row: Row, folder: Path) -> list[str]:
    """Write what the script of a combination, in `folder`, reads; the arguments by which it finds it."""
    data = write_tokens(folder / "tokens") if row["dataset"] == "tokens" else TEXT
    if row["dataset"] == DATASET:
        write_dataset(folder)
    if row["model"] == MODEL:
        shutil.copy(Path(__file__).with_name("my_model.py"), folder)
    elif row["model"] == LLAMA:
        write_llama(folder / "my_llama")
    metrics = [] if row["metrics"] == "jsonl" else [f"--{row['metrics']}", str(folder / "metrics")]
    return ["--data", str(data), *metrics]


def write_tokens(folder: Path) -> Path:
    """The bytes of the text as tokens in three files of a folder: uint16, int32 in an array, and uint16 again."""
    text = np.frombuffer(TEXT.read_bytes(), np.uint8)
    first, second, third = np.array_split(text, 3)
    folder.mkdir(parents=True)
    first.astype("<u2").tofile(folder / "a.bin")
    np.save(folder / "b.npy", second.astype(np.int32))
    third.astype("<u2").tofile(folder / "c.bin")
    return folder


def write_dataset(folder: Path, *, bad: str = "") -> None:
    """The module of `DATASET`: pieces of a text, some bytes of them replaced at random; `bad` is what item 7 is."""
    (folder / "my_dataset.py").write_text(
        "from pathlib import Path\n\nimport torch\n\n\n"
        "class Pieces(torch.utils.data.Dataset):\n"
        "    def __init__(self, text):\n"
        "        self.text = text\n\n"
        "    def __len__(self):\n"
        "        return len(self.text) // 20 - 2\n\n"
        "    def __getitem__(self, index):\n"
        + (f"        if index == 7:\n            return {bad}\n" if bad else "")
        + "        tokens = torch.tensor(list(self.text[20 * index : 20 * index + 40]))\n"
        "        return torch.where(torch.rand(40) < 0.1, torch.randint(256, (40,)), tokens)\n\n\n"
        "def build_dataset(path):\n"
        "    return Pieces(Path(path).read_bytes())\n"
    )


def write_llama(folder: Path, **config: Any) -> None:
    """A tiny Llama with random weights, in bf16 and in several files."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = LlamaForCausalLM(LlamaConfig(**{"vocab_size": 260, **size, **heads, **config}))
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="20KB")
