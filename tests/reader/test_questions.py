"""What each rank asks for itself, and what it shares with the others before it decides."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import CollectiveCalled

from .programs import only, program


def asked(before: str, condition: str) -> list[tuple[str, str]]:
    """The questions on the way to a barrier right behind a condition."""
    text = f"import glob, time\nfrom pathlib import Path\n{before}\nif {condition}:\n    dist.barrier()\n"
    barrier = list(program(text).of(CollectiveCalled))[-1]
    questions = [c.question for c in barrier.when.path if c.question is not None]
    assert {q.at.line for q in questions if q.at is not None} <= {barrier.at.line - 1}
    return [(q.about, q.words) for q in questions]


@pytest.mark.parametrize(
    "before, condition, about",
    [
        ("", "os.path.exists(p)", "files"),
        ("", "os.path.isdir('c')", "files"),
        ("", "Path('c').exists()", "files"),
        ("", "(Path('c') / '.metadata').is_file()", "files"),
        ("", "[n for n in os.listdir('c') if n.startswith('step-')]", "files"),
        ("", "max((int(p.name) for p in Path('c').iterdir()), default=None) is not None", "files"),
        ("steps = sorted(glob.glob('c/*'))", "len(steps) > 2", "files"),
        ("start = time.time()", "(time.time() - start) / 60 > 30", "clock"),
        ("start = time.perf_counter()", "start % 2 == 0", "clock"),
    ],
)
def test_files_and_clocks_are_looked_at_by_each_rank(before: str, condition: str, about: str) -> None:
    assert asked(before, condition) == [(about, condition)]


@pytest.mark.parametrize(
    "before, condition",
    [
        ("", "os.environ.get('RESUME')"),
        ("found = [os.path.exists('c')]\ndist.broadcast_object_list(found)", "found[0]"),
        ("found = torch.tensor(os.path.exists('c'))", "found.item()"),
        ("from lib import agree\nfound = agree(os.path.exists('c'))", "found"),
    ],
)
def test_what_is_shared_or_went_out_of_sight_is_no_question(before: str, condition: str) -> None:
    assert asked(before, condition) == []


def test_where_the_others_raise_all_go_on_together() -> None:
    text = "if not os.path.exists('c'):\n    raise FileNotFoundError('c')\ndist.barrier()\n"
    assert not any(c.question for c in only(program(text), CollectiveCalled).when.path)


def test_what_is_in_a_file_is_not_whether_there_is_one() -> None:
    before = "import json\npath = max(Path('c').glob('*'))\nwith open(path) as file:\n    state = json.load(file)\n"
    assert asked(before, "state['step'] < 10") == []
