"""The page that `validate --report` writes: what it shows, that it is safe and alone, and where it is refused."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
from pytorch_fsdp2_dcp.validate import command, prove
from pytorch_fsdp2_dcp.validate.page.losses import loss_chart
from pytorch_fsdp2_dcp.validate.page.ownership import cells, groups, heads, size
from pytorch_fsdp2_dcp.validate.page.render import render
from pytorch_fsdp2_dcp.validate.page.scale import Scale
from pytorch_fsdp2_dcp.validate.page.timeline import LANES, timeline

from ..commands import SKILL, assert_refused, fsdp2
from ..schemas import VALIDATE
from .documents import FINDING, document, module, proof, rank, save

SCRIPTS = SKILL / "tests" / "fixtures" / "scripts"
VOID = {"meta", "line", "rect", "circle", "polyline", "path"}
DRAWN = {"line", "rect", "circle", "polyline", "path"}


class Page(HTMLParser):
    """Its elements as (tag, attributes), its text, and its own text by tag. Fails where tags are not balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in DRAWN, tag
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.texts[tag][-1] += data

    @property
    def text(self) -> str:
        return " ".join(self.texts["main"] + self.texts["header"])

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_each_proof_is_told_with_verdict_claim_reason_and_time() -> None:
    page = Page(render(document(proof(), proof("async", "skip", "it saves by dcp.save only"))))
    assert page.texts["h1"] == ["train.py: 1 of 2 proofs passed, 1 skipped"]
    table = page.texts["table"][0]
    for words in ("trace", "✓ pass", "– skip", "as it should be", "it saves by dcp.save only", "1.2 s"):
        assert words in table


def test_a_finding_has_both_places_with_their_source_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("\noptimizer = AdamW(model.parameters())\nfully_shard(model)\n")
    monkeypatch.chdir(tmp_path)
    (article,) = Page(render(document(proof(status="fail", findings=[FINDING])))).texts["article"]
    for words in (
        "FS401 optimizer-before-sharding",
        "error, seen by the proof trace on rank 0, 1",
        "train.py:2",
        "2 | optimizer = AdamW(model.parameters())",
        "train.py:3",
        "sharded here",
        "3 | fully_shard(model)",
        "Clause 4",
    ):
        assert words in article


def test_the_curves_lie_over_each_other_and_say_so() -> None:
    resume = proof("resume", figures={"losses": [[2, 1.5], [3, 1.25]], "resumed_from_step": 1, "stopped_after_step": 2})
    page = Page(render(document(resume)))
    straight, resumed = (line["points"] for line in page.all("polyline"))
    assert straight is not None and resumed is not None and straight.endswith(resumed)
    assert "equal at every common step" in page.text
    assert "killed after step 2 and resumed from step 1" in page.text


def test_a_loss_that_is_not_finite_is_a_gap() -> None:
    chart = loss_chart([[1, 2.0], [2, None], [3, 1.0], [4, 0.5]], None, None)
    assert chart is not None
    assert (len(chart.straight.lines), chart.gaps, chart.resumed) == (1, [2], None)
    assert loss_chart([[1, None]], None, None) is None


def test_curves_that_part_tell_by_how_much() -> None:
    chart = loss_chart([[1, 2.0], [2, 1.0]], [[2, 1.25]], 1)
    assert chart is not None and "apart by at most 0.25" in chart.words


def test_the_saves_are_told_in_time_and_where_the_loop_stood_still() -> None:
    page = Page(render(document(saves=[save(), save(3, "sync", [rank(0, 0.25, waits=[]), rank(1, 0.125, waits=[])])])))
    table = page.texts["table"][1]
    for words in ("out/step-2", "train.py:7", "0.450 s", "0.600 s (rank 1)", "0.250 s (rank 0)"):
        assert words in table
    assert "on rank 0 the loop stood still for saves for 0.7 s of 2.4 s (29 %)" in page.text


def test_what_was_not_seen_of_a_save_is_not_drawn() -> None:
    unseen = rank(0, 0.0, returned=None, staged=None, written=None, waits=[])
    page = Page(render(document(saves=[save(ranks=[unseen])])))
    assert "not seen" in page.texts["table"][1]
    assert timeline({"saves": [save(ranks=[unseen | {"called": None}])], "steps": []}) is None


