"""Study learning curves: planted crossings, and real ratings.

    python jobs/studies/curves.py planted --seeds 200
    python jobs/studies/curves.py systems --ratings ratings.tsv.gz --users 1000 --draws 5
    python jobs/studies/curves.py systems --ratings ratings.csv --users 134 --order time

`planted`: two systems whose curves cross at 7.5 given ratings. How often does the interval hold the
crossing, how wide is it, does the switching system beat both on users it has not seen? And how often is a
crossing shown where one system leads everywhere? The exit code is 1 where a share is outside its bound.

`systems`: SGD, ALS-WR, iALS, item-kNN and popularity are fitted without some users. SGD's settings and
epochs, and ALS-WR's settings, have the least RMSE on a tenth of the training ratings; the other systems
have fixed settings. The users are folded in after 1 .. L ratings, and NDCG@50 is computed among all items
and rated ones. Does the winner among rated items win among all? The file has a header and the columns
user, item, rating (or userId, movieId, rating) and, for `--order time`, timestamp. Spark is not used.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from recbench_spark import cli
from recbench_spark.analyses.comparisons.kernels.significance import pair_sums, paired_t
from recbench_spark.analyses.curves.kernels.crossings import (
    MOST_AT_ENDS,
    CurveCrossing,
    adjust_shares,
    bootstrap_crossing,
    choose_switch,
    switch_values,
)
from recbench_spark.analyses.curves.learning_curves import CurveRequest, CurveUsers, measure_prefixes
from recbench_spark.boards.search_spaces import Setting, draw_points, find_edges
from recbench_spark.boards.settings import SettingRange
from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.definitions import Definition
from recbench_spark.core.hashing import hash_longs, start
from recbench_spark.core.resampling import mean_and_error, moments
from recbench_spark.errors import OK, ConfigError
from recbench_spark.metrics.kernels.learning_curves import average_draws, average_points, summarise_points
from recbench_spark.models.adapters.item_knn import binary_matrix
from recbench_spark.models.nearest_items import cosine_neighbours
from recbench_spark.models.prefix_vectors import PrefixFolder
from recbench_spark.models.rating import registry
from recbench_spark.models.rating.als import ImplicitAlsSettings, fit_implicit_als
from recbench_spark.models.rating.draws import draw_held_out
from recbench_spark.models.rating.interface import Fit, Ratings, RatingSettings
from recbench_spark.models.rating.registry import make_prefix_folder
from recbench_spark.models.rating.sgd import RatingFactorModel
from recbench_spark.ranking.kernels.scorers import DotScorer, NeighbourScorer, Scorer
from recbench_spark.splits.kernels.prefixes import PrefixRule, order_by_hash

USERS, POINTS, NOISE = 1000, 20, 0.15
"""Size of the planted world, and the standard deviation of one value (system, user and point)."""

SLOPE, MIDDLE, LEAD = 0.005, 7.5, 0.01
"""A - B = SLOPE (MIDDLE - l) where the curves cross, and LEAD at every point where they do not."""

CROSSING = 7
"""Points where A leads."""

LEAST_HOLDING, MOST_WIDTH, LEAST_BETTER, LEAST_REFUSING = 0.92, 5.0, 0.9, 0.92
"""Bounds of the study: shares of seeds, and the interval's mean width."""

# ------------------------------------------------------------------------------- planted worlds


class PlantedCurves(NamedTuple):
    """Two systems' values at points 1 .. `POINTS`, (u, l).

    The users' keys come along.
    """

    keys_u: npt.NDArray[np.int64]
    first_ul: Floats
    second_ul: Floats


class CrossingTrial(NamedTuple):
    """One seed's result: see the bounds of the study."""

    holds: bool
    width: int
    beats_both: bool
    refuses_none: bool


def make_world(seed: int, lead: Callable[[Floats], Floats]) -> PlantedCurves:
    """Make two systems whose difference at a point is `lead`.

    Noise is independent at each point.
    """
    draw, points = np.random.default_rng(seed), np.arange(1.0, POINTS + 1)
    level, half = 0.2 + 0.2 * points / POINTS, lead(points) / 2
    noise = draw.normal(size=(2, USERS, POINTS)) * NOISE
    keys = draw.integers(-(2**62), 2**62, USERS)
    return PlantedCurves(keys, level + half + noise[0], level - half + noise[1])


