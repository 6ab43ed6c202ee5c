"""The entry point of a small package: settings, model, parallel set-up and state live in modules of their own."""

import torch
import torch.distributed as dist
from lm.parallel import build, start
from lm.settings import RunSettings
from lm.state import Manager, TrainState


def sample(settings, step):
    generator = torch.Generator().manual_seed(1 + step * dist.get_world_size() + dist.get_rank())
    shape = (8, settings.model.length + 1)
    return torch.randint(settings.model.vocab, shape, generator=generator).to("cuda")


def main():
    settings = RunSettings()
    mesh = start()
    torch.manual_seed(0)
    model = build(settings, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=settings.warmup)
    state = TrainState(model, optimizer, warmup)
    manager = Manager(settings.folder, settings.keep)
    manager.resume(state)
    while state.step < settings.steps:
        ids = sample(settings, state.step)
        logits = model(ids[:, :-1]).float()
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:])
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        optimizer.zero_grad()
        state.step += 1
        if state.step % 50 == 0:
            whole_norm = grad_norm.full_tensor().item()
            if dist.get_rank() == 0:
                print(f"{state.step}: loss {loss.item():.3f}, gradient {whole_norm:.2f}")
        if state.step % settings.save_every == 0:
            manager.save(state)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
