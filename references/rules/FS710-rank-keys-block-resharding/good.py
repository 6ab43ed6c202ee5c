"""Each rank asks for what is there of it: torchrun --nproc-per-node 2 good.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    if rank == 0:
        state = {"step": 7, "rng_0": torch.get_rng_state()}  # what a run of one rank saves
        dcp.save(state, checkpoint_id=folder[0], no_dist=True)
    dist.barrier()

    saved = dcp.FileSystemReader(folder[0]).read_metadata().state_dict_metadata
    state = {"step": 0}
    if f"rng_{rank}" in saved:
        state[f"rng_{rank}"] = torch.get_rng_state()
    dcp.load(state, checkpoint_id=folder[0])
    print("loaded:", sorted(state))

    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
