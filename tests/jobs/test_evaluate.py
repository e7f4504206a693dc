"""The stand-alone evaluation as a stranger calls it: files in, a printed table and Delta tables out."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xxhash
from deltalake import DeltaTable
from pyspark.sql import functions as F
from sklearn import metrics as sk

import recbench_spark
from recbench_spark import cli
from recbench_spark.commands import evaluate as job
from recbench_spark.config import Bootstrap
from recbench_spark.core.definitions import Definition, make_definition
from recbench_spark.core.resampling import poisson_weights
from recbench_spark.errors import ConfigError, DataError, SchemaError
from recbench_spark.evaluation.evaluate import evaluate_predictions
from recbench_spark.metrics.kernels.accuracy import measure
from recbench_spark.metrics.result import Result
from recbench_spark.ranking.batches import to_rankings
from recbench_spark.schemas import RESULT_TABLES, TABLES
from recbench_spark.sources.delta_snapshots import read_snapshot
from tests import oracles

Values = dict[tuple[str, int | None], float]
FEW = Bootstrap(replicates=20)
NONE = Bootstrap(replicates=0)
LOG2_3 = math.log2(3)

# ------------------------------------------------------------------------------------- helpers


@dataclass(frozen=True)
class Answer:
    """The result of one call of the job."""

    code: int | str | None
    out: str
    err: str


Call = Callable[..., Answer]


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def call(request, capsys) -> Call:
    """Run the job as the command line does, by each engine; Spark in the shared session."""
    if request.param == "spark":
        request.getfixturevalue("spark")
    return make_call(request.param, capsys)


@pytest.fixture
def local(capsys) -> Call:
    """Run the job in this process: `tests/evaluation/test_engines.py` has the same bits on Spark."""
    return make_call("local", capsys)


def make_call(engine: str, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*argv: str | Path) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.run(job.main, job.parser(), [*(str(word) for word in argv), "--engine", engine])
        return Answer(ended.value.code, *capsys.readouterr())

    return run


def csv(path: Path, header: str, rows: Iterable[Sequence[Any]]) -> Path:
    lines = [header, *(",".join("" if cell is None else str(cell) for cell in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def ranked(lists: Mapping[Any, Iterable[Any]]) -> list[tuple[Any, Any, int]]:
    return [(user, item, rank) for user, items in lists.items() for rank, item in enumerate(items, start=1)]


def pairs(truth: Mapping[Any, Iterable[Any]]) -> list[tuple[Any, Any]]:
    return [(user, item) for user, items in truth.items() for item in items]


def table(warehouse: Path, name: str) -> pd.DataFrame:
    """A table as those without Spark read it."""
    return DeltaTable(str(warehouse / name)).to_pandas()


def read_values(warehouse: Path) -> Values:
    """The overall metrics in a warehouse of one run."""
    return overall(table(warehouse, "metrics"))


def overall(rows: pd.DataFrame) -> Values:
    return {
        (row.metric, None if pd.isna(row.k) else int(row.k)): row.value
        for row in rows[rows.slice_key.isna()].itertuples()
    }


def per_user(rows: pd.DataFrame, metric: str) -> dict[str, list[float]]:
    return {row.user_id: list(row["values"]) for _, row in rows[rows.metric == metric].iterrows()}


def observe_values(result: Result) -> dict[str, float]:
    return {check.check: check.observed for check in result.checks}


TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "array<float>": pa.list_(pa.float32()),
}


def frame(rows: Iterable[Sequence[Any]], columns: str) -> pa.Table:
    """A table of these columns and types, as Spark writes them."""
    named = [column.split() for column in columns.split(", ")]
    values = zip(*rows, strict=True)
    return pa.table(
        {name: pa.array(one, TYPES[kind]) for (name, kind), one in zip(named, values, strict=True)}
    )


# ------------------------------------------------------------------------- oracle cases O1 .. O6

O1_LISTS = {
    "u1": {3: 0.6, 7: 0.5, 10: 0.4, 11: 0.3, 2: 0.2},
    "u2": {5: 0.6, 8: 0.5, 11: 0.4, 1: 0.3, 3: 0.2},
    "u3": {4: 1.0, 9: 0.5, 2: 0.1},
}
O1_TRUTH = {"u1": range(5, 11), "u2": (4, 6, 7, 10, 11), "u3": range(1, 6)}
O1 = {
    ("precision", 2): 1 / 3, ("precision", 3): 5 / 9, ("precision", 5): 1 / 3, ("precision", 10): 1 / 6,
    ("recall", 2): 11 / 90, ("recall", 5): 14 / 45, ("recall", 10): 14 / 45,
    ("map", 2): 1 / 4, ("map", 3): 19 / 54, ("map", 5): 19 / 90, ("map", 10): 0.198148,
    ("mrr", 2): 1 / 2, ("mrr", 3): 11 / 18, ("mrr", 5): 11 / 18, ("mrr", 10): 11 / 18,
    ("ndcg", 2): 1 / 3, ("ndcg", 3): 0.489760, ("ndcg", 5): 0.353962, ("ndcg", 10): 0.340181,
    ("hit", 2): 2 / 3, ("hit", 3): 1, ("hit", 10): 1,
    # 11 items in all; 3, 7, 5, 8, 4, 9 stand in the first two places, only 6 in none.
    ("coverage", 2): 6 / 11, ("coverage", 10): 10 / 11,
}  # fmt: skip


def test_o1_from_csv(call, spark, tmp_path):
    """With a fourth user whose truth is empty: left out, so that no number changes."""
    rows = [(user, item, score) for user, scores in O1_LISTS.items() for item, score in scores.items()]
    lists = csv(tmp_path / "lists.csv", "user_id,item_id,score", rows)
    truth = csv(tmp_path / "truth.csv", "user_id,item_id", [*pairs(O1_TRUTH), ("u4", None)])
    answer = call("--warehouse", tmp_path / "w", "--model", "o1", "--lists", lists, "--truth", truth,
                  "--k", "2,3,5,10", "--bootstrap", "50", "--logical-date", "2026-01-31")  # fmt: skip
    assert answer.code == 0, answer.err
    result = read_values(tmp_path / "w")
    assert {key: result[key] for key in O1} == pytest.approx(O1, abs=1e-6)
    _check_printed(answer.out.splitlines())
    _check_tables_agree(spark, tmp_path / "w")
    _check_users(tmp_path / "w")
    _check_run(tmp_path / "w")


def test_a_family_of_metrics_and_a_line_on_what_has_no_table(call, tmp_path):
    rows = [(user, item, score) for user, scores in O1_LISTS.items() for item, score in scores.items()]
    lists = csv(tmp_path / "lists.csv", "user_id,item_id,score", rows)
    truth = csv(tmp_path / "truth.csv", "user_id,item_id", pairs(O1_TRUTH))
    answer = call("--warehouse", tmp_path / "w", "--model", "o1", "--lists", lists, "--truth", truth,
                  "--bootstrap", "0", "--metrics", "hit@2,family:coverage,family:popularity")  # fmt: skip
    assert answer.code == 0, answer.err
    assert {metric for metric, _ in read_values(tmp_path / "w")} == {"hit", "coverage", "gini", "entropy"}
    assert "note: metrics of families without their inputs: " in answer.out
    assert "(novelty (needs train), mean_popularity (needs train), " in answer.out


def _check_printed(lines: list[str]) -> None:
    assert any(line.split()[:3] == ["ndcg", "2", "0.333333"] for line in lines)
    assert any(line.split()[:3] == ["map", "3", "0.351852"] for line in lines)
    # Lists end somewhere: what they leave out is not a warning.
    assert not any("unranked truth items" in line for line in lines)


NOT_EVALUATED = {
    "ceilings", "multiverse", "replays", "curve_values", "curve_rankings", "learning_curves",
    "retrieval_runs",
}  # fmt: skip
"""Tables of results that evaluate does not write."""


def _check_tables_agree(spark, warehouse: Path) -> None:
    for name in {*RESULT_TABLES, "runs"} - NOT_EVALUATED:
        ours = spark.read.format("delta").load(str(warehouse / name))
        assert ours.columns == TABLES[name].names
        assert ours.count() == len(table(warehouse, name)) > 0
    rows = spark.read.format("delta").load(str(warehouse / "metrics")).toPandas()
    assert overall(rows) == pytest.approx(read_values(warehouse), abs=0, nan_ok=True)


def _check_users(warehouse: Path) -> None:
    users = table(warehouse, "user_metrics")
    at_2 = {user: values[0] for user, values in per_user(users, "ndcg").items()}
    assert at_2["u1"] == pytest.approx((1 / LOG2_3) / (1 + 1 / LOG2_3))
    assert at_2["u2"] == 0
    assert at_2["u3"] == pytest.approx(1 / (1 + 1 / LOG2_3))
    assert pd.isna(at_2["u4"])
    assert dict(zip(users.user_id, users.n_relevant, strict=True)) == {"u1": 6, "u2": 5, "u3": 5, "u4": 0}
    places = table(warehouse, "rankings").set_index("user_id")
    above = dict(zip(places.item_ids["u3"], places.above["u3"], strict=True))
    assert above == {"1": -1, "2": 2, "3": -1, "4": 0, "5": -1}


def _check_run(warehouse: Path) -> None:
    (run,) = table(warehouse, "runs").to_dict("records")
    assert (run["model"], run["model_kind"], run["status"]) == ("o1", "lists", "succeeded")
    assert str(run["logical_date"])[:10] == "2026-01-31" and run["n_users"] == 4
    assert set(json.loads(run["inputs_json"])) == {"truth", "lists"}
    checks = table(warehouse, "checks").set_index("check").observed
    assert checks["test: unranked truth items"] == 11 and checks["list rows"] == 13
    assert checks["test: users without relevant items"] == 1


def test_o2_mllib_from_parquet(local, tmp_path):
    """An empty truth counts 0 under this preset; users and items are integers."""
    lists = {1: [1, 6, 2, 7, 8, 3, 9, 10, 4, 5], 2: [4, 1, 5, 6, 2, 7, 3, 8, 9, 10], 3: [1, 2, 3, 4, 5]}
    given = pd.DataFrame(ranked(lists), columns=["user_id", "item_id", "rank"])
    given.to_parquet(tmp_path / "lists.parquet")
    truth = pd.DataFrame(pairs({1: range(1, 6), 2: range(1, 4), 3: [None]}), columns=["user_id", "item_id"])
    truth.astype({"item_id": "Int64"}).to_parquet(tmp_path / "truth.parquet")
    answer = local("--warehouse", tmp_path / "w", "--model", "o2", "--lists", tmp_path / "lists.parquet",
                   "--truth", tmp_path / "truth.parquet", "--preset", "mllib", "--k", "1,2,3,4,5,10,15",
                   "--bootstrap", "0", "--metrics", "precision,recall,map,ndcg")  # fmt: skip
    assert answer.code == 0, answer.err
    expected = {
        **{("precision", k): 1 / 3 for k in (1, 2, 3)},
        ("precision", 4): 1 / 4, ("precision", 5): 4 / 15, ("precision", 10): 4 / 15,
        ("precision", 15): 8 / 45, ("map", None): 0.355026, ("map", 1): 1 / 3, ("map", 2): 1 / 4,
        ("map", 3): 13 / 54, ("ndcg", 3): 1 / 3, ("ndcg", 5): 0.328788, ("ndcg", 10): 0.487913,
        ("recall", 1): 1 / 15, ("recall", 2): 8 / 45, ("recall", 3): 11 / 45, ("recall", 5): 16 / 45,
        ("recall", 10): 2 / 3,
    }  # fmt: skip
    result = read_values(tmp_path / "w")
    assert {key: result[key] for key in expected} == pytest.approx(expected, abs=1e-6)
    assert {name for name, _ in result} == {"precision", "recall", "map", "ndcg"}
    definition = "v1;users=output;empty_users=zero;gaps=close"
    assert set(table(tmp_path / "w", "metrics").definition) == {definition}


@pytest.mark.slow
def test_o3_curve_from_delta(call, spark, tmp_path):
    """RecBole's hit rows 000, 111, 101, 001 with 1, 3, 4, 2 relevant items; k = 1..3 by --curve."""
    tables = {
        "lists": (ranked({"a": "xyz", "b": "012", "c": "0x1", "d": "xy0"}), "rank int"),
        "truth": (
            [(*pair, 1.0) for pair in pairs({"a": "0", "b": "012", "c": "0123", "d": "01"})],
            "relevance double",
        ),
    }
    for name, (rows, value) in tables.items():
        frame = spark.createDataFrame(rows, f"user_id string, item_id string, {value}")
        frame.write.format("delta").save(str(tmp_path / name))
    answer = call("--warehouse", tmp_path / "w", "--model", "o3", "--lists", tmp_path / "lists",
                  "--truth", tmp_path / "truth", "--k", "3", "--curve", "--bootstrap", "0",
                  "--metrics", "map,ndcg,hit")  # fmt: skip
    assert answer.code == 0, answer.err
    users = table(tmp_path / "w", "user_metrics")
    average = {user: values[:3] for user, values in per_user(users, "map").items()}
    assert average["a"] == [0, 0, 0] and average["b"] == [1, 1, 1]
    assert average["c"] == pytest.approx([1, 1 / 2, 5 / 9])
    assert average["d"] == pytest.approx([0, 0, 1 / 6])
    ideals = [1, 1 + 1 / LOG2_3, 1.5 + 1 / LOG2_3]
    expected = [gain / ideal for gain, ideal in zip((1, 1, 1.5), ideals, strict=True)]
    assert per_user(users, "ndcg")["c"][:3] == pytest.approx(expected)
    assert {tuple(ks) for ks in users[users.metric == "hit"].ks} == {(1, 2, 3)}
    (run,) = table(tmp_path / "w", "runs").to_dict("records")
    identities = {name: read_snapshot(str(tmp_path / name)).identity for name in ("truth", "lists")}
    assert json.loads(run["inputs_json"]) == identities
    assert len(set(identities.values())) == 2, "each table has its own"


