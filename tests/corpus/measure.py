"""Precision and recall of the linter over the corpus, per rule and overall: `make measure`.

`right/` holds training scripts and small projects without a mistake and full of near misses. Each file in `planted/`
is an edit of the one that it is named after, which plants exactly one mistake, labelled on the line that a careful
reviewer would point to: `# expect: FS401`. All are judged by the command line, as a user would. A finding is right when
its code is that of the label and the labelled line is the finding's own or one of its related places. Every other
finding, a second one of the same mistake included, is a false alarm.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).resolve().parent
ROOT = CORPUS.parents[1]
PRECISION, RECALL = 1.0, 0.95  # what `make measure` asks for


@dataclass(frozen=True, order=True)
class Mark:
    """A code at a line: what a label says, or where a finding is."""

    code: str
    file: str  # relative to the corpus
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code}"


@dataclass(frozen=True)
class Measured:
    """What became of the labels, and the findings that no label asks for."""

    hits: tuple[Mark, ...]
    misses: tuple[Mark, ...]
    alarms: tuple[Mark, ...]

    @property
    def precision(self) -> float:
        return len(self.hits) / max(1, len(self.hits) + len(self.alarms))

    @property
    def recall(self) -> float:
        return len(self.hits) / max(1, len(self.hits) + len(self.misses))

    def only(self, code: str) -> Measured:
        """What concerns one rule."""
        chosen = [tuple(m for m in marks if m.code == code) for marks in (self.hits, self.misses, self.alarms)]
        return Measured(*chosen)

    def codes(self) -> list[str]:
        return sorted({mark.code for mark in self.hits + self.misses + self.alarms})


def write_programs(folder: Path) -> None:
    """Write all programs: those that are right, and beside them each with a mistake."""
    shutil.copytree(CORPUS / "right", folder / "right")
    (folder / "planted").mkdir()
    for edits in sorted(CORPUS.glob("planted/*.edits")):
        name = edits.stem.partition("-")[2]
        if (CORPUS / "right" / name).is_dir():
            shutil.copytree(CORPUS / "right" / name, top := folder / "planted" / edits.stem)
        else:
            shutil.copy(CORPUS / "right" / f"{name}.py", top := folder / "planted" / f"{edits.stem}.py")
        plant(top, edits.read_text())


def plant(top: Path, edit: str) -> None:
    """Make an edit of the files of a folder, or of the one file that `top` is.

    After `@@ FILE`, lines that begin with ` ` or `+` take the place of those with ` ` or `-`, which are there once.
    """
    for hunk in edit.split("@@ ")[1:]:
        file, _, lines = hunk.partition("\n")
        path = top / file if top.is_dir() else top
        every = [f" {line}" if line == "\n" else line for line in lines.splitlines(keepends=True)]
        old, new = ("".join(line[1:] for line in every if line[0] in (" ", sign)) for sign in "-+")
        text = path.read_text()
        assert text.count(old) == 1, f"{path}: expected once:\n{old}"
        path.write_text(text.replace(old, new))


def labels(programs: Path) -> list[Mark]:
    return [
        Mark(match[1], path.relative_to(programs).as_posix(), number)
        for path in sorted(programs.glob("planted/**/*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := re.search(r"# expect: (FS\d+)$", line))
    ]


def findings(programs: Path) -> list[tuple[Mark, set[tuple[str, int]]]]:
    """Each finding, and the places that it names, its own among them."""
    command = [sys.executable, str(ROOT), "lint", "--format", "json", "right", "planted"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=programs)
    assert done.returncode in (0, 1), done.stderr
    found = []
    for finding in json.loads(done.stdout)["findings"]:
        places = {(at["file"], at["line"]) for at in (finding, *finding["related"])}
        found.append((Mark(finding["code"], finding["file"], finding["line"]), places))
    return found


def measure(programs: Path) -> Measured:
    """Lint the programs, and match findings with labels."""
    open_labels = labels(programs)
    hits, alarms = [], []
    for mark, places in sorted(findings(programs), key=lambda found: found[0]):
        label = next((one for one in open_labels if one.code == mark.code and (one.file, one.line) in places), None)
        if label is None:
            alarms.append(mark)
        else:
            open_labels.remove(label)
            hits.append(label)
    return Measured(tuple(hits), tuple(open_labels), tuple(alarms))


def main() -> int:
    """Print the figures; 1 where they are below what is asked for."""
    with tempfile.TemporaryDirectory(prefix="fsdp2-corpus-") as folder:
        write_programs(Path(folder))
        measured = measure(Path(folder))
        programs = Counter(path.parent.name for path in Path(folder).glob("*/*"))
    print(f"{programs['right']} programs that are right, {programs['planted']} edits of them with one mistake each")
    print("rule   planted  found  false alarms  precision  recall")
    for code in measured.codes():
        _print(code, measured.only(code))
    _print("all", measured)
    for what, marks in (("missed", measured.misses), ("false alarm", measured.alarms)):
        for mark in marks:
            print(f"{what}: {mark}")
    return int(measured.precision < PRECISION or measured.recall < RECALL)


def _print(name: str, measured: Measured) -> None:
    hits, planted = len(measured.hits), len(measured.hits) + len(measured.misses)
    recall = f"{measured.recall:6.2f}" if planted else "     -"
    print(f"{name:5}  {planted:7}  {hits:5}  {len(measured.alarms):12}  {measured.precision:9.2f}  {recall}")


if __name__ == "__main__":
    sys.exit(main())
