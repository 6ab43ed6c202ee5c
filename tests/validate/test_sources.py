"""Which files the paths on the command line mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.errors import UserError
from pytorch_fsdp2_dcp.validate.sources import decode, find_sources


def names(*paths: Path) -> list[str]:
    return [Path(source.name).name for source in find_sources([str(p) for p in paths])]


def test_a_folder_means_the_python_files_below_it_but_not_those_of_environments_and_caches(tmp_path: Path) -> None:
    for file in ("b.py", "a/c.py", "notes.txt", ".hidden/d.py", "build/e.py", "env/pyvenv.cfg", "env/lib/f.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert names(tmp_path) == ["c.py", "b.py"]


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.touch()
    assert names(file, tmp_path) == ["a.py"]


def test_a_file_that_is_named_need_not_end_in_py(tmp_path: Path) -> None:
    file = tmp_path / "train"
    file.touch()
    assert names(file) == ["train"]


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        names(tmp_path / "gone")


def test_a_folder_without_python_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="no Python files"):
        names(tmp_path)


def test_what_is_not_utf8_is_an_error_that_names_the_line() -> None:
    with pytest.raises(UserError, match=r"a\.py:2: not UTF-8 \(byte 0xe9\)"):
        decode("a.py", b"x = 1\n# caf\xe9\n")


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert decode("a.py", b"\xef\xbb\xbfx = 1") == "x = 1"
