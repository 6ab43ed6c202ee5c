"""Hostile metadata: nothing in it runs, the refusal names what it tried, and it costs neither memory nor time."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytorch_fsdp2_dcp.validate.checkpoint.digest import digest
from pytorch_fsdp2_dcp.validate.checkpoint.folders import open_folder
from pytorch_fsdp2_dcp.validate.checkpoint.layouts import survey
from pytorch_fsdp2_dcp.validate.checkpoint.metadata import read_metadata
from pytorch_fsdp2_dcp.validate.checkpoint.pickles import Damaged, Refused, Vocabulary, load
from pytorch_fsdp2_dcp.validate.checkpoint.show import as_json, text
from pytorch_fsdp2_dcp.validate.errors import UserError

from ..commands import assert_refused, fsdp2

METADATA = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
TENSOR = b"ctorch.distributed.checkpoint.metadata\nTensorProperties\n"
NOTHING = Vocabulary(functions={})


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


def pushed(word: str) -> bytes:
    """The opcode that pushes a short text."""
    return b"\x8c" + bytes([len(word)]) + word.encode()


TOUCH = "touch marker"
ATTACKS = {
    "a call, protocol 2": (pickle.dumps(Call(os.system, TOUCH), 2), "posix.system"),
    "a call, protocol 5": (pickle.dumps(Call(os.system, TOUCH), 5), "posix.system"),
    "eval": (pickle.dumps(Call(eval, "__import__('os').system('touch marker')")), "builtins.eval"),
    "in a key of a nested mapping": (pickle.dumps({"a": [{(Call(os.system, TOUCH),): 1}]}), "posix.system"),
    "getattr": (pickle.dumps(Call(getattr, 1, "real")), "builtins.getattr"),
    "a program": (pickle.dumps(Call(subprocess.Popen, ["touch", "marker"])), "subprocess.Popen"),
    "copyreg": (
        b"\x80\x02ccopyreg\n_reconstructor\n(cos\nsystem\nc__builtin__\nobject\nNtR.",
        "copyreg._reconstructor",
    ),
    "copyreg newobj": (
        b"\x80\x04" + pushed("copyreg") + pushed("__newobj__") + b"\x93(" + METADATA + b"tR.",
        "copyreg.__newobj__",
    ),
    "a dotted name": (
        b"\x80\x04" + pushed("torch.distributed.checkpoint.metadata") + pushed("os.system") + b"\x93.",
        "os.system",
    ),
    "through an allowed module": (b"ctorch\nload\n(X\x01\x00\x00\x00xtR.", "torch.load"),
    "INST": (b"(" + b"X\x0c\x00\x00\x00" + TOUCH.encode() + b"ios\nsystem\n.", "os.system"),
    "INST of an allowed class": (b"(itorch.distributed.checkpoint.metadata\nMetadata\n.", "INST"),
    "OBJ": (b"(" + METADATA + b"o.", "OBJ"),
    "OBJ of a function": (b"(cos\nsystem\nX\x0c\x00\x00\x00" + TOUCH.encode() + b"o.", "os.system"),
    "an extension code": (b"\x80\x02\x82\x01.", "EXT1"),
    "NEWOBJ_EX": (METADATA + b")}\x92.", "NEWOBJ_EX"),
    "NEWOBJ of a function": (b"ctorch\nSize\n)\x81.", "torch.Size"),
    "a call of a class": (METADATA + b")R.", "Metadata"),
    "a call of an object": (METADATA + b")\x81)R.", "Record"),
    "BUILD of a class": (METADATA + b"N}X\x0c\x00\x00\x00__setstate__cos\nsystem\ns\x86b.", "os.system"),
    "BUILD of a class, plain": (METADATA + b"}b.", "Metadata"),
    "BUILD of a mapping": (b"}}b.", "dict"),
    "a persistent id": (b"X\x01\x00\x00\x00aQ.", "BINPERSID"),
    "a persistent id as text": (b"Pa\n.", "PERSID"),
    "out-of-band buffers": (b"\x80\x05\x97.", "NEXT_BUFFER"),
    "an unknown opcode": (b"\xff.", "0xff"),
    "a newer protocol": (b"\x80\x09N.", "protocol 9"),
}
DAMAGES = {
    "nothing": b"",
    "no end": b"N",
    "no stack": b".",
    "a frame of 2**63 bytes": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
    "bytes of 2**62": b"\x8e" + (2**62).to_bytes(8, "little") + b"x.",
    "text of 2**62": b"\x8d" + (2**62).to_bytes(8, "little") + b"x.",
    "a number of 2**31 bytes": b"\x8b\xff\xff\xff\x7f.",
    "a memo index of 2**32": b"Nr\xff\xff\xff\xff.",
    "a memo index that was never put": b"j\xff\xff\x00\x00.",
    "no mark": b"NNt.",
    "items of a list": b"]NNs.",
    "a list as a key": b"}]Ns.",
    "a state that is no mapping": METADATA + b")\x81]b.",
    "properties of a state that is no tuple": TENSOR + b")\x81X\x01\x00\x00\x00ab.",
    "a size of negative numbers": b"ctorch\nSize\n(J\xff\xff\xff\xfft\x85R.",
    "another object": b"N.",
    "metadata without its state": METADATA + b")\x81.",
    "no pickle": b"PK\x03\x04 this is a zip",
}


@pytest.mark.parametrize(("data", "asked"), ATTACKS.values(), ids=ATTACKS)
def test_hostile_metadata_is_refused_by_the_name_of_what_it_tried(
    data: bytes, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(data)
    with pytest.raises(Refused) as refused:
        read_metadata(open_folder(str(tmp_path)))
    assert asked in str(refused.value)
    assert not (tmp_path / "marker").exists()


def test_an_attack_does_run_where_python_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes, so that the test above is known to test something."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(ATTACKS["a call, protocol 2"][0])
    assert (tmp_path / "marker").exists()


@pytest.mark.parametrize("data", DAMAGES.values(), ids=DAMAGES)
def test_damaged_metadata_is_one_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(data)
    with pytest.raises((Damaged, Refused)) as damaged:
        read_metadata(open_folder(str(tmp_path)))
    assert "\n" not in str(damaged.value)


def test_a_key_that_nests_exponentially_is_refused_at_once() -> None:
    """Hashing it would take until the end of the world."""
    nested = b"N" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60))
    with pytest.raises(Damaged):
        load(b"}" + nested + b"Ns.", NOTHING)


def test_nesting_without_end_neither_crashes_nor_recurses() -> None:
    assert load(b"]" * 200_000 + b"a" * 199_999 + b".", NOTHING) is not None


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_come_out_as_they_went_in(protocol: int) -> None:
    shared = ["again"]
    value = {
        **{"none": None, "bool": [True, False], "int": [0, 255, 256, 65536, -1, 2**31, -(2**40), 2**200], "float": 0.1},
        **{"text": ["", "é", "x" * 300], "tuple": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), ("a", 1): {}},
        **{"shared": [shared, shared], 3: "three"},
    }
    if protocol > 2:
        value["bytes"] = [b"", b"y" * 300]
    if protocol > 3:
        value["set"] = {1, 2}
    assert load(pickle.dumps(value, protocol), NOTHING) == value


def test_the_python_pickler_is_understood_too() -> None:
    value = {"a": [1, (2, 3)], "b": "text"}
    assert load(pickle._dumps(value, 2), NOTHING) == value  # type: ignore[attr-defined]


def test_whatever_bytes_are_flipped_the_outcome_is_a_value_or_one_error(tmp_path: Path) -> None:
    """Over the metadata and the data of a real checkpoint, inspected in full."""
    torch = pytest.importorskip("torch")
    from .saves import save

    folder = save(
        tmp_path / "a", {"m": {"w": torch.randn(4, 4), "t": torch.randn(3, 2).t()}, "o": [1, {"x": (0.5,)}]}, files=1
    )
    generator = random.Random(0)
    for name in (".metadata", "__0_0.distcp"):
        whole = (folder / name).read_bytes()
        outcomes = set()
        for _ in range(150):
            data = bytearray(whole)
            for _ in range(generator.randrange(1, 4)):
                data[generator.randrange(len(data))] = generator.randrange(256)
            (folder / name).write_bytes(
                data[: generator.choice([len(data), len(data), generator.randrange(len(data))])]
            )
            outcomes.add(outcome(folder))
        (folder / name).write_bytes(whole)
        assert outcomes == {"read", "refused"}


def outcome(folder: Path) -> str:
    try:
        found = survey(open_folder(str(folder)))
        (checkpoint,) = found.checkpoints
        assert checkpoint.contents is not None
        text(checkpoint, None, {}, every=True, tables=True)
        json.dumps(as_json(checkpoint, None, None, values=True))
        for tensor in checkpoint.contents.tensors.values():
            if tensor.elements < 1000:
                digest(checkpoint.folder, tensor)
    except UserError as error:
        assert str(error).isprintable()
        return "refused"
    return "read"


def test_numbers_too_large_to_print_are_one_error(tmp_path: Path) -> None:
    torch_metadata = pytest.importorskip("torch.distributed.checkpoint.metadata")
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    huge = 10**5000
    for version, paths, place in (
        *(("9" * 5000, {}, (0, 1)), (huge, {}, (0, 1)), ("1", {"step": ("a", huge)}, (0, 1)), ("1", {}, (huge, 1))),
        *(("1", {}, (-huge, 1)), ("1", {}, (0, huge))),
    ):
        metadata = torch_metadata.Metadata(
            {"step": torch_metadata.BytesStorageMetadata()},
            paths,
            {torch_metadata.MetadataIndex("step"): _StorageInfo("__0_0.distcp", *place)},
            version=version,
        )
        (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
        outcome(tmp_path)


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(ATTACKS["a call, protocol 5"][0])
    assert_refused(fsdp2("inspect", ".", cwd=tmp_path), ".metadata", "posix.system", "nothing was executed")
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "a\0b"])
def test_a_file_outside_the_folder_is_refused_and_never_read(name: str, tmp_path: Path) -> None:
    torch_metadata = pytest.importorskip("torch.distributed.checkpoint.metadata")
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    metadata = torch_metadata.Metadata(
        {"step": torch_metadata.BytesStorageMetadata()},
        storage_data={torch_metadata.MetadataIndex("step"): _StorageInfo(name, 0, 1)},
    )
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(Damaged, match="not in the folder; it was not read"):
        read_metadata(open_folder(str(tmp_path)))


def test_reading_metadata_imports_no_torch(tmp_path: Path) -> None:
    from .saves import save

    save(tmp_path / "saved", {"step": 1})
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    process = fsdp2("inspect", "saved", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert process.returncode == 0, process.stderr
    assert "step: 1" in process.stdout
    assert sys.modules.get("torch") is not None  # here it is; there it was not
