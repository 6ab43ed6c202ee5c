"""What the reader sees of models, sharding and forward."""

from __future__ import annotations

import textwrap

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    AcceleratorUsed,
    Compiled,
    DeepCopied,
    EntryRegistered,
    ForwardBypassed,
    ForwardEntered,
    GradientsClipped,
    Materialised,
    MeshCreated,
    ModuleBuilt,
    OptimizerBuilt,
    Parallelised,
    Precision,
    Sharded,
    Stepped,
)

from .programs import IMPORTS, MODEL, SHARDED, only, program, traces


@pytest.mark.parametrize(
    "imported, called",
    [
        ("from torch.distributed.fsdp import fully_shard as fsdp", "fsdp"),
        ("from torch.distributed._composable.fsdp import fully_shard as f", "f"),
        ("import torch.distributed._composable.fsdp.fully_shard as m; shard = m.fully_shard", "shard"),
        ("import torch.distributed.fsdp as fs; g = fs.fully_shard", "g"),
        ("import functools; from torch.distributed.fsdp import fully_shard; h = functools.partial(fully_shard)", "h"),
    ],
)
def test_an_api_is_known_by_any_name_it_is_imported_under(imported: str, called: str) -> None:
    trace = program(f"import torch\n{imported}\nmodel = torch.nn.Linear(2, 2)\n{called}(model)\n", start="")
    assert only(trace, Sharded).module.name == "model"


def test_a_function_of_the_same_name_is_not_the_api() -> None:
    trace = program("def fully_shard(m):\n    return m\nfully_shard(nn.Linear(2, 2))\n")
    assert not list(trace.of(Sharded))


def test_blocks_are_one_ref_that_stands_for_each_and_lies_in_the_model() -> None:
    block, root = program("", SHARDED).of(Sharded)
    trace = program("", SHARDED)
    assert block.module.many and block.module.name == "model.blocks[*]"
    assert root.module.name == "model" and root.blocks is True and block.blocks is False
    assert trace.inside(block.module, root.module)


@pytest.mark.parametrize(
    "loop",
    [
        "for b in model.blocks:\n    fully_shard(b)",
        "for i, b in enumerate(model.blocks):\n    fully_shard(b)",
        "for b in reversed(model.blocks):\n    fully_shard(b)",
        "for i in range(len(model.blocks)):\n    fully_shard(model.blocks[i])",
        "for m in model.modules():\n    if isinstance(m, Block):\n        fully_shard(m)",
        "for name, m in model.named_modules():\n    if not isinstance(m, Block):\n        continue\n    fully_shard(m)",
        "[fully_shard(b) for b in model.blocks]",
        "def each(m):\n    for b in m.blocks:\n        fully_shard(b)\neach(model)",
        "from functools import partial\nlist(map(partial(fully_shard), model.blocks))",
    ],
)
def test_every_way_to_loop_over_the_blocks_shards_the_blocks_only(loop: str) -> None:
    trace = program(f"model = Net()\n{loop}\nmodel(torch.zeros(1))", IMPORTS + MODEL)
    modules = {e.module.name for e in trace.of(Sharded)}
    assert modules == {"model.blocks[*]"}
    assert all(not e.when.path for e in trace.of(Sharded))
    assert only(trace, ForwardEntered).uncovered == ("embed.weight", "head.weight")


def test_layers_of_a_model_whose_class_is_not_known_lie_in_it() -> None:
    trace = program(
        """
        from transformers import AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained("x")
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        """
    )
    layer, root = trace.of(Sharded)
    assert layer.module.many and trace.inside(layer.module, root.module)
    assert root.blocks is True


def test_children_of_an_unknown_model_cover_it_when_all_are_sharded() -> None:
    (trace,) = traces(
        """
        from lib import make
        def main():
            model = make()
            for child in model.children():
                fully_shard(child)
            model(1)
        main()
        """
    )
    assert only(trace, ForwardEntered).uncovered == ()


