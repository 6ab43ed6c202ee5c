"""The tasks are well-formed, start wrong in the way they were made to, and can be solved; the grader tells which."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ..commands import SKILL, assert_refused, fsdp2
from ..corpus.measure import plant

EVALS = SKILL / "evals"
SOLUTIONS = Path(__file__).resolve().parent / "solutions"
LISTED = json.loads((EVALS / "evals.json").read_text())
TASKS: dict[str, dict[str, Any]] = {task["name"]: task for task in LISTED["evals"]}

# Of each task, the checks that fail where it starts, and words of why.
WRONG = {
    "retrofit-one-process": {0: "workflow a is", 1: "40 losses are printed", 2: "never initialises a process group"},
    "ddp-to-fsdp2": {0: "workflow a is"},
    "fsdp1-to-fsdp2": {0: "workflow a is"},
    "add-checkpoints": {1: "", 2: "unrecognized arguments"},
    "loss-jumps": {0: "FS701", 1: "resume: fail"},
    "learning-rate-restarts": {1: "resume: fail"},
    "dropout-after-restart": {0: "FS604", 1: "resume: fail"},
    "hang-at-save": {0: "FS102", 1: ""},
    "other-ranks": {1: "reshard: fail"},
    "preemption": {1: "exits with"},
    "flat-loss": {0: "FS401", 1: "trace: fail"},
    "garbage-positions": {0: "FS303", 1: "trace: fail"},
    "lost-last-checkpoint": {0: "FS801, FS802", 1: "async: fail"},
    "saved-shards": {0: "FS601"},
    "tensor-parallel-clipping": {0: "FS408", 1: "must have the same mesh"},
    "new-hybrid-script": {0: "no train.py", 1: "no train.py"},
    "export-weights": {0: "no model.safetensors"},
    "damaged-folder": {0: "no answer.json"},
}


def grade(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EVALS / "grade.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1500)


def prepared(name: str, place: Path) -> Path:
    """The folder of a task, where an agent would begin."""
    done = grade("prepare", str(place), "--only", name)
    assert done.returncode == 0, done.stderr
    return place / name


def reasons(name: str, place: Path) -> list[str | None]:
    """Why each check of a task fails, None where it does not."""
    done = grade("grade", str(place), "--only", name, "--format", "json")
    assert done.returncode in (0, 1), done.stderr
    (task,) = json.loads(done.stdout)["tasks"]
    return [check["reasons"][0] for check in task["checks"]]


def solve(name: str, folder: Path) -> None:
    """What an agent would have to do; of a task that plants a mistake, take it out again."""
    if (edits := SOLUTIONS / f"{name}.edits").exists():
        plant(folder, edits.read_text())
    elif name == "damaged-folder":
        shutil.copy(SOLUTIONS / f"{name}.json", folder / "answer.json")
    elif name == "export-weights":
        arguments = ("checkpoints", "model.safetensors", "--keys", "weights.*", "--rename", "weights.*=*")
        assert fsdp2("convert", *arguments, cwd=folder).returncode == 0
    elif name == "new-hybrid-script":
        assert fsdp2("generate", "--out", "train.py", "--mesh", "dp_replicate=2,dp_shard=2", cwd=folder).returncode == 0
    else:
        (right,) = TASKS[name]["files"]
        shutil.copy(SKILL / right, folder)


def test_the_list_has_the_form_of_agent_skills() -> None:
    assert set(LISTED) == {"skill_name", "evals"}
    assert LISTED["skill_name"] == "pytorch-fsdp2-dcp"
    assert len(TASKS) == len(LISTED["evals"]) >= 15
    assert [task["id"] for task in LISTED["evals"]] == list(range(1, len(TASKS) + 1))
    asked = {"id", "name", "prompt", "expected_output", "files", "assertions", "checks"}
    for task in TASKS.values():
        assert asked <= set(task) <= asked | {"edits", "run", "damage"}
        assert all(task[key] for key in asked - {"files"})
        assert set(WRONG[task["name"]]) <= set(range(len(task["checks"])))
        for file in (*task["files"], *([task["edits"]] if "edits" in task else [])):
            assert (SKILL / file).is_file()


def test_every_file_belongs_to_a_task() -> None:
    named = {file for task in TASKS.values() for file in (*task["files"], task.get("edits"))}
    named |= {check["before"].get("edits") for task in TASKS.values() for check in task["checks"] if "before" in check}
    there = {path.relative_to(SKILL).as_posix() for path in EVALS.glob("files/**/*") if path.is_file()}
    assert {path for path in there if "__pycache__" not in path} == named - {None}


def test_half_of_the_queries_are_near_misses() -> None:
    queries = json.loads((EVALS / "triggers.json").read_text())
    assert Counter(query["should_trigger"] for query in queries) == {True: 10, False: 10}
    assert len({query["query"] for query in queries}) == 20
    assert all(set(query) == {"query", "should_trigger"} for query in queries)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if "run" not in task])
def test_a_task_is_prepared_with_its_files_and_prompt(name: str, tmp_path: Path) -> None:
    folder = prepared(name, tmp_path / "new")
    assert (folder / "PROMPT.md").read_text().strip() == TASKS[name]["prompt"]
    assert {path.name for path in folder.iterdir()} == {"PROMPT.md", *(Path(f).name for f in TASKS[name]["files"])}
    for script in folder.glob("*.py"):
        compile(script.read_text(), script, "exec")


def test_the_table_tells_each_check_the_rates_and_the_uplift(tmp_path: Path) -> None:
    """Two tasks, graded without running a script: with the skill one is done, without it none."""
    for place in ("with", "without"):
        for name in ("damaged-folder", "new-hybrid-script"):
            (tmp_path / place / name).mkdir(parents=True)
    shutil.copy(SOLUTIONS / "damaged-folder.json", tmp_path / "with" / "damaged-folder" / "answer.json")
    (tmp_path / "without" / "damaged-folder" / "answer.json").write_text('{"newest_whole": "step-000020"}')
    done = grade("grade", str(tmp_path / "with"), str(tmp_path / "without"))
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "task               check                             with     without",
        "new-hybrid-script  lint train.py                     FAIL     FAIL",
        "  with: there is no train.py",
        "  without: there is no train.py",
        "new-hybrid-script  prove trace,resume,async on 4     FAIL     FAIL",
        "  with: there is no train.py",
        "  without: there is no train.py",
        "damaged-folder     answer answer.json                pass     FAIL",
        '  without: newest_whole is "step-000020"',
        "with: 1 of 2 tasks (50 %), 1 of 3 checks",
        "without: 0 of 2 tasks (0 %), 0 of 3 checks",
        "uplift: +50 points of tasks",
    ]
    again = grade("grade", str(tmp_path / "with"), "--only", "damaged-folder", "--format", "json")
    assert again.returncode == 0
    assert json.loads(again.stdout) == {
        "version": 1,
        "folders": [str(tmp_path / "with")],
        "tasks": [{"name": "damaged-folder", "checks": [{"check": "answer answer.json", "reasons": [None]}]}],
        "rates": [{"tasks": 1, "tasks_passed": 1, "checks": 1, "checks_passed": 1}],
    }


@pytest.mark.parametrize(
    ("content", "why"),
    [("step-8 is whole", "answer.json is no JSON"), ("[]", "answer.json is no JSON object"), ("{}", "is null")],
)
def test_an_answer_of_another_form_fails(content: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "damaged-folder").mkdir()
    (tmp_path / "damaged-folder" / "answer.json").write_text(content)
    (reason,) = reasons("damaged-folder", tmp_path)
    assert reason is not None
    assert why in reason


def test_what_cannot_be_graded_or_prepared_is_refused_in_one_line(tmp_path: Path) -> None:
    assert_refused(grade("grade", str(tmp_path / "none")), "none: no such folder")
    assert_refused(grade("grade", str(tmp_path)), "holds no task")
    assert_refused(grade("grade", str(tmp_path), "--only", "flat-loss"), "flat-loss: no such folder")
    assert_refused(grade("grade", str(tmp_path), "--only", "other"), "--only other: no such task", "flat-loss")
    (tmp_path / "flat-loss").mkdir()
    assert_refused(grade("prepare", str(tmp_path), "--only", "flat-loss"), "flat-loss exists")
    (tmp_path / "file").touch()
    assert_refused(grade("prepare", str(tmp_path / "file"), "--only", "flat-loss"), "file")


def test_the_readme_names_each_kind_of_check() -> None:
    said = (EVALS / "README.md").read_text()
    for kind in {check["kind"] for task in TASKS.values() for check in task["checks"]}:
        assert f"`{kind}`" in said


def some_wide(names: Iterable[str], wide: set[str]) -> list[Any]:
    """The tasks, those marked whose checks take minutes; they were timed."""
    return [pytest.param(name, marks=[pytest.mark.wide] if name in wide else []) for name in names]


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    "name",
    some_wide(WRONG, {"lost-last-checkpoint", "dropout-after-restart", "preemption", "learning-rate-restarts"}),
)
def test_a_task_starts_wrong_in_the_way_it_was_made_to(name: str, tmp_path: Path) -> None:
    prepared(name, tmp_path)
    found = reasons(name, tmp_path)
    for number, why in WRONG[name].items():
        reason = found[number]
        assert reason is not None, (number, found)
        assert why in reason


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    "name",
    some_wide(
        TASKS,
        {"lost-last-checkpoint", "dropout-after-restart", "preemption", "learning-rate-restarts", "other-ranks"},
    ),
)
def test_a_solution_passes_every_check(name: str, tmp_path: Path) -> None:
    solve(name, prepared(name, tmp_path))
    assert set(reasons(name, tmp_path)) == {None}


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(("last_words", "code"), [("terminate called without an active exception", 0), ("gone", 1)])
def test_a_rank_that_torch_aborts_at_its_end_has_not_failed(last_words: str, code: int, tmp_path: Path) -> None:
    """torch does so now and then; here the script does. Any other abort is a failure."""
    script = f"import os, sys, time\nprint({last_words!r}, file=sys.stderr, flush=True)\n"
    script += "os.abort() if os.environ['RANK'] == '1' else time.sleep(60)\n"
    (tmp_path / "train.py").write_text(script)
    launch = "import sys\nfrom pathlib import Path\nfrom tasks import launch\nhere = Path(sys.argv[1])\n"
    launch += "print(launch(here, {'script': 'train.py', 'nproc': 2}, here).code)"
    process = subprocess.run(
        [sys.executable, "-c", launch, str(tmp_path)], cwd=EVALS, capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == [str(code)]
