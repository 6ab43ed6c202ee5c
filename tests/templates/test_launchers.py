"""The files that start a generated script: their text, and real runs by all but Kubernetes."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pytorch_fsdp2_dcp.templates.launchers import LAUNCH, LAUNCHERS, launch_name, render_launcher
from pytorch_fsdp2_dcp.templates.mesh import parse_mesh
from pytorch_fsdp2_dcp.templates.options import OPTIONS, answer
from pytorch_fsdp2_dcp.templates.render import version

from ..commands import SKILL, assert_refused, fsdp2
from ..runs import alive
from .launched import SCRIPT, ends_well, parent_of, rank_of, started, write_launched
from .training import DEADLINE, Training

MESHES = ("dp_shard=-1", "dp_shard=2", "dp_replicate=3,dp_shard=-1", "dp_replicate=2,dp_shard=6", "dp_shard=2,tp=2")
LONG = {"--steps": "100"}  # some seconds: killed after its first checkpoint, a run has not ended
BASH = [name for name, launcher in LAUNCHERS.items() if launcher.suffix.endswith(".sh")]


def launch_file(launcher: str, mesh: str = "dp_shard=-1", script: str = SCRIPT) -> str:
    return render_launcher(answer({"launcher": launcher, "mesh": mesh}), script)


def test_every_value_of_the_option_has_a_launch_file_and_every_template_is_one() -> None:
    (option,) = (option for option in OPTIONS if option.name == "launcher")
    assert option.values == ("none", *LAUNCHERS)
    assert {launcher.template for launcher in LAUNCHERS.values()} == {path.name for path in LAUNCH.iterdir()}


@pytest.mark.parametrize("launcher", BASH)
def test_bash_files_parse_and_shellcheck_finds_nothing(launcher: str, tmp_path: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    for number, mesh in enumerate(MESHES):
        file = tmp_path / f"{number}.sh"
        file.write_text(launch_file(launcher, mesh))
        for command in (["bash", "-n"], [shellcheck, "--severity", "style"]):
            process = subprocess.run([*command, file], capture_output=True, text=True, check=False)
            assert process.returncode == 0, process.stdout + process.stderr


def test_shellcheck_finds_what_is_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "bad.sh"
    file.write_text(launch_file("torchrun").replace('"$@"', "$@"))
    assert subprocess.run([Path(sys.executable).with_name("shellcheck"), file], capture_output=True).returncode == 1


@pytest.mark.parametrize("mesh", ["dp_shard=-1", "dp_shard=2"])
def test_the_ray_file_is_clean_and_formatted(mesh: str, tmp_path: Path) -> None:
    file = tmp_path / "train.ray.py"
    file.write_text(launch_file("ray", mesh, "train.py"))
    for arguments in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--config", SKILL / "pyproject.toml", file]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_no_line_of_a_launch_file_is_long(launcher: str) -> None:
    for mesh in MESHES:
        assert max(map(len, launch_file(launcher, mesh, "train.py").splitlines())) <= 120


# --- what `generate` does with two files ---


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_launch_file_is_written_beside_the_script_and_bash_files_can_be_started(
    launcher: str, tmp_path: Path
) -> None:
    file = write_launched(tmp_path, launcher)
    assert {path.name for path in file.parent.iterdir()} == {SCRIPT, file.name}
    assert file.read_text() == launch_file(launcher)
    assert bool(file.stat().st_mode & stat.S_IXUSR) is file.name.endswith(".sh")


@pytest.mark.parametrize("there", ["train.py", "train.slurm.sh"])
def test_if_either_file_exists_neither_is_written_unless_forced(there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("mine\n")
    command = ("generate", "--out", "train.py", "--launcher", "slurm")
    assert_refused(fsdp2(*command, cwd=tmp_path), f"{there} exists", "--force")
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine\n"
    assert fsdp2(*command, "--force", cwd=tmp_path).returncode == 0
    assert (tmp_path / "train.slurm.sh").read_text() == launch_file("slurm", script="train.py")


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    assert_refused(fsdp2("generate", "--out", "-", "--launcher", "ray", cwd=tmp_path), "second file", "--out FILE")
    assert_refused(
        fsdp2("generate", "--out", "train.py", "--launcher", "pbs", cwd=tmp_path), "expected none or torchrun"
    )
    assert_refused(
        fsdp2("generate", "--out", 'a"b.py', "--launcher", "ray", cwd=tmp_path), "expected one without quotes"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_check_and_update_are_of_both_files(tmp_path: Path) -> None:
    def checked() -> tuple[int, str]:
        process = fsdp2("generate", "--check", "train.py", cwd=tmp_path)
        return process.returncode, process.stdout

    def updated(*flags: str) -> subprocess.CompletedProcess[str]:
        return fsdp2("generate", "--update", "train.py", *flags, cwd=tmp_path)

    assert fsdp2("generate", "--out", "train.py", "--launcher", "slurm", cwd=tmp_path).returncode == 0
    script, launch = tmp_path / "train.py", tmp_path / "train.slurm.sh"
    text = launch.read_text()
    assert checked()[0] == 0

    launch.write_text(text.replace("24:00:00", "01:00:00"))
    code, out = checked()
    assert code == 1
    assert "train.slurm.sh: has drifted: it was edited" in out
    assert_refused(updated(), "train.slurm.sh was edited", "--force")
    assert launch.read_text() != text
    assert updated("--force").returncode == 0
    assert launch.read_text() == text

    launch.write_text(text.replace(f"generate` {version()}", "generate` 0.0.1"))
    code, out = checked()
    assert code == 1
    assert "train.slurm.sh: has drifted: it was generated by version 0.0.1" in out
    assert updated().returncode == 0
    assert launch.read_text() == text

    launch.unlink()
    code, out = checked()
    assert code == 1
    assert "train.slurm.sh: is missing" in out
    assert updated().returncode == 0
    assert launch.read_text() == text
    assert script.read_text().count('launcher = "slurm"') == 1


# --- one machine, and several ---


@pytest.mark.parametrize("launcher", ["torchrun", "multi-node"])
def test_torchrun_gets_the_script_by_its_folder_and_the_arguments_as_they_were(launcher: str, tmp_path: Path) -> None:
    file = write_launched(tmp_path, launcher)
    programs = tmp_path / "bin"
    programs.mkdir()
    write_program(programs / "torchrun", "#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
    out = subprocess.run(
        [file, "--data", "a b", "--log", ""],
        env={"PATH": f"{programs}:/usr/bin:/bin", "NNODES": "2", "RDZV_ENDPOINT": "one:29500"},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert out.endswith(f"\n--\n{file.parent / SCRIPT}\n--data\na b\n--log\n\n")


@pytest.mark.parametrize(
    ("given", "missing"), [({}, "NNODES"), ({"NNODES": "2"}, "RDZV_ENDPOINT"), ({"RDZV_ENDPOINT": "a:1"}, "NNODES")]
)
def test_the_multi_node_file_says_what_it_was_not_told(given: dict[str, str], missing: str, tmp_path: Path) -> None:
    file = write_launched(tmp_path, "multi-node")
    environment = {"PATH": os.environ["PATH"], **given}
    process = subprocess.run([file], env=environment, capture_output=True, text=True, check=False)
    assert process.returncode != 0
    assert re.search(rf"{missing}: expected .* such as {missing}=", process.stderr)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """The log of an uninterrupted run on two ranks, started by the torchrun file."""
    folder = tmp_path_factory.mktemp("straight")
    file = write_launched(folder, "torchrun")
    run = Training(file.with_name(SCRIPT), folder / "run", options=LONG)
    with started([str(file), *run.arguments()], cwd=run.folder, NPROC_PER_NODE="2") as (process,):
        assert "2 x cpu, from step 0 to 100" in ends_well(process)
    assert [record["step"] for record in run.records()] == list(range(1, 101))
    return run.records()


@pytest.mark.slow
def test_the_torchrun_file_trains_on_all_ranks(straight: list[dict[str, float]]) -> None:
    assert straight[-1]["loss"] < straight[0]["loss"] - 1


@pytest.mark.matrix
@pytest.mark.slow
def test_when_a_rank_dies_the_agents_of_all_machines_start_again_and_the_run_resumes(
    straight: list[dict[str, float]], tmp_path: Path
) -> None:
    """Two agents on loopback, a rank each; the killed one has a peer on the other machine."""
    file = write_launched(tmp_path, "multi-node")
    run = Training(file.with_name(SCRIPT), tmp_path / "run", options=LONG)
    meeting = {"NNODES": "2", "NPROC_PER_NODE": "1", "RDZV_ENDPOINT": f"127.0.0.1:{free_port()}"}
    command = [str(file), *run.arguments()]
    with started(command, command, cwd=run.folder, **meeting) as processes:
        run.wait_for_step(9, processes[0])
        os.kill(rank_of(1, run), signal.SIGKILL)
        outputs = [ends_well(process) for process in processes]
    assert re.search(r"2 x cpu, from step [1-9]\d* to 100", "".join(outputs)), outputs
    assert run.records() == straight


@pytest.fixture
def two_hosts() -> Iterator[tuple[list[str], list[str]]]:
    """Two network namespaces, joined by a cable: what to put before a command to run it on either."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` program")
    names = [f"fsdp2-{os.getpid()}-{number}" for number in (0, 1)]
    cable = [f"c{number}-{os.getpid()}"[:15] for number in (0, 1)]

    def ip(*words: str) -> None:
        process = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if process.returncode != 0:
            pytest.skip(f"no network namespaces here: {process.stderr.strip()}")

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", cable[0], "netns", names[0], "type", "veth", "peer", "name", cable[1], "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "link", "set", cable[number], "name", "wire")
            ip("-n", name, "addr", "add", f"198.51.100.{number + 1}/24", "dev", "wire")
            for device in ("lo", "wire"):
                ip("-n", name, "link", "set", device, "up")
        yield (["ip", "netns", "exec", names[0]], ["ip", "netns", "exec", names[1]])
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.matrix
@pytest.mark.slow
def test_two_machines_train_as_one_and_resume_after_a_rank_of_one_dies(
    two_hosts: tuple[list[str], list[str]], straight: list[dict[str, float]], tmp_path: Path
) -> None:
    file = write_launched(tmp_path, "multi-node")
    run = Training(file.with_name(SCRIPT), tmp_path / "run", options=LONG)
    commands = [
        [*host, "env", f"PET_LOCAL_ADDR=198.51.100.{number + 1}", f"PET_RDZV_CONF=is_host={1 - number}", str(file)]
        for number, host in enumerate(two_hosts)
    ]
    meeting = {
        "NNODES": "2",
        "NPROC_PER_NODE": "1",
        "RDZV_ENDPOINT": "198.51.100.1:29500",
        "GLOO_SOCKET_IFNAME": "wire",
    }
    with started(*([*command, *run.arguments()] for command in commands), cwd=run.folder, **meeting) as processes:
        run.wait_for_step(9, processes[0])
        os.kill(rank_of(1, run), signal.SIGKILL)
        outputs = [ends_well(process) for process in processes]
    assert re.search(r"2 x cpu, from step [1-9]\d* to 100", "".join(outputs)), outputs
    assert run.records() == straight


