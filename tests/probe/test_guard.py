"""Whether an import of the main module would lead to a frame, told from its source."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from types import FrameType

import pytest
from pytorch_fsdp2_dcp.validate.probe.guard import reached_by_import

PROGRAM = """
import sys

def here():
    frames.append(sys._getframe())

{start}
"""


@pytest.mark.parametrize(
    ("name", "start", "reached"),
    [
        ("train.py", "here()", True),
        ("train.py", "if True:\n    here()", True),
        ("train.py", 'if __name__ == "__main__":\n    here()', False),
        ("train.py", 'if "__main__" == __name__ and frames is not None:\n    print("starts")\n    here()', False),
        ("__main__.py", "here()", None),
    ],
)
def test_a_place_below_the_question_for_the_name_is_not_reached(
    name: str, start: str, reached: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / name
    script.write_text(PROGRAM.format(start=start))
    main = types.ModuleType("__main__")
    frames: list[FrameType] = []
    vars(main)["frames"] = frames
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(script.read_text(), str(script), "exec"), vars(main))
    assert reached_by_import(frames[0]) is reached


def test_a_frame_that_the_main_module_did_not_call_is_not_judged() -> None:
    assert reached_by_import(None) is None
