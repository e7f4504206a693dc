"""Predictions by weights: by hand, against a slow oracle, scikit-learn and repeated rows. Without a JVM."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from sklearn.metrics import log_loss, mean_absolute_error, mean_squared_error, roc_auc_score

import recbench_spark
from recbench_spark.commands.evaluate import main, parser
from recbench_spark.config import Views
from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import ConfigError, DataError, RecbenchError
from recbench_spark.evaluation.predictions import evaluate_predictions
from recbench_spark.metrics.kernels import roc
from recbench_spark.schemas import METRICS, RUNS
from recbench_spark.storage.arrow_store import ArrowStore

VIEWS = Views(4, (0.3, 0.5), (0.1, 0.7))
KEYS = ("metric", "slice_key", "slice_value")
BY_HAND = [("a", 0.8, 1, 2), ("a", 0.4, 0, 1), ("b", 0.4, 1, 3), ("b", 0.1, 0, 4), ("a", 0.9, 0, 0)]


def make_table(rows: list[Any], items: Any = None) -> pa.Table:
    users, p, y, w = zip(*rows, strict=True)
    columns = {"user_id": users, "item_id": [f"i{n}" for n in (items or range(len(rows)))]}
    numbers = {"prediction": p, "outcome": y, "weight": w}
    return pa.table({**columns, **{name: np.array(column, float) for name, column in numbers.items()}})


def measure(table: pa.Table, bootstrap: int = 0, views: Views = VIEWS) -> dict[Any, dict[str, Any]]:
    rows = evaluate_predictions(table, bootstrap, views).metrics.to_pylist()
    return {tuple(row[key] for key in KEYS): row for row in rows}


def draw_world(seed: int, whole: bool = False) -> pa.Table:
    """Few distinct predictions, so that there are ties; some weights are 0."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 60))
    w = rng.integers(0, 4, n) if whole else rng.choice([0, 0.05, 0.3, 1, 7.7], n)
    rows = zip(
        rng.integers(0, 6, n).astype(str),
        rng.integers(1, 10, n) / 10,
        rng.integers(0, 2, n),
        w,
        strict=True,
    )
    return make_table(list(rows))


def test_by_hand() -> None:
    measured = {key[0]: row for key, row in measure(make_table(BY_HAND)).items() if key[1] is None}
    # Pairs: 2 positives of .8 win 5, 3 of .4 win 4 and tie with 1. Of 3 + 2 and 1 + 4.
    expected = {
        "mse": Fraction(2 * 4 + 16 + 3 * 36 + 4, 1000), "mae": Fraction(3, 10), "pe": Fraction(-7, 25),
        "mean_prediction": Fraction(9, 25), "mean_outcome": Fraction(1, 2),
        "auc": Fraction(10 + 12, 25) + Fraction(3, 50),
        "gauc": Fraction(1), "nmse": Fraction(136, 250),
    }  # fmt: skip
    assert {name: measured[name]["value"] for name in expected} == pytest.approx(
        {name: float(value) for name, value in expected.items()}, rel=1e-15
    )
    assert {row["n"] for row in measured.values()} == {4}, "a row of weight 0 is no row"
    assert {row["definition"] for row in measured.values()} == {"v1;weight=column"}


@pytest.mark.parametrize("seed", range(40))
def test_a_slow_oracle(seed: int) -> None:
    table = draw_world(seed, whole=seed % 2 == 1)  # whole weights add up to the edges' places
    measured = {key: row["value"] for key, row in measure(table).items()}
    expected = slow_values([row for row in table.to_pylist() if row["weight"]])
    assert {key: measured.get(key) for key in expected} == pytest.approx(expected, rel=1e-12, abs=1e-15)


