"""Prepare the tasks of evals.json for an agent, and grade by execution what it left behind. No model is called.

    python evals/grade.py prepare FOLDER [--only NAME]      one folder a task, with PROMPT.md
    python evals/grade.py grade WITH [WITHOUT]              what was done with the skill, and without it

Runs in the environment that has torch. Exit codes: 0 done, all checks hold; 1 a check of WITH does not; 2 it could not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from checks import Ground, check, title
from tasks import Task, UserError, tasks


def main() -> int:
    """Run the subcommand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="write the folder that each task starts from")
    grade = commands.add_parser("grade", help="grade what an agent left")
    prepare.add_argument("folder", type=Path, metavar="FOLDER")
    grade.add_argument("folder", type=Path, metavar="WITH", help="a prepared folder, after an agent with the skill")
    grade.add_argument("without", type=Path, metavar="WITHOUT", nargs="?", help="another, after one without")
    grade.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    for command in (prepare, grade):
        command.add_argument("--only", action="append", default=[], metavar="NAME", help="this task; may be repeated")
    arguments = parser.parse_args()
    try:
        return _prepare(arguments) if arguments.command == "prepare" else _grade(arguments)
    except (UserError, OSError) as error:
        print(f"grade.py {arguments.command}: {error}", file=sys.stderr)
        return 2


def _prepare(arguments: argparse.Namespace) -> int:
    chosen = tasks(arguments.only)
    for task in chosen:
        if (folder := arguments.folder / task.name).exists():
            raise UserError(f"{folder} exists; expected a folder without this task")
    for task in chosen:
        task.prepare(arguments.folder / task.name)
    number = "1 task" if len(chosen) == 1 else f"{len(chosen)} tasks"
    print(f"{number} in {arguments.folder}; the prompt of each is its PROMPT.md")
    return 0


def _grade(arguments: argparse.Namespace) -> int:
    folders = [arguments.folder] + ([arguments.without] if arguments.without else [])
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; expected one that `prepare` made")
    chosen = [t for t in tasks(arguments.only) if arguments.only or any((f / t.name).is_dir() for f in folders)]
    if not chosen:
        raise UserError(f"{folders[0]}: holds no task; expected a folder that `prepare` made")
    for task in chosen:
        for folder in folders:
            if not (folder / task.name).is_dir():
                raise UserError(f"{folder / task.name}: no such folder; expected one that `prepare` made")
    graded = []
    for task in chosen:
        print(f"grading {task.name}", file=sys.stderr)
        graded.append({"name": task.name, "checks": _graded(task, [folder / task.name for folder in folders])})
    rates = [_rates(graded, which) for which in range(len(folders))]
    document = {"version": 1, "folders": [str(f) for f in folders], "tasks": graded, "rates": rates}
    print(json.dumps(document, indent=2) if arguments.format == "json" else "\n".join(_text(document)))
    return int(rates[0]["checks_passed"] < rates[0]["checks"])


def _graded(task: Task, folders: list[Path]) -> list[dict[str, Any]]:
    """Of each check, its words and per folder why it fails, None where it holds. Each has a copy of its own."""
    graded = []
    for what in task.checks:
        reasons = []
        for folder in folders:
            with tempfile.TemporaryDirectory(prefix="fsdp2-grade-") as place:
                left = Path(place).resolve() / "left"
                shutil.copytree(folder, left)
                reasons.append(check(what, Ground(task, left, left.parent / "scratch")))
        graded.append({"check": title(what), "reasons": reasons})
    return graded


def _rates(graded: list[dict[str, Any]], which: int) -> dict[str, int]:
    held = [[one["reasons"][which] is None for one in task["checks"]] for task in graded]
    return {
        "tasks": len(held),
        "tasks_passed": sum(map(all, held)),
        "checks": sum(map(len, held)),
        "checks_passed": sum(map(sum, held)),
    }


def _text(document: dict[str, Any]) -> list[str]:
    names = ["with", "without"][: len(document["folders"])]
    wide = max(len(task["name"]) for task in document["tasks"])
    lines = [f"{'task':<{wide}}  {'check':<32}  " + "  ".join(f"{name:<7}" for name in names).rstrip()]
    for task in document["tasks"]:
        for one in task["checks"]:
            verdicts = "  ".join(f"{'pass' if reason is None else 'FAIL':<7}" for reason in one["reasons"])
            lines.append(f"{task['name']:<{wide}}  {one['check']:<32}  {verdicts}".rstrip())
            lines += [f"  {name}: {why}" for name, why in zip(names, one["reasons"], strict=True) if why is not None]
    for name, rates in zip(names, document["rates"], strict=True):
        share = 100 * rates["tasks_passed"] / rates["tasks"]
        lines.append(
            f"{name}: {rates['tasks_passed']} of {rates['tasks']} tasks ({share:.0f} %), "
            f"{rates['checks_passed']} of {rates['checks']} checks"
        )
    if len(names) == 2:
        more = document["rates"][0]["tasks_passed"] - document["rates"][1]["tasks_passed"]
        lines.append(f"uplift: {100 * more / document['rates'][0]['tasks']:+.0f} points of tasks")
    return lines


if __name__ == "__main__":
    sys.exit(main())
