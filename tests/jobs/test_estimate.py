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
import pytest
from deltalake import DeltaTable

from recbench_spark.commands import estimate as job
from recbench_spark.config import Bootstrap
from recbench_spark.data.readers.published import read_propensities
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.evaluation.estimators.rating_matrix import (
    LOSSES,
    cell_parts,
    cell_sums,
    estimable_totals,
)
from recbench_spark.kernels.estimators import rating_matrix
from recbench_spark.kernels.estimators.bandit_feedback import Rounds, contributions
from recbench_spark.kernels.estimators.exposure import EstimatorSettings
from recbench_spark.kernels.resampling import percentile_interval, poisson_weights
from recbench_spark.nightly.estimates import estimate_matrix, estimate_rounds, join_policy
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


# ------------------------------------------------------------------------------- with Spark, by hand


def write(path: Path, header: str, rows: list[tuple[Any, ...]]) -> str:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


def read_values(warehouse: Path) -> dict[tuple[str, str], pd.Series]:
    rows = DeltaTable(str(warehouse / "metrics")).to_pandas()
    return {(row.metric, row.estimator): row for _, row in rows.iterrows()}


@pytest.mark.contract("estimate")
def test_a_matrix_by_hand(spark, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    output = capsys.readouterr().out
    assert "effective ratings: 1.8" in output and "cells without a prediction: 0" in output
    (run,) = DeltaTable(str(tmp_path / "w" / "runs")).to_pandas().to_dict("records")
    assert (run["model_kind"], run["status"], run["n_users"]) == ("matrix", "succeeded", 2)
    assert set(json.loads(run["inputs_json"])) == {"truth", "matrix", "log", "propensities"}


def test_matrices_that_cannot_be_estimated(spark) -> None:
    few = Bootstrap(replicates=2)
    columns = "user_id string, item_id string, prediction double, rating double"
    matrix = spark.createDataFrame([("u", "i", 1.0, 2.0), ("u", "j", 1.0, None)], columns)
    chance = spark.createDataFrame([(2.0, 0.5)], "rating double, propensity double")
    for change, message in (
        ((matrix.union(matrix.where("item_id = 'j'")), chance), "occurs twice"),
        ((matrix, chance.withColumn("rating", chance.rating + 1)), "1 ratings without a propensity"),
        ((matrix, chance.withColumn("propensity", chance.propensity * 3)), "outside"),
    ):
        with pytest.raises(DataError, match=message):
            estimate_matrix(change[0], None, change[1], few)
    with pytest.raises(ConfigError, match="propensities by nothing"):
        estimate_matrix(matrix, None, chance.select("propensity"), few)


def test_rounds_by_hand_with_a_model_and_a_policy(spark) -> None:
    """Weights 4, 1, 1/2, 0 and rewards 1, 0, 1, 1; a model expects .5, .5, .2, 0 and .3 of the policy."""
    shown = [("a", 1.0, 0.1, 0.5), ("b", 0.0, 0.2, 0.5), ("c", 1.0, 0.4, 0.2), ("d", 1.0, 1.0, 0.0)]
    columns = "item_id string, reward double, propensity double, q double, q_policy double"
    rounds = spark.createDataFrame([(*one, 0.3) for one in shown], columns)
    chances = [("a", 0.4), ("b", 0.2), ("c", 0.2), ("e", 0.2)]
    policy = spark.createDataFrame(chances, "item_id string, pi_e double")
    settings = EstimatorSettings(clip=2.0, switch=2.0, shrink=4.0)
    result = estimate_rounds(join_policy(rounds, policy), settings, "table", 0.95)
    results = {row.estimator: row for row in result.metrics.collect()}
    result.release()
    w = {"dr": (4, 1, 0.5), "switch_dr": (0, 1, 0.5), "dros": (16 / 20, 4 / 5, 2 / 4.25)}
    wanted = {"ips": 4.5 / 4, "clipped_ips": 2.5 / 4, "snips": 4.5 / 5.5, "dm": 0.3}
    for name, (a, b, c) in w.items():
        wanted[name] = 0.3 + (a * 0.5 + b * -0.5 + c * 0.8) / 4
    assert {name: row.value for name, row in results.items()} == pytest.approx(wanted, rel=1e-13)
    ips = results["ips"]
    assert ips.stderr == pytest.approx(np.array([4, 0, 0.5, 0]).std(ddof=1) / 2)
    assert ips.ci_high == pytest.approx(ips.value + 1.959964 * ips.stderr, rel=1e-6)
    assert results["ips"].definition == "v1;policy=table"
    assert results["dros"].definition == "v1;policy=table;shrink=4"
    observed = {check.check: check.observed for check in result.checks}
    assert observed["effective rounds"] == pytest.approx(5.5**2 / 17.25)
    assert observed["largest share of the weight"] == pytest.approx(4 / 5.5)


def test_weights_from_tiny_to_huge_keep_their_digits_however_rounds_are_spread(spark) -> None:
    """Weights from 1e-8 to 1e8, and a reward whose variance is 1e-12 of its square: against fractions."""
    rng = np.random.default_rng(6)
    w = 10.0 ** rng.uniform(-8, 8, 300)
    logged = np.column_stack([1 - 1e-6 * rng.random(300), np.minimum(1, 1 / w), np.minimum(1, w)])
    rows, estimates = [tuple(row) for row in logged.tolist()], []
    for parts in (1, 5):
        rounds = spark.createDataFrame(rows, "reward double, propensity double, pi_e double")
        result = estimate_rounds(rounds.repartition(parts), EstimatorSettings(), "given", 0.95)
        estimates.append({row.estimator: (row.value, row.stderr) for row in result.metrics.collect()})
        result.release()
    assert estimates[0] == estimates[1]
    weight = [Fraction(float(pi / p)) for _, p, pi in rows]
    top = [Fraction(float(x)) for x in (logged[:, 2] / logged[:, 1]) * logged[:, 0]]
    for name, below in (("ips", [Fraction(1)] * 300), ("snips", weight)):
        value = sum(top) / sum(below)
        spread = sum((n - value * d) ** 2 for n, d in zip(top, below, strict=True))
        error = math.sqrt(spread * 300 / 299 / sum(below) ** 2)
        assert estimates[0][name] == pytest.approx((float(value), error), rel=1e-12), name


def test_rounds_that_cannot_be_estimated(spark) -> None:
    columns = "reward double, propensity double, pi_e double"
    for row, message in (
        ((1.0, 0.0, 0.5), "a propensity that is not"),
        ((1.0, 0.5, 1.5), "a pi_e that is not"),
        ((1.0, 0.5, None), "pi_e is NULL"),
    ):
        with pytest.raises(DataError, match=message):
            estimate_rounds(spark.createDataFrame([row], columns), EstimatorSettings(), "given", 0.95)


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
def test_open_bandit_in_both_directions(spark, shared_data: Path, tmp_path: Path) -> None:
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
def test_coat_s_whole_matrix_from_the_ratings_users_chose(spark, shared_data: Path) -> None:
    """A constant 3: its error over randomly drawn cells lies nearer to IPS and SNIPS than to the mean."""
    chosen, drawn = (np.loadtxt(shared_data / "coat" / f"{part}.ascii") for part in ("train", "test"))
    truth = np.mean((drawn[drawn > 0] - 3) ** 2)
    rows = [(str(u), str(i), 3.0, float(r) if r else None) for (u, i), r in np.ndenumerate(chosen)]
    schema = "user_id string, item_id string, prediction double, rating double"
    frame = pd.DataFrame(rows, columns=["user_id", "item_id", "prediction", "rating"])
    chances = read_propensities(spark, str(shared_data / "coat"))
    result = estimate_matrix(spark.createDataFrame(frame, schema), None, chances, Bootstrap(replicates=200))
    results = {row.estimator: row for row in result.metrics.where("metric = 'mse'").collect()}
    result.release()
    assert results["holdout"].n == 6960 and "dr" not in results
    chance = np.loadtxt(shared_data / "coat" / "propensities.ascii")
    seen = chosen > 0
    error, w = (chosen[seen] - 3) ** 2, 1 / chance[seen]
    assert results["holdout"].value == pytest.approx(error.mean())
    assert results["ips"].value == pytest.approx((error * w).sum() / chosen.size)
    assert results["snips"].value == pytest.approx((error * w).sum() / w.sum())
    assert abs(results["snips"].value - truth) < abs(results["holdout"].value - truth)
