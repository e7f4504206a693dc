"""Estimates under exposure bias: by hand, against the kernels, however users are spread, in a night."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.bench.rank import rank
from recbench_spark.analyses.exposure import debiased, exposure
from recbench_spark.analyses.exposure import propensities as fitting
from recbench_spark.analyses.exposure.debiased import missing_estimates, propose_strata
from recbench_spark.analyses.exposure.estimation_plan import EstimationPlan
from recbench_spark.analyses.exposure.exposure import Chances, Weights
from recbench_spark.analyses.exposure.kernels import exposure as estimators
from recbench_spark.analyses.exposure.kernels.exposure import (
    EstimatorSettings,
    Rewards,
    contributions,
    reason,
)
from recbench_spark.analyses.exposure.night_exposure import (
    ExposureContext,
    _choose_strata,
    read_propensities,
    weight_checks,
)
from recbench_spark.analyses.exposure.rewards import count_wrong, refuse_wrong
from recbench_spark.analyses.sampling.kernels import strata
from recbench_spark.config import Benchmark, Bootstrap, Dataset, Exposure, Propensities, Strata, parse
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.core import resampling
from recbench_spark.core.definitions import Definition
from recbench_spark.engine.measures import reduce_pieces
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.engine.versions import make_frame
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.evaluation.shuffle import PassInputs
from recbench_spark.metrics import accuracy
from recbench_spark.models.adapters.baselines import train_popular
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.ranking.batches import to_rankings
from recbench_spark.ranking.inputs import ScoredModel
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.ranking.part_users import select_part_users
from recbench_spark.ranking.sources import DotSource
from recbench_spark.schemas import ITEMS, PROPENSITIES, SPLITS, TABLES
from recbench_spark.splits.audit import deal_users
from recbench_spark.splits.item_counts import count_tables, number_items
from recbench_spark.splits.user_blocks import BlockPlan, build_user_blocks
from recbench_spark.storage.frame_blocks import FrameRows, reduce_frame, share_rows
from recbench_spark.storage.scratch import share_results, share_table
from recbench_spark.storage.spark_types import spark_columns
from tests.labelled import read_log
from tests.nights import SMALL, Ran, models, read_pandas, read_split, run, small

ALL = estimators.ESTIMATORS[1:]
CHANCES = [1.0, 0.5, 0.25, 0.125]
FOUR = np.ones(4, dtype=int)
CUTS = tuple(strata.cut("equal_count", n, np.array(CHANCES), FOUR, FOUR) for n in (2, 3))
BOUNDS = {"test": Weights(8, 8.0, 5.0, np.array([1.0, 8.0]), np.array([3, 1]))}
SETTINGS = EstimatorSettings(clip=3.0, switch=3.0, shrink=2.0)

Row = dict[str, Any]


def plan(*names: str, ks: tuple[int, ...] = (1, 3), replicates: int = 20, **more: Any) -> EstimationPlan:
    axes = more.pop("axes", {})
    metric_plan = accuracy.MetricPlan(names, ks, Definition(**axes), Bootstrap(replicates=replicates))
    values: dict[str, Any] = {
        "estimators": ALL, "settings": SETTINGS, "exposed": "given", "strata": CUTS, "weights": BOUNDS,
        "n_items": 60, "rewards": None, "compared": None,
    }  # fmt: skip
    return EstimationPlan(metric_plan, **{**values, **more})


def ranking(user: str, above: Sequence[int], propensity: Sequence[float], **more: Any) -> Row:
    """One user whose truth items stand behind so many candidates; all of relevance 1."""
    n = len(above)
    values: Row = {
        "user_id": user, "part": "test", "user_key": random.Random(user).getrandbits(63),
        "relevance": [1.0] * n, "above": above, "tied": [0] * n, "before": [0] * n, "length": 60,
        "slices": [], "propensity": propensity,
    }  # fmt: skip
    return {**values, **more}


SCHEMA = pa.schema(
    [
        ("user_id", pa.string()), ("part", pa.string()), ("user_key", pa.int64()),
        ("relevance", pa.list_(pa.float64())),
        *((n, pa.list_(pa.int64())) for n in ("above", "tied", "before")),
        ("length", pa.int64()), ("slices", pa.map_(pa.string(), pa.list_(pa.string()))),
        *((n, pa.list_(pa.float64())) for n in ("propensity", "truth_rewards", "listed_rewards")),
    ]
)  # fmt: skip


def estimates(
    rows: list[Row], estimation_plan: EstimationPlan, tasks: int = 1, batch: int = 1000
) -> pd.DataFrame:
    """All estimates, from rows that are spread over tasks and batches."""
    pieces = [
        [record_batch(rows[task::tasks][start : start + batch]) for start in range(0, len(rows), batch)]
        for task in range(tasks)
    ]
    measures = {"estimates": debiased.estimation_measure(estimation_plan)}
    table = reduce_pieces(measures, pieces)["estimates"].to_pandas()
    return table.sort_values(["estimator", "definition", "metric", "k"], ignore_index=True)


def record_batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def value(result: pd.DataFrame, estimator: str, metric: str, k: int | None) -> pd.Series:
    at = result.k.isna() if k is None else result.k == k
    (row,) = result[(result.estimator == estimator) & (result.metric == metric) & at].itertuples()
    return row


# ------------------------------------------------------------------------------------- by hand


def test_by_hand() -> None:
    """u: ranks 1 and 4 of chances 1/2 and 1/8 (w = 2, 8); v: rank 2 of chance 1/4 (w = 4)."""
    rows = [ranking("u", [0, 3], [1 / 2, 1 / 8]), ranking("v", [1], [1 / 4])]
    estimation_plan = plan("recall", "precision", "ndcg", strata=CUTS[:1])
    values = estimates(rows, estimation_plan)
    assert value(values, "ips", "recall", 1).value == (2 / 10 + 0 / 4) / 2
    assert value(values, "ips", "recall", 3).value == (2 / 10 + 4 / 4) / 2
    assert value(values, "ips", "precision", 3).value == pytest.approx((2 / 3 + 4 / 3) / 2)
    assert value(values, "clipped_ips", "recall", 3).value == pytest.approx((2 / 5 + 3 / 3) / 2)
    assert value(values, "clipped_ips", "precision", 3).value == pytest.approx((2 / 3 + 3 / 3) / 2)
    # Two items of mean weight 1: 2 / 5 and 8 / 5.
    assert value(values, "snips_user", "precision", 3).value == pytest.approx((0.4 / 3 + 1 / 3) / 2)
    assert value(values, "snips_global", "recall", 3).value == (2 + 4) / (10 + 4)
    assert value(values, "snips_global", "precision", 3).value == pytest.approx(2 / 14 * 3 / 2)
    # Strata: 1/8 and 1/4 below, 1/2 above. Q1: u's rank 4, v's rank 2; Q2: u's rank 1.
    assert value(values, "stratified", "recall", 3).value == pytest.approx(2 / 3 * 1 / 2 + 1 / 3 * 1)
    discount = 1 / math.log2(3)
    assert value(values, "ips", "dcg", 3).value == pytest.approx((2 + 4 * discount) / 2)
    assert value(values, "holdout", "dcg", 3).value == pytest.approx((1 + discount) / 2)
    row = value(values, "ips", "recall", 3)
    spread = [(x - 0.6) ** 2 for x in (0.2, 1.0)]
    assert row.n == 2 and row.stderr == pytest.approx(math.sqrt(sum(spread) / 1 / 2))
    assert row.ci_low <= row.value <= row.ci_high
    assert row.definition == "v1;propensities=given"
    assert value(values, "clipped_ips", "recall", 3).definition == "v1;propensities=given;clip=3"
    strata_of = "v1;propensities=given;strata=2 equal_count"
    assert value(values, "stratified", "recall", 3).definition == strata_of


def test_reward_models_by_hand() -> None:
    """Rank 2 of chance 1/4 and expected .5, after an item expected .25: what it adds is w (1 - .5)."""
    rows = [ranking("u", [1], [1 / 4], truth_rewards=[0.5], listed_rewards=[0.25, 0.5])]
    values = estimates(rows, plan("precision", ks=(2,), rewards="model"))
    assert value(values, "dm", "precision", 2).value == pytest.approx(0.75 / 2)
    assert value(values, "dr", "precision", 2).value == pytest.approx((0.75 + 4 * 0.5) / 2)
    assert value(values, "switch_dr", "precision", 2).value == pytest.approx(0.75 / 2)
    shrunk = 2 * 4 / (4**2 + 2)
    assert value(values, "dros", "precision", 2).value == pytest.approx((0.75 + shrunk * 0.5) / 2)
    assert value(values, "dr", "precision", 2).definition == "v1;propensities=given;rewards=model"


# ------------------------------------------------------------------------------ against kernels


def random_rows(seed: int, users: int = 70, one: bool = False) -> list[Row]:
    draw = random.Random(seed)
    rows = []
    for n in range(users):
        size = draw.randint(1, 8)
        above = [-1 if draw.random() < 0.1 else place for place in sorted(draw.sample(range(60), size))]
        rows.append(
            ranking(
                f"u{n}",
                above,
                [1.0 if one else draw.choice(CHANCES) for _ in above],
                relevance=[float(draw.randint(1, 5)) for _ in above],
                truth_rewards=[draw.random() for _ in above],
                listed_rewards=[draw.random() for _ in range(5)],
            )
        )
    return rows


NAMES = ("hit", "precision", "recall", "ndcg", "map", "auc")
AXES = [{"threshold": 3.0, "hit": "count"}, {"gain": "linear", "ties": "expected", "empty_users": "zero"}]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_all_estimators_equal_the_kernels_in_one_batch(axes: Row) -> None:
    rows = random_rows(1)
    estimation_plan = plan(*NAMES, ks=(2, 5), axes=axes, rewards="model")
    estimated, batch = estimates(rows, estimation_plan, tasks=3, batch=7), record_batch(rows)
    rankings, definition = to_rankings(batch), estimation_plan.measured.definition
    chance, keys = np.concatenate([row["propensity"] for row in rows]), batch.column("user_key").to_numpy()
    listed = np.concatenate([row["listed_rewards"] for row in rows])
    model = Rewards(
        np.arange(len(rows) + 1) * 5, listed, np.concatenate([r["truth_rewards"] for r in rows])
    )
    kernel = contributions(
        rankings,
        chance,
        (*NAMES, "dcg"),
        (2, 5),
        definition,
        estimators=("holdout", *ALL),
        settings=SETTINGS,
        rewards=model,
    )
    seen = 0
    for (estimator, metric), parts in kernel.items():
        if estimator == "holdout" and metric != "dcg":
            continue
        sums = estimators.replicate_sums(parts, keys, 20, 42)
        low, high = resampling.percentile_interval(
            estimators.replicate_estimates(sums, pooled=parts.pooled)
        )
        for c, k in enumerate(estimators.columns(metric, (2, 5))):
            row = value(estimated, estimator, metric, k)
            np.testing.assert_allclose(row.value, parts.estimate()[c], rtol=1e-12)
            np.testing.assert_allclose((row.ci_low, row.ci_high), (low[c], high[c]), rtol=1e-6)
            assert row.n == (~np.isnan(parts.numerator[:, c])).sum()
            if (parts.denominator[:, c] == 1).all():
                values = parts.numerator[:, c]
                np.testing.assert_allclose(row.stderr, pd.Series(values).sem(), rtol=1e-9)
            seen += 1
    per_metric = estimated[estimated.estimator != "stratified"].groupby(["estimator", "metric"])
    assert len(per_metric) == len(kernel) - len(NAMES) and seen == per_metric.size().sum()


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_strata_are_combined_as_by_the_kernel(axes: Row) -> None:
    rows = random_rows(2)
    estimation_plan = plan(*NAMES, ks=(2, 5), axes=axes, estimators=("stratified",), compared=("ndcg", 5))
    estimated, rankings = (
        estimates(rows, estimation_plan, tasks=2, batch=11),
        to_rankings(record_batch(rows)),
    )
    chance = np.concatenate([row["propensity"] for row in rows])
    for cut in CUTS:
        values, sizes = estimators.measure_by_stratum(
            rankings,
            cut.assign(chance),
            len(cut.items),
            NAMES,
            (2, 5),
            definition=estimation_plan.measured.definition,
        )
        for metric in NAMES:
            value_usc = np.where(sizes[:, :, None] > 0, values[metric], np.nan)
            wanted, _ = estimators.combine_strata(np.nanmean(value_usc, axis=0), sizes.sum(axis=0))
            definition = estimation_plan.columns("stratified", metric, cut)[0].definition
            mine = estimated[(estimated.definition == definition) & (estimated.metric == metric)]
            np.testing.assert_allclose(mine.value, wanted, rtol=1e-12)
            assert (mine.ci_low <= mine.ci_high).all() and (mine.stderr > 0).all()
            assert (mine.n == (~np.isnan(value_usc)).any(axis=1).sum(axis=0)).all()
    proposed = propose_strata(list(estimated.itertuples()), estimation_plan, "test")
    steps = [np.array(row.replicates) for row in estimated.itertuples() if row.replicates is not None]
    low, high = np.quantile(steps[1] - steps[0], (0.025, 0.975))
    assert proposed.strata == (2, 3) and proposed.steps == ((pytest.approx(low), pytest.approx(high)),)
    assert proposed.proposed == (2 if low <= 0 <= high else None)


def test_equal_chances_are_the_holdout() -> None:
    rows = random_rows(4, one=True)
    estimation_plan = plan(*NAMES, ks=(2, 5), axes=AXES[0], estimators=estimators.WEIGHTED)
    values = estimates(rows, estimation_plan, tasks=2)
    plain = accuracy.measure(
        to_rankings(record_batch(rows)), NAMES, (2, 5), estimation_plan.measured.definition
    )
    for name in ("hit", "precision", "recall", "ndcg"):
        means = np.nanmean(plain[name], axis=0)
        for c, k in enumerate(estimation_plan.measured.columns(name)):
            for estimator in estimators.WEIGHTED[: 3 if name in estimators.QUOTIENTS else 4]:
                assert value(values, estimator, name, k).value == pytest.approx(means[c], rel=1e-12)


@pytest.mark.parametrize("exponent", [-12, 12])
def test_weights_of_any_size_stay_exact(exponent: int) -> None:
    """Powers of counts range over many orders of magnitude; scaling them changes no quotient."""
    rows = random_rows(5)
    for row in rows:
        row["propensity"] = [p**3 * 10.0**exponent for p in row["propensity"]]
    largest = max(1 / p for row in rows for p in row["propensity"])
    weights = {"test": Weights(8, largest, 5.0, np.array([largest]), np.array([1]))}
    estimation_plan = plan(
        "recall", "ndcg", "precision", axes=AXES[1], weights=weights, strata=(), estimators=ALL[:4]
    )
    values = estimates(rows, estimation_plan, tasks=3)
    chance = np.concatenate([row["propensity"] for row in rows])
    kernel = contributions(
        to_rankings(record_batch(rows)), chance, ("recall", "ndcg", "precision"), (1, 3),
        estimation_plan.measured.definition, estimators=ALL[:4], settings=SETTINGS,
    )  # fmt: skip
    for (estimator, metric), parts in kernel.items():
        mine = values[(values.estimator == estimator) & (values.metric == metric)]
        np.testing.assert_allclose(mine.value, parts.estimate(), rtol=1e-11)
        assert (mine.ci_low < mine.ci_high).all()


DEFINITIONS = st.builds(
    Definition,
    hit=st.just("count"),
    threshold=st.sampled_from([None, 3.0]),
    gain=st.sampled_from(["binary", "linear", "exponential", "exponential_above"]),
    discount=st.sampled_from(["log2", "ln", "log2_max2"]),
    ideal=st.sampled_from(["min_k_relevant", "k", "relevant"]),
    recall_by=st.sampled_from(["relevant", "min_k_relevant"]),
    ties=st.sampled_from(["id", "expected"]),
)


@settings(max_examples=40)
@given(DEFINITIONS, st.integers(0, 10**6))
def test_no_user_exceeds_the_bounds_behind_the_scaling(definition: Definition, seed: int) -> None:
    """A larger one would be too large for an exact sum, and fail a night."""
    rows = random_rows(seed, users=6)
    listed, held = (np.concatenate([row[f"{of}_rewards"] for row in rows]) for of in ("listed", "truth"))
    model = Rewards(np.arange(len(rows) + 1) * 5, listed, held)
    chance = np.concatenate([row["propensity"] for row in rows])
    estimation_plan = plan(*NAMES, ks=(2, 5), axes=definition.model_dump(), rewards="model")
    made = debiased._contributions(estimation_plan, to_rankings(record_batch(rows)), chance, model)
    assert {name for name, _ in made} >= {"ips", "snips_global", "dr", "holdout"}
    for (estimator, metric), parts in made.items():
        bounds = estimation_plan._bounds(estimator, metric, BOUNDS["test"])
        for values, bound in zip((parts.numerator, parts.denominator), bounds, strict=True):
            assert np.nanmax(np.abs(values), initial=0.0) <= bound * (1 + 1e-9), (estimator, metric)


def test_what_has_no_value_says_why() -> None:
    estimation_plan = plan("map", "ndcg", "hit", settings=EstimatorSettings(chances=False))
    why = {(column.estimator, column.metric): text for column, text in missing_estimates(estimation_plan)}
    names = [(e, m) for e in ALL for m in ("map", "ndcg", "hit", "dcg") if (e, m) != ("stratified", "dcg")]
    definition = estimation_plan.measured.definition
    assert why == {
        pair: text for pair in names if (text := reason(*pair, definition, estimation_plan.settings))
    }
    assert why["ips", "dcg"] == "the propensities are known up to a factor only"
    assert "reward" in why["dm", "dcg"] and "sum" in why["ips", "map"]


def test_items_shown_alike_have_no_strata_and_no_stratified_value() -> None:
    alike = Chances(None, 0.5, 0.5, 0)  # type: ignore[arg-type]
    assert _choose_strata(alike, Exposure()) == ()
    estimation_plan = plan("recall", "map", estimators=("ips", "stratified"), strata=())
    why = {(column.estimator, column.metric): text for column, text in missing_estimates(estimation_plan)}
    assert why["stratified", "recall"] == why["stratified", "map"] == "all items are shown alike"
    values = estimates(random_rows(3), estimation_plan)
    assert set(values.estimator) == {"ips"}


# ------------------------------------------------------------------------------------ settings


def test_the_settings_know_the_kernels_estimators() -> None:
    (names, _) = get_args(Exposure.model_fields["estimators"].annotation)
    assert get_args(names) == ALL


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"propensities": {"method": "naive_bayes"}}, "naive_bayes"),
        ({"propensities": {"method": "true", "floor": 0.1}}, "floor"),
        ({"estimators": []}, "estimator"),
        ({"strata": {"n": [2, 2]}}, "strata"),
        ({"strata": {"n": [11]}}, "exposure.strata.n"),
        ({"estimators": ["holdout"]}, "exposure.estimators"),
    ],
)
def test_settings_that_contradict_are_refused(section: Row, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(Benchmark, {**SMALL, "evaluation": {"exposure": section}}, "file")


def test_a_slice_may_not_take_the_key_of_the_strata() -> None:
    taken = {"exposure": {}, "slices": [{"key": "stratum", "of": "popularity"}]}
    with pytest.raises(ConfigError, match="another key"):
        parse(Benchmark, {**SMALL, "evaluation": taken}, "file")


def test_days_are_filled_into_the_paths() -> None:
    section = {
        "propensities": {"method": "given", "path": "/p/{logical_date}"},
        "rewards": "/r/{logical_date:%Y%m%d}",
    }
    benchmark = parse(Benchmark, {**SMALL, "evaluation": {"exposure": section}}, "file")
    section_of_day = fill_placeholders(benchmark, date(2026, 1, 5)).evaluation.exposure
    assert section_of_day is not None
    assert (section_of_day.propensities.path, section_of_day.rewards) == ("/p/2026-01-05", "/r/20260105")


def test_only_the_generated_world_knows_its_chances() -> None:
    log = {"name": "log", "reader": "csv", "path": "log.csv"}
    section = {"exposure": {"propensities": {"method": "true"}}}
    benchmark = parse(
        Benchmark, {**SMALL, "dataset": log, "models": models("popular"), "evaluation": section}, "f"
    )
    with pytest.raises(ConfigError, match="generated world"):
        check_benchmark(benchmark)


# ------------------------------------------------------------------------------------ in a night


EVERY: Row = {
    "propensities": {"method": "true"},
    "estimators": list(ALL),
    "clip": 3,
    "strata": {"kind": "equal_count", "n": [3, 2]},
    "without_most_popular": 0.1,
}


@dataclass(frozen=True)
class Corrected:
    """A night with estimates under exposure bias, and what its models share."""

    ran: Ran
    opened_store: ExposureContext

    def rows(self, table: str) -> pd.DataFrame:
        return read_rows(self.ran, table)


@pytest.fixture(scope="module")
def night(small_night: Ran, tmp_path_factory: pytest.TempPathFactory) -> Corrected:
    """The same split as the small night's, corrected in every way; rewards of all items but one."""
    rewards = tmp_path_factory.mktemp("rewards") / "model.csv"
    ids = sorted(row.item_id for row in read_split(small_night.night, ITEMS))
    rewards.write_text("item_id,reward\n" + "".join(f"{item},0.25\n" for item in ids[1:]))
    section = {**SMALL["evaluation"], "metrics": ["ndcg", "precision", "map"], "user_metrics": False}
    section["exposure"] = {**EVERY, "rewards": str(rewards)}
    ran = run(small_night.store, small(name="exposed", models=models("popular"), evaluation=section))
    opened = ran.night.exposure
    assert not ran.outcome.failed and opened is not None
    return Corrected(ran, opened)


