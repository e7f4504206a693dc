"""The generated world: same rows everywhere, exact truth, a loop that is really a loop."""

from __future__ import annotations

import random
import struct
from bisect import bisect_right
from collections import Counter
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from xxhash import xxh64

from recbench_spark.config import Benchmark, Split, WorldSettings, parse
from recbench_spark.engine.pipes import cut_parts
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.errors import ConfigError
from recbench_spark.night.run_keys import hash_split, world_settings
from recbench_spark.schemas import INTERACTIONS
from recbench_spark.splits import world_loop, worlds
from recbench_spark.splits.manifests import LogRows, build_manifest
from recbench_spark.storage.blocks import run_pieces
from recbench_spark.storage.frame_blocks import FrameRows
from tests.labelled import count_dropped_rows, label_blocks, read_world
from tests.log_schema import LOG_SCHEMA

WORLD = WorldSettings(users=400, items=60, interactions=5000, open_loop=2000, periods=3)
PINNED = (6990, 18370, 39753365, 3511145)
UNSEEN = WORLD.model_copy(update={"open_items": "unseen"})


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    return _sort_rows(make_log(WORLD))


@pytest.fixture(scope="module")
def rows_unseen() -> pd.DataFrame:
    return _sort_rows(make_log(UNSEEN))


@pytest.fixture(scope="module")
def factors() -> tuple[pd.DataFrame, pd.DataFrame]:
    users, items = make_factors(WORLD)
    return users.set_index("user_id"), items.set_index("item_id")


def make_log(world: WorldSettings, loop: world_loop.Loop | None = None) -> pa.Table:
    loop = loop or worlds.simulate_loop(world)
    pieces = (worlds.read_piece(piece, world, loop) for piece in worlds.list_pieces(world))
    return pa.Table.from_batches([batch for piece in pieces for batch in piece])


def make_factors(world: WorldSettings, pieces: int = 3) -> list[pd.DataFrame]:
    sides = {"user": world.users, "item": world.items}
    return [
        pa.Table.from_batches(
            [b for piece in cut_parts(range(n), pieces) for b in worlds.read_factors(piece, world, side)]
        ).to_pandas()
        for side, n in sides.items()
    ]


def _sort_rows(rows: pa.Table) -> pd.DataFrame:
    frame = rows.to_pandas(maps_as_pydicts="strict")
    return frame.sort_values(["user_id", "item_id", "event_time"], ignore_index=True)


def test_hash_is_sparks(spark):
    keys = [(0, -1), (1, 2**62), (-(2**63), 7), (123456789, -5)]
    ours = world_loop.hash_keys(*(np.array(column) for column in zip(*keys, strict=True)), seed=99)
    rows = spark.createDataFrame(keys, "a long, b long").selectExpr("xxhash64(a, b, 99L) AS h").collect()
    assert ours.view(np.int64).tolist() == [row.h for row in rows]


def test_schema_and_ids(log):
    assert make_log(WORLD).schema == INTERACTIONS
    assert log.user_id.min() == "u000000" and log.user_id.max() == "u000399"
    assert log.item_id.min() == "i00000" and log.item_id.max() == "i00059"
    assert set(log.rating) == {1.0, 2.0, 3.0, 4.0, 5.0}


def test_frames_hold_the_same_rows(spark, log, factors, monkeypatch):
    """Tasks make the pieces, and count the loop: a frame differs from them in nothing."""
    monkeypatch.setattr(worlds, "PIECE_ROWS", 2000)
    worlds._hold_loop.cache_clear()
    frame = read_world(spark, WORLD)
    assert [(f.name, f.dataType) for f in frame.schema] == [(f.name, f.dataType) for f in LOG_SCHEMA]
    assert frame.select(F.spark_partition_id()).distinct().count() == 4
    pd.testing.assert_frame_equal(_sort_rows(frame.toArrow()), log)
    for made, expected, side in zip(
        worlds.true_factors(SparkEngine(spark), WORLD), factors, ("user", "item"), strict=True
    ):
        rows = pd.concat(made.each(pa.Table.to_pandas)).set_index(f"{side}_id").sort_index()
        assert rows.map(repr).equals(expected.map(repr))
    by_tasks = worlds.list_propensities(WORLD, run=run_pieces(SparkEngine(spark)))
    assert by_tasks.equals(worlds.list_propensities(WORLD))


