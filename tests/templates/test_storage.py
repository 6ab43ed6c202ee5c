"""Scripts with `storage` fsspec: the same run, with its checkpoints behind a URI, on a real S3 API above all."""

from __future__ import annotations

import importlib.util
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pytorch_fsdp2_dcp.templates.options import answer
from pytorch_fsdp2_dcp.templates.render import render

torch = pytest.importorskip("torch")
fsspec = pytest.importorskip("fsspec")
from .faults import wait_for  # noqa: E402
from .loaded import joined, load_script, parse  # noqa: E402
from .training import DEADLINE, Training, kill_all, write_script  # noqa: E402

SERVER = ("moto", "flask", "flask_cors", "s3fs")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URI of an empty bucket, on the loopback; processes started from now on find it."""
    if absent := [name for name in SERVER if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(absent)}")
    from moto.server import ThreadedMotoServer

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSSPEC_S3_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        patch.setenv("FSSPEC_S3_KEY", "key")
        patch.setenv("FSSPEC_S3_SECRET", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.config.set_conf_env(fsspec.config.conf)
        fsspec.filesystem("s3").mkdir("s3://bucket")
        yield "s3://bucket"
    server.stop()


def objects(uri: str) -> list[str]:
    """The names of all objects below a URI, relative to it."""
    files, path = fsspec.core.url_to_fs(uri)
    files.invalidate_cache()
    return sorted(name.removeprefix(path).lstrip("/") for name in files.find(path))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """The uninterrupted run of a script that saves in a folder."""
    folder = tmp_path_factory.mktemp("local")
    training = Training(write_script(folder), folder / "straight")
    training.finish()
    return training


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("async_mode", ["disabled", "async", "async_with_pinned_mem"])
def test_a_run_on_s3_that_is_killed_ends_as_one_in_a_folder_that_was_not(
    tmp_path: Path, bucket: str, local: Training, async_mode: str
) -> None:
    """Its newest two checkpoints are whole, and no object of any other is left; one that was broken is passed over."""
    uri = f"{bucket}/{async_mode}/run"
    options = {"--checkpoint-dir": f"{uri}/", "--keep-latest": "2"}
    script = write_script(tmp_path, async_mode=async_mode, storage="fsspec")
    training = Training(script, tmp_path / "run", options=options)
    with training.started() as process:
        training.wait_for_step(9, process)
        kill_all(process)
    wait_for(lambda: "step-4/.metadata" in objects(uri), DEADLINE)
    assert training.finish() == local.records()
    files = (".metadata", "__0_0.distcp", "__1_0.distcp")
    assert objects(uri) == sorted(f"{step}/{file}" for step in ("step-8", "step-12") for file in files)
    fsspec.filesystem("s3").rm(f"{uri}/step-12/__1_0.distcp")
    process = training.run()
    assert process.returncode == 0 and "from step 8 to 12" in process.stdout, process.stderr
    assert f"{uri}/step-12 is passed over, for it is not whole: __1_0.distcp is missing" in process.stderr
    assert training.records() == local.records()
    assert len(objects(uri)) == 6


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_script(tmp_path_factory.mktemp("script"), storage="fsspec")


@pytest.fixture(params=["memory://run", "file", "folder", "s3"])
def checkpointer(
    request: pytest.FixtureRequest, train: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Any]:
    """Of a world of one rank, in storage of several kinds."""
    kinds = {"file": f"file://{tmp_path}/run", "folder": str(tmp_path / "run")}
    uri = kinds.get(request.param, request.param)
    if uri == "s3":
        uri = f"{request.getfixturevalue('bucket')}/{tmp_path.name}"
    with joined():
        args = parse(train, monkeypatch, world=1, checkpoint_dir=uri)
        cpu = torch.device("cpu")
        model = train.build_model_meta(args, train.build_mesh(args, cpu), cpu)
        state = train.TrainState(model, *train.build_optimizer(model, args))
        yield train.Checkpointer(args.checkpoint_dir, 2, "a run", state, train.RankState(cpu))
    if uri.startswith("memory:"):
        fsspec.filesystem("memory").rm("/run", recursive=True)


def save(checkpointer: Any, step: int) -> str:
    checkpointer.train.step = step
    checkpointer.save()
    checkpointer.wait()
    return f"{checkpointer.folder}/step-{step}"


@pytest.mark.slow
def test_what_holds_in_a_folder_holds_behind_a_uri(
    checkpointer: Any, train: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest whole one is found; a broken one is named, then replaced; one that is whole is never overwritten."""
    assert not checkpointer.found()
    checkpointer.resume(0)
    assert checkpointer.train.step == 0
    for step in (8, 9, 10):
        save(checkpointer, step)
    assert [uri.rpartition("/")[2] for uri in checkpointer.found()] == ["step-10", "step-9"]
    newest = save(checkpointer, 11)
    files, _ = fsspec.core.url_to_fs(newest)
    files.pipe_file(f"{newest}/.metadata", files.cat_file(f"{newest}/.metadata")[:-9])
    checkpointer.resume(0)
    assert checkpointer.train.step == 10
    (line,) = capsys.readouterr().err.splitlines()
    assert newest in line and "not whole" in line
    save(checkpointer, 11)
    data = f"{newest}/__0_0.distcp"
    content = files.cat_file(data)
    files.pipe_file(data, content[:-1])
    assert train.read_whole(newest) == (None, "__0_0.distcp is cut short")
    files.pipe_file(data, content)
    with pytest.raises(FileExistsError, match="never overwritten"):
        checkpointer.save()


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("nosuch://place", "Protocol not known: nosuch"),
        ("memory://run", "--checkpoint-dir where all processes find it"),
    ],
)
def test_a_uri_that_cannot_serve_is_refused_before_the_ranks_meet(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], uri: str, words: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(train, monkeypatch, checkpoint_dir=uri)
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2 and words in line and "expected" in line


@pytest.mark.parametrize(("uri", "package"), [("run", "fsspec"), ("absent://run", "no_such_package")])
def test_a_package_that_is_missing_is_named(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], uri: str, package: str
) -> None:
    """That of all storage, or the one that a protocol needs."""
    fsspec.register_implementation("absent", "no_such_package.Files", errtxt="install no_such_package", clobber=True)
    if package == "fsspec":
        monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(SystemExit) as caught:
        parse(train, monkeypatch, checkpoint_dir=uri)
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2 and package in line and "expected" in line


def test_only_a_script_that_asks_for_it_knows_of_fsspec() -> None:
    for async_mode in ("disabled", "async", "async_with_pinned_mem"):
        assert "fsspec" not in render(answer({"async_mode": async_mode}))
        script = render(answer({"async_mode": async_mode, "storage": "fsspec"}))
        assert not re.search(r"^(import|from) .*fsspec", script, re.MULTILINE), "at import, where it may be missing"
        assert "shutil" not in script
