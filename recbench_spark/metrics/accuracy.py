"""Ranking metrics, per user and overall, without Spark.

Overall means have a standard error and a bootstrap interval. Sums over users are whole numbers (fixed
point): however users are spread over batches, tasks or machines, a published number stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.config import Bootstrap
from recbench_spark.core import resampling
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.definitions import Definition
from recbench_spark.core.metric_names import suggest_metric
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.engine.whole_users import has_questions, keep_users_whole
from recbench_spark.errors import ConfigError, show_value
from recbench_spark.metrics import beyond_accuracy
from recbench_spark.metrics.beyond_accuracy import LIST_METRICS
from recbench_spark.metrics.kernels import accuracy as kernel
from recbench_spark.metrics.kernels.accuracy import METRICS, measure
from recbench_spark.metrics.kernels.calibration import ALPHA
from recbench_spark.metrics.kernels.item_groups import BY_HEAD, HEAD_SHARE
from recbench_spark.metrics.kernels.predictions import VALUE_METRICS
from recbench_spark.metrics.kernels.user_lists import USER_METRICS
from recbench_spark.metrics.list_rows import sum_lists, user_batch
from recbench_spark.metrics.questions import (
    Owners,
    average_moments,
    average_questions,
    read_owners,
)
from recbench_spark.ranking import batch_schemas
from recbench_spark.ranking.batches import select_truth, split_by_part, to_rankings
from recbench_spark.ranking.kernels.rankings import Rankings
from recbench_spark.ranking.request import RankingRequest
from recbench_spark.schemas import METRICS as METRICS_TABLE

HOLDOUT = "holdout"


class MetricColumn(NamedTuple):
    """One number's key: metric, cut-off, definition and estimator."""

    metric: str
    k: int | None
    definition: str
    estimator: str


