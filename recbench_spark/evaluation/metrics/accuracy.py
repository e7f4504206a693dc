"""From rankings to metrics: per user, and overall with standard error and bootstrap interval; no Spark.

Sums over users are whole numbers (fixed point), so a published number does not depend on how users
were spread over batches, tasks or machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.config import Bootstrap
from recbench_spark.definitions import Definition
from recbench_spark.errors import ConfigError, nearest, show_value
from recbench_spark.evaluation import batch_schemas
from recbench_spark.evaluation.batch_schemas import to_ddl
from recbench_spark.evaluation.metrics import beyond_accuracy
from recbench_spark.evaluation.metrics.beyond_accuracy import LIST_METRICS, Facts
from recbench_spark.evaluation.ranking.batches import select_truth, split_by_part, to_rankings
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.kernels import resampling
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.metrics.accuracy import (
    METRICS,
    check_cutoffs,
    cutoffs,
    measure,
    relevant_counts,
)
from recbench_spark.kernels.metrics.predictions import VALUE_METRICS
from recbench_spark.kernels.ranking.rankings import Rankings
from recbench_spark.kernels.streams import Batches

HOLDOUT = "holdout"


class MetricColumn(NamedTuple):
    """What one number is: a metric at a cut-off, its definition, its estimator."""

    metric: str
    k: int | None
    definition: str
    estimator: str


@dataclass(frozen=True)
class MetricPlan:
    """What is measured: metrics by name (see `check_names`), cut-offs, definition, intervals.

    features: the name of the vectors behind `diversity`; others give another number.
    uncut: ranks are counted beyond the largest k too, for values over the whole ranking.
    """

    metrics: tuple[str, ...]
    ks: tuple[int, ...]
    definition: Definition
    bootstrap: Bootstrap
    features: str | None = None
    uncut: bool = True

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
    ) -> MetricPlan:
        """The plan of these settings, cut-offs ascending and each once.

        Raises:
            ConfigError: a metric nobody knows, none at all, a cut-off below 1, or a value over the whole
                ranking where ranks are not counted beyond the largest k.
        """
        check_names(metrics)
        check_cutoffs(ks)
        if not uncut:
            check_uncut(metrics, definition)
        if not metrics or not ks:
            hint = "name one, and cut-offs from 1 on"
            raise ConfigError(f"metrics {tuple(metrics)} at k {tuple(ks)}", hint)
        cuts = tuple(sorted({int(k) for k in ks}))
        return cls(tuple(metrics), cuts, definition, bootstrap or Bootstrap(), features, uncut)

    def request(self, lists: bool = False) -> RankingRequest:
        """What is asked of the ranking; `lists`: others than these metrics want the lists too."""
        wanted = lists or any(name in LIST_METRICS for name in self.metrics)
        return RankingRequest(self.definition, max(self.ks) if wanted else 0, self.cutoff)

    @property
    def cutoff(self) -> int | None:
        """Up to where ranks have to be counted; None: all of them."""
        return None if self.uncut else max(self.ks)

    @property
    def rank_metrics(self) -> tuple[str, ...]:
        """The metrics of each user that follow from the ranks of the truth items."""
        return tuple(name for name in self.metrics if name not in LIST_METRICS)

    @property
    def list_metrics(self) -> tuple[str, ...]:
        """The metrics of each user that follow from the list itself."""
        return tuple(name for name in self.metrics if name in beyond_accuracy.PER_USER)

    @property
    def overall(self) -> tuple[str, ...]:
        """The metrics of all lists together: they have no value per user."""
        return tuple(name for name in self.metrics if name in beyond_accuracy.OVERALL)

    def columns(self, metric: str) -> list[int | None]:
        """The cut-offs of a metric; None: over the whole ranking."""
        return list(self.ks) if metric in LIST_METRICS else cutoffs(metric, self.ks, self.uncut)

    def table(self, names: Sequence[str]) -> list[MetricColumn]:
        """What the columns of these metrics' values are, in order."""
        return [
            MetricColumn(name, k, self.describe(name), HOLDOUT)
            for name in names
            for k in self.columns(name)
        ]

    def describe(self, metric: str) -> str:
        """The definition string that stands beside a metric: the axes it depends on."""
        if metric not in LIST_METRICS:
            return self.definition.describe(METRICS[metric].axes)
        features = f";features={self.features}" if metric == beyond_accuracy.DIVERSITY else ""
        return self.definition.describe(beyond_accuracy.AXES) + features


def check_names(metrics: Sequence[str], task: str = "ranking") -> None:
    """ConfigError for a metric nobody knows in this task, with the nearest one, or one named twice."""
    known = (*METRICS, *LIST_METRICS) if task == "ranking" else tuple(VALUE_METRICS)
    for number, name in enumerate(metrics):
        if not isinstance(name, str) or name not in known:
            raise ConfigError(f"unknown metric {show_value(name)}", nearest(str(name), known))
        if name in metrics[:number]:
            raise ConfigError(f"metrics: '{name}' stands there twice", "name each metric once")


