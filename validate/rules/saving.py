"""FS6: what is put into a checkpoint, and by what it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..events import (
    AsyncSaved,
    Backward,
    Compiled,
    Form,
    ForwardEntered,
    GradientsCleared,
    GroupInitialised,
    OptimizerBuilt,
    Saved,
    Sharded,
    StateTaken,
    TorchSaved,
    Via,
)
from ..findings import Finding, Severity
from ..trace import Trace, implied
from .base import READER, Rule, eager, in_tests, quoted, stepped


class TorchSaveOfShards(Rule):
    """`torch.save` writes what this rank holds: of a sharded state dict, one part."""

    code = "FS601"
    name = "torch-save-of-shards"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for saved in trace.of(TorchSaved):
            shards = [e for e in saved.entries or () if e.form in (Form.SHARDED, Form.LOCAL)]
            if not shards:
                continue
            rest = "as many ranks can read these files back, no others" if saved.by_rank else "the rest is in no file"
            message = (
                f"torch.save of {quoted(shards)} writes this rank's shards only: {rest}. Use dcp.save on all ranks, "
                "or gather first: "
                "get_model_state_dict(..., options=StateDictOptions(full_state_dict=True, cpu_offload=True))."
            )
            found = self.finding(saved, message)
            # One file a rank is what somebody meant: nothing is lost while there are as many.
            yield dataclasses.replace(found, severity=Severity.INFO) if saved.by_rank else found


class FullStateThroughDcp(Rule):
    """A gathered state dict costs the memory and the traffic of the whole, and wins nothing: DCP reshards on load."""

    code = "FS602"
    name = "full-state-through-dcp"
    severity = Severity.WARN
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for saved in trace.of(Saved, AsyncSaved):
            full = [e for e in saved.entries or () if e.form is Form.FULL]
            if not full or in_tests(saved):
                continue
            message = (
                f"{quoted(full)} is gathered to whole tensors before DCP writes it, which costs the memory and the "
                "traffic of the whole model and wins nothing. Save the sharded state dict (leave full_state_dict out): "
                "DCP reshards on load."
            )
            yield self.finding(saved, message)


class LocalShardsSaved(Rule):
    """A shard that has forgotten the whole is a plain tensor to DCP, which keeps one of those with the same key."""

    code = "FS603"
    name = "local-shards-saved"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for saved in trace.of(Saved, AsyncSaved):
            lost = [e for e in saved.entries or () if e.form is Form.LOCAL and e.per_rank is True]
            if not lost or saved.alone:
                continue
            message = (
                f"{quoted(lost)} holds this rank's shards as plain tensors, under the same keys on all ranks: DCP "
                "keeps one rank's and the rest of the state is in no file. Save the DTensors themselves, as "
                "get_model_state_dict gives them; leave out to_local()."
            )
            yield self.finding(saved, message)


class PerRankStateUnderOneKey(Rule):
    """DCP takes a plain value under one key to be the same on all ranks and keeps one of them."""

    code = "FS604"
    name = "per-rank-state-under-one-key"
    severity = Severity.ERROR
    clause = 8

    def check(self, trace: Trace) -> Iterator[Finding]:
        for saved in trace.of(Saved, AsyncSaved):
            lost = [e for e in saved.entries or () if e.per_rank is True and e.form is not Form.LOCAL]
            if not lost or saved.alone:
                continue
            message = (
                f"{quoted(lost)} differs from rank to rank but has the same key on all of them, so DCP keeps one "
                "rank's value and every rank loads that. Put the rank into the key, as in `rng_{rank}`."
            )
            yield self.finding(saved, message)


class KeyedByLocalRank(Rule):
    """LOCAL_RANK counts the ranks of one machine: a key with it is that of one rank of each machine."""

    code = "FS615"
    name = "keyed-by-local-rank"
    severity = Severity.WARN
    clause = 8
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for saved in trace.of(Saved, AsyncSaved):
            if saved.alone or not any(entry.by_local_rank for entry in saved.entries or ()):
                continue
            message = (
                "a key of what is saved has the number of the rank within its machine (LOCAL_RANK): on several "
                "machines, as many ranks as there are machines share it, DCP keeps the value of one, and all of them "
                "load that. Put dist.get_rank() into the key."
            )
            yield self.finding(saved, message)


class GroupMissesRanks(Rule):
    """DCP saves what the ranks of its process group hold, and the first of them writes what there is of it."""

    code = "FS611"
    name = "group-misses-ranks"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for saved in trace.of(Saved, AsyncSaved):
            if saved.misses is not True:
                continue
            group = f"`{saved.group.name}`" if saved.group is not None else "its process group"
            message = (
                f"this saves over {group}, and other ranks hold parts of the state: the metadata that is written knows "
                "nothing of them, and a load leaves that part of the weights as it was. Leave process_group out, or "
                "give one that all ranks with shards belong to."
            )
            yield self.finding(saved, message)


class WrapperPrefixInKeys(Rule):
    """What `torch.compile` returns has the module under a name of its own, which is in all keys of its state dict."""

    code = "FS613"
    name = "wrapper-prefix-in-keys"
    severity = Severity.WARN
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        saves: list[Saved | AsyncSaved | TorchSaved] = list(trace.of(Saved, AsyncSaved))
        if any(trace.of(GroupInitialised, Sharded)):  # of a program of one process nothing is said
            saves += trace.of(TorchSaved)
        for saved in saves:
            entry = next((e for e in saved.entries or () if e.prefix is not None), None)
            if entry is None:
                continue
            before = [c for c in trace.before(saved, Compiled) if c.wrapped]
            by = [c for c in before if entry.of is None or trace.related(c.module, entry.of)]
            if entry.via is Via.HELPER:
                advice = "Wrap for activation checkpointing first and compile what that returns, or compile in place"
            else:
                advice = "Compile in place (model.compile()), or take the state by get_model_state_dict"
            message = (
                f"the keys of {quoted([entry])} have `{entry.prefix}` in them, which a wrapper put there: a model that "
                "is not wrapped in the same way, as for evaluation or export, asks for other names and finds none of "
                f"its weights. {advice}, so that the keys are the model's own."
            )
            yield self.finding(saved, message, *((c, "wrapped here") for c in by[-1:]))


class StateTakenBetweenBackwardAndStep(Rule):
    """The helpers create an optimizer's state by a step that changes nothing, but not where there are gradients."""

    code = "FS612"
    name = "state-taken-between-backward-and-step"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for taken in trace.of(StateTaken):
            for built in trace.before(taken, OptimizerBuilt):
                if taken.via is not Via.HELPER or built.optimizer not in taken.of or built.stateless:
                    continue
                backward = self._backward(trace, built, taken)
                if backward is None or trace.escaped(built.optimizer) or self._has_state(trace, built, taken):
                    continue
                name = built.optimizer.name
                message = (
                    f"`{name}` has not stepped yet and its parameters have gradients: the state that is taken of it "
                    "is empty, so that nothing of it is saved, or asked for by a load. Take it after "
                    f"{name}.step(), or call {name}.zero_grad() first."
                )
                yield self.finding(taken, message, (backward, "gradients since here"))

    def _backward(self, trace: Trace, built: OptimizerBuilt, taken: StateTaken) -> Backward | None:
        """What left the gradients that are there whenever the state is taken."""
        entered = {f.module for f in trace.between(built, taken, ForwardEntered)}
        own = {module for module in entered if any(trace.related(module, m) for m in built.modules)}
        for backward in reversed(list(trace.between(built, taken, Backward))):
            if not any(f.module in own for f in trace.between(built, backward, ForwardEntered)):
                continue
            cleared = any(trace.between(backward, taken, GradientsCleared))
            certain = implied(taken, backward) and implied(backward, taken)
            return backward if certain and not cleared else None
        return None

    def _has_state(self, trace: Trace, built: OptimizerBuilt, taken: StateTaken) -> bool:
        optimizer = built.optimizer
        created = (
            t
            for t in trace.before(taken, StateTaken)
            if optimizer in t.of and t.via is Via.HELPER and not any(trace.between(built, t, Backward))
        )
        return stepped(trace, optimizer, taken) or any(created) or eager(built)
