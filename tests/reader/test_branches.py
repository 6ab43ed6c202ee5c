"""Conditions: which events exclude each other, and which ranks get there."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import CollectiveCalled, Loaded, Saved, Sharded, TorchSaved
from pytorch_fsdp2_dcp.validate.trace import implied, together

from .programs import IMPORTS, SHARDED, only, program, traces

SAVE = "dcp.save({'model': get_model_state_dict(model)}, checkpoint_id='c')"
ARGUMENTS = "import argparse\nargs = argparse.ArgumentParser().parse_args()\n"


def test_both_sides_of_an_unknown_condition_exclude_each_other() -> None:
    trace = program(ARGUMENTS + f"if args.a:\n    {SAVE}\nelse:\n    {SAVE}\n", SHARDED)
    one, other = trace.of(Saved)
    assert not together(one, other)


def test_the_same_condition_later_is_the_same_branch() -> None:
    text = f"if args.a:\n    {SAVE}\nprint(1)\nif args.a:\n    {SAVE}\nif not args.a:\n    {SAVE}\nif args.b:\n    {SAVE}\n"  # noqa: E501
    first, again, opposite, another = program(ARGUMENTS + text, SHARDED).of(Saved)
    assert together(first, again) and implied(again, by=first)
    assert not together(first, opposite)
    assert together(first, another) and not implied(another, by=first)


def test_what_follows_an_early_return_is_the_other_side() -> None:
    text = f"def main():\n    if args.a:\n        {SAVE}\n        return\n    {SAVE}\nmain()\n{SAVE}\n"
    early, late, after = program(ARGUMENTS + text, SHARDED).of(Saved)
    assert not together(early, late)
    assert after.when.path == ()


def test_constant_conditions_are_decided() -> None:
    text = f"DEBUG = False\nMODE = 'async'\nif DEBUG:\n    {SAVE}\nif MODE == 'sync':\n    {SAVE}\nif 'x' in ('x', 'y'):\n    {SAVE}\n"  # noqa: E501
    assert only(program(text, SHARDED), Saved).when.path == ()


def test_conditions_over_the_loop_variable_are_new_each_time() -> None:
    trace = program(f"for step in range(9):\n    if step % 3 == 0:\n        {SAVE}\n", SHARDED)
    first, second = trace.of(Saved)
    assert together(first, second) and first.when.path != second.when.path


def test_a_counter_is_not_taken_for_its_first_value() -> None:
    trace = program(f"step = 0\nwhile step < 100:\n    step += 1\n    if step % 10 == 0:\n        {SAVE}\n", SHARDED)
    assert len(list(trace.of(Saved))) == 2


@pytest.mark.parametrize(
    "setup, condition",
    [
        ("", "dist.get_rank() == 0"),
        ("rank = dist.get_rank()", "rank == 0"),
        ("rank = int(os.environ['RANK'])", "not rank"),
        ("rank = int(os.environ.get('LOCAL_RANK', 0))", "rank < 1"),
        ("main = dist.get_rank() == 0", "main"),
        ("def is_main_process():\n    return not dist.is_initialized() or dist.get_rank() == 0", "is_main_process()"),
        (
            "from torch.distributed.device_mesh import init_device_mesh\nmesh = init_device_mesh('cpu', (2,))",
            "mesh.get_local_rank() == 0",
        ),
        ("class T:\n    def __init__(self):\n        self.rank = dist.get_rank()\nt = T()", "t.rank == 0 and args.b"),
    ],
)
def test_rank_conditions_say_which_ranks(setup: str, condition: str) -> None:
    trace = program(ARGUMENTS + f"{setup}\nif {condition}:\n    {SAVE}\n", SHARDED)
    assert only(trace, Saved).when.only in (condition, condition.removesuffix(" and args.b"))


@pytest.mark.parametrize(
    "condition",
    [
        "dist.get_world_size() > 1",
        "dist.is_initialized()",
        "int(os.environ.get('RANK', -1)) != -1",
        "'RANK' in os.environ",
        "int(os.environ['LOCAL_RANK']) >= 0",
        "0 <= dist.get_rank()",
        "dist.is_initialized() and dist.get_rank() > -1",
        "args.x",
    ],
)
def test_conditions_that_all_ranks_answer_alike_are_no_rank_conditions(condition: str) -> None:
    assert only(program(ARGUMENTS + f"if {condition}:\n    {SAVE}\n", SHARDED), Saved).when.only is None


def test_the_rest_of_a_function_after_the_other_ranks_have_left() -> None:
    text = f"def save():\n    if dist.get_rank() != 0:\n        return\n    {SAVE}\nsave()\n{SAVE}\n"
    inside, after = program(text, SHARDED).of(Saved)
    assert inside.when.only == "dist.get_rank() == 0" and after.when.only is None


def test_where_the_rank_is_asked_for_is_the_last_place_before() -> None:
    text = """
        def save():
            dcp.save({"model": get_model_state_dict(model)}, checkpoint_id="c")

        first = dist.get_rank() == 0
        if first:
            print("saving")
        if dist.get_rank() == 0:
            save()
        save()
    """
    line = SHARDED.count("\n") + 8
    by_one, by_all = program(text, SHARDED).of(Saved)
    assert by_one.when.asked is not None and by_one.when.asked.line == line
    assert by_all.when.asked is None


def test_a_check_of_the_rank_that_only_raises_is_no_guard_of_the_rest() -> None:
    text = f"rank = int(os.environ['RANK'])\nif rank < 0:\n    raise ValueError(rank)\nassert rank >= 0\n{SAVE}\n"
    assert only(program(text, SHARDED), Saved).when.only is None


@pytest.mark.parametrize(
    "call, known",
    [
        ("dist.all_reduce(x, group=group)", True),
        ("dist.all_reduce(x, dist.ReduceOp.SUM, group)", True),
        ("dist.barrier(group)", True),
        ("dist.all_reduce(x)", False),
        ("dist.all_reduce(x, group=None)", False),
        ("dist.broadcast(x, 0, dist.group.WORLD)", False),
    ],
)
def test_a_group_of_which_nothing_is_known_is_not_the_default_one(call: str, known: bool) -> None:
    trace = traces(f"def share(x, group):\n    {call}\n")[-1]
    assert (only(trace, CollectiveCalled).group is not None) == known


def test_collectives_on_both_sides_pair_up() -> None:
    trace = program(f"rank = dist.get_rank()\nif rank == 0:\n    print(1)\n    {SAVE}\nelse:\n    {SAVE}\n", SHARDED)
    assert [e.when.only for e in trace.of(Saved)] == [None, None]


def test_the_barrier_idiom_pairs_up_and_a_lone_barrier_does_not() -> None:
    text = "rank = dist.get_rank()\nif rank != 0:\n    dist.barrier()\nprint(1)\nif rank == 0:\n    dist.barrier()\n"
    assert [e.when.only for e in program(text).of(CollectiveCalled)] == [None, None]
    lone = only(program("if dist.get_rank() == 0:\n    dist.barrier()\n"), CollectiveCalled)
    assert lone.op == "barrier" and lone.when.only == "dist.get_rank() == 0"


def test_a_value_made_under_a_branch_is_there_only_on_that_branch() -> None:
    text = f"sd = None\nif args.a:\n    sd = get_model_state_dict(model)\n    {SAVE}\nif sd is not None:\n    torch.save(sd, 'f')\n"  # noqa: E501
    trace = program(ARGUMENTS + text, SHARDED)
    saved, written = only(trace, Saved), only(trace, TorchSaved)
    assert saved.when.path == written.when.path


def test_sharding_under_a_condition_is_one_side() -> None:
    text = "model = nn.Linear(2, 2)\nif dist.get_world_size() > 1:\n    fully_shard(model)\n"
    assert len(only(program(text, IMPORTS), Sharded).when.path) == 1


def test_handlers_are_a_branch_and_finally_is_not() -> None:
    text = f"try:\n    {SAVE}\nexcept Exception:\n    dcp.load({{'m': model}}, checkpoint_id='c')\nfinally:\n    dist.barrier()\n"  # noqa: E501
    trace = program(text, SHARDED)
    assert only(trace, Saved).when.path == () and only(trace, CollectiveCalled).when.path == ()
    assert len(only(trace, Loaded).when.path) == 1


def test_match_statements_are_branches() -> None:
    text = (
        f"match args.mode:\n    case 'a':\n        {SAVE}\n    case 'b':\n        {SAVE}\n    case _:\n        {SAVE}\n"
    )
    one, two, three = program(ARGUMENTS + text, SHARDED).of(Saved)
    assert not together(one, two) and not together(two, three)


def test_a_lone_barrier_does_not_take_its_partner_from_another_function() -> None:
    text = """
    rank = dist.get_rank()
    def f():
        if rank == 0:
            dist.barrier()
    def g():
        if rank != 0:
            dist.barrier()
        print(1)
        if rank == 0:
            dist.barrier()
    f()
    g()
    """
    assert [e.when.only for e in program(text).of(CollectiveCalled)] == ["rank == 0", None, None]


@pytest.mark.parametrize("check", ["if rank >= args.n:\n        raise ValueError('rank')", "check()"])
def test_what_follows_a_check_that_only_raises_is_for_every_rank(check: str) -> None:
    """The ranks that fail a check end the job; those that go on are all there are."""
    text = f"""