def check_uncut(metrics: Sequence[str], definition: Definition) -> None:
    """ConfigError for a value over the whole ranking, which ranks up to the largest k do not give."""
    whole = [name for name in metrics if name in METRICS and METRICS[name].cuts == "uncut"]
    axes = {"map": definition.map_cut, "mrr": definition.mrr_cut}
    whole += [name for name in metrics if axes.get(name) == "uncut"]
    if whole:
        hint = f"list metrics without {whole[0]}, or leave uncut at true"
        raise ConfigError(f"{whole[0]} is over the whole ranking, and uncut is false", hint)


# ------------------------------------------------------------------------------- per user

RANKING_COLUMNS = (
    "user_id", "part", "user_key", "relevance", "above", "tied", "before", "length", "slices",
)  # fmt: skip


def user_value_batches(plan: MetricPlan, batches: Batches) -> Batches:
    """Rows of `USER_VALUES` of rows of `RANKED`: one a user and metric of ranks."""
    for batch in batches:
        rankings = to_rankings(batch)
        values = measure(rankings, plan.rank_metrics, plan.ks, plan.definition, plan.uncut)
        relevant = pa.array(relevant_counts(rankings, plan.definition), pa.int32())
        for metric, values_uc in values.items():
            yield _user_batch(batch, metric, values_uc, relevant, plan)


def listed_value_batches(plan: MetricPlan, facts: Facts, batches: Batches) -> Batches:
    """Rows of `USER_VALUES` of rows of `top_lists.count_listed_items`: one a user and metric of lists."""
    for batch in batches:
        values = beyond_accuracy.list_values(batch, plan.list_metrics, facts, plan.ks)
        for metric, values_uc in values.items():
            yield _user_batch(batch, metric, values_uc, batch.column("n_relevant"), plan)


def _user_batch(
    batch: pa.RecordBatch, metric: str, values_uc: Floats, relevant: pa.Array, plan: MetricPlan
) -> pa.RecordBatch:
    n = batch.num_rows
    ks = plan.columns(metric)
    offsets = np.arange(n + 1, dtype=np.int32) * len(ks)
    missing = np.isnan(values_uc).ravel()
    columns = {
        "user_id": batch.column("user_id"),
        "part": batch.column("part"),
        "metric": _constant_column(metric, n),
        "definition": _constant_column(plan.describe(metric), n),
        "estimator": _constant_column(HOLDOUT, n),
        "ks": pa.ListArray.from_arrays(offsets, pa.array(ks * n, pa.int32())),
        "values": pa.ListArray.from_arrays(offsets, pa.array(values_uc.ravel(), mask=missing)),
        "n_relevant": relevant,
    }
    return pa.RecordBatch.from_pydict(columns, schema=batch_schemas.USER_VALUES)


def _constant_column(text: str, n: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), n)


# ------------------------------------------------------------------------------- overall

SliceKey = tuple[str, str | None, str | None]
"""Held-out part, slice key and value; (part, None, None) is everyone."""
SLICE = ("part", "slice_key", "slice_value")


@dataclass
class MetricTotals:
    """Sums over users of all metrics of one slice, whole numbers (see `kernels.resampling`).

    moments_c5: users averaged, fixed-point sums of values and squares; boot_bc, weights_bc:
    weighted sums and weights of each bootstrap replicate. c runs over metrics x cut-offs.
    """

    moments_c5: Ints
    boot_bc: Ints
    weights_bc: Ints

    def add(self, other: MetricTotals) -> None:
        """Add other users; any order gives the same bits."""
        self.moments_c5 += other.moments_c5
        self.boot_bc += other.boot_bc
        self.weights_bc += other.weights_bc


def sum_users(values: dict[str, Floats], keys_u: Ints, boot: Bootstrap) -> MetricTotals:
    """The totals of some users. `keys_u`: hashes of their ids, which draw the bootstrap weights."""
    values_uc = np.concatenate(list(values.values()), axis=1)
    sums, weights = resampling.bootstrap_sums(keys_u, values_uc, boot.replicates, boot.seed)
    return MetricTotals(resampling.moments(values_uc), sums, weights)


TOTALS = to_ddl(batch_schemas.TOTALS)
"""The schema of the same name, as Spark wants it told; so also `METRIC_ROWS`."""
METRIC_ROWS = to_ddl(batch_schemas.METRIC_ROWS)


