"""User values after each number of given ratings.

Prefixes are folded in, ranked and measured, without Spark. A user's row (items and ratings in the order
given) comes in once. Vectors for prefixes are made here, and never leave. A batch holds some users' pairs
(user, point): their vectors, and their lists with truth and excluded items.

Axes: u users, p rows of the users, x pairs (user, point), l points, c cut-offs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.definitions import Definition
from recbench_spark.errors import ConfigError
from recbench_spark.metrics.kernels.accuracy import cutoffs, measure
from recbench_spark.metrics.kernels.chunk import is_relevant
from recbench_spark.models.prefix_vectors import PrefixFolder
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.positives import ItemLists, RankCounts
from recbench_spark.ranking.kernels.rankings import Rankings
from recbench_spark.ranking.kernels.scorers import WHOLE_ROWS, Scorer, UserBlock, count_listed, count_ranks
from recbench_spark.ranking.scored import drop_unknown_users, keep_known_users
from recbench_spark.splits.kernels.prefixes import (
    PrefixRows,
    PrefixRule,
    count_points,
    list_ranges,
    make_prefixes,
)

BATCH_ENTRIES = 1 << 21
"""Given, tested and masked list entries in a batch: 50 MB of whole numbers."""

BATCH_PAIRS = 1 << 14
"""Pairs (user, point) in a batch: 4 MB for vectors with 64 numbers in float32, and twice 8 MB in float64.
"""

MODES = ("unseen", "rated")
"""A prefix's candidates: the catalogue without given items, or the user's tested items alone."""


@dataclass(frozen=True)
class CurveUsers:
    """Users with their rows, in the order given.

    Attributes:
        keys_u: hashed users.
        offsets: (u + 1,) bounds of the users' rows.
        items_p: item indices; -1 for an item outside the catalogue.
        ratings_p: ratings.
    """

    keys_u: npt.NDArray[np.int64]
    offsets: Ints
    items_p: Ints
    ratings_p: Floats

    def select_users(self, start: int, stop: int) -> CurveUsers:
        """Return users start .. stop - 1."""
        rows = slice(int(self.offsets[start]), int(self.offsets[stop]))
        offsets = self.offsets[start : stop + 1] - self.offsets[start]
        return CurveUsers(self.keys_u[start:stop], offsets, self.items_p[rows], self.ratings_p[rows])

    def reorder(self, places: Ints) -> CurveUsers:
        """Return the same users with reordered rows."""
        return CurveUsers(self.keys_u, self.offsets, self.items_p[places], self.ratings_p[places])


@dataclass(frozen=True)
class CurveRequest:
    """Values wanted along a curve.

    Attributes:
        rule: who stands at which point, and what is tested there.
        metrics: metrics with values at a cut-off.
        ks: cut-offs.
        definition: for the metrics; candidates are `unseen` or `rated`.
        uncut: also values over the whole ranking.
        device: torch device, or WHOLE_ROWS.
    """

    rule: PrefixRule
    metrics: tuple[str, ...]
    ks: tuple[int, ...]
    definition: Definition
    uncut: bool = False
    device: str = WHOLE_ROWS

    def __post_init__(self) -> None:
        """Refuse candidate modes unfit for prefixes.

        Raises:
            ConfigError: the definition has such a mode.
        """
        if self.definition.candidates not in MODES:
            raise ConfigError(
                f"learning curves with candidates '{self.definition.candidates}'", " or ".join(MODES)
            )


def measure_prefixes(
    scorer: Scorer, folder: PrefixFolder | None, users: CurveUsers, request: CurveRequest
) -> dict[str, Floats]:
    """Return each metric's values: (u, l, c).

    NaN where a user does not stand or is left out.

    Args:
        scorer: the model.
        folder: makes vectors from prefixes; None for models scoring by history or by item alone.
        users: all rows of each user.
        request: points, metrics and definition.
    """
    points, ks = request.rule.given, list(request.ks)
    columns = {name: len(cutoffs(name, ks, request.uncut)) for name in request.metrics}
    values = {name: np.full((len(users.keys_u), len(points), c), np.nan) for name, c in columns.items()}
    for ranked in rank_prefixes(scorer, folder, users, request):
        measured = measure(ranked.rankings, request.metrics, ks, request.definition, request.uncut)
        place_x = np.searchsorted(points, ranked.point_x)
        for name, value_xc in measured.items():
            values[name][ranked.user_x, place_x] = value_xc
    return values


class RankedPrefixes(NamedTuple):
    """One batch's pairs (user, point), ranked.

    Attributes:
        user_x: each pair's user.
        point_x: the number of given ratings.
        items_p: the pairs' tested items, bounded by `rankings.offsets`.
        rankings: their ranks; a user there is a pair.
    """

    user_x: Ints
    point_x: Ints
    items_p: Ints
    rankings: Rankings


def rank_prefixes(
    scorer: Scorer, folder: PrefixFolder | None, users: CurveUsers, request: CurveRequest
) -> Iterator[RankedPrefixes]:
    """Yield all pairs' rankings in batches of limited size.

    Arguments as `measure_prefixes`.
    """
    for start, stop in cut_batches(users, request.rule):
        batch = users.select_users(start, stop)
        prefixes = make_prefixes(batch.offsets, request.rule)
        rankings = _rank_pairs(scorer, folder, batch, prefixes, request)
        tested_p = batch.items_p[prefixes.truth_p]
        yield RankedPrefixes(start + prefixes.user_x, prefixes.point_x, tested_p, rankings)


def cut_batches(users: CurveUsers, rule: PrefixRule) -> Iterator[tuple[int, int]]:
    """Yield user ranges small enough for a batch.

    A range has at least one user.
    """
    pairs_u = count_points(users.offsets, rule)
    entries_u = pairs_u * (np.diff(users.offsets) + rule.given[-1])
    load_u = np.maximum(entries_u / BATCH_ENTRIES, pairs_u / BATCH_PAIRS)
    ends = np.cumsum(load_u)
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0.0
        stop = max(start + 1, int(np.searchsorted(ends, before + 1.0, side="right")))
        yield start, stop
        start = stop


def _rank_pairs(
    scorer: Scorer,
    folder: PrefixFolder | None,
    users: CurveUsers,
    prefixes: PrefixRows,
    request: CurveRequest,
) -> Rankings:
    block, known_x = fold_pairs(folder, users, prefixes, request.definition)
    truth = ItemLists(prefixes.truth_offsets, users.items_p[prefixes.truth_p])
    masked = ItemLists(prefixes.masked_offsets, users.items_p[prefixes.masked_p])
    known_x = keep_known_users(scorer, block, known_x)
    counts = drop_unknown_users(known_x, truth, _count(scorer, block, truth, masked, request))
    relevance_p, ranks = users.ratings_p[prefixes.truth_p], (counts.above_p, counts.tied_p, counts.before_p)
    return Rankings(prefixes.truth_offsets, relevance_p, *ranks, counts.candidates_u)


def _count(
    scorer: Scorer, block: UserBlock, truth: ItemLists, masked: ItemLists, request: CurveRequest
) -> RankCounts:
    if request.definition.candidates == "rated":
        return count_listed(scorer, block, truth, truth)
    settings = CountingSettings(cutoff=None if request.uncut else max(request.ks))
    return count_ranks(scorer, block, truth, masked, device=request.device, settings=settings)


def fold_pairs(
    folder: PrefixFolder | None, users: CurveUsers, prefixes: PrefixRows, definition: Definition
) -> tuple[UserBlock, Bools]:
    """Return what scorers need for each pair, and a mask.

    The mask is true for pairs known to the model. As in a night, a history holds relevant rows alone.
    """
    keys_x = users.keys_u[prefixes.user_x]
    relevant = is_relevant(users.ratings_p[prefixes.given_p], definition)
    bounds = np.concatenate([[0], np.cumsum(relevant)])[prefixes.given_offsets]
    history = ItemLists(bounds, users.items_p[prefixes.given_p[relevant]])
    if folder is None:
        return UserBlock(keys_x, None, history), np.ones(len(keys_x), np.bool_)
    # Each user's rows up to the last point are folded in once, and every point takes its prefix.
    last_u = np.zeros(len(users.keys_u), np.int64)
    np.maximum.at(last_u, prefixes.user_x, prefixes.point_x)
    offsets, rows = list_ranges(users.offsets[:-1], users.offsets[:-1] + last_u)
    folded = folder.fold(offsets, users.items_p[rows], users.ratings_p[rows])
    place_x = offsets[prefixes.user_x] + prefixes.point_x - 1
    return UserBlock(keys_x, folded.vectors_pd[place_x], history), folded.known_p[place_x]