@dataclass(frozen=True)
class MetricPlan:
    """Metrics to compute: names, cut-offs, definition, intervals.

    `check_names` knows the names. features: name of the item vectors behind `diversity` values. uncut:
    ranks are also counted beyond the largest k, for values over the whole ranking. item_groups: name of the
    items' labels behind values of groups.
    """

    metrics: tuple[str, ...]
    ks: tuple[int, ...]
    definition: Definition
    bootstrap: Bootstrap
    features: str | None = None
    uncut: bool = True
    item_groups: str | None = None

    @classmethod
    def checked(
        cls,
        metrics: Sequence[str],
        ks: Sequence[int],
        definition: Definition,
        bootstrap: Bootstrap | None = None,
        features: str | None = None,
        *,
        uncut: bool = True,
        item_groups: str | None = None,
    ) -> MetricPlan:
        """Check the settings, and plan with each cut-off once, ascending.

        Raises:
            ConfigError: an unknown metric, no metric, a cut-off below 1, or a value over the whole ranking
                where ranks are not counted beyond the largest k.
        """
        check_names(metrics)
        kernel.check_cutoffs(ks)
        if not uncut:
            check_uncut(metrics, definition)
        if not metrics or not ks:
            hint = "name one, and cut-offs from 1 on"
            raise ConfigError(f"metrics {tuple(metrics)} at k {tuple(ks)}", hint)
        cuts = tuple(sorted({int(k) for k in ks}))
        return cls(tuple(metrics), cuts, definition, bootstrap or Bootstrap(), features, uncut, item_groups)

    def request(self, lists: bool = False) -> RankingRequest:
        """Return the ranking's request; with `lists` for other results too."""
        top = max(self.ks) if lists or self.wants_lists else 0
        return RankingRequest(self.definition, top, self.cutoff, profiles=self.wants_profiles)

    @property
    def wants_lists(self) -> bool:
        """Tell whether metrics are computed from users' lists."""
        return any(name in LIST_METRICS for name in self.metrics)

    @property
    def wants_truth(self) -> bool:
        """Tell whether metrics of lists look up relevant items."""
        return any(name in (*beyond_accuracy.GROUPED, *USER_METRICS) for name in self.metrics)

    @property
    def wants_profiles(self) -> bool:
        """Tell whether metrics need the users' training items."""
        return any(name in beyond_accuracy.BY_HISTORY for name in self.metrics)

    @property
    def cutoff(self) -> int | None:
        """Return the last rank to count; None: all are."""
        return None if self.uncut else max(self.ks)

    @property
    def rank_metrics(self) -> tuple[str, ...]:
        """List user metrics computed from truth items' ranks."""
        return tuple(name for name in self.metrics if name not in LIST_METRICS)

    @property
    def list_metrics(self) -> tuple[str, ...]:
        """List user metrics computed from the list itself."""
        return tuple(name for name in self.metrics if name in beyond_accuracy.PER_USER)

    @property
    def shown(self) -> tuple[str, ...]:
        """List metrics of how many lists have each item."""
        return tuple(name for name in self.metrics if name in beyond_accuracy.SHOWN)

    @property
    def group_metrics(self) -> tuple[str, ...]:
        """List metrics of long tail and short head over all users."""
        return tuple(name for name in self.metrics if self._is_grouped(name, labels=False))

    @property
    def label_metrics(self) -> tuple[str, ...]:
        """List metrics of labelled groups of items over all users."""
        return tuple(name for name in self.metrics if self._is_grouped(name, labels=True))

    def _is_grouped(self, name: str, *, labels: bool) -> bool:
        return name in beyond_accuracy.GROUPED and (name in beyond_accuracy.BY_LABELS) == labels

    def columns(self, metric: str) -> list[int | None]:
        """Return a metric's cut-offs; None: over the whole ranking."""
        return list(self.ks) if metric in LIST_METRICS else kernel.cutoffs(metric, self.ks, self.uncut)

    def table(self, names: Sequence[str]) -> list[MetricColumn]:
        """List these metrics' value columns, in order."""
        return [
            MetricColumn(name, k, self.describe(name), HOLDOUT)
            for name in names
            for k in self.columns(name)
        ]

    def describe(self, metric: str) -> str:
        """Return a metric's definition string, with its axes."""
        if metric not in LIST_METRICS:
            return self.definition.describe(METRICS[metric].axes)
        facts = f";features={self.features}" if metric == beyond_accuracy.DIVERSITY else ""
        facts += f";head={float(HEAD_SHARE)}" if metric in BY_HEAD else ""
        facts += f";alpha={ALPHA}" if metric == "calibration" else ""
        facts += f";groups={self.item_groups}" if metric in beyond_accuracy.BY_LABELS else ""
        weigh = ["weigh"] if metric in beyond_accuracy.PER_USER else []
        graded = ["threshold"] if metric in beyond_accuracy.BY_GRADES else []
        return self.definition.describe([*beyond_accuracy.AXES, *graded, *weigh]) + facts


def check_names(metrics: Sequence[str], task: str = "ranking") -> None:
    """Check for unknown and repeated metrics in a task.

    Raises:
        ConfigError: an unknown metric, with the nearest name, or a name given twice.
    """
    known = (*METRICS, *LIST_METRICS) if task == "ranking" else tuple(VALUE_METRICS)
    for number, name in enumerate(metrics):
        if not isinstance(name, str) or name not in known:
            raise ConfigError(f"unknown metric {show_value(name)}", suggest_metric(str(name), known))
        if name in metrics[:number]:
            raise ConfigError(f"metrics: '{name}' is given twice", "name each metric once")


def check_uncut(metrics: Sequence[str], definition: Definition) -> None:
    """Refuse whole-ranking values where ranks stop at the largest k.

    Raises:
        ConfigError: a metric is over the whole ranking.
    """
    uncut_metrics = [name for name in metrics if name in METRICS and METRICS[name].cuts == "uncut"]
    axes = {"map": definition.map_cut, "mrr": definition.mrr_cut}
    uncut_metrics += [name for name in metrics if axes.get(name) == "uncut"]
    if uncut_metrics:
        hint = f"list metrics without {uncut_metrics[0]}, or leave uncut at true"
        raise ConfigError(f"{uncut_metrics[0]} is over the whole ranking, and uncut is false", hint)


# ------------------------------------------------------------------------------- per user

RANKING_COLUMNS = (
    "user_id", "part", "user_key", "relevance", "above", "tied", "before", "length", "slices", "query_id",
)  # fmt: skip


