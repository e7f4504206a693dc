"""Users' relevant items in time order, for training.

Factor and sequence models learn from them. Tasks cut them from labelled rows, whole by user, without Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Bools
from recbench_spark.core.ids import encode_texts
from recbench_spark.errors import DataError
from recbench_spark.models.adapters.split_data import SplitData
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.splits.labelled_rows import open_labelled
from recbench_spark.splits.labels import HISTORY, VALID
from recbench_spark.storage.scratch import share_results

COLUMNS = ("user_id", "item_id", "rating", "event_time", "part")
"""Columns of the labelled rows."""

CUT = ("user_id", "items", "tied", "still")
"""Columns of histories."""


@dataclass(frozen=True)
class HistoryRule:
    """Decides which rows belong to a history, and cuts histories.

    Attributes:
        known: items with an index; others are left out.
        threshold: lowest rating of a relevant row; None: every rating above 0 is relevant.
        parts: parts whose rows count.
        learnt_i: (i,) items to keep; None: all.
    """

    known: KnownItems
    threshold: float | None
    parts: tuple[str, ...] = ("train",)
    learnt_i: Bools | None = None

    def cut(self, rows: pa.Table) -> pa.Table:
        """Return each user's items, oldest first.

        Items at one time are in the order of their index, so the order is a function of the rows.

        Args:
            rows: all labelled rows of some users (COLUMNS).

        Returns:
            user_id, items (indices); tied: several items share the user's last time; still: the user has
            several items, all at one time.
        """
        kept = rows.filter(_select(rows, self.threshold, self.parts))
        users, items = (encode_texts(kept.column(name)) for name in COLUMNS[:2])
        index_x = self.known.find(items.dictionary)[0]
        if self.learnt_i is not None:
            index_x = np.where(self.learnt_i[index_x], index_x, -1)
        user_r, item_r = users.indices.to_numpy(), index_x[items.indices.to_numpy()]
        time_r = kept.column("event_time").fill_null(0).to_numpy()
        order = np.lexsort((item_r, time_r, user_r))
        order = order[item_r[order] >= 0]
        numbers, start_u = np.unique(user_r[order], return_index=True)
        bounds, time_o = np.append(start_u, len(order)), time_r[order]
        end_u = bounds[1:]
        has_several = end_u - start_u > 1
        last_u = time_o[end_u - 1]
        columns = [
            users.dictionary.take(pa.array(numbers)),
            pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), pa.array(item_r[order], pa.int32())),
            pa.array(has_several & (time_o[end_u - 2] == last_u)),
            pa.array(has_several & (time_o[start_u] == last_u)),
        ]
        return pa.table(columns, list(CUT))


def read_histories(data: SplitData, rule: HistoryRule) -> pa.Table:
    """Return all users' histories in the order of user ids.

    Tasks write them, and this process reads. It holds a user's id and 4 bytes per row.
    """
    cut = data.open_by_user(COLUMNS, rule.cut, CUT)
    return share_results(data.store.scratch, cut).dataset().to_table().sort_by("user_id")


def require_times(data: SplitData, model: str, kind: str) -> Counter[str]:
    """Check that relevant rows have times; count rows by part.

    Raises:
        DataError: a row has none.
    """
    count, counts = partial(_count_parts, threshold=data.threshold), Counter[str]()
    for some in open_labelled(data.store, data.split_id).each(COLUMNS[2:], count):
        counts += some
    untimed = counts.pop(UNTIMED, 0)
    if untimed:
        raise DataError(
            f"model {model}: kind '{kind}' reads histories in the order of time, and "
            f"{untimed:,} of {counts.total():,} rows have no event_time",
            "map dataset.columns.event_time, or use a kind that needs no order",
        )
    return counts


UNTIMED = ""
"""Key for rows without a time."""


def _count_parts(tables: Iterable[pa.Table], threshold: float | None) -> Counter[str]:
    counts = Counter[str]()
    for table in tables:
        kept = table.filter(_select(table, threshold, (*HISTORY, VALID)))
        parts = kept.column("part").cast(pa.string()).value_counts()
        counts.update(dict(zip(*(parts.field(n).to_pylist() for n in (0, 1)), strict=True)))
        counts[UNTIMED] += kept.column("event_time").null_count
    return counts


def _select(rows: pa.Table, threshold: float | None, parts: Sequence[str]) -> pa.Array:
    """Return which rows are relevant and in some parts."""
    is_relevant = pa.array(mark_relevant(rows.column("rating").to_numpy(), threshold))
    texts = rows.column("part").combine_chunks().cast(pa.string())
    return pc.and_(pc.is_in(texts, pa.array(parts, pa.string())), is_relevant)