def slow_values(rows: list[Any]) -> dict[Any, float]:
    """All as fractions, pair by pair."""
    exact = [[Fraction(row[name]) for name in ("prediction", "outcome", "weight")] for row in rows]
    total = sum(w for *_, w in exact)
    g = sum(w * y for _, y, w in exact) / total
    mean = sum(w * p for p, _, w in exact) / total
    values = {
        "mse": sum(w * (p - y) ** 2 for p, y, w in exact) / total,
        "mae": sum(w * abs(p - y) for p, y, w in exact) / total,
        "pe": mean / g - 1, "auc": weighted_auc(exact),
    }  # fmt: skip
    users = [
        [one for one, row in zip(exact, rows, strict=True) if row["user_id"] == u] for u in set_users(rows)
    ]
    mixed = [one for one in users if len({y for _, y, _ in one}) == 2]
    clicks = [sum(w * y for _, y, w in one) for one in mixed]
    values["gauc"] = sum(a * weighted_auc(one) for a, one in zip(clicks, mixed, strict=True)) / sum(clicks)
    edges = slow_edges(exact, total)
    parts = [[one for one in exact if sum(e <= one[0] for e in edges) == b] for b in range(len(edges) + 1)]
    values["calibration_error"] = sum(abs(sum(w * (p - y) for p, y, w in part)) for part in parts) / total
    slices = {
        ("tpr", "threshold", "0.5"): share_above(exact, 1),
        ("fpr", "threshold", "0.5"): share_above(exact, 0),
    }
    for b, part in enumerate(parts):
        weight = sum(w for *_, w in part)
        label = ("prediction_quantile", f"{b + 1}/{len(parts)}")
        slices["mean_outcome", *label] = sum(w * y for _, y, w in part) / weight
    every = {(name, None, None): value for name, value in values.items()} | slices
    return {key: float(value) for key, value in every.items()}


def set_users(rows: list[Any]) -> list[str]:
    return sorted({row["user_id"] for row in rows})


def weighted_auc(rows: list[Any]) -> Fraction:
    pairs = [(w * v, 2 * (p > q) + (p == q)) for p, y, w in rows if y for q, z, v in rows if not z]
    return Fraction(sum(w * twice for w, twice in pairs), 2 * sum(w for w, _ in pairs))


def share_above(rows: list[Any], outcome: int) -> Fraction:
    mine = [(p, w) for p, y, w in rows if y == outcome]
    return Fraction(sum(w for p, w in mine if p >= 0.5), sum(w for _, w in mine))


def slow_edges(rows: list[Any], total: Fraction) -> list[Fraction]:
    """The prediction behind each place W b / bins in order."""
    ordered, edges = sorted(rows), set()
    for b in range(1, VIEWS.quantiles):
        below = Fraction(0)
        for p, _, w in ordered:
            below += w
            if below > total * b / VIEWS.quantiles:
                edges.add(p)
                break
    return sorted(edges - {ordered[0][0]})


