"""How ranks are started and ended, and that both launchers do it alike."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.errors import UserError
from pytorch_fsdp2_dcp.validate.events import Event
from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.launch.job import Job, Run
from pytorch_fsdp2_dcp.validate.launch.places import prepare
from pytorch_fsdp2_dcp.validate.launch.watch import Abandoned, watch
from pytorch_fsdp2_dcp.validate.probe.merge import merge

from ..runs import alive, run_script

DEADLINE = 120.0  # seconds; what waits for nothing else takes one

GOOD = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = fully_shard(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.ones(2, 4)).sum()
loss.backward()
optimizer.step()
print("loss", loss.item(), torch.get_num_threads(), sys.argv[1:])
for name in sorted(os.environ):
    if name.startswith(("TORCH", "GROUP", "LOCAL_", "MASTER_ADDR", "OMP", "RANK", "ROLE", "WORLD", "NCCL")):
        print(name, "" if "RUN_ID" in name or "FILE" in name else os.environ[name])
dist.barrier()
dist.destroy_process_group()
"""

SCRIPTS = {
    "good": GOOD,
    "raising": "def fail():\n    raise ValueError('on\\npurpose')\nprint('before')\nfail()\n",
    "exit code": "import sys\nsys.exit(3)\n",
    "exit message": "import sys\nsys.exit('a word')\n",
    "os._exit": "import os\nos._exit(5)\n",
    "signal": "import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)\n",
    "syntax error": "def f(:\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "end": (
        "import atexit, sys, threading, time\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "left_open = open('left open', 'w')\nleft_open.write('all of it')\n"
        "print('err', file=sys.stderr)\n"
        "print('main', __name__, __spec__, __file__ == sys.argv[0], repr(sys.stdin.read()))\n"
    ),
}

ENDS = {  # code, error, what is printed
    "raising": (1, "ValueError: on purpose", "before\n"),
    "exit code": (3, None, ""),
    "exit message": (1, None, "a word\n"),
    "os._exit": (5, None, ""),
    "signal": (-signal.SIGUSR1, None, ""),
    "syntax error": (1, "SyntaxError: invalid syntax (script.py, line 1)", "SyntaxError"),
    "interrupt": (-signal.SIGINT, "KeyboardInterrupt", "KeyboardInterrupt"),
    "end": (0, None, "err\nmain __main__ None True ''\nthread\nat exit\n"),
}


SPAWNING = """
import atexit, multiprocessing, os, signal, sys, threading, time
from multiprocessing import shared_memory

OPEN = sorted(os.listdir("/proc/self/fd"))

def tell(queue, rank):
    print("child", __name__, sys.argv, sys.path[0] == os.path.dirname(__file__))
    print(os.environ["LATE"], "RANK" in os.environ, os.getcwd() == os.path.realpath("/tmp"), repr(sys.stdin.read()))
    print(multiprocessing.parent_process().pid == rank)
    print(multiprocessing.current_process().name, threading.current_thread() is threading.main_thread(), len(OPEN))
    print([signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGCHLD)], signal.set_wakeup_fd(-1))
    print("err", file=sys.stderr)
    atexit.register(print, "child at exit")
    threading.Thread(target=lambda: (time.sleep(0.2), print("child's thread"))).start()
    nested = multiprocessing.get_context("spawn").Process(target=leave, args=("exit",))
    nested.start()
    nested.join()
    queue.put(("nested", nested.exitcode))

def leave(how):
    if how == "raise":
        raise ValueError(how)
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(4)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "close":
        os.close(sys.stdout.fileno())
    if how == "wait":
        time.sleep(987)

def add(number):
    return number + 1

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    os.environ["LATE"] = "set by the script"
    del os.environ["RANK"]
    os.chdir("/tmp")
    queue = context.Queue()
    child = context.Process(target=tell, args=(queue, os.getpid()), name="teller", daemon=False)
    child.start()
    print(queue.get(), child.is_alive() in (True, False))
    child.join()
    print(child.exitcode, flush=True)
    for how in ("raise", "exit", "_exit", "kill", "close"):
        child = context.Process(target=leave, args=(how,))
        child.start()
        child.join()
        print(how, child.exitcode, child.is_alive())
    waiting = [context.Process(target=leave, args=("wait",), daemon=True) for _ in range(3)]
    for child in waiting:
        child.start()
    print([child.join(timeout=0.01) for child in waiting], [child.exitcode for child in waiting])
    waiting[0].terminate()
    waiting[1].kill()
    for child in waiting[:2]:
        child.join()
    print([child.exitcode for child in waiting], len(multiprocessing.active_children()))
    with context.Pool(2) as pool:
        print(pool.map(add, range(5)))
"""

