"""Which directories the reader knows to be the same one each time."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import DirectoryRemoved, FilesMoved, Loaded, PointerWritten, Saved

from .programs import IMPORTS, SHARDED, only, program

SETTINGS = """
import argparse
import shutil
from pathlib import Path
args = argparse.ArgumentParser().parse_args()
folder = os.environ["FOLDER"]
root = Path(folder)
name = str(root / "last")
counter = 0
"""


@pytest.mark.parametrize(
    "path, same",
    [
        ("'c'", True),
        ("args.folder", True),
        ("os.path.join(args.folder, 'last')", True),
        ("f'{args.folder}/last'", True),
        ("args.folder + '/last'", True),
        ("root / 'last'", True),
        ("name", True),
        ("os.environ.get('FOLDER', 'c')", True),
        ("f'c/{step}'", False),
        ("root / str(step)", False),
        ("f'c/{counter}'", False),
        ("os.path.join(args.folder, f'{step % 2}')", False),
        ("trainer.where", False),
        ("trainer.where()", False),
        ("args.trainer.where()", False),
    ],
)
def test_a_directory_is_known_by_what_it_is_made_of(path: str, same: bool) -> None:
    text = f"""{SETTINGS}
for step in range(10):
    counter += 1
    dcp.save({{"model": model}}, checkpoint_id={path})
"""
    first, second = program(text, SHARDED).of(Saved)
    assert ((first.target or first.place) is not None and first.place == second.place) is same


def test_a_writer_has_its_directory_unless_it_keeps_what_is_there() -> None:
    text = """
from torch.distributed.checkpoint import FileSystemWriter
for step in range(10):
    dcp.save({"model": model}, storage_writer=FileSystemWriter("c"))
    dcp.save({"model": model}, storage_writer=FileSystemWriter("c", overwrite=False))
"""
    assert [s.place for s in program(text, SHARDED).of(Saved)] == ["c", None, "c", None]


def test_what_moves_files_is_told() -> None:
    text = f"{SETTINGS}\nos.replace('a', 'b')\nroot.rename('d')\nshutil.move('a', 'b')\n(root / 'x').symlink_to('y')\n"
    assert len(list(program(text, SHARDED).of(FilesMoved))) == 4


@pytest.mark.parametrize(
    "saved, removed, same",
    [
        ("f'c/{step}'", "'c/' + str(step)", True),
        ("root / str(step)", "Path(root / str(step))", True),
        ("f'c/{step}'", "f'c/{step - 1}'", False),
        ("args.folder", "args.folder", True),
        ("args.folder", "args.other", False),
        ("kept[-1]", "kept[0]", False),
    ],
)
def test_which_directory_is_removed(saved: str, removed: str, same: bool) -> None:
    body = f"dcp.save({{}}, checkpoint_id={saved})\n    shutil.rmtree({removed})"
    text = f"{SETTINGS}\nkept = []\nfor step in range(9):\n    kept.append(root / str(step))\n    {body}"
    trace = program(text)
    saves, gone = next(trace.of(Saved)).pieces, next(trace.of(DirectoryRemoved)).pieces
    assert (bool(gone) and saves == gone) is same


@pytest.mark.parametrize(
    "write, points",
    [
        ("(root / 'latest').write_text(name)", True),
        ("open(f'{folder}/latest.txt', 'w').write(name)", True),
        ("os.symlink(name, os.path.join(folder, 'latest'))", True),
        ("(root / 'current').symlink_to(name)", True),
        ("os.replace(name, os.path.join(folder, 'last'))", True),
        ("open(f'{folder}/latest.txt').write(name)", False),
        ("open(f'{folder}/log.txt', 'w').write(name)", False),
        ("(root / 'lastly').write_text(name)", False),
    ],
)
def test_what_says_which_checkpoint_is_the_newest(write: str, points: bool) -> None:
    assert any(program(f"{SETTINGS}\n{write}").of(PointerWritten)) is points


@pytest.mark.parametrize("imported", ["from unittest import mock", "from unittest.mock import patch", ""])
def test_what_a_test_may_have_replaced_is_not_judged(imported: str) -> None:
    """Elsewhere a save without a directory raises, and a load into an empty dictionary reads nothing."""
    trace = program(f"{imported}\ndcp.save({{'a': 1}})\ndcp.load({{}}, checkpoint_id='c')\n", IMPORTS)
    assert only(trace, Saved).located is bool(imported)
    assert only(trace, Loaded).entries == (None if imported else ())
