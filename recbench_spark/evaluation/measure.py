"""What is worked out of rankings wherever they lie: sums of a task, and rows of the sums of all tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from recbench_spark.kernels.streams import Batches


@dataclass(frozen=True)
class RankingMeasure:
    """Two functions of Arrow rows and what goes from the one to the other; it travels with a task.

    Attributes:
        sums: from rows of `batch_schemas.RANKED_USERS`, of some users, to what they add.
        key: columns of what they add; rows that agree in them are finished together.
        finish: from all rows of one key to what is told of it.
        together: two functions that do the work of `sums` for several models at less cost: from the
            rankings of one model to what is kept of it, and from what is kept of all to what each adds.
    """

    sums: Callable[[Batches], Batches]
    key: tuple[str, ...]
    finish: Callable[[pa.Table], pa.Table]
    batched: (
        tuple[Callable[[Batches], Any], Callable[[Sequence[Any]], list[list[pa.RecordBatch]]]] | None
    ) = None
