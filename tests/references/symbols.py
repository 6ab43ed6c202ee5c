"""Resolves what a page names between backticks: against the installed torch, Python, and the page's own code."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import keyword
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .pages import Page, setup_text

MODULES = (
    "torch", "torch.nn", "torch.distributed", "torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict",
    "torch.distributed.checkpoint.stateful", "torch.distributed.checkpoint.staging",
    "torch.distributed.checkpoint.state_dict_saver", "torch.distributed.checkpoint.state_dict_loader",
    "torch.distributed.checkpoint.filesystem", "torch.distributed.checkpoint.format_utils",
    "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.planner",
    "torch.distributed.checkpoint.default_planner", "torch.distributed.checkpoint.api",
    "torch.distributed.checkpoint._fsspec_filesystem", "torch.distributed.checkpoint.hf_storage",
    "torch.distributed.checkpoint._consolidate_hf_safetensors", "torch.distributed.fsdp", "torch.distributed.tensor",
    "torch.distributed.tensor.parallel", "torch.distributed.device_mesh", "torch.distributed.optim", "torch.optim",
    "torch.optim.lr_scheduler", "torch.nn.utils", "torch.nn.parallel", "torch.utils.data", "torch.utils.checkpoint",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "torch.distributed.elastic.multiprocessing.errors",
    "torch.accelerator", "torch.amp", "torch.serialization", "torch.distributed.fsdp.sharded_grad_scaler",
)  # fmt: skip
ALIASES = {"dcp": "torch.distributed.checkpoint", "dist": "torch.distributed", "nn": "torch.nn"}
OBJECTS = (
    "torch.Tensor", "torch.nn.Module", "torch.optim.Optimizer", "torch.optim.lr_scheduler.LRScheduler",
    "torch.distributed.fsdp.FSDPModule", "torch.distributed.tensor.DTensor", "torch.distributed.DeviceMesh",
    "torch.distributed.checkpoint.metadata.Metadata", "torch.distributed.checkpoint.state_dict_saver.AsyncSaveResponse",
    "concurrent.futures.Future", "torch.distributed.checkpoint.state_dict.StateDictOptions",
    "torch.nn.parallel.DistributedDataParallel", "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.utils.data.DistributedSampler", "torch.utils.data.DataLoader",
    "torch.distributed.checkpoint.stateful.Stateful",
)  # fmt: skip
# What is neither Python nor torch: words of launchers, of this project, of other packages; `all.txt`, and a page's own.
WORDS = Path(__file__).with_name("words")
FILES = re.compile(
    r"\.(metadata|pt)|[\w<>{}*.-]*/[\w<>{}*./-]*|[\w<>-]+\.(md|py|pt|sh|safetensors|json|toml|yaml|distcp)"
)
COMMANDS = "python|fsdp2|torchrun|pip|generate|lint|validate|explain|inspect|convert|plan"
ELSEWHERE = re.compile(rf"({COMMANDS}) |-|#|\w*(Error|Exception): |FS\d{3}$")  # with tests of their own


def spans(page: Page) -> list[str]:
    """What stands between backticks in the text, each once."""
    return list(dict.fromkeys(re.findall(r"`([^`\n]+)`", page.prose)))


def unknown(page: Page, span: str) -> str | None:
    """What is not known of a span, None when all of it is."""
    if span in words(page) or keyword.iskeyword(span) or FILES.fullmatch(span) or ELSEWHERE.match(span):
        return None
    own = names_in_code(page) | words(page)
    span = span.removeprefix(".")
    try:
        tree: ast.AST = ast.parse(span.removesuffix(","), mode="eval")
    except SyntaxError:
        for text in (f"_({span})", f"try: pass\n{span}: pass", f"{span}: pass", span):  # `lr=1e-3`, `except OSError`
            try:
                tree = ast.parse(text)
                break
            except SyntaxError:
                pass
        else:
            return f"{span!r} is neither Python nor a known word"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if (problem := _call(node, own)) is not None:
                return problem
        elif isinstance(node, ast.Attribute):
            if (problem := _attribute(node, own)) is not None:
                return problem
        elif isinstance(node, ast.Name) and node.id != "_" and not known(node.id, own):
            return f"{node.id} is not a name of torch, of Python or of the page's code"
    return None


def known(name: str, own: frozenset[str]) -> bool:
    """Whether a name alone means something."""
    return name in own or name in parameters() or bool(candidates(name)) or member(name)


def candidates(name: str) -> list[Any]:
    """What goes by a name in Python, or in a module of torch."""
    if name in ALIASES:
        return [importlib.import_module(ALIASES[name])]
    found = [getattr(module, name) for module in modules() if hasattr(module, name)]
    if hasattr(builtins, name):
        found.append(getattr(builtins, name))
    if name in sys.stdlib_module_names:
        found.append(importlib.import_module(name))
    return found


@functools.cache
def modules() -> tuple[Any, ...]:
    """The modules of torch whose names pages use without a path."""
    return tuple(importlib.import_module(name) for name in MODULES)


@functools.cache
def classes() -> tuple[Any, ...]:
    """Classes whose members pages name alone, or on a variable."""
    found = []
    for path in OBJECTS:
        module, _, name = path.rpartition(".")
        found.append(getattr(importlib.import_module(module), name))
    return tuple(found)


def member(name: str) -> bool:
    """Whether some object that training scripts handle has it."""
    return any(hasattr(cls, name) or name in getattr(cls, "__annotations__", {}) for cls in classes())


def resolve(node: ast.expr) -> list[Any]:
    """What a dotted name stands for; empty when its root is a variable, or unknown."""
    if isinstance(node, ast.Name):
        return candidates(node.id)
    if isinstance(node, ast.Attribute):
        found = [getattr(value, node.attr) for value in resolve(node.value) if hasattr(value, node.attr)]
        if not found and isinstance(path := _path(node), str):
            try:
                return [importlib.import_module(path)]
            except ImportError:
                return []
        return found
    return []


def _path(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return ALIASES.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (home := _path(node.value)):
        return f"{home}.{node.attr}"
    return None


def _attribute(node: ast.Attribute, own: frozenset[str]) -> str | None:
    if resolve(node) or (_is_variable(node, own) and (node.attr in own or member(node.attr))):
        return None
    return f"{ast.unparse(node)} does not exist"


def _is_variable(node: ast.expr, own: frozenset[str]) -> bool:
    """Whether it begins with a value of the page, of which only the code knows what it is."""
    while isinstance(node, ast.Attribute):
        node = node.value
    if not isinstance(node, ast.Name):
        return True
    return node.id in own and node.id.islower() and node.id not in (*ALIASES, "torch")


def _call(node: ast.Call, own: frozenset[str]) -> str | None:
    keywords = {keyword.arg for keyword in node.keywords if keyword.arg}
    if isinstance(node.func, ast.Name) and node.func.id == "_":
        unknown = keywords - parameters() - own
        return f"no function takes {sorted(unknown)}" if unknown else None
    found = resolve(node.func)
    if not found and isinstance(node.func, ast.Attribute):
        found = [getattr(cls, node.func.attr) for cls in classes() if hasattr(cls, node.func.attr)]
    signatures = [signature for value in found if (signature := _parameters(value)) is not None]
    if signatures and not any(keywords <= names or None in names for names in signatures):
        return f"{ast.unparse(node.func)} takes no {sorted(keywords - set.union(*map(set, signatures)))}"
    return None


def _parameters(value: Any) -> set[str | None] | None:
    """The names of a callable's parameters, with None when it takes any; None when it does not tell."""
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    return {None if parameter.kind is parameter.VAR_KEYWORD else parameter.name for parameter in found}


