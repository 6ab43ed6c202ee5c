"""The warm parent: imports torch once, then forks every job that it is asked for.

It speaks JSON lines: a request `{"settings": path, "env": {...}}` on stdin; on stdout `{"ready": true}`, then for
each job `{"pid": leader}` when it has started and `{"ended": leader}` when it is over. Several jobs may run at a time;
the next request comes when the last was answered. It ends when stdin does.
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
from pathlib import Path
from typing import Any

from .leader import fork_leader
from .places import Settings
from .processes import die_with_parent

POLL = 0.01  # seconds between two looks for jobs that are over


def serve() -> None:
    """Answer requests until stdin ends."""
    die_with_parent()
    requests, replies = os.fdopen(os.dup(0)), os.dup(1)
    os.set_inheritable(replies, False)
    os.dup2(2, 1)  # what an import prints must not be taken for a reply

    before = set(os.environ)
    import torch._dynamo
    import torch._inductor  # noqa: F401 - both at the first optimizer or deterministic algorithm, half of a short run

    from ..probe import install  # noqa: F401 - so that no rank has to import what it needs
    from . import elastic

    def reply(**message: object) -> None:
        os.write(replies, (json.dumps(message) + "\n").encode())

    by_imports = {name: value for name, value in os.environ.items() if name not in before}
    gc.collect()
    gc.freeze()  # a collection in a rank would go through all modules, and so copy every page that it shares with us
    reply(ready=True)
    running = set[int]()
    while True:
        for pid in [pid for pid in running if os.waitpid(pid, os.WNOHANG)[0]]:
            running.remove(pid)
            reply(ended=pid)
        if not select.select([requests], [], [], POLL if running else None)[0]:
            continue
        if not (line := requests.readline()):
            break
        request = json.loads(line)
        settings_path = Path(request["settings"])
        settings = Settings.read(settings_path)

        def body(settings: Settings = settings, path: Path = settings_path, env: Any = request["env"]) -> None:
            requests.close()
            os.close(replies)
            os.environ.clear()
            os.environ.update(by_imports | env)
            os.chdir(settings.cwd)
            elastic.launch(settings, path)

        running.add(pid := fork_leader(body, settings.places.agent_log))
        reply(pid=pid)
    sys.exit(0)
