"""List metrics: batches of listed items joined with the catalogue."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.checks import Check
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.engine.whole_users import keep_users_whole
from recbench_spark.metrics import accuracy, beyond_accuracy
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.metrics.beyond_accuracy import Facts
from recbench_spark.metrics.group_rows import Labels, count_columns, finish_groups, list_kinds
from recbench_spark.metrics.item_labels import ItemGroups
from recbench_spark.metrics.kernels.item_groups import BY_HEAD, count_groups
from recbench_spark.metrics.kernels.user_lists import (
    USER_METRICS,
    CountedItems,
    Grouping,
    HeadAndTail,
    UserLists,
)
from recbench_spark.metrics.questions import read_owners
from recbench_spark.metrics.shown import GROUPS, listing_batches, listing_histogram, overall_rows
from recbench_spark.ranking.batch_schemas import (
    LISTS_WITH_COUNTS,
    LISTS_WITH_TRUTH,
    PROFILES,
)
from recbench_spark.ranking.batches import column_or_null
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.schemas import METRICS, QUERY_ID
from recbench_spark.storage.shared_arrays import flatten_lists


class ItemLookup(Protocol):
    """A catalogue where items are looked up by id."""

    def find(self, ids: pa.Array) -> tuple[Ints, Ints]:
        """Return each id's item_index and training rows, (n,) each.

        An unknown id has -1 and 0.
        """

    def popularity(self) -> Mapping[str, Ints]:
        """Return arrays by item_index, (i,) each.

        `n_train`: training rows. `place`: place by popularity, from 0; equal ones in order of the index.
        `rank`: rank by popularity, from 1; equal ones share one, and the next follows.
        """


@dataclass(frozen=True)
class ListedCatalogue:
    """The catalogue for list metrics: id look-up, size, facts, and labels where metrics need them."""

    known: ItemLookup
    n_items: int
    facts: Facts
    groups: ItemGroups | None = None


@dataclass(frozen=True)
class ListColumns:
    """Columns that lists are added up in: users' values, or counts by group.

    names: the metrics; grouping: groups of items, None for users' values; labels: as `finish_groups`.
    """

    names: tuple[str, ...]
    grouping: Grouping | None = None
    labels: Labels = ()

    def sum(
        self, plan: MetricPlan, catalogue: ListedCatalogue, users: pa.RecordBatch, lists: UserLists | None
    ) -> dict[str, Floats]:
        """Return the columns of some users from `LISTS_WITH_COUNTS`, (u, c) by name."""
        if self.grouping is None:
            return _recall_values(plan, catalogue, users, lists)
        counts = count_groups(cast(UserLists, lists), self.grouping, list_kinds(self.names), plan.ks)
        return {f"{kind} {self.labels}": one.reshape(users.num_rows, -1) for kind, one in counts.items()}

    def count(self, plan: MetricPlan) -> int:
        """Count the columns."""
        if self.grouping is None:
            return len(plan.table(self.names))
        return count_columns(self.names, len(plan.ks), len(self.grouping.sizes_g))

    def finish(self, plan: MetricPlan, table: pa.Table) -> pa.Table:
        """Compute `METRIC_ROWS` from these columns' `TOTALS`."""
        if self.grouping is None:
            return accuracy.finish_metrics(plan.table(self.names), plan.bootstrap, table)
        return finish_groups(plan, self.names, table, self.labels)


