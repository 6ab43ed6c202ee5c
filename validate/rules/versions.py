"""FS9: what the torch that a program is written for does not have."""

from __future__ import annotations

from collections.abc import Iterator

from ..api import table
from ..events import OldPathUsed, TorchApiUsed
from ..findings import Finding, Severity
from ..target import Pin
from ..trace import Trace
from .base import READER, Rule

# What stands in for an argument of FSDP1's wrapper, by the argument.
_FOR_FULLY_SHARD = {
    "auto_wrap_policy": "call fully_shard on each block, then on the model",
    "backward_prefetch": "it prefetches by itself; set_modules_to_backward_prefetch changes how",
    "cpu_offload": "pass offload_policy=CPUOffloadPolicy()",
    "device_id": "pass mesh=, whose device type tells",
    "device_mesh": "pass mesh=",
    "forward_prefetch": "call set_modules_to_forward_prefetch",
    "ignored_modules": "pass ignored_params= (torch 2.7)",
    "ignored_states": "pass ignored_params= (torch 2.7)",
    "limit_all_gathers": "leave it out: it always does",
    "mixed_precision": "pass mp_policy=MixedPrecisionPolicy(...)",
    "param_init_fn": "call to_empty and initialise after sharding",
    "process_group": "pass mesh=",
    "sharding_strategy": "pass reshard_after_forward=; a mesh of two dims replicates and shards",
    "sync_module_states": "load by set_model_state_dict with broadcast_from_rank0=True",
    "use_orig_params": "leave it out: parameters are always the original ones",
    "#2": "pass mesh=",
}


# What programs call behind a switch of their own, for those who have built torch with it.
_OF_OTHER_BUILDS = {"torch.distributed.ring_exchange"}


class NewerThanPinnedTorch(Rule):
    """The program uses what torch got after the release that its project says it runs on."""

    code = "FS902"
    name = "newer-than-pinned-torch"
    severity = Severity.ERROR
    clause = 1
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for used in trace.of(TorchApiUsed):
            if (pin := _pin(trace)) is None:
                return
            known = _known(used)
            target = _in_table(pin.release)
            since = [release for release, has in known.items() if has and _after(release, target)]
            if known.get(target) is not False or not since:
                continue
            what = _shown(used)
            yield self.finding(
                used,
                f"{what} came with torch {since[0]}, and {pin.said}: it fails there. "
                f"Ask for torch>={since[0]}, or {_without(used)} before you use it.",
            )


class NoSuchApi(Rule):
    """The program uses what no torch has, or not the one that it is written for any more."""

    code = "FS905"
    name = "no-such-api"
    severity = Severity.ERROR
    clause = 1
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for used in trace.of(TorchApiUsed):
            pin, known = _pin(trace), _known(used)
            oldest, newest = table.releases()[0], table.releases()[-1]
            if pin is not None and _after(pin.release, newest):
                continue
            target = _in_table(pin.release) if pin is not None else newest
            if not any(known.values()) and _tells_of_all(used, known):
                if used.name in _OF_OTHER_BUILDS or (pin is not None and _after(oldest, pin.release)):
                    continue  # the table does not tell of what was there before its oldest release
                yield self.finding(
                    used, f"no torch from {oldest} to {newest} has {_shown(used)}{_instead(used, target)}"
                )
            elif pin is not None and known.get(target) is False:
                had = [release for release, has in known.items() if has]
                if had and not _after(had[-1], target):
                    yield self.finding(
                        used,
                        f"torch {target} has {_shown(used)} no more, the last that had it is {had[-1]}, and {pin.said}"
                        f"{_instead(used, target)}",
                    )


class DeprecatedPath(Rule):
    """What torch keeps at an old path for old programs will go from there; it has a public path."""

    code = "FS906"
    name = "deprecated-path"
    severity = Severity.INFO
    clause = 1
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for used in trace.of(OldPathUsed):
            pin = _pin(trace)
            if pin is not None and _after(table.releases()[0], pin.release):
                continue  # the public path may not be there yet
            names = ", ".join(f"`{name}`" for name in used.names)
            message = (
                f"`{used.path}` is a private path that torch keeps for old programs only; from torch "
                f"{table.releases()[0]} on, {names} is public: import from `{used.public}`."
            )
            yield self.finding(used, message)


def _pin(trace: Trace) -> Pin | None:
    """The release that the program is written for; its project is searched when this is first asked."""
    return trace.target.pin if trace.target is not None else None


def _known(used: TorchApiUsed) -> dict[str, bool]:
    """Whether each release of the table has what is used, as far as that is known."""
    if used.argument is None:
        return table.history(used.name)
    return table.argument_history(used.name, used.argument)


def _tells_of_all(used: TorchApiUsed, known: dict[str, bool]) -> bool:
    """Whether the table knows of every release, or else that it does not have what the argument is passed to."""
    there = table.history(used.name) if used.argument is not None else {}
    return bool(known) and all(r in known or there.get(r) is False for r in table.releases())


def _in_table(release: str) -> str:
    """The release of the table that stands for a target: the first for older ones."""
    return table.releases()[0] if _after(table.releases()[0], release) else release


def _after(one: str, other: str) -> bool:
    return table.number(one) > table.number(other)


def _shown(used: TorchApiUsed) -> str:
    name = f"`{used.name.removeprefix('torch.distributed.')}`"
    if used.argument is None:
        return name
    if used.argument.startswith("#"):
        return f"a positional argument {used.argument[1:]} of {name}"
    return f"the argument `{used.argument}` of {name}"


def _without(used: TorchApiUsed) -> str:
    return "ask hasattr" if used.argument is None else "look at torch.__version__"


def _instead(used: TorchApiUsed, release: str) -> str:
    """What to write instead, as the end of a message."""
    if used.argument is not None:
        known = _FOR_FULLY_SHARD.get(used.argument) if used.name.endswith(".fully_shard") else None
        near = table.closest_argument(used.name, used.argument, release)
        if known is not None:
            return f": {known}."
        return f"; did you mean `{near}`?" if near is not None else "."
    other = table.elsewhere(used.name, release) or table.closest(used.name, release)
    return f"; did you mean `{other}`?" if other is not None else "."
