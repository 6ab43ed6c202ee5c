"""The proof `trace`: no rule of the contract is broken in a real run."""

from __future__ import annotations

from typing import Any

from ..events import AsyncSaved, Loaded, Saved, Sharded, Stepped, TorchSaved
from ..report import count, plural
from ..rules import RULES
from ..rules.base import PROBE
from .base import CannotProve, Proof, Verdict
from .bench import Bench, how_it_ended, unfinished
from .hang import describe_hang

SUBSTANCE = (Sharded, Stepped, Saved, AsyncSaved, Loaded, TorchSaved)  # a run without any of these has shown nothing


class RulesHold(Proof):
    """Judges what the probe saw of the uninterrupted run."""

    name = "trace"
    claim = "no rule of the contract is broken in a real run"

    def prove(self, bench: Bench) -> Verdict:
        straight = bench.straight
        findings, accepted = straight.judged.findings, straight.judged.accepted
        broken = any(f.severity.fails for f in findings)
        events = [len(trace.events) for trace in straight.traces]
        rules = sum(PROBE in rule.seen_by for rule in RULES)
        figures: dict[str, Any] = {
            "events": events,
            "rules": rules,
            "accepted": [f"{finding.code} at {finding.at}" for finding in accepted],
        }
        if straight.run.hung:
            figures |= straight.hang
            reason = describe_hang(straight.run, straight.traces)
        elif not straight.completed:
            reason = how_it_ended(straight.run)
            if not broken:
                raise unfinished(straight.run, reason)
        elif broken:
            reason = count(findings)
        elif not any(isinstance(e, SUBSTANCE) for trace in straight.traces for e in trace.events):
            raise CannotProve(
                f"{straight.run.job.script.name} neither shards a model nor trains nor saves: there is nothing "
                "to judge; expected a training script"
            )
        else:
            over = f"{plural(sum(events), 'event')} on {plural(len(events), 'rank')}"
            reason = f"none of {rules} rules is broken over {over}"
        if accepted:
            reason += f" ({plural(len(accepted), 'finding')} accepted by a comment in the source)"
        failed = broken or straight.run.hung
        return Verdict(
            name=self.name, status="fail" if failed else "pass", reason=reason, figures=figures, findings=findings
        )
