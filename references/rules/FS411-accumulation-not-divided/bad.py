"""Four times the gradient: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

MICRO_BATCHES = 4


def gradient_norm(batch: torch.Tensor, micro_batches: int) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for micro_batch in batch.chunk(micro_batches):
        loss = nn.functional.mse_loss(model(micro_batch), micro_batch)
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return norm.full_tensor().item()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    batch = torch.randn(16, 8)
    whole = gradient_norm(batch, 1)
    parts = gradient_norm(batch, MICRO_BATCHES)
    if dist.get_rank() == 0:
        print(f"norm of the gradient over that of one batch: {parts / whole:.2f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