FAST = ("raising", "exit code", "os._exit")


@pytest.mark.slow
@pytest.mark.parametrize("case", [c if c in FAST else pytest.param(c, marks=pytest.mark.slow) for c in ENDS])
def test_a_rank_ends_as_the_script_does(case: str, tmp_path: Path) -> None:
    code, error, printed = ENDS[case]
    run = run_script(tmp_path, SCRIPTS[case], prepared=False, nproc=1)
    (end,) = run.ends
    assert (end.code, end.error) == (code, error)
    if case in ("raising", "syntax error", "interrupt"):
        assert printed in end.output
        assert "site-packages" not in end.output
        assert "/validate/" not in end.output, "a traceback shows frames that are not the script's"
    else:
        assert end.output == printed
    if case == "end":
        assert (run.job.cwd / "left open").read_text() == "all of it"


@pytest.mark.slow
def test_the_sockets_of_a_rank_have_room_however_deep_its_run_lies(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 25)
    deep.mkdir()
    script = "from multiprocessing.connection import Listener\nListener(family='AF_UNIX').close()\n"
    run = run_script(deep, script, prepared=False, nproc=1)
    assert run.succeeded, run.ends


def told(run: Run) -> list[tuple[int | None, str | None, str]]:
    return [(end.code, end.error, end.output.replace(str(run.job.scratch), "")) for end in run.ends]


def happened(run: Run) -> list[list[Event]]:
    return [list(trace.events) for trace in merge(run)]


@pytest.mark.slow
@pytest.mark.parametrize("case", SCRIPTS)
def test_both_launchers_give_the_same_ends_the_same_output_and_the_same_events(case: str, tmp_path: Path) -> None:
    nproc = 2 if case == "good" else 1
    warm, plain = (
        run_script(tmp_path, SCRIPTS[case], prepared=False, nproc=nproc, using=name, args=("--x", "1"))
        for name in ("warm", "torchrun")
    )
    assert told(warm) == told(plain)
    assert happened(warm) == happened(plain)


@pytest.mark.slow
def test_what_a_rank_spawns_is_the_same_under_both_launchers(tmp_path: Path) -> None:
    """Although the warm one forks it where torch is imported: its surroundings, its end, and what is seen of that."""
    warm, plain = (run_script(tmp_path, SPAWNING, prepared=False, nproc=1, using=name) for name in ("warm", "torchrun"))
    assert warm.succeeded, warm.ends[0].output
    assert told(warm) == told(plain)
    assert "close 0 False" in warm.ends[0].output
    assert "[-15, -9, None] 1\n[1, 2, 3, 4, 5]" in warm.ends[0].output


def test_torch_is_imported_already_in_what_a_rank_spawns(tmp_path: Path) -> None:
    script = """
        import multiprocessing, sys

        def work():
            sys.exit(7 if "torch" in sys.modules else 8)

        if __name__ == "__main__":
            child = multiprocessing.get_context("spawn").Process(target=work)
            child.start()
            child.join()
            sys.exit(child.exitcode)
    """
    (end,) = run_script(tmp_path, script, prepared=False, nproc=1).ends
    assert end.code == 7


