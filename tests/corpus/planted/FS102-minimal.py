"""The shortest thing that trains: no functions, no checkpoint to resume from, one export at the end."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)

net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)], nn.Linear(256, 10))
for layer in net:
    fully_shard(layer)
fully_shard(net)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
sampler = DistributedSampler(data, drop_last=True)
loader = DataLoader(data, batch_size=32, sampler=sampler)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(net(x.cuda()), y.cuda())
        loss.backward()
        opt.step()
        opt.zero_grad()
    shown = loss.detach()
    dist.all_reduce(shown, op=dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {shown.item():.3f}")

if dist.get_rank() == 0:
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(net, options=full)  # expect: FS102
    torch.save(weights, "net.pt")
dist.destroy_process_group()