def listed_total_batches(plan: MetricPlan, facts: Facts, batches: Batches) -> Batches:
    """Rows of `TOTALS` of rows of `top_lists.count_listed_items`: one a part, for the metrics of users' lists."""
    totals: dict[SliceKey, MetricTotals] = {}
    for batch in batches:
        for part, users in split_by_part(batch):
            values = beyond_accuracy.list_values(users, plan.list_metrics, facts, plan.ks)
            found = sum_users(values, users.column("user_key").to_numpy(), plan.bootstrap)
            _add_totals(totals, (part, None, None), found)
    for place, found in totals.items():
        yield totals_batch(place, found)


def total_batches(plan: MetricPlan, batches: Batches) -> Batches:
    """Rows of `TOTALS` of rows of `RANKED`: one a part and slice, for all metrics of ranks."""

    def totals(some: TruthSelection) -> MetricTotals:
        values = measure(some.rankings, plan.rank_metrics, plan.ks, plan.definition, plan.uncut)
        return sum_users(values, some.keys_u, plan.bootstrap)

    yield from sum_by_slice(batches, totals)


@dataclass(frozen=True)
class TruthSelection:
    """Some truth items of a batch of the table `rankings`: all of them, or those of a slice.

    rankings: of the users who have any of them, (u,), with these truth items only; users: their rows in
    the batch; kept: which of the batch's truth items they are, (p,)
    """

    batch: pa.RecordBatch
    rankings: Rankings
    users: Ints
    kept: npt.NDArray[np.bool_]

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of the batch for these users, (u,)."""
        values: npt.NDArray[Any] = self.batch.column(name).to_numpy()[self.users]
        return values

    @property
    def keys_u(self) -> Ints:
        """Hashes of the users' ids."""
        return self.column("user_key")


def sum_by_slice(batches: Batches, measured: Callable[[TruthSelection], MetricTotals]) -> Batches:
    """The totals of each part and slice of a task's rankings, as rows `TOTALS`.

    Args:
        batches: rows of the table `rankings`.
        measured: the totals of some truth items of a batch.
    """
    totals: dict[SliceKey, MetricTotals] = {}
    for place, some in _selections(batches):
        _add_totals(totals, place, measured(some))
    for place, found in totals.items():
        yield totals_batch(place, found)


def _selections(batches: Batches) -> Iterator[tuple[SliceKey, TruthSelection]]:
    """The truth items of each part and slice of each batch."""
    for batch in batches:
        for part, users in split_by_part(batch):
            rankings = to_rankings(users)
            rows, all_p = np.arange(users.num_rows), np.ones(len(rankings.above), dtype=bool)
            yield (part, None, None), TruthSelection(users, rankings, rows, all_p)
            for key, value, kept_p in select_truth(users):
                yield (part, key, value), TruthSelection(users, *restrict_truth(rankings, kept_p), kept_p)


# ------------------------------------------------------------------------------- of several models

SliceValues = dict[SliceKey, list[tuple[Ints, Floats]]]
"""Of each part and slice, batch by batch: hashes of users, (u,), and their values, (u, c)."""

COLUMNS_PER_CHUNK = 512
"""Columns of several models that are added up together: 16 MB at 4,096 users."""


def rank_values(plan: MetricPlan, batches: Batches) -> SliceValues:
    """All metrics of ranks of the users of rows of `RANKED`: what `model_totals` adds up."""
    found: SliceValues = {}
    for place, some in _selections(batches):
        values = measure(some.rankings, plan.rank_metrics, plan.ks, plan.definition, plan.uncut)
        table = np.concatenate(list(values.values()), axis=1)
        found.setdefault(place, []).append((some.keys_u, table))
    return found