HANG = """
import os, subprocess, sys, time
import torch.distributed as dist

dist.init_process_group("gloo")
subprocess.Popen(["sleep", "987"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    time.sleep(987)


def wait_for_nobody():
    if dist.get_rank() == 0:
        dist.barrier()
    time.sleep(987)


wait_for_nobody()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["warm", "torchrun"])
def test_at_the_deadline_each_rank_tells_its_stack_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    run = run_script(tmp_path, HANG, prepared=False, using=name, deadline=10, env={"MARKER_OF_TEST": str(tmp_path)})
    assert run.hung
    assert [end.code for end in run.ends] == [None, None]
    for end in run.ends:
        assert end.stack is not None
        assert "in wait_for_nobody" in end.stack
        assert end.stack.rstrip().endswith("in <module>"), "frames below the script's own"
        assert "/validate/" not in end.stack
    assert "in barrier" in (run.ends[0].stack or "")
    assert alive(str(tmp_path)) == []
    assert alive("sleep\x00987") == []


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    script = f"""
        import os, pathlib, time
        pathlib.Path({str(pids)!r}, str(os.getpid())).touch()
        if os.fork() == 0:
            pathlib.Path({str(pids)!r}, str(os.getpid())).touch()
        time.sleep(987)
    """

    def interrupt(*_: object) -> None:
        if len(list(pids.iterdir())) == 4:
            signal.raise_signal(signal.SIGINT)  # again and again, as an impatient user

    before = signal.signal(signal.SIGALRM, interrupt)
    before_interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_script(tmp_path, script, prepared=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.signal(signal.SIGINT, before_interrupt)
    for path in pids.iterdir():
        assert not Path("/proc", path.name).exists(), "a process of the job is still there"


def test_what_a_rank_leaves_running_ends_with_the_job(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"""
        import subprocess
        child = subprocess.Popen(["sleep", "987"], start_new_session=True)
        open({str(pid)!r}, "w").write(str(child.pid))
    """
    assert run_script(tmp_path, script, prepared=False, nproc=1).succeeded
    assert not Path("/proc", pid.read_text()).exists()


@pytest.mark.slow
def test_the_warm_parent_ends_with_its_process(tmp_path: Path) -> None:
    """Also when that process is killed: nobody closes anything then."""
    script = tmp_path / "use.py"
    skill = Path(__file__).resolve().parents[2]
    script.write_text(
        f"import sys, time; sys.path.insert(0, {str(skill)!r})\n"
        "import tests.conftest\n"
        "from pytorch_fsdp2_dcp.validate.launch.warm import _parent\n"
        "print(_parent()._process.pid, flush=True); time.sleep(987)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    parent = process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()
    until = time.monotonic() + 20
    while (entry := Path("/proc", parent)).exists() and time.monotonic() < until:
        if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not entry.exists()


def test_a_users_modules_are_never_shadowed(tmp_path: Path) -> None:
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    for name in ("validate", "templates", "recipes", "tests", "rank", "places", "record", "loop"):
        (cwd / f"{name}.py").write_text("MINE = True\n")
    script = """
        import sys
        import validate, templates, recipes, tests, rank, places, record, loop
        assert all(m.MINE for m in (validate, templates, recipes, tests, rank, places, record, loop))
        assert sys.path[0] == __file__.rpartition("/")[0]
    """
    run = run_script(tmp_path, script, prepared=False, nproc=1)
    assert run.succeeded, run.ends[0].output


def test_spawned_children_find_the_main_file(tmp_path: Path) -> None:
    script = """
        import multiprocessing

        def work(queue):
            queue.put(__name__)

        if __name__ == "__main__":
            assert multiprocessing.parent_process() is None
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            child = context.Process(target=work, args=(queue,))
            child.start()
            print(queue.get(timeout=50))
            child.join()
    """
    (end,) = run_script(tmp_path, script, prepared=False, nproc=1).ends
    assert (end.code, end.output) == (0, "__mp_main__\n")


@pytest.mark.slow
def test_ranks_draw_different_numbers_where_nothing_is_seeded(tmp_path: Path) -> None:
    """As under torchrun; forks of one process would share its generators, and hide that a script seeds none."""
    script = "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.rand(1).item())\n"
    first, second = run_script(tmp_path, script, prepared=False).ends
    assert (first.code, second.code) == (0, 0), first.output
    assert all(a != b for a, b in zip(first.output.split(), second.output.split(), strict=True))


def test_the_environment_of_the_job_is_added_and_output_is_bounded(tmp_path: Path) -> None:
    script = "import os\nprint(os.environ['OF_THE_JOB'], os.getcwd())\nprint('x' * 200_000)\nprint('last')\n"
    (end,) = run_script(tmp_path, script, prepared=False, nproc=1, env={"OF_THE_JOB": "yes"}).ends
    assert end.code == 0
    assert "bytes left out" in end.output.splitlines()[0]
    assert end.output.endswith("x\nlast\n")
    assert len(end.output) < 66 * 1024
    log = next((tmp_path).glob("scratch-*/ranks/0.log"))
    assert log.read_text().splitlines()[0] == f"yes {os.path.realpath(tmp_path / 'cwd')}"


class EndsByItself:
    """A leader that has ended when it is to be ended, just after it was looked at."""

    def __init__(self) -> None:
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        self.pid, self.looks = process.pid, 0

    def over(self, wait: float) -> bool:  # noqa: ARG002 - as launchers have it
        self.looks += 1
        return self.looks > 1


def test_a_job_may_end_in_the_moment_in_which_it_is_ended(tmp_path: Path) -> None:
    script, scratch = tmp_path / "train.py", tmp_path / "scratch"
    job = Job(script=script, args=(), nproc=1, cwd=tmp_path, scratch=scratch, deadline=-1.0)
    places, leader = prepare(job), EndsByItself()
    places.begun(0).write_text(str(leader.pid))
    places.ended(0).write_text("3")
    assert watch(job, places, leader).ends[0].code == 3


def test_an_unknown_launcher_is_refused() -> None:
    with pytest.raises(UserError, match="expected warm or torchrun"):
        launcher("slurm")


def test_what_multiprocessing_needs_lies_in_the_jobs_own_folder() -> None:
    """Or each rank that is killed would leave a folder behind. pytest's own folders may be too deep for sockets."""
    script = "from multiprocessing import util\nprint(util.get_temp_dir())"
    with tempfile.TemporaryDirectory() as folder:
        run = run_script(Path(folder), script, prepared=False, nproc=1)
    assert Path(run.ends[0].output.strip()).is_relative_to(run.job.scratch), run.ends[0].output


