"""Measures of rankings: the sums of a task, and the rows that the sums of all tasks give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from recbench_spark.kernels.streams import Batches


@dataclass(frozen=True)
class RankingMeasure:
    """A measure as two functions of Arrow rows, which are sent to the tasks.

    Attributes:
        sums: function from rows of `batch_schemas.RANKED_USERS`, of some users, to rows of sums.
        key: columns of these sums; rows that agree in them are finished together.
        finish: function from all sums of one key to rows of results.
        batched: two functions that replace `sums` for several models at less cost. The first maps the
            rankings of one model to its values; the second maps the values of all models to the sums of
            each.
    """

    sums: Callable[[Batches], Batches]
    key: tuple[str, ...]
    finish: Callable[[pa.Table], pa.Table]
    batched: (
        tuple[Callable[[Batches], Any], Callable[[Sequence[Any]], list[list[pa.RecordBatch]]]] | None
    ) = None
