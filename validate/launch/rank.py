"""One rank: a shepherd that notes how it ends, and its child, in which the script runs as `python script.py` would."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import io
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import threading
import types
import weakref
from importlib.machinery import SourceFileLoader
from multiprocessing import process
from pathlib import Path
from typing import Any, NoReturn

from .leader import own_streams, redirect
from .places import Settings, write_whole
from .processes import die_with_parent
from .spawned import Nursery, Spawner

STACK_SIGNAL = signal.SIGRTMAX - 3  # asks a rank for its stacks; a real-time signal that no library is known to use
OWN_CODE = str(Path(__file__).resolve().parents[1]) + os.sep
MAIN_PROCESS = multiprocessing.current_process()  # of the interpreter that imports this, before any fork
FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)  # what holds bytes back until it is flushed
SOCKETS_LIMIT = 80  # characters of their folder's path; with a name in it, a socket's may have 107
ERROR_LIMIT = 500  # characters kept of the message of the exception that ends a rank


def shepherd(settings_path: Path, warm: bool) -> int:
    """Fork the rank, wait for it, note its exit status for the launcher and return it (negative for a signal).

    A process cannot write down how a signal ended it, and torchrun does not say of each rank, so its parent must.
    A `warm` shepherd, which has torch imported, forks what the rank spawns too, and passes SIGTERM on to the rank;
    under torchrun the whole process group gets it anyway.
    """
    die_with_parent()
    settings = Settings.read(settings_path)
    rank = int(os.environ["RANK"])
    ours, of_rank = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _become(settings, rank, Spawner(of_rank) if warm else None)
    of_rank.close()

    def pass_on(signum: int, _frame: object) -> None:
        if warm:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, pass_on)
    status = Nursery(ours, _forget_parents, _end).tend(pid) if warm else os.waitpid(pid, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    write_whole(settings.places.ended(rank), str(code))
    return code


def leave(code: int) -> NoReturn:
    """End this process as the rank ended."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has dumped its own
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))


def _become(settings: Settings, rank: int, spawner: Spawner | None) -> NoReturn:
    """Turn this fork into a process that looks freshly started, and run the script in it."""
    try:
        die_with_parent()
        _forget_parents()
        if len(os.fsencode(settings.places.sockets)) < SOCKETS_LIMIT:
            MAIN_PROCESS._config["tempdir"] = str(settings.places.sockets)  # type: ignore[attr-defined]
        redirect(settings.places.log(rank))
        own_streams()
        os.chdir(settings.cwd)
        stack = os.open(settings.places.stack(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        from ..probe.install import install  # imports torch, which a shepherd has no need of

        observer = install(settings, rank)
        faulthandler.register(STACK_SIGNAL, file=stack, all_threads=True)
        if spawner is not None:
            spawner.install()
        write_whole(settings.places.begun(rank), str(os.getpid()))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    code, error = _run(settings)
    observer.exited(code, error)
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    _end(code)


def _end(code: int) -> NoReturn:
    """End as a script does, its threads joined, its atexit handlers run and its files written, but for C++'s part.

    torch's threads that outlive Python now and then abort a process in its last moments, whatever the script did.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for thing in gc.get_objects():
        if issubclass(type(thing), FILES):
            with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
                thing.flush()
    os._exit(code)


def _forget_parents() -> None:
    """Undo what a fork inherits and a fresh interpreter has not; under torchrun there is little."""
    default: dict[int, Any] = dict.fromkeys((signal.SIGPIPE, signal.SIGXFSZ), signal.SIG_IGN)
    default[signal.SIGINT] = signal.default_int_handler
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):  # the C library keeps two real-time signals for itself
            signal.signal(signum, default.get(signum, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # they guard the parents' objects
        finalizer.detach()
    process._parent_process = None  # type: ignore[attr-defined]
    process._current_process = MAIN_PROCESS  # type: ignore[attr-defined]
    process._children = set()  # type: ignore[attr-defined]
    threading.current_thread().name = "MainThread"
    assert multiprocessing.parent_process() is None
    random.seed()  # these three are seeded when they are imported, which forks of one process share
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


def _run(settings: Settings) -> tuple[int, str | None]:
    """Run the script as the real `__main__`; returns its exit status and the exception that ended it, if one did."""
    script = settings.script
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=str(Path.cwd() / script),
        __builtins__=__builtins__,
        __loader__=SourceFileLoader("__main__", script),
        __cached__=None,
    )
    sys.modules["__main__"] = main  # stays there: spawned children of the script look for its file
    sys.argv = [script, *settings.args]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        code = compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
        exec(code, main.__dict__)  # noqa: S102 - to run the user's script is what this is for
    except SystemExit as leaving:
        return _exit_status(leaving), None
    except BaseException as error:
        error.__traceback__ = _without_ours(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        message = _message(error)
        return (
            -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1,
            f"{type(error).__name__}: {message}"[:ERROR_LIMIT] if message else type(error).__name__,
        )
    return 0, None


def _message(error: BaseException) -> str:
    """What an exception says, on one line; of one that has swallowed the tracebacks of all ranks, how the last ends."""
    said = str(error).strip()
    return " ".join((said.splitlines()[-1] if "Traceback (most recent call last)" in said else said).split())


def _without_ours(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback as it would be without the probe."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(OWN_CODE):
        traceback = traceback.tb_next
    if traceback is not None:
        traceback.tb_next = _without_ours(traceback.tb_next)
    return traceback


def _exit_status(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1
