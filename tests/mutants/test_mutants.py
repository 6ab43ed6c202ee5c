"""The mutants themselves, what the linter finds of them by itself, and that each proof kills one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")
from pytorch_fsdp2_dcp.validate.proofs import PROOFS

from .measure import ORDER, Verdict, judged, table
from .programs import CLASSES, Program, mutants, right

MUTANTS = {program.name: program for program in mutants()}

KILLS = [
    ("trace", "C-save-meets-training"),
    ("trace", "A-every-rank-the-same-data"),
    ("trace", "A-loss-in-bf16"),
    ("parity", "A-accumulation-divided-twice"),
    ("parity", "A-loss-of-one-rank-logged"),
    ("parity", "A-batches-drawn-by-rank"),
    ("resume", "B-generators-not-saved"),
    ("resume", "B-average-of-weights-not-saved"),
    ("export", "B-exported-in-bf16"),
    ("async", "B-staging-not-waited-for"),
    ("reshard", "D-more-ranks-than-keys"),
    ("crash", "D-half-a-checkpoint-resumed"),
    ("crash", "B-signal-ends-without-a-save"),
]

# What the linter finds by itself. It may find more; a name goes from here only with its mutant.
LINTED = {
    "A-accumulation-not-divided",
    "A-blocks-in-half-precision-root-not",
    "A-cast-after-sharding",
    "A-epoch-not-set",
    "A-gradient-norm-by-item",
    "A-gradients-reduced-in-bf16",
    "A-head-attached-after-sharding",
    "A-hybrid-mesh-dims-swapped",
    "A-ignored-but-trained",
    "A-loss-reduced-before-backward",
    "A-mean-over-unequal-tokens",
    "A-no-sampler",
    "A-norm-of-local-gradients",
    "A-optimizer-after-a-forward",
    "A-optimizer-before-sharding",
    "A-root-not-sharded-without-clipping",
    "A-root-not-sharded",
    "A-sync-never-turned-on-again",
    "A-tensor-parallel-peers-read-different-data",
    "A-tie-in-two-groups",
    "A-weights-kept-in-bf16",
    "B-exported-from-local-shards",
    "B-future-thrown-away",
    "B-generators-of-rank-0",
    "B-last-save-not-awaited",
    "B-local-shards-saved",
    "B-nothing-set-after-loading",
    "B-objects-saved-raw",
    "B-one-directory-for-all",
    "B-optimizer-not-restored",
    "B-optimizer-saved-raw",
    "B-schedule-not-restored",
    "B-shards-by-torch-save",
    "B-staging-not-waited-for",
    "C-barrier-on-rank-0",
    "C-evaluation-on-rank-0",
    "C-export-on-rank-0",
    "C-failure-of-one-rank-kept-to-itself",
    "C-full-state-on-rank-0",
    "C-group-made-by-rank-0",
    "C-load-on-rank-0",
    "C-loss-reduced-where-it-is-printed",
    "C-main-without-its-guard",
    "C-save-on-rank-0",
    "C-saves-overlap",
    "C-weights-looked-at-on-rank-0",
    "C-weights-on-rank-0-not-broadcast",
    "D-another-order-at-load",
    "D-block-before-the-root",
    "D-clipping-of-fsdp1",
    "D-copy-of-a-sharded-model",
    "D-error-of-a-load-passed-over",
    "D-forward-by-name",
    "D-fully-shard-from-its-old-place",
    "D-list-of-layers-sharded",
    "D-meshes-of-two-roots",
    "D-method-of-its-own",
    "D-no-sync-of-fsdp1",
    "D-norm-in-no-plan",
    "D-prefix-of-compile",
    "D-root-first",
    "D-tensor-parallelism-after-sharding",
    "E-full-state-in-checkpoints",
    "E-full-state-on-every-rank",
    "E-root-alone-sharded",
    "E-stager-for-each-save",
}


@pytest.mark.parametrize("name", MUTANTS)
def test_an_edit_fits_and_the_script_parses(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    assert (mutant.group in CLASSES, mutant.name[:2]) == (True, f"{mutant.group}-")
    subject = mutant.write(tmp_path)
    original = Program(name="its base", base=mutant.base).write(tmp_path / "base")
    changed = [
        path.name
        for path in sorted(subject.script.parent.rglob("*.py"))
        if path.read_text() != (original.script.parent / path.name).read_text()
    ]
    assert changed
    for path in changed:
        compile((subject.script.parent / path).read_text(), path, "exec")


def test_there_are_mutants_of_every_class_and_many_right_scripts() -> None:
    by_class = Counter(mutant.group for mutant in MUTANTS.values())
    assert min(by_class[letter] for letter in CLASSES) >= 10
    assert by_class.total() >= 80
    assert len(list(right())) >= 20
    assert len({program.name for program in right()}) == len(list(right()))


@pytest.mark.slow
def test_the_linter_finds_at_least_what_it_did() -> None:
    found = {name for name, mutant in MUTANTS.items() if next(judged(mutant, only=())).fails}
    assert found >= LINTED, LINTED - found


def test_every_proof_is_tried() -> None:
    assert {proof.name for proof in PROOFS} == {*ORDER}


def test_the_table_counts_by_class_and_leaves_out_what_is_equivalent() -> None:
    def one(group: str, equivalent: str = "") -> Program:
        return Program(name=f"{group}{equivalent}", base="generate", group=group, equivalent=equivalent)

    lines = table(
        {
            one("A"): [Verdict("lint", True, "FS101"), Verdict("resume", True, "lost")],
            one("B"): [Verdict("lint", False, ""), Verdict("trace", False, ""), Verdict("end", True, "exits with 1")],
            one("C"): [Verdict("lint", False, "")],
            one("C", "argued"): [Verdict("lint", False, "")],
        }
    )
    figures = {line.split()[0]: [int(word) for word in line.split() if word.isdecimal()] for line in lines[1:]}
    assert figures["A"] == [1, 1, 0, 1, 0, 1]
    assert figures["B"] == [1, 0, 0, 0, 1, 1]
    assert figures["C"] == [1, 0, 0, 0, 0, 0]
    assert figures["all"] == [3, 1, 0, 1, 1, 2]


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(("proof", "name"), KILLS)
def test_a_proof_kills_a_mutant(proof: str, name: str) -> None:
    verdicts = [v for v in judged(MUTANTS[name], every=True, only=(proof,)) if v.by == proof]
    assert [v.fails for v in verdicts] == [True], verdicts
