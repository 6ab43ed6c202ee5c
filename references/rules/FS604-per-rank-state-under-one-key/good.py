"""Each rank's state has a key of its own: torchrun --nproc-per-node 2 good.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    rank = dist.get_rank()
    torch.manual_seed(1000 + rank)

    key = f"rng_{rank}"
    dcp.save({key: torch.get_rng_state()}, checkpoint_id=folder[0])
    expected = torch.rand(4)

    state = {key: torch.get_rng_state()}
    dcp.load(state, checkpoint_id=folder[0])
    torch.set_rng_state(state[key])

    restored = torch.tensor(int(torch.equal(torch.rand(4), expected)))
    dist.all_reduce(restored)
    if rank == 0:
        print(f"ranks that draw their own random numbers again: {restored.item()} of {dist.get_world_size()}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
