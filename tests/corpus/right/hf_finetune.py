"""Fine-tuning of a Hugging Face model: rank 0 reads the weights, the others get their shards of them."""

import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup


class Lines(torch.utils.data.Dataset):
    def __init__(self, path, tokenizer, length):
        with open(path) as f:
            ids = [token for line in f for token in tokenizer(line)["input_ids"]]
        self.rows = [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]  # none is padded

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.tensor(self.rows[index])


def collate(rows):
    ids = torch.stack(rows)
    return {"input_ids": ids, "labels": ids}


def load_sharded(name):
    config = AutoConfig.from_pretrained(name)
    model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    weights = {}
    if dist.get_rank() == 0:
        weights = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float32).state_dict()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)
    return model


def export(model, folder):
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        model.config.save_pretrained(folder)
        torch.save(weights, os.path.join(folder, "pytorch_model.bin"))
    dist.barrier()


def main(name="Qwen/Qwen2.5-0.5B", epochs=2):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = load_sharded(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    dataset = Lines("train.txt", tokenizer, 1024)
    sampler = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, collate_fn=collate)
    schedule = get_cosine_schedule_with_warmup(optimizer, 100, epochs * len(loader))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            batch = {k: v.cuda() for k, v in batch.items()}
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    export(model, "finetuned")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