def model_totals(plan: MetricPlan, models: Sequence[SliceValues]) -> list[list[pa.RecordBatch]]:
    """Of each model the rows that `total_batches` gives: bootstrap weights are drawn once for all.

    Models that rank the same users in the same batches share the weights; others have their own.
    """
    found: list[dict[SliceKey, MetricTotals]] = [{} for _ in models]
    for place in dict.fromkeys(place for values in models for place in values):
        for some in _group_equal_users(models, place):
            at_once = max(1, COLUMNS_PER_CHUNK // models[some[0]][place][0][1].shape[1])
            for start in range(0, len(some), at_once):
                _add_model_group(plan, models, place, some[start : start + at_once], found)
    return [[totals_batch(place, sums) for place, sums in totals.items()] for totals in found]


def _group_equal_users(models: Sequence[SliceValues], place: SliceKey) -> list[list[int]]:
    """The models of a slice, those with the same users in the same batches together."""
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for n, values in enumerate(models):
        if place in values:
            groups.setdefault(tuple(keys_u.tobytes() for keys_u, _ in values[place]), []).append(n)
    return list(groups.values())


def _add_model_group(
    plan: MetricPlan,
    models: Sequence[SliceValues],
    place: SliceKey,
    some: Sequence[int],
    found: Sequence[dict[SliceKey, MetricTotals]],
) -> None:
    boot = plan.bootstrap
    for batch, (keys_u, _) in enumerate(models[some[0]][place]):
        tables = [models[n][place][batch][1] for n in some]
        together = np.concatenate(tables, axis=1)
        sums, weights = resampling.bootstrap_sums(keys_u, together, boot.replicates, boot.seed)
        c = tables[0].shape[1]
        for at, (n, table) in enumerate(zip(some, tables, strict=True)):
            mine = (..., slice(at * c, (at + 1) * c))
            _add_totals(
                found[n],
                place,
                MetricTotals(resampling.moments(table), sums[mine].copy(), weights[mine].copy()),
            )


def _add_totals(totals: dict[SliceKey, MetricTotals], place: SliceKey, found: MetricTotals) -> None:
    if place in totals:
        totals[place].add(found)
    else:
        totals[place] = found


def restrict_truth(rankings: Rankings, kept_p: npt.NDArray[np.bool_]) -> tuple[Rankings, Ints]:
    """The rankings with only some truth items, of the users who still have any; and who these are.

    The other truth items become candidates like any other: not wanted here.
    """
    user_p = np.repeat(np.arange(len(rankings.length)), np.diff(rankings.offsets))
    counts = np.bincount(user_p[kept_p], minlength=len(rankings.length))
    users = np.flatnonzero(counts)
    offsets = np.concatenate([[0], np.cumsum(counts[users])]).astype(np.int64)
    kept = Rankings(
        offsets,
        rankings.relevance[kept_p],
        rankings.above[kept_p],
        rankings.tied[kept_p],
        rankings.before[kept_p],
        rankings.length[users],
    )
    return kept, users.astype(np.int64)


def totals_batch(place: SliceKey, totals: MetricTotals) -> pa.RecordBatch:
    """One row `TOTALS`."""
    columns = {name: pa.array([text], pa.string()) for name, text in zip(SLICE, place, strict=True)}
    for name in ("moments_c5", "boot_bc", "weights_bc"):
        numbers = pa.array(getattr(totals, name).ravel(), pa.int64())
        columns[name] = pa.ListArray.from_arrays([0, len(numbers)], numbers)
    return pa.RecordBatch.from_pydict(columns, schema=batch_schemas.TOTALS)


def metric_batches(columns: Sequence[MetricColumn], bootstrap: Bootstrap, batches: Batches) -> Batches:
    """Rows of `METRIC_ROWS` of rows of `TOTALS`, of all tasks: one batch a part and slice.

    Args:
        columns: what the numbers are, as `MetricPlan.table` tells.
        bootstrap: replicates and level, as for the totals.
        batches: the totals, in any order.
    """
    by_slice: dict[SliceKey, list[pa.RecordBatch]] = {}
    for batch in batches:
        for n in range(batch.num_rows):
            part, key, value = (batch.column(name)[n].as_py() for name in SLICE)
            by_slice.setdefault((part, key, value), []).append(batch.slice(n, 1))
    for rows in by_slice.values():
        yield from finish_metrics(columns, bootstrap, pa.Table.from_batches(rows)).to_batches()


def finish_metrics(columns: Sequence[MetricColumn], bootstrap: Bootstrap, table: pa.Table) -> pa.Table:
    """Rows of `METRIC_ROWS` of the rows of `TOTALS` of one part and slice."""
    totals = add_up(table, len(columns), bootstrap.replicates)
    value, stderr, n = resampling.mean_and_error(totals.moments_c5)
    low, high = resampling.interval(totals.boot_bc, totals.weights_bc, bootstrap.level)
    return metric_table(table, columns, (value, stderr, low, high), n)


def metric_table(
    table: pa.Table, columns: Sequence[MetricColumn], numbers: Sequence[Floats], n: Ints
) -> pa.Table:
    """Rows `METRIC_ROWS` of one part and slice, which `table` names.

    numbers: value, standard error, both ends of the interval, (c,) each; n: users averaged, (c,)
    """
    metric, k, definition, estimator = zip(*columns, strict=True)
    named = dict(
        zip(("value", "stderr", "ci_low", "ci_high"), map(_to_number_columns, numbers), strict=True)
    )
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
    """The totals of all tasks."""

    def add(name: str, shape: tuple[int, int]) -> Ints:
        rows = [row.values.to_numpy() for row in table.column(name)]
        return np.sum(rows, axis=0, dtype=np.int64).reshape(shape)

    return MetricTotals(add("moments_c5", (c, 5)), add("boot_bc", (replicates, c)),
                  add("weights_bc", (replicates, c)))  # fmt: skip


def repeat_text(table: pa.Table | pa.RecordBatch, name: str, n: int) -> pa.Array:
    """The first value of a column of text, n times."""
    return pa.array([table.column(name)[0].as_py()] * n, pa.string())


def _to_number_columns(values: Floats) -> pa.Array:
    return pa.array(values, mask=np.isnan(values))
