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


_EDIT = _object(
    line={"type": "integer", "minimum": 1}, end_line={"type": "integer", "minimum": 1}, content={"type": "string"}
)
_APPLICABILITY = {"enum": ["safe", "unsafe"]}
FIX = _object(message=TEXT, applicability=_APPLICABILITY, edits={"type": "array", "items": _EDIT, "minItems": 1})

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
    fix={"anyOf": [{"type": "null"}, FIX]},
)

STATISTICS = _list(_object(code=FINDING["properties"]["code"], name=TEXT, count={"type": "integer", "minimum": 1}))

ITEM = _object(
    workflow={"enum": ["a", "b"]},
    file=TEXT,
    item={"type": "integer", "minimum": 1},
    text=TEXT,
    status={"enum": ["done", "missing", "broken", "not-seen"]},
    at={"anyOf": [{"type": "null"}, _object(file=TEXT, line={"type": "integer", "minimum": 1})]},
    rules=_list(FINDING["properties"]["code"]),
    note={"type": "string"},
)

LINT = _object(version={"const": 1}, files=COUNT, findings=_list(FINDING), checklist=_list(ITEM))
LINT["properties"]["statistics"] = STATISTICS  # with --statistics only
LINT["properties"]["fixed"] = _list(  # with --fix only
    _object(
        code=FINDING["properties"]["code"],
        name=TEXT,
        file=TEXT,
        line=FINDING["properties"]["line"],
        message=TEXT,
        applicability=_APPLICABILITY,
    )
)

_SECONDS = {"type": "number", "minimum": 0}
_TIME = {"type": ["number", "null"]}
_LOSSES = _list({"type": "array", "prefixItems": [COUNT, {"type": ["number", "null"]}], "minItems": 2, "maxItems": 2})

PROOF = _object(
    name=TEXT,
    claim=TEXT,
    status={"enum": ["pass", "fail", "skip"]},
    reason=TEXT,
    seconds=_SECONDS,
    figures={"type": "object"},
    findings=_list(FINDING),
)

_SAVE = _object(
    step=COUNT,
    target={"type": ["string", "null"]},
    file=TEXT,
    line={"type": "integer", "minimum": 1},
    kind={"enum": ["sync", "async", "async, by a process"]},
    ranks=_list(
        _object(
            rank=COUNT,
            called=_TIME,
            returned=_TIME,
            staged=_TIME,
            written=_TIME,
            waits=_list({"type": "array", "items": _SECONDS, "minItems": 2, "maxItems": 2}),
            stood_still=_SECONDS,
        )
    ),
)
_OWNED = _object(
    model=COUNT,
    module={"type": "string"},
    group=_list({"type": "string"}),
    shards=_list(TEXT),
    dtypes=_list(TEXT),
    elements=COUNT,
    bytes=_list(COUNT),
    optimizer_bytes=_list(COUNT),
    **{"class": TEXT},
)
_RUN_SEEN = _object(
    losses=_LOSSES,
    steps=_list({"type": "array", "prefixItems": [COUNT, _SECONDS], "minItems": 2, "maxItems": 2}),
    saves=_list(_SAVE),
    ownership=_list(_OWNED),
)

VALIDATE = _object(
    version={"const": 1},
    script=TEXT,
    torch=TEXT,
    nproc={"type": "integer", "minimum": 1},
    launcher={"enum": ["warm", "torchrun"]},
    seconds=_SECONDS,
    proofs=_list(PROOF),
    run={"anyOf": [{"type": "null"}, _RUN_SEEN]},
)