def read_rows(night: Ran, table: str) -> pd.DataFrame:
    return read_pandas(night.store, TABLES[table], run_id=night.outcome.run_ids["popular"])


@pytest.mark.full
def test_a_night_gives_all_estimates_side_by_side(night: Corrected) -> None:
    rankings = night.rows("rankings")
    truth = rankings[rankings.part == "test"].sort_values("user_id")
    rows = read_split(night.ran.night, PROPENSITIES)
    chance = {row.item_id: row.propensity for row in rows if row.method == "true"}
    for row in rankings.itertuples():
        assert list(row.propensity) == [chance[item] for item in row.item_ids]
    rows = night.rows("metrics")
    rows = rows[rows.slice_key.isna()]
    assert set(rows[rows.part == "open_loop"].estimator) == {"holdout"}
    rows = rows[rows.part == "test"]
    opened = night.opened_store
    assert opened.weights["test"].longest == truth.item_ids.map(len).max()
    estimation_plan = plan(
        "ndcg", "precision", "map", ks=(5, 10), replicates=50, axes={"threshold": 4.0}, rewards="model",
        settings=EstimatorSettings(clip=3.0), exposed="true", strata=opened.strata, weights=opened.weights,
    )  # fmt: skip
    wanted = estimates(list(add_rewards(truth)), estimation_plan, tasks=2)
    columns = ["metric", "k", "estimator", "definition", "value", "stderr", "ci_low", "ci_high", "n"]
    mine = rows[rows.value.notna() & ((rows.estimator != "holdout") | (rows.metric == "dcg"))]
    mine = mine.sort_values(["estimator", "definition", "metric", "k"], ignore_index=True)[columns]
    # Of a whole ranking a reward model says nothing where only the first items are listed.
    known = wanted.value.notna()
    cut = set(wanted[~known].estimator)
    assert cut == set(estimators.MODELLED) and wanted[~known].k.isna().all()
    pd.testing.assert_frame_equal(
        mine, wanted[known].reset_index(drop=True)[columns], check_exact=True, check_dtype=False
    )
    empty = rows[rows.value.isna()]
    assert len(empty) == len(missing_estimates(estimation_plan)) + 4 and (empty.n == 0).all()