@pytest.mark.parametrize("seed", range(10))
def test_scikit_learn_agrees(seed: int) -> None:
    table = draw_world(seed)
    p, y, w = (table.column(name).to_numpy() for name in ("prediction", "outcome", "weight"))
    measured = {key[:2]: row["value"] for key, row in measure(table, views=Views(4, (), (0, 0.4))).items()}
    area = roc_auc_score(y, p, sample_weight=w, max_fpr=0.4)
    expected = {
        "mse": mean_squared_error(y, p, sample_weight=w), "mae": mean_absolute_error(y, p, sample_weight=w),
        "logloss": log_loss(y, p, sample_weight=w), "auc": roc_auc_score(y, p, sample_weight=w),
    }  # fmt: skip
    assert {name: measured[name, None] for name in expected} == pytest.approx(expected, rel=1e-12)
    # scikit-learn maps the area so that chance gives 1/2 (McClish 1989).
    assert measured["pauc", "fpr"] == pytest.approx(0.2 + (2 * area - 1) * 0.8, rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_whole_weights_are_repeated_rows(seed: int) -> None:
    """Values and intervals over users; the error of AUC counts rows."""
    table = draw_world(seed, whole=True)
    places = np.repeat(np.arange(len(table)), table.column("weight").to_numpy().astype(int))
    repeated = table.take(places).drop_columns(["weight"])
    repeated = repeated.set_column(1, "item_id", [[f"i{n}" for n in range(len(places))]])
    weighted, plain = measure(table, 50), measure(repeated, 50)
    assert weighted.keys() == plain.keys()
    for key, row in weighted.items():
        names = ("value",) if key[0] == "auc" else ("value", "stderr", "ci_low", "ci_high")
        for name in names:
            assert row[name] == pytest.approx(plain[key][name], rel=1e-12), (key, name)
    for name in ("auc", "pauc"):
        values = [row["value"] for rows in (weighted, plain) for key, row in rows.items() if key[0] == name]
        assert values[0] == values[1]


def test_equal_weights_change_no_bit_and_their_unit_nothing() -> None:
    table = draw_world(3)
    plain = measure(table.drop_columns(["weight"]), 20)
    equal = measure(table.set_column(4, "weight", [np.full(len(table), 0.3)]), 20)
    ones = measure(table.set_column(4, "weight", [np.ones(len(table))]), 20)
    numbers = ("value", "stderr", "ci_low", "ci_high", "n")
    for key, row in plain.items():
        assert [ones[key][name] for name in numbers] == [row[name] for name in numbers]
        assert [equal[key][name] for name in numbers] == pytest.approx(
            [row[name] for name in numbers], rel=1e-9
        )
    double = table.set_column(4, "weight", [table.column("weight").to_numpy() * 8])
    assert measure(table, 20) == measure(double, 20)


def test_the_error_of_a_weighted_auc_is_that_of_weighted_means() -> None:
    rng = np.random.default_rng(2)
    p, y, w = (
        rng.integers(0, 9, 70) / 8,
        (rng.random(70) < 0.4).astype(float),
        rng.choice([0.3, 1, 2.5], 70),
    )
    counts = roc.pair_counts(p, y, roc.whole_weights(w, roc.lowest_digit(w)))
    ups, downs = p[y == 1], p[y == 0]
    wins = (ups[:, None] > downs) + 0.5 * (ups[:, None] == downs)
    variance = 0.0
    for placed, own in (
        (wins @ w[y == 0] / w[y == 0].sum(), w[y == 1]),
        (w[y == 1] @ wins / w[y == 1].sum(), w[y == 0]),
    ):
        apart = placed - np.average(placed, weights=own)
        variance += len(own) / (len(own) - 1) * (own**2 * apart**2).sum() / own.sum() ** 2
    assert roc.auc_error(counts) == pytest.approx(math.sqrt(variance), rel=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_weights_of_any_size_are_exact_whole_numbers(scale: float) -> None:
    w = np.random.default_rng(0).lognormal(0, 9, 50) * scale
    unit = roc.lowest_digit(w)
    whole = roc.whole_weights(w, unit)
    assert [Fraction(int(one)) * Fraction(2) ** unit for one in whole] == [Fraction(one) for one in w]
    assert any(int(one) % 2 for one in whole)
    assert roc.whole_weights(np.array([2.0, 6.0]), 1).tolist() == [1, 3]


@pytest.mark.parametrize("seed", range(6))
def test_pieces_and_order_of_rows_change_no_bit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = draw_world(seed)
    whole = evaluate_predictions(table, 20, VIEWS, slice_by="user_id")
    rng = np.random.default_rng(seed)
    for tasks in (1, 3, 17):
        monkeypatch.setattr(LocalEngine, "count_tasks", lambda self, n, tasks=tasks: tasks)
        other = evaluate_predictions(table.take(rng.permutation(len(table))), 20, VIEWS, slice_by="user_id")
        assert other.metrics.equals(whole.metrics) and other.truth == whole.truth
        order = [("user_id", "ascending"), ("metric", "ascending")]
        assert other.user_metrics.table.sort_by(order).equals(whole.user_metrics.table.sort_by(order))


def test_users_values_are_weighted() -> None:
    result = recbench_spark.evaluate_predictions(make_table(BY_HAND), bootstrap=0)
    measured = {(row["user_id"], row["metric"]): row for row in result.user_metrics.to_pylist()}
    assert measured["a", "mse"]["values"] == pytest.approx([(2 * 0.04 + 0.16) / 3])
    assert measured["b", "auc"]["values"] == [1.0]
    checks = {check.check: check.observed for check in result.checks}
    assert checks["largest weight"] == 4 and checks["rows of weight 0"] == 1
    assert {row["definition"] for row in measured.values()} == {"v1;weight=column"}


# ------------------------------------------------------------------------------------ recalibration


def test_recalibrated_probabilities() -> None:
    """A model of 1 in 5 negatives says 1/2 where 1 of 6 is a positive."""
    rows = [("a", 0.5, 1, 1), *(("b", 0.5, 0, 1) for _ in range(5))]
    table = make_table(rows).drop_columns(["weight"])
    measured = measure(table, views=Views(negatives_kept=0.2))
    assert measured["mean_prediction", None, None]["value"] == pytest.approx(1 / 6, rel=1e-15)
    assert measured["pe", None, None]["value"] == pytest.approx(0, abs=1e-15)
    assert measured["rig", None, None]["value"] == pytest.approx(0, abs=1e-15)
    assert measured["pe", None, None]["definition"] == "v1;negatives_kept=0.2"
    # One row for the five: the log kept a fifth as well.
    kept = make_table([("a", 0.5, 1, 1), ("b", 0.5, 0, 5)])
    both = measure(kept, views=Views(negatives_kept=0.2))
    for name in ("mse", "logloss", "rig", "pe", "auc"):
        assert both[name, None, None]["value"] == measured[name, None, None]["value"]
    assert both["mse", None, None]["definition"] == "v1;weight=column;negatives_kept=0.2"
    assert measure(table, views=Views(negatives_kept=1)) == measure(table, views=Views())


@pytest.mark.parametrize("kept", [0, -0.05, 1.5, math.nan, "0.05", True, None])
def test_shares_that_are_none(kept: Any) -> None:
    with pytest.raises(ConfigError, match="negatives_kept is"):
        Views(negatives_kept=kept)


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -0.5], "weight is -0.5 in a row"),
        ([0, 0], "weight is 0 in all rows"),
        ([1, math.nan], "1 rows whose weight is NULL, NaN"),
        ([1, None], "1 rows whose weight is NULL, NaN"),
        ([1, math.inf], "1 rows whose weight is NULL, NaN, infinite"),
        ([1, 1e31], r"weight is 1e\+31 in a row"),
        ([1, 1e-31], "weight is 1e-31 in a row"),
    ],
)
def test_weights_that_are_none(weights: list[Any], message: str) -> None:
    table = make_table([("a", 0.5, 1, 1), ("b", 0.5, 0, 1)])
    with pytest.raises(DataError, match=message):
        evaluate_predictions(table.set_column(4, "weight", [pa.array(weights, pa.float64())]), 0)


