"""An optimizer of one's own (Lion), parameter groups, and clipping by the norm of the whole gradient, by hand."""

import os
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn, optim
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Lion(optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                m = state["momentum"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(m * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def groups(model, decay):
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


def total_norm(params):
    """The norm over all shards of all gradients."""
    squares = [p.grad.pow(2).sum() for p in params if p.grad is not None]
    whole = [s.full_tensor() if isinstance(s, DTensor) else s for s in squares]
    return torch.stack(whole).sum().sqrt()


def clip(params, limit):
    params = list(params)
    norm = total_norm(params)
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0).item()
    for p in params:
        if p.grad is not None:
            p.grad.mul_(factor)
    return norm.item()


def apply_fsdp(model, wrap):
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            wrap(module)
    wrap(model)


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(11)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(128, 8, dropout=0.0, batch_first=True), num_layers=6, enable_nested_tensor=False
    )
    apply_fsdp(encoder, partial(fully_shard, reshard_after_forward=True))
    lion = Lion(groups(encoder, 0.1), lr=1e-4)
    start = 0
    resume = os.environ.get("RESUME")
    if resume and os.path.exists(os.path.join(resume, ".metadata")):
        model_state, optim_state = get_state_dict(encoder, lion)
        state = {"model": model_state, "optim": optim_state, "step": 0}
        dcp.load(state, checkpoint_id=resume)  # expect: FS103
        set_state_dict(encoder, lion, model_state_dict=state["model"], optim_state_dict=state["optim"])
        start = state["step"]
    for step in range(start, 5000):
        g = torch.Generator("cuda").manual_seed(step * 4096 + dist.get_rank())
        x = torch.randn(4, 32, 128, device="cuda", generator=g)
        loss = (encoder(x) - x.roll(1, 1)).abs().mean()
        loss.backward()
        norm = clip(encoder.parameters(), 1.0)
        lion.step()
        lion.zero_grad()
        if step % 100 == 99:
            if dist.get_rank() == 0:
                print(step, norm)
            model_state, optim_state = get_state_dict(encoder, lion)
            dcp.save({"model": model_state, "optim": optim_state, "step": step + 1}, checkpoint_id=f"lion/{step + 1}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