def test_a_look_at_a_future_that_is_done_is_not_drawn_as_a_wait() -> None:
    looks = rank(0, 0.25, waits=[[1.9, 1.9001], [2.0, 2.5]])
    drawing = timeline({"saves": [save(ranks=[looks])], "steps": [[0, 0.0], [1, 2.5]]})
    assert drawing is not None and len(drawing.lanes[0].still) == 2, "the call, and the wait that lasted"


def test_of_many_saves_the_drawing_has_the_first_and_the_table_all() -> None:
    page = Page(render(document(saves=[save(step) for step in range(1, LANES + 4)])))
    assert "3 later saves in the table only" in page.text
    assert f"out/step-{LANES + 3}" in page.texts["table"][1]


def test_modules_are_told_by_group_and_rank() -> None:
    ownership = [
        module("", [""], [8, 8]),
        module("norm", ["norm", "head"], [2048, 1024]),
        module("head", ["norm", "head"], [0, 1024]),
        module("adapter", [], [4, 4], shards=["whole on each rank"]),
    ]
    found = groups(ownership)
    assert [(g.name, g.bytes) for g in found] == [
        ("(root)", [8, 8]),
        ("norm, head", [2048, 2048]),
        ("not sharded", [4, 4]),
    ]
    table = Page(render(document(ownership=ownership))).texts["table"][2]
    for words in ("norm, head", "dp_shard=2: Shard(0)", "float32", "2,468", "2.0 KiB", "rank 1", "Optimizer state"):
        assert words in table


def test_of_many_ranks_the_least_and_the_most_are_told() -> None:
    assert (heads(9), cells([*range(1, 10)])) == (["least of a rank", "most of a rank"], ["1 B", "9 B"])
    assert [size(n) for n in (1023, 1536, 5 * 2**30, 2**45)] == ["1023 B", "1.5 KiB", "5.0 GiB", "32.0 TiB"]


def test_a_run_that_showed_nothing_is_told_in_words() -> None:
    empty = document(proof(status="skip", reason="it exits with 1"), losses=[], steps=[], saves=[], ownership=[])
    for one in (empty, empty | {"run": None}):
        text = Page(render(one)).text
        for words in ("it exits with 1", "No loss was seen", "No save by DCP was seen", "came to no optimizer step"):
            assert words in text


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> & \" ' \x1b[31m \udcff \x00"