# The part of SARIF 2.1.0 that `lint` writes. No package index carries the schema of OASIS, which asks less: there,
# most of this is optional and much else is allowed.
_MESSAGE = _object(text=TEXT)
_LEVEL = {"enum": ["error", "warning", "note"]}
_PHYSICAL = _object(
    artifactLocation=_object(uri={"type": "string", "pattern": r"^[A-Za-z0-9._~:/%-]+$"}),
    region=_object(startLine={"type": "integer", "minimum": 1}, startColumn={"type": "integer", "minimum": 1}),
)
_RESULT = {
    **_object(
        ruleId=FINDING["properties"]["code"],
        ruleIndex=COUNT,
        level=_LEVEL,
        message=_MESSAGE,
        locations={"type": "array", "items": _object(physicalLocation=_PHYSICAL), "minItems": 1, "maxItems": 1},
        relatedLocations=_list(_object(id=COUNT, physicalLocation=_PHYSICAL, message=_MESSAGE)),
        partialFingerprints={"type": "object", "minProperties": 1, "additionalProperties": TEXT},
        properties=_object(clause=COUNT, page=TEXT),
    )
}
_RESULT["required"].remove("relatedLocations")
_RULE = _object(
    id=FINDING["properties"]["code"],
    name={"type": "string", "pattern": "^[A-Z][A-Za-z0-9]+$"},
    shortDescription=_MESSAGE,
    fullDescription=_MESSAGE,
    help=_object(text=TEXT, markdown=TEXT),
    defaultConfiguration=_object(level=_LEVEL),
    properties=_object(page=TEXT, tags=_list(TEXT)),
)
_RUN = _object(
    tool=_object(driver=_object(name=TEXT, version=TEXT, shortDescription=_MESSAGE, rules=_list(_RULE))),
    invocations=_list(
        _object(
            executionSuccessful={"type": "boolean"},
            toolExecutionNotifications=_list(_object(level=_LEVEL, message=_MESSAGE)),
        )
    ),
    columnKind={"const": "unicodeCodePoints"},
    results=_list(_RESULT),
)
SARIF = {
    "type": "object",
    "properties": {"$schema": TEXT, "version": {"const": "2.1.0"}, "runs": _list(_RUN)},
    "required": ["$schema", "version", "runs"],
    "additionalProperties": False,
}

_MAYBE = {"type": ["string", "null"]}
_PLACE = {"file": _MAYBE, "offset": {"type": ["integer", "null"]}, "length": {"type": ["integer", "null"]}}
_REMARK = _object(kind={"type": "string", "pattern": "^[a-z-]+$"}, message=TEXT)
_CHECKPOINT = _object(
    path=TEXT,
    layout={"enum": ["DCP", "fsdp2 generate", "torchtitan", "Accelerate", "Lightning", "safetensors"]},
    whole={"type": "boolean"},
    problems=_list(_REMARK),
    notes=_list(_REMARK),
    format={"enum": ["DCP", "safetensors", None]},
    version=_MAYBE,
    saved_to=_MAYBE,
    save_id=_MAYBE,
    tensors=_list(
        _object(
            key={"type": "string"},
            dtype=TEXT,
            shape=_list(COUNT),
            bytes=COUNT,
            digest={"type": ["string", "null"], "pattern": "^[0-9a-f]{64}$"},
            chunks=_list(_object(offsets=_list(COUNT), sizes=_list(COUNT), **_PLACE)),
        )
    ),
    objects=_list(_object(key={"type": "string"}, value=_MAYBE, **_PLACE)),
    totals=_list(_object(part={"type": "string"}, tensors=COUNT, bytes=COUNT)),
    files=_list(_object(file=TEXT, needed=COUNT, bytes={"type": ["integer", "null"]})),
    ranks=_list(_object(rank=COUNT, bytes=COUNT)),
)
_DIFFERENCE = _object(
    kind={"enum": ["only-here", "only-there", "kind", "shape", "dtype", "values", "object", "unreadable"]},
    key={"type": "string"},
    message=TEXT,
    differing={"type": ["integer", "null"]},
    largest={"type": ["number", "null"]},
    at={"type": ["array", "null"], "items": COUNT},
)
_AGAINST = _object(path=TEXT, equal={"type": "boolean"}, keys=COUNT, differences=_list(_DIFFERENCE))
INSPECT = _object(
    version={"const": 1},
    path=TEXT,
    kind={"enum": ["checkpoint", "parts", "steps"]},
    whole={"type": "boolean"},
    latest=_MAYBE,
    steps=_list(
        _object(
            name=TEXT,
            step={"type": ["integer", "null"]},
            whole={"type": "boolean"},
            bytes=COUNT,
            problems=_list(_REMARK),
        )
    ),
    checkpoints=_list(_CHECKPOINT),
    against={"anyOf": [{"type": "null"}, _AGAINST]},
)

