"""Labels for slices from tables of users and items.

They are checked, spelled as text and shared with tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from recbench_spark.config import Slice
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.sources.arrow_rows import spell_values
from recbench_spark.sources.input_rows import check_input, count_distinct, open_input
from recbench_spark.splits.user_blocks import TABLE_LABELS, SliceLabel
from recbench_spark.storage.blocks import ChangedRows
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.scratch import keep_rows
from recbench_spark.storage.shared_arrays import SharedRows


def label_slices(store: FileTables, slices: Sequence[Slice]) -> tuple[SliceLabel, ...]:
    """Return labels for a file's slices.

    Tasks write labels from tables to scratch, by id.

    Raises:
        FallbackToSpark: only Spark reads a table. SchemaError: a table lacks a column, or labels are no
            values. DataError: an id is missing, or stands twice.
    """
    return tuple(
        SliceLabel(cut.key, cut.of, cut.column or cut.key, _share_labels(store, cut) if cut.path else None)
        for cut in slices
    )


def _share_labels(store: FileTables, cut: Slice) -> SharedRows | None:
    """Return a table's labels (TABLE_LABELS), or None without rows."""
    name, source, what = f"{cut.of[:-1]}_id", cut.column or cut.key, f"slice {cut.key}"
    opened = open_input(store.engine, str(cut.path), [name, source], what)
    checked = check_input(opened, {}, what, ids=(name,), others=(source,))
    spell = partial(_spell_rows, names=(name, source), where=f"{what}: {cut.path}")
    labelled = ChangedRows(checked.rows, (name, source), spell, TABLE_LABELS)
    files = keep_rows(store.scratch, labelled, TABLE_LABELS, store.engine).files
    if not files:
        return None
    if count_distinct(store.engine, checked, name) < checked.n:
        raise DataError(f"slice {cut.key}: {cut.path} has a {name} twice", "keep one row per id")
    return SharedRows(files[0].rsplit("/", 2)[1], files)


def _spell_rows(rows: pa.Table, names: Sequence[str], where: str) -> pa.Table:
    ids, labels = (rows.column(name) for name in names)
    try:
        return pa.table([ids.cast(pa.string()), spell_values(labels)], list(TABLE_LABELS))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        message = f"{where}: column {names[1]} of type {labels.type} holds no labels"
        raise SchemaError(message, "write labels as text") from error
