"""Each fixer: shapes that it mends, and how; shapes that it leaves to a person."""

from __future__ import annotations

import difflib
import textwrap
from pathlib import Path

import pytest

from .fixed import fix, text_after

HEAD = """\
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group(backend="gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
"""
TAIL = "dist.destroy_process_group()\n"


def changed(tmp_path: Path, code: str, body: str, head: str = HEAD) -> str:
    """The lines that the fix of a rule takes from and puts into a program, as `- ` and `+ ` lines."""
    path = tmp_path / "train.py"
    path.write_text(head + textwrap.dedent(body) + TAIL)
    before, after = path.read_text().splitlines(), text_after(path, code).splitlines()
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    return "".join(f"{line[0]} {line[1:]}\n" for line in lines if line[0] in "+-")


def check(tmp_path: Path, code: str, body: str, expected: str, head: str = HEAD) -> None:
    assert changed(tmp_path, code, body, head) == textwrap.dedent(expected).lstrip("\n")


# --- FS403 ---


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loss = model.forward(torch.ones(2, 8)).sum()", "loss = model(torch.ones(2, 8)).sum()"),
        ("loss = (model).forward(torch.ones(2, 8))", "loss = (model)(torch.ones(2, 8))"),
        ("loss = model. forward (torch.ones(2, 8))", "loss = model (torch.ones(2, 8))"),
        ("a = 1; loss = model.forward(torch.ones(2, 8)); b = 2", "a = 1; loss = model(torch.ones(2, 8)); b = 2"),
        ("loss = model.forward(model.forward(torch.ones(2, 8)))", "loss = model(model(torch.ones(2, 8)))"),
        ("loss = [model.forward(x) for x in torch.ones(2, 8)]  #", "loss = [model(x) for x in torch.ones(2, 8)]  #"),
    ],
)  # fmt: skip
def test_a_forward_is_called_with_its_hooks(tmp_path: Path, before: str, after: str) -> None:
    check(tmp_path, "FS403", before + "\n", f"- {before}\n+ {after}\n")


def test_a_forward_on_a_line_of_its_own(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS403",
        """
        loss = (
            model
            .forward(torch.ones(2, 8))
        )
        """,
        """
        -     .forward(torch.ones(2, 8))
        +     (torch.ones(2, 8))
        """,
    )


@pytest.mark.parametrize(
    "body",
    [
        "forward = model.forward\nloss = forward(torch.ones(2, 8))\n",
        "loss = nn.Linear(8, 8).forward(torch.ones(2, 8))\n",
        "loss = (\n    model  # ours\n    .forward(torch.ones(2, 8))\n)\n",
        "text = 'model.forward(x)'  # model.forward(x)\n",
    ],
)
def test_what_only_looks_like_a_forward_stays(tmp_path: Path, body: str) -> None:
    assert changed(tmp_path, "FS403", body) == ""


# --- FS102 ---


def test_a_save_leaves_its_guard(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS102",
        """
        if rank == 0:
            dcp.save({"model": model.state_dict()}, checkpoint_id="c")
        """,
        """
        - if rank == 0:
        -     dcp.save({"model": model.state_dict()}, checkpoint_id="c")
        + dcp.save({"model": model.state_dict()}, checkpoint_id="c")
        """,
    )


def test_a_save_on_the_line_of_its_guard(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS102",
        """
        if rank == 0: dcp.save({"model": model.state_dict()}, checkpoint_id="c")  # now
        """,
        """
        - if rank == 0: dcp.save({"model": model.state_dict()}, checkpoint_id="c")  # now
        + dcp.save({"model": model.state_dict()}, checkpoint_id="c")  # now
        """,
    )


def test_what_is_around_the_save_stays_guarded_with_its_comments(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS102",
        """
        if rank == 0:  # the first
            # make room
            os.makedirs("c", exist_ok=True)
            # save
            state = {"model": model.state_dict()}
            dcp.save(
                state,
            checkpoint_id="c")

            print('''saved
            all of it''')
            # done
        """,
        """
        - if rank == 0:  # the first
        + # the first
        + if rank == 0:
        -     # save
        -     state = {"model": model.state_dict()}
        -     dcp.save(
        -         state,
        -     checkpoint_id="c")
        + # save
        + state = {"model": model.state_dict()}
        + dcp.save(
        +     state,
        + checkpoint_id="c")
        + if rank == 0:
        """,
    )


