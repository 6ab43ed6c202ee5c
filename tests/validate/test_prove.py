"""The verb `validate` on whole scripts: what it proves, what it fails, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pytorch_fsdp2_dcp.validate import command

from ..commands import SKILL, fsdp2
from ..runs import alive
from ..schemas import VALIDATE

SCRIPTS = SKILL / "tests" / "fixtures" / "scripts"


@dataclass(frozen=True)
class Validate:
    """Runs the verb in this process, so that all tests share one warm parent."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, script: Path, *options: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, proofs by name, and stderr of a run on two ranks, from the script's folder."""
        self.monkeypatch.chdir(script.parent)
        code = command.main(["validate", script.name, "--format", "json", *options])
        printed = self.capsys.readouterr()
        if not printed.out:
            return code, {}, printed.err
        document = json.loads(printed.out)
        jsonschema.validate(document, VALIDATE)
        return code, {proof["name"]: proof for proof in document["proofs"]}, printed.err


@pytest.fixture
def validate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Validate:
    return Validate(monkeypatch, capsys)


def codes(proof: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in proof["findings"]}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory that holds the scripts."""
    return Path(shutil.copytree(SCRIPTS, tmp_path / "work"))


@pytest.mark.slow
def test_a_right_script_that_nobody_prepared_passes_both_proofs(validate: Validate, place: Path) -> None:
    code, proofs, _ = validate(place / "by_helpers.py", "--prove", "trace,resume")
    assert code == 0, proofs
    assert {proof["status"] for proof in proofs.values()} == {"pass"}
    assert proofs["resume"]["figures"]["max_loss_difference"] == 0.0
    assert proofs["resume"]["figures"]["steps_after_resuming"] == proofs["resume"]["figures"]["steps_expected"] > 0
    assert not (place / "checkpoint").exists(), "a run wrote into the user's own directory"


@pytest.mark.slow
def test_the_skeleton_of_the_tutorials_loses_its_optimizer_and_fails(validate: Validate, place: Path) -> None:
    code, proofs, _ = validate(place / "raw_skeleton.py", "--prove", "resume")
    assert code == 1
    assert proofs["resume"]["status"] == "fail"
    assert "of optimizer state not restored" in proofs["resume"]["reason"]
    assert proofs["resume"]["figures"]["max_loss_difference"] > 0
    assert codes(proofs["resume"]) == {"FS701"}, "the load that only the resumed run makes was not judged"


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        ("", None),
        ('        state["average"] = self.average\n', "`self.average`"),
        ('        state["teacher"] = self.teacher.state_dict()\n', "`Sequential"),
    ],
)
def test_weights_kept_beside_the_model_are_restored_or_missed(
    validate: Validate, place: Path, left_out: str, told: str | None
) -> None:
    script = place / "averages.py"
    script.write_text(script.read_text().replace(left_out, ""))
    code, proofs, _ = validate(script, "--prove", "resume")
    assert (code, proofs["resume"]["figures"]["carried"]) == (int(told is not None), ["Sequential 2", "self.average"])
    assert (told or "equal bit for bit") in proofs["resume"]["reason"]


@pytest.mark.slow
@pytest.mark.matrix
def test_statistics_of_each_ranks_own_samples_are_lost_unless_ranks_agree_on_them_before_a_save(
    validate: Validate, place: Path
) -> None:
    script = place / "in_background.py"
    script.write_text(script.read_text().replace("            average_statistics(model)\n", ""))
    code, proofs, _ = validate(script, "--prove", "resume")
    assert (code, codes(proofs["resume"])) == (1, {"FS506"})
    assert "the first difference is the buffers of step 7" in proofs["resume"]["reason"]
    assert "`1.running_mean`" in proofs["resume"]["reason"]


@pytest.mark.slow
def test_an_optimizer_built_before_sharding_is_seen_in_a_run(validate: Validate, place: Path) -> None:
    script = place / "early_optimizer.py"
    code, proofs, _ = validate(script, "--prove", "trace")
    assert (code, codes(proofs["trace"])) == (1, {"FS401"})
    at = proofs["trace"]["findings"][0]["line"]
    lines = script.read_text().splitlines()
    lines[at - 1] += "  # fsdp2: ignore[FS401] a test"
    script.write_text("\n".join(lines))
    code, proofs, _ = validate(script, "--prove", "trace")
    assert (code, codes(proofs["trace"])) == (0, set())
    assert proofs["trace"]["figures"]["accepted"] == [f"FS401 at early_optimizer.py:{at}"]
    assert "(1 finding accepted by a comment in the source)" in proofs["trace"]["reason"]


@pytest.mark.slow
def test_forward_by_name_is_seen_in_a_run(validate: Validate, place: Path) -> None:
    code, proofs, _ = validate(place / "forward_by_name.py", "--prove", "trace")
    assert (code, codes(proofs["trace"])) == (1, {"FS403"})


@pytest.mark.slow
def test_the_linter_says_the_same_of_the_same_scripts() -> None:
    found = {}
    for script in sorted(SCRIPTS.glob("*.py")):
        document = json.loads(fsdp2("lint", str(script), "--format", "json", cwd=SKILL).stdout)
        found[script.stem] = {finding["code"] for finding in document["findings"]}
    assert found == {
        "averages": set(),
        "by_helpers": set(),
        "early_optimizer": {"FS401"},
        "forward_by_name": {"FS403"},
        "in_background": set(),
        "keeps_two": set(),
        "raw_skeleton": {"FS701"},
    }


SHARDED = "import torch\nfrom torch.distributed.fsdp import fully_shard\nfully_shard(torch.nn.Linear(2, 2))\n"
ASKING = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--data', required=True)\n"
PREPARED = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("print('no group')\n", "never initialises a process group"),
        (PREPARED + SHARDED + "dist.destroy_process_group()\n", "never saves a checkpoint"),
        (PREPARED + "dist.destroy_process_group()\n", "neither shards a model nor trains nor saves"),
        (PREPARED + "raise RuntimeError('on purpose')\n", "exits with 1: RuntimeError: on purpose"),
        (PREPARED + "import sys; sys.exit(3)\n", "exits with 3"),
        (PREPARED + "input('which? ')\n", "asks for input"),
        (ASKING + "parser.parse_args()\n", "give the script its options after --"),
        ("import torch.distributed as dist\nimport torch\ntorch.cuda.set_device(0)\n", "needs CUDA"),
        ("from . import model\n", ".train import main; main())"),
    ],
    ids=[
        *("no process group", "no save", "nothing at all", "an exception", "an exit code", "a question", "options"),
        *("CUDA", "a module of a package"),
    ],
)
def test_a_script_that_gives_nothing_to_prove_is_told_in_one_line(
    validate: Validate, script: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    code, _, stderr = validate(tmp_path / "train.py")
    line = next((line for line in stderr.splitlines() if words in line), "")
    assert (code, "train.py" in line) == (2, True), stderr
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_text_tells_a_reason_once(validate: Validate, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PREPARED + "raise RuntimeError('on purpose')\n")
    validate.monkeypatch.chdir(tmp_path)
    assert command.main(["validate", "train.py"]) == 2
    printed = validate.capsys.readouterr()
    assert (printed.out.count("on purpose"), printed.err) == (1, "")
    assert "  resume   SKIP  as trace\n" in printed.out


@pytest.mark.slow
def test_a_hang_is_a_verdict_with_each_ranks_stack(validate: Validate, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        PREPARED + "import time\n\ndef wait_for_nobody():\n"
        "    if dist.get_rank() == 0:\n        dist.barrier()\n    time.sleep(600)\n\nwait_for_nobody()\n"
    )
    code, proofs, _ = validate(tmp_path / "train.py", "--prove", "trace", "--timeout", "4")
    assert code == 1
    assert proofs["trace"]["status"] == "fail"
    assert "still running after 4 s" in proofs["trace"]["reason"]
    assert codes(proofs["trace"]) == {"FS102"}
    stacks = proofs["trace"]["figures"]["stacks"]
    assert set(stacks) == {"0", "1"}
    assert all("wait_for_nobody" in stack for stack in stacks.values())
    assert proofs["trace"]["figures"]["hang"] == [
        {"rank": 0, "steps": 0, "code": None, "call": "barrier", "at": "train.py:7", "missing": [1]},
        {"rank": 1, "steps": 0, "code": None, "call": None, "at": "train.py:8", "missing": []},
    ]
    told = "rank 0 waits in barrier at train.py:7 for rank 1; rank 1 is at train.py:8, outside any call that the probe"
    assert told in proofs["trace"]["reason"]


@pytest.mark.slow
def test_a_proof_that_says_nothing_of_a_script_is_an_error_only_where_it_is_named(
    validate: Validate, place: Path
) -> None:
    """Its batch is that of a rank, so that on one rank it is another; nothing is wrong with that."""
    code, proofs, stderr = validate(place / "by_helpers.py", "--prove", "parity")
    assert (code, proofs["parity"]["status"]) == (2, "skip")
    assert "its global batch changes with the ranks: 8 and 4 samples a step" in stderr
    code, proofs, stderr = validate(place / "by_helpers.py")
    assert (code, proofs["parity"]["status"]) == (0, "skip"), proofs
    assert "its global batch changes" in proofs["parity"]["reason"]
    assert stderr == ""  # nothing that the user asked for was left out


@pytest.mark.slow
def test_a_script_that_saves_where_its_runs_would_meet_is_refused(
    validate: Validate, place: Path, tmp_path: Path
) -> None:
    script = place / "by_helpers.py"
    script.write_text(script.read_text().replace('PATH = "checkpoint"', f"PATH = {str(tmp_path / 'elsewhere')!r}"))
    code, _, stderr = validate(script, "--prove", "resume")
    assert (code, "--checkpoint-arg" in stderr) == (2, True)


@pytest.mark.slow
def test_the_checkpoint_flag_is_given_a_fresh_directory_each_run(validate: Validate, place: Path) -> None:
    script = place / "by_helpers.py"
    script.write_text(script.read_text().replace('PATH = "checkpoint"', "import sys\nPATH = sys.argv[-1]"))
    code, proofs, stderr = validate(
        script,
        "--prove",
        "resume",
        "--checkpoint-arg",
        "--to",
        "--",
        "--to",
        "mine",
    )
    assert code == 0, (proofs, stderr)
    assert not (place / "mine").exists()


@pytest.mark.slow
def test_a_long_script_is_ended_after_the_steps_that_are_asked_for(validate: Validate, place: Path) -> None:
    script = place / "by_helpers.py"
    script.write_text(script.read_text().replace("STEPS = 8", "STEPS = 10**6"))
    code, proofs, stderr = validate(script, "--stop-after", "7", "--prove", "resume")
    assert code == 0, (proofs, stderr)
    assert proofs["resume"]["figures"]["steps"] == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.py"], "no such file"),
        (["broken.py"], "broken.py:1: does not parse"),
        (["latin.py"], "not UTF-8"),
        (["good.py", "--prove", "everything"], "no such proof"),
        (["good.py", "--to-nproc", "0"], "--to-nproc 0: expected a number above 0"),
        (["good.py", "--nproc", "0"], "--nproc 0: expected a number above 0"),
        (["good.py", "--timeout", "-1"], "expected a number above 0"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    validate: Validate, arguments: list[str], words: str, tmp_path: Path
) -> None:
    (tmp_path / "good.py").write_text("raise SystemExit('it ran')\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    name, *options = arguments
    code, proofs, stderr = validate(tmp_path / name, *options)
    assert (code, proofs, len(stderr.splitlines())) == (2, {}, 1)
    assert words in stderr


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(signum: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    begun = tmp_path / "begun"
    script = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(987)\n"
    (tmp_path / "train.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, str(SKILL), "validate", "train.py", "--prove", "trace"],
        env={**os.environ, "TMPDIR": str(folder)},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for _ in range(3000):
        if begun.exists():
            break
        time.sleep(0.02)
    process.send_signal(signum)
    process.communicate()
    assert begun.exists()
    assert process.returncode != 0
    assert [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor")] == []
    assert alive(str(tmp_path)) == []


@pytest.mark.slow
def test_a_script_whose_length_can_be_set_ends_by_itself(validate: Validate, place: Path) -> None:
    """So its last save and what it does after it are seen, which they are not where the probe ends it."""
    script = place / "by_helpers.py"
    last = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--steps', type=int)"
    text = script.read_text().replace("STEPS = 8", f"{last}\nSTEPS = parser.parse_args().steps")
    script.write_text(text.replace("    dist.barrier()", "    raise SystemExit('to the end')"))
    chosen = ("--stop-after", "7", "--prove", "trace")
    own = ("--", "--steps", "1000")
    code, _, stderr = validate(script, "--steps-arg", "--steps", *chosen, *own)
    assert (code, "to the end" in stderr) == (2, True), stderr
    code, proofs, stderr = validate(script, *chosen, *own)
    assert (code, proofs["trace"]["status"]) == (0, "pass"), stderr


def test_a_flag_for_the_length_needs_a_length(validate: Validate, place: Path) -> None:
    code, _, stderr = validate(place / "by_helpers.py", "--steps-arg", "--steps")
    assert (code, "--stop-after N" in stderr) == (2, True)