@pytest.mark.slow
def test_the_warm_parent_runs_two_jobs_at_a_time_and_both_can_be_abandoned(tmp_path: Path) -> None:
    """Each waits for the other's file, and then for ever."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pathlib, sys, time\nmine, other = map(pathlib.Path, sys.argv[1:])\nmine.touch()\n"
        "while not other.exists():\n    time.sleep(0.01)\nmine.with_suffix('.met').touch()\ntime.sleep(987)\n"
    )
    warm = launcher("warm")

    def run(own: str, other: str) -> Run:
        scratch = tmp_path / f"scratch-{own}"
        scratch.mkdir()
        files = (str(tmp_path / own), str(tmp_path / other))
        return warm.run(Job(script=script, args=files, nproc=1, cwd=tmp_path, scratch=scratch, deadline=DEADLINE))

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run, "a", "b"), pool.submit(run, "b", "a")]
        while not all((tmp_path / f"{name}.met").exists() for name in "ab"):
            assert not any(one.done() for one in runs), runs
            time.sleep(0.02)
        warm.abandon()
        for one in runs:
            with pytest.raises(Abandoned):
                one.result()
    assert alive(str(tmp_path)) == []
    with pytest.raises(Abandoned):
        run("c", "a")
    assert run_script(tmp_path, "print('others go on')", prepared=False, nproc=1).succeeded
