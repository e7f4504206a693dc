"""Index over signed random projections with Weak-AND; see `kernels.weak_and`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from recbench_spark.core.arrays import Floats32, Ints
from recbench_spark.ranking.kernels.products import lengths
from recbench_spark.retrieval.interface import IndexedItems
from recbench_spark.retrieval.kernels import weak_and
from recbench_spark.retrieval.kernels.candidates import ItemSets
from recbench_spark.retrieval.kernels.projections import (
    Projections,
    choose_longest,
    make_projections,
    make_tokens,
    restore_projections,
)
from recbench_spark.retrieval.settings import HashIndexSettings

Match = Callable[[Ints, weak_and.Postings, weak_and.Threshold, int], weak_and.Matches]
WAYS: dict[str, Match] = {"counting": weak_and.match_by_counting, "pivots": weak_and.match_by_pivots}
SAMPLE = 16
"""Queries on which `first_level: auto` tries both ways."""
ARRAYS = ("bands_b", "tokens_t", "offsets_t", "items_p", "always_a")


@dataclass(frozen=True)
class HashBuilder:
    """Builds and opens the hash index of one partition."""

    settings: HashIndexSettings

    def build(self, items: IndexedItems, folder: Path) -> None:
        """Draw directions, sort items by token, write numpy arrays."""
        settings, vectors = self.settings, items.vectors_nd
        projections = make_projections(
            vectors.shape[1], bands=settings.bands, bits=settings.bits, seed=settings.seed
        )
        always = choose_longest(lengths(vectors), settings.always)
        postings = weak_and.make_postings(
            make_tokens(vectors, projections), always, settings.largest_bucket
        )
        for name in ARRAYS:
            np.save(folder / f"{name}.npy", getattr(postings, name))
        np.save(folder / "cut.npy", np.array(postings.cut))
        np.save(folder / "directions.npy", projections.directions_jd)
        np.save(folder / "items.npy", items.items_n)

    def read(self, folder: Path) -> HashReader:
        """Memory-map the arrays."""
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
        postings = weak_and.Postings(**arrays, cut=int(np.load(folder / "cut.npy")))
        directions = restore_projections(np.load(folder / "directions.npy"), self.settings.bits)
        return HashReader(self.settings, directions, postings, np.load(folder / "items.npy", mmap_mode="r"))


@dataclass(frozen=True)
class HashReader:
    """Searches one partition's postings and turns rows into items."""

    settings: HashIndexSettings
    projections: Projections
    postings: weak_and.Postings
    items_n: Ints

    fastest: dict[str, str] = field(default_factory=dict, compare=False)
    """The faster way on a sample, once both were tried."""

    def limit_candidates(self, depth: int) -> int:
        """Return all items: theta alone limits the candidates."""
        return len(self.items_n)

    @property
    def cut_items(self) -> int:
        """Items left out of full buckets, summed over all bands."""
        return self.postings.cut

    @cached_property
    def threshold(self) -> weak_and.Threshold:
        """Theta, with bands of weight 1."""
        return weak_and.make_threshold(self.settings.theta, self.settings.bands)

    def search(self, queries_ud: Floats32, depth: int) -> ItemSets:
        """Return all items at or above theta, whatever `depth` is."""
        matches = self.match(make_tokens(queries_ud, self.projections))
        return ItemSets(matches.offsets_u, self.items_n[matches.items_c].astype(np.int32))

    def match(self, tokens_ub: Ints) -> weak_and.Matches:
        """Return the candidates for tokens by the configured way.

        With `auto` it is the faster way.
        """
        way: str = self.settings.first_level
        if way == "auto" and "way" not in self.fastest and len(tokens_ub) >= SAMPLE:
            self.fastest["way"] = self._choose_way(tokens_ub[:SAMPLE])
        if way == "auto":
            way = self.fastest.get("way", "counting")
        return WAYS[way](tokens_ub, self.postings, self.threshold, len(self.items_n))

    def _choose_way(self, tokens_ub: Ints) -> str:
        """Return the way that answers a few queries faster.

        Both ways return the same set, so only time depends on the choice.
        """
        seconds = {}
        for name, match in WAYS.items():
            match(tokens_ub[:1], self.postings, self.threshold, len(self.items_n))  # compiles
            began = time.perf_counter()
            match(tokens_ub, self.postings, self.threshold, len(self.items_n))
            seconds[name] = time.perf_counter() - began
        return min(WAYS, key=lambda name: seconds[name])
