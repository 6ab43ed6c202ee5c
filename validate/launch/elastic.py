"""torchrun's own launcher as a function, so that ranks are forks of a process that has torch imported."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from .places import Settings
from .rank import leave, shepherd

CUDA_COUNT_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def launch(settings: Settings, settings_path: Path) -> None:
    """Run the ranks of a job to their end, as `torchrun --standalone` does; how they ended is for them to note."""
    threads = int(os.environ["OMP_NUM_THREADS"])
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    counted_by_nvml = os.environ.get(CUDA_COUNT_BY_NVML)
    os.environ[CUDA_COUNT_BY_NVML] = "1"  # the agent asks for CUDA; were it initialised here, no fork could use it
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=settings.nproc,
        run_id=str(uuid.uuid4()),
        role="default",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=str(settings.places.agent_folder)),
    )
    try:
        elastic_launch(config, _rank)(str(settings_path), counted_by_nvml)
    except ChildFailedError as error:
        print(error)


def _rank(settings_path: str, counted_by_nvml: str | None) -> None:
    if counted_by_nvml is None:
        del os.environ[CUDA_COUNT_BY_NVML]
    else:
        os.environ[CUDA_COUNT_BY_NVML] = counted_by_nvml
    code = shepherd(Path(settings_path), warm=True)
    if code != 0:
        leave(code)
