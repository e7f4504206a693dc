"""Truth items' exposure: propensity, stratum and popularity, without Spark.

A host's workers share files with all items' propensities, so truth items get theirs by item index, without
a shuffle. Strata, and all but the most popular items, then become slices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recbench_spark.analyses.exposure.kernels.exposure import Diagnostics, diagnostics
from recbench_spark.analyses.sampling.kernels import strata
from recbench_spark.analyses.sampling.kernels.strata import StratumEdges
from recbench_spark.config import EXPOSURE_SLICES
from recbench_spark.config import Strata as Wanted
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.errors import DataError
from recbench_spark.ranking.batches import split_by_part
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.ranking.part_users import PART_USERS, empty_nulls
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.shared_arrays import Arrays, SharedRows, bound_lists, flatten_lists

# ------------------------------------------------------------------------------- items


@dataclass(frozen=True)
class Chances:
    """Every catalogue item's chance to be shown, and their range.

    rows: item_index, n_train, propensity (all above 0); low, high: the smallest and largest propensity;
    unknown: how many items had none, or 0.
    """

    rows: pa.Table
    low: float
    high: float
    unknown: int


def item_chances(items: pa.Table, propensities: pa.Table) -> Chances:
    """Assign a propensity to each item.

    Items without one, or with 0, get the smallest other one.

    Args:
        items: the catalogue's item_id, item_index, n_train.
        propensities: item_id, propensity.

    Raises:
        DataError: propensities below 0, NaN or infinite, none above 0, or an item twice.
    """
    place_r = pc.index_in(propensities.column("item_id"), value_set=items.column("item_id"))
    known = propensities.column("propensity").filter(place_r.is_valid()).fill_null(0.0).to_numpy()
    at = place_r.drop_null().to_numpy()
    propensity_i = np.zeros(len(items))
    propensity_i[at] = known
    shown = known[known > 0]
    wrong = len(known) - np.count_nonzero((known >= 0) & (known < np.inf))
    twice, unknown = len(at) - len(np.unique(at)), np.count_nonzero(propensity_i == 0)
    if wrong or twice or not len(shown) or math.isinf(1 / float(shown.min())):
        raise DataError(
            f"propensities: {wrong} below 0 or not a number, {twice} items twice, {unknown} without one",
            "one finite number above 0 per item",
        )
    filled = np.where(propensity_i > 0, propensity_i, shown.min())
    rows = items.select(["item_index", "n_train"]).append_column("propensity", pa.array(filled))
    return Chances(rows, float(shown.min()), float(shown.max()), int(unknown))


def cut_strata(chances: Chances, wanted: Wanted) -> tuple[StratumEdges, ...]:
    """Cut strata for each requested number.

    Propensities count with 11 significant bits.

    Raises:
        DataError: all items have the same propensity.
    """
    rounded_i = strata.round_propensities(chances.rows.column("propensity").to_numpy())
    value_x, place_i = np.unique(rounded_i, return_inverse=True)
    mass_x = np.zeros(len(value_x), np.int64)
    np.add.at(mass_x, place_i, chances.rows.column("n_train").to_numpy())
    if wanted.kind == "equal_width":  # the edges depend on the smallest and largest value alone
        value_x[0], value_x[-1] = chances.low, chances.high
    return tuple(strata.cut(wanted.kind, n, value_x, np.bincount(place_i), mass_x) for n in wanted.n)


def popularity_threshold(n_train_i: Ints, share: float) -> int | None:
    """Return the training count from which items are most popular.

    None for share 0. Items with equal counts stay together, so the share can be larger.

    Args:
        n_train_i: each item's training rows.
        share: share of the items, rounded up.
    """
    if share == 0:
        return None
    n_train_x, items_x = np.unique(n_train_i, return_counts=True)
    running_x = np.cumsum(items_x[::-1])
    place = int(np.searchsorted(running_x, math.ceil(share * running_x[-1])))
    return int(n_train_x[::-1][place])


# ------------------------------------------------------------------------------- truth items


@dataclass(frozen=True)
class ExposedItems:
    """All items' exposure, as tasks read it.

    rows: those in `Chances`; strata: their edges (labels Q1, Q2 ...); popular_from: training count from
    which an item is one of the most popular.
    """

    rows: SharedRows
    n_items: int
    strata: StratumEdges | None
    popular_from: int | None

    def arrays(self) -> Arrays:
        """Return propensity and n_train by item index.

        The arrays take 16 bytes per item, one copy per host.
        """
        return self.rows.arrays(partial(_save, self.n_items))


def _save(n_items: int, rows: ds.Dataset, folder: Path) -> None:
    propensity = shared_arrays.create_array(folder, "propensity", (n_items,), np.float64)
    n_train = shared_arrays.create_array(folder, "n_train", (n_items,), np.int64)
    for batch in rows.to_batches():
        index = batch.column("item_index").to_numpy()
        propensity[index] = batch.column("propensity").to_numpy()
        n_train[index] = batch.column("n_train").to_numpy()


EXPOSED_USERS = pa.schema([*PART_USERS, pa.field("propensity", pa.list_(pa.float64()))])
"""`PART_USERS` with each truth item's propensity."""