def test_recalibration_needs_probabilities() -> None:
    table = make_table([("a", 0.5, 1, 1), ("b", 1.5, 0, 1)])
    with pytest.raises(DataError, match=r"negatives_kept is 0.1, and predictions are from 0.5 to 1.5"):
        evaluate_predictions(table, 0, Views(negatives_kept=0.1))


def test_other_weights_cannot_be_compared() -> None:
    table = draw_world(1)
    table = table.filter(table.column("weight").to_numpy() > 0)
    one = recbench_spark.evaluate_predictions(table, bootstrap=0)
    ones = table.set_column(4, "weight", [np.ones(len(table))])
    for rows in (table.drop_columns(["weight"]), ones):
        other = recbench_spark.evaluate_predictions(rows, bootstrap=0)
        with pytest.raises(RecbenchError):
            recbench_spark.compare({"a": one, "b": other})


def test_the_flag_and_the_key_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, warehouse = str(tmp_path / "predictions.csv"), str(tmp_path / "wh")
    pyarrow.csv.write_csv(
        make_table(BY_HAND).rename_columns(["user_id", "item_id", "prediction", "outcome", "w"]), path
    )
    flags = [
        "--warehouse",
        warehouse,
        "--model",
        "m",
        "--predictions",
        path,
        "--bootstrap",
        "0",
        "--engine",
        "local",
    ]
    weights = ["--columns", "weight=w"]
    for more in ([], weights, [*weights, "--negatives-kept", "0.5"]):
        assert main(parser().parse_args([*flags, *more])) == 0
    assert "v1;weight=column;negatives_kept=0.5" in capsys.readouterr().out
    store = ArrowStore(warehouse)
    values = {
        row["definition"]: row["value"]
        for row in store.read_rows(METRICS).to_pylist()
        if row["metric"] == "mae"
    }
    assert values["v1"] == pytest.approx(2.2 / 5) and values["v1;weight=column"] == pytest.approx(0.3)
    assert len({row["run_key"] for row in store.read_rows(RUNS).to_pylist()}) == 3
    with pytest.raises(ConfigError, match="--negatives-kept is not used with --lists"):
        lists = ["--lists", path, "--truth", path, "--negatives-kept", "0.5"]
        main(parser().parse_args(["--warehouse", warehouse, "--model", "m", *lists]))
    with pytest.raises(ConfigError, match="negatives_kept is 0"):
        main(parser().parse_args([*flags, "--negatives-kept", "0"]))
