"""A right training script in a style of its own: a trainer class, dropout, a tie, data that any ranks divide alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytorch_fsdp2_dcp.validate.errors import UserError
from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.proofs.base import DoesNotApply, Proof, Verdict
from pytorch_fsdp2_dcp.validate.proofs.bench import Bench, Subject

TRAINER = """
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mix, self.drop = nn.LayerNorm(width), nn.Linear(width, width), nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(self.mix(self.norm(x)).relu())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 12)
        self.layers = nn.ModuleList([Layer(12), Layer(12)])
        self.out = nn.Linear(12, 11, bias=False)
        self.out.weight = self.table.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, tokens):
        self.seen += 1
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


class Trainer:
    batch, epochs = 8, 7

    def __init__(self, root):
        torch.manual_seed(7)
        self.root, self.rank, self.world = Path(root), dist.get_rank(), dist.get_world_size()
        self.net = Net()
        for layer in self.net.layers:
            fully_shard(layer)
        fully_shard(self.net)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=0.05)
        self.decay = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.9)
        self.done = 0

    def state(self):
        return {
            "net": get_model_state_dict(self.net),
            "opt": get_optimizer_state_dict(self.net, self.opt),
            "decay": self.decay.state_dict(),
            "done": torch.tensor(self.done),
        }

    def restore(self):
        saved = sorted(self.root.glob("[0-9]*")) if self.root.is_dir() else []
        if not saved:
            return
        state = self.state()
        dcp.load(state, checkpoint_id=saved[-1])
        set_model_state_dict(self.net, state["net"])
        set_optimizer_state_dict(self.net, self.opt, state["opt"])
        self.decay.load_state_dict(state["decay"])
        self.done = int(state["done"])

    def keep(self):
        dcp.save(self.state(), checkpoint_id=self.root / f"{self.done:04}")

    def draw(self):
        order = torch.Generator().manual_seed(1000 + self.done)
        tokens = torch.randint(11, (self.batch, 6), generator=order)
        return tokens.chunk(self.world)[self.rank]

    def one(self):
        tokens = self.draw()
        torch.manual_seed(100 * self.done + self.rank)
        logits = self.net(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
        self.decay.step()
        self.opt.zero_grad()
        self.done += 1

    def export(self):
        weights = get_model_state_dict(self.net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if self.rank == 0:
            torch.save(weights, self.root / "net.pt")

    def fit(self):
        while self.done < self.epochs:
            self.one()
            if self.done % 3 == 0:
                self.keep()
        self.export()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trainer = Trainer(sys.argv[sys.argv.index("--root") + 1])
    trainer.restore()
    trainer.fit()
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
"""

WITHOUT_DROPOUT = (("nn.Dropout(0.2)", "nn.Dropout(0.0)"),)  # two runs fewer


def trainer(*edits: tuple[str, str]) -> str:
    """The script, with edits."""
    text = TRAINER
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def bench_for(tmp_path: Path, text: str, **subject: Any) -> Bench:
    """Where the text runs on two ranks."""
    script = tmp_path / "train.py"
    script.write_text(text)
    scratch = tmp_path / "runs"
    scratch.mkdir()
    fields: dict[str, Any] = {
        "script": script, "args": (), "nproc": 2, "cwd": tmp_path, "checkpoint_arg": "--root", "stop_after": None,
        "timeout": 120.0, **subject,
    }  # fmt: skip
    return Bench(Subject(**fields), launcher("warm"), scratch)


def prove(proof: Proof, bench: Bench) -> Verdict:
    """The verdict, as the verb comes to it."""
    try:
        return proof.prove(bench)
    except UserError as error:
        applies = not isinstance(error, DoesNotApply)
        return Verdict(name=proof.name, status="skip", reason=str(error), applies=applies)
