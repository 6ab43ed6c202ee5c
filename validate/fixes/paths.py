"""FS906: an import from an old path of torch names the public one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..api.paths import OLD_PATHS
from ..findings import Finding
from .proposal import Proposal
from .script import Change, Script

_FROM = re.compile(r"from\s+([\w.]+)\s")


def imported_from_the_public_path(script: Script, finding: Finding) -> Iterator[Proposal]:
    """The module's name is replaced; what is imported, and under which names, stays."""
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.ImportFrom) or (public := OLD_PATHS.get(node.module or "")) is None:
            continue
        is_it = (node.lineno, node.col_offset + 1) == (finding.at.line, finding.at.column)
        match = _FROM.match(script.text, script.start(node))
        if is_it and match is not None and match[1] == node.module:
            text = script.changed([Change(match.start(1), match.end(1), public)]).text
            yield Proposal(f"import from {public}", text, safe=True)
