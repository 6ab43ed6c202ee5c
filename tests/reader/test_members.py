"""Groups of meshes, and what a save over one of them misses."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import Saved

from .programs import IMPORTS, MODEL, only, program

START = (
    IMPORTS
    + MODEL
    + """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("outer", "inner"))
model = Net()
"""
)


@pytest.mark.parametrize(
    ("sharded_over", "group", "misses"),
    [
        ("mesh", "mesh.get_group('outer')", True),
        ("mesh", "mesh.get_group(0)", True),
        ("mesh", "mesh['outer'].get_group()", True),
        ("mesh", "mesh['inner'].get_group()", None),
        ("mesh", "mesh.get_group(1)", None),
        ("mesh", "None", None),
        ("mesh", "dist.new_group()", None),
        ("mesh", "load().get_group('outer')", None),
        ("mesh['outer']", "mesh.get_group('outer')", None),
        ("mesh['outer']", "mesh.get_group('inner')", True),
        ("load()", "mesh.get_group('outer')", None),
    ],
)
def test_whose_shards_are_missed(sharded_over: str, group: str, misses: bool | None) -> None:
    text = f"fully_shard(model, mesh={sharded_over})\ngroup = {group}"
    save = "dcp.save({'model': model}, checkpoint_id='c', process_group=group)"
    assert only(program(f"{text}\n{save}", START), Saved).misses is misses


@pytest.mark.parametrize("path", ["f'c/{dist.get_rank()}'", "f'c/{mesh[\"inner\"].get_local_rank()}'"])
def test_directories_of_the_ranks_are_told_apart(path: str) -> None:
    text = f"fully_shard(model, mesh=mesh)\npath = {path}"
    save = "dcp.save({'model': model}, checkpoint_id=path, process_group=mesh.get_group('outer'))"
    assert only(program(f"{text}\n{save}", START), Saved).misses is None