def add_rewards(rankings: pd.DataFrame) -> Iterator[Row]:
    """Every item is expected to be liked with chance 1/4, but the first by id, which nobody knows."""
    first = min(item for items in (*rankings.item_ids, *rankings.top_items) for item in items)
    for row in rankings.to_dict("records"):
        listed, held = ([0.0 if x == first else 0.25 for x in row[n]] for n in ("top_items", "item_ids"))
        kept = {name: row[name] for name in SCHEMA.names if name in row and name != "slices"}
        yield {**kept, "slices": [], "truth_rewards": held, "listed_rewards": listed}


@pytest.mark.full
def test_strata_and_all_but_the_most_popular_are_slices(night: Corrected) -> None:
    items = {row.item_id: row for row in read_split(night.ran.night, ITEMS)}
    opened = night.opened_store
    counts = sorted((row.n_train for row in items.values()), reverse=True)
    popular = counts[math.ceil(0.1 * len(items)) - 1]
    labels = opened.strata[0].labels
    assert len(labels) == 3 and opened.shown.popular_from == popular
    for row in night.rows("rankings").itertuples():
        slices = dict(row.slices)
        strata_p = opened.strata[0].assign(np.array(row.propensity))
        assert list(slices["stratum"]) == [labels[s] for s in strata_p]
        kept = ["only" if items[item].n_train >= popular else "without" for item in row.item_ids]
        assert list(slices["most_popular"]) == kept and {"popularity", "genre"} <= set(slices)
    rows = night.rows("metrics")
    sliced = rows[rows.slice_key.isin(("stratum", "most_popular"))]
    assert set(sliced.slice_value) == {"Q1", "Q2", "Q3", "only", "without"}
    assert set(sliced.part) == {"test", "open_loop"}


