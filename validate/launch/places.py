"""What lies where below a job's scratch folder; the launcher, the ranks and `probe.merge` meet here."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from .job import Fault, Job, Probe


@dataclass(frozen=True)
class Places:
    """The files of one job.

    `hung` tells when the deadline passed, on the machine's monotonic clock. Of each rank: `begun` (its pid, written
    just before its script starts), `ended` (its exit status), `stopped` (it has reached the step after which the probe
    ends it), its `log` (stdout and stderr), `stack` and `records`. Of a fault: `struck` (where it was done, by the rank
    that came there first), and of each rank `chosen` (the save that it is done to) and `passed` (it has gone on far
    enough for a save that is held to be written, or for its state to be copied).
    """

    scratch: Path

    @property
    def settings(self) -> Path:
        return self.scratch / "job.json"

    @property
    def agent_log(self) -> Path:
        return self.scratch / "agent.log"

    @property
    def agent_folder(self) -> Path:
        return self.scratch / "agent"

    @property
    def records_folder(self) -> Path:
        return self.scratch / "records"

    @property
    def sockets(self) -> Path:
        """Where `multiprocessing` puts what it needs: in a folder of its own, a rank that is killed would leave it."""
        return self.scratch / "mp"

    @property
    def hung(self) -> Path:
        return self.scratch / "hung"

    def begun(self, rank: int) -> Path:
        return self.scratch / "ranks" / f"{rank}.begun"

    def ended(self, rank: int) -> Path:
        return self.scratch / "ranks" / f"{rank}.ended"

    def stopped(self, rank: int) -> Path:
        return self.scratch / "ranks" / f"{rank}.stopped"

    @property
    def struck(self) -> Path:
        return self.scratch / "struck.json"

    def chosen(self, rank: int) -> Path:
        return self.scratch / "ranks" / f"{rank}.chosen"

    def passed(self, rank: int, what: str) -> Path:
        return self.scratch / "ranks" / f"{rank}.passed-{what}"

    def log(self, rank: int) -> Path:
        return self.scratch / "ranks" / f"{rank}.log"

    def stack(self, rank: int) -> Path:
        return self.scratch / "ranks" / f"{rank}.stack"

    def records(self, rank: int) -> Path:
        return self.records_folder / f"rank-{rank}.jsonl"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a rank must know of its job."""

    script: str
    args: tuple[str, ...]
    nproc: int
    cwd: str
    scratch: str
    probe: Probe

    @property
    def places(self) -> Places:
        return Places(Path(self.scratch))

    @classmethod
    def read(cls, path: Path) -> Settings:
        """The settings that `prepare` wrote."""
        fields = json.loads(path.read_text())
        asked = fields["probe"]
        fault = None if asked["fault"] is None else Fault(**asked["fault"])
        return cls(**{**fields, "args": tuple(fields["args"]), "probe": Probe(**{**asked, "fault": fault})})


def prepare(job: Job) -> Places:
    """Make the folders of a job and write down its settings."""
    scratch = job.scratch.resolve()
    places = Places(scratch)
    (scratch / "ranks").mkdir(parents=True)
    places.records_folder.mkdir()
    places.agent_folder.mkdir()
    places.sockets.mkdir()
    settings = Settings(
        script=str(job.script),
        args=job.args,
        nproc=job.nproc,
        cwd=str(job.cwd.resolve()),
        scratch=str(scratch),
        probe=job.probe,
    )
    places.settings.write_text(json.dumps(dataclasses.asdict(settings)))
    return places


def write_whole(path: Path, text: str) -> None:
    """Write a file that a reader in another process sees whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)
