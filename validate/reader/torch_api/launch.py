"""Ranks, process groups, devices, meshes and the collectives that a program calls itself."""

from __future__ import annotations

import ast
import functools
import math
import re
from pathlib import Path

from ...events import (
    AcceleratorUsed,
    CollectiveCalled,
    DeviceNamed,
    DeviceSet,
    Exited,
    Form,
    GroupCreated,
    GroupDestroyed,
    GroupInitialised,
    MeshCreated,
    Ref,
    SignalHandled,
)
from ..nodes import last_name, nodes
from ..values import (
    NONE,
    Const,
    Elements,
    External,
    Method,
    Obj,
    Part,
    Sym,
    Tensors,
    Tuple,
    Value,
    What,
    members,
    single,
)
from ..walk import contents
from ..walk.calls import Call, call_library, callbacks, perhaps_call
from ..walk.core import Stop, Walk
from ..walk.division import RANKS, within_machine
from ..walk.escapes import escape
from ..walk.folders import pass_on
from ..walk.handlers import tells_failure
from ..walk.lookup import ATTRIBUTES
from ..walk.parts import part_in, refs
from ..walk.reduced import reduce_in_place
from .table import anything, api, method

_WORLD_SIZE = (0, "%world_size")  # the cell of what the program says that it is, in its environment
_ALL_RANKS = (0, "%all_ranks")  # the cell of what get_world_size() gives


@api("torch.distributed.get_rank", "torch.distributed.get_group_rank")
def _rank(call: Call) -> Value:
    return call.walk.sym("rank", *call.args, rank=True)


@api("torch.distributed.get_node_local_rank")
def _local_rank(call: Call) -> Value:
    return call.walk.sym("rank", Const("LOCAL_RANK"), rank=True)


@api("torch.distributed.get_world_size")
def _world_size(call: Call) -> Value:
    """One number for all who ask for that of all ranks."""
    walk = call.walk
    if call.everything() or call.open:
        return call_library(call, call.name)
    if (known := walk.store.get(_ALL_RANKS)) is None:
        known = call_library(call, call.name)
        walk.store.set(_ALL_RANKS, known)
    return known


@api("os.environ.get", "os.getenv", "os.environ.setdefault")
def _environment(call: Call) -> Value:
    name = call.constant(0, "key")
    default = call.get(1, "default")
    if name == "WORLD_SIZE" and call.name.endswith("setdefault") and default is not None:
        call.walk.store.set(_WORLD_SIZE, default)
    if name in RANKS:
        return call.walk.sym("environment", name, default, rank=True)
    return call.walk.sym("environment", call.get(0, "key"))


@api("os.environ.pop")
def _environment_taken(call: Call) -> Value:
    return _environment(call)


def environment_set(walk: Walk, key: Value, value: Value, node: ast.AST) -> None:
    """`os.environ[key] = value`: hiding all devices but one is a choice of device too."""
    if single(key) == "WORLD_SIZE":
        walk.store.set(_WORLD_SIZE, value)
    if single(key) in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        walk.emit(DeviceSet, node)


@api("torch.distributed.init_process_group")
def _init(call: Call) -> Value:
    bound = call.get(None, "device_id") not in (None, NONE)
    if _imports_ray(call.walk.frame.file.tree):
        call.walk.emit(DeviceSet, call.node)
    size = call.constant(None, "world_size")
    alone = single(call.walk.get(_WORLD_SIZE)) == "1"  # nobody else is told of it
    call.walk.emit(
        GroupInitialised,
        call.node,
        backend=_backend(call.get(0, "backend")),
        device_bound=bound or call.open or _may_be_there(call.walk) or _started_by_hand(call),
        world_size=size if isinstance(size, int) else 1 if alone else None,
        by_local_rank=(rank := call.get(None, "rank")) is not None and within_machine(call.walk, rank),
    )
    return NONE


@api("torch.distributed.is_available")
def _is_available(call: Call) -> Value:  # noqa: ARG001 - every call is answered alike
    """There is nothing to look for in a program where it is not."""
    return Const(True)


@api("torch.distributed.is_initialized")
def _is_initialized(call: Call) -> Value:
    """One answer for all who ask until the answer may change."""
    walk = call.walk
    started, ended = walk.events_on(GroupInitialised, 0), walk.events(GroupDestroyed, 0)
    if not ended and any(set(path) <= set(walk.path) for _, path in started):
        return Const(True)
    return walk.sym("is_initialized", Const(len(started) + len(ended)))


