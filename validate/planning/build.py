"""The real module of a plan: built by the user's factory or by transformers, under fake tensors, so without storage."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from ...templates.models import importable
from ..errors import UserError
from ..report import printable
from .model import Buffer, Model, Parameter


@dataclass(frozen=True)
class Built:
    """A module, those within it that are sharded each, outermost first, and what makes its logits from token ids."""

    name: str
    module: nn.Module
    blocks: tuple[nn.Module, ...]
    logits: Callable[[nn.Module, Tensor], Tensor]


def has_transformers() -> bool:
    """Whether a config can be built."""
    return find_spec("transformers") is not None


def build_factory(model: str, block: str) -> Built:
    """What the factory `package.module:name` returns, and its blocks by their classes. Raises UserError."""
    (factory,) = _places(f"--model {model}", [model])
    layers = _places(f"--block {block}", block.split(","))
    with _user_code(f"--model {model}"):
        module = _imported(*factory)()
    if not isinstance(module, nn.Module):
        raise UserError(f"--model {model}: returned {type(module).__name__}; expected an nn.Module")
    with _user_code(f"--block {block}"):
        classes = tuple(_imported(*place) for place in layers)
        blocks = [part for part in [*module.modules()][1:] if isinstance(part, classes)]
    if not blocks:
        raise UserError(f"--block {block}: the model has no module of it; expected the class of its layers")
    return _alone(model, _in_fp32(module), blocks, lambda module, tokens: module(tokens))


def build_config(path: Path) -> Built:
    """The causal LM of a config, by transformers. Raises UserError."""
    with _user_code(f"--config {path}"):
        transformers: Any = importlib.import_module("transformers")
        transformers.logging.set_verbosity_error()  # a plan does not judge special tokens and the like
        config = transformers.AutoConfig.from_pretrained(str(path))
        config.use_cache = False
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    names = module._no_split_modules or ()
    blocks = [part for part in module.modules() if type(part).__name__ in names]
    if not blocks:
        raise UserError(f"--config {path}: {type(module).__name__} says nothing of its blocks; expected another model")
    return _alone(str(path), module, blocks, lambda module, tokens: module(tokens).logits)


def parallelize(built: Built, function: str, ranks: DeviceMesh) -> None:
    """Let the user's function split the module over the dim `tp` of the ranks. Raises UserError."""
    flag = f"--parallelize {function}"
    (place,) = _places(flag, [function])
    with _user_code(flag, "expected a function of the model and a mesh, which calls parallelize_module"), unfaked():
        _imported(*place)(built.module, ranks["tp"])
    if not any(isinstance(parameter, DTensor) for parameter in built.module.parameters()):
        raise UserError(f"{flag}: has split no parameter; expected a function that calls parallelize_module")


def unfaked() -> AbstractContextManager[Any]:
    """Where meshes are looked into, which have values: parameters are fake all the same."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


def describe(built: Built) -> Model:
    """The parameters and buffers of a module that FSDP has not sharded yet, though `tp` may have."""
    module = built.module
    prefixes = {id(part): name for name, part in module.named_modules()}
    units = [prefixes[id(block)] for block in built.blocks]
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    persistent = module.state_dict().keys()
    return Model(
        name=built.name,
        parameters=tuple(
            Parameter(
                names=tuple(all_names),
                shape=tuple(parameter.shape),
                unit=next((unit for unit in reversed(units) if all_names[0].startswith(f"{unit}.")), ""),
                split=_split(parameter),
                trained=parameter.requires_grad,
            )
            for parameter, all_names in names.items()
        ),
        buffers=tuple(
            Buffer(name, buffer.numel() * buffer.element_size(), name in persistent)
            for name, buffer in module.named_buffers()
        ),
    )


def _split(parameter: nn.Parameter) -> int | None:
    """The dim along which it is split over `tp`."""
    placements = parameter.placements if isinstance(parameter, DTensor) else ()
    return next((int(placement.dim) for placement in placements if isinstance(placement, Shard)), None)


def _alone(
    name: str, module: nn.Module, blocks: list[nn.Module], logits: Callable[[nn.Module, Tensor], Tensor]
) -> Built:
    """Leaves out blocks that share a parameter with what is outside: as in generated scripts, the root shards those."""
    everywhere = _owners(module)
    alone = tuple(block for block in blocks if _owners(block).items() <= everywhere.items())
    return Built(name, module, alone, logits)


def _owners(module: nn.Module) -> Counter[nn.Parameter]:
    return Counter(parameter for part in module.modules() for parameter in part.parameters(recurse=False))


def _in_fp32(module: nn.Module) -> nn.Module:
    """The module with fp32 parameters, tied where they were: `Module.float` cannot swap fake tensors that are."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for part in module.modules():
        for key, parameter in part.named_parameters(recurse=False):
            if parameter.is_floating_point() and parameter.dtype != torch.float32:
                if parameter not in made:
                    made[parameter] = nn.Parameter(parameter.detach().float(), parameter.requires_grad)
                part.register_parameter(key, made[parameter])
    return module


def _places(flag: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Modules and names in them. Raises UserError where no import could spell one of these."""
    try:
        return [importable(name) for name in names]
    except UserError as error:
        raise UserError(f"{flag}: {error}") from error


def _imported(module: str, attribute: str) -> Any:
    return getattr(importlib.import_module(module), attribute)


def told(error: BaseException) -> str:
    """The type of what code of others raised, and the first line of what it says, with what follows a colon there."""
    first, _, rest = str(error).strip().partition("\n")
    reason = f"{first} {rest.strip().partition(chr(10))[0]}" if first.endswith(":") else first
    return f"{type(error).__name__}: {printable(reason)}"


@contextmanager
def _user_code(
    flag: str, expected: str = "expected what can be built of fake tensors, without values"
) -> Iterator[None]:
    """Runs code of others, from the working directory: what it prints goes to stderr, what it raises is one line."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        raise UserError(f"{flag}: {told(error)}; {expected}") from error
    finally:
        sys.path.remove(here)
