"""The multiverse: every defensible definition from the ranks of one run."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest

from recbench_spark import reports
from recbench_spark.config import Bootstrap
from recbench_spark.core.definitions import Definition, make_definition
from recbench_spark.engine.measures import reduce_pieces
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.metrics.kernels.accuracy import cutoffs, measure
from recbench_spark.metrics.multiverse import (
    WORLDS,
    metric_definitions,
    multiverse_columns,
    multiverse_measure,
)
from recbench_spark.query.local_engine import find_names
from recbench_spark.ranking.batches import to_rankings
from recbench_spark.schemas import MULTIVERSE, RANKINGS, RUNS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.store import Store
from recbench_spark.storage.table_sql import query_files
from tests.nights import DATE, Ran

PLAN = MetricPlan(WORLDS, (5, 10), Definition(threshold=4), Bootstrap())


def test_worlds_are_all_different_and_stand_on_the_benchmarks_definition() -> None:
    worlds = multiverse_columns(PLAN)
    assert len(worlds) == len(set(worlds))
    assert all("threshold=4" in world.definition for world in worlds)
    # Users 2 x empty users 2 x ties 4, and of precision 3 denominators, at two cut-offs.
    assert sum(world.metric == "precision" for world in worlds) == 2 * 2 * 4 * 3 * 2


def test_ndcg_with_a_rule_of_ties_of_its_own_has_one_world_for_each_value() -> None:
    own = Definition(ndcg_ties="expected")
    worlds = metric_definitions("ndcg", own)
    assert len(worlds) == len(metric_definitions("ndcg", Definition())) // 4 == 72
    assert {world.ties for world in worlds} == {"id"}
    assert len({world.ties for world in metric_definitions("map", own)}) == 4


def test_every_world_of_hashed_ties_is_a_definition_that_can_be_set() -> None:
    base = make_definition(overrides={"ties": "hashed", "tie_seed": 7})
    for metric in WORLDS:
        worlds = metric_definitions(metric, base)
        assert [make_definition(overrides=world.model_dump()) for world in worlds] == worlds
        assert {world.tie_seed for world in worlds if world.ties == "hashed"} == {7}


@pytest.mark.full
def test_values_equal_measuring_each_definition_alone(small_night: Ran) -> None:
    filters = [("run_id", "=", small_night.outcome.run_ids["als_4"]), ("part", "=", "test")]
    (batch,) = small_night.store.read_rows(RANKINGS, filters).combine_chunks().to_batches()
    rows = reduce_pieces({"worlds": multiverse_measure(PLAN)}, [[batch]])["worlds"].to_pylist()
    alone = {(row["metric"], row["k"], row["definition"]): (row["value"], row["n"]) for row in rows}
    assert len(rows) == len(alone) == len(multiverse_columns(PLAN))
    for metric in ("recall", "ndcg"):
        for definition in metric_definitions(metric, PLAN.definition)[::7]:
            values = pd.DataFrame(measure(to_rankings(batch), [metric], PLAN.ks, definition)[metric])
            text = next(
                world.definition
                for world, wanted in zip(_select_metric(metric), _definitions(metric), strict=True)
                if wanted == definition
            )
            for column, k in enumerate(cutoffs(metric, PLAN.ks)):
                value, n = alone[metric, k, text]
                assert value == pytest.approx(values[column].mean()) and n == values[column].count()


def _select_metric(metric: str):
    return [world for world in multiverse_columns(PLAN) if world.metric == metric]


def _definitions(metric: str):
    times = len(cutoffs(metric, PLAN.ks))
    return itertools.chain.from_iterable(
        [one] * times for one in metric_definitions(metric, PLAN.definition)
    )


def test_the_report_of_two_protocols_by_hand() -> None:
    """a beats b in 3 of 4 worlds of one protocol and in 1 of 4 of the other: one half of all."""
    rows = [
        ("d", suite, "test", "ndcg", model, other, 4, won)
        for suite, model, other, won in (
            ("one", "a", "b", 3), ("one", "b", "a", 1), ("two", "a", "b", 1), ("two", "b", "a", 3),
        )
    ]  # fmt: skip
    pairs = pd.DataFrame(
        rows, columns=["dataset", "suite", "part", "metric", "model", "other", "worlds", "won"]
    )
    (facts,) = reports.make_multiverse(pairs)
    assert facts.shares == ((None, 0.5), (0.5, None)) and (facts.worlds, facts.protocols) == (8, 2)
    assert facts.lowest[0][1] == 0.25 and facts.highest[0][1] == 0.75
    (pair,) = reports.make_pairs(pairs)
    assert pair.by_protocol == (("one", 0.75), ("two", 0.25)) and pair.share == 0.5
    page = reports.render_multiverse("d", [facts], [pair])
    assert "a beats b in 50.0 % of the worlds; by metric and protocol 25 to 75 %" in page
    assert "50 %" in reports.multiverse_text(facts)


def test_the_question_of_two_protocols_by_hand(spark, tmp_path: Path) -> None:
    """The same halves, asked in SQL over tables: a wins 3 of 4 worlds, then 1 of 4 with one draw."""
    store = ArrowStore(str(tmp_path / "warehouse"))
    values = {("one", "a"): (2, 2, 2, 0), ("one", "b"): (1, 1, 1, 1),
              ("two", "a"): (0.5, 0, 0, 0), ("two", "b"): (0.5, 1, 1, 1)}  # fmt: skip
    worlds = [
        (f"{suite}-{model}", "test", "ndcg", 10, f"v1;world={i}", float(value), 9)
        for (suite, model), of_run in values.items()
        for i, value in enumerate(of_run)
    ]
    common = {"run_key": "key", "attempt": 1, "model_kind": "lists", "status": "succeeded",
              "source": "own", "dataset": "d", "split": "RO_RS", "logical_date": DATE,
              "finished_at": datetime(2026, 1, 2, tzinfo=UTC)}  # fmt: skip
    runs = [
        {**common, "run_id": f"{suite}-{model}", "suite": suite, "model": model, "split_id": suite}
        for suite, model in values
    ]
    store.append([dict(zip(MULTIVERSE.names, world, strict=True)) for world in worlds], MULTIVERSE)
    store.append(runs, RUNS)
    question = query_files()["how_much_is_the_protocols_doing"]
    Store(spark, store.root).install_views(find_names(question))
    (row,) = spark.sql(question).collect()
    assert (row.model, row.other, row.protocols, row.worlds) == ("a", "b", 2, 8)
    assert (float(row.share_won), float(row.least), float(row.most)) == (3.5 / 8, 0.5 / 4, 0.75)