def user_value_batches(plan: MetricPlan, batches: Batches) -> Batches:
    """Compute rank metrics per user: `USER_VALUES` from `RANKED_USERS`.

    Batches hold all rows of their users (`keep_users_whole`).
    """
    for batch in batches:
        rankings = to_rankings(batch)
        relevant = pa.array(kernel.relevant_counts(rankings, plan.definition), pa.int32())
        for metric, values_uc in measure_ranks(plan, rankings).items():
            yield make_user_batch(batch, metric, values_uc, relevant, plan)


def measure_ranks(plan: MetricPlan, rankings: Rankings) -> dict[str, Floats]:
    """Compute all rank metrics for some users, (u, c) each."""
    return measure(rankings, plan.rank_metrics, plan.ks, plan.definition, plan.uncut)


def make_user_batch(
    batch: pa.RecordBatch, metric: str, values_uc: Floats, relevant: pa.Array, plan: MetricPlan
) -> pa.RecordBatch:
    """Build one metric's `USER_VALUES` from the values of rows, (u, c)."""
    ks, definition = plan.columns(metric), plan.describe(metric)
    if has_questions(batch):
        batch, values_uc, relevant = average_questions(batch, values_uc, relevant)
    ids, parts = batch.column("user_id"), batch.column("part")
    return user_batch(ids, parts, metric, values_uc, relevant, ks=ks, definition=definition)


# ------------------------------------------------------------------------------- overall

SliceKey = tuple[str, str | None, str | None]
"""Held-out part, slice key and value; (part, None, None) stands for all users."""
SLICE = ("part", "slice_key", "slice_value")


@dataclass
class MetricTotals:
    """One slice's sums over users, for all metrics.

    All are whole numbers (see `core.resampling`). moments_c5: number of averaged users, fixed-point sums of
    values and squares (c, 5), where rows weigh alike (c, 12), as `Owners.moments`; boot_bc, weights_bc:
    each bootstrap replicate's weighted sums and weights. c runs over metrics x cut-offs.
    """

    moments_c5: Ints
    boot_bc: Ints
    weights_bc: Ints

    def add(self, other: MetricTotals) -> None:
        """Add other users' totals; the order changes no bit."""
        self.moments_c5 += other.moments_c5
        self.boot_bc += other.boot_bc
        self.weights_bc += other.weights_bc


def sum_users(
    values: dict[str, Floats], owners: Owners, boot: Bootstrap, weigh: str = "users"
) -> MetricTotals:
    """Sum values over users; hashed ids draw bootstrap weights."""
    own, values_uc = owners.weigh(np.concatenate(list(values.values()), axis=1), weigh)
    sums, weights = resampling.bootstrap_sums(own.keys_q, values_uc, boot.replicates, boot.seed)
    return MetricTotals(own.moments(values_uc), sums, weights)


def sum_by_part(batches: Batches, measure_users: Callable[[pa.RecordBatch], MetricTotals]) -> Batches:
    """Sum a task's parts: rows of `TOTALS`.

    `measure_users` sums the metrics for one part's users in a batch.
    """
    totals: dict[SliceKey, MetricTotals] = {}
    for batch in batches:
        for part, users in split_by_part(batch):
            add_slice_totals(totals, (part, None, None), measure_users(users))
    for key, sums in totals.items():
        yield totals_batch(key, sums)


def rank_measure(plan: MetricPlan) -> Measure:
    """Return the measure for `metrics` overall and by slice."""
    finish = partial(finish_metrics, plan.table(plan.rank_metrics), plan.bootstrap)
    grouped = (partial(rank_values, plan), partial(model_totals, plan))
    sums = partial(total_batches, plan)
    return Measure(sums, SLICE, finish, RANKING_COLUMNS, METRICS_TABLE, grouped=grouped)


def total_batches(plan: MetricPlan, batches: Batches) -> Batches:
    """Sum rank metrics by slice: `TOTALS` from `RANKED_USERS`."""

    def totals(selection: TruthSelection) -> MetricTotals:
        values = measure_ranks(plan, selection.rankings)
        return sum_users(values, selection.owners, plan.bootstrap, plan.definition.weigh)

    yield from sum_by_slice(batches, totals)