def _started_by_hand(call: Call) -> bool:
    """Whether the rank is told on the command line, perhaps on one machine a process, each with one accelerator.

    Or is one number, as where a program runs what it else starts several of.
    """
    if isinstance(call.get(None, "rank"), Const):
        return True
    keywords = call.node.keywords if isinstance(call.node, ast.Call) else []
    rank = next((keyword.value for keyword in keywords if keyword.arg == "rank"), None)
    return isinstance(rank, ast.Attribute) and not (isinstance(rank.value, ast.Name) and rank.value.id == "self")


def _may_be_there(walk: Walk) -> bool:
    """Whether an unknown caller may have set up all that there is to set up: it is asked whether a group is there."""
    return not walk.in_entry and any("is_initialized" in ast.unparse(test) for test, _ in walk.tests_on_the_way())


@functools.lru_cache(maxsize=512)
def _imports_ray(tree: ast.Module) -> bool:
    """Whether Ray starts the processes of a file: each of its workers sees the devices only that are its own."""
    return any(
        isinstance(node, ast.Import) and any(alias.name == "ray" for alias in node.names) for node in nodes(tree)
    )


def _backend(value: Value | None) -> str | None:
    """The backend given; of the two between which programs choose by the device, the accelerator's."""
    names = {single(v) for _, v in members(value)} if value is not None else set()
    if len(names) == 2 and "gloo" in names:
        names.discard("gloo")
    name = names.pop() if len(names) == 1 else None
    return name if isinstance(name, str) else None


@api(
    "torch.cuda.set_device", "torch.accelerator.set_device_index", "torch.accelerator.set_device_idx",
    "torch.xpu.set_device",
    "torch.npu.set_device", "torch_npu.npu.set_device",
)  # fmt: skip
def _set_device(call: Call) -> Value:
    call.walk.emit(DeviceSet, call.node)
    return NONE


@api(
    "accelerate.Accelerator", "accelerate.PartialState", "accelerate.state.PartialState",
    "transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments",
    "transformers.HfArgumentParser", "trl.TrlParser",  # of which such arguments come
)  # fmt: skip
def _set_by_library(call: Call) -> Value:
    """Made, these choose the device of the process, by its local rank."""
    call.walk.emit(DeviceSet, call.node)
    return call_library(call, call.name)


@anything("set_device", "set_device_index")
def _device_module_set(call: Call, receiver: Value) -> Value:  # noqa: ARG001 - by a name that says what it does
    call.walk.emit(DeviceSet, call.node)
    return NONE


@api("torch.device")
def _device(call: Call) -> Value:
    _numbered(call, 0, "type")
    return call.walk.new(What.DEVICE, External("torch.device"), data=device_name(call, call.get(0, "type"), 0))


def _numbered(call: Call, position: int, name: str) -> None:
    """Tell of a device whose number is reckoned: `f"cuda:{rank}"`, or `"cuda", rank`."""
    parts = [call.get(position, name), call.get(position + 1, "index")]
    node = call.node.args[position] if isinstance(call.node, ast.Call) and len(call.node.args) > position else None
    if isinstance(node, ast.JoinedStr) or any(isinstance(part, Sym) for part in parts):
        call.walk.emit(DeviceNamed, call.node)


def device_name(call: Call, value: Value | None, position: int | None = None) -> str | None:
    """The device that a value names, None where unknown; of `f"cuda:{rank}"`, the part that is known."""
    if isinstance(value, Obj) and value.what is What.DEVICE:
        return value.data if isinstance(value.data, str) else None
    name = single(value)
    if isinstance(name, str):
        return name
    args = call.node.args if isinstance(call.node, ast.Call) else []
    node = args[position] if position is not None and position < len(args) else None
    start = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else None
    return start.value if isinstance(start, ast.Constant) and isinstance(start.value, str) else None