@pytest.mark.full
def test_findings_of_a_night(night: Corrected) -> None:
    checks = night.rows("checks").set_index("check")
    rankings = night.rows("rankings")
    truth = rankings[rankings.part == "test"]
    weight = np.concatenate([1 / np.array(row.propensity) for row in truth.itertuples()])
    weight = weight[np.concatenate([np.array(row.relevance) >= 4 for row in truth.itertuples()])]
    effective = weight.sum() ** 2 / (weight**2).sum()
    assert checks.observed["test: weights: effective rows"] == pytest.approx(effective, rel=2e-3)
    assert checks.observed["test: weights: largest"] == pytest.approx(weight.max(), rel=1e-3)
    assert checks.passed["test: weights: effective rows"] == (effective >= max(100, len(weight) / 10))
    assert checks.detail["no dm of ndcg"].startswith("divided by what is relevant")
    assert checks.observed["exposure: items without a reward"] > 0
    assert not checks.passed["exposure: items without a reward"]
    assert "ndcg@10 by number of strata 2: 0." in checks.detail["test: strata proposed"]
    assert checks.observed["exposure: items without a propensity"] == 0


@pytest.mark.full
def test_propensities_are_fitted_to_the_training_part_once(small_night: Ran) -> None:
    store, split_id = small_night.store, small_night.night.split_id
    wanted = parse(Exposure, {"propensities": {"method": "relative_frequency"}}, "test")
    for _ in range(2):
        propensities = read_propensities(store, split_id, wanted).to_pylist()
    items = read_split(small_night.night, ITEMS)
    rows = read_split(small_night.night, SPLITS)
    users = len({row.user_id for row in rows if row.part == "train"})
    assert {row["item_id"]: row["propensity"] for row in propensities} == {
        row.item_id: pytest.approx(row.n_train / users) for row in items
    }
    assert len(propensities) == len(items)


