"""Rows of several events: which are asked, and one row a pair with all their weights.

Tasks import this module: weights arrive as plain numbers, without the settings.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.sources.events import EVENT
from recbench_spark.splits.kernels.labels import NAMES
from recbench_spark.splits.positions import name_parts
from recbench_spark.splits.queries import read_attribute

TRAIN, GIVEN, VALID, LATER, _ = NAMES

SIGNALS = "dataset.events"
"""Attribute of a trained row whose events are no targets: their names."""

STRENGTH = "dataset.events.strength"
"""Attribute of a held-out row under successive questions: the weights of its pair so far."""

ROWS_OF = "rows_of_"
"""First letters of a fact: the rows of an event."""

NEXT = -1
"""Item that stands for a question, among the rows before it."""


class EventRule(NamedTuple):
    """Events of a log's rows in the form which tasks need.

    Attributes:
        names, weights: by code.
        targets: codes whose rows are asked.
        any_repeats: true if any trained event makes a repeat.
        cap: the largest sum of a pair's weights.
        grades: true if weights are also the relevance of held-out rows.
        unasked: the part for rows of other events which the log holds out.
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]
    targets: tuple[int, ...]
    any_repeats: bool = False
    cap: float = np.inf
    grades: bool = False
    unasked: str = LATER

    def mark_targets(self, rows: pa.Table) -> Bools:
        """Return (r,) true for rows of targets."""
        marked_r: Bools = np.isin(np.arange(len(self.names)), self.targets)[read_events(rows)]
        return marked_r

    def move_unasked(self, rows: pa.Table) -> pa.Table:
        """Move rows which a log holds out although their event is no target."""
        names, part_r = name_parts(rows)
        held_out = np.array([name not in (TRAIN, GIVEN, LATER) for name in names], np.bool_)
        strays_r = held_out[part_r] & ~self.mark_targets(rows) if len(rows) else np.zeros(0, np.bool_)
        if not strays_r.any():
            return rows
        parts = np.array([*names, self.unasked], object)[np.where(strays_r, len(names), part_r)]
        place = rows.column_names.index("part")
        return rows.set_column(place, "part", pa.array(parts, pa.string()).dictionary_encode())

    def add_weights(self, rows: pa.Table, places: Ints, group_p: Ints) -> pa.Table:
        """Give each row the weights of its pair and part, and name events without a target.

        Args:
            rows: labelled rows.
            places: (p,) the rows whose pair has several events in a part, each event once.
            group_p: (p,) their pair and part, from 0.
        """
        code_r, asked_r = read_events(rows), self.mark_targets(rows)
        weight_r: Floats = np.array(self.weights)[code_r]
        label_r, labels = code_r, [*self.names]
        if len(places):
            code_p = code_r[places]
            order_p = np.argsort(code_p, kind="stable")  # so the order of rows moves no last bit
            weight_r[places] = np.bincount(group_p[order_p], weight_r[places[order_p]])[group_p]
            asked_r[places] = np.bincount(group_p, asked_r[places])[group_p] > 0
            label_p, sets = self._name_sets(code_p, group_p)
            label_r, labels = code_r.copy(), [*labels, *sets]
            label_r[places] = label_p
        names, part_r = name_parts(rows)
        history_r = np.isin(names, (TRAIN, GIVEN))[part_r]
        weighs_r = np.isin(names, (TRAIN, GIVEN, LATER))[part_r] | self.grades
        rating_r = np.where(weighs_r, np.minimum(weight_r, self.cap), rows.column("rating").to_numpy())
        rows = rows.set_column(rows.column_names.index("rating"), "rating", pa.array(rating_r))
        signal_r = history_r & ~asked_r
        texts = pa.array(labels, pa.string()).take(pa.array(label_r[signal_r]))
        return _add_attribute(rows, signal_r, SIGNALS, texts)

    def sum_so_far(self, rows: pa.Table, places: Ints, pair_p: Ints) -> pa.Table:
        """Give rows after training the weights that their pair has by then, each event once.

        They are the rating of a `later` row, and an attribute of others. Of rows at one time, `later` ones
        come last.

        Args:
            rows: labelled rows with times.
            places: (p,) the rows that stay, also those whose weight another row has.
            pair_p: (p,) their pair, from 0.
        """
        names, part_r = name_parts(rows)
        later_r, history_r = (np.isin(names, parts)[part_r] for parts in ((LATER,), (TRAIN, GIVEN)))
        code_p, moment_p = (
            read_events(rows)[places],
            (2 * rows.column("event_time").to_numpy() + later_r)[places],
        )
        weight_r: Floats = rows.column("rating").to_numpy().copy()
        sum_p = np.zeros(len(places))
        for code in np.unique(code_p):
            first_x = np.full(int(pair_p.max()) + 1, np.iinfo(np.int64).max)
            of_p = code_p == code
            np.minimum.at(first_x, pair_p[of_p], moment_p[of_p])
            sum_p += self.weights[code] * (first_x[pair_p] <= moment_p)
        weight_r[places] = np.minimum(sum_p, self.cap)
        rating_r = np.where(later_r, weight_r, rows.column("rating").to_numpy())
        rows = rows.set_column(rows.column_names.index("rating"), "rating", pa.array(rating_r))
        asked_r = ~(later_r | history_r)
        return _add_attribute(rows, asked_r, STRENGTH, pa.array(weight_r[asked_r]).cast(pa.string()))

    def _list_sets(self) -> npt.NDArray[Any]:
        """Return a number with one bit for each code."""
        few = len(self.names) < 63
        return np.array([1 << code for code in range(len(self.names))], np.int64 if few else object)

    def _name_sets(self, code_p: Ints, group_p: Ints) -> tuple[Ints, list[str]]:
        """Return each row's set of events in its group, (p,) behind single events, and texts of sets."""
        bits = self._list_sets()
        set_g = np.zeros(int(group_p.max()) + 1, bits.dtype)
        np.add.at(set_g, group_p, bits[code_p])
        sets, set_p = np.unique(set_g[group_p], return_inverse=True)
        named = [[name for code, name in enumerate(self.names) if int(one) >> code & 1] for one in sets]
        return len(self.names) + set_p, [", ".join(names) for names in named]

    def count_rows(self, labelled: pa.Table) -> list[tuple[str, str, int]]:
        """Count rows by part and event: (part, fact, rows)."""
        names, part_r = name_parts(labelled)
        places = part_r * len(self.names) + read_events(labelled)
        counts = np.bincount(places, minlength=len(names) * len(self.names)).reshape(len(names), -1)
        return [
            (names[part], f"{ROWS_OF}{self.names[code]}", int(counts[part, code]))
            for part, code in zip(*np.nonzero(counts), strict=True)
        ]


