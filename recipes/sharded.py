"""How the recipes start and shard: what Workflow A changes in a script, whatever it was before."""

import os
import sys

import torch
import torch.distributed as dist
from gpt import Model
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def start() -> torch.device:
    """Choose this process's device, then join the others; CPUs talk too, about checkpoints."""
    accelerated = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if accelerated else torch.device("cpu")
    if accelerated:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if accelerated else "gloo")
    return device


def build(device: torch.device) -> Model:
    """The model that one process builds after `torch.manual_seed(0)`, in parts: only rank 0 ever holds it whole."""
    with torch.device("meta"):
        model = Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)  # the root last: it takes what no block has
    model.to_empty(device=device)
    weights_of_one_process(model)
    return model


def weights_of_one_process(model: Model) -> None:
    """Give the sharded model the weights that rank 0 draws."""
    torch.manual_seed(0)
    whole = Model().state_dict() if dist.get_rank() == 0 else {}
    set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))


def end() -> None:
    """Leave once all ranks are done; without tearing Python down, which torch's last threads now and then abort."""
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