def check():
    if rank >= args.n:
        raise ValueError(f"rank {{rank}}")

def main():
    {check}
    {SAVE}

rank = dist.get_rank()
main()
"""
    assert only(program(ARGUMENTS + text, SHARDED), Saved).when.only is None


@pytest.mark.parametrize("end", ["return", "sys.exit()", "raise SystemExit"])
def test_what_follows_a_quiet_end_of_some_ranks_is_for_the_others(end: str) -> None:
    text = f"import sys\ndef main():\n    if dist.get_rank() != 0:\n        {end}\n    {SAVE}\nmain()\n"
    assert only(program(text, SHARDED), Saved).when.only == "dist.get_rank() == 0"


def test_a_context_manager_that_lets_one_rank_go_first_is_read_whole() -> None:
    """Each of its two methods holds half of the barrier."""
    text = """
    class First:
        def __enter__(self):
            self.first = True
            if dist.get_world_size() == 1:
                return self
            self.first = dist.get_rank() == 0
            if not self.first:
                dist.barrier()
            return self

        def __exit__(self, *error):
            if self.first:
                dist.barrier()
    """
    (trace,) = (t for t in traces(text) if any(t.of(CollectiveCalled)))
    assert [e.when.only for e in trace.of(CollectiveCalled)] == [None, None]


def test_the_collective_of_a_rank_that_leaves_early_is_made_up_for_by_the_others_further_down() -> None:
    text = """
    def wait():
        if dist.is_initialized():
            dist.barrier()

    def convert(path):
        if dist.get_rank() == 0:
            if not os.path.exists(path):
                wait()
                return
            print(path)
        wait()
    """
    trace = traces(text)[-1]
    assert [e.when.only for e in trace.of(CollectiveCalled)] == [None, None]


def test_the_collective_of_a_rank_that_does_not_leave_is_one_too_many() -> None:
    text = "def f(x):\n    if dist.get_rank() == 0:\n        dist.barrier()\n    print(x)\n    dist.barrier()\n"
    assert [e.when.only for e in traces(text)[-1].of(CollectiveCalled)] == ["dist.get_rank() == 0", None]


def test_a_tensor_that_the_program_itself_doubts_is_no_collective_over_all_ranks() -> None:
    text = """
    from torch.distributed.tensor import DTensor

    def whole(x):
        return x.full_tensor() if isinstance(x, DTensor) else x

    def compare(reference):
        if dist.get_rank() == 0:
            print(whole(reference(torch.ones(1)).logits))
    """
    assert only(traces(text)[-1], CollectiveCalled).group is not None
    helper = """
    from torch.distributed.tensor import DTensor

    def whole(net):
        return {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in net.named_parameters()}

    def compare(reference):
        if dist.get_rank() == 0:
            print(whole(reference))
    """
    assert only(traces(helper)[-1], CollectiveCalled).group is not None
    in_place = helper.replace("print(whole(reference))", "[p.full_tensor() for p in reference.parameters()]")
    assert only(traces(in_place)[-1], CollectiveCalled).group is None
    sure = only(program("if dist.get_rank() == 0:\n    model.head.weight.full_tensor()\n", SHARDED), CollectiveCalled)
    assert sure.group is None


def test_a_function_whose_calls_are_replaced_by_mocks_is_not_read() -> None:
    text = (
        f"from unittest import mock\n\n@mock.patch('torch.distributed.checkpoint.save')\ndef test(saved):\n    {SAVE}\n"
    )
    assert not any(any(t.of(Saved)) for t in traces("model = nn.Linear(2, 2)\n" + text))


def test_of_several_callees_one_is_called() -> None:
    text = (
        f"def one():\n    {SAVE}\ndef other():\n    {SAVE}\n"
        "ways = {'one': one, 'other': other}\nways[args.a]()\nways[args.a]()\n"
    )
    first, second, *_ = program(ARGUMENTS + text, SHARDED).of(Saved)
    assert first.at.line != second.at.line and not together(first, second)


@pytest.mark.parametrize("taking", ["left.pop(args.name)", "left.popitem()", "left.clear()"])
def test_a_dictionary_from_which_something_was_taken_may_be_empty(taking: str) -> None:
    text = f"left = {{'a': 1}}\n{taking}\nif left:\n    raise ValueError\n{SAVE}\n"
    assert only(program(ARGUMENTS + text, SHARDED), Saved)


@pytest.mark.parametrize("base", ["super()", "super(Derived, self)", "Base"])
def test_what_the_base_was_given_decides(base: str) -> None:
    own = "self, " if base == "Base" else ""
    trace = program(
        f"""
        class Base:
            def __init__(self, saves=False):
                self.saves = saves
            def end(self):
                if self.saves:
                    {SAVE}
        class Derived(Base):
            def __init__(self, *, saves=False):
                {base}.__init__({own}saves)
        Derived().end()
        Derived(saves=True).end()
        """,
        SHARDED,
    )
    assert not only(trace, Saved).when.path


def test_a_value_that_may_be_too_many_things_decides_no_way() -> None:
    """The ways to some of them are not known any more, so nothing is concluded from those that are."""
    text = "kind = None\n" + "".join(f"if args.kind == {n}:\n    kind = load({n})\n" for n in range(15))
    trace = program(ARGUMENTS + text + f"kind.begin()\n{SAVE}\n", SHARDED)
    assert not only(trace, Saved).when.path
