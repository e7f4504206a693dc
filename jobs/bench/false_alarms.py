"""Simulate months of nights: how often regressions alarm, and miss.

    python -m jobs.bench.false_alarms --months 1000

Each month has 30 nights of 10 models beside a baseline, on 20 metrics of the rank of one relevant item, for
the same users with new items. Users differ in how hard they are; models do not differ, so each alarm is
false. Then one model has worse ranks, by so much that a t-test of one night, adjusted by Holm for the 200
comparisons, finds the fall four times in five; the sequential rule looks at twice the users, at once or
over two nights.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from scipy import stats

from recbench_spark.analyses.comparisons.kernels import betting
from recbench_spark.analyses.comparisons.kernels.significance import difference_steps, holm
from recbench_spark.core.arrays import Floats, Ints

NIGHTS, MODELS, LEVEL = 30, 10, 0.05
RANKS = 64
"""Ranks beyond this one count as this one: no metric of the study sees further."""

CUTOFFS = (5, 10, 20, 50)


def list_metrics() -> Floats:
    """Return each metric's value by rank, (20, ranks)."""
    rank = np.arange(1, RANKS + 1)
    gains = (1 / np.log2(rank + 1), 1 / rank, np.ones(RANKS), 1 / np.sqrt(rank), 1 - (rank - 1) / RANKS)
    return np.stack([np.where(rank <= k, gain, 0.0) for k in CUTOFFS for gain in gains])


class MonthWorld:
    """Users with a difficulty, and metrics of two models' ranks."""

    def __init__(self, users: int, seed: int) -> None:
        """Draw the users; prepare each metric's different differences."""
        self.rng = np.random.default_rng(seed)
        self.hard_u = self.rng.normal(2.5, 1.0, users)
        value_xr = list_metrics()
        steps = difference_steps(value_xr[:, :, None] - value_xr[:, None, :]).reshape(len(value_xr), -1)
        self.kinds = [np.unique(step, return_inverse=True) for step in steps]

    def draw_ranks(self, worse: float = 0.0) -> Ints:
        """Draw a night's ranks from 0 on, (models + 1, users).

        The last model is the baseline; the first one's ranks are larger by the factor e^worse.
        """
        noise = self.rng.normal(0, 1, (MODELS + 1, len(self.hard_u)))
        shift = np.zeros((MODELS + 1, 1))
        shift[0] = worse
        return np.minimum(np.exp(self.hard_u + noise + shift), RANKS - 1).astype(np.int64)

    def count_falls(self, ranks: Ints, others: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield each metric's falls in steps, (d,), and users, (models, d)."""
        cells = ranks * RANKS + others
        of_cell = np.stack([np.bincount(cell, minlength=RANKS * RANKS) for cell in cells])
        for steps, place in self.kinds:
            users = np.stack([np.bincount(place, weights=one, minlength=len(steps)) for one in of_cell])
            yield -steps, users.astype(np.int64)


def weigh_night(world: MonthWorld, ranks: Ints, others: Ints, planned: int) -> tuple[Floats, Floats]:
    """Return logarithms of wealth, (20, models, b), and p of one-sided t-tests."""
    logs, p_values = [], []
    for steps, users in world.count_falls(ranks, others):
        logs.append(betting.bet_on_users(steps, users, 0.0, planned))
        n = users.sum(axis=1)
        mean = users @ steps / n
        deviation = np.sqrt(((steps[None, :] - mean[:, None]) ** 2 * users).sum(axis=1) / (n - 1))
        p_values.append(stats.t.sf(mean / np.maximum(deviation, 1e-12) * np.sqrt(n), n - 1))
    return np.stack(logs), np.stack(p_values)


def find(e_x: Floats) -> bool:
    """Tell whether e-BH finds any fall."""
    return bool((betting.adjust_evidence(e_x.reshape(-1)) >= 1 / LEVEL).any())


ALARMS = (
    "sequential, against a model, over all nights",
    "sequential, against the night before",
    "t-test, Holm over a night",
    "t-test, no correction",
    "t-test, one metric of one model",
)


def simulate_month(world: MonthWorld, planned: int) -> list[bool]:
    """Simulate a month without differences; tell which rules alarm."""
    alarms = np.zeros(len(ALARMS), bool)
    wealth: Floats = np.zeros((len(world.kinds), MODELS, betting.BETS))
    before = world.draw_ranks()
    for _ in range(NIGHTS):
        ranks = world.draw_ranks()
        logs, p = weigh_night(world, ranks[:-1], np.broadcast_to(ranks[-1], ranks[:-1].shape), planned)
        wealth += logs
        nightly, _ = weigh_night(world, ranks[:-1], before[:-1], planned)
        before = ranks
        alarms |= [
            find(betting.measure_evidence(wealth)),
            find(betting.measure_evidence(nightly) / NIGHTS),
            bool((holm(p.reshape(-1)) < LEVEL).any()),
            bool((p < LEVEL).any()),
            bool(p[0, 0] < LEVEL),
        ]
    return alarms.tolist()


def find_fall(world: MonthWorld, planned: int, worse: float, nights: int) -> tuple[bool, bool]:
    """Plant a fall of the first model; tell if t-test and rule see it.

    The metric is NDCG@10, the t-test is the first night's.
    """
    wealth: Floats = np.zeros((len(world.kinds), MODELS, betting.BETS))
    seen_by_test = False
    for night in range(nights):
        ranks = world.draw_ranks(worse)
        logs, p = weigh_night(world, ranks[:-1], np.broadcast_to(ranks[-1], ranks[:-1].shape), planned)
        wealth += logs
        if night == 0:
            seen_by_test = bool(holm(p.reshape(-1)).reshape(p.shape)[5, 0] < LEVEL)
    evidence = betting.measure_evidence(wealth)
    adjusted = betting.adjust_evidence(evidence.reshape(-1)).reshape(evidence.shape)
    return seen_by_test, bool(adjusted[5, 0] >= 1 / LEVEL)


def choose_fall(users: int, planned: int) -> float:
    """Search the fall that the t-test finds four times in five."""
    low, high = 0.0, 2.0
    for _ in range(7):
        middle = (low + high) / 2
        share = np.mean([find_fall(MonthWorld(users, seed), planned, middle, 1)[0] for seed in range(200)])
        low, high = (middle, high) if share < 0.8 else (low, middle)
    return high


def main() -> None:
    """Print both tables of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--months", type=int, default=1000)
    parser.add_argument("--users", type=int, default=500)
    options = parser.parse_args()
    planned = 10_000
    months = [simulate_month(MonthWorld(options.users, seed), planned) for seed in range(options.months)]
    print(f"| rule | months of {options.months:,} with a false alarm |\n|---|---|")
    for name, share in zip(ALARMS, np.mean(months, axis=0), strict=True):
        print(f"| {name} | {share:.1%} |")
    worse = choose_fall(options.users, planned)
    trials = [
        (
            find_fall(MonthWorld(options.users, seed), planned, worse, 2),
            find_fall(MonthWorld(2 * options.users, seed), planned, worse, 1),
        )
        for seed in range(1000, 2000)
    ]
    test, nights, users = (np.mean([one[a][b] for one in trials]) for a, b in ((0, 0), (0, 1), (1, 1)))
    print(
        f"\nA fall seen by the t-test in {test:.1%}: by the rule over two nights {nights:.1%}, "
        f"with twice the users in one night {users:.1%} of 1,000 trials."
    )


if __name__ == "__main__":
    main()
