"""The model of a script: the built-in GPT, one that the user's code builds, or a causal LM of Hugging Face."""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping

from ..validate.errors import UserError

HF = "hf:"


def kind(model: str) -> str:
    """`gpt`, `own` or `hf`, from the value of the option `model`."""
    if model == "gpt":
        return "gpt"
    return "hf" if model.startswith(HF) else "own"


def importable(text: str) -> tuple[str, str]:
    """Module and name of `package.module:name`. Raises UserError for anything that no import could spell."""
    module, _, name = text.partition(":")
    for word in (*module.split("."), name):
        if not (word.isascii() and word.isidentifier()) or keyword.iskeyword(word) or word == "__future__":
            raise UserError(f"{text!r} cannot be imported; expected package.module:name")
    return module, name


def check_model(text: str) -> None:
    """Raise UserError for what is no value of the option `model`. Nothing is imported or read."""
    if kind(text) == "own":
        importable(text)
    elif kind(text) == "hf" and not (text.removeprefix(HF).strip() and text.isprintable()):
        raise UserError("expected hf: and a folder, or a config file, in the format of transformers")


def check_block(text: str) -> None:
    """Raise UserError for what is no value of the option `block`."""
    names = text.split(",") if text != "none" else []
    for name in names:
        importable(name)
    if len(set(names)) < len(names):
        raise UserError("names a class twice; expected each class once")


def as_source(model: str, block: str) -> Mapping[str, object]:
    """What the templates need of both options: how each name is imported and then called, or the path as a literal."""
    values: dict[str, object] = {"kind": kind(model)}
    if kind(model) == "own":
        values["import_factory"] = _import(*importable(model), "factory")
        classes = sorted((importable(name) for name in block.split(",")), key=_import_order)
        called = [f"Block{number}" for number in range(1, len(classes) + 1)] if len(classes) > 1 else ["Block"]
        values["import_blocks"] = [_import(*name, alias) for name, alias in zip(classes, called, strict=True)]
        values["block_classes"] = f"({', '.join(called)})" if len(called) > 1 else called[0]
    elif kind(model) == "hf":
        path = model.removeprefix(HF)
        values["path"] = repr(path) if '"' in path else json.dumps(path, ensure_ascii=False)
    return values


def _import(module: str, name: str, alias: str) -> str:
    return f"from {module} import {name}" + (f" as {alias}" if name != alias else "")


def _import_order(imported: tuple[str, str]) -> tuple[str, int, str]:
    """As sorters of imports have it: constants, then classes, then the rest, of one module after another."""
    module, name = imported
    return module.lower(), 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name
