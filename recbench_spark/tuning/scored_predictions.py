"""Join held-out rows with a bundle's predictions.

They are joined in tasks, counted, and summed by part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recbench_spark.config.bundle import Bundle
from recbench_spark.core.sums import Sums
from recbench_spark.errors import DataError
from recbench_spark.models.fits.tasks import sum_errors
from recbench_spark.storage.blocks import ChangedRows, PieceRows, Side, Sides, TaskRows, deal_sides
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.packed_blocks import read_partition_files, unpack_blocks
from recbench_spark.tuning.folds import FoldedLog, open_rows
from recbench_spark.tuning.plausibility_checks import PAIR_COLUMNS

KEYS = ("user_id", "item_id", "fold")

PAIRS = pa.schema(
    [("user_id", pa.string()), ("prediction", pa.float64()), ("outcome", pa.float64()),
     ("part", pa.string()), ("place", pa.int64())]
)  # fmt: skip
"""Types of PAIR_COLUMNS."""


def sum_parts(tables: Iterable[pa.Table]) -> dict[str, Sums]:
    """Sum errors by part; a task has whole users."""
    rows = pa.concat_tables([PAIRS.empty_table(), *tables])
    parts = rows.column("part").cast(pa.string())
    totals = {}
    for name in parts.unique().to_pylist():
        one = rows.filter(pc.equal(parts, name)).sort_by("user_id")
        users = one.column("user_id").combine_chunks().dictionary_encode().indices.to_numpy()
        predicted, outcome = (one.column(c).to_numpy() for c in ("prediction", "outcome"))
        totals[name] = sum_errors(predicted, outcome, users)
    return totals


def count_pairs(tables: Iterable[pa.Table]) -> Any:
    """Count held-out rows, predicted ones, and their predictions."""
    counts, before = np.zeros(3, np.int64), -1
    for table in tables:  # in place order
        place = table.column("place").to_numpy()
        predicted = table.column("prediction").is_valid().to_numpy()
        new = np.diff(place, prepend=before) != 0
        counts += new.sum(), (new & predicted).sum(), predicted.sum()
        before = place[-1] if len(place) else before
    return counts


def join_truth(store: FileTables, log: FoldedLog, bundle: Bundle, path: Path) -> TaskRows:
    """Join every held-out pair with its prediction, as PAIR_COLUMNS.

    The join takes one shuffle of log and bundle, by user. Each pair must have one prediction, from the fold
    that holds it out.
    """
    names = pq.read_schema(path).names
    if log.folds and "fold" not in names:
        raise DataError(
            f"bundle {bundle.name} has no column fold", "say in which fold each pair was held out"
        )
    keys = KEYS if log.folds else KEYS[:2]
    truth_columns = ("user_id", "item_id", "rating", "part")
    hold_out = partial(_hold_out, parts=None if log.folds else log.divide_parts(None)[1])
    truth = ChangedRows(open_rows(store, log), truth_columns, hold_out, (*keys, "outcome", "part"))
    columns = (*keys, "prediction")
    file = PieceRows(store.engine, [(str(path), {})], read_partition_files)
    submitted = ChangedRows(file, columns, partial(_cast_keys, keys=keys), columns)
    sides = [Side(0, truth, (*keys, "outcome", "part")), Side(1, submitted, columns)]
    tasks = store.engine.count_tasks(log.files.rows)
    return deal_sides(store.engine, sides, tasks).then(partial(_join_sides, keys=keys), PAIR_COLUMNS)


def _hold_out(rows: pa.Table, parts: Sequence[str] | None) -> pa.Table:
    """Return the held-out rows.

    Without `parts` these are the rows whose part is a fold's number.
    """
    part = rows.column("part").cast(pa.string())
    if parts is None:  # see `pairs.divide_pairs`
        part = pc.list_element(pc.split_pattern(part, ":"), 0)
    chosen = pc.match_substring_regex(part, r"^\d+$") if parts is None else pc.is_in(part, pa.array(parts))
    fold = part.filter(chosen).cast(pa.int32()) if parts is None else pa.nulls(pc.sum(chosen).as_py() or 0)
    rows = rows.set_column(rows.column_names.index("part"), "part", part).filter(chosen)
    return _cast_keys(rows.rename_columns({"rating": "outcome"}), KEYS[:2]).append_column("fold", fold)


def _cast_keys(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Cast ids to texts, and fold numbers to 32 bits."""
    for name in keys:
        kind = pa.int32() if name == "fold" else pa.string()
        rows = rows.set_column(rows.column_names.index(name), name, rows.column(name).cast(kind))
    return rows


def _join_sides(sides: Sides, keys: Sequence[str]) -> pa.Table:
    """Return a task's held-out rows with their predictions, or none."""
    truth, submitted = (unpack_blocks(sides.get(number, [])) for number in (0, 1))
    if truth is None:
        return PAIRS.empty_table()
    truth = truth.append_column("place", pa.array(np.arange(len(truth))))
    if submitted is None:
        joined = truth.append_column("prediction", pa.nulls(len(truth), pa.float64()))
    else:
        joined = truth.join(submitted.select([*keys, "prediction"]), list(keys), join_type="left outer")
    return joined.sort_by("place").select(PAIR_COLUMNS).cast(PAIRS)


def refuse_rows(bundle: Bundle, n_rows: int, wanted: int, pairs: int, matched: int) -> None:
    """Refuse a bundle unless each held-out pair has one row.

    The message counts the faults.

    Args:
        bundle: the submission.
        n_rows: number of its rows.
        wanted: number of held-out pairs.
        pairs: number of held-out pairs it predicts.
        matched: number of its rows with a prediction for a held-out pair.
    """
    wrong = {
        "held-out pairs without a prediction": wanted - pairs,
        "rows of a pair that another row predicts": matched - pairs,
        "rows that predict no held-out pair": n_rows - matched,
    }
    counted = [f"{n:,} {what}" for what, n in wrong.items() if n]
    if counted:
        raise DataError(
            f"bundle {bundle.name} has {n_rows:,} rows for {wanted:,} held-out pairs: {', '.join(counted)}",
            "give one row per held-out pair, predicted from the other folds",
        )