def list_measures(plan: MetricPlan, catalogue: ListedCatalogue) -> dict[str, Measure]:
    """Return measures by name: per user's list, and overall."""
    measures, facts, groups = {}, catalogue.facts, catalogue.groups
    head = HeadAndTail(facts.head, (catalogue.n_items - facts.in_head, facts.in_head))
    values, counts = [ListColumns(plan.list_metrics)], [ListColumns(plan.group_metrics, head)]
    if groups is not None:
        counts.append(ListColumns(plan.label_metrics, groups, (groups.column, groups.names)))
    weigh = plan.definition.weigh  # sums of all columns draw the bootstrap's weights once
    apart = {"lists": values, "groups": counts} if weigh == "rows" else {"lists": values + counts}
    for name, listed in apart.items():
        parts = [one for one in listed if one.names]
        sums = partial(
            map_lists, plan, catalogue, partial(sum_columns, parts, weigh if name == "lists" else "users")
        )
        finish = partial(finish_lists, plan, parts)
        if parts:
            measures[name] = Measure(sums, accuracy.SLICE, finish, name_list_columns(plan), METRICS)
    if plan.shown:
        left_out = GROUPS if plan.bootstrap.replicates else 1
        shown = partial(listing_batches, partial(_find_shown, catalogue.known), plan.ks, left_out)
        finish = partial(listing_histogram, len(plan.ks), left_out)
        join, needs = partial(overall_rows, plan, catalogue.n_items), ("part", "top_items", "user_key")
        measures["shown"] = Measure(shown, ("part", "bucket"), finish, needs, METRICS, join)
    return measures


def check_head(plan: MetricPlan, catalogue: ListedCatalogue | None) -> list[Check]:
    """Return the count of items in the short head, where a metric knows it."""
    if catalogue is None or not {*plan.metrics} & {*BY_HEAD}:
        return []
    detail = f"of {catalogue.n_items}; in an empty head, or tail, nothing is listed or found"
    return [Check("items in the short head", float(catalogue.facts.in_head), None, "info", detail)]


LISTED_COLUMNS = ("user_id", "part", "user_key", "relevance", "top_items", "query_id")
"""Columns of `RANKED_USERS` read by list metrics."""


def name_list_columns(plan: MetricPlan) -> tuple[str, ...]:
    """Name the columns of rankings that list metrics read."""
    known = ("item_ids",) if plan.wants_truth else ()
    return (*LISTED_COLUMNS, *known, *(PROFILES.names if plan.wants_profiles else ()))


def map_lists(
    plan: MetricPlan,
    catalogue: ListedCatalogue,
    measure_lists: Callable[[MetricPlan, ListedCatalogue, Batches], Batches],
    batches: Batches,
) -> Batches:
    """Join listed items with the catalogue, and measure the lists."""
    whole, threshold = keep_users_whole(batches), plan.definition.threshold
    lists = look_up_listed_items(catalogue.known, threshold, whole, with_truth=plan.wants_truth)
    yield from measure_lists(plan, catalogue, lists)


def look_up_listed_items(
    known: ItemLookup, threshold: float | None, batches: Batches, with_truth: bool = False
) -> Batches:
    """Look up listed items: `LISTS_WITH_COUNTS` from `RANKED_USERS`.

    Users with empty lists are left out.

    Args:
        known: the catalogue.
        threshold: relevance from which an item is relevant; None: above 0.
        batches: rankings with `top_items`.
        with_truth: relevant items are looked up, too (`LISTS_WITH_TRUTH`).
    """

    def look_up(batch: pa.RecordBatch) -> pa.RecordBatch | None:
        length = pc.list_value_length(batch.column("top_items"))
        with_list = batch.filter(pc.greater(pc.fill_null(length, 0), 0))
        if not with_list.num_rows:
            return None
        return _look_up_lists(known, threshold, with_list, _find_shown(known, batch), with_truth)

    for batch in batches:
        lists = remember(batch, (known, threshold, with_truth), partial(look_up, batch))
        if lists is not None:
            yield lists


_remembered: dict[tuple[object, ...], Any] = {}


def remember(batch: pa.RecordBatch, key: tuple[object, ...], make: Callable[[], Any]) -> Any:
    """Return what `make` makes of a batch, once for all measures while the batch lives."""
    full = (id(batch), *key)
    if full not in _remembered:
        weakref.finalize(batch, _remembered.pop, full, None)
        _remembered[full] = make()
    return _remembered[full]


