"""Estimates from biased logs as a stranger asks for them: by hand, over maskings, on real logs."""

from __future__ import annotations

import csv
import json
import math
from fractions import Fraction
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recbench_spark.analyses.exposure.estimates import Policy, estimate_matrix, estimate_rounds, read_policy
from recbench_spark.analyses.exposure.kernels import rating_matrix
from recbench_spark.analyses.exposure.kernels.bandit_feedback import Rounds, contributions
from recbench_spark.analyses.exposure.kernels.exposure import EstimatorSettings
from recbench_spark.analyses.exposure.rating_matrix import LOSSES, cell_parts, cell_sums, estimable_totals
from recbench_spark.commands import estimate as action
from recbench_spark.commands import estimate as job
from recbench_spark.config import Bootstrap
from recbench_spark.core.resampling import percentile_interval, poisson_weights
from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.errors import ConfigError, DataError, SchemaError
from recbench_spark.metrics.result import Result, to_arrow
from recbench_spark.schemas import IDS
from recbench_spark.sources.readers.published import find_propensities
from tests.oracles import value_and_error

# ------------------------------------------------------------------------------- without Spark


def world() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Ratings, predictions, a model's ratings and chances of 150 x 30 cells; high ratings are seen more."""
    rng = np.random.default_rng(3)
    rating = rng.integers(1, 6, (150, 30)).astype(float)
    model = np.clip(rating + rng.normal(size=rating.shape), 1, 5)
    chance = np.array([0, 0.05, 0.1, 0.15, 0.3, 0.6])[rating.astype(int)]
    return rating, np.full_like(rating, 3.4), model, chance


@pytest.mark.full
def test_intervals_over_maskings_hold_as_often_as_they_say() -> None:
    """The bootstrap intervals of 200 maskings with known propensities hold the truth in about 95 %."""
    rng = np.random.default_rng(7)
    rating, prediction, model, chance = world()
    keys = np.repeat(np.arange(150), 30)
    bootstrap, worlds = Bootstrap(replicates=300), 200
    covered = np.zeros((len(LOSSES), len(rating_matrix.ESTIMATES)))
    truth = np.array([rating_matrix.losses(prediction, rating, loss).mean() for loss in LOSSES.values()])
    for _ in range(worlds):
        seen = rng.random(rating.shape) < chance
        known, odds = np.where(seen, rating, np.nan), np.where(seen, chance, np.nan)
        parts = cell_parts(prediction.ravel(), known.ravel(), odds.ravel(), model.ravel())
        _, boots = estimable_totals(*cell_sums(keys, parts, bootstrap), modelled=True)
        for e, drawn in enumerate(rating_matrix.from_totals(boots).values()):
            low, high = percentile_interval(drawn)
            covered[:, e] += (low <= truth) & (truth <= high)
    assert (covered[:, 0] <= 0.02 * worlds).all()  # the naive mean
    assert (covered[:, 1:] >= 0.9 * worlds).all() and (covered[:, 1:] <= 0.99 * worlds).all(), covered


def test_it_does_not_matter_how_cells_are_spread_over_batches() -> None:
    rng = np.random.default_rng(0)
    rating, prediction, model, chance = world()
    seen = rng.random(rating.shape) < chance
    parts = cell_parts(prediction.ravel(), np.where(seen, rating, np.nan).ravel(),
                       np.where(seen, chance, np.nan).ravel(), model.ravel())  # fmt: skip
    keys, bootstrap = np.repeat(np.arange(150), 30) * 7919, Bootstrap(replicates=20)
    whole = cell_sums(keys, parts, bootstrap)
    for batches in (3, 50):
        part_n = rng.integers(0, batches, len(keys))
        torn = [cell_sums(keys[part_n == n], parts[part_n == n], bootstrap) for n in range(batches)]
        for one, result in zip(whole, zip(*torn, strict=True), strict=True):
            assert reduce(add, result).floats().tobytes() == one.floats().tobytes()


