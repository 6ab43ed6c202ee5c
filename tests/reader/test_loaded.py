"""What is told of loads: where from, into what, what is read of it, and how state is given back."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import Form, Loaded, LoadedValueRead, Saved, StateApplied

from .programs import SHARDED, gave_up, only, program


def reads(text: str) -> list[tuple[str | None, bool]]:
    """The key of each read after a load of `{"step": step}`, and whether it is of the variable."""
    start = "step = 0\nstate = {'step': step}\ndcp.load(state, checkpoint_id='c')\n"
    trace = program(start + text + "\n")
    assert not gave_up(trace)
    return [(read.key, read.stale) for read in trace.of(LoadedValueRead)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("print(step)", [("step", True)]),
        ("step += 1\nprint(step)", [("step", True)]),
        ("step = 3\nprint(step)", []),
        ("step = state['step']\nprint(step)", [("step", False)]),
        ("other = state\nprint(other['step'])", [("step", False)]),
        ("print(state.get('step'))", [("step", False)]),
        ("print(state.pop('step'))", [("step", False)]),
        ("print(state[key])", [(None, False)]),
        ("for name, value in state.items():\n    print(name)", [(None, False)]),
        ("f(**state)", [(None, False)]),
        ("more = dict(state)", [(None, False)]),
        ("if os.environ:\n    step = state['step']\nprint(step)", [("step", False)]),
        ("print('step' in state)", []),
    ],
)
def test_reads_of_what_a_load_filled_are_told(text: str, expected: list[tuple[str | None, bool]]) -> None:
    assert list(dict.fromkeys(reads(text))) == expected


@pytest.mark.parametrize("value", ["True", "'name'", "None", "len(names)", "torch.zeros(1)"])
def test_only_numbers_that_a_variable_was_given_are_followed(value: str) -> None:
    text = f"x = {value}\nstate = {{'x': x}}\ndcp.load(state, checkpoint_id='c')\nprint(x)\n"
    assert list(program("names = []\nimport sys\nnames += sys.argv\n" + text).of(LoadedValueRead)) == []


@pytest.mark.parametrize(
    ("call", "located"),
    [
        ("dcp.save(state)", False),
        ("dcp.save(state, checkpoint_id=None)", False),
        ("dcp.save(state, checkpoint_id='c')", True),
        ("dcp.save(state, checkpoint_id=os.environ.get('C'))", True),
        ("dcp.save(state, storage_writer=dcp.FileSystemWriter('c'))", True),
        ("dcp.save(state, **options)", True),
    ],
)
def test_whether_a_save_says_where_is_told(call: str, located: bool) -> None:
    trace = program(f"import settings\noptions = settings.options\nstate = {{'step': 1}}\n{call}\n")
    assert only(trace, Saved).located is located


@pytest.mark.parametrize(
    ("planner", "partial"),
    [
        ("None", False),
        ("DefaultLoadPlanner()", False),
        ("DefaultLoadPlanner(allow_partial_load=True)", True),
        ("DefaultLoadPlanner(allow_partial_load=bool(os.environ.get('P')))", None),
        ("Own()", None),
    ],
)
def test_whether_a_load_may_be_partial_is_told(planner: str, partial: bool | None) -> None:
    text = f"""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    class Own(DefaultLoadPlanner):
        pass
    dcp.load({{'step': 1}}, checkpoint_id='c', planner={planner})
    """
    assert only(program(text), Loaded).partial is partial


@pytest.mark.parametrize(
    ("text", "form", "empty"),
    [
        ("model.load_state_dict(torch.load('f'))", Form.FULL, None),
        ("model.load_state_dict(torch.load('f')['model'])", Form.FULL, None),
        ("model.load_state_dict(torch.load(f'f{dist.get_rank()}'))", Form.UNKNOWN, None),
        ("s = torch.load('f')\nchange(s)\nmodel.load_state_dict(s)", Form.UNKNOWN, None),
        ("s = torch.load('f')\ns['a'] = 1\nmodel.load_state_dict(s)", Form.UNKNOWN, None),
        ("model.load_state_dict(model.state_dict())", Form.SHARDED, None),
        ("set_model_state_dict(model, torch.load('f') if dist.get_rank() == 0 else {})", Form.FULL, True),
        ("set_model_state_dict(model, torch.load('f') if dist.get_rank() == 0 else None)", Form.FULL, True),
        (
            "o = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
            "set_model_state_dict(model, get_model_state_dict(model, options=o))",
            Form.FULL,
            True,
        ),
    ],
)
def test_what_a_state_dict_that_is_given_holds_is_told(text: str, form: Form, empty: bool | None) -> None:
    applied = only(program("from lib import change\n" + text + "\n", SHARDED), StateApplied)
    assert (applied.form, applied.empty) == (form, empty)


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("model.load_state_dict(s)", True),
        ("keys = model.load_state_dict(s)", False),
        ("print(model.load_state_dict(s))", False),
        ("assert not model.load_state_dict(s).missing_keys", False),
        ("def f():\n    return model.load_state_dict(s)\nf()", False),
        ("if os.environ:\n    set_model_state_dict(model, s)", True),
        ("model.load_state_dict({'head.weight': s['head.weight']}, strict=False)", None),
    ],
)
def test_whether_the_result_is_looked_at_is_told(text: str, unread: bool | None) -> None:
    assert only(program("s = model.state_dict()\n" + text + "\n", SHARDED), StateApplied).unread is unread


def test_how_a_state_dict_is_given_is_told() -> None:
    trace = program(
        """
        model.load_state_dict(s, strict=False, assign=True)
        o = StateDictOptions(True, True, strict=False)
        o.broadcast_from_rank0 = True
        set_model_state_dict(model, s, options=o)
        """,
        SHARDED + "s = model.state_dict()\n",
    )
    method, helper = trace.of(StateApplied)
    assert (method.strict, method.assign) == (False, True)
    assert (helper.full, helper.broadcast, helper.strict, helper.assign) == (True, True, False, False)


@pytest.mark.parametrize(
    ("chosen", "blindly"),
    [
        ("max(os.listdir('c'))", True),
        ("f'c/{sorted(os.listdir(folder))[-1]}'", True),
        ("os.path.join('c', str(max(int(n.split('-')[1]) for n in os.listdir('c'))))", True),
        ("max(Path('c').glob('*'), key=os.path.getmtime)", True),
        ("os.environ.get('C') or max(os.listdir('c'))", True),
        ("max(n for n in os.listdir('c') if os.path.exists(f'c/{n}/index'))", False),
        ("max(p for p in Path('c').iterdir() if (p / 'index').exists())", False),
        ("max(p for p in Path('c').iterdir() if (p / '.metadata').stat())", False),
        ("f'c/{len(sys.argv)}'", False),
        ("'c'", False),
    ],
)
def test_a_checkpoint_that_is_picked_from_a_folder_is_told(chosen: str, blindly: bool) -> None:
    start = "import sys\nfrom pathlib import Path\nfolder = 'c'\n"
    trace = program(f"{start}path = {chosen}\ndcp.load({{'s': 1}}, checkpoint_id=path)\n")
    assert not gave_up(trace)
    assert only(trace, Loaded).whole is (False if blindly else None)


@pytest.mark.parametrize(
    "more",
    [
        "def publish(path):\n    os.rename(path + '.part', path)",
        "def publish(path):\n    os.replace(path + '.part', path)",
        "MARK = 'COMPLETE'",
        "def whole(path):\n    dcp.FileSystemReader(path).read_metadata()",
    ],
)
def test_a_program_that_knows_whole_checkpoints_is_trusted(more: str) -> None:
    trace = program(f"{more}\ndcp.load({{'s': 1}}, checkpoint_id=max(os.listdir('c')))\n")
    assert only(trace, Loaded).whole is None


@pytest.mark.parametrize(
    ("saved", "loaded", "same"),
    [
        ("f'{a.out}/step-1'", "f'{a.out}/{name}'", True),
        ("os.path.join(a.out, 'x')", "f'{a.out}/step-1'", True),
        ("Path(a.out) / 'x'", "str(Path(a.out) / 'y')", True),
        ("a.out + '/x'", "a.out", True),
        ("'out/step-1'", "'out/step-2'", True),
        ("f'{a.out}/step-1'", "f'{a.pretrained}/step-1'", False),
        ("'out/step-1'", "'weights/step-1'", False),
    ],
)
def test_checkpoints_of_one_series_are_known(saved: str, loaded: str, same: bool) -> None:
    start = "from pathlib import Path\nimport settings\na = settings.load()\nname = a.name\n"
    trace = program(
        f"{start}dcp.save({{'s': 1}}, checkpoint_id={saved})\ndcp.load({{'s': 1}}, checkpoint_id={loaded})\n"
    )
    series = only(trace, Saved).series
    assert series is not None
    assert (series == only(trace, Loaded).series) is same


@pytest.mark.parametrize(
    ("text", "looked_into"),
    [
        ("dcp.load(s, checkpoint_id='c')", False),
        ("m = dcp.FileSystemReader('c').read_metadata()\ndcp.load(s, checkpoint_id='c')", True),
        ("m = dcp.FileSystemReader('c').read_metadata().storage_data\ndcp.load(s, checkpoint_id='c')", False),
        ("m = dcp.FileSystemReader('c').read_metadata().state_dict_metadata\ndcp.load(s, checkpoint_id='c')", True),
        ("try:\n    dcp.load(s, checkpoint_id='c')\nexcept BaseException:\n    pass", True),
    ],
)
def test_keys_that_name_the_rank_and_who_looks_for_them_are_told(text: str, looked_into: bool) -> None:
    loaded = only(program(f"s = {{f'rng_{{dist.get_rank()}}': 1, 'step': 2}}\n{text}\n"), Loaded)
    assert [entry.by_rank for entry in loaded.entries or ()] == [True, False]
    assert loaded.looked_into is looked_into
