"""The futures of asynchronous saves, wherever a program keeps them."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import AsyncSaved, Awaited, Choice, Escaped, GroupCreated
from pytorch_fsdp2_dcp.validate.trace import Trace

from .programs import SHARDED, only, program, traces

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


@pytest.mark.parametrize(
    ("stager", "staged"),
    [
        ("DefaultStager()", True),
        ("DefaultStager(StagingOptions(use_shared_memory=False))", True),
        ("DefaultStager(StagingOptions(False, False, False))", False),
        ("DefaultStager(StagingOptions(use_async_staging=bool(os.environ.get('BACKGROUND'))))", False),
        ("BlockingAsyncStager()", False),
        ("None", False),
        ("object()", False),
    ],
)
def test_a_stager_that_works_in_the_background_is_known(stager: str, staged: bool) -> None:
    """The staging is named only where it is certain; it ends by its future or by the stager."""
    text = f"""
    from torch.distributed.checkpoint.staging import BlockingAsyncStager, DefaultStager, StagingOptions
    stager = {stager}
    r = dcp.async_save({{'m': model}}, checkpoint_id='c', async_stager=stager)
    r.staging_completion.result()
    stager.synchronize_staging()
    """
    trace = program(text, SHARDED)
    staging = only(trace, AsyncSaved).staging
    assert (staging is not None) is staged
    if staged:
        assert [a.future for a in trace.of(Awaited)] == [staging, staging]


def test_a_response_given_to_a_library_takes_its_futures_along() -> None:
    trace = program(
        "from torch.distributed.checkpoint.staging import DefaultStager\nfrom lib import keep\n"
        "keep(dcp.async_save({'m': model}, checkpoint_id='c', async_stager=DefaultStager()))\n",
        SHARDED,
    )
    saved = only(trace, AsyncSaved)
    assert {e.of for e in trace.of(Escaped)} == {saved.future, saved.staging}


@pytest.mark.parametrize(
    ("start", "imported"),
    [
        ("save()", True),
        ("if __name__ == '__main__':\n    save()", False),
        ("if '__main__' == __name__ and os.environ:\n    save()", False),
        ("", None),
    ],
)
def test_whether_an_import_leads_to_a_save_is_told_apart(start: str, imported: bool | None) -> None:
    text = (
        "from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType as T\n"
        f"def save():\n    dcp.async_save({{'m': 1}}, checkpoint_id='c', async_checkpointer_type=T.PROCESS)\n{start}\n"
    )
    (saved,) = [e for trace in traces(text) for e in trace.of(AsyncSaved)]
    assert (saved.process, saved.imported) == (True, imported)
