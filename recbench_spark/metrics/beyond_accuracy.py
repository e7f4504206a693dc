"""List metrics from `rankings.top_items` and the catalogue.

No Spark is needed. User metrics: novelty, mean popularity, diversity. Metrics over all lists together:
coverage and Gini. `listed` joins lists and catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.core.arrays import Floats
from recbench_spark.core.definitions import MOMENT_AXES
from recbench_spark.errors import ConfigError
from recbench_spark.metrics.kernels import beyond_accuracy, item_groups
from recbench_spark.metrics.kernels.about import about_metric
from recbench_spark.metrics.kernels.beyond_accuracy import ListedCounts
from recbench_spark.metrics.kernels.user_lists import USER_METRICS
from recbench_spark.storage.shared_arrays import flatten_lists

if TYPE_CHECKING:  # scorers load torch, and list metrics do without
    from recbench_spark.ranking.sources import DotSource

DIVERSITY = "diversity"
"""Name of `metrics.kernels.beyond_accuracy.intra_list_diversity`, which needs item vectors."""

PER_USER = (*beyond_accuracy.POPULARITY, DIVERSITY, *USER_METRICS)
"""List metrics with a value per user."""

GROUPED = tuple(item_groups.GROUP_METRICS)
"""List metrics over all users, by groups of items."""

BY_LABELS = tuple(name for name in (*GROUPED, *USER_METRICS) if "item_groups" in about_metric(name).needs)
"""List metrics that need the labels of items in a table."""

SHOWN = tuple(beyond_accuracy.OVERALL)
"""List metrics of how many lists have each item."""

OVERALL = (*SHOWN, *GROUPED)
"""List metrics over all lists together, without values of users."""

BY_POPULARITY = (
    *beyond_accuracy.POPULARITY,
    *(name for name in (*GROUPED, *USER_METRICS) if "train" in about_metric(name).needs),
)
"""List metrics that need training rows."""

BY_HISTORY = tuple(
    name
    for name, metric in item_groups.GROUP_METRICS.items()
    if {*metric.kinds} & {*item_groups.OF_HISTORY}
) + tuple(name for name, metric in USER_METRICS.items() if metric.history)
"""List metrics that need each user's training items."""

UNGRADED = ("popularity_rsp", "rsp", "exposure_share", "category_diversity")
"""List metrics of the next three sets that read neither truth nor history."""

BY_GRADES = tuple({*BY_LABELS, *BY_HISTORY, *USER_METRICS, "popularity_reo"} - {*UNGRADED})
"""List metrics that know which items a user's grades make relevant, in truth or history."""

LIST_METRICS = (*OVERALL, *PER_USER)

AXES = ("candidates", "draw", "duplicates", "gaps", *MOMENT_AXES)
"""Definition axes behind list metrics: they decide which items a list can have."""


@dataclass(frozen=True)
class Facts:
    """Catalogue facts sent to tasks.

    Attributes:
        n_users: training users.
        features: item vectors.
        head: training users from which on an item is in the short head.
        in_head: items in the short head.
    """

    n_users: int
    features: DotSource | None
    head: int = 1
    in_head: int = 0


# ------------------------------------------------------------------------------- metrics of users


def list_values(
    batch: pa.RecordBatch, names: Sequence[str], facts: Facts, ks: Sequence[int]
) -> dict[str, Floats]:
    """Compute metrics per user in `LISTS_WITH_COUNTS`, (u, c)."""
    offsets, counts = flatten_lists(batch.column("counts"))
    lists, values = ListedCounts(offsets, counts, facts.n_users, facts.head), {}
    for name in names:
        if name == DIVERSITY:
            items, vectors = _item_vectors(flatten_lists(batch.column("item_index"))[1], facts)
            values[name] = beyond_accuracy.intra_list_diversity(offsets, items, vectors, ks)
        else:
            values[name] = beyond_accuracy.POPULARITY[name](lists, ks)
    return values


def _item_vectors(items_n: npt.NDArray[np.int64], facts: Facts) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return each listed item's row in the vectors, and these.

    Each distinct item has one row; numbers below 0 stay.
    """
    source = facts.features
    if source is None:
        raise ConfigError("diversity needs vectors of the items", "give features (--features PATH)")
    mapped = source.rows.arrays(source.build)["vectors"]
    distinct = np.unique(items_n[items_n >= 0])
    row_n = np.where(items_n >= 0, np.searchsorted(distinct, items_n), items_n)
    return row_n, mapped[distinct].astype(np.float64)


# ------------------------------------------------------------------------------- metrics of all lists


def overall_values(
    part: str, histogram: pa.Table, names: Sequence[str], ks: Sequence[int], n_items: int
) -> pa.Table:
    """Compute one part's metrics over all lists together.

    Args:
        part: held-out part.
        histogram: c (index in `ks`), times (lists with an item), items (how many items are in so many
            lists).
        names: names from OVERALL.
        ks: cut-offs.
        n_items: catalogue size, at least 1.

    Returns:
        part, metric, k, value (NULL where it is undefined).
    """
    c, times, items = (histogram.column(name).to_numpy() for name in ("c", "times", "items"))
    rows = []
    for at, k in enumerate(ks):
        times_x, items_x = times[c == at], items[c == at]
        shown = times_x.tolist(), items_x.tolist(), n_items
        value = {name: beyond_accuracy.OVERALL[name](*shown) for name in names}
        rows += [(part, name, k, float(value[name])) for name in names]
    columns = zip(*rows, strict=True)
    kinds = (pa.string(), pa.string(), pa.int32(), pa.float64())
    arrays = [pa.array(column, kind, from_pandas=True) for column, kind in zip(columns, kinds, strict=True)]
    return pa.table(arrays, names=["part", "metric", "k", "value"])