@dataclass(frozen=True)
class TruthSelection:
    """Truth items selected from a batch of rankings.

    rankings: for users with such items, (u,), with these truth items only; users: indices of their rows in
    the batch; selected_p: marks these items among the batch's truth items, (p,).
    """

    batch: pa.RecordBatch
    rankings: Rankings
    users: Ints
    selected_p: npt.NDArray[np.bool_]

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a batch column for these users, (u,)."""
        values: npt.NDArray[Any] = self.batch.column(name).to_numpy()[self.users]
        return values

    @property
    def owners(self) -> Owners:
        """Return the rows' users."""
        return read_owners(self.batch).take(self.users)


def sum_by_slice(batches: Batches, measure_selection: Callable[[TruthSelection], MetricTotals]) -> Batches:
    """Sum a task's parts and slices: rows of `TOTALS`.

    Args:
        batches: rows of the table `rankings`.
        measure_selection: sums the metrics for some truth items in a batch.
    """
    totals: dict[SliceKey, MetricTotals] = {}
    for key, selection in list_selections(batches):
        add_slice_totals(totals, key, measure_selection(selection))
    for key, sums in totals.items():
        yield totals_batch(key, sums)


def list_selections(batches: Batches) -> Iterator[tuple[SliceKey, TruthSelection]]:
    """Yield each batch's truth items by part and slice."""
    for batch in keep_users_whole(batches):
        for part, users in split_by_part(batch):
            rankings = to_rankings(users)
            rows, all_p = np.arange(users.num_rows), np.ones(len(rankings.above), dtype=bool)
            yield (part, None, None), TruthSelection(users, rankings, rows, all_p)
            for key, value, kept_p in select_truth(users):
                yield (part, key, value), TruthSelection(users, *restrict_truth(rankings, kept_p), kept_p)


# ------------------------------------------------------------------------------- several models at once

SliceValues = dict[SliceKey, list[tuple[Owners, Floats]]]
"""For each part and slice, batch by batch: users, (u,), and their values, (u, c)."""

COLUMNS_PER_CHUNK = 512
"""Columns from several models added up together: 16 MB at 4,096 users."""


def rank_values(plan: MetricPlan, batches: Batches) -> SliceValues:
    """Compute all rank metrics, for `model_totals` to add up."""
    values_by_slice: SliceValues = {}
    for key, selection in list_selections(batches):
        values = measure_ranks(plan, selection.rankings)
        table = np.concatenate(list(values.values()), axis=1)
        weighed = selection.owners.weigh(table, plan.definition.weigh)
        values_by_slice.setdefault(key, []).append(weighed)
    return values_by_slice