def try_world(seed: int, replicates: int = 1000) -> CrossingTrial:
    """Find a world's crossing, and use it on other users.

    A world without a crossing is searched too.
    """
    given = range(1, POINTS + 1)

    def falling(points: Floats) -> Floats:
        return SLOPE * (MIDDLE - points)

    world, unseen = make_world(seed, falling), make_world(seed + 2**32, falling)
    crossing = bootstrap_crossing(*world, given, replicates=replicates, seed=seed)
    switched = switch_values(unseen.first_ul, unseen.second_ul, crossing.switch).mean()
    parallel = make_world(seed + 2**33, lambda points: np.full(len(points), LEAD))
    return CrossingTrial(
        crossing.shown and crossing.low <= CROSSING <= crossing.high,
        crossing.high - crossing.low,
        bool(switched > max(unseen.first_ul.mean(), unseen.second_ul.mean())),
        not bootstrap_crossing(*parallel, given, replicates=replicates, seed=seed).shown,
    )


def run_planted(args: argparse.Namespace) -> int:
    """Print the shares over all seeds; 1 if one fails.

    A share fails outside its bound.
    """
    trials = np.array([try_world(seed, args.replicates) for seed in range(args.seeds)], np.float64)
    holds, width, better, refuses = trials.mean(axis=0)
    print(f"{args.seeds} seeds, {USERS} users, {POINTS} points, {args.replicates} replicates")
    print(f"the interval holds the crossing: {holds:.3f} (at least {LEAST_HOLDING})")
    print(f"mean width of the interval:      {width:.2f} (at most {MOST_WIDTH})")
    print(f"switching beats both:            {better:.3f} (at least {LEAST_BETTER})")
    print(f"no crossing where there is none: {refuses:.3f} (at least {LEAST_REFUSING})")
    good = holds >= LEAST_HOLDING and width <= MOST_WIDTH and better >= LEAST_BETTER
    return OK if good and refuses >= LEAST_REFUSING else 1


# ------------------------------------------------------------------------------- real ratings

LIKED = 4.0
"""Lowest rating of a liked row."""

STARS = Definition(
    gain="linear",
    negative_grades="signed",
    grade_origin=3.0,
    threshold=LIKED,
    empty_users="zero",
    ties="expected",
)
"""Grades as in the curves' source: rating - 3, kept below 0; a user without a liked row counts 0."""

LOWEST = 128.0
"""Signed NDCG@50 of half stars lies above minus this. Tests do not depend on the values' scale."""

COLUMNS = {"userId": "user", "movieId": "item"}

VALIDATION_SHARE = 0.1
"""Share of the training ratings on which the settings of SGD and ALS-WR are chosen."""


class SearchedKind(NamedTuple):
    """A model kind whose settings are searched for RMSE.

    Attributes:
        space: ranges of the searched settings.
        steps: name of the setting for the number of epochs or sweeps.
        most: largest number of steps; the best number up to it is chosen for each setting.
    """

    space: Mapping[str, SettingRange]
    steps: str
    most: int


SEARCHED = {
    "sgd_mf": SearchedKind(
        {
            "rates": SettingRange(low=0.002, high=0.02, log=True),
            "regularisers": SettingRange(low=0.01, high=0.2, log=True),
        },
        "epochs",
        100,
    ),
    "als_wr": SearchedKind({"regulariser": SettingRange(low=0.01, high=0.3, log=True)}, "sweeps", 30),
}
"""Searches for RMSE: settings are points of Sobol's sequence in these spaces."""


class CurveLog(NamedTuple):
    """Ratings by dense index, sorted by user.

    `users` and `items` are the ids in the log.
    """

    user_r: Ints
    item_r: Ints
    rating_r: Floats
    time_r: Ints | None
    users: Ints
    items: Ints

    def select(self, chosen_r: Bools) -> CurveLog:
        """Return some of the ratings; ids stay."""
        times = None if self.time_r is None else self.time_r[chosen_r]
        rows = (self.user_r[chosen_r], self.item_r[chosen_r], self.rating_r[chosen_r])
        return CurveLog(*rows, times, self.users, self.items)


class System(NamedTuple):
    """A fitted system, with its way to fold prefixes in.

    None: it scores by history or by item.
    """

    scorer: Scorer
    folder: PrefixFolder | None


