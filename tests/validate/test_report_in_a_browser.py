"""The page of `validate --report` as a browser shows it: nothing is cut off, covered, or asked of a network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from pytorch_fsdp2_dcp.validate.page.render import render

from ..commands import SKILL, fsdp2_json
from .documents import FINDING, document, module, proof, rank, save

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed"),
]

LONG = "layers.11.attention.projections.a_name_without_end.weight"
FULL = document(
    proof("trace", "fail", "1 rule of 71 does not hold: " + LONG, findings=[FINDING]),
    proof("resume", figures={"losses": [[2, 1.5], [3, 1.25]], "resumed_from_step": 1, "stopped_after_step": 2}),
    proof("async", "skip", "it saves by dcp.save only"),
    saves=[save(step, ranks=[rank(r, 0.4 + r / 10) for r in range(4)]) for step in (1, 2, 3)],
    ownership=[module(f"blocks.{n}.{LONG}", [f"blocks.{n}"], [10**10, 10**10, 10**9, 7]) for n in range(12)],
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        alone = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*alone, "--disable-sync"])
        yield browser
        browser.close()


def opened(chromium: Any, file: Path, **context: Any) -> tuple[Any, list[str]]:
    """The page, and what it asked for beside itself or complained of."""
    page = chromium.new_context(**context).new_page()
    unwanted: list[str] = []
    page.on("request", lambda request: None if request.url == file.as_uri() else unwanted.append(request.url))
    page.on("console", lambda message: unwanted.append(message.text))
    page.on("pageerror", lambda error: unwanted.append(str(error)))
    page.goto(file.as_uri())
    return page, unwanted


def boxes(page: Any, selector: str) -> list[dict[str, float]]:
    return [found.bounding_box() for found in page.locator(selector).all()]


def apart(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether two boxes do not overlap; half a pixel is rounding."""
    return any(
        first[start] + first[extent] <= second[start] + 0.5
        for first, second in ((one, other), (other, one))
        for start, extent in (("x", "width"), ("y", "height"))
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_what_is_shown_fits_and_nothing_lies_over_another(
    chromium: Any, width: int, scheme: str, tmp_path: Path
) -> None:
    (tmp_path / "out.html").write_text(render(FULL))
    page, unwanted = opened(
        chromium, tmp_path / "out.html", viewport={"width": width, "height": 800}, color_scheme=scheme
    )
    assert unwanted == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the whole page can be scrolled sideways"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)"
    )
    for number in range(page.locator("svg").count()):
        drawing = f"svg >> nth={number}"
        (outer,) = boxes(page, drawing)
        words = boxes(page, f"{drawing} >> text")
        assert len(words) > 4
        for box in words:
            assert outer["x"] - 0.5 <= box["x"] and box["x"] + box["width"] <= outer["x"] + outer["width"] + 0.5, box
            assert outer["y"] - 0.5 <= box["y"] and box["y"] + box["height"] <= outer["y"] + outer["height"] + 0.5, box
        for one, other in combinations(words, 2):
            assert apart(one, other), (one, other)


def test_what_is_wider_than_the_screen_is_reached_by_the_keyboard_alone(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "out.html").write_text(render(FULL))
    page, _ = opened(chromium, tmp_path / "out.html", viewport={"width": 390, "height": 800})
    page.evaluate("document.querySelectorAll('.wide').forEach((wide, n) => { wide.id = 'wide' + n })")
    reached: set[str] = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            was_open = page.evaluate("document.activeElement.parentElement.open")
            page.keyboard.press("Enter")
            assert page.evaluate("document.activeElement.parentElement.open") is not was_open
            if was_open:  # then it is closed now, with what it holds
                page.keyboard.press("Enter")
        elif name := page.evaluate("document.activeElement.id"):
            assert page.evaluate("document.activeElement.scrollWidth > document.activeElement.clientWidth"), name
            page.evaluate(
                "() => { const own = document.activeElement; window.scrolled = new Promise((done) => "
                "own.addEventListener('scroll', () => done(own.scrollLeft), { once: true })) }"
            )
            page.keyboard.press("ArrowRight")
            assert page.evaluate("window.scrolled") > 0
            reached.add(name)
    assert len(reached) == page.locator(".wide").count() > 1


def test_the_page_of_a_real_run_shows_what_its_json_has(chromium: Any, tmp_path: Path) -> None:
    place = Path(shutil.copytree(SKILL / "tests" / "fixtures" / "scripts", tmp_path / "work"))
    found = fsdp2_json(
        "validate", "in_background.py", "--prove", "trace,resume", "--report", "out.html", cwd=place
    )  # fmt: skip
    page, unwanted = opened(chromium, place / "out.html")
    assert unwanted == []
    rows = page.locator(".verdicts tbody tr").all_inner_texts()
    assert len(rows) == len(found["proofs"]) == 2
    for row, verdict in zip(rows, found["proofs"], strict=True):
        assert verdict["name"] in row and verdict["status"] in row and verdict["reason"] in row, json.dumps(verdict)
    assert all(box["width"] > 300 and box["height"] > 100 for box in boxes(page, "svg"))
    assert all(box["width"] > 0 and box["height"] > 0 for box in boxes(page, "polyline"))
