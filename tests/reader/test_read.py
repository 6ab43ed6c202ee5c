"""Whole programs, projects of several files, bad input, and source that has nothing to do with torch."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.errors import UserError
from pytorch_fsdp2_dcp.validate.events import (
    CollectiveCalled,
    DeviceSet,
    Exited,
    GroupDestroyed,
    GroupInitialised,
    MeshCreated,
    Saved,
    Sharded,
    SignalHandled,
)
from pytorch_fsdp2_dcp.validate.reader import mentions_api, read

from .programs import IMPORTS, MODEL, SHARDED, gave_up, only, program, traces

ROOT = Path(__file__).resolve().parents[2]


def test_launch_events_carry_what_is_written() -> None:
    trace = program(
        """
        import signal
        from torch.distributed.device_mesh import init_device_mesh
        dist.init_process_group(backend="cpu:gloo,cuda:nccl", device_id=torch.device("cuda:0"))
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        mesh = init_device_mesh("cuda", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
        signal.signal(signal.SIGTERM, lambda s, f: None)
        dist.destroy_process_group()
        """
    )
    init = only(trace, GroupInitialised)
    assert (init.backend, init.device_bound) == ("cpu:gloo,cuda:nccl", True)
    mesh = only(trace, MeshCreated)
    assert (mesh.device_type, mesh.shape, mesh.dims) == ("cuda", (2, None), ("dp", "tp"))
    assert only(trace, DeviceSet) and only(trace, SignalHandled) and only(trace, GroupDestroyed) and trace.ended


def test_the_entry_is_walked_through_the_modules_that_it_imports(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/__init__.py").write_text("from .parallel import shard_all\n")
    (tmp_path / "lib/model.py").write_text(IMPORTS + MODEL)
    (tmp_path / "lib/parallel.py").write_text(
        "from torch.distributed.fsdp import fully_shard as fs\n\ndef shard_all(m):\n    for b in m.blocks:\n        fs(b)\n    fs(m)\n"  # noqa: E501
    )
    (tmp_path / "train.py").write_text(
        "import lib.model\nfrom lib import shard_all\nif __name__ == '__main__':\n    net = lib.model.Net()\n    shard_all(net)\n"  # noqa: E501
    )
    reading = read(tmp_path / "train.py")
    block, root = reading.traces[0].of(Sharded)
    assert root.module.name == "net" and block.module.name == "net.blocks[*]"
    assert Path(root.at.file).name == "parallel.py" and root.at.line == 6
    assert len(reading.traces) == 1 and len(reading.files) == 4


def test_functions_that_the_entry_does_not_reach_are_read_alone() -> None:
    text = "def used():\n    dist.barrier()\ndef unused(model: nn.Module):\n    fully_shard(model)\nused()\n"
    entry, alone = traces(text)
    assert only(entry, CollectiveCalled) and entry.ended and not list(entry.of(Sharded))
    assert only(alone, Sharded) and not alone.ended and not list(alone.of(CollectiveCalled))


def test_methods_of_a_class_that_is_never_made_are_read_with_what_init_did() -> None:
    text = "class T:\n    def __init__(self):\n        self.m = nn.Linear(2, 2)\n    def go(self):\n        fully_shard(self.m)\n"  # noqa: E501
    assert only(traces(text)[-1], Sharded).module.name == "self.m"


def test_decorators_closures_generators_and_context_managers_are_walked() -> None:
    text = """
    import contextlib, functools
    def twice(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            dist.barrier()
            return f(*args, **kwargs)
        return inner
    @contextlib.contextmanager
    def group():
        dist.init_process_group("gloo")
        yield
        dist.destroy_process_group()
    @twice
    def save(state, *, path="c"):
        dcp.save(state, checkpoint_id=path)
    with group():
        save({"a": 1}, path="d")
    """
    trace = program(text)
    kinds = [type(e).__name__ for e in trace.events]
    assert kinds == ["GroupInitialised", "CollectiveCalled", "Saved", "GroupDestroyed", "Exited"]
    assert only(trace, Saved).target == "d"


def test_recursion_and_endless_loops_come_to_an_end() -> None:
    text = "def f(n):\n    g(n)\n    return f(n - 1)\ndef g(n):\n    dist.barrier()\n    f(n)\nf(10)\nwhile True:\n    f(1)\n"  # noqa: E501
    assert any("calls itself" in note.text for note in program(text).notes)


def test_a_program_that_is_too_large_says_so() -> None:
    nested = "".join(f"{'    ' * i}for i{i} in range(2):\n" for i in range(15)) + "    " * 15 + "dist.barrier()\n"
    many = (
        "".join(f"def f{i}():\n" + (f"    f{i - 1}()\n" * 3 if i else "    dist.barrier()\n") for i in range(12))
        + "f11()\n"
    )
    assert not gave_up(program(nested))
    trace = program(many)
    assert not trace.ended and any("too large" in note.text for note in trace.notes)


def test_the_end_of_the_process_is_seen_where_it_is() -> None:
    trace = program(
        "import sys\ndef main():\n    return 0\nif os.environ.get('X'):\n    sys.exit(0)\nsys.exit(main())\ndist.barrier()\n"  # noqa: E501
    )
    assert len(list(trace.of(Exited))) == 2 and not list(trace.of(CollectiveCalled))


@pytest.mark.parametrize(
    "content, message",
    [
        (b"x = (\n", "broken.py:1: does not parse"),
        (b"def f(:\n    pass\n", "broken.py:1: does not parse"),
        ("x = 1\ny = 'ü'\n".encode("latin-1"), "broken.py:2: not UTF-8"),
        (b"x = 1\0\n", "does not parse"),
        (b"(" * 5000 + b")" * 5000, "does not parse"),
    ],
)
def test_bad_input_is_one_line_that_says_where_and_what(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "broken.py").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read(tmp_path / "broken.py")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UserError, match="no such file"):
        read(Path("nowhere.py"))


@pytest.mark.parametrize(
    "source, expected",
    [
        (SHARDED.encode(), True),
        (b"import os\nprint('train')\n", False),
        (b"from own import build\nbuild().loss().backward()\nif __name__ == '__main__':\n    pass\n", True),
        (b"def step(model):\n    model.loss().backward()\n", False),
    ],
)
def test_files_that_mention_no_api_are_told_apart_by_their_bytes(source: bytes, expected: bool) -> None:
    assert mentions_api(source) is expected


@pytest.mark.parametrize(
    ("mark", "library", "found"),
    [
        ("pyproject.toml", "lib", True),
        ("setup.py", "src/lib", True),
        (".git", "lib", True),
        ("README.md", "lib", False),  # nothing says that they belong together
        ("scripts/pyproject.toml", "lib", False),  # a project of its own
    ],
)
def test_modules_are_found_from_the_root_of_the_project(
    mark: str, library: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script in a folder of its own uses the package beside it, which is installed, or on the path of its author."""
    for folder in ("scripts", library):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / mark).touch()
    (tmp_path / library / "__init__.py").touch()
    (tmp_path / library / "parallel.py").write_text(
        "from torch.distributed.fsdp import fully_shard\n\n\ndef shard(model):\n    fully_shard(model)\n"
    )
    (tmp_path / "scripts/train.py").write_text(
        "from torch import nn\nfrom lib.parallel import shard\n\nmodel = nn.Linear(2, 2)\nshard(model)\n"
    )
    for folder, script in ((".", "scripts/train.py"), ("scripts", "train.py")):
        monkeypatch.chdir(tmp_path / folder)
        trace = read(Path(script)).traces[0]
        assert [sharded.at.line for sharded in trace.of(Sharded)] == [5] * found


def test_a_library_of_the_project_leaves_room_for_the_program(tmp_path: Path) -> None:
    """What has nothing to do with it is not read, nor is more of the rest than leaves room for its own."""
    (tmp_path / "pyproject.toml").touch()
    for folder in ("lib", "scripts"):
        (tmp_path / folder).mkdir()
    imports = []
    for number in range(100):
        (tmp_path / f"lib/plain_{number}.py").write_text("X = 1\n")
        (tmp_path / f"lib/part_{number}.py").write_text(IMPORTS)
        imports += [f"import lib.plain_{number}", f"import lib.part_{number}"]
    (tmp_path / "scripts/own.py").write_text("X = 1\n")
    (tmp_path / "scripts/train.py").write_text("\n".join([*imports, "import own"]))
    reading = read(tmp_path / "scripts/train.py")
    names = {Path(name).name for name in reading.files}
    assert "own.py" in names and not any(name.startswith("plain") for name in names)
    assert len(names) < 60
    assert str(tmp_path / "lib/plain_3.py") in reading.consulted.files  # it may be of use once it is changed


def test_what_is_installed_is_no_project(tmp_path: Path) -> None:
    package = tmp_path / ".venv/lib/python3/site-packages/lib"
    package.mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "helpers.py").write_text(IMPORTS)
    (package / "train.py").write_text("import helpers\n")
    assert read(package / "train.py").files == (str(package / "train.py"),)


def test_reading_imports_neither_torch_nor_the_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHARDED + "raise SystemExit('the program was run')\n")
    code = (
        f"import runpy, sys; m = runpy.run_path({str(ROOT / '__main__.py')!r}); m['register']()\n"
        "from pathlib import Path\nfrom pytorch_fsdp2_dcp.validate.reader import read\n"
        f"read(Path({str(tmp_path / 'train.py')!r}))\nassert not {{'torch', 'jinja2', 'train'}} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["argparse.py", "contextlib.py", "dataclasses.py", "asyncio/base_events.py", "json/decoder.py", "typing.py"]
)
def test_the_standard_library_is_read_without_a_surprise(name: str) -> None:
    for trace in read(Path(sysconfig.get_path("stdlib")) / name).traces:
        assert not gave_up(trace)
        assert not list(trace.of(Sharded))


def test_workers_of_ray_have_devices_of_their_own() -> None:
    text = "dist.init_process_group('nccl')\ndist.barrier()\n"
    assert not list(program(text).of(DeviceSet))
    assert only(program("import ray\n" + text), DeviceSet)
