"""A trainer by inheritance: the base class owns sharding and checkpoints, this one the model and the data."""

import argparse

import torch
import torch.distributed as dist
from engine import BaseTrainer, distributed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ConvBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 5, padding=2)
        self.norm = nn.GroupNorm(8, width)

    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))


class Acoustic(nn.Module):
    def __init__(self, width=128, depth=8, symbols=30):
        super().__init__()
        self.entry = nn.Conv1d(40, width, 3, padding=1)
        self.blocks = nn.Sequential(*[ConvBlock(width) for _ in range(depth)])
        self.symbols = nn.Conv1d(width, symbols, 1)

    def forward(self, x):
        return self.symbols(self.blocks(self.entry(x))).permute(2, 0, 1).log_softmax(-1)


class CTCTrainer(BaseTrainer):
    layer_types = (ConvBlock,)

    def __init__(self, args, dataset):
        super().__init__(args)
        self.loader = DataLoader(dataset, args.batch, shuffle=True, drop_last=True)  # expect: FS501
        self.criterion = nn.CTCLoss(zero_infinity=True)

    def build_model(self):
        torch.manual_seed(self.args.seed)
        return Acoustic()

    def train_one_epoch(self, epoch):
        self.model.train()
        for features, labels in self.loader:
            scores = self.model(features.cuda())
            lengths = torch.full((len(labels),), scores.shape[0])
            loss = self.criterion(scores, labels.cuda(), lengths, torch.full((len(labels),), labels.shape[1]))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: last loss of rank 0 {loss.item():.3f}")


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume")
    parser.add_argument("--out", default="speech-out")
    return parser.parse_args()


def main():
    args = parse()
    dataset = TensorDataset(torch.randn(512, 40, 100), torch.randint(1, 30, (512, 12)))
    with distributed():
        CTCTrainer(args, dataset).run()


if __name__ == "__main__":
    main()