def read_log(path: str, ordered: bool) -> CurveLog:
    """Read a rating file.

    Raises:
        ConfigError: a column is missing.
    """
    table = pd.read_csv(path, sep="," if path.endswith(".csv") else "\t").rename(columns=COLUMNS)
    wanted = ["user", "item", "rating", *(["timestamp"] if ordered else [])]
    for name in wanted:
        if name not in table.columns:
            raise ConfigError(f"{path}: no column '{name}'", f"columns: {', '.join(table.columns)}")
    table = table.sort_values(["user", *(["timestamp"] if ordered else []), "item"], kind="stable")
    users, user_r = np.unique(table["user"].to_numpy(np.int64), return_inverse=True)
    items, item_r = np.unique(table["item"].to_numpy(np.int64), return_inverse=True)
    times = table["timestamp"].to_numpy(np.int64) if ordered else None
    return CurveLog(user_r, item_r, table["rating"].to_numpy(np.float64), times, users, items)


def hold_users_out(log: CurveLog, count: int, fewest: int, seed: int) -> Bools:
    """Choose users with enough rows, by id hash.

    Returns true for their rows.
    """
    keys_u = hash_longs(log.users, hash_longs(np.full(len(log.users), seed), start(len(log.users))))
    allowed = np.flatnonzero(np.bincount(log.user_r, minlength=len(log.users)) >= fewest)
    if len(allowed) < count:
        raise ConfigError(
            f"{len(allowed)} users have {fewest} rows or more, not {count}", "lower --users or --points"
        )
    chosen = allowed[np.argsort(keys_u[allowed], kind="stable")[:count]]
    return np.isin(log.user_r, chosen)


def fit_systems(train: CurveLog, dims: int, seed: int, trials: int) -> dict[str, System]:
    """Fit the five systems on the users who stay.

    SGD and ALS-WR have settings chosen for RMSE.
    """
    ratings, liked = make_ratings(train), train.select(train.rating_r >= LIKED)
    ials = ImplicitAlsSettings(dims=dims)
    systems = {}
    for name in SEARCHED:
        settings = search_rmse(ratings, name, dims, seed, trials)
        fitted = registry.fit(ratings, settings, seed)
        systems[name] = make_factor_system(fitted, settings, train)
    return systems | {
        "implicit_als": make_factor_system(fit_implicit_als(make_ratings(liked), ials, seed), ials, liked),
        "item_knn": System(fit_neighbours(liked), None),
        "popular": System(DotScorer(np.zeros((len(train.items), 0), np.float32), count_items(liked)), None),
    }


def make_ratings(log: CurveLog) -> Ratings:
    """Return the ratings as learners take them."""
    return Ratings(log.user_r, log.item_r, log.rating_r, len(log.users), len(log.items))


def search_rmse(train: Ratings, kind: str, dims: int, seed: int, trials: int) -> RatingSettings:
    """Search the settings with the least RMSE, and print them.

    The RMSE is measured on a part of the training ratings, after the best number of steps; the returned
    settings have this number. No row from a held-out user is seen.
    """
    space, steps, most = SEARCHED[kind]
    watched_r = draw_held_out(train, VALIDATION_SHARE, seed)
    learnt, watched = train.rows(~watched_r), train.rows(watched_r)
    tried: list[tuple[float, Setting]] = []
    for point in draw_points(space, trials, "sobol", seed):
        settings = registry.make_settings({"kind": kind, "dims": dims, steps: most, **point})
        rmse_s = registry.fit(learnt, settings, seed, watched).rmse_s
        tried.append((float(rmse_s.min()), {**point, steps: int(rmse_s.argmin()) + 1}))
    least, best = min(tried, key=lambda trial: trial[0])
    edges = [edge.name for edge in find_edges(space, best)] + [steps] * (best[steps] == most)
    chosen = ", ".join(f"{name} {value:g}" for name, value in best.items())
    places = f"at the edge of its range: {', '.join(edges)}" if edges else "no setting at an edge"
    print(f"{kind}: RMSE {least:.4f} with {chosen}, the best of {trials} settings ({places})")
    return registry.make_settings({"kind": kind, "dims": dims, **best})


def count_items(log: CurveLog) -> Floats:
    """Count each item's rows."""
    return np.bincount(log.item_r, minlength=len(log.items)).astype(np.float64)


def make_factor_system(fitted: Fit, settings: RatingSettings, train: CurveLog) -> System:
    """Turn a factor model into a system; unknown items unscored."""
    model, known_i = fitted.model, count_items(train) > 0
    assert isinstance(model, RatingFactorModel)
    vectors = np.asarray(model.q_id, np.float32)
    scorer = DotScorer(vectors, np.asarray(model.bias_i, np.float64), known_i)
    return System(scorer, make_prefix_folder(settings, model, known_i, LIKED))


