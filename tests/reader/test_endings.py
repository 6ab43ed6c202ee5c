"""Where the reader takes a process group to be destroyed."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.rules import judge

from .programs import traces

START = """
import atexit, contextlib, sys
import torch.distributed as dist
import library
dist.init_process_group("gloo")
"""


def left(text: str) -> bool:
    """Whether the rule finds a group that is left at the end."""
    return [f.code for f in judge(traces(text, START))] == ["FS105"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sys.exit(0)",
        "library.train()",
        "with library.run() as run:\n    run.step()",
        "dist.destroy_process_group(g)",
        "file = open('log')\nfile.close()",
    ],
)
def test_a_group_is_left_at_the_end(text: str) -> None:
    assert left(text)


@pytest.mark.parametrize(
    "text",
    [
        "dist.destroy_process_group()",
        "if rank == 0:\n    dist.destroy_process_group()",
        "try:\n    library.train()\nfinally:\n    dist.destroy_process_group()",
        "atexit.register(dist.destroy_process_group)",
        "class Run:\n    def __enter__(self): return self\n    def __exit__(self, *_): dist.destroy_process_group()\n"
        "with Run():\n    pass",
        "@contextlib.contextmanager\ndef run():\n    yield\n    dist.destroy_process_group()\nwith run():\n    pass",
        "library.cleanup()",
        "from library.setup import shutdown_distributed\nshutdown_distributed()",
        "run = library.start()\nrun.teardown()",
    ],
)
def test_a_group_is_destroyed_or_may_be(text: str) -> None:
    assert not left(text)


def test_a_function_that_others_call_leaves_the_end_to_them() -> None:
    start = "import torch.distributed as dist\n"
    assert judge(traces("def setup():\n    dist.init_process_group('gloo')", start)) == []
