"""Each rank's mean weighs the same, however few its tokens: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

PADDING = 0


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens), targets, ignore_index=PADDING)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, alone = nn.Linear(8, 8), nn.Linear(8, 8)
    alone.load_state_dict(model.state_dict())
    tokens, targets = torch.randn(32, 8), torch.randint(1, 8, (32,))
    targets[18:] = PADDING  # 16 tokens are left on rank 0, and 2 on rank 1
    nn.functional.cross_entropy(alone(tokens), targets, ignore_index=PADDING).backward()
    expected = alone.weight.grad
    assert expected is not None

    fully_shard(model)
    own = slice(16 * dist.get_rank(), 16 * dist.get_rank() + 16)
    loss = loss_of(model, tokens[own], targets[own])
    loss.backward()
    gradient = model.weight.grad.full_tensor()
    if dist.get_rank() == 0:
        print(f"off the gradient of all tokens by {(gradient - expected).norm() / expected.norm():.0%}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