def name_before(part: str) -> str:
    """Name the entry of a block with the rows before a part's questions."""
    return f"before {part}"


def read_events(rows: pa.Table) -> Ints:
    """Return the code of each row's event, (r,)."""
    codes: Ints = rows.column(EVENT).to_numpy().astype(np.int64)
    return codes


def mark_signals(rows: pa.Table) -> Bools:
    """Return (r,) true for trained rows whose events are no targets."""
    if "attributes" not in rows.column_names:
        return np.zeros(len(rows), np.bool_)
    column = _join_maps(rows)
    starts, keys = column.offsets.to_numpy(), column.keys
    if not pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_encode()
    names = pc.equal(keys.dictionary, SIGNALS).to_numpy(zero_copy_only=False)
    if names.all():  # each entry says so
        whole_r: Bools = starts[1:] > starts[:-1]
        return whole_r
    before = np.append(0, np.cumsum(names[keys.indices.to_numpy()], dtype=np.int32))
    marked_r: Bools = before[starts[1:]] > before[starts[:-1]]
    return marked_r


def read_strengths(rows: pa.Table) -> pa.Array:
    """Return (r,) the weights of each row's pair so far: the rating, if no attribute says more."""
    texts = read_attribute(rows, STRENGTH)
    return pc.coalesce(texts.cast(pa.float64()), rows.column("rating")).combine_chunks()


def _join_maps(rows: pa.Table) -> pa.MapArray:
    """Return a table's attributes in one piece."""
    column = rows.column("attributes").combine_chunks()
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _add_attribute(rows: pa.Table, marked_r: Bools, name: str, texts: pa.Array) -> pa.Table:
    """Add an attribute to marked rows."""
    n = len(rows)
    if "attributes" in rows.column_names:
        column = _join_maps(rows)
        offsets, keys, items = column.offsets.to_numpy(), column.keys, column.items
    else:
        offsets = np.zeros(n + 1, np.int64)
        keys = items = pa.array([], pa.string())
    length_r = np.diff(offsets) + marked_r if len(keys) else marked_r
    bounds = np.concatenate([[0], np.cumsum(length_r, dtype=np.int32)], dtype=np.int32)
    added = pa.repeat(name, len(texts))
    if offsets[0] == offsets[-1]:
        keys, items = added, texts
    else:
        old = np.ones(bounds[-1], np.bool_)
        old[bounds[1:][marked_r] - 1] = False
        place_e = np.empty(len(old), np.int64)
        place_e[old] = np.arange(offsets[0], offsets[-1])
        place_e[~old] = len(keys) + np.arange(len(texts))
        taken = pa.array(place_e)
        keys = pa.concat_arrays([keys.cast(pa.string()), added]).take(taken)
        items = pa.concat_arrays([items.cast(pa.string()), texts]).take(taken)
    empty = np.append(length_r == 0, False)
    made = pa.MapArray.from_arrays(pa.array(bounds, mask=empty), keys, items)
    if "attributes" in rows.column_names:
        return rows.set_column(rows.column_names.index("attributes"), "attributes", made)
    return rows.append_column("attributes", made)
