"""A task's device: Spark's GPU, or one of this machine.

Processes on this machine share its GPUs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial

from recbench_spark.core.extras import has_module
from recbench_spark.engine.versions import read_setting
from recbench_spark.storage.blocks import Engine

GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
"""Driver files; torch takes seconds to load and looks for a GPU only where one of them exists."""


def choose_device(engine: Engine) -> Callable[[], str]:
    """Return the function by which each task chooses its device."""
    spark = getattr(engine, "spark", None)
    if spark is None:
        return partial(find_own_device, 1 / engine.cores)
    # Below 1, a task uses its share of the GPU's memory.
    return partial(find_task_device, float(read_setting(spark, "spark.task.resource.gpu.amount") or 1))


def find_task_device(share: float = 1.0) -> str:
    """Return this task's GPU as assigned by Spark, else CPU."""
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    resources = context.resources() if context else {}
    return _open_device(resources["gpu"].addresses, share) if "gpu" in resources else "cpu"


def find_own_device(share: float = 1.0) -> str:
    """Return a GPU of this machine, else the CPU.

    Processes take turns where there are several.
    """
    if not (any(map(os.path.exists, GPU_DRIVERS)) and has_module("torch")):
        return "cpu"
    import torch  # noqa: PLC0415

    n = torch.cuda.device_count()
    return _open_device([str(os.getpid() % n)], share) if n else "cpu"


def _open_device(addresses: Sequence[str], share: float) -> str:
    # Without a GPU torch is loaded where scores are multiplied, and small work does without it.
    from recbench_spark.ranking.kernels import devices  # noqa: PLC0415
    from recbench_spark.ranking.kernels.memory import limit_memory  # noqa: PLC0415

    with warnings.catch_warnings():
        # A worker's warnings go to the executor's log; one per task is enough.
        warnings.simplefilter("once")
        device = devices.choose_device(addresses)
    limit_memory(device, share)
    return str(device)
