"""Count flagged methods on boards of a planted world.

    python jobs/studies/planted_boards.py --methods 100 --seed 1

How many under-tuned methods are flagged, and how many fair ones? Each method has an error over its
settings with a known optimum, and a search as the shipped benchmark files declare it: points from
`boards.search_spaces.draw_points`, trials with seed noise, a value over ten folds. A method is
under-tuned if its run is worse than its optimum by 1 % of the error or three times the fold noise,
whichever is more. The verdicts come from `boards.entries.judge_entries`. No data, no Spark.

Methods with the note "no power" are counted separately. The same methods are judged once more without
their searches: each must have the note "never searched", and none is flagged.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from recbench_spark import cli
from recbench_spark.boards.entries import Entry, SettingsSource, judge_entries, spread_columns
from recbench_spark.boards.fold_statistics import summarise_folds
from recbench_spark.boards.search_spaces import draw_points, make_search
from recbench_spark.boards.verdicts import MIN_GAIN_SHARE, MIN_GAIN_SPREADS, TuningVerdict
from recbench_spark.config import SettingRange
from recbench_spark.errors import OK

SEEDS_NOISE, FOLDS_SD, FOLDS, ERROR = 0.0005, 0.0025, 10, 0.8
"""Standard deviations over seeds and folds, and the optimum's error.

They are similar to MovieLens 1M.
"""

BUDGETS = ((2, 16), (3, 16), (4, 16), (2, 8), (2, 4))
"""Numbers of settings and trials.

The shipped files have them, and three settings with 16 trials are added.
"""

SEED_STEP = 1_000_000
"""Most methods of a seed, so no two seeds share a search's points."""

SPACES = (
    SettingRange(low=0.001, high=0.02, log=True),
    SettingRange(low=0.0005, high=0.1, log=True),
    SettingRange(low=0.02, high=0.15),
    SettingRange(low=0.5, high=50, log=True),
)

Error = Callable[[Mapping[str, float]], float]


class Method(NamedTuple):
    """A method in the planted world.

    Attributes:
        entry: row on the board.
        tuning: search, and the used settings.
        excess: true difference between the run and its optimum.
    """

    entry: Entry
    tuning: SettingsSource
    excess: float

    @property
    def under_tuned(self) -> bool:
        """True if the run is truly under-tuned."""
        return self.excess > max(
            MIN_GAIN_SHARE * ERROR, MIN_GAIN_SPREADS * (self.entry.spread_folds or 0.0)
        )


def make_method(number: int, dims: int, budget: int, seed: int = 0) -> Method:
    """Make one method as a function of its arguments.

    Every second space misses the optimum, and every fifth run uses a random trial instead of the best.
    """
    rng = np.random.default_rng((number, dims, budget, seed))  # `seed` 0 has the bits three numbers gave
    space = {f"setting_{at}": SPACES[at] for at in range(dims)}
    error = make_error(rng, space, missed=number % 2 == 1)
    start = seed * SEED_STEP
    tried = [
        {n: float(x) for n, x in p.items()} for p in draw_points(space, budget, "sobol", start + number)
    ]
    trials = [(setting, error(setting) + rng.normal(0, SEEDS_NOISE)) for setting in tried]
    search = make_search(space, trials, SEEDS_NOISE)
    assert search is not None
    best = min(trials, key=lambda one: one[1])[0]
    used = tried[int(rng.integers(budget))] if number % 5 == 4 else best
    folds = error(used) + rng.normal(0, FOLDS_SD, FOLDS) + rng.normal(0, SEEDS_NOISE, FOLDS)
    facts = spread_columns(summarise_folds({(n, 0): float(x) for n, x in enumerate(folds)}))
    described = ("planted", "ten folds", "rmse", True, f"method {number}", f"method {number}")
    entry = Entry("planted", "ours", *described, ran_by="ours", **facts)
    return Method(entry, SettingsSource(search, used), error(used) - ERROR)