def test_o4_linear_gain(local, tmp_path):
    """Grades 3 2 3 0 1 2 of the list, 3 and 2 of two items that are not listed: NDCG@6 .785."""
    truth = [("u", item, grade) for item, grade in enumerate((3, 2, 3, 0, 1, 2, 3, 2))]
    lists = csv(tmp_path / "lists.csv", "user_id,item_id,rank", ranked({"u": range(6)}))
    held_out = csv(tmp_path / "truth.csv", "user_id,item_id,relevance", truth)
    answer = local("--warehouse", tmp_path / "w", "--model", "o4", "--lists", lists, "--truth", held_out,
                   "--k", "6", "--bootstrap", "0", "--metrics", "ndcg",
                   "--set", "definition.gain=linear")  # fmt: skip
    assert answer.code == 0, answer.err
    discounts = [1 / math.log2(rank + 1) for rank in range(1, 7)]
    dcg, ideal = (np.dot(grades, discounts) for grades in ((3, 2, 3, 0, 1, 2), (3, 3, 3, 2, 2, 2)))
    result = read_values(tmp_path / "w")["ndcg", 6]
    assert result == pytest.approx(dcg / ideal) and round(result, 3) == 0.785
    assert set(table(tmp_path / "w", "metrics").definition) == {"v1;gain=linear"}


