"""Paired values: the same users in several runs, as arrays of users x runs x cut-offs.

Rows of `user_metrics` are shuffled by user once and sorted inside their partition, so that a task reads
them as a stream. It holds one chunk, for any number of users and runs.
Axes: u users, n runs, c cut-offs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.storage.shared_arrays import flatten_lists

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CHUNK_ROWS = 1 << 18
"""Rows (a user in a run) that become arrays at once: 2 MB per cut-off."""

CHUNK_VALUES = 1 << 24
"""Values of these rows at most: 128 MiB."""

KEY = ("part", "metric", "definition")
"""Columns of the key: values are compared within one key."""


@dataclass(frozen=True)
class PairedValues:
    """Values of some users: key (part, metric, definition), hashes of the ids, values (NaN: left out)."""

    key: tuple[str, str, str]
    keys_u: Ints
    values_unc: Floats


def repartition_by_user(user_metrics: DataFrame, run_ids: Sequence[str], tasks: int) -> DataFrame:
    """Bring the rows of these runs together by user, next to one another within each key.

    One shuffle of (key, user, run, values) by user and a sort inside each of `tasks` partitions.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415

    rows = user_metrics.where(F.col("run_id").isin(list(run_ids))).select(
        *KEY, "user_id", F.xxhash64("user_id").alias("user_key"),
        number_runs(run_ids).alias("run"), "ks", "values",
    )  # fmt: skip
    return rows.repartition(tasks, "user_id").sortWithinPartitions(*KEY, "user_id")


def number_runs(run_ids: Sequence[str]) -> Column:
    """Return each row's place of its run among these ids."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    places = F.map_from_arrays(
        F.array(*map(F.lit, run_ids)), F.array(*(F.lit(n) for n in range(len(run_ids))))
    )
    return F.element_at(places, F.col("run_id"))


def read_paired_values(
    batches: Iterable[pa.RecordBatch], n_runs: int, ks: Sequence[int | None]
) -> Iterator[PairedValues]:
    """Read the arrays of a partition of `repartition_by_user`, key by key, in chunks of users."""
    limit = min(CHUNK_ROWS, max(CHUNK_VALUES // max(len(ks), 1), 1))
    for chunk in _whole_users(batches, limit):
        for start, stop in _equal_key_ranges(chunk, KEY):
            yield _to_paired_values(chunk.slice(start, stop - start), n_runs, ks)


def _whole_users(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.Table]:
    """Yield tables of about `limit` rows; the rows of a user and key always stay in one table."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        if rows >= limit:
            table = pa.Table.from_batches(pending).combine_chunks()
            complete = _equal_key_ranges(table, (*KEY, "user_id"))[-1][0]
            if complete:
                yield table.slice(0, complete)
            pending = table.slice(complete).to_batches()
            rows = table.num_rows - complete
    if rows:
        yield pa.Table.from_batches(pending).combine_chunks()


def _equal_key_ranges(table: pa.Table, names: Sequence[str]) -> list[tuple[int, int]]:
    """Return (start, stop) of each run of rows that agree in these columns."""
    new = np.zeros(table.num_rows, dtype=bool)
    new[0] = True
    for name in names:
        column = table.column(name).combine_chunks()
        new[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(new)
    return list(zip(starts.tolist(), [*starts[1:].tolist(), table.num_rows], strict=True))


def _to_paired_values(rows: pa.Table, n_runs: int, ks: Sequence[int | None]) -> PairedValues:
    first = np.array([start for start, _ in _equal_key_ranges(rows, ("user_id",))])
    user_r = np.searchsorted(first, np.arange(rows.num_rows), side="right") - 1
    offsets, k_p = flatten_lists(rows.column("ks").combine_chunks())
    _, value_p = flatten_lists(rows.column("values").combine_chunks())
    row_p = np.repeat(np.arange(rows.num_rows), np.diff(offsets))
    values = np.full((len(first), n_runs, len(ks)), np.nan)
    # A NULL cut-off, the whole ranking, is NaN among the floats.
    cut_p = np.nan_to_num(k_p.astype(np.float64), nan=0.0)
    run_r = rows.column("run").to_numpy()
    for c, k in enumerate(ks):
        selected = cut_p == (k or 0)
        values[user_r[row_p[selected]], run_r[row_p[selected]], c] = value_p[selected]
    keys_u = rows.column("user_key").to_numpy()[first]
    part, metric, definition = (rows.column(name)[0].as_py() for name in KEY)
    return PairedValues((part, metric, definition), keys_u, values)