def test_few_effective_rows_are_a_warning() -> None:
    """One weight of 1,000 beside 999 of 1: (1999)^2 / (10^6 + 999) = 3.99 of 1,000 rows."""
    weights = {"test": Weights(1, 1000.0, 1.0, np.array([1.0, 1000.0]), np.array([999, 1]))}
    estimation_plan = plan("recall", weights=weights, settings=EstimatorSettings(clip=10.0))
    opened = type("Opened", (), {"weights": weights})()
    checks = {check.check: check for check in weight_checks("test", estimation_plan, opened)}
    few = checks["test: weights: effective rows"]
    assert few.observed == 4.0 and few.threshold == 100 and not few.passed
    top = checks["test: weights: share of the top 1 %"]
    assert top.observed == pytest.approx((1000 + 9) / 1999) and top.passed
    assert checks["test: clipped weights: effective rows"].passed


def test_rewards_that_cannot_be_used() -> None:
    rewards = pa.table({"item_id": ["a", "a", "b"], "reward": [0.5, 1.5, None]})
    with pytest.raises(DataError, match=r"2 rows are not a probability .* 1 occur twice"):
        refuse_wrong([count_wrong(rewards)])


# ------------------------------------------------------------------------------------ real data


@pytest.mark.data
@pytest.mark.slow
def test_the_published_study_on_coat(spark: Any, shared_data: Path, tmp_path: Path) -> None:
    """Most popular on the open loop, training items kept, and the strata of the study's code.

    By the stages themselves: a split keeps a (user, item) pair in one part only, and 366 pairs of the
    open loop are in the training part as well.
    """
    log = read_log(spark, Dataset(name="coat", reader="coat", path=str(shared_data / "coat"))).cache()
    made, bounds = number_items(count_tables([log.select("item_id", "part").toArrow()]), True)
    train, items = log.where("part = 'train'"), make_frame(spark, made).cache()
    engine, rows = SparkEngine(spark), FrameRows(train)
    counts = fitting.count_ids(engine, rows, "item_id", (), FrameRows(items))
    users = sum(fitting.count_ids(engine, rows, "user_id", ()).each(len))
    shown = fitting.make_histogram(counts, users)
    fitted = fitting.fit_propensities(shown, Propensities(method="power_above_xmin"))
    tables = counts.each(partial(fitting.look_up_propensities, observed=shown, fitted=fitted))
    chances = exposure.item_chances(items.toArrow(), pa.concat_tables(tables))
    (cut,) = exposure.cut_strata(chances, Strata(kind="equal_width"))
    assert cut.items.tolist() == [295, 5]

    metric_plan = plan(
        "ndcg", ks=(5, 10, 20, 30, 100), replicates=0,
        axes={"threshold": 4.0, "candidates": "all", "ties": "expected"},
    ).measured  # fmt: skip
    facts = exposure.ExposedItems(share_table(str(tmp_path), chances.rows), len(made), cut, None)
    known = KnownItems(share_rows(str(tmp_path), items), len(made))
    block_plan = BlockPlan(known.find, bounds, ("open_loop",))
    shuffled = FrameRows(log).deal(block_plan.columns, partial(deal_users, tasks=2), 2)

    def select(rows: pa.Table) -> pa.Table:
        users = select_part_users(build_user_blocks(rows, block_plan), ["open_loop"], 4.0, keep_empty=False)
        return exposure.add_exposure(users, facts)

    schema = exposure.EXPOSED_USERS
    users = shuffled.then(select, tuple(schema.names)).rows(spark_columns(schema))
    vectors = share_results(str(tmp_path), train_popular(FrameRows(items)).items)
    model = ScoredModel(DotSource(vectors, len(made), 0, catalogue=known))
    rankings = rank(spark, PassInputs(FrameRows(users), [model], 290), metric_plan.request())
    values = reduce_frame({"ranks": accuracy.rank_measure(metric_plan)}, rankings)["ranks"].to_pandas()
    whole = values[values.slice_key.isna()]
    assert {None if np.isnan(row.k) else row.k: round(row.value, 5) for row in whole.itertuples()} == {
        None: 0.24194, 100: 0.12482, 30: 0.06709, 20: 0.05588, 10: 0.03522, 5: 0.02561,
    }  # fmt: skip
    assert set(whole.n) == {237} and set(values.slice_value.dropna()) == {"Q1", "Q2"}
