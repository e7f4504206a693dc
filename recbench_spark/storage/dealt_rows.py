"""Rows that tasks hold after a shuffle, to be read several times or dealt once more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from recbench_spark.core.streams import serialize_table
from recbench_spark.storage.blocks import Deal, Rows, TaskRows
from recbench_spark.storage.packed_blocks import Block, Result


@dataclass(frozen=True)
class DealtRows:
    """Rows that tasks hold, to be read in pieces or dealt once more."""

    tasks: TaskRows

    def each(self, columns: Sequence[str], sums: Callable[[Iterable[pa.Table]], Result]) -> list[Result]:
        """Return `sums` of each task's rows; the driver holds them."""
        return self.tasks.each(partial(_sum_table, columns=tuple(columns), sums=sums))

    def deal(self, columns: Sequence[str], deal: Deal, tasks: int) -> TaskRows:
        """Send blocks to tasks: another shuffle."""
        return self.tasks.deal(partial(_deal_columns, columns=tuple(columns), deal=deal), tasks)


def _sum_table(
    rows: pa.Table, columns: Sequence[str], sums: Callable[[Iterable[pa.Table]], Result]
) -> Result:
    return sums([rows.select(list(columns))])


def _deal_columns(tables: Iterable[pa.Table], columns: Sequence[str], deal: Deal) -> Iterator[Block]:
    return deal(rows.select(list(columns)) for rows in tables)


@contextmanager
def keep_columns(rows: Rows, columns: Sequence[str], tasks: int) -> Iterator[DealtRows]:
    """Keep some columns of rows in tasks, for several readings."""
    deal = partial(_deal_in_turn, columns=tuple(columns), tasks=tasks)
    with rows.deal(columns, deal, tasks).keep() as kept:
        yield DealtRows(kept)


def _deal_in_turn(tables: Iterable[pa.Table], columns: Sequence[str], tasks: int) -> Iterator[Block]:
    for number, rows in enumerate(tables):
        yield number % tasks, serialize_table(rows.select(list(columns)))