def uses_accelerator(call: Call, method: str = "", receiver: Value | None = None) -> None:
    """A call that puts something on the accelerator: `.cuda()`, `.to("cuda")`, `device="cuda"`."""
    walk = call.walk
    named = device_name(call, call.kwargs.get("device"))
    if isinstance(call.kwargs.get("device"), Sym):
        walk.emit(DeviceNamed, call.node)
    if method in ("to", "cuda", "xpu"):
        _numbered(call, 0, "device")
    if method == "to" and call.args:
        named = device_name(call, call.args[0], 0)
    if method in ("cuda", "xpu") or (named is not None and named.partition(":")[0] in ("cuda", "xpu", "npu")):
        moved = receiver if isinstance(receiver, Obj) and walk.what(receiver) is What.MODULE else None
        walk.emit(AcceleratorUsed, call.node, module=walk.ref(moved) if moved is not None else None)


@api("torch.cuda.device")
def _device_context(call: Call) -> Value:
    call.walk.emit(DeviceSet, call.node)
    return call.walk.unknown()


# --- meshes and groups ---


@api("torch.distributed.init_device_mesh")
def _init_mesh(call: Call) -> Value:
    return _mesh(call, call.get(1, "mesh_shape"), call.get(2, "mesh_dim_names"))


@api("torch.distributed.DeviceMesh")
def _device_mesh(call: Call) -> Value:
    return _mesh(call, None, call.get(2, "mesh_dim_names"))


def _mesh(call: Call, shape: Value | None, dims: Value | None) -> Value:
    walk = call.walk
    mesh = walk.new(What.MESH)
    device = call.constant(0, "device_type")
    names = [single(v) for v in sequence(walk, dims) or ()]
    walk.store.set((mesh.id, "%dims"), dims if names else None)
    sizes = sequence(walk, shape)
    walk.emit(
        MeshCreated,
        call.node,
        mesh=walk.ref(mesh),
        device_type=device if isinstance(device, str) else None,
        shape=None if sizes is None else tuple(s if isinstance(s := single(v), int) and s > 0 else None for v in sizes),
        dims=tuple(str(name) for name in names) if names and all(isinstance(n, str) for n in names) else None,
        literal=_is_literal(call.node)
        and walk.in_entry
        and not _is_test(walk)
        and not _asks_for_ranks(walk.frame.file.tree)
        and math.prod(s for v in sizes or () if isinstance(s := single(v), int)) not in _started(walk.frame.file.path),
    )
    return mesh


def dims_of(walk: Walk, mesh: Value | None) -> tuple[str, ...] | None:
    """The names of the dimensions of a mesh, None where they are not known."""
    named = walk.get((mesh.id, "%dims")) if isinstance(mesh, Obj) and walk.what(mesh) is What.MESH else None
    names = [single(v) for v in sequence(walk, named) or ()]
    return tuple(str(name) for name in names) if names and all(isinstance(n, str) for n in names) else None


def _is_literal(node: ast.AST) -> bool:
    """Whether the shape of a mesh is written as numbers in the call that makes it."""
    if not isinstance(node, ast.Call):
        return False
    given = [keyword.value for keyword in node.keywords if keyword.arg == "mesh_shape"] or node.args[1:2]
    sizes = given[0].elts if given and isinstance(given[0], ast.Tuple | ast.List) else []
    return bool(sizes) and all(isinstance(size, ast.Constant) for size in sizes)


def _is_test(walk: Walk) -> bool:
    """Whether a test is being walked: whoever starts it knows for how many ranks it was written."""
    return any(frame.function is not None and frame.function.name.startswith("test") for frame in walk.frames)


@functools.lru_cache(maxsize=512)
def _started(path: Path) -> frozenset[int]:
    """How many ranks are to be started, as a file says in its comments, or wherever."""
    try:
        return frozenset(map(int, _STARTED.findall(path.read_bytes())))
    except OSError:  # it was read from elsewhere
        return frozenset()


_STARTED = re.compile(rb"(?:nproc[-_]per[-_]node|--nproc|num[-_]processes)[\"',= ]+(\d+)")


@functools.lru_cache(maxsize=512)
def _asks_for_ranks(tree: ast.Module) -> bool:
    """Whether a file compares its number of ranks with something, or starts the ranks itself."""
    for node in nodes(tree):
        if isinstance(node, ast.Compare) and _NUMBER_OF_RANKS.search(ast.unparse(node)):
            return True
        if isinstance(node, ast.Call) and last_name(node.func) in ("spawn", "start_processes", "Process"):
            return True
        if isinstance(node, ast.Assign) and any("'WORLD_SIZE'" in ast.unparse(target) for target in node.targets):
            return True
    return False


