"""Open a split's labelled rows in tasks, on any runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from recbench_spark.schemas import SPLITS
from recbench_spark.splits.audit import deal_users, read_labelled
from recbench_spark.storage.blocks import PieceRows, Rows, TaskRows
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.packed_blocks import Change, are_whole, read_files


def open_labelled(store: FileTables, split_id: str) -> Rows:
    """Return a split's labelled rows; tasks open files by themselves.

    Raises:
        FallbackToSpark: Spark must read the table, and this warehouse has none.
    """
    rows = store.open_rows(SPLITS, "split_id", [split_id])
    if not isinstance(rows, PieceRows):
        return rows
    return replace(rows, pieces=rows.files, read=read_labelled)


def open_by_user(
    rows: Rows, columns: Sequence[str], change: Change, names: tuple[str, ...], count: Callable[[], int]
) -> TaskRows:
    """Let tasks change labelled rows, user by user.

    A task holds all rows of its users. Files with whole users are opened as they are. Other rows
    (items are held out, files were compacted, Spark reads) are shuffled once by user.

    Args:
        rows: labelled rows.
        columns: columns for `change`.
        change: function from rows to a result.
        names: columns of the result.
        count: returns the number of tasks in a shuffle.
    """
    if isinstance(rows, PieceRows) and are_whole(rows.pieces, "user_id"):
        return replace(rows, read=read_files).open(columns, change, names)
    tasks = count()
    return rows.deal(columns, partial(deal_users, tasks=tasks), tasks).then(change, names)
