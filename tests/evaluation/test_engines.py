"""One evaluation on two runners: Spark and this process give the same bits, checks and errors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recbench_spark.config import Bootstrap, CandidateDraw
from recbench_spark.errors import RecbenchError
from recbench_spark.evaluation.evaluation import evaluate
from recbench_spark.evaluation.pairs import evaluate_pairs
from recbench_spark.evaluation.predictions import evaluate_predictions
from recbench_spark.metrics.predictions import Views
from recbench_spark.metrics.result import Result

SEEDS = range(*map(int, os.environ.get("RECBENCH_ENGINE_SEEDS", "0,12").split(",")))
"""Worlds drawn: a few in the suite, as many as one likes by hand."""

PRESETS = (None, "recbole", "rectools", "replay", "ranx", "mllib")

# ------------------------------------------------------------------------------------ small worlds


def ids(rng: np.random.Generator, kind: str, numbers: np.ndarray) -> pa.Array:
    """Ids of whole numbers as one of the kinds that tables hold."""
    kinds = {
        "int": lambda: pa.array(numbers),
        "int32": lambda: pa.array(numbers, pa.int32()),
        "float": lambda: pa.array(numbers.astype(float)),
        "decimal": lambda: pa.array(numbers).cast(pa.decimal128(20, 0)),
        "text": lambda: pa.array([f"é{n}" if n % 3 else f"{n}" for n in numbers.tolist()]),
        "digits": lambda: pa.array([str(n) for n in numbers.tolist()]),
    }
    return kinds[kind]()


def rows(
    rng: np.random.Generator, kinds: tuple[str, str], n: int, users: int, items: int
) -> dict[str, Any]:
    user, item = rng.integers(0, users, n), rng.integers(0, items, n)
    return {"user_id": ids(rng, kinds[0], user), "item_id": ids(rng, kinds[1], item)}


def drawn(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tables of an evaluation, and what is asked of it."""
    rng = np.random.default_rng(seed)
    users, items = int(rng.integers(1, 12)), int(rng.integers(2, 25))
    kinds = tuple(str(rng.choice(["int", "int32", "float", "decimal", "text", "digits"])) for _ in range(2))
    kind = ("lists", "scores", "embeddings")[seed % 3]
    truth = rows(rng, kinds, int(rng.integers(1, 40)), users, items)
    if rng.random() < 0.5:
        truth["relevance"] = pa.array(rng.integers(0, 5, len(truth["user_id"])).astype(float))
    if rng.random() < 0.4:
        hole = rng.random(len(truth["item_id"])) < 0.1
        truth["item_id"] = pa.array(truth["item_id"].to_pylist(), truth["item_id"].type)
        truth["item_id"] = pa.array(
            [None if lost else one for lost, one in zip(hole, truth["item_id"].to_pylist(), strict=True)],
            truth["item_id"].type,
        )
    tables: dict[str, Any] = {"truth": pa.table(truth)}
    if rng.random() < 0.6 or kind == "scores":
        tables["train"] = pa.table(rows(rng, kinds, int(rng.integers(1, 60)), users + 2, items))
    options: dict[str, Any] = {"k": sorted({int(one) for one in rng.integers(1, 9, 3)})}
    tables |= draw_system(rng, kind, kinds, users, items)
    options["metrics"] = tuple(rng.permutation(["ndcg", "recall", "map", "mrr", "hit", "auc"])[:3])
    if kind == "lists":
        options["metrics"] = tuple(name for name in options["metrics"] if name != "auc") or ("ndcg",)
    options["metrics"] += ("coverage", "gini") if rng.random() < 0.5 else ()
    if "train" in tables:
        options["metrics"] += ("novelty", "mean_popularity") if rng.random() < 0.5 else ()
    options["bootstrap"] = Bootstrap(replicates=int(rng.choice([0, 20])))
    options |= definition(rng, kind, tables, kinds, users, items)
    return tables, options


def draw_system(
    rng: np.random.Generator, kind: str, kinds: tuple[str, str], users: int, items: int
) -> dict[str, Any]:
    """Draw the output of a system: scores tie, rows are duplicated, users and items are missing."""
    if kind == "embeddings":
        dims = int(rng.integers(1, 4))
        u = rng.permutation(users + 1)[: max(1, users - 1)]
        i = rng.permutation(items + 1)[: max(1, items - 1)]
        sides = []
        for name, which, of in (("user_id", u, kinds[0]), ("item_id", i, kinds[1])):
            vectors = rng.integers(-2, 3, (len(which), dims)).astype(float).tolist()
            sides.append(pa.table({name: ids(rng, of, which), "vector": vectors}))
        if rng.random() < 0.5:
            sides[1] = sides[1].append_column("bias", pa.array(rng.integers(0, 2, len(i)).astype(float)))
        return {"embeddings": tuple(sides)}
    given = rows(rng, kinds, int(rng.integers(1, 80)), users + 1, items + 2)
    n = len(given["user_id"])
    if kind == "lists" and rng.random() < 0.5:
        given["rank"] = pa.array(rng.integers(1, 12, n))
    if "rank" not in given or rng.random() < 0.3:
        given["score"] = pa.array(rng.integers(0, 6, n).astype(float))
    return {kind: pa.table(given)}


