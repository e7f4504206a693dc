"""Differences between runs from paired values, behind `comparisons`.

Users add to whole numbers (see `analyses.comparisons.kernels.significance`), key by key, and the tests of
all pairs follow from the sums. So no engine, partitioning or user order changes a bit. Axes: u users, m
models in a group, c cut-offs, r replicates, x pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.comparisons.kernels import significance as kernel
from recbench_spark.analyses.comparisons.paired_values import PairedValues
from recbench_spark.config import Bootstrap, Regression
from recbench_spark.core import resampling
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.ratios import scaling

if TYPE_CHECKING:
    from recbench_spark.analyses.comparisons.counted import CountedNumber

HOLDOUT = "holdout"
PAYLOAD = 1 << 30
"""Most bytes of partial sums received by one group in the last step."""


@dataclass(frozen=True)
class ComparedRun:
    """One model on one night, to be compared."""

    run_id: str
    model: str
    logical_date: date


@dataclass(frozen=True)
class ComparisonGroup:
    """Runs compared with one another, as indices in `ComparisonPlan.runs`.

    kind: pair (all models of a night), previous or baseline (a model and its earlier run).
    """

    kind: str
    runs: tuple[int, ...]


@dataclass(frozen=True)
class ComparisonPlan:
    """Runs, groups, metrics, cut-offs and test settings to compare by.

    Attributes:
        baselines: (part, metric, k) -> index in `runs`; all other models are compared with this one.
        scales: metric -> power of two to bring its values below 1, for metrics exceeding 1.
        lower: metrics best when small.
        numbers: for models and nights with several runs, the numbers that count. `runs` has one of these
            runs.
    """

    runs: tuple[ComparedRun, ...]
    groups: tuple[ComparisonGroup, ...]
    metrics: tuple[str, ...]
    ks: tuple[int | None, ...]
    baselines: Mapping[tuple[str, str, int | None], int]
    bootstrap: Bootstrap
    min_users: float = 0.0
    planned_looks: int = 10_000
    lower: tuple[str, ...] = ()
    rules: tuple[Regression, ...] = ()
    scales: Mapping[str, float] | None = None
    numbers: tuple[CountedNumber, ...] = ()
    nights: int = 30

    def scale(self, metric: str) -> float:
        """Return a metric's factor, applied before values are added up."""
        return (self.scales or {}).get(metric, 1.0)

    def baseline(self, group: ComparisonGroup, part: str, metric: str, k: int | None) -> int | None:
        """Return the index of the group's baseline; None: no baseline.

        All other runs in the group are compared with it.
        """
        if group.kind != "pair":
            return 1
        place = self.baselines.get((part, metric, k))
        return group.runs.index(place) if place in group.runs else None

    def tasks(self, requested: int) -> int:
        """Return the number of partitions, small enough for partial sums.

        As requested, or fewer where partial sums would be too large.
        """
        return max(1, min(requested, PAYLOAD // self._group_bytes))

    def finishing_tasks(self, tasks: int) -> int:
        """Return how many tasks finish cells.

        Each task then receives about PAYLOAD at most.
        """
        cells = 2 * len(self.metrics) * len(self.ks) * len(self.groups)  # in both parts
        return max(tasks, -(-cells * tasks * self._group_bytes // PAYLOAD))

    @property
    def _group_bytes(self) -> int:
        m = max(len(group.runs) for group in self.groups)
        return 8 * m * (kernel.PLANES * m + 3 * self.bootstrap.replicates)


def scale_values(largest: Mapping[str, float | None]) -> dict[str, float]:
    """Return `ComparisonPlan.scales` from each metric's largest absolute value."""
    return {name: min(1.0, scaling(value) / 1024) for name, value in largest.items() if value}


# ------------------------------------------------------------------------------- sums of users

CELL = ("part", "metric", "definition", "k", "group")
"""Key columns for one set of sums."""

PairSums = dict[tuple[int, int], list[Ints]]
"""One key's sums: (cut-off, group) -> pair sums (9, m, m), and three arrays (r, m)."""


def add_users(total: PairSums, side: PairedValues, plan: ComparisonPlan) -> None:
    """Add a chunk's users to the sums for its key."""
    for number, group in enumerate(plan.groups):
        values_umc = group_values(side, group, plan)
        for c, sums in enumerate(sum_users(side.keys_u, values_umc, plan.bootstrap)):
            if (c, number) in total:
                summands = zip(total[c, number], sums, strict=True)
                total[c, number] = [one + other for one, other in summands]
            elif sums[0][0].any():
                total[c, number] = sums


def group_values(side: PairedValues, group: ComparisonGroup, plan: ComparisonPlan) -> Floats:
    """Return a group's scaled values by run, (u, m, c).

    Between two nights, only users of both count.
    """
    values = side.values_unc[:, list(group.runs)] * plan.scale(side.key[1])
    if group.kind != "pair":
        values[np.isnan(values).any(axis=1, keepdims=True).repeat(values.shape[1], axis=1)] = np.nan
    return values


def sum_users(keys_u: Ints, values_umc: Floats, boot: Bootstrap) -> list[list[Ints]]:
    """Compute the sums at each cut-off."""
    u, m, n_cuts = values_umc.shape
    flat_ux = values_umc.reshape(u, m * n_cuts)
    boots, weights = resampling.bootstrap_sums(keys_u, flat_ux, boot.replicates, boot.seed)
    signs = kernel.sign_sums(keys_u, flat_ux, boot.replicates, boot.seed)
    at_cuts = [part.reshape(-1, m, n_cuts) for part in (boots, weights, signs)]
    return [
        [kernel.pair_sums(values_umc[:, :, c]), *(part[:, :, c].copy() for part in at_cuts)]
        for c in range(n_cuts)
    ]


def count_steps(values_um: Floats, baseline: int) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield other models' places, differences in steps, and users.

    Differences are taken from the baseline.
    """
    for m in range(values_um.shape[1]):
        difference = values_um[:, m] - values_um[:, baseline]
        steps, users = np.unique(
            kernel.difference_steps(difference[~np.isnan(difference)]), return_counts=True
        )
        if m != baseline and len(steps):
            yield m, steps, users.astype(np.int64)


def add_counts(step_n: Ints, user_n: Ints) -> tuple[Ints, Ints]:
    """Return the different steps, ascending, and the users of each."""
    steps, place_n = np.unique(step_n, return_inverse=True)
    users = np.zeros(len(steps), np.int64)
    np.add.at(users, place_n, user_n)
    return steps, users


# ------------------------------------------------------------------------------- tests of all pairs

RESULTS = pa.schema(
    {
        **dict.fromkeys(CELL[:3], pa.string()),
        **dict.fromkeys(CELL[3:], pa.int32()),
        **dict.fromkeys(("kind", "model", "other", "run_id", "other_run_id"), pa.string()),
        **dict.fromkeys(("logical_date", "other_date"), pa.date32()),
        "member": pa.int32(),
        "users": pa.int64(),
        **dict.fromkeys(
            ("value", "other_value", "difference", "stderr", "ci_low", "ci_high"), pa.float64()
        ),
        **dict.fromkeys(("p_t", "p_randomisation", "p_bootstrap", "effect", "detectable"), pa.float64()),
        "with_baseline": pa.bool_(),
        "verdict": pa.string(),
    }
)
"""Columns with the tests of all pairs."""


def finish_cell(plan: ComparisonPlan, key: tuple[Any, ...], sums: list[Ints]) -> pa.Table:
    """Compute all pair tests in a group.

    Too few users to show a difference (`count_fewest_users`) have no verdict, and no interval of width 0.

    Args:
        plan: runs, groups and settings.
        key: values for CELL.
        sums: pair sums (9, m, m), and bootstrap sums, their weights, and sign sums, (r, m).
    """
    part, metric, _, k, number = key
    group = plan.groups[number]
    baseline = plan.baseline(group, part, metric, k)
    a, b = _pairs_with_baseline(len(group.runs), baseline)
    columns = {
        **{name: [value] * len(a) for name, value in zip(CELL, key, strict=True)},
        **_names(plan, group, a, b),
        **_pair_columns(sums, a, b, plan, metric),
        "with_baseline": b == (-1 if baseline is None else baseline),
    }
    table = pa.table(columns, RESULTS)
    return table.filter(pc.greater(table.column("users"), 0))


def _pairs_with_baseline(m: int, baseline: int | None) -> tuple[Ints, Ints]:
    """Return every pair once, with the baseline second."""
    a, b = np.triu_indices(m, 1)
    swap = a == (-1 if baseline is None else baseline)
    return np.where(swap, b, a), np.where(swap, a, b)


def _names(plan: ComparisonPlan, group: ComparisonGroup, a: Ints, b: Ints) -> dict[str, Sequence[Any]]:
    runs_a, runs_b = ([plan.runs[group.runs[number]] for number in side] for side in (a, b))
    return {
        "kind": [group.kind] * len(a),
        "model": [run.model for run in runs_a],
        "other": [run.model for run in runs_b],
        "run_id": [run.run_id for run in runs_a],
        "other_run_id": [run.run_id for run in runs_b],
        "logical_date": [run.logical_date for run in runs_a],
        "other_date": [run.logical_date for run in runs_b],
        "member": a.tolist(),
    }


def _pair_columns(
    sums: list[Ints], a: Ints, b: Ints, plan: ComparisonPlan, metric: str
) -> dict[str, pa.Array]:
    pair_sums, boots, weights, signs = sums
    level, scale = plan.bootstrap.level, plan.scale(metric)
    pairs = kernel.paired_t(pair_sums)
    means = pair_means(pair_sums)
    low, high, p_bootstrap = kernel.bootstrap_pairs(boots, weights, np.diagonal(means), level)
    student_low, student_high = pairs.interval(level)
    same_users = kernel.same_users(pair_sums)
    p_randomisation = kernel.randomisation_p(signs, same_users)
    low, high = np.where(same_users, low, student_low)[a, b], np.where(same_users, high, student_high)[a, b]
    too_few = pairs.users[a, b] < resampling.count_fewest_users(level)
    low, high = resampling.hide_points(low, high, pairs.users[a, b], level)
    estimates = {
        "value": means[a, b] / scale,
        "other_value": means[b, a] / scale,
        "difference": pairs.mean[a, b] / scale,
        "stderr": pairs.error[a, b] / scale,
        "ci_low": low / scale,
        "ci_high": high / scale,
        "p_t": pairs.p[a, b],
        "p_randomisation": p_randomisation[a, b],
        "p_bootstrap": np.where(same_users, p_bootstrap, np.nan)[a, b],
        "effect": pairs.effect[a, b],
        "detectable": kernel.minimum_detectable(1.0, level) * pairs.error[a, b] / scale,
    }
    direction = -1.0 if metric in plan.lower else 1.0
    bounds = np.sort(np.stack([low, high], axis=1) / scale * direction, axis=1)
    bounds[too_few] = np.nan  # an unclear verdict
    verdicts = [kernel.practical_verdict(x, y, plan.min_users) for x, y in bounds.tolist()]
    columns = {name: _nullable(numbers) for name, numbers in estimates.items()}
    return {**columns, "users": pa.array(pairs.users[a, b]), "verdict": pa.array(verdicts, pa.string())}


def estimate_pair(sums: Ints, level: float, scale: float) -> dict[str, float | None]:
    """Return difference, standard error and Student's interval of two runs.

    sums: pair sums (9, 2, 2) of values that were multiplied by `scale`.
    """
    tests = kernel.paired_t(sums)
    low, high = resampling.hide_points(*tests.interval(level), tests.users, level)
    numbers = {"difference": tests.mean, "stderr": tests.error, "ci_low": low, "ci_high": high}
    scaled = {name: float(number[0, 1]) / scale for name, number in numbers.items()}
    return {name: None if np.isnan(number) else number for name, number in scaled.items()}


def pair_means(pair_sums: Ints) -> Floats:
    """Return model means over users shared with others, (m, m)."""
    total = pair_sums[1].astype(np.float64) * 2.0**kernel.HALF_BITS + pair_sums[2]
    means: Floats = np.full(total.shape, np.nan)
    np.divide(total * kernel.UNIT, pair_sums[0], out=means, where=pair_sums[0] > 0)
    return means


def _nullable(values: npt.NDArray[Any]) -> pa.Array:
    numbers = np.asarray(values, dtype=np.float64)
    return pa.array(numbers, mask=np.isnan(numbers))


# ------------------------------------------------------------------------------- looks, families

ADJUSTED = pa.schema(
    {
        "family": pa.int32(),
        **dict.fromkeys(("p_holm", "p_bh"), pa.float64()),
        "looks": pa.int32(),
        "sequence_users": pa.int64(),
        **dict.fromkeys(("sequence_low", "sequence_high", "allowed_drop"), pa.float64()),
        "regressed": pa.bool_(),
        "allowed_rise": pa.float64(),
        "rose": pa.bool_(),
    }
)
"""Columns computed from all results of a kind and part."""


def finish_family(plan: ComparisonPlan, table: pa.Table) -> pa.Table:
    """Add columns computed from all results of a kind and part."""
    p_x = np.asarray(table.column("p_t").to_numpy(), dtype=np.float64)
    baseline_x = np.asarray(table.column("with_baseline").to_numpy(), dtype=bool)
    columns: dict[str, Any] = {
        "family": np.where(baseline_x, np.sum(~np.isnan(p_x[baseline_x])), np.sum(~np.isnan(p_x))),
        "p_holm": _adjust_by_family(kernel.holm, p_x, baseline_x),
        "p_bh": _adjust_by_family(kernel.benjamini_hochberg, p_x, baseline_x),
    }
    by_row = [(*_sequential_columns(plan, row), *find_regression(plan, row)) for row in table.to_pylist()]
    columns |= dict(zip(ADJUSTED.names[3:], zip(*by_row, strict=True), strict=True))
    for name, kind in zip(ADJUSTED.names, ADJUSTED.types, strict=True):
        values = columns[name]
        numbers = _nullable(values) if name in ("p_holm", "p_bh") else pa.array(values, kind)
        table = table.append_column(name, numbers.cast(kind))
    return table


def _adjust_by_family(
    adjust: Callable[[Floats], Floats], p_x: Floats, baseline_x: npt.NDArray[np.bool_]
) -> Floats:
    """Adjust p-values as all pairs, then those with the baseline.

    Comparisons with the baseline are their own family.
    """
    adjusted = adjust(p_x)
    adjusted[baseline_x] = adjust(p_x[baseline_x])
    return adjusted


def _sequential_columns(plan: ComparisonPlan, row: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Return looks, users at all looks, and the valid interval.

    The interval holds at all looks together.
    """
    if row["kind"] != "pair" or row["stderr"] is None:
        return (None,) * 4
    n, mean = row["users"], row["difference"]
    total, squares = n * mean, row["stderr"] ** 2 * n * (n - 1) + n * mean**2
    n += row["seen"] or 0
    mean = (total + (row["seen_total"] or 0.0)) / n
    variance = max((squares + (row["seen_squares"] or 0.0) - n * mean**2) / (n - 1), 0.0)
    low, high = kernel.sequence_interval(mean, variance**0.5, n, plan.planned_looks, plan.bootstrap.level)
    return 1 + (row["nights"] or 0), n, low, high


def find_regression(
    plan: ComparisonPlan, row: Mapping[str, Any]
) -> tuple[float | None, bool, float | None, bool]:
    """Return the smallest allowed fall and rise, and if each is exceeded.

    Order: allowed fall, whether the result falls by more, allowed rise, whether it rises by more.
    Sequential rules find falls elsewhere (`evidence.add_evidence`).
    """
    rules = find_rules(plan, row)
    sign = -1.0 if row["metric"] in plan.lower else 1.0
    gain, low, high = (sign * (row[name] or 0.0) for name in ("difference", "ci_low", "ci_high"))
    certain = row["users"] >= resampling.count_fewest_users(plan.bootstrap.level)
    surely_fell, surely_rose = certain and max(low, high) < 0, certain and min(low, high) > 0
    falls, rises = (list_bounds(rules, name) for name in ("drop", "rise"))
    fell = any(
        -gain > drop and (surely_fell or not rule.certain) for drop, rule in falls if not rule.sequential
    )
    rose = any(gain > rise and (surely_rose or not rule.certain) for rise, rule in rises)
    allowed_fall, allowed_rise = (
        min((bound for bound, _ in side), default=None) for side in (falls, rises)
    )
    return allowed_fall, fell, allowed_rise, rose


def list_bounds(rules: Sequence[Regression], name: str) -> list[tuple[float, Regression]]:
    """List the rules that bound falls (`drop`) or rises (`rise`)."""
    return [(bound, rule) for rule in rules if (bound := getattr(rule, name)) is not None]


def find_rules(plan: ComparisonPlan, row: Mapping[str, Any]) -> list[Regression]:
    """Return the rules for a difference over all users.

    Pairs of models count where the other model is the baseline.
    """
    against = row["kind"] if row["kind"] != "pair" else "model" if row["with_baseline"] else None
    scope = (against, row["part"], row["metric"], row["k"])
    return [
        rule
        for rule in plan.rules
        if (rule.against, rule.part, rule.metric, rule.k) == scope
        and rule.model in (None, row["model"])
        and rule.slice is None
    ]