@pytest.mark.parametrize("pieces", [3, 17])
def test_same_rows_whatever_the_pieces(log, monkeypatch, pieces):
    monkeypatch.setattr(worlds, "PIECE_ROWS", 7000 // pieces)
    monkeypatch.setattr(worlds, "BLOCK_ROWS", 1000 * pieces)
    worlds._hold_loop.cache_clear()
    assert abs(len(worlds.list_pieces(WORLD)) - pieces) < 2
    backwards = worlds.simulate_loop(WORLD, lambda work, all_pieces: map(work, reversed(all_pieces)))
    pd.testing.assert_frame_equal(_sort_rows(make_log(WORLD, backwards)), log)


def test_a_process_counts_a_loop_once(monkeypatch):
    """A night reads the log and the propensities from one count, whoever counted."""
    loop = worlds.simulate_loop(WORLD)
    monkeypatch.setattr(worlds, "_simulate_loop", None)
    assert worlds.simulate_loop(WORLD, run=lambda work, pieces: []) is loop
    assert worlds.list_propensities(WORLD).num_rows == WORLD.items


def test_rows_are_pinned(log, rows_unseen):
    """Fails when a change of code changes the world: raise it knowingly, never by accident.

    Those of `open_items: unseen` are the rows of version 0.1.0, whose splits keep their names.
    """
    assert _pin(rows_unseen) == (6990, 18336, 39749161, 3511145)
    assert _pin(log) == PINNED
    pd.testing.assert_frame_equal(
        *(frame[frame.part.isna()].reset_index(drop=True) for frame in (log, rows_unseen))
    )


def _pin(log: pd.DataFrame) -> tuple[int, ...]:
    user, item = (log[c].str[1:].astype(int) for c in ("user_id", "item_id"))
    return len(log), int(log.rating.sum()), int((user * item).sum()), int((log.event_time % 997).sum())


def test_seed_changes_rows(log):
    other = _sort_rows(make_log(WORLD.model_copy(update={"seed": 43})))
    pairs = [set(zip(frame.user_id, frame.item_id, strict=True)) for frame in (log, other)]
    assert len(pairs[0] & pairs[1]) < 0.7 * len(pairs[0])


def test_row_counts(log):
    closed = log[log.part.isna()]
    assert abs(len(closed) - WORLD.interactions) < 0.02 * WORLD.interactions
    assert (log.part == "open_loop").sum() == WORLD.open_loop


def test_a_user_gets_an_item_once_and_the_open_loop_comes_later(log, rows_unseen):
    assert not rows_unseen.duplicated(["user_id", "item_id"]).any()
    opened = log.part == "open_loop"
    assert not log[opened].duplicated(["user_id", "item_id"]).any()
    assert not log[~opened].duplicated(["user_id", "item_id"]).any()
    # An item is liked or not, whoever shows it.
    assert (log.groupby(["user_id", "item_id"]).rating.nunique() == 1).all()
    assert log[opened].event_time.min() > log[~opened].event_time.max()
    assert (log[opened].groupby("user_id").size() == WORLD.open_loop // WORLD.users).all()


def test_activity_is_heavy_tailed(log):
    rows = log[log.part.isna()].groupby("user_id").size()
    assert len(rows) == WORLD.users
    assert rows.max() > 2 * rows.mean() > 2 * rows.median()


def test_affinity_decides_the_rating_exactly(log, factors):
    """Rebuild every rating from the published float factors and the hashed noise."""
    users, items = factors
    p = np.stack(users.vector.loc[log.user_id].to_numpy())
    q = np.stack(items.vector.loc[log.item_id].to_numpy())
    assert p.dtype == np.float32 and p.shape[1] == worlds.DIMS
    affinity = (p.astype(float) * q).sum(axis=1) + items.bias.loc[log.item_id].to_numpy()
    assert (affinity == np.round(affinity)).all()
    assert (users.bias == 0).all()
    low = 1 + np.searchsorted(worlds.THRESHOLDS, affinity - worlds.NOISE, side="right")
    high = 1 + np.searchsorted(worlds.THRESHOLDS, affinity + worlds.NOISE, side="right")
    assert ((low <= log.rating) & (log.rating <= high)).all()
    user, item = (log[c].str[1:].astype(int).to_numpy() for c in ("user_id", "item_id"))
    noise = world_loop.draw_below(2 * worlds.NOISE + 1, world_loop.RATING_NOISE, user, seed=WORLD.seed)
    assert noise.min() == 0 and noise.max() == 2 * worlds.NOISE
    expected = worlds.draw_ratings(np.arange(WORLD.users), user, item, WORLD)
    assert (expected == log.rating).all()


def test_relevance_is_rare_and_follows_affinity(factors):
    users, items = factors
    affinity = np.stack(users.vector) @ np.stack(items.vector).T + items.bias.to_numpy()
    share = (affinity >= worlds.THRESHOLDS[worlds.RELEVANT - 2]).mean()
    assert 0.04 < share < 0.14


def test_propensities_agree_with_what_was_exposed(log):
    true = worlds.list_propensities(WORLD).to_pandas().set_index("item_id").propensity
    assert len(true) == WORLD.items and true.between(0, 1).all()
    closed = log[log.part.isna()]
    # The draws were chosen so that the propensities sum to the rows per user, as nearly as whole
    # numbers of draws allow.
    assert true.sum() * WORLD.users == pytest.approx(WORLD.interactions, rel=0.02)
    seen = closed.groupby("item_id").size().reindex(true.index, fill_value=0)
    # A sum of independent draws, one per user: variance at most n p (1 - p).
    z = (seen - WORLD.users * true) / np.sqrt(WORLD.users * true * (1 - true))
    assert np.abs(z).max() < 4.5
    assert (z**2).mean() < 1.5


def test_propensities_by_taste(log):
    frame = worlds.list_propensities(WORLD, by_taste=True).to_pandas()
    true = frame.set_index(["taste", "item_id"]).propensity
    closed = log[log.part.isna()]
    taste = log.attributes.str["taste"]
    users = log.assign(taste=taste).groupby("taste").user_id.nunique()
    assert users.sum() == WORLD.users
    seen = closed.assign(taste=taste).groupby(["taste", "item_id"]).size()
    n = users.reindex(true.index.get_level_values("taste")).to_numpy()
    z = (seen.reindex(true.index, fill_value=0) - n * true) / np.sqrt(n * true * (1 - true))
    assert (z**2).mean() < 1.3
    mixed = (true.unstack().T * users).sum(axis=1) / WORLD.users
    overall = worlds.list_propensities(WORLD).to_pandas().set_index("item_id").propensity
    np.testing.assert_allclose(mixed.reindex(overall.index), overall, rtol=1e-12)


def test_the_loop_feeds_on_good_ratings():
    """Items that a taste likes are exposed to it more often, and more so in each period."""
    loop = worlds.simulate_loop(WORLD)
    items = np.arange(WORLD.items)
    own_t = []
    for t in range(WORLD.periods):
        weights_gi = np.stack([world_loop.draw_probability(loop, g, t) for g in range(WORLD.tastes)])
        own = worlds.item_genres(items, WORLD)[None, :] == np.arange(WORLD.tastes)[:, None]
        own_t.append(weights_gi[own].mean() / weights_gi[~own].mean())
    assert own_t[0] < own_t[1] < own_t[2]


def test_without_a_loop_exposure_is_uniform():
    flat = WORLD.model_copy(update={"loop": 0.0})
    propensity = worlds.list_propensities(flat).to_pandas().propensity
    assert propensity.nunique() == 1


@pytest.mark.parametrize("seen_too", [True, False])
def test_open_loop_is_uniform(log, rows_unseen, seen_too):
    """Chi-square of items, against each user's equal chance of every item (not seen before)."""
    log = log if seen_too else rows_unseen
    opened = (log.part == "open_loop").to_numpy()
    shape = (WORLD.users, WORLD.items)
    seen, shown = np.zeros(shape), np.zeros(shape)
    user, item = (log[c].str[1:].astype(int).to_numpy() for c in ("user_id", "item_id"))
    seen[user[~opened], item[~opened]] = 1
    shown[user[opened], item[opened]] = 1
    if seen_too:
        # Pairs of the closed loop are shown as often as any other: 2,000 of 24,000.
        rate, n = shown[seen == 1].mean(), (seen == 1).sum()
        assert abs(rate - 1 / 12) < 4 * np.sqrt(1 / 12 * 11 / 12 / n)
        seen[:] = 0
    chance = (1 - seen) * (shown.sum(axis=1) / (1 - seen).sum(axis=1))[:, None]
    variance = (chance * (1 - chance)).sum(axis=0)
    chi_square = ((shown.sum(axis=0) - chance.sum(axis=0)) ** 2 / variance).sum()
    # 60 items: mean about 60, standard deviation about 11.
    assert 25 < chi_square < 105


@pytest.mark.parametrize("tastes", [1, 9, 16])
def test_tastes_differ_in_half_of_their_signs(tastes):
    world = WORLD.model_copy(update={"tastes": tastes})
    users = np.arange(4000)
    mean_gd = np.stack(
        [
            worlds.user_factors(users[worlds.user_tastes(users, world) == g], world).mean(axis=0)
            for g in range(tastes)
        ]
    )
    signs = np.sign(mean_gd)
    assert (np.abs(np.abs(mean_gd) - worlds.CENTRE) < 0.8).all()
    assert (signs @ signs.T == worlds.factor_length(world) * np.eye(tastes)).all()
    log = make_log(world).to_pandas(maps_as_pydicts="strict")
    assert set(log.attributes.str["taste"]) == {f"taste{g}" for g in range(tastes)}
    vectors = [frame.vector for frame in make_factors(world)]
    assert {len(v) for side in vectors for v in side} == {worlds.factor_length(world)}


def test_the_split_keeps_training_out_of_the_open_loop_and_nothing_else(log, spark):
    """The rest of the open loop is its pairs outside training, uniformly; tested ones stay in both."""
    split = Split(protocol="RO_RS", ratio=(0.7, 0.1, 0.2), seed=3)
    blocks = label_blocks(read_world(spark, WORLD), split, "keep_last")
    made = blocks.rows().toPandas()
    closed = (
        label_blocks(read_world(spark, WORLD).where("part IS NULL"), split, "keep_last").rows().toPandas()
    )
    parts = {part: set(zip(rows.user_id, rows.item_id, strict=True)) for part, rows in made.groupby("part")}
    for part, rows in closed.groupby("part"):
        assert parts[part] == set(zip(rows.user_id, rows.item_id, strict=True))
    shown = log[log.part == "open_loop"]
    shown = set(zip(shown.user_id, shown.item_id, strict=True))
    known = parts["train"] | parts["valid"]
    assert parts["open_loop"] == shown - known and len(shown & known) > 100
    assert len(parts["open_loop"] & parts["test"]) > 40
    manifest = build_manifest(
        FrameRows(spark.createDataFrame(made)), LogRows(len(log)), "{}", SparkEngine(spark)
    ).facts
    facts = pd.DataFrame(manifest).set_index("fact")
    assert facts.value["overlap"] == 0
    assert count_dropped_rows(blocks) == {("open_loop", "repeats_dropped"): len(shown & known)}


def test_truth_leads_and_the_closed_loop_flatters_popularity():
    """The requirement on the default world: ranking by affinity against ranking by popularity."""
    world = WorldSettings(items=300)
    log = make_log(world).to_pandas(maps_as_pydicts="strict")
    users, items = make_factors(world)
    affinity = np.stack(users.vector) @ np.stack(items.vector).T + items.bias.to_numpy()
    user, item = (log[c].str[1:].astype(int).to_numpy() for c in ("user_id", "item_id"))
    opened = (log.part == "open_loop").to_numpy()
    held = np.random.default_rng(0).random(len(log)) < 0.2
    good = (log.rating >= worlds.RELEVANT).to_numpy()
    cells = {
        "train": ~opened & ~held,
        "holdout": ~opened & held & good,
        "open": opened & good,
    }
    grids = {}
    for name, rows in cells.items():
        grids[name] = np.zeros((world.users, world.items), dtype=bool)
        grids[name][user[rows], item[rows]] = True
    popularity = np.broadcast_to(grids["train"].sum(axis=0), affinity.shape)
    truth, popular = (
        {part: _ndcg(scores, grids["train"], grids[part]) for part in ("holdout", "open")}
        for scores in (affinity, popularity)
    )
    assert truth["holdout"] > 3 * popular["holdout"]
    assert truth["open"] > 6 * popular["open"]
    assert popular["holdout"] / truth["holdout"] > 2 * popular["open"] / truth["open"]


def _ndcg(scores: np.ndarray, train: np.ndarray, relevant: np.ndarray, k: int = 10) -> float:
    order = np.argsort(-np.where(train, -np.inf, scores), axis=1, kind="stable")[:, :k]
    discounts = 1 / np.log2(np.arange(2, k + 2))
    gains = np.take_along_axis(relevant, order, axis=1) @ discounts
    n = np.minimum(relevant.sum(axis=1), k)
    ideal = np.concatenate([[0], np.cumsum(discounts)])[n]
    return float((gains[n > 0] / ideal[n > 0]).mean())


def test_power_is_repeated_multiplication():
    base = np.array([0.25, 0.9, 1.0])
    powers = world_loop.power(base, np.array([0, 1, 2, 5]))
    np.testing.assert_allclose(powers, base[None, :] ** np.array([[0], [1], [2], [5]]), rtol=1e-15)


def test_open_rows_without_closed_rows():
    world = WorldSettings(users=5, items=40, interactions=1000, open_loop=53)
    user, item, time = worlds.draw_open_loop(np.arange(5), np.zeros(0, dtype=np.int64), world)
    assert np.bincount(user).tolist() == [10, 11, 10, 11, 11]
    assert len(set(zip(user, item, strict=True))) == 53
    assert (np.diff(time)[np.diff(user) == 0] > 0).all()


def test_too_small_a_world_says_so():
    with pytest.raises(ConfigError, match="too few for 1000 interactions"):
        worlds.simulate_loop(WorldSettings(users=10, items=50, interactions=1000, periods=1))


def test_factors_are_those_of_the_ids(factors):
    users, items = factors
    assert len(users) == WORLD.users and len(items) == WORLD.items
    assert (np.abs(np.stack(items.vector)) <= worlds.CENTRE + worlds.SPREAD).all()
    expected = worlds.user_factors(np.array([17]), WORLD)[0]
    assert users.vector.loc["u000017"].tolist() == expected.tolist()


def test_old_worlds_keep_their_splits_and_new_ones_have_names_of_their_own():
    """`open_items: unseen` makes the rows of version 0.1.0 and so their split; a log knows no world."""
    settings = {
        "models": [{"name": "popular", "kind": "popular"}],
        "name": "x",
        "split": {"protocol": "RO_RS"},
    }
    document = {**WORLD.model_dump(), "open_items": "unseen"}
    before = {name: document[name] for name in document if name not in ("open_items", "tastes")}

    def make_benchmark(dataset: dict) -> Benchmark:
        return parse(Benchmark, {**settings, "dataset": {"name": "d", **dataset}}, "test")

    benchmarks = [
        make_benchmark({"reader": "world", "world": world})
        for world in (document, before, {**document, "tastes": 9}, {**before, "tastes": 9})
    ]
    assert world_settings(benchmarks[0].dataset) == before
    assert len({hash_split(str, benchmark)[0] for benchmark in benchmarks}) == 4
    log = make_benchmark({"reader": "csv", "path": "log.csv"}).dataset
    assert world_settings(log) == {name: getattr(WorldSettings(), name) for name in before}


# ------------------------------------------------------------------------ the equations, row by row


def hash_one(*keys: int, state: int = 42) -> int:
    """The chain of hashes by another library."""
    for key in keys:
        state = xxh64(struct.pack("<Q", key % 2**64), seed=state).intdigest()
    return state


class SlowWorld:
    """A world in whole numbers of Python: one user, one draw after the other."""

    def __init__(self, world: WorldSettings, draws_tl: np.ndarray) -> None:
        self.world, self.draws_tl = world, draws_tl
        self.below = cache(lambda bound, *keys: hash_one(*keys, world.seed) % bound)
        self.tastes = [self.below(world.tastes, world_loop.TASTE, u) for u in range(world.users)]
        self.genres = [self.below(world.tastes, world_loop.GENRE, i) for i in range(world.items)]
        self.rows: list[tuple] = []
        self.weights_tgi: list[list[list[int]]] = []
        good: Counter[tuple[int, int]] = Counter()
        shown: set[tuple[int, int]] = set()
        for t in range(world.periods):
            self.weights_tgi.append(self.weigh(good))
            good += self.run_period(t, shown)
        for u in range(world.users):
            self.run_open_loop(
                u, {i for v, i in shown if v == u} if world.open_items == "unseen" else set()
            )

    def weigh(self, good: Counter[tuple[int, int]]) -> list[list[int]]:
        world = self.world
        order = sorted(range(world.items), key=lambda i: hash_one(world_loop.RANK, i, world.seed))
        loop, weights = round(world.loop * 1000), []
        for g in range(world.tastes):
            seeds = [
                world.interactions // world.tastes // (order.index(i) + 60) + 1 for i in range(world.items)
            ]
            exposure = [seed + 4 * good[g, i] for i, seed in enumerate(seeds)]
            weights.append([loop * one * world.items + (1000 - loop) * sum(exposure) for one in exposure])
        return weights

    def rate(self, u: int, i: int) -> int:
        below, affinity = self.below, self.below(25, world_loop.ITEM_QUALITY, i) - 12
        for d in range(worlds.factor_length(self.world)):
            p = 2 * (-1) ** (self.tastes[u] & d).bit_count() + below(7, world_loop.USER_FACTOR, u, d) - 3
            q = 2 * (-1) ** (self.genres[i] & d).bit_count() + below(7, world_loop.ITEM_FACTOR, i, d) - 3
            affinity += p * q
        noise = hash_one(world_loop.RATING_NOISE, u, self.world.seed, i) % 11 - 5
        return 1 + sum(least <= affinity + noise for least in (-29, 5, 51, 69))

    def run_period(self, t: int, shown: set[tuple[int, int]]) -> Counter[tuple[int, int]]:
        good: Counter[tuple[int, int]] = Counter()
        cumulative = [np.cumsum(weights).tolist() for weights in self.weights_tgi[t]]
        for u, g in enumerate(self.tastes):
            n = int(self.draws_tl[t][self.below(16, world_loop.LEVEL, u)])
            for slot in range(n):
                draw = hash_one(world_loop.EXPOSE, u, t, self.world.seed, slot)
                i = bisect_right(cumulative[g], draw % cumulative[g][-1])
                good[g, i] += self.rate(u, i) >= 4
                if (u, i) not in shown:
                    shown.add((u, i))
                    self.add(u, i, t, (slot, n, self.below(worlds.PERIOD, world_loop.WHEN, draw)), None)
        return good

    def run_open_loop(self, u: int, seen: set[int]) -> None:
        world = self.world
        share = world.open_loop * (u + 1) // world.users - world.open_loop * u // world.users
        wanted = min(share, (world.items - len(seen)) // (2 if world.open_items == "unseen" else 1))
        chosen: list[int] = []
        draw = 0
        while len(chosen) < wanted:
            i = hash_one(world_loop.OPEN, u, world.seed, draw) % world.items
            chosen += [i] if i not in seen and i not in chosen else []
            draw += 1
        for slot, i in enumerate(chosen):
            within = self.below(worlds.PERIOD, world_loop.WHEN, u, slot)
            self.add(u, i, world.periods, (slot, wanted, within), "open_loop")

    def add(self, u: int, i: int, t: int, place: tuple[int, int, int], part: str | None) -> None:
        slot, slots, within = place
        time = worlds.START + t * worlds.PERIOD + slot * (worlds.PERIOD // slots) + within // slots
        attributes = [("taste", f"taste{self.tastes[u]}"), ("genre", f"genre{self.genres[i]}")]
        self.rows.append((f"u{u:06}", f"i{i:05}", float(self.rate(u, i)), time, part, attributes))


@pytest.mark.parametrize("seed", range(2))
def test_every_row_by_the_equations(seed, monkeypatch):
    draw = random.Random(seed)
    world = WorldSettings(
        users=draw.randint(30, 90),
        items=draw.randint(40, 70),
        interactions=1000,
        open_loop=draw.randint(0, 500),
        loop=draw.random(),
        periods=draw.randint(1, 4),
        seed=draw.randint(0, 10**6),
        tastes=draw.choice([1, 5, 8, 9]),
        open_items=("all", "unseen")[seed % 2],
    )
    monkeypatch.setattr(worlds, "PIECE_ROWS", draw.randint(100, 2000))
    loop = worlds.simulate_loop(world)
    slow = SlowWorld(world, loop.draws_tl)
    assert (np.cumsum(slow.weights_tgi, axis=2) == loop.cumulative_tgi).all()
    rows = [tuple(row.values()) for row in make_log(world, loop).to_pylist()]
    assert sorted(rows, key=repr) == sorted(slow.rows, key=repr)
