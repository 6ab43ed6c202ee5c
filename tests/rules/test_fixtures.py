"""Scripts that carry their expected findings at the end of the lines that cause them: `# expect: FS401`.

`tests/fixtures/lint/<code>[-<what>].py` holds shapes that a mistake takes and, beside them, near misses that are right.
A finding on any other line fails the test as loudly as one that is missing.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.reader import read
from pytorch_fsdp2_dcp.validate.rules import RULES, judge
from pytorch_fsdp2_dcp.validate.rules.base import READER

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "lint"


def expected(path: Path) -> list[tuple[int, str]]:
    """The line and code of each expectation in a file."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    comments = ((token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT)
    return sorted(
        (line, code)
        for line, comment in comments
        if (match := re.search(r"# expect: (.*)", comment))
        for code in match[1].replace(",", " ").split()
    )


def found(path: Path) -> list[tuple[int, str]]:
    return sorted((f.at.line, f.code) for f in judge(read(path).traces) if Path(f.at.file) == path)


def check_folder(folder: Path) -> list[Path]:
    """The fixtures in a folder. A file, or a folder, that expects nothing shows nothing and is an error."""
    paths = sorted(folder.glob("*.py"))
    assert paths, f"no fixture in {folder}"
    for path in paths:
        codes = {code for _, code in expected(path)}
        assert path.name[:5] in codes, f"{path.name} does not expect the code that it is named after"
    return paths


@pytest.mark.parametrize("path", check_folder(FIXTURES), ids=lambda path: path.stem)
def test_the_reader_finds_what_is_expected_and_nothing_else(path: Path) -> None:
    assert found(path) == expected(path)


def test_every_rule_of_the_reader_has_a_fixture() -> None:
    assert {path.name[:5] for path in FIXTURES.glob("*.py")} == {r.code for r in RULES if READER in r.seen_by}


@pytest.mark.parametrize("code", ["FS202", "FS206", "FS218", "FS412", "FS602", "FS609", "FS901"])
def test_a_file_of_tests_is_not_blamed_for_what_training_for_real_would_suffer_from(code: str, tmp_path: Path) -> None:
    text = (FIXTURES / f"{code}.py").read_text()
    for name in ("train.py", "test_train.py", "tests/train.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        assert (code in {c for _, c in found(path)}) is (name == "train.py")


def test_fixtures_that_expect_nothing_fail(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no fixture"):
        check_folder(tmp_path)
    (tmp_path / "FS401.py").write_text("pass\n")
    with pytest.raises(AssertionError, match="does not expect"):
        check_folder(tmp_path)
    (tmp_path / "FS401.py").write_text('text = "# expect: FS401"\n')
    with pytest.raises(AssertionError, match="does not expect"):
        check_folder(tmp_path)
