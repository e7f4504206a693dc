"""Paired values: arrays of users x runs x cut-offs.

All runs have the same users. Rows of `user_metrics` are shuffled by user once, and sorted in their tasks. A
task holds its rows, and arrays for one chunk of users. Axes: u users, n runs, c cut-offs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.storage.packed_blocks import Block, partition_rows
from recbench_spark.storage.shared_arrays import flatten_lists

CHUNK_ROWS = 1 << 18
"""Rows (a user in a run) turned into arrays at once: 2 MB per cut-off."""

CHUNK_VALUES = 1 << 24
"""Most values in these rows: 128 MiB."""

KEY = ("part", "metric", "definition")
"""Key columns: values are compared within one key."""


@dataclass(frozen=True)
class PairedValues:
    """Some users' values in several runs, for one key.

    The key is (part, metric, definition); ids are hashed; NaN: left out.
    """

    key: tuple[str, str, str]
    keys_u: Ints
    values_unc: Floats


def select_runs(rows: pa.Table, run_ids: Sequence[str]) -> pa.Table:
    """Return some runs' rows, with each run's place as `run`."""
    run_r = pc.index_in(rows.column("run_id"), value_set=pa.array(run_ids, pa.string()))
    return rows.append_column("run", run_r).filter(pc.is_valid(run_r))


def key_users(rows: pa.Table, run_ids: Sequence[str]) -> pa.Table:
    """Return some runs' rows as `sort_by_user` takes them.

    Users are hashed.
    """
    own = select_runs(rows, run_ids).select([*KEY, "user_id", "run", "ks", "values"])
    keys = hash_ids(own.column("user_id")) if own.num_rows else np.zeros(0, np.uint64)
    return own.append_column("user_key", pa.array(keys.view(np.int64)))


def deal_by_user(rows: pa.Table, tasks: int) -> Iterator[Block]:
    """Yield rows in blocks, a user's rows for one task.

    Users are hashed.
    """
    if rows.num_rows:
        keys = rows.column("user_key").to_numpy().view(np.uint64)
        yield from partition_rows(rows.combine_chunks(), (keys % np.uint64(tasks)).astype(np.int64))


def sort_by_user(rows: pa.Table) -> pa.Table:
    """Sort rows by user within each key, for `read_paired_values`."""
    return rows.sort_by([(name, "ascending") for name in (*KEY, "user_id", "run")])


def read_paired_values(
    batches: Iterable[pa.RecordBatch], n_runs: int, ks: Sequence[int | None]
) -> Iterator[PairedValues]:
    """Read arrays from sorted rows by key, in user chunks.

    Rows come from `sort_by_user`.
    """
    limit = min(CHUNK_ROWS, max(CHUNK_VALUES // max(len(ks), 1), 1))
    for chunk in _whole_users(batches, limit):
        for start, stop in equal_key_ranges(chunk, KEY):
            yield _to_paired_values(chunk.slice(start, stop - start), n_runs, ks)


def _whole_users(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.Table]:
    """Yield tables with about `limit` rows, never splitting a user.

    A user's rows for one key stay in one table.
    """
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        if rows >= limit:
            table = pa.Table.from_batches(pending).combine_chunks()
            complete = equal_key_ranges(table, (*KEY, "user_id"))[-1][0]
            if complete:
                yield table.slice(0, complete)
            pending = table.slice(complete).to_batches()
            rows = table.num_rows - complete
    if rows:
        yield pa.Table.from_batches(pending).combine_chunks()


def equal_key_ranges(table: pa.Table, names: Sequence[str]) -> list[tuple[int, int]]:
    """Return (start, stop) for runs of rows with equal columns."""
    new = np.zeros(table.num_rows, dtype=bool)
    new[0] = True
    for name in names:
        column = table.column(name).combine_chunks()
        new[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(new)
    return list(zip(starts.tolist(), [*starts[1:].tolist(), table.num_rows], strict=True))


def _to_paired_values(rows: pa.Table, n_runs: int, ks: Sequence[int | None]) -> PairedValues:
    user_r, values = spread_values(rows, n_runs, ks)
    keys_u = rows.column("user_key").to_numpy()[np.searchsorted(user_r, np.arange(len(values)))]
    part, metric, definition = (rows.column(name)[0].as_py() for name in KEY)
    return PairedValues((part, metric, definition), keys_u, values)


def spread_values(rows: pa.Table, n_runs: int, ks: Sequence[int | None]) -> tuple[Ints, Floats]:
    """Return each row's user, numbered in order, and values of one key, (u, n, c).

    Rows are sorted by user; their column `run` has a run's place.
    """
    first = np.array([start for start, _ in equal_key_ranges(rows, ("user_id",))])
    user_r = np.searchsorted(first, np.arange(rows.num_rows), side="right") - 1
    values_rc = read_cutoffs(rows, ks)
    # One user's cut-offs can be in several rows: one per run that owns some of them.
    row, c = np.nonzero(~np.isnan(values_rc))
    values = np.full((len(first), n_runs, len(ks)), np.nan)
    values[user_r[row], rows.column("run").to_numpy()[row], c] = values_rc[row, c]
    return user_r, values


def read_cutoffs(rows: pa.Table, ks: Sequence[int | None]) -> Floats:
    """Read each row's values at some cut-offs, (r, c).

    NaN: there is none.
    """
    offsets, k_p = flatten_lists(rows.column("ks"))
    _, value_p = flatten_lists(rows.column("values"))
    row_p = np.repeat(np.arange(rows.num_rows), np.diff(offsets))
    # A NULL cut-off, the whole ranking, is NaN among the floats.
    cut_p = np.nan_to_num(k_p.astype(np.float64), nan=0.0)
    values: Floats = np.full((rows.num_rows, len(ks)), np.nan)
    for c, k in enumerate(ks):
        selected = cut_p == (k or 0)
        values[row_p[selected], c] = value_p[selected]
    return values
