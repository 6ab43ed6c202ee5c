"""What `validate` prints as JSON, made up: for tests of the page that is made of it."""

from __future__ import annotations

from typing import Any

import jsonschema

from ..schemas import VALIDATE


def proof(name: str = "trace", status: str = "pass", reason: str = "it holds", **more: Any) -> dict[str, Any]:
    whole = {"claim": "as it should be", "seconds": 1.25, "figures": {}, "findings": []}
    return {"name": name, "status": status, "reason": reason, **whole, **more}


def rank(number: int, stood_still: float, **more: Any) -> dict[str, Any]:
    times = {"called": 1.0, "returned": 1.25, "staged": 1.5, "written": 2.0, "waits": [[1.9, 2.1]]}
    return {"rank": number, **times, "stood_still": stood_still, **more}


def save(step: int = 2, kind: str = "async", ranks: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    own = {"step": step, "target": f"out/step-{step}", "file": "train.py", "line": 7, "kind": kind}
    return {**own, "ranks": ranks or [rank(0, 0.45), rank(1, 0.6)]}


def module(name: str, group: list[str], own: list[int], **more: Any) -> dict[str, Any]:
    kept = {"class": "Linear", "shards": ["dp_shard=2: Shard(0)"], "dtypes": ["float32"], "elements": 1234}
    return {"model": 0, "module": name, "group": group, **kept, "bytes": own, "optimizer_bytes": own, **more}


def document(*proofs: dict[str, Any], script: str = "train.py", **run: Any) -> dict[str, Any]:
    seen = {"losses": [[1, 2.0], [2, 1.5], [3, 1.25]], "steps": [[0, 0.0], [1, 0.5], [2, 0.9], [3, 2.4]]} | run
    seen = {"saves": [save()], "ownership": [module("blocks.0", ["blocks.0"], [288, 280])]} | seen
    whole = {
        "version": 1,
        "script": script,
        "torch": "2.13.0",
        "nproc": 2,
        "launcher": "warm",
        "seconds": 3.5,
        "proofs": list(proofs) or [proof()],
        "run": seen,
    }
    jsonschema.validate(whole, VALIDATE)
    return whole


FINDING = {
    "code": "FS401",
    "name": "optimizer-before-sharding",
    "severity": "error",
    "file": "train.py",
    "line": 2,
    "column": 1,
    "message": "the optimizer steps what is no longer the model's",
    "clause": 4,
    "page": "references/rules/FS401-optimizer-before-sharding/page.md",
    "related": [{"file": "train.py", "line": 3, "message": "sharded here"}],
    "ranks": [0, 1],
    "fix": None,
}