def test_what_an_unknown_model_holds_is_not_known() -> None:
    trace = program("from lib import make\nmodel = make()\nfor b in model.blocks:\n    fully_shard(b)\nmodel.train()\n")
    assert only(trace, Sharded).blocks is None


@pytest.mark.parametrize(
    "model, blocks", [("nn.Linear(2, 2)", False), ("Net()", True), ("nn.Sequential(nn.Linear(2, 2), nn.ReLU())", False)]
)
def test_blocks_tells_whether_sharding_the_root_alone_gathers_a_stack(model: str, blocks: bool) -> None:
    assert only(program(f"m = {model}\nfully_shard(m)\n", IMPORTS + MODEL), Sharded).blocks is blocks


def test_frozen_parameters_need_no_sharding() -> None:
    trace = program("model = Net()\nfor b in model.blocks:\n    fully_shard(b)\nmodel.embed.requires_grad_(False)\n"
                    "for p in model.head.parameters():\n    p.requires_grad = False\nmodel(1)\n", IMPORTS + MODEL)  # fmt: skip  # noqa: E501
    assert only(trace, ForwardEntered).uncovered == ()


def test_meta_is_what_the_device_context_says() -> None:
    trace = program(
        "with torch.device('meta'):\n    a = nn.Linear(2, 2)\nb = nn.Linear(2, 2)\na.to_empty(device='cpu')\n"
    )
    assert [(e.module.name, e.meta) for e in trace.of(ModuleBuilt)] == [("a", True), ("b", False)]
    assert only(trace, Materialised).module.name == "a"


def test_forward_is_bypassed_only_by_a_direct_call_on_a_sharded_module() -> None:
    trace = program("model.forward(1)\nmodel.blocks[0].forward(1)\nnn.Linear(2, 2).forward(1)\nmodel(1)\n", SHARDED)
    assert [(e.at.line, e.module.name) for e in trace.of(ForwardBypassed)] == [
        (SHARDED.count("\n") + 1, "model"),
        (SHARDED.count("\n") + 2, "model.blocks[*]"),
    ]


def test_super_forward_and_registered_methods_are_not_bypasses() -> None:
    trace = program(
        """
        from torch.distributed.fsdp import register_fsdp_forward_method
        class Wide(Net):
            def forward(self, x):
                return super().forward(x)
            def generate(self, x):
                return self(x)
        model = Wide()
        fully_shard(model)
        register_fsdp_forward_method(model, "generate")
        model(1)
        model.generate(1)
        """,
        IMPORTS + MODEL,
    )
    assert not list(trace.of(ForwardBypassed))
    assert only(trace, EntryRegistered).method == "generate"


def test_modules_called_from_forward_are_not_calls_by_the_program() -> None:
    assert [e.module.name for e in program("model(1)\n", SHARDED).of(ForwardEntered)] == ["model"]


@pytest.mark.parametrize(
    "parameters",
    [
        "model.parameters()",
        "[p for p in model.parameters() if p.requires_grad]",
        "filter(lambda p: p.requires_grad, model.parameters())",
        "[{'params': [p for n, p in model.named_parameters() if 'bias' in n], 'lr': 1}, {'params': list(model.parameters())}]",  # noqa: E501
    ],
)
def test_parameters_are_followed_to_their_module(parameters: str) -> None:
    trace = program(f"model = Net()\nopt = torch.optim.Adam({parameters}, lr=1e-3)\n", IMPORTS + MODEL)
    built = only(trace, OptimizerBuilt)
    assert [m.name for m in built.modules] == ["model"] and built.cls == "Adam" and not built.stateless


def test_sgd_without_momentum_has_no_state() -> None:
    trace = program(
        "m = nn.Linear(2, 2)\na = torch.optim.SGD(m.parameters(), lr=1)\nb = torch.optim.SGD(m.parameters(), momentum=.9)\n"  # noqa: E501
    )
    assert [e.stateless for e in trace.of(OptimizerBuilt)] == [True, False]