def _look_up_lists(
    known: ItemLookup,
    threshold: float | None,
    batch: pa.RecordBatch,
    shown: tuple[Ints, Ints],
    with_truth: bool,
) -> pa.RecordBatch:
    offsets, relevance = flatten_lists(batch.column("relevance"))
    relevant_p = mark_relevant(relevance, threshold)
    before = np.concatenate([[0], np.cumsum(relevant_p)])
    bounds = pa.array(flatten_lists(batch.column("top_items"))[0], pa.int32())
    item_n, count_n = shown
    columns = {
        **{name: batch.column(name) for name in ("user_id", "part", "user_key")},
        "n_relevant": pa.array(np.diff(before[offsets]), pa.int32()),
        "counts": pa.ListArray.from_arrays(bounds, pa.array(count_n)),
        "item_index": pa.ListArray.from_arrays(bounds, pa.array(item_n)),
        QUERY_ID: column_or_null(batch, QUERY_ID, pa.string()),
    }
    if not with_truth:
        return pa.RecordBatch.from_pydict(columns, schema=LISTS_WITH_COUNTS)
    ids = batch.column("item_ids").flatten().filter(pa.array(relevant_p))
    truth_p, count_p = _find_listed(known, ids)
    hit_n = _mark_common(bounds.to_numpy(), item_n, before[offsets], truth_p)
    columns["hits"] = pa.ListArray.from_arrays(bounds, pa.array(hit_n))
    truth_bounds = pa.array(before[offsets], pa.int32())
    for name, values in (("truth_items", truth_p), ("truth_counts", count_p)):
        columns[name] = pa.ListArray.from_arrays(truth_bounds, pa.array(values))
    columns |= {field.name: column_or_null(batch, field.name, field.type) for field in PROFILES}
    return pa.RecordBatch.from_pydict(columns, schema=LISTS_WITH_TRUTH)


def _mark_common(offsets: Ints, item_n: Ints, truth_offsets: Ints, truth_p: Ints) -> npt.NDArray[np.bool_]:
    """Mark the entries among their user's truth items, (n,)."""
    width = 1 + max(item_n.max(initial=0), truth_p.max(initial=0))
    user_n, user_p = (np.repeat(np.arange(len(one) - 1), np.diff(one)) for one in (offsets, truth_offsets))
    known_p = truth_p >= 0
    return (item_n >= 0) & np.isin(user_n * width + item_n, (user_p * width + truth_p)[known_p])


def compute_list_values(plan: MetricPlan, catalogue: ListedCatalogue, batches: Batches) -> Batches:
    """Compute list metrics: `USER_VALUES` from `LISTS_WITH_COUNTS`."""
    for batch in batches:
        for metric, values_uc in _recall_values(plan, catalogue, batch).items():
            yield accuracy.make_user_batch(batch, metric, values_uc, batch.column("n_relevant"), plan)


def _recall_values(
    plan: MetricPlan, catalogue: ListedCatalogue, batch: pa.RecordBatch, lists: UserLists | None = None
) -> dict[str, Floats]:
    key = (catalogue, plan.list_metrics, plan.ks)
    make = partial(measure_lists, plan, catalogue, batch, lists)
    values: dict[str, Floats] = remember(batch, key, make)
    return values


def sum_columns(
    parts: Sequence[ListColumns], weigh: str, plan: MetricPlan, catalogue: ListedCatalogue, batches: Batches
) -> Batches:
    """Sum columns of lists by part: `TOTALS` from `LISTS_WITH_COUNTS`."""

    def totals(users: pa.RecordBatch) -> accuracy.MetricTotals:
        lists = read_lists(catalogue, users) if plan.wants_truth else None
        values: dict[str, Floats] = {}
        for part in parts:
            values |= part.sum(plan, catalogue, users, lists)
        return accuracy.sum_users(values, read_owners(users), plan.bootstrap, weigh)

    yield from accuracy.sum_by_part(batches, totals)


