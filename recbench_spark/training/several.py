"""One fit on several processes, started by PySpark's TorchDistributor: gradients are those of one process.

Each process makes the task anew, from files that all of them see, and takes its share of each minibatch;
what is drawn (order, negatives, samples) hangs on seed, epoch and step and is the same in all.
`torch.distributed` adds the gradients (gloo). The first process writes checkpoints and the best weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import cast

from pyspark.ml.torch.distributor import TorchDistributor

from recbench_spark.errors import ConfigError
from recbench_spark.models.networks.fitting import Fitted, Shard, Task, fit
from recbench_spark.models.networks.plans import Plan


def shards(shares: Sequence[float]) -> list[Shard]:
    """Each process's part of a minibatch, from shares of any sum.

    Raises:
        ConfigError: no shares, or one that is not above 0.
    """
    if not shares or min(shares) <= 0:
        raise ConfigError(f"shares {list(shares)}: each process needs one above 0", "e.g. 1, 1")
    ends = [end / sum(shares) for end in accumulate(shares)]
    ends[-1] = 1.0
    return [
        Shard(rank, len(shares), begin, end)
        for rank, (begin, end) in enumerate(zip([0.0, *ends], ends, strict=False))
    ]


def fit_on_several(
    make: Callable[[], Task], plan: Plan, folder: Path, shares: Sequence[float], local: bool = True
) -> Fitted:
    """Fit by as many processes as there are shares.

    Args:
        make: the task, from files that all processes see; importable, or a `functools.partial` of what is.
        plan: how; `batch` is that of all processes together.
        folder: of checkpoints, seen by all; `best.safetensors` holds the weights.
        shares: of each minibatch.
        local: processes of the driver's host; else tasks of Spark.
    """
    runner = TorchDistributor(num_processes=len(shares), local_mode=local, use_gpu=False)
    return cast(Fitted, runner.run(_one, make, plan, str(folder), tuple(shares)))


def _one(make: Callable[[], Task], plan: Plan, folder: str, shares: tuple[float, ...]) -> Fitted:
    from torch import distributed  # noqa: PLC0415

    if os.environ.get("MASTER_ADDR") in ("localhost", "127.0.0.1"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo")
    try:
        shard = shards(shares)[distributed.get_rank()]
        return fit(make(), plan, Path(folder), print if shard.rank == 0 else _silent, shard)
    finally:
        distributed.destroy_process_group()


def _silent(_: str) -> None:
    """The first process tells for all."""