def test_only_the_condition_on_the_rank_goes(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS102",
        """
        for step in range(100):
            if step % 10 == 0 and rank == 0 and (step > 20 or step == 0):
                print("saving")
                dcp.save({"model": model.state_dict()}, checkpoint_id=f"c/{step}")
        """,
        """
        -     if step % 10 == 0 and rank == 0 and (step > 20 or step == 0):
        -         print("saving")
        +     if step % 10 == 0 and (step > 20 or step == 0):
        +         if rank == 0:
        +             print("saving")
        """,
    )


def test_two_collectives_of_one_guard_leave_it_in_passes(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS102",
        """
        if rank == 0:
            dcp.save({"model": model.state_dict()}, checkpoint_id="c")
            print("saved")
            dist.barrier()
        """,
        """
        + dcp.save({"model": model.state_dict()}, checkpoint_id="c")
        -     dcp.save({"model": model.state_dict()}, checkpoint_id="c")
        -     dist.barrier()
        + dist.barrier()
        """,
    )


def test_a_gathering_leaves_its_guard_with_its_options(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS102",
        """
        if rank == 0:
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            state = get_model_state_dict(model, options=options)
            torch.save(state, "model.pt")
        """,
        """
        + options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        + state = get_model_state_dict(model, options=options)
          if rank == 0:
        -     options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        -     state = get_model_state_dict(model, options=options)
        """.replace("          if rank == 0:\n", ""),
    )


@pytest.mark.parametrize(
    "body",
    [
        # an other branch has its part in it
        "if rank == 0:\n    dcp.save({'m': model.state_dict()}, checkpoint_id='c')\nelse:\n    print('waiting')\n",
        "if not rank:\n    print(1)\nelif rank == 0:\n    dcp.save({'m': model.state_dict()}, checkpoint_id='c')\n",
        # what the save needs is made by one rank
        "if rank == 0:\n    d = os.getcwd()\n    dcp.save({'m': model.state_dict()}, checkpoint_id=d)\n",
        # the collective is part of something that one rank does
        "if rank == 0:\n    print(model[0].weight.full_tensor())\n",
        "if rank == 0:\n    for n in '12':\n        print(n)\n        dcp.save(model.state_dict(), checkpoint_id=n)\n",
        # the guard is not around it
        "def save():\n    dcp.save({'m': model.state_dict()}, checkpoint_id='c')\nif rank == 0:\n    save()\n",
        "if (first := dist.get_rank()) == 0:\n    dcp.save({'m': model.state_dict()}, checkpoint_id='c')\n",
        "if rank == 0: print(1); dcp.save({'m': model.state_dict()}, checkpoint_id='c')\n",
    ],
)  # fmt: skip
def test_guards_that_a_person_must_look_at_stay(tmp_path: Path, body: str) -> None:
    assert changed(tmp_path, "FS102", body) == ""


# --- FS601 ---

GATHER = "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))"


def test_state_saved_under_a_guard_is_gathered_before_it(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS601",
        """
        if rank == 0:
            with open("model.pt", "wb") as file:
                torch.save(model.state_dict(), file)
        """,
        f"""
        + state = {GATHER}
        -         torch.save(model.state_dict(), file)
        +         torch.save(state, file)
        """,
    )


def test_state_saved_by_all_is_gathered_by_all_and_written_by_one(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS601",
        """
        for step in range(3):
            if step == 2:
                torch.save(
                    {"model": model.state_dict(), "step": step},
                    "model.pt",
                )  # done
        """,
        f"""
        -         torch.save(
        -             {{"model": model.state_dict(), "step": step}},
        -             "model.pt",
        -         )  # done
        +         state = {GATHER}
        +         if dist.get_rank() == 0:
        +             torch.save(
        +                 {{"model": state, "step": step}},
        +                 "model.pt",
        +             )  # done
        """,
    )


def test_state_in_a_variable_is_gathered_where_it_was_taken(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS601",
        """
        weights = model.state_dict()
        if rank == 0:
            torch.save(weights, "model.pt")
        """,
        f"""
        - weights = model.state_dict()
        + weights = {GATHER}
        """,
    )


