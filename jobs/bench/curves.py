"""Time learning curves beside the ranking of ready vectors.

    python jobs/bench/curves.py                                      2,000 users x 20 points x 20,000 items
    python jobs/bench/curves.py --spark --users 100000 --rounds 1    through Spark, from stored rows

Without `--spark` one process works in one thread. Item vectors and histories are drawn; each user has 40
rows. For each kind of fold-in the bench takes turns between (1) the ranks, up to 50, of ready vectors,
and their NDCG@50, and (2) the whole curve: the lists for all prefixes, their vectors, the same ranks and
values. It prints this process's CPU seconds, because other processes may share the machine, and the ratio
of the medians. With `--spark` both ways run through Spark on all cores (`spark_curves.py`), and the
memory of workers and driver is printed too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench.harness import add_counts, measure_own_cpu, take_turns
from jobs.bench.spark_curves import run_spark
from recbench_spark import cli
from recbench_spark.analyses.curves.learning_curves import CurveRequest, CurveUsers, measure_prefixes
from recbench_spark.core.arrays import Floats
from recbench_spark.core.definitions import Definition
from recbench_spark.errors import OK
from recbench_spark.metrics.kernels.accuracy import measure
from recbench_spark.models.prefix_fold_in import decompose_items
from recbench_spark.models.prefix_vectors import (
    ConfidenceFolder,
    ConfidenceFoldIn,
    PrefixFolder,
    RatingFolder,
    RidgeFoldIn,
)
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.rankings import Rankings
from recbench_spark.ranking.kernels.scorers import DotScorer, UserBlock, count_ranks
from recbench_spark.splits.kernels.prefixes import PrefixRule, make_prefixes

ROWS, K = 40, 50
"""A user's rows, and the cut-off."""


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    add_counts(flags, users=2000, items=20_000, dims=64, points=20, rounds=3)
    flags.add_argument("--spark", action="store_true", help="through Spark, from stored rows")
    flags.add_argument("--kinds", default="als,als-explicit,implicit_als", help="with --spark, by commas")
    flags.add_argument("--folder", type=Path, help="place of the files with --spark")
    return flags


def main(args: argparse.Namespace) -> int:
    """Time both ways for each kind of fold-in."""
    draw = np.random.default_rng(0)
    vectors = (draw.normal(size=(args.items, args.dims)) / args.dims**0.5).astype(np.float32)
    factors, known_i = vectors.astype(np.float64), np.ones(args.items, np.bool_)
    folders: dict[str, PrefixFolder] = {
        "als": RatingFolder(RidgeFoldIn(0.1), factors, known_i),
        "implicit als": ConfidenceFolder(
            ConfidenceFoldIn(0.1, 10.0), factors, known_i, decompose_items(factors)
        ),
    }
    users, request = draw_users(draw, args.users, args.items), make_request(args.points)
    if args.spark:
        run_spark(args, vectors, users, request)
        return OK
    print("fold-in        prefixes   ready vectors   whole curve   ratio   fold-in alone, us a prefix")
    for name, folder in folders.items():
        times = time_folder(DotScorer(vectors), folder, users, request, args.rounds)
        ready, whole, alone = (statistics.median(column) for column in times.values())
        prefixes = args.users * args.points
        print(
            f"{name:12} {prefixes:10,} {ready:13.1f} s {whole:11.1f} s {whole / ready:7.2f} "
            f"{alone / prefixes * 1e6:14.1f}"
        )
    return OK


def draw_users(draw: np.random.Generator, users: int, items: int) -> CurveUsers:
    """Draw histories without repeated items."""
    places = draw.integers(0, items // ROWS, (users, ROWS)) * ROWS + np.arange(ROWS)
    order = np.argsort(draw.random((users, ROWS)), axis=1)
    rows = np.take_along_axis(places, order, axis=1).reshape(-1)
    keys = draw.integers(-(2**62), 2**62, users)
    return CurveUsers(
        keys, np.arange(users + 1) * ROWS, rows, draw.integers(1, 6, users * ROWS).astype(np.float64)
    )


def make_request(points: int) -> CurveRequest:
    """Make a request for NDCG@50 at points up to `points`.

    Points start at 1.
    """
    rule = PrefixRule(tuple(range(1, points + 1)))
    return CurveRequest(rule, ("ndcg",), (K,), Definition(gain="linear"), device="cpu")


def time_folder(
    scorer: DotScorer, folder: PrefixFolder, users: CurveUsers, request: CurveRequest, rounds: int
) -> dict[str, list[float]]:
    """Time ready vectors, whole curve, and fold-in alone, in turns.

    The times are CPU seconds.
    """
    prefixes = make_prefixes(users.offsets, request.rule)
    truth = ItemLists(prefixes.truth_offsets, users.items_p[prefixes.truth_p])
    masked = ItemLists(prefixes.masked_offsets, users.items_p[prefixes.masked_p])
    folded = folder.fold(users.offsets, users.items_p, users.ratings_p).vectors_pd
    place_x = users.offsets[prefixes.user_x] + prefixes.point_x - 1
    ready = UserBlock(users.keys_u[prefixes.user_x], folded[place_x])
    relevance, last = users.ratings_p[prefixes.truth_p], request.rule.given[-1]
    rows = (users.offsets[:-1, None] + np.arange(last)).reshape(-1)
    given = (np.arange(len(users.keys_u) + 1) * last, users.items_p[rows], users.ratings_p[rows])
    works: dict[str, Callable[[], object]] = {
        "ready": lambda: measure_ready(scorer, ready, (truth, masked), relevance, request),
        "whole": lambda: measure_prefixes(scorer, folder, users, request),
        "alone": lambda: folder.fold(*given),
    }
    steps = {name: partial(measure_own_cpu, work) for name, work in works.items()}
    return take_turns(steps, rounds, warm_ups=1)  # the first turn compiles


def measure_ready(
    scorer: DotScorer,
    ready: UserBlock,
    lists: tuple[ItemLists, ItemLists],
    relevance: Floats,
    request: CurveRequest,
) -> dict[str, Floats]:
    """Rank ready vectors, and measure the ranks.

    `lists`: truth, and items left out.
    """
    truth = lists[0]
    counts = count_ranks(scorer, ready, *lists, settings=CountingSettings(cutoff=K))
    ranks = (counts.above_p, counts.tied_p, counts.before_p, counts.candidates_u)
    rankings = Rankings(truth.offsets_u, relevance, *ranks)
    return measure(rankings, request.metrics, request.ks, request.definition, uncut=False)


if __name__ == "__main__":
    cli.run(main, parser())