@functools.cache
def parameters() -> frozenset[str]:
    """The names of all parameters of the functions and classes in `MODULES` and of the classes' methods."""

    def callables() -> Iterator[Any]:
        for module in modules():
            for name in dir(module):
                if not name.startswith("_"):
                    yield getattr(module, name)
        for cls in classes():
            yield from (getattr(cls, name) for name in dir(cls) if not name.startswith("__"))

    return frozenset(
        name for value in callables() if callable(value) for name in _parameters(value) or () if name is not None
    )


@functools.cache
def words(page: Page) -> frozenset[str]:
    """The words that are allowed on a page."""
    files = (WORDS / "all.txt", WORDS / f"{page.path.stem}.txt")
    return frozenset(word for file in files if file.exists() for word in file.read_text().split())


@functools.cache
def _names(text: str) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        for field in ("id", "attr", "name", "arg"):
            if isinstance(value := getattr(node, field, None), str):
                found.add(value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(re.findall(r"\w+", node.value))
    return frozenset(found)


def names_in_code(page: Page) -> frozenset[str]:
    """Every name in the code of a page and of the set-up; all of it is run, so that they exist."""
    texts = [setup_text(), *(block.text for block in page.blocks if block.language == "python" and not block.excerpt)]
    return frozenset().union(*map(_names, texts))