def test_compile_and_clipping_keep_the_identity_of_the_model() -> None:
    trace = program(
        "model = torch.compile(model)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nmodel.compile()\n",
        SHARDED,
    )
    clipped = only(trace, GradientsClipped)
    assert clipped.sharded and clipped.collective and clipped.modules[0].name == "model"
    assert [e.wrapped for e in trace.of(Compiled)] == [True, False]


def test_a_loop_is_walked_twice_and_says_so() -> None:
    trace = program("for step in range(100):\n    model(1).sum().backward()\n    optimizer.step()\n", SHARDED)
    assert [e.when.loop for e in trace.of(Stepped)] == [True, True]


def test_forward_kept_in_a_variable_is_bypassed_too() -> None:
    assert only(program("step = model.forward\nstep(1)\n", SHARDED), ForwardBypassed).module.name == "model"


def test_forward_that_is_put_in_its_own_place_by_a_wrapper_is_not_bypassed() -> None:
    text = """
    def in_half(forward):
        def inner(*args):
            with torch.autocast("cuda"):
                return forward(*args)
        return inner

    model.forward = in_half(model.forward)
    in_half(model.forward)(torch.ones(1))
    """
    assert not any(program(text, SHARDED).of(ForwardBypassed))
    assert not any(program("model = nn.Linear(2, 2)\nfully_shard(model)\n" + textwrap.dedent(text)).of(ForwardBypassed))


@pytest.mark.parametrize(
    "text, literal",
    [
        ("init_device_mesh('cuda', (2, 4))", True),
        ("init_device_mesh(device_type='cuda', mesh_shape=[8])", True),
        ("init_device_mesh('cuda', (dist.get_world_size() // 2, 2))", False),
        ("sizes = (2, 4)\ninit_device_mesh('cuda', sizes)", False),
        ("assert dist.get_world_size() == 8\ninit_device_mesh('cuda', (2, 4))", False),
        ("if int(os.environ['WORLD_SIZE']) != 8:\n    raise SystemExit\ninit_device_mesh('cuda', (2, 4))", False),
        ("def main(rank):\n    init_device_mesh('cuda', (4,))\ntorch.multiprocessing.spawn(main, nprocs=4)", False),
    ],
)
def test_the_sizes_of_a_mesh_are_literal_where_nothing_asks_for_the_ranks(text: str, literal: bool) -> None:
    trace = program(f"from torch.distributed.device_mesh import init_device_mesh\n{text}\n")
    assert only(trace, MeshCreated).literal is literal


@pytest.mark.parametrize(
    "policy, precision",
    [
        ("", Precision()),
        ("mp_policy=MixedPrecisionPolicy()", Precision()),
        ("mp_policy=MixedPrecisionPolicy(torch.bfloat16)", Precision(param="bfloat16")),
        ("mp_policy=MixedPrecisionPolicy(param_dtype=torch.half, reduce_dtype=torch.float32)",
         Precision(param="float16", reduce="float32")),
        ("**dict(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))", Precision(param="bfloat16")),
        ("mp_policy=MixedPrecisionPolicy(param_dtype=args.dtype)", None),
        ("mp_policy=args.policy", None),
        ("**args.options", None),
    ],
)  # fmt: skip
def test_what_a_policy_says_of_precision(policy: str, precision: Precision | None) -> None:
    trace = program(
        f"from torch.distributed.fsdp import MixedPrecisionPolicy\nfrom lib import args\n"
        f"fully_shard(nn.Linear(2, 2), {policy})\n"
    )
    assert only(trace, Sharded).precision == precision


