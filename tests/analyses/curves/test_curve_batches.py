"""Learning curves as functions of Arrow batches: bits under any partitioning, sums and counts by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.analyses.curves import curve_batches
from recbench_spark.analyses.curves.curve_batches import (
    CURVE_ROWS,
    CURVE_USERS,
    CurveMember,
    CurvePlan,
    average_curves,
    count_users,
    finish_curves,
    measure_users,
    merge_counts,
    nest_lists,
    sum_curves,
)
from recbench_spark.analyses.curves.learning_curves import CurveRequest
from recbench_spark.config import Bootstrap
from recbench_spark.core.definitions import Definition
from recbench_spark.models.prefix_scorers import PrefixScorer
from recbench_spark.models.prefix_vectors import RidgeFoldIn
from recbench_spark.ranking.sources import DotSource
from recbench_spark.splits.kernels.prefixes import PrefixRule
from recbench_spark.storage.shared_arrays import SharedRows
from tests import oracles
from tests.one_fold_in import fold_in_explicit

ITEMS, DIMS, RIDGE = 14, 4, 0.2
STARS = Definition(gain="linear", negative_grades="signed", grade_origin=3.0, ties="expected")


def make_plan(rule: PrefixRule, draws: int = 0, metrics: tuple[str, ...] = ("ndcg", "recall")) -> CurvePlan:
    request = CurveRequest(rule, metrics, (3, 5), STARS)
    return CurvePlan(request, {name: f"of {name}" for name in metrics}, draws, 7)


def draw_users(seed: int, users: int = 30) -> pa.RecordBatch:
    """Histories of 0 to 9 items with stars; items 0 and 1 have no training rows."""
    draw = np.random.default_rng(seed)
    rows = [draw.choice(ITEMS, draw.integers(0, 10), replace=False).tolist() for _ in range(users)]
    columns = {
        "user_id": [f"u{n}" for n in range(users)],
        "part": ["valid" if n % 3 == 0 else "test" for n in range(users)],
        "user_key": draw.integers(-(2**62), 2**62, users),
        "items": rows,
        "ratings": [draw.integers(1, 6, len(row)).astype(float).tolist() for row in rows],
        "item_keys": [[item * 2**40 + 17 for item in row] for row in rows],
        "untrained": [[item < 2 for item in row] for row in rows],
        "equal_times": [n % 5 == 0 for n in range(users)],
    }
    return pa.RecordBatch.from_pydict(columns, schema=CURVE_USERS)


@pytest.fixture
def member(tmp_path: Path) -> CurveMember:
    """ALS with fixed item vectors; the last item has none."""
    draw = np.random.default_rng(3)
    vectors: list[Any] = [draw.normal(size=DIMS).astype(np.float32).tolist() for _ in range(ITEMS - 1)]
    table = pa.table(
        {
            "item_index": pa.array(range(ITEMS), pa.int32()),
            "item_id": [f"i{n}" for n in range(ITEMS)],
            "vector": pa.array([*vectors, None], pa.list_(pa.float32())),
            "bias": pa.array([0.0] * ITEMS),
        }
    )
    pq.write_table(table, tmp_path / "items.parquet")
    rows = SharedRows(f"curves_{tmp_path.name}", (str(tmp_path / "items.parquet"),))
    return CurveMember("run", PrefixScorer(DotSource(rows, ITEMS, DIMS), RidgeFoldIn(RIDGE)))


def collect(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(list(batches), CURVE_ROWS)
    return table.sort_by([("metric", "ascending"), ("user_id", "ascending")])


def cut(batch: pa.RecordBatch, parts: int) -> list[pa.RecordBatch]:
    """Partitions of the users, some of them empty."""
    bounds = np.linspace(0, batch.num_rows, parts + 1).astype(int).tolist()
    return [batch.slice(a, b - a) for a, b in pairwise(bounds)]


@pytest.mark.parametrize("draws", [0, 3])
@pytest.mark.parametrize("test", ["common", "rest"])
def test_no_bit_depends_on_partitions(member: CurveMember, test: Any, draws: int) -> None:
    plan, users = make_plan(PrefixRule((1, 2, 4), test), draws), draw_users(4)
    whole = collect(measure_users(plan, member, iter([users])))
    assert len(whole) > 20
    backwards = users.take(pa.array(range(users.num_rows)[::-1]))
    for parts in ([backwards], *(cut(users, n) for n in (3, 17))):
        assert (
            collect(batch for part in parts for batch in measure_users(plan, member, iter([part]))) == whole
        )
    totals = finish(plan, whole.to_batches())
    for n in (3, 17):
        assert finish(plan, [b for part in whole_parts(whole, n) for b in part]) == totals


def whole_parts(table: pa.Table, n: int) -> list[list[pa.RecordBatch]]:
    step = -(-len(table) // n)
    return [table.slice(at, step).to_batches() for at in range(0, len(table), step)]


BOOTSTRAP = Bootstrap(replicates=40)


def finish(plan: CurvePlan, batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Rows of means, from one task for each batch."""
    totals = [total for batch in batches for total in sum_curves(BOOTSTRAP, iter([batch]))]
    rows: list[dict[str, Any]] = []
    keys = sorted({tuple(t.column(name)[0].as_py() for name in curve_batches.CURVE_KEY) for t in totals})
    for key in keys:
        chosen = [
            t for t in totals if tuple(t.column(name)[0].as_py() for name in curve_batches.CURVE_KEY) == key
        ]
        rows += finish_curves(BOOTSTRAP, pa.Table.from_batches(chosen)).to_pylist()
    return rows


