"""Families of metrics that know histories and groups, against slow oracles, in any number of pieces."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from recbench_spark.config import Bootstrap
from recbench_spark.core.definitions import Definition
from recbench_spark.core.resampling import RATIO_SHIFT
from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.measures import list_results, reduce_pieces
from recbench_spark.evaluation.evaluate import evaluate
from recbench_spark.evaluation.run_measures import make_measures
from recbench_spark.metrics import accuracy
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.metrics.beyond_accuracy import BY_LABELS, Facts
from recbench_spark.metrics.group_rows import finish_groups, list_kinds
from recbench_spark.metrics.item_labels import LabelTable, open_item_groups
from recbench_spark.metrics.kernels.item_groups import GROUP_METRICS, GroupCounts
from recbench_spark.metrics.listed import ListedCatalogue
from recbench_spark.metrics.questions import Owners
from recbench_spark.ranking.batch_schemas import PROFILES, RANKED_USERS
from recbench_spark.ranking.known_items import order_popularity
from recbench_spark.schemas import METRICS
from recbench_spark.splits.popularity import measure_head
from tests.metrics.families import KS, ORACLES, World, draw_world

FIRST, STOP = map(int, os.environ.get("RECBENCH_FAMILY_SEEDS", "0,300").split(","))
SEEDS = [pytest.param(n, marks=pytest.mark.full if n >= FIRST + 30 else ()) for n in range(FIRST, STOP)]
PIECES = (1, 3, 17)
SCHEMA = pa.schema([*RANKED_USERS, *PROFILES])


class Catalogue:
    """The catalogue of a world."""

    def __init__(self, world: World) -> None:
        self.ids = pa.array(world.items, pa.string())
        self.counts = np.array([world.counts[item] for item in world.items], np.int64)

    def find(self, ids: pa.Array) -> tuple[Any, Any]:
        places = pc.index_in(ids, self.ids).fill_null(-1).to_numpy().astype(np.int64)
        return places, np.where(places < 0, 0, np.append(self.counts, 0)[places])

    def popularity(self) -> dict[str, Any]:
        return order_popularity(self.counts)


def make_rows(world: World) -> pa.Table:
    number = {item: n for n, item in enumerate(world.items)}
    rows = []
    for name, user in world.users.items():
        n = len(user["truth"])
        own = {"profile": user["history"], "closed": user["closed"], "offered": user["offered"]}
        rows.append({
            "user_id": name, "part": "test", "user_key": random.Random(name).getrandbits(62),
            "item_ids": [*user["truth"]], "relevance": [*user["truth"].values()], "above": [-1] * n,
            "tied": [0] * n, "before": [0] * n, "length": 1, "top_items": user["list"], "slices": [],
            **{side: items and [number[item] for item in items] for side, items in own.items()},
        })  # fmt: skip
    return pa.Table.from_pylist(rows, SCHEMA)


def open_groups(world: World, folder: Path) -> LabelTable:
    """Labels by row with weights, or in lists without."""
    rows = [(item, own) for item, own in world.labels.items() if own]
    even = all(len({*own.values()}) == 1 for _, own in rows)
    if even:
        table = name_columns([(item, [*own]) for item, own in rows], "item_id", "genre")
        return open_item_groups(LocalEngine(str(folder)), str(folder), table, ("genre", None))
    flat = [(item, group, 6.0 * weight) for item, own in rows for group, weight in own.items()]
    table = name_columns(flat, "item_id", "genre", "weight")
    return open_item_groups(LocalEngine(str(folder)), str(folder), table, ("genre", "weight"))


def measure(world: World, pieces: int, folder: Path) -> list[dict[str, Any]]:
    names = (*ORACLES,)
    plan = MetricPlan(names, KS, Definition(), Bootstrap(replicates=8))
    known, head = Catalogue(world), measure_head(np_counter(world), Fraction(8, 10))
    trained = sum(bool(row) for row in world.trained)
    groups = None
    if any(world.labels.get(item) for item in world.items):
        groups = open_groups(world, folder).join(known, len(world.items))
    else:
        plan = replace(plan, metrics=tuple(name for name in names if name not in BY_LABELS))
    catalogue = ListedCatalogue(known, len(world.items), Facts(trained, None, *head), groups)
    rows, draw = make_rows(world), np.random.default_rng(pieces)
    rows = rows.take(pa.array(draw.permutation(len(rows)))) if pieces > 1 else rows
    cuts = [0, *sorted(draw.integers(0, len(rows) + 1, pieces - 1).tolist()), len(rows)]
    parts = [rows.slice(a, b - a).to_batches() for a, b in pairwise(cuts)]
    measures = make_measures(plan, catalogue)
    results = list_results(measures, reduce_pieces(measures, parts), METRICS)
    return [row for table in results for row in table.to_pylist()]


def np_counter(world: World) -> dict[int, int]:
    counts = [*world.counts.values()]
    return {count: counts.count(count) for count in counts}


@pytest.mark.parametrize("seed", SEEDS)
def test_worlds_have_the_numbers_of_slow_oracles_in_any_pieces(seed: int, tmp_path: Path) -> None:
    world = draw_world(seed)
    whole = measure(world, 1, tmp_path)
    for pieces in PIECES[1:]:
        assert sorted(map(repr, measure(world, pieces, tmp_path))) == sorted(map(repr, whole))
    values = read_values(whole)
    if not world.listing():
        assert not values
        return
    check_values(world, values)


def read_values(rows: list[dict[str, Any]]) -> dict[tuple[str, int], Any]:
    """Values by metric and cut-off; those of groups as a dict."""
    values: dict[tuple[str, int], Any] = {}
    for row in rows:
        key = row["metric"], row["k"]
        if row["slice_key"] is None:
            values[key] = row["value"]
        else:
            assert row["slice_key"] == "genre"
            values.setdefault(key, {})[row["slice_value"]] = row["value"]
    return values


def check_values(world: World, values: dict[tuple[str, int], Any]) -> None:
    for (name, k), value in values.items():
        expected = ORACLES[name](world, k)
        if isinstance(expected, dict):
            assert {*value} == {*expected}
            for group, one in expected.items():
                assert value[group] == (None if one is None else pytest.approx(float(one), abs=1e-9)), name
        else:
            assert value == (None if expected is None else pytest.approx(expected, abs=1e-9)), (name, k)


def make_tables(world: World) -> dict[str, Any]:
    """Tables of `evaluate`: trained user n is user n of the truth."""
    draw = random.Random(1)
    users, every = [*world.users], [*world.users, *(f"u{n}" for n in range(len(world.trained)))]
    pairs = [(f"u{n}", item) for n, row in enumerate(world.trained) for item in row]
    scored = [(user, item, draw.random()) for user in users for item in world.items]
    vectors = {name: [[draw.gauss(0, 1) for _ in range(2)] for _ in ids]
               for name, ids in (("user_id", every), ("item_id", world.items))}  # fmt: skip
    return {
        "train": name_columns(pairs, "user_id", "item_id"),
        "truth": name_columns([(user, item) for user in users for item in world.items[:3]], *IDS),
        "scores": name_columns(scored, *IDS, "score"),
        "lists": name_columns(scored, *IDS, "score"),
        "embeddings": tuple(
            name_columns(list(dict(zip(ids, vectors[name], strict=True)).items()), name, "vector")
            for name, ids in (("user_id", every), ("item_id", world.items))
        ),
        "item_groups": name_columns(
            [
                (item, group, float(weight))
                for item, own in world.labels.items()
                for group, weight in own.items()
            ],
            "item_id",
            "genre",
            "weight",
        ),
        "candidates": name_columns([row[:2] for row in scored if row[2] < 0.5], *IDS),
    }


IDS = ("user_id", "item_id")


def name_columns(rows: list[tuple[Any, ...]], *names: str) -> pa.Table:
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


MODES = [
    ("lists", "unseen"),
    ("scores", "unseen"),
    *(("embeddings", mode) for mode in ("unseen", "all", "given")),
]


@pytest.mark.parametrize(("kind", "mode"), MODES)
def test_evaluate_knows_histories_and_what_could_be_listed(kind: str, mode: str) -> None:
    world = draw_world(4)
    tables = make_tables(world)
    given = {name: tables[name] for name in ("truth", "train", "item_groups", kind)}
    given |= {"candidates": tables["candidates"]} if mode == "given" else {}
    result = evaluate(**given, k=KS, metrics=(*ORACLES,), definition={"candidates": mode}, bootstrap=0)
    assert result.rankings.column_names == RANKED_USERS.names
    lists = {row["user_id"]: row["top_items"] or [] for row in result.rankings.to_pylist()}
    for number, (user, own) in enumerate(world.users.items()):
        history = world.trained[number] if number < len(world.trained) else []
        free = [row["item_id"] for row in tables["candidates"].to_pylist() if row["user_id"] == user]
        own |= {
            "list": lists.get(user, []), "truth": dict.fromkeys(world.items[:3], 1.0), "history": history,
            "closed": history if mode == "unseen" else [],
            "offered": free if mode == "given" else None,
        }  # fmt: skip
    values = read_values(result.metrics.to_pylist())
    assert len(values) == len(ORACLES) * len(KS)
    check_values(world, values)


@pytest.mark.parametrize("kind", ["lists", "embeddings"])
def test_spark_frames_have_the_bits_of_tables(kind: str, spark: Any) -> None:
    tables = make_tables(draw_world(4))
    given = {name: tables[name] for name in ("truth", "train", "item_groups", kind)}
    options: dict[str, Any] = {"k": KS, "metrics": (*ORACLES,), "bootstrap": 8}
    here = evaluate(**given, **options)
    frames = {
        name: tuple(map(spark.createDataFrame, one))
        if isinstance(one, tuple)
        else spark.createDataFrame(one)
        for name, one in given.items()
    }
    there = evaluate(**frames, **options)
    for one, other in ((here.metrics, there.metrics), (here.user_metrics, there.user_metrics)):
        rows = other.select(*one.column_names).toArrow().to_pylist()
        assert sorted(map(repr, rows)) == sorted(map(repr, one.to_pylist()))
    assert there.rankings.columns == here.rankings.column_names
    there.release()


@pytest.mark.slow
@pytest.mark.parametrize(
    "rates", [(0.3,) * 5, (0.3, 0.25, 0.2, 0.25, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5), (0.3, 0.28)]
)
def test_intervals_of_spreads_and_shares_hold_them(rates: tuple[float, ...]) -> None:
    """250 worlds of 300 users, through the sums and rows of a night; also where all groups are alike."""
    rng, groups = np.random.default_rng(3), len(rates)

    def count(users: int) -> Any:
        chance = np.exp(rng.normal(0, 0.5, (users, 1)))
        relevant = rng.poisson(1.0, (users, groups))
        hits = rng.binomial(relevant, np.minimum(np.array(rates) * chance, 1))
        exposure = rng.gamma(2.0, 1.0, (users, groups)) * (1 + np.array(rates)) * chance
        return np.concatenate([relevant, hits, exposure], axis=1) * RATIO_SHIFT

    plan = MetricPlan(
        ("reo", "group_recall", "exposure_share"), (3,), Definition(), Bootstrap(replicates=300)
    )
    labels = "genre", tuple(f"g{n}" for n in range(groups))
    relevant, hits, exposure = np.split(count(1_000_000).mean(axis=0)[None], 3, axis=1)
    truth = GroupCounts(relevant=relevant, hits=hits, exposure=exposure)
    expected = [GROUP_METRICS[name].measure(truth).ravel() for name in plan.metrics]
    held: dict[str, list[bool]] = {name: [] for name in plan.metrics}
    for _ in range(250):
        sums = accuracy.sum_users(
            {"counts": count(300)}, Owners(rng.integers(0, 1 << 62, 300)), plan.bootstrap
        )
        table = pa.Table.from_batches([accuracy.totals_batch(("test", None, None), sums)])
        rows = finish_groups(plan, plan.metrics, table, labels).to_pylist()
        for row, true in zip(rows, np.concatenate(expected), strict=True):
            held[row["metric"]].append(row["ci_low"] - 2e-3 <= true <= row["ci_high"] + 2e-3)
    shares = {name: float(np.mean(marks)) for name, marks in held.items()}
    assert min(shares.values()) >= 0.93, shares


@pytest.mark.slow
def test_intervals_of_popularity_lift_hold_it() -> None:
    """250 worlds of 300 users whose lists follow their own popularity."""
    rng, held = np.random.default_rng(4), 0
    plan = MetricPlan(("popularity_lift",), (3,), Definition(), Bootstrap(replicates=300))

    def count(users: int) -> Any:
        own = rng.beta(1.0, 6.0, (users, 1))
        return np.concatenate([np.clip(own * rng.gamma(4.0, 0.4, (users, 1)), 0, 1), own], axis=1)

    shown, own = count(2_000_000).mean(axis=0)
    for _ in range(250):
        sums = accuracy.sum_users(
            {"shares": count(300)}, Owners(rng.integers(0, 1 << 62, 300)), plan.bootstrap
        )
        table = pa.Table.from_batches([accuracy.totals_batch(("test", None, None), sums)])
        (row,) = finish_groups(plan, plan.metrics, table).to_pylist()
        held += row["ci_low"] <= shown / own - 1 <= row["ci_high"]
    assert held >= 0.93 * 250


@pytest.mark.slow
@pytest.mark.parametrize(
    "tastes", [(1, 2), (1, 1.8), (1, 1.7), (1, 1), (1, 1.25, 1.5, 1.75, 2), (5, 1, 1, 2, 1)]
)
def test_intervals_of_chances_and_of_their_growth_hold_them(tastes: tuple[float, ...]) -> None:
    """400 worlds of 300 users with tastes of their own; the first and the fifth list groups by size."""
    rng, groups = np.random.default_rng(5), len(tastes)
    sizes = np.linspace(1, 2, groups) / (1.5 * groups)

    def count(users: int) -> dict[str, Any]:
        listed = rng.multinomial(10, rng.dirichlet(20 * np.array(tastes) / sum(tastes), users))
        history = rng.multinomial(1 + rng.poisson(15, users), rng.dirichlet(20 * sizes, users))
        counted = {"listed": listed * RATIO_SHIFT, "offered": sizes - history / 1000}
        return counted | {"history": history * RATIO_SHIFT}

    families = {("rsp", "bias_disparity"): ("genre", tuple(f"g{n}" for n in range(groups)))}
    families |= {("popularity_rsp",): ()} if groups == 2 else {}
    everybody = {kind: one.mean(axis=0)[None] for kind, one in count(1_000_000).items()}
    for names, labels in families.items():
        plan = MetricPlan(names, (10,), Definition(), Bootstrap(replicates=300))
        kinds, held = list_kinds(names), []
        truth = GroupCounts(**{kind: everybody[kind] for kind in kinds})
        values = [GROUP_METRICS[name].measure(truth) for name in names]
        expected = np.concatenate([(abs(one) if len(names) == 1 else one).ravel() for one in values])
        for _ in range(400):
            counted, keys = count(300), rng.integers(0, 1 << 62, 300)
            sums = accuracy.sum_users({kind: counted[kind] for kind in kinds}, Owners(keys), plan.bootstrap)
            table = pa.Table.from_batches([accuracy.totals_batch(("test", None, None), sums)])
            rows = finish_groups(plan, names, table, labels).to_pylist()
            ends = np.array([[row["ci_low"], row["ci_high"]] for row in rows]).T
            held.append((ends[0] - 1e-3 <= expected) & (expected <= ends[1] + 1e-3))
        shares = np.mean(held, axis=0)
        assert shares[0] >= 0.93 and shares.mean() >= 0.93, (names, shares)
