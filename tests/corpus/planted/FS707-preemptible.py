"""An elastic job that is told to stop by a signal: one rank's news becomes the decision of all."""

import logging
import os
import re
import signal

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard

log = logging.getLogger(__name__)
ROOT = os.environ.get("CKPT_ROOT", "/shared/ckpt")
stop_requested = False


def on_term(signum, frame):
    global stop_requested
    stop_requested = True


def anyone(flag):
    """Whether the flag is set on any rank."""
    t = torch.tensor(int(flag), device="cuda")
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return bool(t.item())


def candidates():
    box = [[]]
    if dist.get_rank() == 0 and os.path.isdir(ROOT):
        names = [n for n in os.listdir(ROOT) if re.fullmatch(r"step-\d+", n)]
        names = [n for n in names if os.path.isfile(os.path.join(ROOT, n, ".metadata"))]
        box = [sorted(names, key=lambda n: int(n[5:]), reverse=True)]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def restore(model, optimizer):
    for name in candidates():
        model_state, optim_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optim": optim_state, "step": 0}
        try:
            dcp.load(state, checkpoint_id=os.path.join(ROOT, name))  # expect: FS707
        except (RuntimeError, OSError):
            log.exception("%s is damaged", name)
            continue
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        return state["step"]
    return 0


def save(model, optimizer, step):
    model_state, optim_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optim": optim_state, "step": step}, checkpoint_id=f"{ROOT}/step-{step}")
    if dist.get_rank() == 0:
        log.info("saved step %d", step)


@record
def main():
    signal.signal(signal.SIGTERM, on_term)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.TransformerEncoderLayer(256, 4, dropout=0.0, batch_first=True) for _ in range(4)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = restore(model, optimizer)
    while step < 20_000:
        seed = step * dist.get_world_size() + dist.get_rank()
        x = torch.randn(8, 64, 256, generator=torch.Generator().manual_seed(seed)).cuda()
        (model(x) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        stopping = anyone(stop_requested)
        if stopping or step % 1000 == 0:
            save(model, optimizer, step)
        if stopping:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