def test_state_taken_under_the_guard_leaves_it(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS601",
        """
        for step in range(3):
            if step == 2 and rank == 0:
                weights = model.state_dict()
                torch.save(weights, "model.pt")
        """,
        f"""
        -     if step == 2 and rank == 0:
        -         weights = model.state_dict()
        -         torch.save(weights, "model.pt")
        +     if step == 2:
        +         weights = {GATHER}
        +         if rank == 0:
        +             torch.save(weights, "model.pt")
        """,
    )


def test_names_are_imported_and_avoid_those_that_are_taken(tmp_path: Path) -> None:
    head = HEAD.replace(
        "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict\n",
        "",
    )
    check(
        tmp_path,
        "FS601",
        """
        state = 3
        torch.save(model.state_dict(), "model.pt")
        """,
        f"""
        + from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
        - torch.save(model.state_dict(), "model.pt")
        + state_2 = {GATHER}
        + if dist.get_rank() == 0:
        +     torch.save(state_2, "model.pt")
        """,
        head,
    )  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        "torch.save(model.state_dict(), f'rank-{rank}.pt')\n",  # each rank reads its own
        "torch.save({'m': model.state_dict(), 'o': optimizer.state_dict()}, 'both.pt')\n",
        "torch.save({k: v.to_local() for k, v in model.state_dict().items()}, 'local.pt')\n",
        "torch.save(get_model_state_dict(model), 'sharded.pt')\n",
        "s = model.state_dict()\ns = dict(s)\ntorch.save(s, 'm.pt')\n",
        "torch.save(nn.Linear(2, 2).state_dict(), 'small.pt')\n",
    ],
)
def test_saves_of_another_form_stay(tmp_path: Path, body: str) -> None:
    assert changed(tmp_path, "FS601", body) == ""


# --- FS602 ---


def test_full_state_of_a_save_is_sharded(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS602",
        """
        state = get_model_state_dict(
            model,
            options=StateDictOptions(
                full_state_dict=True,
                cpu_offload=True,
            ),
        )
        dcp.save({"model": state}, checkpoint_id="c")
        """,
        """
        -         full_state_dict=True,
        -         cpu_offload=True,
        +         cpu_offload=True,
        """.replace("        -         cpu_offload=True,\n        +         cpu_offload=True,\n", ""),
    )


def test_options_that_nothing_is_left_of_go_and_so_does_their_import(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS602",
        """
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        dcp.save({"model": state}, checkpoint_id="c")
        """,
        """
        - from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
        + from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict
        - state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        + state = get_model_state_dict(model)
        """,
    )


def test_options_in_a_variable_are_changed_where_they_serve_this_save_alone(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS602",
        """
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights, moments = get_state_dict(model, optimizer, options=options)
        state = {"model": weights, "optimizer": moments}
        dcp.save(state, checkpoint_id="c")
        """,
        """
        - options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        + options = StateDictOptions(cpu_offload=True)
        """,
    )


def test_options_that_an_export_uses_too_stay(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS602",
        """
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        dcp.save({"m": get_model_state_dict(model, options=options)}, checkpoint_id="c")
        whole = get_model_state_dict(model, options=options)
        """,
        """
        - dcp.save({"m": get_model_state_dict(model, options=options)}, checkpoint_id="c")
        + dcp.save({"m": get_model_state_dict(model, options=StateDictOptions(cpu_offload=True))}, checkpoint_id="c")
        """,
    )


def test_getters_in_a_class_of_the_program_are_found_by_trying(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS602",
        """
        class State:
            def state_dict(self):
                options = StateDictOptions(full_state_dict=True)
                return {"model": get_model_state_dict(model, options=options)}

            def load_state_dict(self, state):
                pass

        dcp.save({"train": State()}, checkpoint_id="c")
        """,
        """
        -         options = StateDictOptions(full_state_dict=True)
        +         options = StateDictOptions()
        """,
    )