def add_exposure(users: pa.Table, exposed: ExposedItems) -> pa.Table:
    """Add propensity, stratum and popularity of the truth.

    Returns rows of `EXPOSED_USERS`. Slice `stratum` is Q1, Q2 ... in ascending order of propensity;
    `most_popular` is `only` for the most popular items and `without` for all others.

    Args:
        users: rows of `PART_USERS`.
        exposed: all items' exposure.
    """
    arrays, labels_by_key = exposed.arrays(), {}
    offsets, item_p = flatten_lists(users.column("items"))
    propensity = arrays["propensity"][item_p]
    if exposed.strata is not None:
        labels = pa.array(exposed.strata.labels, pa.string())
        labels_by_key["stratum"] = labels.take(pa.array(exposed.strata.assign(propensity)))
    if exposed.popular_from is not None:
        popular = pa.array(arrays["n_train"][item_p] >= exposed.popular_from)
        labels_by_key["most_popular"] = pc.if_else(popular, "only", "without")
    bounds = pa.array(offsets, pa.int32())
    keys = [key for key in EXPOSURE_SLICES if key in labels_by_key]
    added = {key: pa.ListArray.from_arrays(bounds, labels_by_key[key]) for key in keys}
    slices = _add_slices(users.column("slices").combine_chunks(), added)
    users = users.set_column(users.column_names.index("slices"), EXPOSED_USERS.field("slices"), slices)
    lists = pa.ListArray.from_arrays(bounds, pa.array(propensity))
    return users.append_column(EXPOSED_USERS.field("propensity"), lists)


def _add_slices(slices: pa.MapArray, added: dict[str, pa.ListArray]) -> pa.MapArray:
    """Add keys behind each user's slices; NULL has none."""
    if not added:
        return slices
    own, n = empty_nulls(slices), len(slices)
    offsets = own.offsets.to_numpy()
    there = slice(offsets[0], offsets[-1])
    keys = [own.keys[there], *(pa.repeat(key, n) for key in added)]
    lists = [own.items[there], *added.values()]
    user_e = np.concatenate([np.repeat(np.arange(n), np.diff(offsets)), np.tile(np.arange(n), len(added))])
    order = pa.array(np.argsort(user_e, kind="stable"))
    return pa.MapArray.from_arrays(
        bound_lists(user_e, n), pa.concat_arrays(keys).take(order), pa.concat_arrays(lists).take(order)
    )


def select_exposed_users(
    blocks: pa.Table, select: Callable[[pa.Table], pa.Table], exposed: ExposedItems
) -> pa.Table:
    """Select held-out users, and add their truth's exposure.

    `select` is `select_part_users` with its settings.
    """
    return add_exposure(select(blocks), exposed)


# ------------------------------------------------------------------------------- weights of a part


@dataclass(frozen=True)
class Weights:
    """A part's truth weights 1 / propensity: bounds and a histogram.

    The histogram counts relevant items. longest: most truth items per user; largest: largest weight; grade:
    largest absolute relevance. weight_x, rows_x: distinct weights, rounded up to 11 bits, and how many
    relevant items have each.
    """

    longest: int
    largest: float
    grade: float
    weight_x: Floats
    rows_x: Ints

    def diagnostics(self, clip: float = math.inf) -> Diagnostics:
        """Return an estimate's diagnostics, with weights cut at `clip`."""
        return diagnostics(np.minimum(self.weight_x, clip), self.rows_x)


def weight_measure(threshold: float | None) -> Measure:
    """Return the measure counting each part's weights, for `list_weights`.

    Args:
        threshold: relevance from which an item is relevant; None: above 0.
    """
    needs = ("part", "relevance", "propensity")
    return Measure(partial(_sum_weights, threshold), ("part",), _add_weights, needs)


def list_weights(rows: pa.Table) -> dict[str, Weights]:
    """Return each part's weights from the results of `weight_measure`."""
    weights = {}
    for part in sorted(rows.column("part").unique().to_pylist()):
        own = rows.filter(pc.equal(rows.column("part"), part))
        longest, largest, grade = (pc.max(own.column(name)).as_py() for name in _BOUNDS)
        weight_x, rows_x = (own.column(name).to_numpy()[1:] for name in ("weight", "n"))
        weights[part] = Weights(longest, largest, grade, weight_x, rows_x)
    return weights


_BOUNDS = ("longest", "largest", "grade")


def _add_weights(rows: pa.Table) -> pa.Table:
    """Add up one part's histograms."""
    wanted = [("n", "sum"), *((name, "max") for name in _BOUNDS)]
    added = rows.group_by(["part", "weight"]).aggregate(wanted).sort_by("weight")
    return added.rename_columns({f"{name}_{how}": name for name, how in wanted})


def _sum_weights(threshold: float | None, batches: Batches) -> Batches:
    for part, users in (own for batch in batches for own in split_by_part(batch)):
        yield _part_weights(part, users, threshold)


def _part_weights(part: str, users: pa.RecordBatch, threshold: float | None) -> pa.RecordBatch:
    """Build some users' histogram.

    A first row with weight 0 has the bounds.
    """
    offsets, relevance = flatten_lists(users.column("relevance"))
    weight_p = strata.round_propensities(1.0 / flatten_lists(users.column("propensity"))[1])
    weight_x, rows_x = np.unique(weight_p[mark_relevant(relevance, threshold)], return_counts=True)
    bounds = {
        "longest": int(np.diff(offsets).max(initial=0)),
        "largest": float(weight_p.max(initial=0.0)),
        "grade": float(np.abs(relevance).max(initial=0.0)),
    }
    n = 1 + len(weight_x)
    columns = {
        "part": pa.repeat(pa.scalar(part), n),
        "weight": pa.array(np.concatenate([[0.0], weight_x])),
        "n": pa.array(np.concatenate([[0], rows_x]).astype(np.int64)),
        **{name: pa.array([bound] * n) for name, bound in bounds.items()},
    }
    return pa.RecordBatch.from_pydict(columns)