_NUMBER_OF_RANKS = re.compile(
    r"world|mesh|device_count|(^|_)(n|num)_?(gpus?|ranks|devices|procs?|processes)\b", re.IGNORECASE
)


def sequence(walk: Walk, value: Value | None) -> tuple[Value, ...] | None:
    """The elements of a tuple or list, None where they are not all known."""
    if isinstance(value, Tuple):
        return value.items
    if isinstance(value, Obj) and isinstance(content := walk.content(value), Elements) and content.exact:
        return content.items
    return None


@method(What.MESH, "get_rank", "get_local_rank", "get_coordinate")
def _mesh_rank(call: Call, mesh: Obj) -> Value:
    return call.walk.sym("mesh rank", mesh, *call.args, rank=True)


@method(What.MESH, "size", "get_dim_groups")
def _mesh_size(call: Call, mesh: Obj) -> Value:
    return call.walk.sym("mesh size", mesh, *call.args)


@method(What.MESH, "_flatten", "__getitem__", "_unflatten")
def _sub_mesh(call: Call, mesh: Obj) -> Value:
    made = call.walk.new(What.MESH)
    call.walk.store.set((made.id, "%of"), mesh)
    return made


def root_of(walk: Walk, mesh: Value | None) -> Ref | None:
    """The mesh that a mesh was sliced or flattened from, or it itself; None where it is not known to be one."""
    if not isinstance(mesh, Obj) or walk.what(mesh) is not What.MESH:
        return None
    outer = walk.store.get((mesh.id, "%of"))
    return root_of(walk, outer) if outer is not None else walk.ref(mesh)


@anything("get_local_rank", "get_rank")
def _rank_of_something(call: Call, receiver: Value) -> Value | None:
    if isinstance(receiver, Obj) and call.walk.what(receiver) in (What.OPAQUE, What.GROUP):
        return call.walk.sym("mesh rank", receiver, *call.args, rank=True)
    return None


@api("torch.distributed.new_group", "torch.distributed.new_subgroups", "torch.distributed.new_subgroups_by_enumeration")
def _new_group(call: Call) -> Value:
    walk = call.walk
    group = walk.new(What.GROUP)
    backend = call.get(2, "backend")
    walk.emit(
        GroupCreated,
        call.node,
        group=walk.ref(group),
        backend=_backend(backend),
        inherits=backend in (None, NONE) and not call.open and call.name.endswith(".new_group"),
        everyone=call.get(0, "ranks") in (None, NONE) and not call.open,
    )
    return group


@api("torch.distributed.destroy_process_group")
def _destroy(call: Call) -> Value:
    if call.get(0, "group") in (None, NONE):
        call.walk.emit(GroupDestroyed, call.node)
    return NONE


_DEFAULT_GROUP = (External("torch.distributed.group.WORLD"), External("torch.distributed.GroupMember.WORLD"))


def group_of(call: Call, value: Value | None) -> Ref | None:
    """The process group given, also one of which nothing is known; None for the default one."""
    if value is None or (value == NONE and not _is_asked_for(call)) or value in _DEFAULT_GROUP:
        return None
    return call.walk.ref(value if isinstance(value, Obj) else call.walk.unknown())


def _is_asked_for(call: Call) -> bool:
    """Whether the group is what a function returns, which may have been set where the reader does not look."""
    keywords = call.node.keywords if isinstance(call.node, ast.Call) else []
    return any(keyword.arg == "group" and isinstance(keyword.value, ast.Call) for keyword in keywords)


# Each collective, and where its group stands among its positional arguments.
_COLLECTIVES = {
    "barrier": 0, "monitored_barrier": 0, "broadcast": 2, "broadcast_object_list": 2, "all_reduce": 2, "reduce": 3,
    "all_gather": 2, "all_gather_object": 2, "all_gather_into_tensor": 2, "gather": 3, "gather_object": 3,
    "scatter": 3, "scatter_object_list": 3, "reduce_scatter": 3, "reduce_scatter_tensor": 3, "all_to_all": 2,
    "all_to_all_single": 4, "all_gather_coalesced": 2, "all_reduce_coalesced": 2,
}  # fmt: skip