def make_error(rng: np.random.Generator, space: Mapping[str, SettingRange], missed: bool) -> Error:
    """Make a rotated bowl over settings, steeper on one side.

    Some settings have no effect.

    `missed`: the most important setting's optimum is outside its range.
    """
    dims = len(space)
    depth = rng.uniform(0.02, 0.2, dims) * (rng.random(dims) > 0.25)
    depth[0] = depth[0] or 0.1
    bottom = rng.uniform(0.15, 0.85, dims)
    if missed:
        bottom[depth.argmax()] = 0.5 + rng.choice([-1, 1]) * rng.uniform(0.6, 1.2)
    turn = np.triu(rng.uniform(-0.5, 0.5, (dims, dims)), 1) / max(1.0, np.sqrt(dims - 1))
    shape = np.sqrt(np.outer(depth, depth)) * (np.eye(dims) + turn + turn.T)
    steeper = rng.uniform(-0.8, 0.8, dims) * (rng.random() < 0.5)

    def error(setting: Mapping[str, float]) -> float:
        away = np.array([range_position(space[name], setting[name]) for name in space]) - bottom
        bent = away * np.where(np.sign(away) == np.sign(steeper), 1 + abs(steeper), 1 - abs(steeper) / 2)
        return float(ERROR + bent @ shape @ bent)

    return error


def range_position(of: SettingRange, value: float) -> float:
    """Place a value in its range, from 0 to 1."""
    assert of.low is not None and of.high is not None
    if of.log:
        return float(np.log(value / of.low) / np.log(of.high / of.low))
    return float((value - of.low) / (of.high - of.low))


def count_verdicts(methods: Sequence[Method]) -> dict[str, Counter[str]]:
    """Count verdicts on under-tuned and on fair methods.

    A verdict is flagged, fine, or no power.
    """
    verdicts = judge_entries(
        [method.entry for method in methods], {}, {}, {m.entry.entry_id: m.tuning for m in methods}
    )
    counts = {"under-tuned": Counter[str](), "fair": Counter[str]()}
    for method in methods:
        truth = "under-tuned" if method.under_tuned else "fair"
        counts[truth][_classify_verdict(verdicts[method.entry.entry_id])] += 1
    return counts


def _classify_verdict(verdict: TuningVerdict) -> str:
    if verdict.under_tuned:
        return "flagged"
    codes = {note.code for note in verdict.notes}
    return "no power" if "no_power" in codes else "never searched" if "never_searched" in codes else "fine"


def drop_searches(methods: Sequence[Method]) -> list[Method]:
    """Return the same methods without their searches."""
    return [method._replace(tuning=SettingsSource()) for method in methods]


def gather_methods(dims: int, budget: int, wanted: int, seed: int = 0) -> list[Method]:
    """Gather as many under-tuned as fair methods."""
    kinds: dict[bool, list[Method]] = {True: [], False: []}
    number = 0
    while min(map(len, kinds.values())) < wanted and number < 50 * wanted:
        method = make_method(number, dims, budget, seed)
        if len(kinds[method.under_tuned]) < wanted:
            kinds[method.under_tuned].append(method)
        number += 1
    return [*kinds[True], *kinds[False]]


Counts = Mapping[str, Mapping[str, int]]


def make_row(dims: int, budget: int, counts: Counts, unsearched: Counts) -> str:
    """Format a table line.

    Shares are over methods the board decided.

    Args:
        dims: number of searched settings.
        budget: number of trials.
        counts: verdicts on under-tuned and on fair methods.
        unsearched: verdicts on the same methods without their searches.
    """
    cells = []
    for truth in ("under-tuned", "fair"):
        of = counts[truth]
        decided = of.get("flagged", 0) + of.get("fine", 0)
        share = f"{of.get('flagged', 0) / decided:.0%}" if decided else "none decided"
        cells.append(f"{of.get('flagged', 0)} of {decided} ({share}), no power {of.get('no power', 0)}")
    total = sum(sum(of.values()) for of in unsearched.values())
    cells.append(f"{sum(of.get('never searched', 0) for of in unsearched.values())} of {total}")
    return f"| {dims} x {budget} | {' | '.join(cells)} |"


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    count, each = cli.parse_count, "methods of each kind and budget (default 100)"
    flags.add_argument("--methods", type=count, default=100, help=each)
    flags.add_argument("--seed", type=count, default=0, help="seed of another planted world, from 1")
    return flags


def main(args: argparse.Namespace) -> int:
    """Print a line for each budget."""
    print(
        "| settings x trials | under-tuned, flagged | fair, flagged | without a search: never searched |\n"
        "|---|---|---|---|"
    )
    for dims, budget in BUDGETS:
        methods: Any = gather_methods(dims, budget, args.methods, args.seed)
        unsearched = count_verdicts(drop_searches(methods))
        print(make_row(dims, budget, count_verdicts(methods), unsearched), flush=True)
    return OK


if __name__ == "__main__":
    cli.run(main, parser())
