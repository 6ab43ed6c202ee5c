"""The proof `crash`: a script that keeps what it has saved passes, and one with a planted mistake fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.proofs.bench import Bench, Subject
from pytorch_fsdp2_dcp.validate.proofs.crash import CUTS, Broken, Examination
from pytorch_fsdp2_dcp.validate.proofs.damage import newest, plant, problem
from pytorch_fsdp2_dcp.validate.proofs.ground import ground

from ..runs import run_script
from .test_prove import Validate, place, validate  # noqa: F401 - fixtures

SAVE = 'dcp.save({"trainer": self}, checkpoint_id=folder)'


@pytest.mark.slow
def test_a_script_that_keeps_what_is_whole_is_cut_in_every_phase(validate: Validate, place: Path) -> None:  # noqa: F811
    code, proofs, stderr = validate(place / "keeps_two.py", "--prove", "crash")
    assert code == 0, (proofs, stderr)
    figures = proofs["crash"]["figures"]
    seen = [(cut["harm"], cut["phase"], cut.get("damage")) for cut in figures["cuts"]]
    assert seen == [
        (cut.harm, cut.phase, cut.damage)
        for cut in CUTS
        if cut.phase != "staging" and cut.harm not in ("kill writer", "signal")  # it handles none
    ]
    assert figures["not_seen"] == []
    assert all(0 <= cut["steps_lost"] <= cut["allowed"] <= 2 for cut in figures["cuts"])
    assert [cut["steps_lost"] for cut in figures["cuts"]][:7] == [2] * 7
    by_phase = {cut["phase"]: cut for cut in figures["cuts"]}
    assert by_phase["published"]["resumed_from_step"] == by_phase["published"]["ended_after_step"]


@pytest.mark.slow
@pytest.mark.matrix
def test_no_run_goes_on_past_the_end_of_the_straight_one_whichever_checkpoint_it_finds(
    validate: Validate,  # noqa: F811
    place: Path,  # noqa: F811
) -> None:
    """Killed after the metadata of step 4, the next run has one step left, not the three of who must know step 2."""
    script = place / "keeps_two.py"
    script.write_text(script.read_text().replace("STEPS, KEEP = 2, 9, 2", "STEPS, KEEP = 2, 10**6, 1"))
    code, proofs, stderr = validate(script, "--stop-after", "5", "--prove", "trace,resume,crash")
    assert code == 0, (proofs, stderr)
    figures = proofs["crash"]["figures"]
    assert (figures["steps"], figures["not_seen"]) == (5, [])
    assert max(cut["ended_after_step"] for cut in figures["cuts"]) == 4
    assert {cut["phase"] for cut in figures["cuts"]} >= {"published", "removal"}


@pytest.mark.slow
@pytest.mark.matrix
def test_a_script_that_publishes_by_renaming_may_lose_what_it_had_not_renamed(
    validate: Validate,  # noqa: F811
    place: Path,  # noqa: F811
) -> None:
    script = place / "keeps_two.py"
    first = "        if dist.get_rank() == 0:\n            "
    renamed = (
        f'part = ROOT / f"part-{{self.done}}"\n{first}shutil.rmtree(part, ignore_errors=True)\n        dist.barrier()\n'
        f"        {SAVE.replace('folder', 'part')}\n{first}part.rename(folder)\n        dist.barrier()"
    )
    script.write_text(script.read_text().replace(SAVE, renamed))
    code, proofs, stderr = validate(script, "--prove", "crash")
    assert code == 0, (proofs, stderr)
    (published,) = (cut for cut in proofs["crash"]["figures"]["cuts"] if cut["phase"] == "published")
    assert (published["whole_checkpoint_at_step"], published["resumed_from_step"]) == (4, 2)
    assert proofs["crash"]["figures"]["not_seen"] == [
        "a truncated checkpoint where the next save goes",
        "a checkpoint that lacks a file where the next save goes",
    ]


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ([("ROOT / str(self.done)", 'ROOT / "0"')], ["the disk full while a rank writes", "step"]),
        (
            [("if is_whole(f)), key=lambda f: int(f.name), default", "), key=lambda f: int(f.name), default")],
            ["the disk full while a rank writes", "before it has taken a step"],
        ),
        (
            [("return all(files.get", "return True or all(files.get")],
            ["a truncated checkpoint where the next save goes", "before it has taken a step"],
        ),
        (
            [(SAVE, f"try:\n            {SAVE}\n        except BaseException as error:\n            print(error)")],
            ["the disk full while a rank writes", "ends with exit code 0 all the same"],
        ),
        (
            [("shutil.rmtree(folder, ignore_errors=True)", "shutil.rmtree(ROOT, ignore_errors=True)")],
            ["it begins from scratch, and the checkpoint of step 2 was whole"],
        ),
        (
            [("shutil.rmtree(folder, ignore_errors=True)", "folder.mkdir(parents=True)")],
            ["FileExistsError"],
        ),
        ([("    trainer.resume()\n", "")], ["it begins from scratch, and the checkpoint of step 2 was whole"]),
    ],
    ids=[
        "one folder overwritten",
        "the newest folder, whole or not",
        "metadata taken for a whole checkpoint",
        "errors of saving swallowed",
        "the old ones removed before the new one is there",
        "a folder in the way",
        "never loads",
    ],
)  # fmt: skip
def test_a_planted_mistake_is_refused_with_the_phase_named(
    validate: Validate,  # noqa: F811
    place: Path,  # noqa: F811
    edits: list[tuple[str, str]],
    words: list[str],
) -> None:
    script = place / "keeps_two.py"
    for old, new in edits:
        assert script.read_text().count(old) == 1
        script.write_text(script.read_text().replace(old, new))
    code, proofs, stderr = validate(script, "--prove", "crash")
    assert (code, proofs["crash"]["status"]) == (1, "fail"), (proofs, stderr)
    assert all(word in proofs["crash"]["reason"] for word in words), proofs["crash"]["reason"]


HANDLED = {
    "import pickle\n": "import pickle\nimport signal\nimport sys\n",
    "        self.done = 0\n": "        self.done, self.asked = 0, torch.tensor(0)\n"
    "        signal.signal(signal.SIGTERM, self.ask)\n\n"
    "    def ask(self, signum, frame):\n        self.asked += 1\n",
    "            if self.done % EVERY == 0:\n                self.save()\n": "            dist.all_reduce(self.asked)\n"
    "            if self.asked or self.done % EVERY == 0:\n                self.save()\n"
    "            if self.asked:\n                break\n",
}


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("", ""), None),
        (("self.asked += 1", "sys.exit(143)"), None),  # says that it was cut off, and promises nothing
        (("self.asked += 1", "raise KeyError(signum)"), None),
        (("if self.asked or self.done", "if self.done"), "begins from step 2, and all ranks had ended with 0"),
        (("dist.all_reduce(self.asked)", "pass"), "is sent SIGTERM after its first step"),
    ],
    ids=["saves and ends", "exits at once", "raises", "ends without saving", "each rank by itself"],
)
def test_a_signal_that_is_handled_loses_nothing_where_the_script_ends_with_0(
    place: Path,  # noqa: F811
    tmp_path: Path,
    edit: tuple[str, str],
    words: str | None,
) -> None:
    script = place / "keeps_two.py"
    for old, new in (*HANDLED.items(), edit):
        script.write_text(script.read_text().replace(old, new))
    (tmp_path / "runs").mkdir()
    subject = Subject(
        script=script, args=(), nproc=2, cwd=place, checkpoint_arg=None, stop_after=None, timeout=20,
    )  # fmt: skip
    bench = Bench(subject, launcher("warm"), tmp_path / "runs")
    examined = Examination(bench, ground(bench))
    (asked,) = (cut for cut in CUTS if cut.harm == "signal")

    def examine() -> None:
        examined.cut(asked)
        examined.end()

    if words is None:
        examine()
        (seen,) = examined.cuts
        assert (seen["ended_after_step"], seen["resumed_from_step"]) == (3, 2 if edit[0] else 3)
    else:
        with pytest.raises(Broken, match=words):
            examine()


@pytest.mark.slow
def test_damage_is_what_it_says(tmp_path: Path) -> None:
    run = run_script(tmp_path, "dcp.save({'model': shard(Model()).state_dict()}, checkpoint_id='saved/1')")
    assert run.succeeded, run.ends[0].output
    saved = tmp_path / "cwd" / "saved"
    whole = saved / "1"
    assert problem(whole) is None
    for damage, word in (
        ("a truncated checkpoint", "needed"),
        ("a checkpoint that lacks a file", "missing"),
        ("an empty folder", "no checkpoint"),
    ):
        assert plant(damage, saved / "2", whole)  # type: ignore[arg-type]
        assert word in (problem(saved / "2") or "")
    assert problem(whole) is None
    assert newest(saved) == whole
    assert not plant("a truncated checkpoint", saved / "3", None)
