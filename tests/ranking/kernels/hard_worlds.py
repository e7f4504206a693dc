"""Random worlds that are hard to rank, each counted in every way and beside a full count.

    python -m tests.ranking.kernels.hard_worlds --worlds 10000 --first 0

prints how many worlds each way has counted, and each one that differs. The full count adds float64 products
by numpy in index order, as the score is defined, and compares every pair: no kernel takes part.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections import Counter
from unittest import mock

import numpy as np

from recbench_spark.ranking.kernels import families
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.scorers import DotScorer, UserBlock, count_ranks

DIMS = (0, 1, 2, 3, 4, 7, 31, 63, 64, 65, 100, 129, 300, 1000, 2047, 2048)
KINDS = ("normal", "ties", "lengths", "subnormal", "equal", "huge", "int8", "near", "zeros", "one number")
TORCH = importlib.util.find_spec("torch") is not None


class World:
    """A world by its seed: vectors, biases, lists; `kind` says what is hard."""

    def __init__(self, seed):
        self.draws = draws = np.random.default_rng(seed)
        self.seed, self.kind = seed, KINDS[draws.integers(len(KINDS))]
        self.dims = int(draws.choice(DIMS) if draws.random() < 0.7 else draws.integers(1, 300))
        many = draws.random() < 0.05
        users, items = int(draws.integers(1, 8)), int(draws.integers(1, 3000 if many else 400))
        self.vectors, self.items = self.draw_vectors(users, items)
        self.bias = self.draw_biases(items)
        self.scored = draws.random(items) < 0.9 if draws.random() < 0.3 else np.ones(items, np.bool_)
        self.angle = str(draws.choice(["dot", "cosine"]))
        most = [1, 1, 3, 60, 2000]
        sizes = draws.integers(0, 1 + np.minimum(items, draws.choice(most, (2, users))))
        self.truth, self.masked = (
            ItemLists(np.cumsum([0, *n]), draws.integers(-1, items, n.sum())) for n in sizes
        )

    def draw_vectors(self, users, items):
        draws, kind = self.draws, self.kind
        vectors, matrix = (draws.standard_normal((n, self.dims)) for n in (users, items))
        if kind == "ties":
            vectors, matrix = np.round(vectors), np.round(matrix)
        if kind == "lengths":
            matrix *= 10.0 ** draws.integers(-40, 30, (items, 1))
        if kind == "subnormal":
            vectors, matrix = vectors * 1e-44, matrix * 1e-44
        if kind in ("equal", "near"):
            matrix = matrix[draws.integers(0, min(items, 3), items)]
        if kind == "huge":
            vectors, matrix = vectors * 1e36, matrix * 1e36
        if kind == "int8":
            vectors, matrix = (draws.choice([-127, 0, 126.5, 127], x.shape) for x in (vectors, matrix))
        if kind == "zeros":
            vectors[:: draws.integers(1, 3)], matrix[:: draws.integers(1, 9)] = 0, 0
        if kind == "one number":  # a single coordinate: rows at the ends of their levels
            vectors, matrix = (
                x * (draws.random(x.shape) < 1.5 / max(1, self.dims)) for x in (vectors, matrix)
            )
        vectors, matrix = vectors.astype("f4"), matrix.astype("f4")
        if kind == "near":  # many items differ by the last bit of a coordinate
            moved = draws.random(matrix.shape) < 1.0 / max(1, self.dims)
            matrix = np.where(moved, np.nextafter(matrix, np.float32(9)), matrix)
        return vectors, matrix

    def draw_biases(self, items):
        draws, how = self.draws, self.draws.random()
        if how < 0.6:
            return None
        size = 10.0 ** draws.integers(*((-9, 9) if how < 0.9 else (-310, 300)))
        return np.round(draws.standard_normal(items), int(draws.integers(1, 9))) * size

    def draw_tiles(self):
        """Tiles of any length, by themselves or the usual ones."""
        if self.draws.random() < 0.4:
            return {"threads": int(self.draws.choice([1, 1, 3]))}
        item_tile, user_tile = self.draws.integers(1, 200, 2).tolist()
        return {"item_tile": item_tile, "user_tile": user_tile}

    def count(self, device="cpu", **settings):
        """Count by the package, with tiles drawn."""
        scorer = DotScorer(self.items, self.bias, self.scored, self.angle)
        block = UserBlock(np.arange(len(self.vectors)), self.vectors)
        more = CountingSettings(**settings, **self.draw_tiles())
        return count_ranks(scorer, block, self.truth, self.masked, device=device, settings=more)


def count_fully(world, top_k):
    """Return (above, tied, before) by truth entry, and each user's list."""
    bias = 0.0 if world.bias is None else world.bias
    counts, tops = [], []
    matrix = world.items.astype(np.float64)
    length = np.sqrt(add_in_order(matrix * matrix)) if world.angle == "cosine" else np.ones(len(matrix))
    for u, vector in enumerate(world.vectors.astype(np.float64)):
        score = add_in_order(matrix * vector) / np.where(length > 0, length, 1.0) + bias
        masked = _row(world.masked, u)
        score[masked[masked >= 0]], score[~world.scored] = np.nan, np.nan
        for item in _row(world.truth, u):
            if item < 0 or np.isnan(score[item]):
                counts.append((-1, 0, 0))
                continue
            tied = np.flatnonzero(score == score[item])
            counts.append(
                (np.count_nonzero(score > score[item]), len(tied) - 1, np.count_nonzero(tied < item))
            )
        order = np.lexsort((np.arange(len(score)), -score))
        tops.append([(i, score[i]) for i in order[:top_k] if not np.isnan(score[i])])
    return np.array(counts, np.int64).reshape(-1, 3), tops


