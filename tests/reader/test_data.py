"""What the reader sees of data: samplers, loaders, seeds, and what is divided by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    BatchesDrawn,
    BatchesPassedOver,
    CollectiveCalled,
    DividedByRank,
    EpochSet,
    LoaderBuilt,
    RoundsDiffer,
    SamplerBuilt,
    Saved,
    Seeded,
)

from .programs import SHARDED, only, program

DATA = """
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
rank, world_size = dist.get_rank(), dist.get_world_size()

class Lines(Dataset):
    def __init__(self, lines): self.lines = lines
    def __getitem__(self, index): return self.lines[index]
"""


@pytest.mark.parametrize(
    ("arguments", "everyone"),
    [
        ("", True),
        (", num_replicas=None, rank=None", True),
        (", world_size, rank", True),
        (", int(os.environ['WORLD_SIZE']), int(os.environ['RANK'])", True),
        (", num_replicas=mesh.size(), rank=mesh.get_local_rank()", None),
        (", num_replicas=world_size // 2, rank=rank // 2", None),
        (", **options", None),
    ],
)
def test_whom_a_sampler_divides_among(arguments: str, everyone: bool | None) -> None:
    trace = program(f"{DATA}\nmesh, options = load(), load()\nDistributedSampler(data{arguments})")
    assert only(trace, SamplerBuilt).everyone is everyone


@pytest.mark.parametrize(
    ("dataset", "whole", "random"),
    [
        ("Lines(open('train.txt').readlines())", True, False),
        ("Lines(read(rank))", True, False),
        ("Lines(rank)", None, False),
        ("load()", None, False),
        ("TensorDataset(torch.randn(8, 8))", True, True),
        ("TensorDataset(torch.arange(8))", True, False),
    ],
)
def test_which_datasets_are_whole(dataset: str, whole: bool | None, random: bool) -> None:
    built = only(program(f"{DATA}\nDataLoader({dataset})"), LoaderBuilt)
    assert (built.whole, built.random) == (whole, random)


@pytest.mark.parametrize(
    "how", ["enumerate(loader)", "iter(loader)", "zip(loader, range(3))", "itertools.islice(loader, 3)"]
)
def test_going_through_a_loader(how: str) -> None:
    trace = program(f"{DATA}\nimport itertools\nloader = DataLoader(data)\nfor batch in {how}:\n    pass")
    assert only(trace, BatchesDrawn).loader == only(trace, LoaderBuilt).loader


def test_a_generator_without_end_gives_its_elements() -> None:
    text = """
        def cycle(loader):
            while True:
                for batch in loader:
                    yield batch
        for batch in cycle(DataLoader(data)):
            dist.barrier()
    """
    trace = program(DATA + text.replace("\n        ", "\n"))
    assert all(d.when.loop for d in trace.of(BatchesDrawn))
    assert list(trace.of(CollectiveCalled))


@pytest.mark.parametrize(
    ("text", "divided"),
    [
        ("x = batch[rank::world_size]", True),
        ("x = batch.chunk(world_size)[rank]", True),
        ("lines = read_lines(path, rank)", True),
        ("dataset.shard(num_shards=world_size, index=rank)", True),
        ("for n in range(rank, 100, world_size): pass", True),
        ("for n, batch in enumerate(batches):\n    if n % world_size == rank: pass", True),
        ("torch.cuda.set_device(rank)\nprint(rank)\nif rank == 0: print(batch[0])", False),
    ],
)
def test_what_is_divided_by_hand(text: str, divided: bool) -> None:
    assert any(program(f"{DATA}\n{text}").of(DividedByRank)) is divided


def test_taking_turns_keeps_no_rank_out() -> None:
    trace = program(f"{DATA}\nfor n in range(8):\n    if n % world_size == rank:\n        dist.barrier()")
    assert [e.when.only for e in trace.of(CollectiveCalled)] == [None, None]


def test_seeds_and_epochs() -> None:
    trace = program(
        f"{DATA}\ntorch.manual_seed(3)\ntorch.manual_seed(3 + rank)"
        "\nDistributedSampler(data).set_epoch(1)\nother.set_epoch(1)"
    )
    assert [s.per_rank for s in trace.of(Seeded)] == [False, True]
    sampler = only(trace, SamplerBuilt).sampler
    assert [e.of for e in trace.of(EpochSet)] == [sampler, None]


@pytest.mark.parametrize(
    ("arguments", "rewinds"),
    [
        ("Lines([])", True),
        ("Lines([]), sampler=DistributedSampler(data)", True),
        ("Lines([]), batch_sampler=load()", None),
        ("Lines([]), sampler=load()", None),
        ("Lines([]), **options", None),
        ("TensorDataset(torch.arange(8))", True),
        ("load()", None),
        ("Resuming([])", None),
    ],
)
def test_which_loaders_begin_at_the_first_sample(arguments: str, rewinds: bool | None) -> None:
    resuming = "class Resuming(Lines):\n    def load_state_dict(self, state): self.at = state"
    trace = program(f"{DATA}\n{resuming}\ndata, options = load(), load()\nDataLoader({arguments})")
    assert only(trace, LoaderBuilt).rewinds is rewinds


@pytest.mark.parametrize(
    ("loop", "underway"),
    [
        ("for batch in loader: dcp.save({}, checkpoint_id='c')", True),
        ("for i, batch in enumerate(loader): dcp.save({}, checkpoint_id='c')", True),
        ("batches = iter(loader)\nwhile True: dcp.save({}, checkpoint_id='c')", True),
        ("for batch in loader: pass\ndcp.save({}, checkpoint_id='c')", False),
        ("samples = list(loader)\ndcp.save({}, checkpoint_id='c')", False),
    ],
)
def test_which_passes_are_underway_at_a_save(loop: str, underway: bool) -> None:
    trace = program(f"{DATA}\nloader = DataLoader(Lines([]))\n{loop}")
    saved = next(trace.of(Saved))
    assert saved.underway == ((only(trace, LoaderBuilt).loader,) if underway else ())


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("for i, batch in enumerate(loader):\n    if i < start: continue", True),
        ("for i, batch in enumerate(loader):\n    if i < start: pass\n    else: use(batch)", True),
        ("for i, batch in enumerate(loader):\n    if i >= start: break", False),
        ("for batch in itertools.islice(loader, start, None): pass", True),
        ("for batch in itertools.islice(loader, 10): pass", False),
        ("batches = iter(loader)\nnext(batches)", True),
        ("batches = iter(loader)\nbatch = next(batches)", False),
        ("accelerator = load()\nloader = accelerator.skip_first_batches(loader, start)", True),
    ],
)
def test_where_batches_may_be_passed_over(text: str, passes: bool) -> None:
    trace = program(f"import itertools\n{DATA}\nstart, loader = load(), DataLoader(Lines([]))\n{text}")
    assert any(trace.of(BatchesPassedOver)) is passes


# --- loops that ranks go round in different numbers ---

LOOP = (
    SHARDED
    + """