def test_cells_of_weights_from_one_to_a_hundred_million_and_errors_of_any_size() -> None:
    """Ratings known by chances down to 1e-8, errors near 1e-7 beside 1: against fractions."""
    rng = np.random.default_rng(5)
    rating = rng.integers(1, 6, 400).astype(float)
    prediction = rating + rng.lognormal(-8, 5, 400)
    chance = 10.0 ** rng.uniform(-8, 0, 400)
    parts = cell_parts(prediction, rating, chance)
    keys = rng.integers(0, 50, 400)
    exact, boot = cell_sums(keys, parts, Bootstrap(replicates=8))
    totals, replicates = estimable_totals(exact, boot, modelled=False)
    squared = [Fraction(float(e)) for e in (prediction - rating) ** 2]
    weight = [Fraction(1.0 / p) for p in chance.tolist()]
    weights = poisson_weights(keys, 8, Bootstrap().seed)

    def snips(times: Any) -> Fraction:
        shares = [int(t) * w for t, w in zip(times, weight, strict=True)]
        return sum(s * e for s, e in zip(shares, squared, strict=True)) / sum(shares)

    def close(result: float, known: Fraction) -> bool:
        return abs(Fraction(result) - known) < known * Fraction(1, 10**12)

    assert close(rating_matrix.from_totals(totals)["snips"][0], snips(np.ones(400)))
    for b in range(8):
        assert close(rating_matrix.from_totals(replicates)["snips"][b, 0], snips(weights[:, b]))


FLAGS = ["--warehouse", "w", "--model", "m"]
MATRIX = [*FLAGS, "--matrix", "a.csv", "--propensities", "p.csv"]
ROUNDS = [*FLAGS, "--rounds", "r.csv"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([*FLAGS, "--matrix", "a.csv"], "--propensities is missing"),
        ([*MATRIX, "--uniform", "3"], "--uniform is not used with --matrix"),
        ([*MATRIX, "--floor", "0"], "--floor 0: must lie above 0"),
        ([*MATRIX, "--clip", "3"], "--clip is not used with --matrix"),
        ([*MATRIX, "--switch", "3"], "--switch is not used with --matrix"),
        ([*MATRIX, "--shrink", "3"], "--shrink is not used with --matrix"),
        ([*MATRIX, "--reader", "table"], "--reader is not used with --matrix"),
        ([*ROUNDS, "--log", "l.csv"], "--log is not used with --rounds"),
        ([*ROUNDS, "--bootstrap", "50"], "--bootstrap is not used with --rounds"),
        ([*ROUNDS, "--reader", "open_bandit"], "no pi_e"),
        ([*ROUNDS, "--uniform", "0"], "--uniform 0: must be above 0"),
        ([*ROUNDS, "--level", "1"], "--level 1"),
        ([*ROUNDS, "--suite", "a b"], "not a usable name"),
    ],
)
def test_flags_that_contradict_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        job.main(job.parser().parse_args(flags))


