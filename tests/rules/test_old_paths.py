"""FS906: what the project's own pin says of the public path."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import Location, OldPathUsed
from pytorch_fsdp2_dcp.validate.reader import read
from pytorch_fsdp2_dcp.validate.rules import judge

OLD = "from torch.distributed._composable.fsdp import fully_shard\n"


@pytest.mark.parametrize(("pin", "found"), [("2.4", []), ("2.5", []), ("2.6", ["FS906"]), ("2.13", ["FS906"])])
def test_an_older_torch_may_not_have_the_public_path(tmp_path: Path, pin: str, found: list[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(OLD)
    assert [f.code for f in judge(read(path, torch=pin).traces)] == found
    (tmp_path / "pyproject.toml").write_text(f'[project]\ndependencies = ["torch>={pin}"]\n')
    assert [f.code for f in judge(read(path).traces)] == found


def test_the_event_names_both_paths(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(OLD)
    (event,) = read(path).traces[0].of(OldPathUsed)
    assert (event.at, event.public, event.names) == (
        Location(str(path), 1),
        "torch.distributed.fsdp",
        ("fully_shard",),
    )
