"""Groups of items from another table: checked, and shared with tasks as arrays by item_index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.checks import Check
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.metrics.kernels.user_lists import CountedItems
from recbench_spark.ranking.successive import repeat_ranges
from recbench_spark.schemas import require_names
from recbench_spark.sources.arrow_rows import spell_values
from recbench_spark.sources.input_rows import check_input, open_input
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.blocks import ChangedRows, Engine
from recbench_spark.storage.scratch import keep_rows
from recbench_spark.storage.shared_arrays import SharedRows

LABELS = ("item_id", "label", "weight")
"""Columns of labels as tasks read them."""

MOST_GROUPS = 100
"""Most groups: each is counted for every user and resampled."""


@dataclass(frozen=True)
class ItemGroups:
    """Groups of items, and their labels in mapped arrays.

    Attributes:
        rows: labels, as LABELS.
        catalogue: looks items up, as `listed.ItemLookup`.
        n_items: catalogue size.
        column: name of the labels' column.
        names: the groups, (g,), in order of their texts.
    """

    rows: SharedRows
    catalogue: Any
    n_items: int
    column: str
    names: tuple[str, ...]

    @property
    def sizes_g(self) -> Floats:
        """Return the sum of the items' weights in each group, (g,)."""
        return np.asarray(self._arrays()["sizes"])

    def label(self, items: CountedItems) -> tuple[Ints, Ints, Floats]:
        """Return entry, group and weight of each label, as `user_lists.Grouping`."""
        arrays, entry = self._arrays(), np.flatnonzero(items.item_n >= 0)
        start = arrays["bounds"][items.item_n[entry]]
        number, at = repeat_ranges(start, arrays["bounds"][items.item_n[entry] + 1] - start)
        return entry[number], arrays["group"][at].astype(np.int64), arrays["weight"][at]

    def check(self) -> list[Check]:
        """Return counts of items without a group or with several, and of groups with one item."""
        items, rows = np.diff(self._arrays()["bounds"]), self._arrays()["group"]
        alone = int((np.bincount(rows, minlength=len(self.names)) == 1).sum())
        of = f"of {self.n_items} in the catalogue; they are in no group of {self.column}"
        several = f"of {self.n_items}; an item's labels weigh 1 together"
        few = f"of {len(self.names)} of {self.column}: their numbers are those of one item"
        return [
            Check("items without a group", float((items == 0).sum()), None, "info", of),
            Check("items in several groups", float((items > 1).sum()), None, "info", several),
            Check("groups with one item", float(alone), None, "info", few),
        ]

    def _arrays(self) -> shared_arrays.Arrays:
        return self.rows.arrays(self.build)

    def build(self, rows: ds.Dataset, folder: Path) -> None:
        """Write labels by item_index: 10 bytes each, and 8 bytes an item.

        An item's weights sum to 1. A label that an item has twice counts once, with both weights.
        """
        table = rows.to_table(columns=list(LABELS))
        index = self.catalogue.find(table.column("item_id").combine_chunks())[0]
        code = pc.index_in(table.column("label"), value_set=pa.array(self.names, pa.string())).to_numpy()
        own = index >= 0
        pairs, pair_r = np.unique(index[own] * len(self.names) + code[own], return_inverse=True)
        weight = np.bincount(pair_r, table.column("weight").to_numpy()[own], minlength=len(pairs))
        item, group = pairs // len(self.names), pairs % len(self.names)
        counts = np.bincount(item, minlength=self.n_items)
        weight = weight / np.bincount(item, weight, minlength=self.n_items)[item]
        arrays = {"bounds": np.concatenate([[0], np.cumsum(counts)]), "group": group.astype(np.int16)}
        arrays |= {"weight": weight, "sizes": np.bincount(group, weight, minlength=len(self.names))}
        for name, array in arrays.items():
            shared_arrays.save_array(folder, name, array)


@dataclass(frozen=True)
class LabelTable:
    """Labels of items as a table has them: files, their column, and the groups."""

    rows: SharedRows
    column: str
    names: tuple[str, ...]
    what: str

    def join(self, catalogue: Any, n_items: int) -> ItemGroups:
        """Join the labels with a catalogue.

        Raises:
            DataError: no item of the catalogue has a label.
        """
        groups = ItemGroups(self.rows, catalogue, n_items, self.column, self.names)
        if not groups.sizes_g.any():
            message = f"{self.what} and the catalogue have no item_id in common"
            raise DataError(message, "write both ids in the same way")
        return groups


def open_item_groups(
    engine: Engine, scratch: str, table: Any, columns: tuple[str, str | None], what: str = "item_groups"
) -> LabelTable:
    """Read the labels of items, and write them for tasks.

    Args:
        engine: the runner.
        scratch: a folder for all tasks.
        table: item_id, and the column: a label a row, or several in a list; further rows of an item are
            further labels. A row without a label is left out.
        columns: the labels' column, and that of their weights above 0; None: an item's labels weigh alike.
        what: the table's name in messages.

    Raises:
        SchemaError: a column is missing, or holds no labels. DataError: no label, too many groups, or a
            weight of 0 or less.
    """
    column, weight = columns
    needed = ("item_id", column, *([weight] if weight else []))
    opened = open_input(engine, table, needed, what)
    require_names(opened.schema.names, needed, what)
    weights = {weight: "double"} if weight else {}
    checked = check_input(opened, weights, what, ids=("item_id",), others=(column,))
    if weight and checked.ranges.get(weight, (1.0,))[0] <= 0:
        raise DataError(f"{what}: {weight} is {checked.ranges[weight][0]:g}", "give weights above 0")
    spell = partial(spell_labels, column=column, weight=weight, where=what)
    kept = keep_rows(scratch, ChangedRows(checked.rows, needed, spell, LABELS), LABELS, engine)
    names = sorted(set().union(*(set().union(*own) for own in kept.each(["label"], list_labels))))
    if not names or len(names) > MOST_GROUPS:
        message = f"{what}: column {column} has {len(names)} groups"
        raise DataError(message, f"give 1 to {MOST_GROUPS}, such as genres or price classes")
    return LabelTable(SharedRows(kept.files[0].rsplit("/", 2)[1], kept.files), column, tuple(names), what)


def spell_labels(rows: pa.Table, column: str, weight: str | None, where: str) -> pa.Table:
    """Return a row for each item and label: LABELS."""
    labels = rows.column(column).combine_chunks()
    weights = rows.column(weight).combine_chunks() if weight else pa.array(np.ones(len(rows)))
    ids = rows.column("item_id").combine_chunks().cast(pa.string())
    if pa.types.is_list(labels.type) or pa.types.is_large_list(labels.type):
        at = pc.list_parent_indices(labels)
        ids, weights, labels = ids.take(at), weights.take(at), pc.list_flatten(labels)
    try:
        texts = spell_values(pa.chunked_array([labels]))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        message = f"{where}: column {column} of type {labels.type} holds no labels"
        raise SchemaError(message, "write labels as text, or as lists of texts") from error
    table = pa.table([ids, texts, weights], list(LABELS))
    return table.filter(pc.is_valid(table.column("label")))


def list_labels(tables: Iterable[pa.Table]) -> list[set[str]]:
    """List the labels in some rows, column by column; nothing without tables."""
    rows = list(tables)
    columns = pa.concat_tables(rows).columns if rows else []
    return [{*column.unique().drop_null().to_pylist()} for column in columns]
