"""Drawn candidates and the corrected estimates, on nights of a small world with one truth item per user."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from recbench_spark.analyses.sampling.kernels import sampled
from recbench_spark.ranking.batches import to_rankings
from recbench_spark.schemas import CANDIDATES, CHECKS, ITEMS, METRICS, USER_BLOCKS
from tests.nights import Ran, models, read_pandas, read_rows, read_split, run, small
from tests.oracles import count_sampled_ranks, likely_means

pytestmark = pytest.mark.full

BY_POPULARITY = [{"key": "popularity", "of": "popularity"}]
TABLES = ("rank_estimate", "monotone_least_squares", "bias_variance")
ALL = ("rank_estimate", "least_squares", "monotone_least_squares", "bias_variance", "maximum_likelihood")
NAMES = ("hit", "mrr", "ndcg")
FEW = 12
# Few users have seen most of the items.
WIDE = {
    "name": "wide_world",
    "reader": "world",
    "world": {"users": 80, "items": 150, "interactions": 1500, "open_loop": 0, "seed": 3},
}


ODD = {
    "ap": "mean_precision", "discount": "log2_max2", "ideal": "k", "mrr_cut": "uncut", "users": "both",
}  # fmt: skip
"""A definition that is far from the defaults in each metric."""


@pytest.fixture(scope="module")
def nights(small_night: Ran) -> dict[str, Ran]:
    """The most popular items under all candidates, under all of the pool drawn, and under a few."""
    wanted: dict[str, dict[str, Any]] = {
        "exact": {},
        "whole": {"definition": {"candidates": "uniform"}, "draw": {"n": 150, "estimators": ALL}},
        "odd": {"definition": ODD, "metrics": ("map", "mrr", "ndcg")},
        "odd_whole": {
            "definition": {**ODD, "candidates": "uniform"},
            "metrics": ("map", "mrr", "ndcg"),
            "draw": {"n": 150, "estimators": ALL},
        },
        "tied": {
            "definition": {"candidates": "uniform", "ties": "expected"},
            "draw": {"n": FEW, "estimators": TABLES},
        },
        # Several truth items per user, of which slices select some.
        "few": {"definition": {"candidates": "uniform"}, "draw": {"n": FEW}, "slices": BY_POPULARITY},
    }
    common: dict[str, Any] = {"metrics": NAMES, "k": (5, 10), "bootstrap": {"replicates": 20}, "slices": []}
    return {
        name: run(
            small_night.store,
            small(
                name=f"sampled_{name}",
                dataset=WIDE,
                split={"protocol": "RO_RS" if name == "few" else "RO_LS", "seed": 5},
                models=models("popular"),
                evaluation={**common, **changes},
            ),
        )
        for name, changes in wanted.items()
    }


def values(ran: Ran) -> pd.DataFrame:
    rows = read_pandas(ran.store, METRICS, run_id=ran.outcome.run_ids["popular"])
    rows = rows[rows.slice_key.isna()].copy()
    rows["column"] = [f"{row.metric}@{row.k:g}" for row in rows.itertuples()]
    return rows.set_index(["estimator", "column"])


def test_a_draw_of_everything_is_exact(nights: dict[str, Ran]) -> None:
    """Every sampled rank is then the rank, and all corrections agree with the exact values."""
    exact = values(nights["exact"]).value["holdout"]
    estimates = values(nights["whole"]).value
    assert set(estimates.index.get_level_values(0)) == {"holdout", *ALL[:-1]}, "users differ in their draws"
    for estimator in ("holdout", *ALL[:-1]):
        assert estimates[estimator].to_dict() == pytest.approx(exact.to_dict(), abs=1e-9), estimator


def test_a_draw_of_everything_is_exact_under_a_far_definition_too(nights: dict[str, Ran]) -> None:
    exact, estimates = values(nights["odd"]).value["holdout"], values(nights["odd_whole"]).value
    for estimator in ("holdout", *ALL[:-1]):
        assert estimates[estimator].to_dict() == pytest.approx(exact.to_dict(), abs=1e-9), estimator
    assert exact["mrr@5"] == exact["mrr@nan"] and exact["map@5"] != exact["mrr@5"]


def test_what_does_not_follow_from_one_rank_is_not_corrected_and_checks_say_so(
    nights: dict[str, Ran],
) -> None:
    ran = nights["tied"]
    assert set(values(ran).index.get_level_values(0)) == {"holdout"}
    checks = read_pandas(ran.store, CHECKS, run_id=ran.outcome.run_ids["popular"]).set_index("check")
    for metric in NAMES:
        assert "no single rank" in checks.detail[f"{metric}: no corrected estimates"]
    few = read_pandas(ran.store, CHECKS, run_id=nights["few"].outcome.run_ids["popular"])
    assert not few.check.str.contains("no corrected").any()


def test_few_draws_are_corrected_by_the_tables(nights: dict[str, Ran]) -> None:
    rows = values(nights["few"])
    rankings = nights["few"].store.read_run("rankings", nights["few"].outcome.run_ids["popular"])
    (batch,) = rankings.combine_chunks().to_batches()
    definition = nights["few"].night.definition
    rank_p = sampled.sampled_ranks(to_rankings(batch), definition)
    pools, draws = batch.column("pool").to_pylist(), batch.column("drawn").to_pylist()
    assert set(draws) == {FEW} and 0 < min(pools) < max(pools) < 150
    users = np.repeat(np.arange(len(pools)), np.diff(batch.column("item_ids").offsets))
    for name in TABLES:
        tables = [
            sampled.ESTIMATORS[name]("ndcg", (5,), sampled.NegativeDraw(pool + 1, FEW), definition)
            for pool in pools
        ]
        values_p = [tables[u][rank - 1, 0] if rank else 0.0 for u, rank in zip(users, rank_p, strict=True)]
        estimates = pd.Series(values_p).groupby(users).mean()
        assert rows.value[name, "ndcg@5"] == pytest.approx(estimates.mean()), name
        assert rows.stderr[name, "ndcg@5"] == pytest.approx(estimates.sem()), name
    draw = sampled.NegativeDraw(round(1 + np.mean(np.array(pools)[users])), FEW)
    counts = count_sampled_ranks(rank_p, FEW)[None, :]
    likely = likely_means(counts, "ndcg", (5,), draw)[0, 0] * (rank_p > 0).mean()
    assert rows.value["maximum_likelihood", "ndcg@5"] == pytest.approx(likely)
    drawing = f"draw={FEW} a user without replacement, seed 42"
    assert set(rows.definition["rank_estimate"]) == {f"v1;candidates=uniform;{drawing};items=one_by_one"}


@pytest.mark.slow
def test_drawn_items_are_new_to_the_user_and_stored_once(nights: dict[str, Ran]) -> None:
    ran = nights["few"]
    draw = {"split_id": ran.night.split_id, "draw": f"uniform {FEW} a user seed 42"}
    drawn = read_rows(ran.store, CANDIDATES, **draw)
    blocks = {row.user_id: row for row in read_split(ran.night, USER_BLOCKS)}
    items = len(read_split(ran.night, ITEMS))
    assert len(drawn) == len({row.user_id for row in drawn}) > 50
    for row in drawn:
        block = blocks[row.user_id]
        known = {*block.train_items, *block.held_out["test"]["items"]}
        assert len(set(row.items)) == FEW and not known & set(row.items) and max(row.items) < items
    again = run(ran.store, ran.benchmark, force=True)
    assert len(read_rows(ran.store, CANDIDATES, **draw)) == len(drawn)
    key = ["part", "metric", "k", "estimator", "definition", "slice_key", "slice_value"]
    first, second = (
        read_pandas(ran.store, METRICS, run_id=night.outcome.run_ids["popular"]) for night in (ran, again)
    )
    first, second = (
        rows.sort_values(key, ignore_index=True).drop(columns="run_id") for rows in (first, second)
    )
    pd.testing.assert_frame_equal(first, second, check_exact=True)
