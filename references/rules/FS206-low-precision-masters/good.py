"""A model in float32 is sharded, computes in bfloat16 and is trained with AdamW: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), nn.ReLU(), nn.LayerNorm(8))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (model[0], model[2]):
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)

    before = [layer.weight.full_tensor().clone() for layer in (model[0], model[2])]
    x = torch.linspace(-1, 1, 16).view(2, 8)
    model(x).float().pow(3).sum().backward()
    optimizer.step()
    after = [layer.weight.full_tensor() for layer in (model[0], model[2])]
    changed = sum(int((a != b).sum()) for a, b in zip(before, after, strict=True))
    if dist.get_rank() == 0:
        print(f"any weight changed in a step of 0.001: {changed > 0}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