def fit_neighbours(liked: CurveLog, k: int = 100) -> NeighbourScorer:
    """Compute the cosine neighbours of all items."""
    n_items = len(liked.items)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(liked.user_r, minlength=len(liked.users)))])
    items_of_u = binary_matrix(bounds, liked.item_r.astype(np.int32), n_items)
    users_of_i = items_of_u.T.tocsr()
    counts = np.diff(users_of_i.indptr).astype(np.int64)
    similar = cosine_neighbours(users_of_i, items_of_u, counts, range(n_items), k)
    order = np.lexsort((similar.items, similar.neighbours))
    rows = np.concatenate([[0], np.cumsum(np.bincount(similar.neighbours, minlength=n_items))])
    return NeighbourScorer(rows, similar.items[order], similar.weights[order], None, counts > 0)


def measure_systems(
    systems: Mapping[str, System], users: CurveUsers, orders: list[Ints], request: CurveRequest
) -> dict[str, Floats]:
    """Return each system's NDCG, (u, l).

    NDCG is the mean over the row orders.
    """
    values: dict[str, Floats] = {}
    for name, system in systems.items():
        draws = [
            measure_prefixes(system.scorer, system.folder, users.reorder(order), request)["ndcg"][:, :, 0]
            for order in orders
        ]
        values[name] = average_draws(np.stack(draws))
    return values


def print_curves(values: Mapping[str, Floats], users: CurveUsers, given: tuple[int, ...]) -> None:
    """Print each curve: MANDCG, spread, and some points.

    MANDCG has its interval, and the spread is over users.
    """
    shown = [at for at, point in enumerate(given) if point in (1, 2, 5, 10, 20, 50) or point == given[-1]]
    points = " | ".join(f"{given[at]} given" for at in shown)
    print(f"| system | MANDCG | 95 % interval | median | share below 0 | {points} |")
    print("|" + "---|" * (5 + len(shown)))
    for name, value_ul in values.items():
        mean_u = average_points(value_ul, given)
        whole = summarise_points(users.keys_u, mean_u[:, None])
        curve = summarise_points(users.keys_u, value_ul).value_l
        spread = f"{np.nanmedian(mean_u):.4f} | {np.nanmean(mean_u < 0):.3f}"
        words = " | ".join(f"{curve[at]:.4f}" for at in shown)
        ends = f"{whole.low_l[0]:.4f} to {whole.high_l[0]:.4f}"
        print(f"| {name} | {whole.value_l[0]:.4f} | {ends} | {spread} | {words} |")


def print_switch(values: Mapping[str, Floats], users: CurveUsers, given: tuple[int, ...]) -> None:
    """Choose a switch on half the users; test the others.

    What it gives on these is printed.

    A switch is a pair of systems and a place.
    """
    half = np.arange(len(users.keys_u)) % 2 == 0
    first, then, switch = choose_switch({name: value_ul[half] for name, value_ul in values.items()}, given)
    first_ul, then_ul = values[first][~half], values[then][~half]
    systems = [switch_values(first_ul, then_ul, switch), first_ul, then_ul]
    mean_um = np.column_stack([average_points(value_ul, given) for value_ul in systems])
    tests = paired_t(pair_sums(mean_um / LOWEST))
    numbers = mean_and_error(moments(mean_um))[0]
    print(
        f"{first} up to {switch.given} given ratings, then {then}: MANDCG {numbers[0]:.4f} on the other "
        f"{len(mean_um)} users; {first} {numbers[1]:.4f} (p {tests.p[0, 1]:.3g}), "
        f"{then} {numbers[2]:.4f} (p {tests.p[0, 2]:.3g})"
    )


def print_crossings(values: Mapping[str, Floats], users: CurveUsers, given: tuple[int, ...]) -> None:
    """Print every pair's crossing.

    The shares at the ends are adjusted for the number of pairs.
    """
    pairs = list(combinations(values, 2))
    crossings: list[CurveCrossing] = [
        bootstrap_crossing(users.keys_u, values[a], values[b], given) for a, b in pairs
    ]
    for (a, b), crossing, share in zip(pairs, crossings, adjust_shares(crossings), strict=True):
        first, then = (b, a) if crossing.switch.swapped else (a, b)
        numbers = f"{crossing.sign_changes} sign changes, adjusted share at the ends {share:.3f}"
        if share < MOST_AT_ENDS:
            words = f"{first}, then {then}: {crossing.describe()}, MANDCG {crossing.switch.value:.4f}"
        else:
            words = f"{a} and {b}: no crossing shown"
        print(f"{words}; {numbers}")