def test_nothing_of_a_script_becomes_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, its source, its exceptions, the names of its modules and directories, and its stacks."""
    (tmp_path / "<b>.py").write_text("\nx = '<i>'\ny = '</pre><u>'\n")
    monkeypatch.chdir(tmp_path)
    finding = FINDING | {"file": "<b>.py", "message": HOSTILE}
    finding["related"] = [{"file": "<b>.py", "line": 3, "message": HOSTILE}]
    whole = document(
        proof(status="fail", reason=HOSTILE, figures={"stacks": {"0": HOSTILE}, "why": HOSTILE}, findings=[finding]),
        script="<b>.py",
        saves=[save() | {"target": HOSTILE, "file": HOSTILE}],
        ownership=[module(HOSTILE, [HOSTILE], [1, 2], shards=[HOSTILE], dtypes=[HOSTILE])],
    )
    html = render(whole)
    page = Page(html)
    assert not {tag for tag, _ in page.elements} & {"script", "img", "b", "i", "u"}
    assert page.texts["title"][0].startswith("<b>.py: ")
    assert "alert(1)" in page.text
    assert "2 | x = '<i>'" in page.text and "3 | y = '</pre><u>'" in page.text
    html.encode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", html)


def test_the_page_is_alone() -> None:
    """Nothing is loaded, and the page itself forbids it."""
    html = render(document(proof(status="fail", findings=[FINDING])))
    page = Page(html)
    assert not re.search(r"https?:|//[a-z]|@import|@font-face", html)
    assert re.findall(r"url\(([^)]*)\)", html) == ["#hatch"]
    assert not [a for _, a in page.elements if {"src", "href", "srcset", "data"} & a.keys()]
    assert not [name for _, a in page.elements for name in a if name.startswith("on")]
    assert "default-src 'none'" in html


def test_the_page_can_be_read_without_seeing_it() -> None:
    page = Page(render(document(proof(status="fail", findings=[FINDING]), proof("async", "skip"))))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(head.get("scope") in ("col", "row") for head in page.all("th"))
    assert all(svg.get("role") == "img" and svg.get("aria-label") for svg in page.all("svg"))
    named = {a["id"] for _, a in page.elements if "id" in a}
    assert all(section.get("aria-labelledby") in named for section in page.all("section"))
    assert page.all("html") == [{"lang": "en"}]
    assert "width=device-width" in str(page.all("meta"))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(scheme: int) -> None:
    """By the contrast of WCAG 2: 4.5 to 1 for text."""
    sheets = re.findall(r":root \{[^}]*--page[^}]*\}", render(document()))
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", sheets[scheme]))
    for text in ("text", "muted", "pass", "fail", "skip", "one", "two"):
        for behind in ("page", "card"):
            assert contrast(colours[text], colours[behind]) >= 4.5, (text, behind)


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_axes_are_labelled_with_round_values() -> None:
    assert Scale(0.0, 1.0, 0.0, 100.0).ticks(5) == [(20.0 * n, f"{0.2 * n:.1f}") for n in range(6)]
    assert [word for _, word in Scale(1, 3, 0, 1).ticks(8, whole=True)] == ["1", "2", "3"]
    assert [word for _, word in Scale(0, 73000, 0, 1).ticks(4)] == ["0", "20000", "40000", "60000"]
    assert Scale(7, 7, 0, 100).ticks(5) == [(50.0, "7")]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/out.html", "No such file or directory"),
        ("folder.html", "not a file"),
        ("train.py", "ends with .html"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit\n")
    (tmp_path / "folder.html").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prove, "launcher", lambda name: pytest.fail(f"it went as far as the launcher {name}"))
    assert command.main(["validate", "train.py", "--report", name]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert words in line and name in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html", "train.py"]


@pytest.mark.slow
def test_a_real_run_is_reported_beside_its_verdicts(tmp_path: Path) -> None:
    place = Path(shutil.copytree(SCRIPTS, tmp_path / "work"))
    (place / "real.html").write_text("the one before")
    (place / "out.html").symlink_to("real.html")
    done = fsdp2(
        "validate", "in_background.py", "--prove", "trace,resume", "--format", "json", "--report", "out.html", cwd=place
    )  # fmt: skip
    found = json.loads(done.stdout)
    jsonschema.validate(found, VALIDATE)
    assert [verdict["status"] for verdict in found["proofs"]] == ["pass", "pass"]
    assert (place / "out.html").is_symlink()
    text = Page((place / "real.html").read_text()).text
    theirs = {path.name for path in SCRIPTS.iterdir()}
    assert {path.name for path in place.iterdir()} == {*theirs, "out.html", "real.html"}
    run = found["run"]
    assert [step for step, _ in run["losses"]] == [step for step, _ in run["steps"][1:]] == list(range(1, 11))
    assert [saved["step"] for saved in run["saves"]] == [3, 6, 9]
    for saved in run["saves"]:
        assert saved["target"] in text
        for own in saved["ranks"]:
            assert own["called"] < own["returned"] == own["staged"] < own["written"]
            assert own["stood_still"] >= own["returned"] - own["called"]
            assert own["waits"], "each save is awaited before the next, and before the end"
    assert {(m["module"], *m["group"]) for m in run["ownership"]} == {("0", "0"), ("1", ""), ("2", "")}
    (first,) = (m for m in run["ownership"] if m["module"] == "0")
    assert (first["elements"], first["bytes"]) == (8 * 16 + 16, [288, 288])
    assert all(sum(own) == 0 or own[0] > 0 for own in (first["bytes"], first["optimizer_bytes"]))
    assert "resumed run" in text


@pytest.mark.slow
def test_a_script_whose_name_and_exception_are_html_is_reported(tmp_path: Path) -> None:
    (tmp_path / "<b>.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\nraise ValueError('<img src=x> & more')\n"
    )
    done = fsdp2("validate", "<b>.py", "--prove", "trace", "--report", "out.html", cwd=tmp_path)
    assert done.returncode == 2, done
    page = Page((tmp_path / "out.html").read_text())
    assert "ValueError: <img src=x> & more" in page.text and not page.all("img")
    assert_refused(fsdp2("validate", "<b>.py", "--report", ".", cwd=tmp_path), "--report .")
