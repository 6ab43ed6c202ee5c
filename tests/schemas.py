"""The JSON documents of the command contract, as JSON Schema."""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


FINDING = _object(
    code={"type": "string", "pattern": "^FS[0-9]{3}$"},
    name={"type": "string", "pattern": "^[a-z0-9-]+$"},
    severity={"enum": ["error", "warn", "info"]},
    file=TEXT,
    line={"type": "integer", "minimum": 1},
    column={"type": "integer", "minimum": 1},
    message=TEXT,
    clause={"type": "integer", "minimum": 0, "maximum": 12},
    page={"type": "string", "pattern": r"^references/rules/FS[0-9]{3}-[a-z0-9-]+/page\.md$"},
    related=_list(_object(file=TEXT, line={"type": "integer", "minimum": 1}, message=TEXT)),
    ranks=_list(COUNT),
    fix={"type": "null"},
)

LINT = _object(version={"const": 1}, files=COUNT, findings=_list(FINDING), checklist=_list({}))

PROOF = _object(
    name=TEXT,
    status={"enum": ["pass", "fail", "skip"]},
    reason=TEXT,
    figures={"type": "object"},
    findings=_list(FINDING),
)

VALIDATE = _object(
    version={"const": 1},
    script=TEXT,
    torch=TEXT,
    nproc={"type": "integer", "minimum": 1},
    launcher={"enum": ["warm", "torchrun"]},
    seconds={"type": "number", "minimum": 0},
    proofs=_list(PROOF),
)