@pytest.mark.parametrize("test", ["common", "rest"])
def test_every_value_equals_a_refit(member: CurveMember, test: Any) -> None:
    plan, users = make_plan(PrefixRule((1, 2, 4), test), metrics=("ndcg",)), draw_users(5)
    scorer, _ = member.model.open()
    vectors = np.asarray(scorer.products.vectors_id, np.float64)  # type: ignore[union-attr]
    histories = {row["user_id"]: row for row in users.to_pylist()}
    compared = 0
    for row in collect(measure_users(plan, member, iter([users]))).to_pylist():
        user = histories[row["user_id"]]
        items, ratings = np.array(user["items"]), np.array(user["ratings"])
        assert row["points"] == 3 and row["n_relevant"] == int((ratings > 0).sum())
        for point, value in zip(row["given"], row["values"][0], strict=True):
            hidden = 4 if test == "common" else point
            known = items[:point] < ITEMS - 1
            x = fold_in_explicit(np.array([0, known.sum()]), items[:point][known], ratings[:point][known],
                                 vectors, RIDGE)[0].astype(np.float32).astype(np.float64)  # fmt: skip
            allowed = set(range(ITEMS - 1)) - set(items[:hidden].tolist()) if known.any() else set()
            scores = {i: float(sum(a * b for a, b in zip(x, vectors[i], strict=True))) for i in allowed}
            truth = dict(zip(items[hidden:].tolist(), ratings[hidden:].tolist(), strict=True))
            expected = oracles.value("ndcg", scores, truth, 3, STARS)
            assert value == pytest.approx(expected, rel=1e-12, abs=1e-12)
            compared += 1
    assert compared > 30


def value_rows(
    values: Sequence[Sequence[float]], points: Sequence[int], metric: str = "ndcg"
) -> pa.RecordBatch:
    """Rows of `curve_values` at the points 1, 2, 4 and one cut-off."""
    n = len(values)
    columns = {
        "run_id": ["run"] * n,
        "user_id": [f"u{i}" for i in range(n)],
        "user_key": [i * 977 for i in range(n)],
        "part": ["test"] * n,
        "metric": [metric] * n,
        "definition": ["v1"] * n,
        "given": [[1, 2, 4]] * n,
        "points": list(points),
        "ks": [[5]] * n,
        "values": nest_lists(np.array(values)[:, None, :]),
        "n_relevant": [3] * n,
    }
    return pa.RecordBatch.from_pydict(columns, schema=CURVE_ROWS)


def test_mandcg_by_hand() -> None:
    """Points 1, 2, 4 weigh 1, 1.5, 1.5, and two points 1, 1; a missing one falls out."""
    rows = value_rows([[0.1, 0.2, 0.4], [0.1, 0.3, np.nan], [np.nan, 0.3, 0.5], [np.nan] * 3], [3, 2, 3, 3])
    (means,) = average_curves(iter([rows, value_rows([[0.5] * 3], [3], "recall")]))
    expected = [(0.1 + 1.5 * 0.2 + 1.5 * 0.4) / 4, 0.2, 0.4, None]
    assert means.column("metric").to_pylist() == ["mandcg"] * 4
    assert means.column("ks").to_pylist() == [[5]] * 4
    for (value,), wanted in zip(means.column("values").to_pylist(), expected, strict=True):
        assert value == (None if wanted is None else pytest.approx(wanted, rel=1e-15))


