"""Each rank calls the branch that its own samples ask for: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, is_text: bool) -> torch.Tensor:
        return self.text(x) if is_text else self.image(x)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    x, is_text = torch.ones(4, 8), dist.get_rank() == 1
    expected = model(x, is_text).detach()
    for branch in (model.image, model.text):
        fully_shard(branch)
    fully_shard(model)

    computed = model(x, is_text).detach()
    equal: list[bool] = [False] * dist.get_world_size()
    dist.all_gather_object(equal, torch.allclose(computed, expected))
    if dist.get_rank() == 0:
        print(f"ranks that compute what they did before sharding: {sum(equal)} of {len(equal)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
