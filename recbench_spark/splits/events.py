"""Rows of several events: which are asked, and one row a pair with all their weights.

Tasks import this module: weights arrive as plain numbers, without the settings.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.sources.events import EVENT
from recbench_spark.splits.kernels.labels import NAMES
from recbench_spark.splits.positions import name_parts

TRAIN, GIVEN, VALID, LATER, _ = NAMES

SIGNAL = "signal"
"""Column that is true for a trained row whose events are no targets."""

STRENGTH = "strength"
"""Column with the weights so far of a held-out row's pair, under successive questions."""

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
        code_r, marked_r = read_events(rows), np.zeros(len(rows), np.bool_)
        for code in self.targets:
            marked_r |= code_r == code
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
        """Give each row the weights of its pair and part, and mark trained rows without a target.

        Args:
            rows: labelled rows.
            places: (p,) the rows whose pair has several events in a part, each event once.
            group_p: (p,) their pair and part, from 0.
        """
        names, cell_r = self._number_cells(rows)
        weights, asks = np.array(self.weights), np.isin(np.arange(len(self.names)), self.targets)
        trains, plain = np.isin(names, (TRAIN, GIVEN)), ~np.isin(names, (TRAIN, GIVEN, LATER))
        weight_r: Floats = np.tile(np.minimum(weights, self.cap), len(names))[cell_r]
        signal_r: Bools = np.outer(trains, ~asks).ravel()[cell_r]
        if len(places):
            code_p = cell_r[places] % len(weights)
            order_p = np.argsort(code_p, kind="stable")  # so the order of rows moves no last bit
            sums = np.bincount(group_p[order_p], weights[code_p[order_p]])
            weight_r[places] = np.minimum(sums, self.cap)[group_p]
            signal_r[places] &= (np.bincount(group_p, asks[code_p]) == 0)[group_p]
        if not self.grades:
            np.copyto(weight_r, rows.column("rating"), where=np.repeat(plain, len(weights))[cell_r])
        rows = rows.set_column(rows.column_names.index("rating"), "rating", pa.array(weight_r))
        return rows.append_column(SIGNAL, pa.array(signal_r))

    def _number_cells(self, rows: pa.Table) -> tuple[list[str], Ints]:
        """Return parts' names, and (r,) each row's part and event as a number: events within parts."""
        names, cell_r = name_parts(rows)
        cell_r *= len(self.names)
        cell_r += read_events(rows)
        return names, cell_r

    def sum_so_far(self, rows: pa.Table, places: Ints, pair_p: Ints) -> pa.Table:
        """Give rows after training the weights that their pair has by then, each event once.

        They are the rating of a `later` row, and STRENGTH of others. Of rows at one time, `later` ones
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
        return rows.append_column(STRENGTH, pa.array(weight_r, mask=later_r | history_r))

    def count_rows(self, labelled: pa.Table) -> list[tuple[str, str, int]]:
        """Count rows by part and event: (part, fact, rows)."""
        names, cell_r = self._number_cells(labelled)
        counts = np.bincount(cell_r, minlength=len(names) * len(self.names)).reshape(len(names), -1)
        return [
            (names[part], f"{ROWS_OF}{self.names[code]}", int(counts[part, code]))
            for part, code in zip(*np.nonzero(counts), strict=True)
        ]


def name_before(part: str) -> str:
    """Name the entry of a block with the rows before a part's questions."""
    return f"before {part}"


def read_events(rows: pa.Table) -> npt.NDArray[np.int8]:
    """Return the code of each row's event, (r,)."""
    codes: npt.NDArray[np.int8] = rows.column(EVENT).to_numpy()
    return codes


def read_strengths(rows: pa.Table) -> pa.Array:
    """Return (r,) the weights of each row's pair so far: the rating, if no column says more."""
    return pc.coalesce(rows.column(STRENGTH), rows.column("rating")).combine_chunks()