def test_a_dry_run_says_what_would_be_done(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, columns in (
        ("a", "user_id,item_id,prediction,rating"), ("p", "item_id,propensity"), ("r", "reward,propensity"),
    ):  # fmt: skip
        Path(f"{name}.csv").write_text(f"{columns}\n")
    for flags in (MATRIX, [*ROUNDS, "--uniform", "80"]):
        assert job.main(job.parser().parse_args([*flags, "--dry-run"])) == 0
    output = capsys.readouterr().out
    assert "mse and mae over the cells of a.csv" in output and "value of policy uniform_80" in output
    assert output.count("engine local: ") == 2


# ------------------------------------------------------------------------------- by hand


def write(path: Path, header: str, rows: list[tuple[Any, ...]]) -> str:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


def read_values(warehouse: Path) -> dict[tuple[str, str], pd.Series]:
    rows = DeltaTable(str(warehouse / "metrics")).to_pandas()
    return {(row.metric, row.estimator): row for _, row in rows.iterrows()}


@pytest.mark.contract("estimate")
def test_a_matrix_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """2 x 3 cells; known: (0, 0) with errors 1 and 1, p = 1/2; (1, 1) with errors 4 and 2, p = 1/4."""
    prediction, model = [[4, 2, 3], [2, 2, 2]], [[3, 3, 3], [1, 2, 3]]
    cells = [(f"u{u}", f"i{i}", prediction[u][i], model[u][i]) for u in range(2) for i in range(3)]
    flags = [
        "--warehouse", str(tmp_path / "w"), "--model", "m", "--bootstrap", "50",
        "--matrix", write(tmp_path / "matrix.csv", "user_id,item_id,prediction,imputed", cells),
        "--log", write(tmp_path / "log.csv", "user_id,item_id,rating", [("u0", "i0", 5), ("u1", "i1", 4)]),
        "--propensities", write(tmp_path / "p.csv", "item_id,propensity", [("i0", 0.5), ("i1", 0.25)]),
    ]  # fmt: skip
    assert job.main(job.parser().parse_args(flags)) == 0
    result = read_values(tmp_path / "w")
    # Imputed errors add up to 4 and 4; corrections are 0 x 2 + 4 x 4 and 0 x 2 + 2 x 4.
    wanted = {"mse": (5 / 2, 18 / 6, 18 / 6, 20 / 6), "mae": (3 / 2, 10 / 6, 10 / 6, 12 / 6)}
    names = ("holdout", "ips", "snips", "dr")
    assert set(result) == {(metric, name) for metric in wanted for name in names}
    for metric, values in wanted.items():
        for name, value in zip(names, values, strict=True):
            row = result[metric, name]
            assert row.value == pytest.approx(value, rel=1e-14) and row.n == 2
            assert row.ci_low <= row.value <= row.ci_high
    output, said = capsys.readouterr()
    assert "effective ratings: 1.8" in output and "cells without a prediction: 0" in output
    assert "engine local: 13 rows of this machine (up to 20,000,000), without Spark" in said
    (run,) = DeltaTable(str(tmp_path / "w" / "runs")).to_pandas().to_dict("records")
    assert (run["model_kind"], run["status"], run["n_users"]) == ("matrix", "succeeded", 2)
    assert set(json.loads(run["inputs_json"])) == {"truth", "matrix", "log", "propensities"}


def make_table(columns: str, *rows: tuple[Any, ...]) -> pa.Table:
    schema = pa.schema({x: pa.string() if x in IDS else pa.float64() for x in columns.split(",")})
    values = zip(zip(*rows, strict=True), schema.types, strict=True)
    return pa.table([pa.array(*pair) for pair in values], schema=schema)


MATRIX_ROWS = (("u", "i", 1.0, 2.0), ("u", "j", 1.0, None))
MATRIX_COLUMNS = "user_id,item_id,prediction,rating"


@pytest.mark.parametrize(
    ("rows", "chances", "message"),
    [
        ((*MATRIX_ROWS, MATRIX_ROWS[1]), ("rating,propensity", (2.0, 0.5)), "a cell occurs twice"),
        (MATRIX_ROWS, ("item_id,propensity", ("i", 0.5), ("i", 0.4)), "a cell occurs twice"),
        (MATRIX_ROWS, ("rating,propensity", (3.0, 0.5)), "1 ratings without a propensity"),
        (MATRIX_ROWS, ("item_id,propensity", ("j", 0.5)), "1 ratings without a propensity"),
        (MATRIX_ROWS, ("rating,propensity", (2.0, 1.5)), r"1 ratings with a propensity outside \(0, 1\]"),
        (MATRIX_ROWS, ("rating,propensity", (2.0, math.nan)), "propensities: 1 rows whose propensity is"),
        (MATRIX_ROWS, ("item_id,propensity", (None, 0.5)), "propensities: 1 rows whose item_id is NULL"),
        (MATRIX_ROWS[1:], ("rating,propensity", (2.0, 0.5)), "no rating is known"),
        ((("u", None, 1.0, 2.0),), ("rating,propensity", (2.0, 0.5)), "matrix: 1 rows whose item_id is"),
        ((("u", "i", None, 2.0),), ("rating,propensity", (2.0, 0.5)), "matrix: 1 rows whose prediction is"),
        ((("u", "i", 1.0, math.nan),), ("rating,propensity", (2.0, 0.5)), "log: 1 rows whose rating is"),
    ],
)
def test_matrices_that_cannot_be_estimated(
    rows: tuple[Any, ...], chances: tuple[Any, ...], message: str, tmp_path: Path
) -> None:
    engine, few = LocalEngine(str(tmp_path)), Bootstrap(replicates=2)
    matrix = make_table(MATRIX_COLUMNS, *rows)
    with pytest.raises(DataError, match=message):
        estimate_matrix(engine, matrix, None, make_table(*chances), few)


def test_matrices_whose_columns_are_missing(tmp_path: Path) -> None:
    engine, few = LocalEngine(str(tmp_path)), Bootstrap(replicates=2)
    matrix, chances = make_table(MATRIX_COLUMNS, *MATRIX_ROWS), make_table("propensity", (0.5,))
    with pytest.raises(ConfigError, match="propensities by nothing"):
        estimate_matrix(engine, matrix, None, chances, few)
    with pytest.raises(SchemaError, match="matrix without a log has no column rating"):
        estimate_matrix(engine, matrix.drop(["rating"]), None, chances, few)
    log = make_table("user_id,item_id,rating", ("u", "k", 2.0))
    with pytest.raises(DataError, match="1 ratings without a prediction"):
        estimate_matrix(engine, matrix, log, make_table("rating,propensity", (2.0, 0.5)), few)


def test_propensities_by_zero_and_a_floor_for_them(tmp_path: Path) -> None:
    """A rating of -0 has the propensity of 0, which the floor raises from 0.1 to 0.25, and 2 to 1."""
    engine = LocalEngine(str(tmp_path))
    matrix = make_table(MATRIX_COLUMNS, ("u", "i", 1.0, -0.0), ("v", "i", 1.0, 2.0), ("v", "j", 1.0, None))
    chances = make_table("rating,propensity", (0.0, 0.1), (2.0, 2.0))
    result = estimate_matrix(engine, matrix, None, chances, Bootstrap(replicates=2), floor=0.25)
    values = {(row["metric"], row["estimator"]): row["value"] for row in result.metrics.to_pylist()}
    assert (values["mse", "ips"], values["mae", "snips"]) == (5 / 3, 1.0)
    assert {check.check: check.observed for check in result.checks}["cells without a prediction"] == 1


def test_rounds_by_hand_with_a_model_and_a_policy(tmp_path: Path) -> None:
    """Weights 4, 1, 1/2, 0 and rewards 1, 0, 1, 1; a model expects .5, .5, .2, 0 and .3 of the policy."""
    engine = LocalEngine(str(tmp_path))
    shown = [("a", 1.0, 0.1, 0.5), ("b", 0.0, 0.2, 0.5), ("c", 1.0, 0.4, 0.2), (None, 1.0, 1.0, 0.0)]
    rounds = make_table("item_id,reward,propensity,q,q_policy", *((*one, 0.3) for one in shown))
    policy = read_policy(engine, make_table("item_id,pi_e", ("a", 0.4), ("b", 0.2), ("c", 0.2), ("e", 0.2)))
    settings = EstimatorSettings(clip=2.0, switch=2.0, shrink=4.0)
    result = estimate_rounds(engine, rounds, policy, settings, 0.95)
    results = {row["estimator"]: row for row in result.metrics.to_pylist()}
    w = {"dr": (4, 1, 0.5), "switch_dr": (0, 1, 0.5), "dros": (16 / 20, 4 / 5, 2 / 4.25)}
    wanted = {"ips": 4.5 / 4, "clipped_ips": 2.5 / 4, "snips": 4.5 / 5.5, "dm": 0.3}
    for name, (a, b, c) in w.items():
        wanted[name] = 0.3 + (a * 0.5 + b * -0.5 + c * 0.8) / 4
    assert {name: row["value"] for name, row in results.items()} == pytest.approx(wanted, rel=1e-13)
    ips = results["ips"]
    assert ips["stderr"] == pytest.approx(np.array([4, 0, 0.5, 0]).std(ddof=1) / 2)
    assert ips["ci_high"] == pytest.approx(ips["value"] + 1.959964 * ips["stderr"], rel=1e-6)
    assert results["ips"]["definition"] == "v1;policy=table"
    assert results["dros"]["definition"] == "v1;policy=table;shrink=4"
    observed = {check.check: check.observed for check in result.checks}
    weight = np.array([4, 1, 0.5, 0])
    assert observed["effective rounds"] == pytest.approx(5.5**2 / 17.25)
    assert observed["largest share of the weight"] == pytest.approx(4 / 5.5)
    far = (weight.mean() - 1) / (weight.std(ddof=1) / 2)
    assert observed["mean weight, standard errors from 1"] == pytest.approx(far, rel=1e-13)
    assert observed["weights above the switch"] == 1


def test_policies_that_cannot_be_read(tmp_path: Path) -> None:
    engine = LocalEngine(str(tmp_path))
    with pytest.raises(DataError, match="policy: item_id occur twice"):
        read_policy(engine, make_table("item_id,pi_e", ("a", 0.4), ("a", 0.2)))
    with pytest.raises(DataError, match="policy: 1 rows whose pi_e is NULL"):
        read_policy(engine, make_table("item_id,pi_e", ("a", None)))
    with pytest.raises(SchemaError, match="policy has no column pi_e"):
        read_policy(engine, make_table("item_id", ("a",)))


def test_weights_from_tiny_to_huge_keep_their_digits_however_rounds_are_spread(tmp_path: Path) -> None:
    """Weights from 1e-8 to 1e8, and a reward whose variance is 1e-12 of its square: against fractions."""
    rng = np.random.default_rng(6)
    w = 10.0 ** rng.uniform(-8, 8, 300)
    logged = np.column_stack([1 - 1e-6 * rng.random(300), np.minimum(1, 1 / w), np.minimum(1, w)])
    rows, estimates, checks = [tuple(row) for row in logged.tolist()], [], []
    for groups in (300, 7):
        path = tmp_path / f"{groups}.parquet"
        pq.write_table(make_table("reward,propensity,pi_e", *rows), path, row_group_size=groups)
        engine = LocalEngine(str(tmp_path))
        result = estimate_rounds(engine, str(path), Policy(), EstimatorSettings(), 0.95)
        table = result.metrics.to_pylist()
        estimates.append({row["estimator"]: (row["value"], row["stderr"]) for row in table})
        checks.append(result.checks)
    assert estimates[0] == estimates[1] and checks[0] == checks[1]
    weight = [Fraction(float(pi / p)) for _, p, pi in rows]
    top = [Fraction(float(x)) for x in (logged[:, 2] / logged[:, 1]) * logged[:, 0]]
    for name, below in (("ips", [Fraction(1)] * 300), ("snips", weight)):
        value = sum(top) / sum(below)
        spread = sum((n - value * d) ** 2 for n, d in zip(top, below, strict=True))
        error = math.sqrt(spread * 300 / 299 / sum(below) ** 2)
        assert estimates[0][name] == pytest.approx((float(value), error), rel=1e-12), name
    effective = sum(weight) ** 2 / sum(one**2 for one in weight)
    observed = {check.check: check.observed for check in checks[0]}
    assert observed["effective rounds"] == pytest.approx(float(effective), rel=1e-14)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1.0, 0.0, 0.5), "1 of 1 rounds have a propensity that is not"),
        ((1.0, 0.5, 1.5), "1 of 1 rounds have a pi_e that is not"),
        ((1.0, 0.5, None), "pi_e is NULL"),
        ((math.inf, 0.5, 0.5), "rounds: 1 rows whose reward is NULL, NaN, infinite"),
    ],
)
def test_rounds_that_cannot_be_estimated(row: tuple[Any, ...], message: str, tmp_path: Path) -> None:
    rounds = make_table("reward,propensity,pi_e", row)
    engine, settings = LocalEngine(str(tmp_path)), EstimatorSettings()
    with pytest.raises(DataError, match=message):
        estimate_rounds(engine, rounds, Policy(), settings, 0.95)
    with pytest.raises(DataError, match="no rounds"):
        estimate_rounds(engine, rounds.slice(0, 0), Policy(), settings, 0.95)
    with pytest.raises(ConfigError, match="rounds have only q"):
        estimate_rounds(engine, rounds.append_column("q", pa.array([1.0])), Policy(), settings, 0.95)