def test_means_by_hand_as_fractions() -> None:
    """Eleven users at the first point, ten at the second, nine at the third, which has no value."""
    values = np.full((11, 3), np.nan)
    values[:, 0] = np.arange(11) / 16 - 1 / 8
    values[:10, 1] = 1 / 4
    values[:9, 2] = 1 / 2
    rows = value_rows(values.tolist(), [3] * 9 + [2, 1])
    table = finish(make_plan(PrefixRule((1, 2, 4))), [rows.slice(0, 4), rows.slice(4)])
    first, second, third, mean = table
    assert [row["given"] for row in table] == [1, 2, 4, None]
    assert [row["metric"] for row in table] == ["ndcg", "ndcg", "ndcg", "mandcg"]
    assert (first["value"], first["n"]) == (float(Fraction(5, 16) - Fraction(1, 8)), 11)
    # The variance of 0 .. 10 is 11, so the error of the mean is sqrt(11 / 11) / 16.
    assert first["stderr"] == 1 / 16 and first["share_below_zero"] == 2 / 11
    assert (second["value"], second["stderr"], second["n"]) == (0.25, 0.0, 10)
    assert third["n"] == 9 and {third[name] for name in ("value", "stderr", "ci_low", "ci_high")} == {None}
    assert mean["n"] == 11 and first["ci_low"] < first["value"] < first["ci_high"]


def test_one_user_has_a_mean_and_no_interval_along_the_curve() -> None:
    *points, mean = finish(make_plan(PrefixRule((1, 2, 4))), [value_rows([[0.5, 0.5, 0.5]], [3])])
    assert [row["value"] for row in points] == [None] * 3 and [row["n"] for row in points] == [1] * 3
    assert mean["value"] == 0.5
    assert (mean["stderr"], mean["ci_low"], mean["ci_high"]) == (None, None, None)


def test_equal_ratings_of_no_grade_count_zero(member: CurveMember) -> None:
    """All ratings are the origin: no gain is above 0, so signed NDCG is 0 for every user."""
    users = draw_users(6)
    threes = pa.array(
        [[3.0] * len(row) for row in users.column("items").to_pylist()], pa.list_(pa.float64())
    )
    users = users.set_column(CURVE_USERS.get_field_index("ratings"), CURVE_USERS.field("ratings"), threes)
    rows = collect(measure_users(make_plan(PrefixRule((1, 2))), member, iter([users]))).to_pylist()
    assert {value for row in rows if row["metric"] == "ndcg" for k in row["values"] for value in k} == {0.0}


def test_counts_by_hand() -> None:
    rows = [
        # Both first items are untrained; the last one is relevant.
        ("a", "test", [0, 1, 2], [1.0, 1.0, 5.0], True),
        # The tested item is not relevant at point 2; at point 1 one of two is.
        ("b", "test", [2, 0, 3], [5.0, 5.0, -1.0], False),
        ("c", "test", [2, 3], [5.0, 5.0], True),
        ("d", "valid", [], [], False),
    ]
    columns = {
        "user_id": [row[0] for row in rows],
        "part": [row[1] for row in rows],
        "user_key": [1, 2, 3, 4],
        "items": [row[2] for row in rows],
        "ratings": [row[3] for row in rows],
        "item_keys": [[0] * len(row[2]) for row in rows],
        "untrained": [[item < 2 for item in row[2]] for row in rows],
        "equal_times": [row[4] for row in rows],
    }
    users = pa.RecordBatch.from_pydict(columns, schema=CURVE_USERS)
    plan = make_plan(PrefixRule((1, 2), "rest"))
    for parts in ([users], cut(users, 4)):
        counted = pa.Table.from_batches([row for part in parts for row in count_users(plan, iter([part]))])
        counts = merge_counts(counted)
        assert counts["test"] == {
            "part": "test", "users": 3, "short": 1, "equal_times": 1, "empty": 1, "longest": 3,
            "given_items": [2, 4], "untrained_items": [1, 3],
        }  # fmt: skip
        assert counts["valid"]["users"] == counts["valid"]["short"] == 1
