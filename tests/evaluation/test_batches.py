"""Ranking, measuring and checks as functions of Arrow batches: in this process, and by Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.config import Bootstrap
from recbench_spark.core.checks import Check
from recbench_spark.core.definitions import Definition
from recbench_spark.engine.measures import reduce_pieces
from recbench_spark.metrics import accuracy
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.metrics.ranking_counts import checks_from_counts, count_batches, count_measure
from recbench_spark.ranking import batch_schemas as schemas
from recbench_spark.ranking import scored
from recbench_spark.ranking.given import rank_batches
from recbench_spark.ranking.kernels.scorers import WHOLE_ROWS, count_ranks
from recbench_spark.ranking.scored import score_batches
from recbench_spark.ranking.sources import DotSource
from recbench_spark.storage.shared_arrays import SharedRows

ROOT = Path(__file__).resolve().parents[2]
ITEMS, DIMS, USERS = 30, 3, 90

PLAN = MetricPlan.checked(
    ("ndcg", "recall", "auc", "map"),
    (5, 1, 3, 3),
    Definition(candidates="unseen"),
    Bootstrap(replicates=25),
)


def users(seed: int = 5) -> pa.Table:
    """Users with truth, training items, a list (some: none) and a vector (some: none)."""
    rng = np.random.default_rng(seed)
    rows = []
    for n in range(USERS):
        drawn = rng.permutation(ITEMS)[: rng.integers(3, 12)]
        truth, masked = np.sort(drawn[: rng.integers(0, 4)]), np.sort(drawn[4:])
        listed = np.sort(rng.permutation(ITEMS + 3)[: 0 if n % 11 == 0 else rng.integers(1, 15)])
        rows.append(
            {
                "user_id": f"u{n}",
                "part": "test" if n % 3 else "valid",
                "user_key": int(rng.integers(-(1 << 62), 1 << 62)),
                "item_ids": [f"i{i}" for i in truth],
                "items": truth.tolist(),
                "relevance": rng.integers(0, 3, len(truth)).astype(float).tolist(),
                "slices": [("popularity", ["head" if i < 10 else "tail" for i in truth])],
                "masked": masked.tolist(),
                "list_items": listed.tolist(),
                "list_ids": [f"i{i}" for i in listed],
                "list_scores": rng.integers(0, 6, len(listed)).astype(float).tolist(),
                "vector": None if n % 13 == 0 else rng.integers(-2, 3, DIMS).astype(float).tolist(),
            }
        )
    names = [name for name in schemas.LISTED_USERS.names if name != "list_ranks"]
    fields = [schemas.LISTED_USERS.field(name) for name in names]
    schema = pa.schema([*fields, pa.field("vector", pa.list_(pa.float32()))])
    return pa.Table.from_pylist(rows, schema=schema)


def share_rows(folder: Path) -> SharedRows:
    """The items of a model of vectors, as a task finds them; the last one is not scored."""
    rng = np.random.default_rng(8)
    vectors = rng.integers(-2, 3, (ITEMS, DIMS)).astype(float).tolist()
    columns = {
        "item_index": pa.array(range(ITEMS), pa.int32()),
        "item_id": pa.array([f"i{i}" for i in range(ITEMS)]),
        "vector": pa.array([*vectors[:-1], None], pa.list_(pa.float32())),
        "bias": pa.array([float(i % 2) for i in range(ITEMS)]),
    }
    pq.write_table(pa.table(columns), folder / "items.parquet")
    return SharedRows(f"{folder.parent.name}-{folder.name}-items", (str(folder / "items.parquet"),))


@dataclass
class BatchResults:
    """Results of an evaluation of batches, rows as Python values."""

    rankings: list[dict[str, Any]]
    values: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    checks: list[Check]


def in_process(table: pa.Table, ranked: Any, size: int) -> BatchResults:
    """Everything in this process, from batches of so many users, as two tasks would do it."""
    halves = [table.slice(0, 40), table.slice(40)]
    rankings = [list(ranked(iter(half.to_batches(size)))) for half in halves]
    every = [batch for task in rankings for batch in task]
    measures = {"ranks": accuracy.rank_measure(PLAN), "counts": count_measure(PLAN.definition.threshold)}
    results = reduce_pieces(measures, rankings)
    checks = checks_from_counts(results["counts"], ("valid", "test", "never"))
    metrics = results["ranks"].to_batches()
    values = list(accuracy.user_value_batches(PLAN, iter(every)))
    tables = ((every, schemas.RANKED_USERS), (values, schemas.USER_VALUES), (metrics, schemas.METRIC_ROWS))
    return BatchResults(*(_rows(batches, schema) for batches, schema in tables), checks)


def _rows(batches: Any, schema: pa.Schema) -> list[dict[str, Any]]:
    """Rows of batches that are of a named schema (but for what it calls the elements of lists)."""
    parts = list(batches)
    assert parts
    for batch in parts:
        assert schemas.to_ddl(batch.schema) == schemas.to_ddl(schema)
    return [row for batch in parts for row in batch.to_pylist()]


def _sort_rows(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(row) for row in rows)


def test_lists_in_process_are_ranked_measured_and_checked_the_same_however_they_are_cut() -> None:
    ranked = partial(rank_batches, PLAN.request())
    result, other = (in_process(users(), ranked, size) for size in (7, 90))
    assert _sort_rows(result.metrics) == _sort_rows(other.metrics)
    assert _sort_rows(result.values) == _sort_rows(other.values)
    assert result.checks == other.checks
    everyone = {(r["part"], r["metric"], r["k"]): r for r in result.metrics if r["slice_key"] is None}
    for part in ("valid", "test"):
        given = [
            dict(zip(row["ks"], row["values"], strict=True))[3]
            for row in result.values
            if (row["part"], row["metric"]) == (part, "recall")
        ]
        known = [value for value in given if value is not None]
        row = everyone[part, "recall", 3]
        assert row["n"] == len(known) > 10
        assert row["value"] == pytest.approx(sum(known) / len(known), abs=1e-12)
        assert row["ci_low"] < row["value"] < row["ci_high"]


def test_checks_of_batches_against_a_slow_count() -> None:
    result = in_process(users(), partial(rank_batches, PLAN.request()), 8)
    for part, (n, barren, silent, unranked, tied) in (
        ("test", result.checks[5:10]),
        ("valid", result.checks[:5]),
    ):
        rows = [row for row in result.rankings if row["part"] == part]
        truth = [pair for row in rows for pair in zip(row["above"], row["tied"], strict=True)]
        assert n.check == f"{part}: users" and n.observed == len(rows)
        assert barren.observed == sum(max(row["relevance"], default=0) <= 0 for row in rows) > 0
        assert silent.observed == sum(row["length"] == 0 for row in rows) > 0
        assert unranked.observed == sum(above < 0 for above, _ in truth) > 0
        assert tied.observed == sum(tie > 0 for _, tie in truth) / len(truth) > 0
    (never,) = result.checks[10:]
    assert (never.check, never.observed, never.severity) == ("never: users", 0, "warning")


def test_relevance_from_the_threshold_on_counts() -> None:
    rows = {"part": ["test"] * 3, "length": [1, 1, 0], "relevance": [[1.0, 2.0], [1.0], []],
            "above": [[0, 0], [0], []], "tied": [[0, 0], [0], []]}  # fmt: skip
    batch = pa.RecordBatch.from_pydict(
        rows, schema=pa.schema([schemas.RANKED_USERS.field(name) for name in rows])
    )
    for threshold, barren in ((None, 1), (1.0, 1), (2.0, 2), (3.0, 3)):
        (counts,) = count_batches(threshold, iter([batch]))
        assert counts.to_pylist()[0]["barren"] == barren
    assert list(count_batches(None, iter([]))) == []


def test_little_work_goes_without_torch_and_has_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    def noting(*args: Any, device: str, **more: Any) -> Any:
        taken.append(device)
        return count_ranks(*args, device=device, **more)

    monkeypatch.setattr(scored, "count_ranks", noting)
    monkeypatch.setattr(scored, "sys", SimpleNamespace(modules={}))  # as before torch was loaded
    ranked = partial(score_batches, DotSource(share_rows(tmp_path), ITEMS, DIMS), PLAN.request())
    rankings = []
    # Two tasks, of 40 and of 50 users: both little, the first alone, neither.
    for users_of, wanted in (
        (50, (WHOLE_ROWS, WHOLE_ROWS)),
        (40, (WHOLE_ROWS, "cpu")),
        (39, ("cpu", "cpu")),
    ):
        monkeypatch.setattr(scored, "LITTLE", users_of * ITEMS * DIMS)
        rankings.append(in_process(users(), ranked, USERS))
        assert tuple(taken[-2:]) == wanted
    assert len(taken) == 6 and rankings[0] == rankings[1] == rankings[2]


def test_a_model_in_process_against_a_slow_oracle(tmp_path: Path) -> None:
    source = DotSource(share_rows(tmp_path), ITEMS, DIMS)
    result = in_process(users(), partial(score_batches, source, PLAN.request()), 16)
    scorer = pq.read_table(tmp_path / "items.parquet").to_pylist()
    for user, row in zip(users().to_pylist(), result.rankings, strict=True):
        assert user["user_id"] == row["user_id"]
        vector, masked = user["vector"], set(user["masked"])
        scores = {
            item["item_index"]: np.dot(vector, item["vector"]) + item["bias"]
            for item in scorer
            if vector is not None and item["vector"] is not None and item["item_index"] not in masked
        }
        assert row["length"] == len(scores)
        above = [sum(s > scores[i] for s in scores.values()) if i in scores else -1 for i in user["items"]]
        assert row["above"] == above


MODULES = (
    "engine.measures",
    "ranking.batch_schemas",
    "metrics.ranking_counts",
    "ranking.request",
    "ranking.batches",
    "ranking.given",
    "metrics.beyond_accuracy",
    "metrics.accuracy",
    "metrics.pairs",
    "evaluation.run_measures",
)
"""Modules that evaluate lists and scores: without Spark, and without torch."""

OF_MODELS = ("ranking.scored", "ranking.sources")


def test_functions_of_batches_load_no_spark() -> None:
    lines = [f"import recbench_spark.{name}" for name in MODULES]
    lines += ["assert 'torch' not in sys.modules", *(f"import recbench_spark.{name}" for name in OF_MODELS)]
    code = "\n".join(["import sys", *lines, "print([n for n in ('pyspark', 'py4j') if n in sys.modules])"])
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------- and by Spark


@pytest.mark.parametrize("kind", ["lists", "model"])
def test_the_same_rankings_by_spark(spark: Any, tmp_path: Path, kind: str) -> None:
    """Rankings alone; `tests/engine/test_law.py` has what follows from them."""
    from jobs.bench.rank import RANKING

    table, ranked = users(), partial(rank_batches, PLAN.request())
    if kind == "model":
        ranked = partial(score_batches, DotSource(share_rows(tmp_path), ITEMS, DIMS), PLAN.request())
    there = spark.createDataFrame(table).repartition(3).mapInArrow(_wrap(ranked), RANKING)
    here = in_process(table, ranked, 7).rankings
    assert _sort_rows(here) == _sort_rows(there.toArrow().to_pylist())


def _wrap(ranked: Any) -> Any:
    """Wrap a partial in a plain function, whose annotations Spark can read."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from ranked(batches)

    return run


def test_rows_of_rankings_are_those_of_the_table(spark) -> None:
    from pyspark.sql import types as T

    from jobs.bench.rank import RANKING

    from_ddl = T.StructType.fromDDL(schemas.to_ddl(schemas.RANKED_USERS))
    assert [(f.name, f.dataType) for f in from_ddl] == [(f.name, f.dataType) for f in RANKING]