def write_inputs(folder: Path) -> dict[str, list[str]]:
    """Write a matrix and rounds in several row groups; return flags for every kind of input."""
    rng = np.random.default_rng(11)
    rating, prediction, model, chance = world()
    user, item = (place.ravel() for place in np.indices(rating.shape))
    seen = (rng.random(rating.shape) < chance).ravel()
    ids = {"user_id": pa.array(user), "item_id": pa.array(item)}
    values = {"prediction": prediction.ravel(), "imputed": model.ravel()}
    known = pa.array(rating.ravel(), mask=~seen)
    tables = {
        "matrix": pa.table({**ids, **values, "rating": known}),
        "by_cell": pa.table({**ids, "propensity": chance.ravel()}),
        "by_rating": pa.table({"rating": np.unique(rating), "propensity": np.unique(chance)}),
        "by_item": pa.table({"item_id": np.arange(30), "propensity": rng.uniform(0.01, 1, 30)}),
        "rounds": pa.table({
            "item_id": rng.integers(0, 9, 3000), "position": rng.integers(1, 4, 3000).astype(np.int32),
            "reward": rng.random(3000), "propensity": rng.uniform(0.01, 1, 3000),
            "pi_e": rng.random(3000), "q": rng.random(3000), "q_policy": rng.random(3000),
        }),
        "policy": pa.table({"item_id": np.arange(7), "pi_e": rng.random(7)}),
    }  # fmt: skip
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=700)
    write(folder / "log.csv", "user_id,item_id,rating",
          list(zip(user[seen], item[seen], rating.ravel()[seen], strict=True)))  # fmt: skip
    lines = [(n, "2019-11-24 00:00:17.004101+00:00", n % 5, n % 3 + 1, n % 7 // 6, 0.1 + n % 8 / 10, n / 9)
             for n in range(600)]  # fmt: skip
    header = ",timestamp,item_id,position,click,propensity_score,user-item_affinity_0"
    (folder / "bts").mkdir()
    write(folder / "bts" / "all.csv", header, lines)
    (folder / "coat").mkdir()
    np.savetxt(folder / "coat" / "propensities.ascii", rng.uniform(0.01, 1, rating.shape), fmt="%g")
    at = {name: str(folder / f"{name}.parquet") for name in tables}
    matrix = ["--matrix", at["matrix"], "--bootstrap", "30", "--propensities"]
    rounds, bandit = (
        ["--rounds", at["rounds"]],
        ["--rounds", str(folder / "bts"), "--reader", "open_bandit"],
    )
    return {
        "by_cell": [*matrix, at["by_cell"], "--floor", "0.08"], "by_rating": [*matrix, at["by_rating"]],
        "by_item": [*matrix, at["by_item"], "--log", str(folder / "log.csv")],
        "by_place": [*matrix, str(folder / "coat" / "propensities.ascii")], "given": rounds,
        "policy": [*rounds, "--policy", at["policy"]],
        "own_log": [*rounds, "--policy-log", at["rounds"]],
        "bandit": [*bandit, "--policy-log", str(folder / "bts" / "all.csv")],
    }  # fmt: skip


def read_results(warehouse: Path) -> dict[str, list[dict[str, Any]]]:
    """Read what a run wrote, without its id and times."""
    left_out = {"run_id", "started_at", "finished_at", "seconds"}
    names = ("metrics", "checks", "runs", "user_metrics")
    tables = {name: DeltaTable(str(warehouse / name)).to_pyarrow_table() for name in names}
    kept = {
        name: [one for one in rows.column_names if one not in left_out] for name, rows in tables.items()
    }
    return {name: sorted(rows.select(kept[name]).to_pylist(), key=repr) for name, rows in tables.items()}


def list_rows(result: Result) -> list[Any]:
    tables = (result.metrics, result.user_metrics)
    return [result.checks, *(sorted(to_arrow(rows).to_pylist(), key=repr) for rows in tables)]


@pytest.mark.full
def test_both_runners_write_the_same(spark, tmp_path: Path) -> None:
    inputs, flags = write_inputs(tmp_path), ["--model", "m", "--logical-date", "2026-01-01"]
    for name in ("by_item", "bandit"):
        results = []
        for engine in ("local", "spark"):
            warehouse = tmp_path / f"{name}_{engine}"
            more = [*flags, "--warehouse", str(warehouse), "--engine", engine, *inputs[name]]
            assert job.main(job.parser().parse_args(more)) == 0
            results.append(read_results(warehouse))
        assert results[0] == results[1], name
    for name in ("by_cell", "by_rating", "by_place", "given", "policy", "own_log"):
        more = inputs[name]
        args = action.fill_defaults(job.parser().parse_args([*flags, "--warehouse", "w", *more]))
        estimate = action.run_matrix if args.matrix else action.run_rounds
        here, there = (estimate(one, args) for one in (LocalEngine(str(tmp_path)), SparkEngine(spark)))
        assert list_rows(here) == list_rows(there), name
    cells = estimate_matrix(
        LocalEngine(str(tmp_path), workers=2), *read_inputs(tmp_path), Bootstrap(replicates=30)
    )
    frames = [None if path is None else spark.read.parquet(path) for path in read_inputs(tmp_path)]
    framed = estimate_matrix(SparkEngine(spark), *frames, Bootstrap(replicates=30))
    assert framed.metrics.equals(cells.metrics) and framed.checks == cells.checks


def read_inputs(folder: Path) -> list[str | None]:
    return [str(folder / "matrix.parquet"), None, str(folder / "by_item.parquet")]


# ------------------------------------------------------------------------------- real logs


def open_bandit(folder: Path) -> pd.DataFrame:
    with (folder / "all.csv").open() as file:
        rows = [
            (r["item_id"], r["position"], r["click"], r["propensity_score"]) for r in csv.DictReader(file)
        ]
    table = pd.DataFrame(rows, columns=["item_id", "position", "click", "propensity"])
    return table.astype({"click": float, "propensity": float})


@pytest.mark.data
@pytest.mark.slow
def test_open_bandit_in_both_directions(shared_data: Path, tmp_path: Path) -> None:
    """bts's log values the random policy, and the random one values bts, as its own log shows it."""
    folder = shared_data / "obd-sample"
    logs = {name: open_bandit(folder / name) for name in ("bts", "random")}
    shares = logs["bts"].groupby(["item_id", "position"]).size() / logs["bts"].groupby("position").size()
    pairs = pd.MultiIndex.from_frame(logs["random"][["item_id", "position"]])
    chances = {"bts": np.full(10_000, 1 / 80), "random": shares.reindex(pairs).fillna(0).to_numpy()}
    for name, other, more in (
        ("bts", "random", ["--uniform", "80"]),
        ("random", "bts", ["--policy-log", str(folder / "bts")]),
    ):
        flags = ["--warehouse", str(tmp_path / name), "--model", other, "--rounds", str(folder / name),
                 "--reader", "open_bandit", *more]  # fmt: skip
        assert job.main(job.parser().parse_args(flags)) == 0
        result = read_values(tmp_path / name)
        log, names = logs[name], ("ips", "clipped_ips", "snips")
        rounds = Rounds(log.click.to_numpy(), chances[name] / log.propensity.to_numpy())
        value, error, _ = value_and_error(*contributions(rounds, names, EstimatorSettings()))
        truth = logs[other].click.mean()
        for e, estimator in enumerate(names):
            row = result["policy_value", estimator]
            assert (row.value, row.stderr) == (pytest.approx(value[e]), pytest.approx(error[e]))
            assert row.ci_low < truth < row.ci_high, (name, estimator)


@pytest.mark.data
@pytest.mark.slow
def test_coat_s_whole_matrix_from_the_ratings_users_chose(shared_data: Path, tmp_path: Path) -> None:
    """A constant 3: its error over randomly drawn cells lies nearer to IPS and SNIPS than to the mean."""
    chosen, drawn = (np.loadtxt(shared_data / "coat" / f"{part}.ascii") for part in ("train", "test"))
    truth = np.mean((drawn[drawn > 0] - 3) ** 2)
    rows = [(str(u), str(i), 3.0, float(r) if r else None) for (u, i), r in np.ndenumerate(chosen)]
    engine = LocalEngine(str(tmp_path))
    chances = find_propensities(str(shared_data / "coat")).open(engine)
    matrix = make_table(MATRIX_COLUMNS, *rows)
    result = estimate_matrix(engine, matrix, None, chances, Bootstrap(replicates=200))
    table = result.metrics.to_pandas()
    results = {row.estimator: row for _, row in table[table.metric == "mse"].iterrows()}
    assert results["holdout"].n == 6960 and "dr" not in results
    chance = np.loadtxt(shared_data / "coat" / "propensities.ascii")
    seen = chosen > 0
    error, w = (chosen[seen] - 3) ** 2, 1 / chance[seen]
    assert results["holdout"].value == pytest.approx(error.mean())
    assert results["ips"].value == pytest.approx((error * w).sum() / chosen.size)
    assert results["snips"].value == pytest.approx((error * w).sum() / w.sum())
    assert abs(results["snips"].value - truth) < abs(results["holdout"].value - truth)