_SIDE = _object(path=TEXT, format={"enum": ["DCP", "pt", "safetensors"]})
CONVERT = _object(
    version={"const": 1},
    source=_SIDE,
    destination=_SIDE,
    tensors=_list(
        _object(
            key=TEXT,
            dtype=TEXT,
            shape=_list(COUNT),
            bytes=COUNT,
            digest={"type": "string", "pattern": "^[0-9a-f]{64}$"},
        )
    ),
    objects=_list(TEXT),
    files=_list(_object(file=TEXT, bytes=COUNT)),
    seconds={"type": "number", "minimum": 0},
)

_BYTES = COUNT
_SECONDS = {"type": "number", "minimum": 0}
_PLANNED_MESH = {
    "type": "object",
    "properties": {
        key: {"type": "integer", "minimum": 1} for key in ("dp_replicate", "dp_shard", "tp", "ranks", "nodes")
    },
    "required": ["dp_shard", "ranks", "nodes"],
    "additionalProperties": False,
}
_HOW = {"enum": ["tracked", "formulas"]}
_INTERVAL = _object(**dict.fromkeys(("cost", "mtbf", "restart", "young", "daly", "every", "lost"), _SECONDS))
_PROPOSAL = _object(
    mesh=_PLANNED_MESH,
    checkpointing={"type": "boolean"},
    peak=_BYTES,
    how=_HOW,
    across_bytes_per_token=_SECONDS,
    within_bytes_per_token=_SECONDS,
    reason=TEXT,
)

PLAN = _object(
    version={"const": 1},
    model=_object(name=TEXT, parameters=COUNT, tensors=COUNT),
    mesh=_PLANNED_MESH,
    training=_object(
        precision={"enum": ["fp32", "bf16"]},
        optimizer={"enum": ["adamw", "sgd"]},
        micro_batch=COUNT,
        micro_batches=COUNT,
        seq_len=COUNT,
        checkpointing={"type": "boolean"},
    ),
    memory=_object(
        **dict.fromkeys(("parameters", "gradients", "optimizer", "buffers", "activations", "gathered", "peak"), _BYTES),
        where=TEXT,
        at_peak={"type": "object", "additionalProperties": _BYTES},
        how=_HOW,
    ),
    checkpoint=_object(
        **dict.fromkeys(("bytes", "metadata", "files", "rank", "node"), _BYTES),
        bandwidth={"anyOf": [{"type": "null"}, COUNT]},
        seconds={"anyOf": [{"type": "null"}, _SECONDS]},
    ),
    savings=_list(
        _object(
            mode={"enum": ["disabled", "async", "async_with_pinned_mem"]},
            host=_BYTES,
            why=TEXT,
            stall={"anyOf": [{"type": "null"}, _SECONDS]},
            interval={"anyOf": [{"type": "null"}, _INTERVAL]},
        )
    ),
    fits={
        "anyOf": [
            {"type": "null"},
            _object(limit=_BYTES, meshes=_list(_PROPOSAL), least={"anyOf": [{"type": "null"}, _PROPOSAL]}),
        ]
    },
    planning={
        "anyOf": [
            {"type": "null"},
            _list(
                _object(
                    world=COUNT,
                    measured={"type": "boolean"},
                    **dict.fromkeys(("planned", "written", "received", "metadata"), COUNT),
                    **dict.fromkeys(
                        ("receive_seconds", "plan_seconds", "finish_seconds", "read_seconds", "seconds"), _SECONDS
                    ),
                    cached_received={"anyOf": [{"type": "null"}, COUNT]},
                    cached_seconds={"anyOf": [{"type": "null"}, _SECONDS]},
                )
            ),
        ]
    },
)