@pytest.mark.parametrize(
    "mesh, dims",
    [
        ("mesh", ("a", "b", "c")),
        ("mesh['b']", ("b",)),
        ("mesh['b', 'a']", ("b", "a")),
        ("mesh[('a', 'c')]", ("a", "c")),
        ("mesh[name]", None),
        ("mesh._flatten('d')", None),
        ("init_device_mesh('cpu', (2,))", None),
    ],
)
def test_a_mesh_is_known_by_the_names_of_its_dimensions(mesh: str, dims: tuple[str, ...] | None) -> None:
    trace = program(
        f"from torch.distributed.device_mesh import init_device_mesh\nfrom lib import name\n"
        f"mesh = init_device_mesh('cpu', (2, 2, 2), mesh_dim_names=('a', 'b', 'c'))\n"
        f"fully_shard(nn.Linear(2, 2), mesh={mesh})\n"
    )
    assert only(trace, Sharded).mesh_dims == dims


def test_tensor_parallelism_is_seen_and_keeps_the_identity_of_the_module() -> None:
    trace = program(
        "from torch.distributed.tensor.parallel import parallelize_module\n"
        "model = parallelize_module(nn.Linear(2, 2), mesh, {})\nfully_shard(model)\n"
    )
    assert only(trace, Parallelised).module == only(trace, Sharded).module


@pytest.mark.parametrize("made", ["copy.deepcopy(model)", "AveragedModel(model)"])
def test_a_deep_copy_is_seen_where_no_handler_is_ready_for_its_failure(made: str) -> None:
    start = "import copy\nfrom torch.optim.swa_utils import AveragedModel\nmodel = nn.Linear(2, 2)\n"
    assert only(program(start + f"x = {made}\n"), DeepCopied).module.name == "model"
    assert not any(program(start + f"try:\n    x = {made}\nexcept AssertionError:\n    pass\n").of(DeepCopied))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("fully_shard(model, ignored_params=set(model.head.parameters()))", ("head.weight",)),
        ("fully_shard(model, ignored_params={model.blocks[0].norm.weight})", ("blocks[*].norm.weight",)),
        ("fully_shard(model, ignored_params=set())", ()),
        ("fully_shard(model, ignored_params={p for p in model.parameters() if p.dim() == 1})", ()),
        ("model.head.requires_grad_(False)\nfully_shard(model, ignored_params=set(model.head.parameters()))", ()),
        ("model.requires_grad_(False)\nfully_shard(model, ignored_params=set(model.head.parameters()))", ()),
        ("fully_shard(model.head)\nfully_shard(model, ignored_params=set(model.head.parameters()))", ()),
    ],
)
def test_what_is_ignored_is_not_covered(text: str, names: tuple[str, ...]) -> None:
    trace = program(f"model = Net()\n{text}\nmodel(torch.ones(2, 8))", IMPORTS + MODEL)
    assert only(trace, ForwardEntered).uncovered == names


def test_meshes_are_known_by_what_they_were_sliced_from() -> None:
    text = """
        from torch.distributed.tensor.parallel import parallelize_module
        mesh = dist.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
        model = Net()
        parallelize_module(model, mesh["tp"], plan)
        for module, given in ((model.embed, mesh["dp", "cp"]._flatten("both")), (model.head, mesh)):
            fully_shard(module, mesh=given)
        fully_shard(model)
        fully_shard(model, mesh=unknown, **options)
    """
    trace = program(text, IMPORTS + MODEL)
    mesh, applied = only(trace, MeshCreated).mesh, only(trace, Parallelised)
    assert (applied.root, applied.mesh == mesh) == (mesh, False)
    assert [(s.root, s.mesh == mesh, s.everyone) for s in trace.of(Sharded)] == [
        (mesh, False, False),
        (mesh, True, False),
        (None, False, True),
        (None, False, False),
    ]


def test_what_is_put_on_the_accelerator_is_known_where_it_is_a_module() -> None:
    text = """
        model, x = Net(), torch.ones(2, 8)
        x.cuda()
        model.cuda()
        model.to(torch.device("cuda", 0))
        model.to("cpu")
        model.to_empty(device="cuda")
        torch.ones(2, device="cuda")
    """
    names = [used.module and used.module.name for used in program(text, IMPORTS + MODEL).of(AcceleratorUsed)]
    assert names == [None, "model", "model", "model", None]
