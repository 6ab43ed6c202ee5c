"""A decoder-only transformer known by numbers alone: its parameters, and what its forward keeps for backward."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError

_FIELDS = {  # of a config of Hugging Face: the names that model families give to one quantity
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "vocab": ("vocab_size",),
}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_UNGATED = ("gpt2", "gpt_neox", "gpt_neo", "gptj", "opt", "bloom", "falcon", "phi", "starcoder2", "mpt", "gpt_bigcode")


@dataclass(frozen=True)
class Transformer:
    """Blocks of attention and MLP, each behind an RMS norm, without biases; `intermediate` is the width of the MLP."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    intermediate: int
    vocab: int
    gated: bool
    tied: bool

    def weights(self) -> Iterator[tuple[tuple[str, ...], tuple[int, ...], str, int | None]]:
        """Names, shape, FSDP unit and the dim that tensor parallelism splits, of each parameter.

        The dims are those of Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053, section 3): into attention and MLP by
        columns, out of them by rows, embedding and output layer by vocabulary; norms are whole on each rank.
        """
        width, query, key = self.hidden, self.heads * self.head_width, self.kv_heads * self.head_width
        embedding = ("embed.weight", "head.weight") if self.tied else ("embed.weight",)
        yield embedding, (self.vocab, width), "", 0
        for index in range(self.layers):
            unit = f"layers.{index}"
            named: dict[str, tuple[tuple[int, ...], int | None]] = {
                "norm1": ((width,), None),
                "q": ((query, width), 0),
                "k": ((key, width), 0),
                "v": ((key, width), 0),
                "out": ((width, query), 1),
                "norm2": ((width,), None),
                **({"gate": ((self.intermediate, width), 0)} if self.gated else {}),
                "up": ((self.intermediate, width), 0),
                "down": ((width, self.intermediate), 1),
            }
            for name, (shape, split) in named.items():
                yield (f"{unit}.{name}.weight",), shape, unit, split
        yield ("norm.weight",), (width,), "", None
        if not self.tied:
            yield ("head.weight",), (self.vocab, width), "", 0

    def block_activations(self, tokens: int, element: int, tp: int) -> int:
        """Bytes that the forward of a block leaves for its backward, of `tokens` tokens, `element` bytes an element.

        Counted as in section 4.1 of Korthikanti et al. 2022 (arXiv:2205.05198), for attention that keeps no matrix of
        scores (scaled_dot_product_attention) and without dropout: the inputs of both norms, their outputs (inputs of
        q, k, v and of the MLP), queries, keys, values and the result of attention with fp32 log-sums, and of the MLP
        the result of each matrix and of each point-wise function. With sequence parallelism, as of section 4.2.2, all
        is divided by `tp`.
        """
        query, key = self.heads * self.head_width, self.kv_heads * self.head_width
        norms = 4 * self.hidden
        attention = 2 * query + 2 * key
        mlp = (4 if self.gated else 2) * self.intermediate
        return tokens * (element * (norms + attention + mlp) + 4 * (self.heads + 2)) // tp

    def block_input(self, tokens: int, element: int, tp: int) -> int:
        """Bytes of what a checkpointed block keeps: its input."""
        return tokens * self.hidden * element // tp

    def logits(self, tokens: int, element: int, tp: int) -> tuple[int, int]:
        """Bytes around the loss that forward leaves, and that backward has at most at once, input of the head included.

        The logits themselves and their log-softmax in fp32 stay; of both, backward then makes gradients in fp32.
        """
        ends = 2 * tokens * self.hidden * element // tp  # the norm's input, and its output
        kept = tokens * self.vocab * (element + 4)  # gathered over tp, as a loss that is not parallel needs them
        return ends + kept, ends + kept + 2 * 4 * tokens * self.vocab


def from_numbers(
    *, params: int, layers: int, hidden: int, heads: int | None, kv_heads: int | None, vocab: int
) -> Transformer:
    """The transformer with a gated MLP and untied embeddings that comes nearest to a number of parameters."""
    heads = heads or max(1, hidden // 128)
    kv_heads = kv_heads or heads
    if hidden % heads:
        raise UserError(f"--heads {heads}: does not divide --hidden {hidden}")
    if heads % kv_heads:
        raise UserError(f"--kv-heads {kv_heads}: does not divide --heads {heads}")
    head_width = hidden // heads
    attention = 2 * hidden * hidden + 2 * hidden * kv_heads * head_width
    rest = 2 * vocab * hidden + hidden + layers * (attention + 2 * hidden)
    intermediate = round((params - rest) / (3 * hidden * layers))
    if intermediate < 1:
        raise UserError(
            f"--params {params}: attention and embeddings of {layers} layers of {hidden} with a vocabulary of {vocab} "
            f"have {rest} alone; expected more, or a smaller --layers, --hidden or --vocab"
        )
    return Transformer(layers, hidden, heads, kv_heads, head_width, intermediate, vocab, gated=True, tied=False)


def read_config(path: Path) -> dict[str, Any]:
    """A `config.json`, or that of a folder; where it has several parts, that of text. Raises UserError."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no JSON"
        raise UserError(f"--config {file}: {reason}; expected a config.json of Hugging Face, or its folder") from error
    if not isinstance(config, dict):
        raise UserError(f"--config {file}: is no JSON object; expected a config.json of Hugging Face, or its folder")
    inner = config.get("text_config")
    numbers = inner if isinstance(inner, dict) else config
    for quantity in ("layers", "hidden", "vocab"):  # or transformers would take those of some model for them
        _number(numbers, _FIELDS[quantity], str(path))
    return numbers


def from_config(config: Mapping[str, Any], where: str) -> Transformer:
    """The transformer of a config's numbers. Raises UserError where one is missing, or the formulas do not hold."""
    for name in _EXPERTS:
        if config.get(name):
            raise UserError(
                f"--config {where}: has {name}, and the formulas know no experts; expected transformers installed and "
                "a mesh without tp, by which the model itself is built"
            )
    found = {quantity: _number(config, names, where) for quantity, names in _FIELDS.items()}
    hidden, heads = found["hidden"], found["heads"]
    kv_heads = _optional(config, "num_key_value_heads", where) or heads
    head_width = _optional(config, "head_dim", where)
    if not head_width and hidden % heads:
        raise UserError(f"--config {where}: {heads} heads do not divide a width of {hidden}; expected as many as do")
    if heads % kv_heads:
        raise UserError(
            f"--config {where}: {kv_heads} key and value heads do not divide {heads} heads; expected them to"
        )
    gated = config.get("model_type") not in _UNGATED
    intermediate = (
        _optional(config, "intermediate_size", where)
        or _optional(config, "n_inner", where)
        or (0 if gated else 4 * hidden)
    )
    if not intermediate:
        raise UserError(f"--config {where}: has no intermediate_size; expected the width of the MLP")
    return Transformer(
        layers=found["layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width or hidden // heads,
        intermediate=intermediate,
        vocab=found["vocab"],
        gated=gated,
        tied=bool(config.get("tie_word_embeddings", not gated)),
    )


def _number(config: Mapping[str, Any], names: tuple[str, ...], where: str) -> int:
    for name in names:
        if number := _optional(config, name, where):
            return number
    raise UserError(f"--config {where}: has no {' or '.join(names)}; expected the config of a decoder-only transformer")


def _optional(config: Mapping[str, Any], name: str, where: str) -> int:
    """The number of that name, 0 where there is none."""
    value = config.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"--config {where}: {name} is {value!r}; expected a number from 1")
    return value