def test_full_state_that_is_used_elsewhere_is_no_safe_fix(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    body = "state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))\n{}"
    body += "dcp.save(state, checkpoint_id='c')\n"
    path.write_text(HEAD + body.format("") + TAIL)
    assert [f.safe for f in fix(path, "FS602").fixes] == [True]
    path.write_text(HEAD + body.format("print(state['0.weight'].norm())\n") + TAIL)
    assert [f.safe for f in fix(path, "FS602").fixes] == [False]


@pytest.mark.parametrize(
    "body",
    [
        "state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True,  # whole\n"
        "    cpu_offload=True))\ndcp.save({'m': state}, checkpoint_id='c')\n",
        "state = {n: v.full_tensor() for n, v in model.state_dict().items()}\ndcp.save(state, checkpoint_id='c')\n",
    ],
)
def test_full_state_of_another_form_stays(tmp_path: Path, body: str) -> None:
    assert changed(tmp_path, "FS602", body) == ""


# --- FS801 ---

SAVE = 'dcp.async_save({"model": model.state_dict()}, checkpoint_id="c", process_group=group)'


def test_a_future_is_awaited_before_the_group_is_destroyed(tmp_path: Path) -> None:
    check(tmp_path, "FS801", f"future = {SAVE}\nprint('saving')\n", "+ future.result()\n")


def test_a_future_that_nobody_kept_is_kept(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS801",
        f"""
        future = "taken"
        {SAVE}
        print("saving")
        """,
        f"""
        - {SAVE}
        + future_2 = {SAVE}
        + future_2.result()
        """,
    )


def test_a_save_in_a_loop_is_awaited_after_it_if_there_was_one(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS801",
        f"""
        def train(steps):
            for step in range(steps):
                if step == 10:
                    pending = {SAVE}
            print("done")

        train(20)
        """,
        """
        +     pending = None
        +     if pending is not None:
        +         pending.result()
        """,
    )


def test_a_save_in_a_try_is_awaited_there(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS801",
        f"""
        try:
            future = {SAVE}
            print("saving")
        finally:
            print("end")
        """,
        "+     future.result()\n",
    )


def test_a_save_is_awaited_before_the_function_returns(tmp_path: Path) -> None:
    check(
        tmp_path,
        "FS801",
        f"""
        def save(step):
            future = {SAVE}
            if step > 3:
                return step
            return 0

        save(4)
        """,
        "+     future.result()\n",
    )


@pytest.mark.parametrize(
    "body",
    [
        f"class C:\n    def save(self):\n        self.future = {SAVE}\n\nc = C()\nc.save()\n",
        f"def save(steps):\n    for n in steps:\n        f = {SAVE}\n        if n:\n            return\n\nsave([1])\n",
        f"futures = [{SAVE}]\nprint(len(futures))\n",
    ],
)
def test_futures_kept_elsewhere_stay(tmp_path: Path, body: str) -> None:
    assert changed(tmp_path, "FS801", body) == ""


# --- FS804 ---

FORKED = """\
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import fully_shard

KIND = AsyncCheckpointerType.PROCESS
{}

def main():
    dist.init_process_group("gloo")
    model = nn.Linear(8, 8)
    fully_shard(model)
    dcp.async_save({{"m": model.state_dict()}}, checkpoint_id="c", async_checkpointer_type=KIND).result()
    dist.destroy_process_group()


{}"""


def test_what_starts_the_program_goes_under_a_guard_and_strings_stay(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(FORKED.format("", "# off we go\nprint('''a\nb''')\n\nimport os  # late\nmain()\n# end"))
    guarded = "    # off we go\n    print('''a\nb''')\n\n    import os  # late\n    main()\n    # end"
    assert text_after(path, "FS804") == FORKED.format("", f'if __name__ == "__main__":\n{guarded}')
    path.write_text(FORKED.format("", "main()\n"))
    assert text_after(path, "FS804", unsafe=False) == path.read_text()


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("", 'if __name__ == "__main__":\n    main()\n'),
        ("import torch\n\ntorch.cuda.set_device(0)\n", "main()\n"),  # that must go under the guard too
    ],
)
def test_programs_that_a_person_must_look_at_stay(tmp_path: Path, above: str, below: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(FORKED.format(above, below))
    assert text_after(path, "FS804") == path.read_text()


# --- FS906 ---


@pytest.mark.parametrize(
    ("statement", "old", "new"),
    [
        ("from {} import Shard as S, DTensor  # old", "torch.distributed._tensor", "torch.distributed.tensor"),
        ("from {} import (\n    FSDPModule,\n)", "torch.distributed._composable.fsdp", "torch.distributed.fsdp"),
        ("x = 1; from  {}  import Shard", "torch.distributed._tensor.placement_types", "torch.distributed.tensor"),
    ],
)
def test_old_paths_become_public_ones(tmp_path: Path, statement: str, old: str, new: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(HEAD + statement.format(old) + "\n" + TAIL)
    assert text_after(path, "FS906", unsafe=False) == HEAD + statement.format(new) + "\n" + TAIL
