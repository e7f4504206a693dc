"""Study of learning curves: crossings of a planted world, and systems on real ratings.

    python jobs/studies/curves.py planted --seeds 200
    python jobs/studies/curves.py movielens --ratings ratings.tsv.gz --users 1000

`planted`: two systems whose curves cross at 7.5 given ratings. How often does the interval hold the
crossing, how wide is it, does the switching system beat both on users it has not seen? And how often is a
crossing shown where one system leads everywhere?

`movielens`: systems of several kinds are fitted without some users. These users are folded in after 1 .. L
ratings, and NDCG@k is computed among all items and among the rated ones. No Spark; arrays alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark import cli
from recbench_spark.errors import OK
from recbench_spark.kernels.arrays import Floats
from recbench_spark.kernels.comparison.curve_crossings import bootstrap_crossing, switch_values

USERS, POINTS, NOISE = 1000, 20, 0.15
"""Size of the planted world, and the standard deviation of a value of one system, user and point."""

SLOPE, MIDDLE, LEAD = 0.005, 7.5, 0.01
"""A - B = SLOPE (MIDDLE - l) where the curves cross, and LEAD at every point where they do not."""

CROSSING = 7
"""Points at which A leads."""

LEAST_HOLDING, MOST_WIDTH, LEAST_BETTER, LEAST_REFUSING = 0.92, 5.0, 0.9, 0.92
"""Bounds of the study: shares of seeds, and the mean width of the interval."""


class PlantedCurves(NamedTuple):
    """Values of two systems at the points 1 .. `POINTS`, (u, l) each, and the keys of the users."""

    keys_u: npt.NDArray[np.int64]
    first_ul: Floats
    second_ul: Floats


class CrossingTrial(NamedTuple):
    """Result of one seed: see the bounds of the study."""

    holds: bool
    width: int
    beats_both: bool
    refuses_none: bool


def make_world(seed: int, lead: Callable[[Floats], Floats]) -> PlantedCurves:
    """Make two systems whose difference at a point is `lead`, with independent noise at each point."""
    draw, points = np.random.default_rng(seed), np.arange(1.0, POINTS + 1)
    level, half = 0.2 + 0.2 * points / POINTS, lead(points) / 2
    noise = draw.normal(size=(2, USERS, POINTS)) * NOISE
    keys = draw.integers(-(2**62), 2**62, USERS)
    return PlantedCurves(keys, level + half + noise[0], level - half + noise[1])


def try_world(seed: int, replicates: int = 1000) -> CrossingTrial:
    """Find the crossing of a world, use it on other users, and look for one where there is none."""
    given = range(1, POINTS + 1)

    def falling(points: Floats) -> Floats:
        return SLOPE * (MIDDLE - points)

    world, unseen = make_world(seed, falling), make_world(seed + 2**32, falling)
    crossing = bootstrap_crossing(*world, given, replicates, seed)
    switched = switch_values(unseen.first_ul, unseen.second_ul, crossing.switch).mean()
    parallel = make_world(seed + 2**33, lambda points: np.full(len(points), LEAD))
    return CrossingTrial(
        crossing.shown and crossing.low <= CROSSING <= crossing.high,
        crossing.high - crossing.low,
        bool(switched > max(unseen.first_ul.mean(), unseen.second_ul.mean())),
        not bootstrap_crossing(*parallel, given, replicates, seed).shown,
    )


def run_planted(args: argparse.Namespace) -> int:
    """Print the shares over all seeds; 1 if one is outside of its bound."""
    trials = np.array([try_world(seed, args.replicates) for seed in range(args.seeds)], np.float64)
    holds, width, better, refuses = trials.mean(axis=0)
    print(f"{args.seeds} seeds, {USERS} users, {POINTS} points, {args.replicates} replicates")
    print(f"the interval holds the crossing: {holds:.3f} (at least {LEAST_HOLDING})")
    print(f"mean width of the interval:      {width:.2f} (at most {MOST_WIDTH})")
    print(f"switching beats both:            {better:.3f} (at least {LEAST_BETTER})")
    print(f"no crossing where there is none: {refuses:.3f} (at least {LEAST_REFUSING})")
    good = holds >= LEAST_HOLDING and width <= MOST_WIDTH and better >= LEAST_BETTER
    return OK if good and refuses >= LEAST_REFUSING else 1


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("study", choices=("planted",), help="what to study")
    flags.add_argument("--seeds", type=cli.parse_count, default=200, help="number of planted worlds (200)")
    flags.add_argument("--replicates", type=cli.parse_count, default=1000, help="of the bootstrap (1000)")
    return flags


def main(args: argparse.Namespace) -> int:
    """Run the study that the command names."""
    return run_planted(args)


if __name__ == "__main__":
    cli.run(main, parser())
