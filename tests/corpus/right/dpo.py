"""Preference tuning: policy and reference in one object, options by a namespace, dtype kept in float32 masters."""

import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

OPTIONS = SimpleNamespace(beta=0.1, lr=5e-6, steps=400, every=100, warm=os.environ.get("WARM_START"))


class TinyLM(nn.Module):
    def __init__(self, vocab=1000, dim=128, depth=4):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([nn.GRU(dim, dim, batch_first=True) for _ in range(depth)])
        self.lm_head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.embed_tokens(ids)
        for layer in self.layers:
            h = h + layer(h)[0]
        return self.lm_head(h)


def sharded():
    torch.manual_seed(21)
    lm = TinyLM()
    mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    for layer in lm.layers:
        fully_shard(layer, mp_policy=mp)
    return fully_shard(lm, mp_policy=mp)


def score(lm, ids):
    logp = lm(ids[:, :-1]).log_softmax(-1)
    return logp.gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1)


class DPO:
    def __init__(self, options):
        self.options = options
        self.policy = sharded()
        self.reference = sharded()
        if options.warm:
            self.warm_start(options.warm)
        self.reference.requires_grad_(False)
        self.reference.eval()
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=options.lr)

    def warm_start(self, path):
        for lm in (self.policy, self.reference):
            weights = {"model": get_model_state_dict(lm)}
            load(weights, checkpoint_id=path)
            set_model_state_dict(lm, weights["model"])

    def resume(self, path):
        state = self.state(0)
        load(state, checkpoint_id=path)
        set_model_state_dict(self.policy, state["model"])
        set_optimizer_state_dict(self.policy, self.optimizer, state["optimizer"])
        return state["step"]

    def state(self, step):
        model = get_model_state_dict(self.policy)
        return {"model": model, "optimizer": get_optimizer_state_dict(self.policy, self.optimizer), "step": step}

    def step(self, chosen, rejected):
        with torch.no_grad():
            base = score(self.reference, chosen) - score(self.reference, rejected)
        margin = score(self.policy, chosen) - score(self.policy, rejected)
        loss = -F.logsigmoid(self.options.beta * (margin - base)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    trainer = DPO(OPTIONS)
    resume = os.environ.get("RESUME")
    first = trainer.resume(resume) if resume else 0
    for step in range(first, OPTIONS.steps):
        g = torch.Generator("cuda").manual_seed(step * dist.get_world_size() + dist.get_rank())
        chosen, rejected = torch.randint(1000, (2, 8, 65), device="cuda", generator=g)
        trainer.step(chosen, rejected)
        if (step + 1) % OPTIONS.every == 0:
            save(trainer.state(step + 1), checkpoint_id=f"dpo/{step + 1}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
