"""FS403: `model.forward(inputs)` becomes `model(inputs)`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..findings import Finding
from .proposal import Proposal
from .script import Change, Script

_FORWARD = re.compile(r"([\s)\\]*?)\.\s*forward")


def called_with_hooks(script: Script, finding: Finding) -> Iterator[Proposal]:
    """Without `.forward`, the call runs the hooks."""
    for call in script.calls_at(finding.at):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "forward":
            start, end = script.end(call.func.value), script.end(call.func)
            if (match := _FORWARD.fullmatch(script.text, start, end)) is not None:
                text = script.changed([Change(match.end(1), end, "")]).text
                yield Proposal("call the module, which runs its hooks", text, safe=True)
