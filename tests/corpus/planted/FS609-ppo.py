"""A policy-gradient loop with an actor and a critic, each sharded, and a frozen copy that is built anew."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard


class Body(nn.Module):
    def __init__(self, obs, hidden, out):
        super().__init__()
        self.inp = nn.Linear(obs, hidden)
        self.layers = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(4)])
        self.out = nn.Linear(hidden, out)

    def forward(self, x):
        x = torch.tanh(self.inp(x))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(x)


def sharded(out, seed):
    torch.manual_seed(seed)
    body = Body(32, 256, out)
    for layer in body.layers:
        fully_shard(layer)
    return fully_shard(body)


class Env:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def observe(self, n):
        return torch.randn(n, 32, generator=self.generator).cuda()

    def reward(self, obs, action):
        return (obs[:, 0] > 0).float() * (action == 1).float()


class Agent:
    def __init__(self):
        self.actor = sharded(2, seed=1)
        self.critic = sharded(1, seed=2)
        self.reference = sharded(2, seed=1).requires_grad_(False).eval()
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=1e-3)

    @torch.no_grad()
    def rollout(self, env):
        obs = env.observe(64)
        logits = self.actor(obs)
        action = torch.distributions.Categorical(logits=logits).sample()
        ref = torch.log_softmax(self.reference(obs), -1)
        old = torch.log_softmax(logits, -1).gather(1, action[:, None])[:, 0]
        return obs, action, old, ref, env.reward(obs, action)

    def refresh_reference(self):
        set_model_state_dict(self.reference, get_model_state_dict(self.actor))

    def update(self, obs, action, old, ref, reward):
        value = self.critic(obs)[:, 0]
        critic_loss = (value - reward).pow(2).mean()
        critic_loss.backward()
        self.critic_opt.step()
        self.critic_opt.zero_grad()

        logp = torch.log_softmax(self.actor(obs), -1)
        new = logp.gather(1, action[:, None])[:, 0]
        advantage = reward - value.detach()
        ratio = (new - old).exp()
        surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        kl = (logp.exp() * (logp - ref)).sum(-1)
        loss = (-surrogate + 0.01 * kl).mean()
        loss.backward()
        self.actor_opt.step()
        self.actor_opt.zero_grad()
        return loss.detach()

    def save(self, folder, iteration):
        actor, actor_opt = get_state_dict(self.actor, self.actor_opt)
        critic, critic_opt = get_state_dict(self.critic, self.critic_opt)
        state = {"actor": actor, "actor_opt": actor_opt, "critic": critic, "critic_opt": critic_opt}
        state["iteration"] = iteration
        dcp.save(state, checkpoint_id=os.path.join(folder, "last"))  # expect: FS609


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    agent = Agent()
    env = Env(seed=100 + dist.get_rank())
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(1, 501):
        batch = agent.rollout(env)
        for _ in range(4):
            loss = agent.update(*batch)
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0 and iteration % 10 == 0:
            print(iteration, loss.item())
        if iteration % 50 == 0:
            agent.refresh_reference()
            agent.save("ppo-out", iteration)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