import itertools
import math
from torch.utils.data import DataLoader, Subset
rank, world_size = dist.get_rank(), dist.get_world_size()
data = load()
"""
)


@pytest.mark.parametrize(
    ("over", "differs"),
    [
        ("data[rank::world_size]", True),
        ("enumerate(sorted(data[rank::world_size]))", True),
        ("[read(path) for path in own]", True),
        ("range(len(own))", True),
        ("range(0, len(own), 8)", True),
        ("range(rank, len(data), world_size)", True),
        ("DataLoader(own)", True),
        ("DataLoader(Subset(data, range(rank, len(data), world_size)))", True),
        ("DataLoader(own, drop_last=True)", False),
        ("DataLoader(own, sampler=load())", False),
        ("data[rank * 8 : min(rank * 8 + 8, len(data))]", True),
        ("data[rank * math.ceil(len(data) / 8) : (rank + 1) * math.ceil(len(data) / 8)]", True),
        ("data[rank * 8 : rank * 8 + 8]", False),
        ("data[rank:]", False),
        ("data[0::world_size]", False),
        ("data", False),
        ("range(rank, 64, world_size)", False),
        ("torch.arange(64)[rank::world_size]", False),
        ("range(rank, len(torch.randn(64)), world_size)", False),
        ("itertools.islice(own, 8)", False),
        ("zip(range(8), own)", False),
        ("[x for x in own if x]", False),
    ],
)
def test_loops_over_a_part_for_each_rank(over: str, differs: bool) -> None:
    trace = program(f"own = data[rank::world_size]\nfor x in {over}:\n    model(x).sum().backward()", LOOP)
    assert any(trace.of(RoundsDiffer)) is differs


@pytest.mark.parametrize(
    ("body", "differs"),
    [
        ("model(x)", True),
        ("for y in x:\n        if y: break\n    model(x)", True),
        ("if stop(): break\n    model(x)", False),
        ("print(x)", False),
    ],
)
def test_a_loop_that_ends_with_its_data_and_calls_a_sharded_model(body: str, differs: bool) -> None:
    trace = program(f"for x in data[rank::world_size]:\n    {body}", LOOP)
    assert any(trace.of(RoundsDiffer)) is differs


@pytest.mark.parametrize(
    ("condition", "differs"),
    [("i % world_size == rank", True), ("i % world_size != 0", False), ("i % 2 == 1", False), ("x is not None", False)],
)
def test_a_loop_in_which_ranks_take_turns(condition: str, differs: bool) -> None:
    trace = program(f"for i, x in enumerate(data):\n    if {condition}:\n        model(x)", LOOP)
    assert any(trace.of(RoundsDiffer)) is differs


@pytest.mark.parametrize(
    "more",
    [
        "n = len(data) // world_size",
        "data = data[: len(data) - len(data) % world_size]",
        "dist.all_reduce(torch.tensor(len(data)), op=dist.ReduceOp.MIN)",
    ],
)
def test_a_program_that_may_see_to_equal_parts(more: str) -> None:
    loop = "for x in data[rank::world_size]:\n    model(x)"
    assert not any(program(f"{more}\n{loop}", LOOP).of(RoundsDiffer))
    assert any(program(f"batch = batch_size // world_size\n{loop}", LOOP).of(RoundsDiffer))