def add_in_order(terms_id):
    """Return each row's sum, added from the first to the last."""
    return np.cumsum(terms_id, axis=1)[:, -1] if terms_id.shape[1] else np.zeros(len(terms_id))


def _row(lists, u):
    return lists.items_p[lists.offsets_u[u] : lists.offsets_u[u + 1]]


def check_world(seed):
    """Count one world in every way; return the ways, or raise what differs."""
    try:
        with mock.patch.dict(os.environ):
            return _count_every_way(seed)
    finally:
        families.choose_family.cache_clear()


def _count_every_way(seed):
    world, ways = World(seed), []
    top_k, cutoff = int(world.draws.choice([1, 5, 60, 300])), int(world.draws.choice([1, 5, 60, 1000]))
    counts, tops = count_fully(world, top_k)
    cut = np.where(counts[:, :1] >= cutoff, [[cutoff, 0, 0]], counts)
    for name in [one.name for one in families.FAMILIES if families.works(one)]:
        _force(name)
        _compare(world.count(cutoff=cutoff, reduced=True), cut, (seed, name))
        ways.append(f"up to k, {name}")
    _force("none")
    _compare(world.count(cutoff=cutoff), cut, (seed, "none"))
    _compare(world.count(), counts, (seed, "all ranks"))
    ways += ["up to k, 16 bits", "all ranks, 16 bits", "lists, 16 bits"]
    for device in ("cpu", "cpu:0") if TORCH and seed % 4 == 0 else ("cpu",):
        both = world.count(device, top_k=top_k)
        _compare(both, counts, (seed, "lists", device))
        _compare_lists(both, tops, (seed, "lists", device))
        ways += ["lists, torch"] * (device != "cpu")
    return [*ways, world.kind, "biases" if world.bias is not None else "no biases"]


def _force(name):
    os.environ[families.VARIABLE] = name
    families.choose_family.cache_clear()


def _compare(found, counts, where):
    result = np.stack([found.above_p, found.tied_p, found.before_p], axis=1)
    assert np.array_equal(result, counts), where


def _compare_lists(found, tops, where):
    for wanted, row, scores in zip(tops, found.top_items_uk, found.top_scores_uk, strict=True):
        assert list(zip(row, scores, strict=True))[: len(wanted)] == wanted, where
        assert np.all(row[len(wanted) :] == -1), where
        assert np.all(np.isnan(scores[len(wanted) :])), where


def main():
    """Count worlds, and print how many in which way; exit code 1 if one differs."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--worlds", type=int, default=1000)
    flags.add_argument("--first", type=int, default=0)
    args, ways, wrong = flags.parse_args(), Counter(), 0
    for seed in range(args.first, args.first + args.worlds):
        try:
            ways.update(check_world(seed))
        except AssertionError as error:
            wrong += 1
            print(f"differs: {error}", flush=True)
    print(f"{args.worlds:,} worlds from {args.first:,}, {wrong} differ")
    print(*(f"{count:8,} {way}" for way, count in sorted(ways.items())), sep="\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