def test_o5_rectools(local, tmp_path):
    lists = {1: [7, 8], 2: [1, 2], 3: [1, 2, 3, 4], 4: [1, 2, 3]}
    rows = [("\t".join(map(str, row)),) for row in ranked(lists)]
    given = csv(tmp_path / "lists.tsv", "user_id\titem_id\trank", rows)
    truth = {1: [1, 2], 2: [1], 3: [1, 3, 4], 4: [1, 2, 3]}
    held_out = csv(tmp_path / "truth.csv", "user_id,item_id", pairs(truth))
    answer = local("--warehouse", tmp_path / "w", "--model", "o5", "--lists", given, "--truth", held_out,
                   "--preset", "rectools", "--k", "3", "--bootstrap", "0",
                   "--metrics", "map,ndcg")  # fmt: skip
    assert answer.code == 0, answer.err
    users = table(tmp_path / "w", "user_metrics")
    result = {name: [per_user(users, name)[user][0] for user in "1234"] for name in ("map", "ndcg")}
    ideal = 1 + 1 / LOG2_3 + 1 / 2
    assert result["map"] == pytest.approx([0, 1, 5 / 9, 1])
    assert result["ndcg"] == pytest.approx([0, 1 / ideal, 1.5 / ideal, 1])
    assert result["ndcg"] == pytest.approx([0, 0.469279, 0.703918, 1], abs=1e-6)


def test_o6_predictions(call, tmp_path):
    rows = zip("abab", "wxyz", (0.1, 0.9, 0.2, 0.3), (1, 0, 1, 1), strict=True)
    given = csv(tmp_path / "p.csv", "user_id,item_id,prediction,outcome", rows)
    argv = ["--warehouse", tmp_path / "w", "--model", "o6", "--predictions", given, "--bootstrap", "20"]
    answer = call(*argv)
    assert answer.code == 0, answer.err
    result = read_values(tmp_path / "w")
    assert result["auc", None] == 0
    assert result["mae", None] == pytest.approx(3.3 / 4)
    assert result["rmse", None] == pytest.approx(0.829156, abs=1e-6)
    (shown,) = (line.split() for line in answer.out.splitlines() if line.split()[:1] == ["mae"])
    assert float(shown[1]) == pytest.approx(0.825, abs=1e-5)
    assert "another base rate" not in answer.out
    # The same model on other outcomes: another base rate, and a RIG that must not be compared.
    rows = zip("abab", "wxyz", (0.1, 0.9, 0.2, 0.3), (1, 0, 0, 0), strict=True)
    other = csv(tmp_path / "q.csv", "user_id,item_id,prediction,outcome", rows)
    answer = call(*[other if word == given else word for word in argv], "--dataset", "clicks")
    assert "runs of another base rate: 1" in answer.out
    assert table(tmp_path / "w", "runs").split_id.nunique() == 2
    assert per_user(table(tmp_path / "w", "user_metrics"), "mae")["a"] == pytest.approx([1.7 / 2])


# --------------------------------------------------------------------- predictions against sklearn


def test_predictions_against_sklearn():
    draw = np.random.default_rng(7)
    user = draw.integers(0, 40, 600).astype(str)
    y = draw.integers(0, 2, 600).astype(float)
    # Two digits, so that there are ties.
    p = np.clip(np.round(draw.random(600) * 0.8 + 0.15 * y, 2), 0.01, 0.99)
    columns = {"user_id": user, "item_id": np.arange(600), "prediction": p, "outcome": y}
    result = evaluate_predictions(pd.DataFrame(columns), FEW)
    results = overall(result.metrics.to_pandas())
    assert {name: results[name, None] for name in _by_sklearn(user, p, y)} == pytest.approx(
        _by_sklearn(user, p, y), abs=1e-9
    )
    aucs = per_user(result.user_metrics.to_pandas(), "auc")
    assert aucs["7"][0] == pytest.approx(sk.roc_auc_score(y[user == "7"], p[user == "7"]))
    _check_views(result.metrics.to_pandas(), p, y)


