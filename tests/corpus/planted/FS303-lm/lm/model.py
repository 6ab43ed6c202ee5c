import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, length):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.register_buffer("mask", causal(length), persistent=False)

    def reset_parameters(self):
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.xavier_uniform_(self.out.weight)

    def reset_buffers(self):
        self.mask.copy_(causal(self.mask.shape[0]).to(self.mask.device))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        n = x.shape[1]
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:n, :n]))


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).tril()


class Gate(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.empty(dim))

    def reset_parameters(self):
        nn.init.zeros_(self.gain)

    def forward(self, x):
        return x * (1 + self.gain)


class Layer(nn.Module):
    def __init__(self, dim, length):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.attention = Attention(dim, length)
        self.gate = Gate(dim)

    def forward(self, x):
        return x + self.gate(self.attention(self.norm(x)))


class LM(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.tokens = nn.Embedding(settings.vocab, settings.dim)
        self.layers = nn.ModuleList(Layer(settings.dim, settings.length) for _ in range(settings.depth))
        self.norm = nn.RMSNorm(settings.dim)
        self.head = nn.Linear(settings.dim, settings.vocab, bias=False)

    def reset_everything(self):
        for module in self.modules():
            if module is not self and hasattr(module, "reset_parameters"):
                module.reset_parameters()
            if isinstance(module, Attention):
                module.reset_buffers()

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
