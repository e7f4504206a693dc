"""Intervals of coverage, Gini and entropy, by groups of users."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recbench_spark.config import Bootstrap
from recbench_spark.core.definitions import Definition
from recbench_spark.core.resampling import FEW_USERS
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.metrics.kernels.beyond_accuracy import coverage, entropy, gini
from recbench_spark.metrics.shown import GROUPS, listing_batches, listing_histogram, overall_rows

NAMES = {"coverage": coverage, "gini": gini, "entropy": entropy}


def measure(lists: Any, keys: Any, items: int, ks: tuple[int, ...]) -> list[dict[str, Any]]:
    plan = MetricPlan(tuple(NAMES), ks, Definition(), Bootstrap(replicates=1))
    bounds = np.arange(len(lists) + 1, dtype=np.int32) * lists.shape[1]
    users = {"part": pa.repeat("test", len(lists)), "user_key": pa.array(keys)}
    users["top_items"] = pa.ListArray.from_arrays(bounds, pa.array(lists.ravel().astype(str)))
    batch = pa.RecordBatch.from_pydict(users)
    (sums,) = listing_batches(lambda one: (lists.ravel(), lists.ravel()), ks, GROUPS, iter([batch]))
    buckets = np.unique(sums.column("bucket").to_numpy())
    rows = (sums.filter(pa.array(sums.column("bucket").to_numpy() == bucket)) for bucket in buckets)
    histograms = [listing_histogram(len(ks), GROUPS, pa.Table.from_batches([one])) for one in rows]
    return overall_rows(plan, items, pa.concat_tables(histograms)).to_pylist()


def test_errors_are_those_of_lists_without_each_group() -> None:
    rng, items, ks = np.random.default_rng(2), 50, (1, 4)
    lists = np.array([rng.choice(items, 4, replace=False) for _ in range(70)])
    keys = rng.integers(-(1 << 62), 1 << 62, 70)

    def count(kept: Any, name: str, k: int) -> float:
        times = np.bincount(lists[kept][:, :k].ravel(), minlength=items)
        return NAMES[name](*(one.tolist() for one in np.unique(times, return_counts=True)), items)

    for row in measure(lists, keys, items, ks):
        left = np.array([count(keys % GROUPS != group, row["metric"], row["k"]) for group in range(GROUPS)])
        error = np.sqrt((GROUPS - 1) * np.var(left))
        assert row["value"] == count(np.full(70, True), row["metric"], row["k"])
        assert row["stderr"] == pytest.approx(error, rel=1e-12)
        assert row["value"] - row["ci_low"] == pytest.approx(2.0395134 * error, rel=1e-7)


def test_few_users_and_equal_lists() -> None:
    keys = np.random.default_rng(4).integers(0, 1 << 62, FEW_USERS)
    few = measure(np.tile([3, 1], (FEW_USERS - 1, 1)), keys[1:], 9, (2,))
    assert all(row["ci_low"] is None and row["stderr"] is None for row in few)
    for row in measure(np.tile([3, 1], (FEW_USERS, 1)), keys, 9, (2,)):
        assert row["stderr"] == 0 and row["ci_low"] == row["value"] == row["ci_high"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("items", "users", "k", "tail", "taste"),
    [(300, 200, 5, 1.0, 1.0), (1000, 100, 10, 2.0, 0.3), (300, 60, 5, 1.0, 0.5)],
)
def test_intervals_hold_the_value_of_as_many_users(
    items: int, users: int, k: int, tail: float, taste: float
) -> None:
    """300 worlds; lists mix what all like with what each user likes."""
    liked = np.random.default_rng(7).lognormal(0, tail, items)
    rng, rows = np.random.default_rng(1), []
    for _ in range(300):
        score = np.log(liked) + taste * rng.gumbel(size=(users, items))
        lists = np.argpartition(-score, k, axis=1)[:, :k]
        rows.append(measure(lists, rng.integers(0, 1 << 62, users), items, (k,)))
    for world in zip(*rows, strict=True):
        true = np.mean([row["value"] for row in world])
        held = np.mean([row["ci_low"] <= true <= row["ci_high"] for row in world])
        assert held >= 0.93, (world[0]["metric"], held)