def model_totals(plan: MetricPlan, models: Sequence[SliceValues]) -> list[list[pa.RecordBatch]]:
    """Sum several models' values like `total_batches`.

    Models with the same users in the same batches share the bootstrap weights; each other group has its
    own.

    Returns:
        For each model, rows of `TOTALS`.
    """
    totals_by_model: list[dict[SliceKey, MetricTotals]] = [{} for _ in models]
    for key in dict.fromkeys(key for values in models for key in values):
        for group in _group_equal_users(models, key):
            at_once = max(1, COLUMNS_PER_CHUNK // models[group[0]][key][0][1].shape[1])
            for start in range(0, len(group), at_once):
                _add_model_group(plan, models, key, group[start : start + at_once], totals_by_model)
    return [[totals_batch(key, sums) for key, sums in totals.items()] for totals in totals_by_model]


def _group_equal_users(models: Sequence[SliceValues], key: SliceKey) -> list[list[int]]:
    """Group a slice's models by their users in each batch."""
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for n, values in enumerate(models):
        if key in values:
            groups.setdefault(tuple(own.keys_q.tobytes() for own, _ in values[key]), []).append(n)
    return list(groups.values())


def _add_model_group(
    plan: MetricPlan,
    models: Sequence[SliceValues],
    key: SliceKey,
    group: Sequence[int],
    totals_by_model: Sequence[dict[SliceKey, MetricTotals]],
) -> None:
    boot = plan.bootstrap
    for batch, (owners, _) in enumerate(models[group[0]][key]):
        tables = [models[n][key][batch][1] for n in group]
        columns = np.concatenate(tables, axis=1)
        sums, weights = resampling.bootstrap_sums(owners.keys_q, columns, boot.replicates, boot.seed)
        c = tables[0].shape[1]
        for at, (n, table) in enumerate(zip(group, tables, strict=True)):
            own = (..., slice(at * c, (at + 1) * c))
            totals = MetricTotals(owners.moments(table), sums[own].copy(), weights[own].copy())
            add_slice_totals(totals_by_model[n], key, totals)


def add_slice_totals(totals: dict[SliceKey, MetricTotals], key: SliceKey, sums: MetricTotals) -> None:
    """Add some users' sums to those of a slice."""
    if key in totals:
        totals[key].add(sums)
    else:
        totals[key] = sums


def restrict_truth(rankings: Rankings, kept_p: npt.NDArray[np.bool_]) -> tuple[Rankings, Ints]:
    """Return rankings with kept truth items only, and user indices.

    The others become irrelevant candidates. Users without kept items are left out.
    """
    user_p = np.repeat(np.arange(len(rankings.length)), np.diff(rankings.offsets))
    counts = np.bincount(user_p[kept_p], minlength=len(rankings.length))
    users = np.flatnonzero(counts)
    offsets = np.concatenate([[0], np.cumsum(counts[users])]).astype(np.int64)
    above, tied, before = (part[kept_p] for part in (rankings.above, rankings.tied, rankings.before))
    relevance, length = rankings.relevance[kept_p], rankings.length[users]
    return Rankings(offsets, relevance, above, tied, before, length), users.astype(np.int64)


def totals_batch(key: SliceKey, totals: MetricTotals) -> pa.RecordBatch:
    """Build one row of `TOTALS`."""
    columns = {name: pa.array([text], pa.string()) for name, text in zip(SLICE, key, strict=True)}
    for name in ("moments_c5", "boot_bc", "weights_bc"):
        numbers = pa.array(getattr(totals, name).ravel(), pa.int64())
        columns[name] = pa.ListArray.from_arrays([0, len(numbers)], numbers)
    return pa.RecordBatch.from_pydict(columns, schema=batch_schemas.TOTALS)


def finish_metrics(columns: Sequence[MetricColumn], bootstrap: Bootstrap, table: pa.Table) -> pa.Table:
    """Compute a slice's `METRIC_ROWS` from its `TOTALS`."""
    totals = add_up(table, len(columns), bootstrap.replicates)
    value, stderr, n, users = average_moments(totals.moments_c5)
    low, high = resampling.interval(totals.boot_bc, totals.weights_bc, users, bootstrap.level)
    return metric_table(table, columns, (value, stderr, low, high), n)


def metric_table(
    table: pa.Table, columns: Sequence[MetricColumn], numbers: Sequence[Floats], n: Ints
) -> pa.Table:
    """Build `METRIC_ROWS` for the slice named in `table`.

    numbers: value, standard error, both interval bounds, (c,) each; n: averaged users, (c,).
    """
    metric, k, definition, estimator = zip(*columns, strict=True)
    arrays = [pa.array(values, mask=np.isnan(values)) for values in numbers]
    named = dict(zip(("value", "stderr", "ci_low", "ci_high"), arrays, strict=True))
    return pa.table(
        {
            **{name: repeat_text(table, name, len(columns)) for name in SLICE},
            "metric": pa.array(metric),
            "definition": pa.array(definition),
            "k": pa.array(k, pa.int32()),
            "estimator": pa.array(estimator),
            **named,
            "n": pa.array(n),
        }
    )


def add_up(table: pa.Table, c: int, replicates: int) -> MetricTotals:
    """Add up all tasks' totals."""
    boot, weights = (sum_lists(table, name, (replicates, c)) for name in ("boot_bc", "weights_bc"))
    return MetricTotals(sum_lists(table, "moments_c5", (c, -1)), boot, weights)


def repeat_text(table: pa.Table | pa.RecordBatch, name: str, n: int) -> pa.Array:
    """Repeat a text column's first value n times."""
    return pa.array([table.column(name)[0].as_py()] * n, pa.string())