def definition(
    rng: np.random.Generator,
    kind: str,
    tables: dict[str, Any],
    kinds: tuple[str, str],
    users: int,
    items: int,
) -> dict[str, Any]:
    """A preset or an axis; with embeddings also candidates of users' own, and vectors of features."""
    mode = str(rng.choice(["preset", "given", "uniform", "popularity", "cut", "features"]))
    if kind == "embeddings" and mode == "given":
        tables["candidates"] = pa.table(rows(rng, kinds, 30, users, items))
        return {"definition": {"candidates": "given"}}
    if kind == "embeddings" and mode in ("uniform", "popularity") and "train" in tables:
        return {"definition": {"candidates": mode}, "draw": CandidateDraw(n=3, seed=int(rng.integers(9)))}
    if mode == "features":
        vectors = rng.integers(-2, 3, (items, 2)).astype(float).tolist()
        tables["features"] = pa.table({"item_id": ids(rng, kinds[1], np.arange(items)), "vector": vectors})
        return {"metrics": ("recall", "diversity")}
    if mode == "cut":
        return {"uncut": False, "metrics": ("recall", "hit")}
    return {"preset": PRESETS[int(rng.integers(len(PRESETS)))]}


# ---------------------------------------------------------------------------------- both engines


def comparable(result: Result) -> dict[str, Any]:
    """Everything that an engine found, rows in an order of their own, floats by their bits."""
    frames = {"metrics": result.metrics, "user_metrics": result.user_metrics, "rankings": result.rankings}
    values: dict[str, Any] = {}
    for name, frame in frames.items():
        if frame is not None:
            table = frame if isinstance(frame, pa.Table) else frame.toArrow()
            table = table.select(sorted(table.column_names))
            values[name] = sorted(repr(row) for row in map(_plain, table.to_pylist()))
    values["checks"] = [
        (c.check, float(c.observed), c.threshold, c.severity, c.detail) for c in result.checks
    ]
    values["truth"] = result.truth
    result.release()
    return values


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {key: sorted(v.items()) if isinstance(v, dict) else v for key, v in row.items()}


def answer(call: Any, *args: Any, **options: Any) -> Any:
    """Return the comparable result of an engine, or the kind of its error."""
    try:
        return comparable(call(*args, **options))
    except RecbenchError as error:
        return type(error).__name__, error.exit_code


def frames(spark: Any, tables: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(map(spark.createDataFrame, table))
        if isinstance(table, tuple)
        else spark.createDataFrame(table)
        for name, table in tables.items()
    }


def same_by_both_engines(spark: Any, seed: int) -> Any:
    tables, options = drawn(seed)
    here = answer(evaluate, **tables, **options)
    there = answer(evaluate, **frames(spark, tables), **options)
    assert here == there, (seed, options)
    return here


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_bits_of_lists_scores_and_embeddings(spark, seed: int) -> None:
    same_by_both_engines(spark, seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_bits_of_predictions(spark, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = pa.table(rows(rng, ("text", "int"), 90, 9, 20))
    outcome = rng.integers(0, 2, 90) if seed == 1 else rng.integers(1, 6, 90)
    table = table.append_column(
        "prediction", pa.array(rng.random(90) if seed == 1 else rng.normal(3, 1, 90))
    )
    table = table.append_column("outcome", pa.array(outcome.astype(float)))
    options = (Bootstrap(replicates=20), Views(3, (0.3, 0.5), (0.0, 0.4)))
    here = answer(evaluate_predictions, table, *options)
    assert here == answer(evaluate_predictions, spark.createDataFrame(table), *options)
    assert len(here["metrics"]) > 10
    table = table.append_column("weight", pa.array(rng.choice([0, 0.05, 0.3, 2], 90)))
    options = (options[0], Views(3, (0.3, 0.5), (0.0, 0.4), 0.05 if seed == 1 else 1.0))
    here = answer(evaluate_predictions, table, *options)
    assert here == answer(evaluate_predictions, spark.createDataFrame(table), *options)


@pytest.mark.parametrize("kind", ["text", "int", "bool"])
def test_the_same_bits_of_predictions_by_a_column(spark, kind: str) -> None:
    rng = np.random.default_rng(3)
    table = pa.table(rows(rng, ("text", "int"), 60, 9, 20))
    numbers = {"prediction": rng.random(60), "outcome": rng.integers(0, 2, 60).astype(float)}
    code = rng.integers(0, 2, 60)
    column = {"text": [("main", None)[c] for c in code], "int": code, "bool": code > 0}[kind]
    for name, values in {**numbers, "block": column}.items():
        table = table.append_column(name, pa.array(values))
    options = (Bootstrap(replicates=5), Views(2), "block")
    here = answer(evaluate_predictions, table, *options)
    assert here == answer(evaluate_predictions, spark.createDataFrame(table), *options)
    wrong = (*options[:2], "prediction")
    here = answer(evaluate_predictions, table, *wrong)
    assert here == answer(evaluate_predictions, spark.createDataFrame(table), *wrong)


@pytest.mark.parametrize("kind", ["int", "text"])
def test_the_same_bits_of_pairs(spark, kind: str) -> None:
    rng = np.random.default_rng(7)
    vectors = rng.integers(-2, 3, (40, 3)).astype(float).tolist()
    items = pa.table({"item_id": ids(rng, kind, np.arange(40)), "vector": vectors})
    query, item = rng.integers(0, 44, 60), rng.integers(0, 42, 60)
    kept = query != item
    pairs = pa.table({"query_id": ids(rng, kind, query[kept]), "item_id": ids(rng, kind, item[kept])})
    here = answer(evaluate_pairs, items, pairs, k=(3, 10))
    assert here == answer(evaluate_pairs, *map(spark.createDataFrame, (items, pairs)), k=(3, 10))
    assert len(here["metrics"]) == 3
