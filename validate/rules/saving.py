"""FS6: what is put into a checkpoint, and by what it is written."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import AsyncSaved, Form, Saved, TorchSaved
from ..findings import Finding, Severity
from ..trace import Trace
from .base import Rule, quoted


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
            message = (
                f"torch.save of {quoted(shards)} writes this rank's shards only; the rest of the state is in no file. "
                "Use dcp.save on all ranks, or gather first: "
                "get_model_state_dict(..., options=StateDictOptions(full_state_dict=True, cpu_offload=True))."
            )
            yield self.finding(saved, message)


class FullStateThroughDcp(Rule):
    """A gathered state dict costs the memory and the traffic of the whole, and wins nothing: DCP reshards on load."""

    code = "FS602"
    name = "full-state-through-dcp"
    severity = Severity.WARN
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for saved in trace.of(Saved, AsyncSaved):
            full = [e for e in saved.entries or () if e.form is Form.FULL]
            if not full:
                continue
            message = (
                f"{quoted(full)} is gathered to whole tensors before DCP writes it, which costs the memory and the "
                "traffic of the whole model and wins nothing. Save the sharded state dict (leave full_state_dict out): "
                "DCP reshards on load."
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
            lost = [e for e in saved.entries or () if e.per_rank is True]
            if not lost or saved.alone:
                continue
            message = (
                f"{quoted(lost)} differs from rank to rank but has the same key on all of them, so DCP keeps one "
                "rank's value and every rank loads that. Put the rank into the key, as in `rng_{rank}`."
            )
            yield self.finding(saved, message)