@api(*(f"torch.distributed.{name}" for name in _COLLECTIVES))
def _collective(call: Call) -> Value:
    walk = call.walk
    op = call.name.rpartition(".")[2]
    group = group_of(call, call.get(_COLLECTIVES[op], "group"))
    reduces = op in ("all_reduce", "reduce") and isinstance(call.node, ast.Call) and call.node.args and call.args
    if reduces and isinstance(call.node, ast.Call):
        of = reduce_in_place(walk, call.node.args[0], call.args[0])
    else:
        of = refs(local) if (local := part_in(walk, *call.everything())) is not None else ()
    for value in call.everything():
        contents.fill(walk, value)
    walk.emit(CollectiveCalled, call.node, op=op, group=group, of=of)
    for value in call.args[:2]:  # what it fills is not known any more, and is the same on all ranks
        lists = [v for _, v in members(value) if isinstance(v, Obj) and v.what is What.LIST]
        filled = pass_on(walk, [*lists], walk.unknown())
        for one in lists:  # several where rank 0 has made a list of its own
            walk.store.set((one.id, "%items"), Elements((filled,), exact=False))
    return walk.unknown()


@anything("full_tensor")
def _full_tensor(call: Call, receiver: Value) -> Value | None:
    walk = call.walk
    # Where the program asks what a tensor is, it may well be plain on the ranks that come here alone: an unknown one,
    # or one that was handed to a function by some ranks only.
    doubted = any(s.taken and s.condition in walk.doubts for s in walk.path)
    if isinstance(receiver, Tensors):
        doubted = doubted and receiver.form is not Form.SHARDED
    group = walk.ref(walk.unknown()) if doubted else None
    walk.emit(CollectiveCalled, call.node, op="full_tensor", group=group)
    if isinstance(receiver, Tensors):
        return Tensors(receiver.of, receiver.kind, Form.FULL, receiver.via)
    return call.walk.unknown()


@anything("to_local")
def _to_local(call: Call, receiver: Value) -> Value | None:
    if isinstance(receiver, Part):
        return Part(receiver.of, pending=False)
    if isinstance(receiver, Tensors):
        return Tensors(receiver.of, receiver.kind, Form.LOCAL, receiver.via)
    return call.walk.unknown()


# --- processes ---


@api("signal.signal")
def _signal(call: Call) -> Value:
    walk = call.walk
    signum = call.constant(0, "signalnum")
    walk.emit(SignalHandled, call.node, signum=signum if isinstance(signum, int) else None)
    callbacks(call, call.args[1:2])
    return walk.unknown()


@api("atexit.register")
def _at_exit(call: Call) -> Value:
    walk, frame = call.walk, call.walk.frame
    function, args = (call.args or [NONE])[0], call.args[1:]

    def run() -> None:
        from ..walk.calls import call_value

        walk.frames.append(frame)
        try:
            call_value(walk, function, Call(walk, call.node, args, dict(call.kwargs)))
        finally:
            walk.frames.pop()

    walk.at_exit.append(run)
    return function


@api("sys.exit", "builtins.exit", "builtins.quit", "os._exit", "os.abort", "os.execv", "os.execvp")
def _exit(call: Call) -> Value:
    ends = call.name.startswith("os.exec") or not tells_failure(call.node)
    if ends:
        call.walk.emit(Exited, call.node)
    call.walk.leave_early(all_functions=ends)
    raise Stop


@api("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
def _spawn(call: Call) -> Value:
    walk = call.walk
    function = call.get(0, "fn")
    args = sequence(walk, call.get(1, "args")) or ()
    if function is not None:
        perhaps_call(walk, function, call.node, [walk.sym("spawned rank", rank=True), *args])
    return walk.unknown()


@api("torch.distributed.launcher.api.elastic_launch", "torch.distributed.launcher.elastic_launch")
def _elastic(call: Call) -> Value:
    function = call.get(1, "entrypoint")
    return function if function is not None else call.walk.unknown()


@api("threading.Thread", "multiprocessing.Process", "torch.multiprocessing.Process", "threading.Timer")
def _thread(call: Call) -> Value:
    escape(call, call.everything())
    callbacks(call, call.everything())
    return call.walk.unknown()


ATTRIBUTES[(What.GROUP, "rank")] = lambda _walk, group, _node: Method(group, "get_rank")
ATTRIBUTES[(What.MESH, "mesh")] = lambda walk, mesh, _node: walk.sym("mesh", mesh)