# --- Slurm: programs that do for one node what srun and scontrol do ---

SRUN = f"""#!{sys.executable}
import itertools, os, pathlib, signal, subprocess, sys

options = list(itertools.takewhile(lambda word: word.startswith("--"), sys.argv[1:]))
assert {{"--nodes=1", "--ntasks-per-node=1"}} <= set(options), options
signals = []
signal.signal(signal.SIGUSR1, lambda number, _: signals.append(number))
task = subprocess.Popen(sys.argv[1 + len(options):], start_new_session=True)
pathlib.Path(os.environ["TASK"]).write_text(str(task.pid))
signal.signal(signal.SIGUSR1, lambda number, _: task.send_signal(number))  # to the task alone, not to what it started
for number in signals:
    task.send_signal(number)
sys.exit(task.wait())
"""
SCONTROL = """#!/bin/bash
case "$1 $2" in
  "show job") printf 'JobId=%s JobName=train\\n   Command=%s --data x\\n   WorkDir=/\\n' "$3" "$SUBMITTED" ;;
  "show hostnames") echo localhost ;;
  "requeue "*) echo "$*" >> "$REQUEUED" ;;
  *) exit 1 ;;
esac
"""


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


class Batch:
    """A batch job of one node: runs, as sbatch has it run, a copy of the file that was submitted."""

    def __init__(self, folder: Path, options: dict[str, str]) -> None:
        self.file = write_launched(folder, "slurm")
        self.run = Training(self.file.with_name(SCRIPT), folder / "run", options=options)
        self.task, self.requeued = folder / "task", folder / "requeued"
        programs, self.spooled = folder / "bin", folder / "spool" / "slurm_script"
        programs.mkdir()
        self.spooled.parent.mkdir()
        shutil.copy(self.file, self.spooled)
        write_program(programs / "srun", SRUN)
        write_program(programs / "scontrol", SCONTROL)
        self.environment = {
            **{"SLURM_JOB_ID": "4242", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n[1]", "NPROC_PER_NODE": "2"},
            **{"SUBMITTED": str(self.file), "TASK": str(self.task), "REQUEUED": str(self.requeued)},
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def started(self) -> Any:
        return started(["bash", str(self.spooled), *self.run.arguments()], cwd=self.run.folder, **self.environment)

    def requeues(self) -> list[str]:
        return self.requeued.read_text().splitlines() if self.requeued.exists() else []


def test_the_batch_file_asks_for_a_signal_in_time_to_save_and_to_be_queued_again() -> None:
    text = launch_file("slurm")
    asked = re.findall(r"^#SBATCH (\S+)$", text.split("set -euo")[0], re.MULTILINE)
    assert {"--signal=B:USR1@300", "--requeue", "--open-mode=append", "--ntasks-per-node=1"} <= set(asked)


def test_the_batch_file_says_where_it_looked_for_the_script(tmp_path: Path) -> None:
    batch = Batch(tmp_path, {})
    batch.run.script.unlink()
    with batch.started() as (process,):
        out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 2
    assert f"{batch.run.script}: no such file; expected it beside" in out


@pytest.mark.slow
def test_a_batch_job_that_finishes_is_not_queued_again(tmp_path: Path) -> None:
    batch = Batch(tmp_path, {})
    with batch.started() as (process,):
        assert "2 x cpu, from step 0 to 12" in ends_well(process)
    assert batch.run.saved()[-1] == "step-12"
    assert batch.requeues() == []


@pytest.mark.slow
def test_a_batch_job_that_fails_is_not_queued_again(tmp_path: Path) -> None:
    batch = Batch(tmp_path, {"--keep-latest": "1"})
    batch.environment["MAX_RESTARTS"] = "0"
    with batch.started() as (process,):
        out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode != 0
    assert "expected --keep-latest 2 or more" in out
    assert batch.requeues() == []


@pytest.mark.matrix
@pytest.mark.slow
def test_a_batch_job_that_is_preempted_saves_is_queued_again_once_and_resumes(tmp_path: Path) -> None:
    """It would run for hours; both times Slurm's signal ends it, the second time it goes on where it was saved."""
    batch = Batch(tmp_path, {"--steps": "1000000"})
    first = 0
    for attempt in (1, 2):
        with batch.started() as (process,):
            batch.run.wait_for_step(first + 6, process)
            process.send_signal(signal.SIGUSR1)
            out = ends_well(process)
        assert f"from step {first} to 1000000" in out
        assert batch.run.saved()[-1] == f"step-{int(batch.run.records()[-1]['step'])}"
        first = int(batch.run.records()[-1]["step"])
        assert batch.requeues() == ["requeue 4242"] * attempt


@pytest.mark.slow
def test_what_slurm_terminates_saves_and_is_left_to_slurm_to_queue_again(tmp_path: Path) -> None:
    """SIGTERM goes to the batch shell and to the tasks at once; it may be the user's `scancel`."""
    batch = Batch(tmp_path, {"--steps": "1000000"})
    with batch.started() as (process,):
        batch.run.wait_for_step(6, process)
        process.send_signal(signal.SIGTERM)
        os.kill(int(batch.task.read_text()), signal.SIGTERM)
        ends_well(process)
    assert batch.run.saved()[-1] == f"step-{int(batch.run.records()[-1]['step'])}"
    assert batch.requeues() == []


# --- Ray ---

RAY_DEADLINE = 3 * DEADLINE  # it takes its time to start, to notice that a worker is gone, and to start again


@pytest.fixture
def ray_environment() -> Iterator[dict[str, str]]:
    """For a Ray of this machine that leaves nothing in the user's home. Its sockets need a short path."""
    pytest.importorskip("ray.train", reason="ray[train] is not installed")
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        yield {"HOME": folder, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "NUM_WORKERS": "2"} | {
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "180"  # not a minute, on a machine with more to do
        }


@pytest.mark.matrix
@pytest.mark.slow
def test_when_a_ray_worker_is_killed_its_rank_goes_too_and_new_workers_resume(
    ray_environment: dict[str, str], straight: list[dict[str, float]], tmp_path: Path
) -> None:
    file = write_launched(tmp_path, "ray")
    run = Training(file.with_name(SCRIPT), tmp_path / "run", options=LONG)
    command = [sys.executable, str(file), *run.arguments()]
    with started(command, cwd=run.folder, **ray_environment) as (process,):
        run.wait_for_step(9, process, deadline=RAY_DEADLINE)
        ranks = [rank_of(0, run), rank_of(1, run)]
        os.kill(parent_of(ranks[1]), signal.SIGKILL)
        out = ends_well(process, deadline=RAY_DEADLINE)
        assert not set(ranks) & set(alive(str(run.checkpoints)))
    assert re.search(r"2 x cpu, from step [1-9]\d* to 100", out), out
    assert run.records() == straight


# --- Kubernetes ---

NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}


def closed(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def nested(*keys: str, inside: dict[str, Any]) -> dict[str, Any]:
    for key in reversed(keys):
        inside = closed({key: inside})
    return inside


VOLUME = {
    "type": "object",
    "required": ["name"],
    "oneOf": [
        closed({"name": NAME, "configMap": closed({"name": NAME})}),
        closed({"name": NAME, "persistentVolumeClaim": closed({"claimName": NAME})}),
        closed({"name": NAME, "emptyDir": closed({}, medium={"const": "Memory"})}),
    ],
}
POD = closed(
    {
        "containers": {
            "type": "array",
            "items": closed(
                {
                    "name": {"const": "node"},
                    "volumeMounts": {
                        "type": "array",
                        "items": closed({"name": NAME, "mountPath": {"type": "string", "pattern": "^/"}}),
                    },
                }
            ),
        },
        "volumes": {"type": "array", "items": VOLUME},
    },
    terminationGracePeriodSeconds={"type": "integer"},
)
JOBS = {
    "type": "array",
    "items": closed({"name": {"const": "node"}, "template": nested("spec", "template", "spec", inside=POD)}),
}
STRINGS = {"type": "array", "items": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 1}
TRAIN_JOB = closed(
    {
        "apiVersion": {"const": "trainer.kubeflow.org/v1alpha1"},
        "kind": {"const": "TrainJob"},
        "metadata": closed({"name": NAME}),
        "spec": closed(
            {
                "runtimeRef": closed(
                    {
                        "apiGroup": {"const": "trainer.kubeflow.org"},
                        "kind": {"const": "ClusterTrainingRuntime"},
                        "name": {"const": "torch-distributed"},
                    }
                ),
                "trainer": closed(
                    {
                        "numNodes": COUNT,
                        "numProcPerNode": COUNT,
                        "resourcesPerNode": closed({"limits": closed({"nvidia.com/gpu": COUNT})}),
                        "command": STRINGS,
                        "args": STRINGS,
                    }
                ),
                "runtimePatches": {
                    "type": "array",
                    "items": closed(
                        {
                            "manager": {"type": "string", "minLength": 1, "maxLength": 253},
                            "trainingRuntimeSpec": nested("template", "spec", "replicatedJobs", inside=JOBS),
                        }
                    ),
                },
            }
        ),
    }
)
"""What a TrainJob of Kubeflow Trainer 2.3 may hold, as far as the manifest uses it; all else would be refused there."""


@pytest.mark.parametrize("mesh", MESHES)
def test_the_manifest_is_a_train_job_with_its_claim_and_the_ranks_of_its_mesh(mesh: str) -> None:
    claim, job = yaml.safe_load_all(launch_file("kubernetes", mesh))
    jsonschema.validate(job, TRAIN_JOB)
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    trainer = job["spec"]["trainer"]
    world = trainer["numNodes"] * trainer["numProcPerNode"]
    sizes = parse_mesh(mesh)
    fixed = math.prod(size for size in sizes.values() if size != -1)
    assert world % fixed == 0 if -1 in sizes.values() else world == fixed
    assert f"--global-batch={4 * world // sizes.get('tp', 1)}" in trainer["args"]
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == trainer["numProcPerNode"]


def test_what_the_manifest_mounts_is_there() -> None:
    text = launch_file("kubernetes", script="My Train!.py")
    claim, job = yaml.safe_load_all(text)
    patch = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    pod = patch["template"]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert volumes.keys() == mounts.keys()
    assert volumes["training"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"] == "my-train"
    config_map = volumes["script"]["configMap"]["name"]
    assert f"kubectl create configmap {config_map} --from-file=train.py='My Train!.py'" in text
    assert f"{mounts['script']}/train.py" in job["spec"]["trainer"]["args"]
    assert f"--checkpoint-dir={mounts['training']}/checkpoints" in job["spec"]["trainer"]["args"]


def test_a_launch_file_is_named_after_its_script() -> None:
    assert launch_name("slurm", "train.py") == "train.slurm.sh"
    assert launch_name("ray", "a.b") == "a.b.ray.py"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