def finish_lists(plan: MetricPlan, parts: Sequence[ListColumns], table: pa.Table) -> pa.Table:
    """Compute `METRIC_ROWS` of some columns from their `TOTALS`."""
    if len(parts) == 1:
        return parts[0].finish(plan, table)
    ends = np.cumsum([part.count(plan) for part in parts])
    totals = accuracy.add_up(table, ends[-1], plan.bootstrap.replicates)
    (part, key, value), rows = (table.column(name)[0].as_py() for name in accuracy.SLICE), []
    for one, end in zip(parts, ends.tolist(), strict=True):
        own = slice(end - one.count(plan), end)
        cut = accuracy.MetricTotals(
            totals.moments_c5[own], totals.boot_bc[:, own], totals.weights_bc[:, own]
        )
        rows.append(
            one.finish(plan, pa.Table.from_batches([accuracy.totals_batch((part, key, value), cut)]))
        )
    return pa.concat_tables(rows)


def measure_lists(
    plan: MetricPlan, catalogue: ListedCatalogue, batch: pa.RecordBatch, lists: UserLists | None = None
) -> dict[str, Floats]:
    """Compute all user metrics of some lists, (u, c) each; `lists`: the same, read before."""
    plain = [name for name in plan.list_metrics if name not in USER_METRICS]
    values = beyond_accuracy.list_values(batch, plain, catalogue.facts, plan.ks)
    more = [name for name in plan.list_metrics if name in USER_METRICS]
    if more and lists is None:
        lists = read_lists(catalogue, batch)
    for name in more:
        values[name] = USER_METRICS[name].measure(
            cast(UserLists, lists), cast(Grouping, catalogue.groups), plan.ks
        )
    return {name: values[name] for name in plan.list_metrics}


def read_lists(catalogue: ListedCatalogue, batch: pa.RecordBatch) -> UserLists:
    """Read lists, and their users' other items, from `LISTS_WITH_TRUTH`."""
    facts = catalogue.facts
    (offsets, item_n), (bounds, truth_p) = (
        flatten_lists(batch.column(name)) for name in ("item_index", "truth_items")
    )
    count_n, hit_n, count_p = (
        flatten_lists(batch.column(name))[1] for name in ("counts", "hits", "truth_counts")
    )
    others = {}
    for name in PROFILES.names:
        column = batch.column(name)
        if column.null_count < len(column):
            starts, items = flatten_lists(column)
            others[name] = CountedItems(starts, items, catalogue.known.popularity()["n_train"][items])
    listed, truth = CountedItems(offsets, item_n, count_n), CountedItems(bounds, truth_p, count_p)
    own, closed, offered = (others.get(name) for name in PROFILES.names)
    return UserLists(
        listed, hit_n.astype(bool), truth, own, closed, offered, users=facts.n_users, head=facts.head,
        n_items=max(catalogue.n_items, 1), open_popularity=catalogue.known.popularity,
    )  # fmt: skip


def _find_shown(known: ItemLookup, batch: pa.RecordBatch) -> tuple[Ints, Ints]:
    """Look all entries of lists up, as `_find_listed`."""
    find = partial(_find_listed, known, batch.column("top_items").flatten())
    shown: tuple[Ints, Ints] = remember(batch, (known,), find)
    return shown


def _find_listed(known: ItemLookup, ids: pa.Array) -> tuple[Ints, Ints]:
    """Look ids up as `ItemLookup.find`.

    A place without an item (NULL) has -2 and -1.
    """
    item_n, count_n = known.find(pc.fill_null(ids, ""))
    if not ids.null_count:
        return item_n, count_n
    empty = ids.is_null().to_numpy(zero_copy_only=False)
    return np.where(empty, -2, item_n), np.where(empty, -1, count_n)