def _check_views(rows: pd.DataFrame, p, y) -> None:
    """Calibration, quantiles, thresholds and partial AUC, from the rows themselves."""
    overall_rows = rows[rows.slice_key.isna()].set_index("metric").value
    result = rows[rows.slice_key.notna()].set_index(["metric", "slice_key", "slice_value"]).value
    edges = np.sort(p)[len(p) * np.arange(1, 10) // 10]
    bins = [np.flatnonzero(np.searchsorted(edges, p, side="right") == b) for b in range(10)]
    gaps = [abs(p[rows].sum() - y[rows].sum()) for rows in bins]
    assert overall_rows["calibration_error"] == pytest.approx(sum(gaps) / len(p))
    assert overall_rows["mean_outcome"] == pytest.approx(y.mean())
    third = result["pe", "prediction_quantile", "3/10"], result["logloss", "prediction_quantile", "3/10"]
    expected = p[bins[2]].mean() / y[bins[2]].mean() - 1, sk.log_loss(y[bins[2]], p[bins[2]])
    assert third == pytest.approx(expected)
    assert result["tpr", "threshold", "0.5"] == pytest.approx((p[y == 1] >= 0.5).mean())
    assert result["fpr", "threshold", "0.5"] == pytest.approx((p[y == 0] >= 0.5).mean())
    # scikit-learn maps the area so that chance gives 1/2 (McClish 1989).
    area = 0.05 + (2 * sk.roc_auc_score(y, p, max_fpr=0.1) - 1) * 0.95
    assert result["pauc", "fpr", "0-0.1"] == pytest.approx(area)


def _by_sklearn(user, p, y) -> dict[str, float]:
    g, mse, loss = y.mean(), sk.mean_squared_error(y, p), sk.log_loss(y, p)
    entropy = -g * math.log(g) - (1 - g) * math.log(1 - g)
    mixed = [u for u in np.unique(user) if len(set(y[user == u])) == 2]
    positives = {u: y[user == u].sum() for u in mixed}
    weighted = sum(positives[u] * sk.roc_auc_score(y[user == u], p[user == u]) for u in mixed)
    return {
        "mse": mse, "rmse": math.sqrt(mse), "nmse": mse / (g * (1 - g)),
        "mae": sk.mean_absolute_error(y, p),
        "auc": sk.roc_auc_score(y, p), "logloss": loss, "rig": 1 - loss / entropy, "pe": p.mean() / g - 1,
        "gauc": weighted / sum(positives.values()),
    }  # fmt: skip


@pytest.mark.parametrize("error", [5e-7, 1e-5, 1e-60])
def test_small_errors_keep_their_digits_however_rows_are_spread(error: float):
    """RMSE, its standard error and interval, from fractions and the weights of the bootstrap."""
    draw = np.random.default_rng(1)
    user = draw.integers(0, 30, 400)
    y = draw.integers(0, 2, 400).astype(float) * (error > 1e-30)
    p = y + draw.lognormal(0, 1, 400) * error * np.where(y > 0, -1, 1)
    rows = pd.DataFrame(
        {"user_id": user.astype(str), "item_id": np.arange(400), "prediction": p, "outcome": y}
    )
    values = []
    for order in (1, 7):
        result = evaluate_predictions(rows.sample(frac=1, random_state=order), FEW)
        values.append(result.metrics.to_pandas().sort_values(["metric", "slice_key", "slice_value"]))
    pd.testing.assert_frame_equal(*(one.reset_index(drop=True) for one in values), check_exact=True)
    row = values[0].set_index("metric").loc["rmse"]
    squares = [(Fraction(a) - Fraction(b)) ** 2 for a, b in zip(p.tolist(), y.tolist(), strict=True)]
    scale = Fraction(error) ** 2
    assert row.value == pytest.approx(math.sqrt(sum(squares) / scale / 400) * error, rel=1e-12)
    keys = np.array([xxhash.xxh64_intdigest(str(u).encode(), seed=42) for u in user], np.uint64).view(
        np.int64
    )
    weights = poisson_weights(keys, FEW.replicates, FEW.seed)
    drawn = [
        math.sqrt(sum(int(w) * s for w, s in zip(weights[:, b], squares, strict=True)) / scale
                  / int(weights[:, b].sum())) * error
        for b in range(FEW.replicates)
    ]  # fmt: skip
    assert row.stderr == pytest.approx(np.std(drawn, ddof=1), rel=1e-11)
    ends = np.quantile(drawn, [(1 - FEW.level) / 2, (1 + FEW.level) / 2])
    assert (row.ci_low, row.ci_high) == pytest.approx(tuple(ends), rel=1e-12)


def test_rare_events_keep_their_digits():
    """Predictions of 1e-9: log-loss 1e-9 where nothing happens, PE to the last digits where one does."""
    rows = [("a", str(n), 1e-9, 0.0) for n in range(100)]
    columns = "user_id string, item_id string, prediction double, outcome double"
    result = evaluate_predictions(frame(rows, columns), NONE)
    results = overall(result.metrics.to_pandas())
    assert results["logloss", None] == pytest.approx(1e-9 + 0.5e-18, rel=1e-12)
    assert results["mean_prediction", None] == pytest.approx(1e-9, rel=1e-15)
    result = evaluate_predictions(frame([*rows, ("b", "x", 1e-9, 1.0)], columns), NONE)
    assert overall(result.metrics.to_pandas())["pe", None] == pytest.approx(101e-9 - 1, rel=1e-15)


def test_gauc_of_o6():
    """Lengths 2, 3, 5 with 1, 2, 3 positives whose ranks (1 best) add up to 1, 4, 9."""
    best_first = {"a": (1, 0), "b": (1, 0, 1), "c": (0, 1, 1, 1, 0)}
    rows = [
        (user, str(n), 1 - n / 10, float(y)) for user, ys in best_first.items() for n, y in enumerate(ys)
    ]
    columns = "user_id string, item_id string, prediction double, outcome double"
    result = evaluate_predictions(frame(rows, columns), NONE)
    # AUC 1, 1/2, 1/2 (3 of 6 pairs), weighted by 1, 2, 3 positives.
    results = overall(result.metrics.to_pandas())["gauc", None]
    assert results == pytest.approx((1 * 1 + 2 / 2 + 3 / 2) / 6) and round(results, 6) == 0.583333


# ---------------------------------------------------------------- users, ids, ties, duplicates, training


SCORED = "user_id string, item_id long, score double"
WANTED = "user_id string, item_id long"


def test_odd_users_and_integer_ids():
    """One user an oddity; ties fall to the smaller number, 2 before 10."""
    lists = [
        ("tie", 10, 1.0), ("tie", 2, 1.0), ("tie", 7, 0.5),
        ("twice", 1, 0.9), ("twice", 1, 0.8), ("twice", 3, 0.7),
        ("empty", 1, 1.0), ("stranger", 1, 1.0), ("unknown", 99, 1.0), ("unknown", 1, 0.5),
    ]  # fmt: skip
    truth = [
        ("tie", 2), ("twice", 1), ("twice", 1), ("twice", 2),
        ("empty", None), ("missing", 1), ("unknown", 1),
    ]  # fmt: skip
    train = [("tie", 7), ("twice", 3), ("other", 10)]
    result = recbench_spark.evaluate(
        frame(truth, WANTED), lists=frame(lists, SCORED),
        train=frame(train, WANTED), k=[2, 1], bootstrap=FEW,
        metrics=["ndcg", "map", "recall", "hit", "coverage"],
    )  # fmt: skip
    users = result.user_metrics.to_pandas()
    recall, average = (per_user(users, name) for name in ("recall", "map"))
    assert recall["tie"] == [1, 1] and recall["missing"] == [0, 0] and recall["unknown"] == [0, 1]
    assert recall["twice"] == [1 / 2, 1 / 2] and average["twice"][1] == 1 / 2
    assert all(pd.isna(value) for value in recall["empty"]) and "stranger" not in recall
    numbers = users[users.metric != "coverage"]["values"].explode().dropna()
    assert numbers.between(0, 1).all()
    every = overall(result.metrics.to_pandas())
    assert every["hit", 1] == 2 / 4 and every["recall", 2] == (1 + 1 / 2 + 0 + 1) / 4
    # Items 1, 2, 3, 7, 10 and 99; 1 and 2 are first, 10, 3, 99 second in some averaged user's list.
    assert 0 < every["coverage", 1] <= every["coverage", 2] <= 1
    results = observe_values(result)
    assert results["test: duplicate rows"] == 1 and results["duplicate list rows"] == 1
    assert results["list rows of unknown items"] == 1 and results["listed users without truth"] == 1
    assert results["list rows of training items"] == 2
    assert results["test: users without relevant items"] == 1 and results["test: users without output"] == 1
    _check_frames(result, truth, lists)


def _check_frames(result: Result, truth: list[Any], lists: list[Any]) -> None:
    """The same bits from frames of pandas."""
    frames = (pd.DataFrame(truth, columns=["user_id", "item_id"]),
              pd.DataFrame(lists, columns=["user_id", "item_id", "score"]))  # fmt: skip
    results = recbench_spark.evaluate_frames(*frames, k=[2, 1], metrics=["ndcg", "map", "recall", "hit"])
    rows = result.metrics.to_pandas()
    rows = rows[rows.slice_key.isna()]
    both = rows.merge(results.fillna({"k": 0}), on=["metric", "definition"])
    both = both[both.k_x.fillna(0) == both.k_y]
    assert len(both) == len(results) == 10
    for name in ("value", "stderr", "n"):
        assert (both[f"{name}_x"] == both[f"{name}_y"]).all()


def test_string_ids_tie_by_their_bytes():
    """'10' stands before '2' where the column is text, also where every text is a number."""
    tied = [("u", "2", 1.0), ("u", "10", 1.0)]
    lists = frame(tied, "user_id string, item_id string, score double")
    truth = frame([("u", "10")], "user_id string, item_id string")
    result = recbench_spark.evaluate(truth, lists=lists, k=[1], metrics=["hit"], bootstrap=NONE)
    assert overall(result.metrics.to_pandas())["hit", 1] == 1


@pytest.mark.parametrize("side", ["truth", "lists"])
def test_duplicates_refused(side):
    once, twice = [("u", 1)], [("u", 1), ("u", 1)]
    truth = frame(twice if side == "truth" else once, WANTED)
    rows = [(*pair, 1.0) for pair in (twice if side == "lists" else once)]
    lists = frame(rows, SCORED)
    with pytest.raises(DataError, match="duplicate"):
        recbench_spark.evaluate(truth, lists=lists, definition={"duplicates": "error"})


def test_ties_and_presets_against_the_oracle():
    """Lists of few different scores; every rule for ties, and presets, against all orders of the ties."""
    draw = np.random.default_rng(3)
    users = [f"u{n}" for n in range(6)]
    scores = {u: {int(i): float(draw.integers(0, 3)) for i in draw.permutation(9)[:6]} for u in users}
    truth = {u: {int(i): 1.0 for i in draw.permutation(9)[: draw.integers(1, 4)]} for u in users}
    lists = frame([(u, i, s) for u in users for i, s in scores[u].items()], SCORED)
    wanted = frame(pairs(truth), WANTED)
    result = recbench_spark.evaluate(
        wanted, lists=lists, k=[1, 4], metrics=TIED, definition={"ties": "expected"}, bootstrap=NONE
    )
    results = result.user_metrics.to_pandas()
    values = {name: per_user(results, name) for name in TIED}
    _check_ties(values, scores, truth, make_definition(None, {"ties": "expected"}))
    # The rankings hold all that any rule for ties needs.
    (batch,) = result.rankings.combine_chunks().to_batches()
    rules = [make_definition(None, {"ties": ties}) for ties in ("optimistic", "pessimistic")]
    for definition in (*rules, make_definition("lenskit"), make_definition("cornac")):
        measured = measure(to_rankings(batch), TIED, (1, 4), definition)
        ids = batch.column("user_id").to_pylist()
        values = {name: dict(zip(ids, rows.tolist(), strict=True)) for name, rows in measured.items()}
        _check_ties(values, scores, truth, definition)


TIED = ("ndcg", "map", "mrr", "auc")


def _check_ties(values, scores, truth, definition: Definition) -> None:
    for metric in TIED:
        for user, row in values[metric].items():
            place, k = (0, None) if metric == "auc" else (1, 4)
            expected = oracles.value(metric, scores[user], truth[user], k, definition)
            assert row[place] == pytest.approx(expected, nan_ok=True), (metric, user, definition)


def test_train_masks_scores_and_not_lists():
    rows = frame([("u", 1, 3.0), ("u", 2, 2.0), ("u", 3, 1.0)], SCORED)
    truth, train = frame([("u", 2)], WANTED), frame([("u", 1)], WANTED)
    hit = {}
    for kind in ("scores", "lists"):
        result = recbench_spark.evaluate(
            truth, train=train, k=[1], metrics=["hit"], bootstrap=NONE, **{kind: rows}
        )
        hit[kind] = overall(result.metrics.to_pandas())["hit", 1]
        assert kind == "scores" or observe_values(result)["list rows of training items"] == 1
    assert hit == {"scores": 1, "lists": 0}


# ------------------------------------------------------------------------------------- embeddings

DRAW = np.random.default_rng(11)
USERS = [f"u{n:02d}" for n in range(30)]
ITEMS = list(range(40))
# Coarse numbers, so that many scores are equal.
USER_UD = DRAW.integers(-2, 3, (30, 3)).astype(np.float32) / 3
ITEM_ID = DRAW.integers(-2, 3, (40, 3)).astype(np.float32) / 7
ITEM_ID[(ITEM_ID == 0).all(axis=1)] = 1 / 7
BIAS_I = DRAW.integers(0, 2, 40) / 10
TRUTH = {u: sorted(int(i) for i in DRAW.permutation(40)[:4]) for u in USERS}
TRAIN = {u: sorted(int(i) for i in DRAW.permutation(40)[4:9] if i not in TRUTH[u]) for u in USERS}
GIVEN = {u: sorted({*TRUTH[u][:2], *(int(i) for i in DRAW.permutation(40)[:10])}) for u in USERS}


def _scores(user: int, similarity: str) -> list[float]:
    """The definition: float64, products added in index order, then the bias; cosine: by length."""
    scores = []
    for vector, bias in zip(ITEM_ID.astype(np.float64), BIAS_I, strict=True):
        dot = squares = 0.0
        for a, b in zip(USER_UD[user].astype(np.float64), vector, strict=True):
            dot, squares = dot + a * b, squares + b * b
        scores.append(float(dot + bias if similarity == "dot" else dot / math.sqrt(squares)))
    return scores


Places = dict[str, dict[str, tuple[int, ...]]]
"""Of each user's truth items: candidates above, tied, and tied with a smaller id; -1: no candidate."""


def _places(candidates: Callable[[str], Iterable[int]], similarity: str) -> Places:
    places: Places = {}
    for n, user in enumerate(USERS):
        scores, listed = _scores(n, similarity), set(candidates(user))
        places[user] = {str(i): _place(i, scores, listed) for i in TRUTH[user]}
    return places


def _place(item: int, scores: list[float], listed: set[int]) -> tuple[int, ...]:
    if item not in listed:
        return (-1, 0, 0)
    tied = [other for other in listed - {item} if scores[other] == scores[item]]
    above = sum(scores[other] > scores[item] for other in listed)
    return (above, len(tied), sum(other < item for other in tied))


def _list_places(rankings: pd.DataFrame) -> Places:
    return {
        row.user_id: {
            item: tuple(map(int, place))
            for item, *place in zip(row.item_ids, row.above, row.tied, row.before, strict=True)
        }
        for row in rankings.itertuples()
    }


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    users = [(u, [float(x) for x in v]) for u, v in zip(USERS, USER_UD, strict=True)]
    items = [(i, [float(x) for x in v], float(b)) for i, v, b in zip(ITEMS, ITEM_ID, BIAS_I, strict=True)]
    return {
        "users": frame(users, "user_id string, vector array<float>"),
        "items": frame(items, "item_id long, vector array<float>, bias double"),
        "truth": frame(pairs(TRUTH), WANTED),
        "train": frame(pairs(TRAIN), WANTED),
        "candidates": frame(pairs(GIVEN), WANTED),
    }


MODES: dict[str, Callable[[str], Iterable[int]]] = {
    "unseen": lambda user: set(ITEMS) - set(TRAIN[user]),
    "all": lambda user: ITEMS,
    "rated": lambda user: TRUTH[user],
    "given": lambda user: GIVEN[user],
}


@pytest.mark.parametrize("mode", MODES)
def test_dot_products(vectors, mode):
    result = recbench_spark.evaluate(
        vectors["truth"], embeddings=(vectors["users"], vectors["items"]), train=vectors["train"],
        candidates=vectors["candidates"] if mode == "given" else None, definition={"candidates": mode},
        k=[3], metrics=["ndcg"], bootstrap=NONE,
    )  # fmt: skip
    assert _list_places(result.rankings.to_pandas()) == _places(MODES[mode], "dot")


def test_ranks_up_to_the_largest_k_give_the_same_values_there(vectors):
    given = {"embeddings": (vectors["users"], vectors["items"]), "train": vectors["train"], "k": [1, 3]}
    wanted = {"metrics": ["ndcg", "hit", "mrr"], "bootstrap": NONE}
    whole, cut = (
        recbench_spark.evaluate(vectors["truth"], **given, **wanted, uncut=u) for u in (True, False)
    )
    expected = whole.metrics.to_pandas().query("k.notna()").astype({"k": "int32"})
    results = cut.metrics.to_pandas()
    assert len(results) == len(expected) and results["k"].notna().all()
    order = ["metric", "k", "slice_key", "slice_value"]
    left, right = (frame.sort_values(order).reset_index(drop=True) for frame in (expected, results))
    pd.testing.assert_frame_equal(left, right, check_exact=True)
    assert max(cut.rankings.to_pandas()["above"].explode()) <= 3
    with pytest.raises(ConfigError, match="auc is over the whole ranking"):
        recbench_spark.evaluate(vectors["truth"], **given, metrics=["auc"], uncut=False)


def test_cosine(vectors):
    sides = vectors["users"], vectors["items"].drop_columns("bias")
    result = recbench_spark.evaluate(
        vectors["truth"], embeddings=sides, similarity="cosine", k=[3], metrics=["ndcg"], bootstrap=NONE,
    )  # fmt: skip
    assert _list_places(result.rankings.to_pandas()) == _places(MODES["all"], "cosine")


def test_embeddings_and_scores_by_command_line(call, tmp_path):
    """The same dot products as vectors and as a table of scores: the same numbers to the last bit."""
    csv(tmp_path / "truth.csv", "user_id,item_id", pairs(TRUTH))
    csv(tmp_path / "train.csv", "user_id,item_id", pairs(TRAIN))
    pd.DataFrame({"user_id": USERS, "vector": list(USER_UD)}).to_parquet(tmp_path / "users.parquet")
    rows = [(i, f'"{v.tolist()}"', b) for i, v, b in zip(ITEMS, ITEM_ID, BIAS_I, strict=True)]
    csv(tmp_path / "items.csv", "item_id,vector,bias", rows)
    scores = [(u, i, repr(s)) for n, u in enumerate(USERS) for i, s in enumerate(_scores(n, "dot"))]
    csv(tmp_path / "scores.csv", "user_id,item_id,score", scores)
    common = ["--truth", tmp_path / "truth.csv", "--train", tmp_path / "train.csv", "--k", "3,10",
              "--bootstrap", "20", "--model", "vectors"]  # fmt: skip
    answer = call("--warehouse", tmp_path / "a", "--embeddings", tmp_path / "users.parquet",
                  tmp_path / "items.csv", *common)  # fmt: skip
    assert answer.code == 0, answer.err
    answer = call("--warehouse", tmp_path / "b", "--scores", tmp_path / "scores.csv", *common)
    assert answer.code == 0, answer.err
    first, second = (_comparable(table(tmp_path / name, "metrics")) for name in ("a", "b"))
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    assert _list_places(table(tmp_path / "a", "rankings")) == _places(MODES["unseen"], "dot")
    assert set(first.slice_value) >= {"head", "tail"}
    assert not list((tmp_path / "a" / "_scratch").glob("*"))


def _comparable(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.drop(columns="run_id").astype({"slice_key": str, "slice_value": str})
    return rows.sort_values(["metric", "k", "slice_key", "slice_value"], ignore_index=True)


# ----------------------------------------------------- the same bits however the rows are spread out


@pytest.fixture
def settings(spark):
    """The shared session, with what a test changes put back."""
    names = ("spark.sql.shuffle.partitions", "spark.sql.execution.arrow.maxRecordsPerBatch")
    before = {name: spark.conf.get(name) for name in names}
    yield names
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.slow
def test_same_bits_however_rows_are_spread(spark, settings, vectors):
    rows = [(u, i, s) for n, u in enumerate(USERS) for i, s in enumerate(_scores(n, "dot")) if i % 3]
    given = {name: spark.createDataFrame(one) for name, one in vectors.items()}
    given["scores"] = spark.createDataFrame(frame(rows, SCORED))
    seen: dict[str, list[str]] = {}
    for partitions, batch, kinds in (
        (1, 10_000, ("scores", "embeddings")), (3, 7, ("embeddings",)), (17, 1, ("scores", "embeddings"))
    ):  # fmt: skip
        for name, value in zip(settings, (partitions, batch), strict=True):
            spark.conf.set(name, str(value))
        spread = {
            name: one.orderBy(F.xxhash64(F.lit(partitions), one.columns[0])).repartition(partitions)
            for name, one in given.items()
        }
        for kind in kinds:
            result = _bits(spread, kind)
            assert result == seen.setdefault(kind, result), (kind, partitions)


def _bits(given: Mapping[str, Any], kind: str) -> list[str]:
    """Every number of metrics and rankings; repr of a float tells all of its bits."""
    handed = (given["users"], given["items"]) if kind == "embeddings" else given[kind]
    result = recbench_spark.evaluate(
        given["truth"], train=given["train"], k=[1, 10], bootstrap=FEW, **{kind: handed}
    )
    rows = sorted(repr(row) for frame in (result.metrics, result.rankings) for row in frame.collect())
    result.release()
    return rows


# -------------------------------------------------------------------------------------- bad input

GOOD = {
    "lists.csv": ("user_id,item_id,score", [("u", 1, 0.5), ("u", 2, 0.4)]),
    "truth.csv": ("user_id,item_id", [("u", 1)]),
    "users.csv": ("user_id,vector", [("u", '"[1, 2]"')]),
    "items.csv": ("item_id,vector", [(1, '"[1, 2]"'), (2, '"[2, 1]"')]),
    "p.csv": ("user_id,item_id,prediction,outcome", [("u", 1, 0.5, 1)]),
}
BY = {
    "lists": ["--lists", "lists.csv", "--truth", "truth.csv"],
    "scores": ["--scores", "lists.csv", "--truth", "truth.csv"],
    "embeddings": ["--embeddings", "users.csv", "items.csv", "--truth", "truth.csv"],
    "predictions": ["--predictions", "p.csv"],
}


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """Good input in the working directory, to be spoilt."""
    for name, (header, rows) in GOOD.items():
        csv(tmp_path / name, header, rows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _argv(kind: str, folder: Path, *more: str) -> list[str]:
    """A call with this kind of input; the JVM keeps its own working directory, so paths are whole."""
    words = ["--warehouse", "w", "--model", "m", *BY[kind], *more]
    return [str(folder / word) if word in GOOD else word for word in words]


def _check_refusal(answer: Answer, code: int, *words: str) -> None:
    assert answer.code == code, answer.err
    for word in words:
        assert word in answer.err, f"'{word}' is not in: {answer.err}"
    for trace in ("\tat org.", "\tat java", "Py4JJavaError", "Traceback", "PYTHON_EXCEPTION"):
        assert trace not in answer.err + answer.out
    assert not Path("w", "runs").exists()


FLAGS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "k of 0": (["--k", "0"], ("--k", "cut-offs start at 1")),
    "negative k": (["--k=-3,5"], ("--k", "-3")),
    "k in words": (["--k", "ten"], ("--k", "'ten'")),
    "preset": (["--preset", "recbol"], ("unknown preset 'recbol'", "did you mean 'recbole'")),
    "axis": (["--set", "definition.gian=linear"], ("definition.gian", "did you mean 'gain'")),
    "value": (["--set", "definition.gain=linaer"], ("definition.gain", "did you mean 'linear'")),
    "set": (["--set", "gain=linear"], ("--set gain=linear", "definition.AXIS=VALUE")),
    "threshold": (["--set", "definition.threshold=high"], ("definition", "number")),
    "metric": (["--metrics", "ndgc"], ("unknown metric 'ndgc'", "did you mean 'ndcg'")),
    "no metric": (["--metrics", ""], ("metric",)),
    "model": (["--model", "../m;DROP"], ("'../m;DROP'", "letters")),
    "date": (["--logical-date", "31.1.2026"], ("--logical-date", "31.1.2026")),
    "bootstrap": (["--bootstrap", "-1"], ("--bootstrap -1",)),
    "two kinds": (["--scores", "s.csv"], ("--scores", "--lists")),
    "flag": (["--modle", "m"], ("--modle",)),
    "fpr": (["--fpr", "0.3"], ("--fpr", "two")),
    "no range": (["--fpr", "0.3,0.1"], ("0.3 to 0.1", "ascending")),
    "candidates": (["--candidates", "truth.csv"], ("candidates",)),
    "given": (["--set", "definition.candidates=given"], ("candidates",)),
}


@pytest.mark.parametrize("flags", [pytest.param(FLAGS[name][0], id=name) for name in FLAGS])
def test_wrong_flags(files, capsys, flags):
    """All refused before Spark starts, and before anything is read."""
    words = next(words for known, words in FLAGS.values() if known is flags)
    kind = "embeddings" if "definition.candidates=given" in flags else "lists"
    kind = "predictions" if "--fpr" in flags else kind
    with pytest.raises(SystemExit) as ended:
        cli.run(job.main, job.parser(), _argv(kind, files, *flags))
    _check_refusal(Answer(ended.value.code, *capsys.readouterr()), 2, *words)
    assert not Path("w").exists()


def test_flags_that_would_do_nothing(files, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.run(job.main, job.parser(), _argv("predictions", files, "--metrics", "auc"))
    _check_refusal(Answer(ended.value.code, *capsys.readouterr()), 2, "--metrics", "--predictions")


def test_missing_truth_flag(files, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.run(job.main, job.parser(), ["--warehouse", "w", "--model", "m", "--lists", "lists.csv"])
    _check_refusal(Answer(ended.value.code, *capsys.readouterr()), 2, "--truth is missing")


SPOILT: dict[str, tuple[str, str, str, list[tuple[Any, ...]], int, tuple[str, ...]]] = {
    "missing column": ("lists", "truth.csv", "user_id,thing", [("u", 1)], 1, ("truth.csv", "item_id")),
    "no score": ("lists", "lists.csv", "user_id,item_id", [("u", 1)], 1, ("lists", "score")),
    "NaN": ("scores", "lists.csv", "user_id,item_id,score", [("u", 1, "NaN")], 1, ("lists.csv", "score")),
    "NULL": ("scores", "lists.csv", "user_id,item_id,score", [("u", 1, None)], 1, ("scores", "score")),
    "infinite": ("lists", "lists.csv", "user_id,item_id,score", [("u", 1, "Infinity")], 1, ("score",)),
    "rank 0": ("lists", "lists.csv", "user_id,item_id,rank", [("u", 1, 0)], 1, ("lists", "rank below 1")),
    "half rank": ("lists", "lists.csv", "user_id,item_id,rank", [("u", 1, 1.5)], 1, ("lists.csv", "rank")),
    "ragged": ("lists", "lists.csv", "user_id,item_id,score", [("u", 1)], 1, ("lists.csv", "3 fields")),
    "no user": ("lists", "truth.csv", "user_id,item_id", [(None, 1)], 1, ("truth", "user_id")),
    "empty truth": ("lists", "truth.csv", "user_id,item_id", [], 1, ("truth", "no rows")),
    "NaN vector": ("embeddings", "items.csv", "item_id,vector", [(1, '"[NaN, 1]"')], 1, ("item", "vector")),
    "lengths": (
        "embeddings", "items.csv", "item_id,vector", [(1, '"[1, 2]"'), (2, '"[1]"')], 1,
        ("item embeddings", "1 to 2 dimensions"),
    ),
    "dimensions": (
        "embeddings", "users.csv", "user_id,vector", [("u", '"[1, 2, 3]"')], 1, ("3 dimensions", "2")
    ),
    "no outcome": (
        "predictions", "p.csv", "user_id,item_id,prediction,outcome", [("u", 1, 0.5, None)], 1, ("outcome",)
    ),
    "huge outcome": (
        "predictions", "p.csv", "user_id,item_id,prediction,outcome", [("u", 1, 0.5, 1e200)], 1,
        ("too large",),
    ),
}  # fmt: skip


FAIL_IN_TASKS = ("missing column", "NaN", "ragged", "lengths", "huge outcome")
"""Spoilt files for Spark, too: one of each kind of table, since both engines share their readers."""


@pytest.mark.parametrize(
    ("call", "name"),
    [*(("local", name) for name in SPOILT),
     *(pytest.param("spark", name, marks=pytest.mark.spark) for name in FAIL_IN_TASKS)],
    indirect=["call"],
)  # fmt: skip
def test_spoilt_files(call, files, name):
    kind, file, header, rows, code, words = SPOILT[name]
    csv(files / file, header, rows)
    _check_refusal(call(*_argv(kind, files)), code, *words)


def test_missing_file(call, files):
    argv = [word.replace("lists.csv", "list.csv") for word in _argv("lists", files)]
    _check_refusal(call(*argv), 1, "list.csv", "did you mean 'lists.csv'")


def test_empty_lists_are_users_without_output(call, files):
    """A model that gives nothing is worth 0, and this is said."""
    csv(files / "lists.csv", "user_id,item_id,score", [])
    answer = call(*_argv("lists", files, "--metrics", "hit", "--k", "1"))
    assert answer.code == 0, answer.err
    assert read_values(files / "w") == {("hit", 1): 0}
    assert "users without output: 1" in answer.out


@pytest.mark.parametrize("place", ["below a file", "catalog-like name"])
def test_warehouse_that_cannot_be(call, files, place):
    (files / "file").write_text("")
    root = "file/w" if place == "below a file" else "nowhere.nothing"
    answer = call(*_argv("lists", files, "--warehouse", root))
    # A name of a catalog is right, but for an engine that has none.
    _check_refusal(answer, 2 if "--engine local" in answer.err else 1, root)


def test_warehouse_of_another_version(call, spark, files):
    spark.range(1).selectExpr("'r' AS run_id").write.format("delta").save(str(files / "w" / "runs"))
    answer = call(*_argv("lists", files))
    assert answer.code == 1 and "schema version" in answer.err and "\tat org." not in answer.err
    assert not (files / "w" / "metrics").exists()


def test_foreign_folder_at_a_table(call, files):
    (files / "w" / "metrics").mkdir(parents=True)
    csv(files / "w" / "metrics" / "mine.csv", "a", [(1,)])
    _check_refusal(call(*_argv("lists", files, "--metrics", "hit")), 1, "metrics")


# ---------------------------------------------------------------------------------- from Python


def test_misuse_from_python():
    truth = frame([("u", 1)], WANTED)
    lists = frame([("u", 1, 1.0)], SCORED)
    with pytest.raises(ConfigError, match="exactly one"):
        recbench_spark.evaluate(truth)
    with pytest.raises(ConfigError, match="unknown metric 'ndgc'"):
        recbench_spark.evaluate(truth, lists=lists, metrics=["ndgc"])
    with pytest.raises(ConfigError, match="cut-offs"):
        recbench_spark.evaluate(truth, lists=lists, k=[0])
    with pytest.raises(SchemaError, match="score"):
        recbench_spark.evaluate(truth, lists=truth)
    vectors = frame([("u", [1.0, float("nan")])], "user_id string, vector array<float>")
    items = vectors.rename_columns(["item_id", "vector"])
    with pytest.raises(DataError, match="vector"):
        recbench_spark.evaluate(truth, embeddings=(vectors, items))


# -------------------------------------------------------------------------- as a process of its own


@pytest.mark.slow
def test_bare_python_from_another_folder(files):
    """No spark-submit, no PYTHONPATH, no working directory to rely on."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "JAVA_HOME")}
    script = str(Path(recbench_spark.__file__).resolve().parents[1] / "jobs" / "recbench.py")
    command = [sys.executable, script, "evaluate", "--warehouse", "w", "--model", "m", *BY["lists"]]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert any(line.split()[:3] == ["ndcg", "1", "1.000000"] for line in done.stdout.splitlines()), (
        done.stdout
    )
    assert "\tat " not in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--embeddings", "a", "b", "--pairs", "p"), "has 2 tables, and one is needed with --pairs: items"),
        (("--embeddings", "a", "--truth", "t"), "has one table, and two are needed: users and items"),
        (("--lists", "a", "--pairs", "p"), "--pairs is for embeddings"),
        (("--embeddings", "a", "--pairs", "p", "--truth", "t"), "hit rates and scaled MRR alone"),
    ],
)
def test_pairs_go_with_the_vectors_of_items_alone(flags, message, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run(job.main, job.parser(), [*flags, "--warehouse", "w", "--model", "m", "--dry-run"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
