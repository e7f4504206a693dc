"""Grades, predictions and labels in float16, float32 and decimals meet a threshold as decimals do."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recbench_spark
from recbench_spark.config import Views

TYPES = (pa.float16(), pa.float32(), pa.float64(), pa.decimal128(6, 2))
USERS = 40
TENTHS = np.random.default_rng(3).integers(0, 11, 5 * USERS)
"""Grades of five items of each user, in tenths: 200, some of them exactly .7."""


def as_column(tenths: Any, kind: pa.DataType) -> pa.Array:
    """Return tenths as a column holds them: the number of its type that is nearest to the decimal."""
    texts = pa.array([f"{n / 10:.1f}" for n in np.asarray(tenths).tolist()])
    if pa.types.is_float16(kind):
        return pa.array(np.asarray(tenths) / 10).cast(kind)
    return texts.cast(kind)


def make_truth(tenths: Any, kind: pa.DataType) -> pa.Table:
    items = np.arange(len(tenths))
    return pa.table({"user_id": items // 5, "item_id": items, "relevance": as_column(tenths, kind)})


def make_lists() -> pa.Table:
    """Each user's items in the order of their numbers."""
    items = np.arange(5 * USERS)
    return pa.table({"user_id": items // 5, "item_id": items, "rank": items % 5 + 1})


def evaluate(truth: Any, **options: Any) -> dict[str, float]:
    definition = {"threshold": 0.7, **options.pop("definition", {})}
    result = recbench_spark.evaluate(
        truth, metrics=("recall", "precision", "mrr", "map"), k=2, bootstrap=0, uncut=False,
        definition=definition, **{"lists": make_lists(), **options},
    )  # fmt: skip
    return dict(zip(*(result.to_pandas()[name] for name in ("metric", "value")), strict=True))


def count_by_hand(threshold: int) -> dict[str, Fraction]:
    """Recall and precision at 2 over users with a grade of so many tenths or more."""
    hits = (threshold <= TENTHS).reshape(USERS, 5)
    hits = hits[hits.any(axis=1)]
    above, total = hits[:, :2].sum(axis=1), hits.sum(axis=1)
    recall = sum((Fraction(int(a), int(b)) for a, b in zip(above, total, strict=True)), Fraction(0))
    return {
        "recall": recall / len(hits), "precision": Fraction(int(above.sum()), 2 * len(hits))
    }  # fmt: skip


BOTH = pytest.mark.parametrize(
    ("engine", "kind"),
    [*(("local", kind) for kind in TYPES),
     *(pytest.param("spark", kind, marks=pytest.mark.spark) for kind in (TYPES[0], TYPES[3]))],
)  # fmt: skip
"""Both engines; Spark's tasks read the types that its own readers do not have, or have otherwise."""


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_grade_that_is_the_threshold_is_relevant(kind: pa.DataType) -> None:
    """Before, float32 gave recall NULL where all grades are .7."""
    assert evaluate(make_truth([7] * 10, kind), lists=make_lists().slice(0, 10))["precision"] == 1.0


@pytest.mark.parametrize("threshold", [1, 3, 6, 7, 9])
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_two_hundred_grades_by_hand(kind: pa.DataType, threshold: int) -> None:
    made = evaluate(make_truth(TENTHS, kind), definition={"threshold": threshold / 10})
    for metric, value in count_by_hand(threshold).items():
        assert made[metric] == pytest.approx(float(value), abs=1e-12)
    assert made == evaluate(make_truth(TENTHS, pa.float64()), definition={"threshold": threshold / 10})


@BOTH
def test_files_of_both_engines(tmp_path: Path, kind: pa.DataType, engine: str, request: Any) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    pq.write_table(make_truth(TENTHS, kind), tmp_path / "truth.parquet")
    pq.write_table(make_lists(), tmp_path / "lists.parquet")
    made = evaluate(str(tmp_path / "truth.parquet"), lists=str(tmp_path / "lists.parquet"), engine=engine)
    assert made == evaluate(make_truth(TENTHS, pa.float64()))


@BOTH
def test_predictions_meet_thresholds_and_bins(
    tmp_path: Path, kind: pa.DataType, engine: str, request: Any
) -> None:
    """Rates from .7 on, and bins of equal mass: each of the 200 predictions is in its bin."""
    if engine == "spark":
        request.getfixturevalue("spark")
    rows = make_truth(TENTHS, kind).rename_columns(["user_id", "item_id", "prediction"])
    rows = rows.append_column("outcome", pa.array((TENTHS + np.arange(len(TENTHS))) % 2))
    pq.write_table(rows, tmp_path / "rows.parquet")
    views = Views(quantiles=5, thresholds=(0.7,))
    result = recbench_spark.evaluate_predictions(
        str(tmp_path / "rows.parquet"), bootstrap=0, views=views, engine=engine
    )
    shown = result.to_pandas(slices=True)
    wrong = rows.column("outcome").to_numpy() == 0
    (rate,) = shown.query("metric == 'fpr' and slice_key == 'threshold'").value
    assert rate == (TENTHS[wrong] >= 7).mean()
    exact = rows.set_column(2, "prediction", as_column(TENTHS, pa.float64()))
    same = recbench_spark.evaluate_predictions(exact, bootstrap=0, views=views).to_pandas(slices=True)
    bins = [table.query("slice_key == 'prediction_quantile'").n.tolist() for table in (shown, same)]
    assert bins[0] == bins[1] and len(bins[0]) == 25


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_slices_by_number_have_the_names_of_decimals(kind: pa.DataType) -> None:
    users = np.arange(USERS)
    slices = pa.table({"user_id": users, "age": as_column(users % 3 + 6, kind)})
    reversed_ranks = pa.array(5 - np.arange(5 * USERS) % 5)
    models = {"one": make_lists(), "two": make_lists().set_column(2, "rank", reversed_ranks)}
    made = recbench_spark.compare(
        models, make_truth(TENTHS, kind), metrics="recall@2", bootstrap=9, slices=slices,
        definition={"threshold": 0.7},
    )  # fmt: skip
    labels = {row["slice_value"] for row in made.slices.to_pylist() if row["slice_key"] == "age"}
    assert labels == ({"0.60", "0.70", "0.80"} if pa.types.is_decimal(kind) else {"0.6", "0.7", "0.8"})
