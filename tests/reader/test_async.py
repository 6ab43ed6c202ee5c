"""The futures of asynchronous saves, wherever a program keeps them."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import AsyncSaved, Awaited, Choice, Escaped, GroupCreated
from pytorch_fsdp2_dcp.validate.trace import Trace

from .programs import SHARDED, only, program

SAVE = "dcp.async_save({'m': model.state_dict()}, checkpoint_id='c')"


def awaited(trace: Trace) -> list[bool]:
    """Of each asynchronous save, whether it is awaited on every way that leads from it."""
    return [_covered([a for a in trace.of(Awaited) if a.future == s.future], s.when.path) for s in trace.of(AsyncSaved)]


def _covered(events: list[Awaited], path: tuple[Choice, ...]) -> bool:
    """Whether on each way on from `path` one of the events happens."""
    if any(set(e.when.path) <= set(path) for e in events):
        return True
    open_conditions = {c.condition for e in events for c in e.when.path} - {c.condition for c in path}
    return any(
        all(_covered(events, (*path, Choice(condition, side))) for side in (True, False))
        for condition in open_conditions
    )


@pytest.mark.parametrize(
    "text",
    [
        f"f = {SAVE}\nf.result()",
        f"f = {SAVE}\nf.exception()",
        f"{SAVE}.result()",
        f"f = {SAVE}\nimport concurrent.futures as cf\ncf.wait([f])",
        f"fs = []\nfor i in range(3):\n    fs.append({SAVE})\nfor f in fs:\n    f.result()",
        f"f = None\nfor i in range(3):\n    if f is not None:\n        f.result()\n    f = {SAVE}\nif f is not None:\n    f.result()",  # noqa: E501
        f"f = None\nfor i in range(3):\n    if i % 2 == 0:\n        if f:\n            f.result()\n        f = {SAVE}\nif f:\n    f.result()",  # noqa: E501
        f"class C:\n    def __init__(self):\n        self.f = None\n    def wait(self):\n        if self.f is not None:\n            self.f.result()\n            self.f = None\n"  # noqa: E501
        f"    def save(self):\n        self.wait()\n        self.f = {SAVE}\nc = C()\nfor i in range(3):\n    c.save()\nc.wait()",  # noqa: E501
        "r = dcp.async_save({'m': model.state_dict()}, checkpoint_id='c', async_stager=stager)\nr.upload_completion.result()",  # noqa: E501
        f"f = {SAVE}\nwhile not f.done():\n    pass",
        f"import atexit\nf = {SAVE}\natexit.register(lambda: f.result())",
        f"try:\n    f = {SAVE}\nfinally:\n    f.result()",
    ],
)  # fmt: skip
def test_every_way_to_await_a_save_is_seen(text: str) -> None:
    trace = program(f"stager = object()\n{text}\n", SHARDED)
    assert awaited(trace) and all(awaited(trace))


@pytest.mark.parametrize(
    "text",
    [
        SAVE,
        f"f = {SAVE}",
        f"for i in range(3):\n    f = {SAVE}\nf.result()",
        "r = dcp.async_save({'m': model.state_dict()}, checkpoint_id='c', async_stager=object())\nr.staging_completion.result()",  # noqa: E501
        f"f = {SAVE}\nif os.environ.get('WAIT'):\n    f.result()",
    ],
)
def test_a_save_that_may_never_be_awaited_is_seen(text: str) -> None:
    assert not all(awaited(program(text + "\n", SHARDED)))


def test_a_future_given_to_a_library_has_escaped() -> None:
    trace = program(f"from lib import keep\nf = {SAVE}\nkeep(f)\n", SHARDED)
    assert [e.of for e in trace.of(Escaped)] == [only(trace, AsyncSaved).future]


def test_the_group_of_a_save_is_the_one_created() -> None:
    trace = program(
        "pg = dist.new_group(backend='gloo')\ndcp.async_save({'m': model}, checkpoint_id='c', process_group=pg)\n",
        SHARDED,
    )
    created = only(trace, GroupCreated)
    assert created.backend == "gloo" and only(trace, AsyncSaved).group == created.group
