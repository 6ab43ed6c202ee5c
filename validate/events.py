"""The vocabulary: what happens in a training program that the contract has something to say about.

Both observers speak it. The reader (`reader/`) finds events by walking source; the probe (`probe/`) by watching a
run. A rule sees
only events, so it cannot tell who observed them unless it asks.

An event is a fact of the form "at this place, in these circumstances, this was done to these objects". It carries
identities, never
objects, so that it can be written down as JSON in one process and judged in another.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from dataclasses import field
from typing import Any, Literal

from .records import record


@record(frozen=True, slots=True)
class Location:
    """A place in a source file; `line` and `column` count from 1."""

    file: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@record(frozen=True, slots=True)
class Ref:
    """The identity of an object of the observed program.

    `name` is how the program calls it (`model`, `model.blocks[*]`), for messages only; two refs are the same object
    when their ids are equal.
    `many` marks a ref that stands for each element of a collection (the reader's view of `for block in
    model.blocks`).
    """

    id: int
    name: str = field(compare=False)
    many: bool = field(default=False, compare=False)


@record(frozen=True, slots=True)
class Question:
    """What each rank answers for itself: which files it sees, or what its clock says.

    `words`: as the program asks; `at`: where it does.
    """

    words: str
    about: Literal["files", "clock"]
    at: Location | None = None


@record(frozen=True, slots=True)
class Choice:
    """One undecided branch that was taken: the reader walks both sides of a condition that it cannot evaluate.

    `question`: what decides it, where the ranks may answer differently.
    """

    condition: int
    taken: bool
    question: Question | None = field(default=None, compare=False)


@record(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Under what conditions an event happens.

    * `only`: None when every rank gets here; else which ranks do, in words (`rank == 0`, `rank 0 of 2`).
    * `asked` (reader): where the program asks which rank it is, last before it gets here.
    * `path`, `loop` (reader): the undecided branches taken to get here; whether it is inside a loop that repeats.
    * `rank`, `step`, `finished`, `thread` (probe): the rank; optimizer steps finished before; whether the call
      returned; False off the main thread.
    """

    only: str | None = None
    path: tuple[Choice, ...] = ()
    loop: bool = False
    rank: int | None = None
    step: int | None = None
    finished: bool = True
    main_thread: bool = True
    asked: Location | None = None


class Kind(str, enum.Enum):
    """What a value in a checkpoint is the state of."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    LOADER = "loader"
    RNG = "rng"
    VALUE = "value"  # a plain Python value or tensor
    UNKNOWN = "unknown"


class Form(str, enum.Enum):
    """How the tensors of a value lie across the ranks."""

    SHARDED = "sharded"  # DTensors: each rank holds its part and knows of the whole
    FULL = "full"  # gathered: whole tensors
    LOCAL = "local"  # `to_local()`: a part that has forgotten the whole
    PLAIN = "plain"  # never was sharded
    UNKNOWN = "unknown"


class Via(str, enum.Enum):
    """How a value came into the dictionary that is saved or loaded."""

    OBJECT = "object"  # the object itself: DCP calls its state_dict() and load_state_dict()
    METHOD = "method"  # the program called `x.state_dict()`
    HELPER = "helper"  # get_state_dict, get_model_state_dict, get_optimizer_state_dict
    VALUE = "value"  # anything else


@record(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """Tensors, by name, that are loaded `into` a dtype of fewer bits than the one `stored` in the checkpoint."""

    names: tuple[str, ...]
    stored: str
    into: str


@record(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a dictionary that is saved or loaded, once `Stateful` objects were asked for their state.

    * `key`: dotted path from the top of the dictionary (`optimizer`, `train.optimizer`).
    * `of`: the object whose state it is, where known.
    * `aliased`: writing into the entry's tensors writes into the object (True for a sharded state dict on the same
      device, False for a
      gathered or offloaded copy); None where unknown. Says nothing of Python values in it, which are never aliased.
    * `per_rank`: the value differs from rank to rank while the key does not, so that DCP keeps one rank's; None where
      unknown.
    * `by_rank`: the key names the rank, so that each rank asks for one of its own (reader); `by_local_rank`: and only
      by its number within its machine.
    * `prefix`: what a wrapper has put into the names of the tensors (`_orig_mod.`); None where none has, where that is
      unknown, and (reader) where the program knows of it.
    * `apart`: names of buffers of a model whose values differ from rank to rank, so that a save keeps one rank's
      (probe).
    * `narrowed`: what of it a load gives fewer bits than it was saved with (probe).

    A dictionary that may hold more than was seen has an entry of unknown kind for that, whose key ends in `*`.
    """

    key: str
    kind: Kind
    of: Ref | None = None
    form: Form = Form.UNKNOWN
    via: Via = Via.VALUE
    aliased: bool | None = None
    per_rank: bool | None = None
    by_rank: bool = False
    by_local_rank: bool = False
    prefix: str | None = None
    apart: tuple[str, ...] = ()
    narrowed: Narrowed | None = None


@record(frozen=True, slots=True, kw_only=True)
class Unset:
    """What in a module still holds what `to_empty` left there, by name; `everything`: all of its parameters do.

    `made`: where the first of these parameters, or the module that owns it, was made; None where that was not seen.
    """

    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    everything: bool = False
    made: Location | None = field(default=None, compare=False)


@record(frozen=True, slots=True, kw_only=True)
class Precision:
    """A `MixedPrecisionPolicy`: in what is computed, and in what gradients are reduced; None where it does not say.

    Where nothing was passed for a policy, neither is said. Dtypes are without the `torch.`.
    """

    param: str | None = None
    reduce: str | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Event:
    """What all events have: their place in the order of the trace, where and under what circumstances they happen.

    They compare, and show themselves, by all their fields: here, for all of them. To make these methods for each class
    would be a third of the time that `lint` takes to start.
    """

    order: int
    at: Location
    when: Circumstances = Circumstances()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, n) == getattr(other, n) for n in self._names())

    def __hash__(self) -> int:
        return hash((type(self), self.order, self.at))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in self._names())})"

    def _names(self) -> tuple[str, ...]:
        return tuple(f.name for f in dataclasses.fields(self))

    @property
    def collective(self) -> bool:
        """Whether every rank of the group must do this together, or those that do wait for ever."""
        return False


# --- launch, groups, meshes ---


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GroupInitialised(Event):
    """`init_process_group`.

    `backend` as written, None when omitted or unknown (`"nccl" if torch.cuda.is_available() else "gloo"` is known: what
    it is where there are GPUs); `device_bound` when `device_id=` was given; `world_size` as given, None when left to
    the launcher; `by_local_rank` when each process was given its number within its machine as its rank (reader).
    """

    backend: str | None
    device_bound: bool = False
    world_size: int | None = None
    by_local_rank: bool = False


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeviceSet(Event):
    """The process chose its accelerator (`torch.cuda.set_device`, `torch.accelerator.set_device_index`).

    Or was left with one to choose from, as workers of Ray are (reader).
    """


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeviceNamed(Event):
    """An accelerator was named by a number that is not the same everywhere: `f"cuda:{rank}"`, `.cuda(rank)`; reader.

    What is put there is there, and so are the collectives over it, whether or not the process has chosen it.
    """


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AcceleratorUsed(Event):
    """Something was put on the accelerator (`.cuda()`, `.to("cuda")`, `device="cuda:1"`), which initialises it.

    From then on a mesh no longer sets the device. `module`: where that is a module, with all its parameters. Emitted by
    the reader only.
    """

    module: Ref | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MeshCreated(Event):
    """`init_device_mesh` or `DeviceMesh(...)`. `shape` holds None for a size that is not known.

    `literal`: the sizes are numbers in the call itself, of a program that nowhere asks how many ranks it has; told by
    the reader only.
    """

    mesh: Ref
    device_type: str | None = None
    shape: tuple[int | None, ...] | None = None
    dims: tuple[str, ...] | None = None
    literal: bool = False

    @property
    def collective(self) -> bool:
        return True


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GroupCreated(Event):
    """`dist.new_group`: every rank of the world must call it, members or not.

    `backend` as written, None when omitted or unknown; `inherits`: it was omitted, so that it is the default group's.
    `everyone`: no ranks were named, so that all are members.
    """

    group: Ref
    backend: str | None = None
    inherits: bool = False
    everyone: bool = False

    @property
    def collective(self) -> bool:
        return True


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CollectiveCalled(Event):
    """A collective that the program itself calls: a `torch.distributed` function, or `DTensor.full_tensor`.

    `of`: what it reduces or gathers, where that is a value that another event mentions.
    """

    op: str
    group: Ref | None = None
    of: tuple[Ref, ...] = ()

    @property
    def collective(self) -> bool:
        return True


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GroupDestroyed(Event):
    """`destroy_process_group` of the default group; for the reader also what is called like that and cannot be seen."""


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TorchApiUsed(Event):
    """A name of torch's distributed API, or an argument of it, that not every release of torch has.

    `name` is dotted, of a method with its class; `argument` the keyword passed to it, or `#3` for the third by
    position, None where the name itself is what some releases lack. Emitted by the reader only, and not where the
    program asks first whether torch has it.
    """

    name: str
    argument: str | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OldPathUsed(Event):
    """`from PATH import NAMES` of a path that torch keeps for old programs only; all of it is at `public` now.

    Emitted by the reader only, and not where the program is ready for either path.
    """

    path: str
    public: str
    names: tuple[str, ...]


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SignalHandled(Event):
    """`signal.signal` installed a handler."""

    signum: int | None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Exited(Event):
    """The end of the program. `code` is the exit status; negative for a signal, None for the reader."""

    code: int | None = None
    error: str | None = None  # the exception that ended it, as `Type: message`


# --- the model ---


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ModuleBuilt(Event):
    """An `nn.Module` was constructed. `meta` when on the meta device, None where unknown."""

    module: Ref
    cls: str
    meta: bool | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Sharded(Event):
    """`fully_shard(module)` was called (whether or not it then raised).

    `blocks`: the module holds a sequence of at least two composite blocks of one class, in which its parameters lie;
    None where unknown. `manages`: it takes parameters that no module inside it, sharded earlier, has taken; None where
    unknown. `keeps`: nothing tells it to reshard after forward, so that a root stays gathered; None where unknown.
    `offload`: its parameters and gradients are kept in the memory of the host (`CPUOffloadPolicy`), for the reader also
    where that depends on an option; None where unknown. `container`: it is a list or dictionary of modules without a
    `forward`, which `fully_shard` refuses. `mesh_dims`: the names of the dimensions of the mesh, where all parameters
    are sharded and replicated along these; None where unknown. `precision`: its policy; None where unknown. `beside`:
    the other modules of the list that was passed, whose parameters are in one group with its own. `ignores`: modules in
    it with parameters that it was told to leave alone (`ignored_params`). `root`: the mesh that was created, which
    `mesh` is or is a slice of; None where unknown. `everyone`: no mesh was passed, so that it is one of all ranks.
    `among`: the call is about some of several modules, of which this is one, in an order that does not show (reader).
    """

    module: Ref
    mesh: Ref | None = None
    blocks: bool | None = None
    manages: bool | None = None
    keeps: bool | None = None
    offload: bool | None = False
    container: bool = False
    mesh_dims: tuple[str, ...] | None = None
    precision: Precision | None = None
    beside: tuple[Ref, ...] = ()
    ignores: tuple[Ref, ...] = ()
    root: Ref | None = None
    everyone: bool = False
    among: bool = False


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Tied(Event):
    """A parameter of one module was made that of another module as well: `head.weight = embed.weight`.

    `name`: what `module` calls it. `to`: the module that had it; None where the program calls a method whose source is
    not known, which may tie what it likes in `module` (reader).
    """

    module: Ref
    name: str = ""
    to: Ref | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Parallelised(Event):
    """`parallelize_module(module, ...)`: tensor parallelism was applied to a module.

    `root`: the mesh that was created, which `mesh` is or is a slice of. Both None where unknown. `renewed`: of the
    modules in it with a weight that another one has too, those that have new parameters now. `divides`: the plan
    has parameters divided, not merely replicated or left alone; None where unknown.
    """

    module: Ref
    mesh: Ref | None = None
    root: Ref | None = None
    divides: bool | None = None
    renewed: tuple[Ref, ...] = ()


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Unsharded(Event):
    """`module.unshard()`: the program gathers the parameters itself."""

    module: Ref


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Resharded(Event):
    """`module.reshard()`."""

    module: Ref


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Materialised(Event):
    """`module.to_empty(...)`."""

    module: Ref


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Cast(Event):
    """The parameters of a module were given a dtype (`module.to(torch.bfloat16)`, `module.half()`).

    `dtype` without the `torch.`, None where unknown.
    """

    module: Ref
    dtype: str | None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeepCopied(Event):
    """`copy.deepcopy(module)`, or a class of torch that makes such a copy, and no handler is ready for its failure.

    Emitted by the reader only.
    """

    module: Ref


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Attached(Event):
    """A module became part of another one, in which something is sharded already.

    `parameters`: names of trainable parameters in it that no sharded module manages.
    """

    module: Ref
    to: Ref
    parameters: tuple[str, ...]


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WrapperApiUsed(Event):
    """Something of FSDP1's wrapper class, by its dotted name, was used on a module that `fully_shard` has sharded.

    Asking whether the module is such a wrapper (`isinstance`) is none: programs that can do both ask.
    """

    module: Ref
    name: str


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Compiled(Event):
    """`torch.compile(module)` (`wrapped`: the program holds another object now) or `module.compile()`."""

    module: Ref
    wrapped: bool


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ActivationsCheckpointed(Event):
    """`checkpoint_wrapper(module)`: a wrapper, which recomputes its forward in backward, takes the module's place."""

    module: Ref


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EntryRegistered(Event):
    """`register_fsdp_forward_method(module, name)`."""

    module: Ref
    method: str | None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ForwardEntered(Event):
    """A module was called by the program, not by another module.

    `sharded`: it, or something inside it, is an FSDP module. `uncovered`: names of trainable parameters in it that no
    sharded module manages; None where unknown. `borrows` (reader): the sharded module around it that manages its
    parameters, where nothing in it is sharded. `drops`: a layer in it leaves out values at random (dropout) while it is
    trained; None where unknown. `on_meta`: its parameters are on the meta device still. `unset`: what in it was never
    given a value; None where there is no such thing, or none that is known. `alike`: whether the ranks had the same
    weights in it when it was sharded, as far as nothing has set them since; None where unknown. The reader says so only
    where they had not when it was built or loaded. `same_samples` (probe): ranks that average their gradients with this
    one, and were given the very samples that it was given, in each step; told once a run. `other_samples` (probe):
    some rank that does was in some step given others.
    """

    module: Ref
    sharded: bool = False
    uncovered: tuple[str, ...] | None = None
    borrows: Ref | None = None
    drops: bool | None = None
    on_meta: bool = False
    unset: Unset | None = None
    alike: bool | None = None
    same_samples: tuple[int, ...] = ()
    other_samples: bool = False

    @property
    def collective(self) -> bool:
        return self.sharded


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ForwardBypassed(Event):
    """`forward` (or a method that leads to it) of a sharded module ran without the hooks that `module(...)` runs."""

    module: Ref
    method: str = "forward"


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RanksParted(Event):
    """The first call of a sharded module at which this rank goes another way than others do; probe only.

    `instead`: what they call in its place, in words. The order is that of the call by the program that leads to it.
    Told of modules that are sharded over all ranks, on one rank of those that part from the rest.
    """

    module: Ref
    instead: str


# --- data and randomness ---


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Seeded(Event):
    """A generator was seeded for the whole process (`torch.manual_seed`, `random.seed`, `set_seed`).

    `per_rank`: with a value that differs from rank to rank. `of_torch`: torch's own generators, perhaps among others.
    """

    per_rank: bool | None = None
    of_torch: bool = True


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SamplerBuilt(Event):
    """A `DistributedSampler`, which gives each of several replicas its part of the samples.

    `everyone`: it takes each rank of the job for a replica. `shuffles`: in an order that depends on the epoch.
    `per_rank`: the order is drawn with a seed that differs from rank to rank. None where unknown. `by_local_rank`
    (reader): the replica is the number of the rank within its machine.
    """

    sampler: Ref
    everyone: bool | None = None
    shuffles: bool | None = None
    per_rank: bool | None = None
    by_local_rank: bool = False


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LoaderBuilt(Event):
    """A `DataLoader`.

    `sampler`: the `DistributedSampler` that it draws by. `whole` (reader): no sampler divides its samples, and nothing
    is known by which its dataset would be another one on each rank; `shuffles`: in random order; `random`: its samples
    are made at random. `rewinds`: each pass begins at the first of its samples, which are read by index and in an order
    of torch's own samplers; None where unknown.
    """

    loader: Ref
    sampler: Ref | None = None
    whole: bool | None = None
    shuffles: bool | None = None
    random: bool = False
    rewinds: bool | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BatchesDrawn(Event):
    """The program begins to go through a `DataLoader`.

    `alike` (probe): the first batch is the same on all ranks; None where its samples are all alike, or cannot be told.
    """

    loader: Ref
    alike: bool | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BatchesPassedOver(Event):
    """Batches are drawn and not used, as by a run that goes on where another one was stopped.

    For the reader: they may be. The loop over them can go on to the next one or begin further on, or something is
    called that sounds like it. For the probe: one was drawn after another and nothing was differentiated between.
    `loader`: None where it is not known which.
    """

    loader: Ref | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EpochSet(Event):
    """`set_epoch` of a sampler, a loader or something around them, None where it is not known what; reader only."""

    of: Ref | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DividedByRank(Event):
    """Something is divided among the ranks by hand: a slice, an index, a remainder, a library's function (reader).

    `by_local_rank`: a tensor is cut into parts, of which this rank takes the one of its number within its machine.
    """

    by_local_rank: bool = False


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RandomStateTaken(Event):
    """The state of a random number generator was taken: `torch.get_rng_state`, `random.getstate` and their kin."""


# --- the loop ---


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OptimizerBuilt(Event):
    """`modules`: those whose parameters it was given.

    `stateless`: it keeps no state by construction (SGD without momentum). `dtype`: of the parameters that it steps,
    where all are known to have the same; None too for an optimizer that is not torch's own. `given`: the names of what
    it was given, in this order: of parameters in a run, of the modules that they are of for the reader.
    """

    optimizer: Ref
    cls: str
    modules: tuple[Ref, ...] = ()
    stateless: bool = False
    dtype: str | None = None
    given: tuple[str, ...] = ()


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ParametersExchanged(Event):
    """An optimizer is given other parameters: `group["params"] = ...` (reader). None where it is not known which."""

    optimizer: Ref | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SchedulerBuilt(Event):
    """A learning-rate scheduler over an optimizer."""

    scheduler: Ref
    optimizer: Ref | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SchedulerStepped(Event):
    """`scheduler.step()`. `count`: how many steps it has counted since it was built or restored (probe)."""

    scheduler: Ref
    count: int | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Backward(Event):
    """`loss.backward()`.

    `of`: values that the program had reduced over the ranks in place, and the loss is, or was scaled from. `averaged`:
    the loss is a mean, as torch's loss functions give it, and nothing scales it or its gradients; None where that is
    not known. A run does not show what is done to gradients later. `counted_alone`: the loss is a mean over elements
    that a mask leaves, of which each rank counts its own, so that they weigh the more, the fewer these are; None where
    that is not known. A run shows it where the ranks have different numbers. `low` (probe): the dtype, of fewer than 32
    bits, in which the loss is taken from logits by a cross entropy; None where it is not.
    """

    of: tuple[Ref, ...] = ()
    averaged: bool | None = None
    counted_alone: bool | None = None
    low: str | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PartialRead(Event):
    """A DTensor with a pending reduction, such as the norm of a sharded gradient, was read as a plain number.

    `value`: the number, which is made of this rank's part alone.
    """

    value: Ref


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GradientsScaled(Event):
    """The program multiplied gradients by a number made of numbers `by`, each of one rank's part; reader only."""

    by: tuple[Ref, ...]


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GradientSyncSet(Event):
    """`module.set_requires_gradient_sync(on)`."""

    module: Ref
    on: bool | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AllReduceSet(Event):
    """`module.set_requires_all_reduce(...)` or `module.set_is_last_backward(...)`."""

    module: Ref


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GradientsClipped(Event):
    """`clip_grad_norm_` over the parameters of `modules`; a collective when these are sharded.

    `mixed`: their gradients lie on several meshes, or some on none; None where that is not known.
    """

    modules: tuple[Ref, ...] = ()
    sharded: bool = False
    mixed: bool | None = None

    @property
    def collective(self) -> bool:
        return self.sharded


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Stepped(Event):
    """`optimizer.step()`.

    `changed`: a parameter that it steps has another value afterwards, on any rank; `gradients`: any of these had a
    gradient. None where unknown: where the learning rate is 0, say, and once a step of this optimizer has changed
    something. Told by the probe only.
    """

    optimizer: Ref
    changed: bool | None = None
    gradients: bool | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TrainingLoop(Event):
    """The end of a loop that steps an optimizer and lies in no other loop; `since` is the order of its first event.

    `start`: what it counts from; None where it does not count, where that is not known, or where it may pass over what
    was done before. `anew`: that number is written down, and nothing that is loaded can take its place. `counter`: the
    attribute that it counts by. Emitted by the reader only: a run does not show what a loop counts from.
    """

    since: int
    start: int | None = None
    anew: bool = False
    counter: str | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RoundsDiffer(Event):
    """Ranks go round a loop in different numbers; `since` is the order of the first event in it.

    For the reader it is the loop, told of when it is over: it goes through a part of the data for each rank, and these
    need not be of one length. For the probe it is the call that begins a round for which other ranks do not come back,
    right after the event of that call and on the ranks that make it.
    """

    since: int


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GradientsCleared(Event):
    """`zero_grad()` of an optimizer or a module."""

    of: Ref


# --- state ---


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StateTaken(Event):
    """A state dict was made from the objects `of`; `state` is the dictionary.

    `full` and `offload` are the options of the helper functions; False for `x.state_dict()`. `unsharded`: no module was
    built in sight, and yet these are sure not to be sharded (reader).
    """

    of: tuple[Ref, ...]
    state: Ref
    via: Via
    full: bool | None = False
    offload: bool | None = False
    unsharded: bool = False

    @property
    def collective(self) -> bool:
        return self.full is True


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StateApplied(Event):
    """A state dict was given to the objects `to` (`load_state_dict`, `set_state_dict` and its kin).

    * `full`, `broadcast`, `strict`: the options `full_state_dict`, `broadcast_from_rank0` and `strict`; `assign`: of
      `load_state_dict`. None where unknown.
    * `form`: how the tensors of the state dict lie across the ranks.
    * `empty`: it has no entries, on this rank (probe) or on some ranks (reader).
    * `unread`: nobody looks at what the call returns, the missing and unexpected keys (reader); None where the program
      put the state dict together key by key.
    * `missed`: none of the keys that the objects have was in it (probe).
    """

    to: tuple[Ref, ...]
    state: Ref | None = None
    via: Via = Via.METHOD
    full: bool | None = False
    broadcast: bool | None = False
    strict: bool | None = True
    assign: bool | None = False
    form: Form = Form.UNKNOWN
    empty: bool | None = None
    unread: bool | None = None
    missed: bool | None = None

    @property
    def collective(self) -> bool:
        return self.via is Via.HELPER and self.full is True


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Checkpointed(Event):
    """What saves and loads by DCP have in common.

    `target` is the directory as far as it is known; `place` stands for it where the reader knows no more than that it
    is the same one each time; `located` is False when the call names neither a directory nor a storage. `entries` is
    None where the observer could not see into the
    dictionary. `group` is the process
    group passed, None for the default one; `alone` when DCP was told not to coordinate (`no_dist=True`).
    `series`: equal for checkpoints of one run, whose directories lie in one folder (probe) or are named by way of one
    variable (reader); None where unknown.
    `caught`: the exceptions that the `try` around the call goes on after, in words, where what a failed save or load
    raises is not among them (reader).
    `pieces`: what the path of the directory is put together from, texts and the identities of values; equal for one
    directory (reader).
    """

    target: str | None = None
    pieces: tuple[str, ...] = ()
    located: bool = True
    place: str | None = None
    entries: tuple[Entry, ...] | None = None
    group: Ref | None = None
    alone: bool = False
    series: str | None = None
    caught: str | None = None

    @property
    def collective(self) -> bool:
        return not self.alone


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Saved(_Checkpointed):
    """What synchronous and asynchronous saves have in common.

    `replaces`: a finished checkpoint lies in the directory already. Told by the probe, on the rank that coordinates.
    `underway`: the loaders that the program is going through, and has not come to the end of.
    `misses`: other parts of what is saved are on ranks that do not belong to the process group passed; None where that
    is not known. `once`: it is on a condition that holds in one round of a loop, as `step == steps - 1` (reader).
    """

    once: bool = False
    replaces: bool | None = None
    underway: tuple[Ref, ...] = ()
    misses: bool | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Saved(_Saved):
    """`dcp.save`.

    `final`: on the way to it the program asks whether this is the last, or one that must be (reader).
    """

    final: bool = False


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AsyncSaved(_Saved):
    """`dcp.async_save`; `future` is what it returned (the future of the upload, where it returned two).

    * `staging`: the future of the copy, where a stager makes it in the background; None where it is made before the
      call returns, or where that is unknown.
    * `stager`: the object that was passed to copy the state; None where none was passed.
    * `process`: a process of its own writes (`AsyncCheckpointerType.PROCESS`); None where unknown.
    * `imported`: a mere import of the main module leads here, as no `if __name__ == "__main__"` stands before it; None
      where unknown.
    """

    future: Ref
    staging: Ref | None = None
    stager: Ref | None = None
    process: bool | None = False
    imported: bool | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Awaited(Event):
    """The program learned that an asynchronous save, or the staging of one, has ended.

    By `result()`, `exception()`, `wait()` or true `done()` of its future; a staging also by its stager's
    `synchronize_staging()`.
    """

    future: Ref


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StagerBuilt(Event):
    """`DefaultStager(...)`: what copies the state of asynchronous saves, into memory that it keeps for the next."""

    stager: Ref


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Loaded(_Checkpointed):
    """`dcp.load` into the dictionary `state`.

    `partial`: what the checkpoint does not have is passed over (`DefaultLoadPlanner(allow_partial_load=True)`); None
    where another planner decides.
    `looked_into`: the program reads the metadata of checkpoints, and so may know what is in them (reader).
    `pretrained`: it is read in the format of Hugging Face: what the run is given to begin with, and no checkpoint of a
    run.
    `whole`: the directory has its metadata, without which a checkpoint was not finished (probe). For the reader it is
    False when the directory was chosen among the entries of a folder by a program that nowhere looks whether
    a checkpoint is whole; None otherwise.
    """

    state: Ref | None = None
    partial: bool | None = False
    looked_into: bool = False
    pretrained: bool = False
    whole: bool | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LoadedValueRead(Event):
    """The program reads what a load concerned: the value of `key` in the dictionary `state` that it filled.

    `key` is None where any may be read. With `stale` it reads instead the variable `name` that the value had been put
    in from before the load, and that still holds what it held then. Emitted by the reader only.
    """

    state: Ref
    key: str | None
    stale: bool = False
    name: str = ""


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TorchSaved(Event):
    """`torch.save`; `entries` as for a DCP save, None where the observer could not see into the object.

    `by_rank`: the name of the file has the rank in it (reader).
    """

    target: str | None = None
    entries: tuple[Entry, ...] | None = None
    by_rank: bool = False


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TorchLoaded(Event):
    """`torch.load`.

    `weights_only` as given, None when omitted or unknown. `foreign`: the program writes no file by `torch.save`, so
    that it did not write this one; None where that is not known, as by the probe.
    """

    target: str | None = None
    weights_only: bool | None = None
    foreign: bool | None = None


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DirectoryRemoved(Event):
    """`shutil.rmtree`. `pieces`: as of a save; empty where the directory may be chosen by how many there are."""

    target: str | None = None
    pieces: tuple[str, ...] = ()


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PointerWritten(Event):
    """A file or link was written that says which checkpoint is the newest (`latest`); `pieces`: of what it says.

    Emitted by the reader only: a run does not show what a file is for.
    """

    pieces: tuple[str, ...]


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FilesMoved(Event):
    """Files or directories were renamed, moved or copied, or linked to. Emitted by the reader only."""


# --- the limits of the observer ---


@record(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Escaped(Event):
    """The object went where the observer cannot follow (into an unread library, back to an unknown caller).

    From here on anything may have been done to it, and a rule that would blame an omission must stay silent.
    """

    of: Ref


Origin = Literal["reader", "probe"]

EVENTS: dict[str, type[Event]] = {
    cls.__name__: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Event) and not cls.__name__.startswith("_")
}


# --- writing events down ---


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain JSON values, its class under `event`; fields at their default are left out."""
    return {"event": type(event).__name__, **_plain(event)}


def from_json(record: dict[str, Any]) -> Event:
    """The inverse of `to_json`. Raises KeyError for a class or field that the vocabulary does not have."""
    fields = dict(record)
    event = _typed(fields, EVENTS[fields.pop("event")])
    assert isinstance(event, Event)
    return event


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _plain(v)
            for f in dataclasses.fields(value)
            if (v := getattr(value, f.name)) != f.default or f.default is dataclasses.MISSING
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _typed(value: Any, hint: Any) -> Any:
    if value is None:
        return None
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        (hint,) = (h for h in typing.get_args(hint) if h is not type(None))
        return _typed(value, hint)
    if origin is tuple:
        return tuple(_typed(v, typing.get_args(hint)[0]) for v in value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = _hints(hint)
        return hint(**{name: _typed(v, hints[name]) for name, v in value.items()})
    return value