def run_systems(args: argparse.Namespace) -> int:
    """Fit, fold in, rank and print, with both candidate sets."""
    if not args.ratings:
        raise ConfigError("systems need a file of ratings", "--ratings FILE")
    log = read_log(args.ratings, args.order == "time")
    rule = PrefixRule(tuple(range(1, args.points + 1)))
    held_out = hold_users_out(log, args.users, args.points + rule.minimum, args.seed)
    train, tested = log.select(~held_out), log.select(held_out)
    systems, users = fit_systems(train, args.dims, args.seed, args.trials), make_users(tested)
    orders = list_orders(tested, users, args)
    print_counts(log, train, users, orders, args.points)
    for candidates in ("unseen", "rated"):
        request = CurveRequest(
            rule, ("ndcg",), (50,), STARS.model_copy(update={"candidates": candidates}), device="cpu"
        )
        print(f"\ncandidates: {candidates}; {args.users} users, {len(orders)} orders of their ratings")
        values = measure_systems(systems, users, orders, request)
        for show in (print_curves, print_crossings, print_switch):
            show(values, users, rule.given)
    return OK


def make_users(tested: CurveLog) -> CurveUsers:
    """Return users with rows; their id hashes are keys."""
    chosen, counts = np.unique(tested.user_r, return_counts=True)
    keys_u = hash_longs(tested.users[chosen], start(len(chosen))).view(np.int64)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    return CurveUsers(keys_u, bounds, tested.item_r, tested.rating_r)


def list_orders(tested: CurveLog, users: CurveUsers, args: argparse.Namespace) -> list[Ints]:
    """Return row orders: by time, as stored, or by hash."""
    if args.order == "time":
        equal = count_equal_times(tested, users.offsets, args.points)
        print(f"{equal} users whose first {args.points} times agree")
        return [np.arange(len(tested.item_r))]
    keys_p = tested.items[tested.item_r]
    return [
        order_by_hash(users.offsets, users.keys_u, keys_p, draw, args.seed) for draw in range(args.draws)
    ]


def print_counts(
    log: CurveLog, train: CurveLog, users: CurveUsers, orders: list[Ints], points: int
) -> None:
    """Print who cannot stand on the curve.

    The given items that training does not know are also counted.
    """
    short = int((np.bincount(log.user_r, minlength=len(log.users)) <= points).sum())
    print(f"{short} of {len(log.users)} users have {points} ratings or fewer and are never held out")
    unknown_i = count_items(train) == 0
    first_p = (users.offsets[:-1, None] + np.arange(points)).reshape(-1)
    given_pd = np.stack([users.items_p[order[first_p]] for order in orders])
    share = unknown_i[given_pd].mean()
    print(f"{share:.2%} of the given items are unknown to training")


def count_equal_times(log: CurveLog, bounds: Ints, points: int) -> int:
    """Count users whose first rows have one time.

    So their order is by item id.
    """
    assert log.time_r is not None
    return sum(len(np.unique(log.time_r[first : first + points])) == 1 for first in bounds[:-1])


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("study", choices=("planted", "systems"), help="what to study")
    flags.add_argument("--seeds", type=cli.parse_count, default=200, help="number of planted worlds (200)")
    flags.add_argument("--replicates", type=cli.parse_count, default=1000, help="of the bootstrap (1000)")
    flags.add_argument("--ratings", help="file of ratings with a header, tab-separated or .csv")
    flags.add_argument("--users", type=cli.parse_count, default=1000, help="users held out (1000)")
    flags.add_argument("--points", type=cli.parse_count, default=20, help="most given ratings (20)")
    flags.add_argument("--order", choices=("hash", "time"), default="hash", help="order of the ratings")
    flags.add_argument("--draws", type=cli.parse_count, default=5, help="orders by hash (5)")
    flags.add_argument("--dims", type=cli.parse_count, default=32, help="dimensions of the vectors (32)")
    flags.add_argument("--trials", type=cli.parse_count, default=12, help="settings tried for RMSE (12)")
    flags.add_argument("--seed", type=int, default=1, help="of held-out users, orders and fits (1)")
    return flags


def main(args: argparse.Namespace) -> int:
    """Run the study named by the command."""
    return run_planted(args) if args.study == "planted" else run_systems(args)


if __name__ == "__main__":
    cli.run(main, parser())
