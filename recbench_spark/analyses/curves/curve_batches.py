"""Held-out users' learning curves as functions of Arrow batches.

They need no Spark.

    CURVE_USERS --measure_users--> CURVE_ROWS --sum_curves--> CURVE_TOTALS --finish_curves--> CURVE_MEANS
         |                             +------average_curves--> USER_VALUES (MANDCG)
         +--count_users--> CURVE_COUNTS --> rows of `checks`

A user comes in with all rows, by time or by item. Prefixes are made, folded in, ranked and measured here
(`learning_curves`), so their vectors never leave a task.

Axes: u users, p rows of the users, l curve points, c cut-offs, b bootstrap replicates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.curves.learning_curves import (
    CurveRequest,
    CurveUsers,
    cut_batches,
    measure_prefixes,
)
from recbench_spark.config import CURVE_METRIC, MANDCG, Bootstrap
from recbench_spark.core import resampling
from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.streams import Batches
from recbench_spark.metrics.kernels.accuracy import cutoffs
from recbench_spark.metrics.kernels.chunk import is_relevant
from recbench_spark.metrics.kernels.learning_curves import FEWEST_USERS, average_draws, average_points
from recbench_spark.metrics.list_rows import make_lists, repeat_list, sum_lists, user_batch
from recbench_spark.models.prefix_scorers import PrefixScorer
from recbench_spark.ranking.kernels.scorers import WHOLE_ROWS, Scorer
from recbench_spark.ranking.scored import is_little
from recbench_spark.splits.kernels.prefixes import count_points, make_prefixes, order_by_hash
from recbench_spark.storage.shared_arrays import flatten_lists

_INTS, _LONGS, _DOUBLES = pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.float64())

CURVE_USERS = pa.schema(
    {
        "user_id": pa.string(),
        "part": pa.string(),
        "user_key": pa.int64(),
        "items": _INTS,
        "ratings": _DOUBLES,
        "item_keys": _LONGS,
        "untrained": pa.list_(pa.bool_()),
        "equal_times": pa.bool_(),
    }
)
"""One row per held-out user: all rows by time, or by item where hashes order them.

`item_keys`: hashed item ids. `untrained`: true for items without training rows. `equal_times`: true if the
first L rows have one time.
"""

CURVE_ROWS = pa.schema(
    {
        "run_id": pa.string(),
        "user_id": pa.string(),
        "user_key": pa.int64(),
        "part": pa.string(),
        "metric": pa.string(),
        "definition": pa.string(),
        "given": _INTS,
        "points": pa.int32(),
        "ks": _INTS,
        "values": pa.list_(_DOUBLES),
        "n_relevant": pa.int32(),
    }
)
"""One row per user and metric: the table `curve_values`."""

CURVE_KEY = ("run_id", "part", "metric", "definition")

CURVE_TOTALS = pa.schema(
    {
        **dict.fromkeys(CURVE_KEY, pa.string()),
        "given": _INTS,
        "ks": _INTS,
        **dict.fromkeys(("moments", "below", "boot", "weights"), _LONGS),
    }
)
"""One row per task and curve: sums over its users as whole numbers, for all cut-offs and points."""

CURVE_MEANS = pa.schema(
    {
        **dict.fromkeys(CURVE_KEY, pa.string()),
        "k": pa.int32(),
        "given": pa.int32(),
        **dict.fromkeys(("value", "stderr", "ci_low", "ci_high", "share_below_zero"), pa.float64()),
        "n": pa.int64(),
    }
)
"""One row per point: the table `learning_curves`. A row without `given` is the mean over the points."""

CURVE_COUNTS = pa.schema(
    {
        "part": pa.string(),
        **dict.fromkeys(("users", "short", "equal_times", "empty", "longest"), pa.int64()),
        "given_items": _LONGS,
        "untrained_items": _LONGS,
    }
)
"""One row per task and part: users; those at no point; with equal times; without a relevant row at a point;
the longest history; and by point the given items, and those without training rows."""


@dataclass(frozen=True)
class CurveMember:
    """A model in a pass, with its run."""

    run_id: str
    model: PrefixScorer


@dataclass(frozen=True)
class CurvePlan:
    """A night's curves, the same for every model.

    Attributes:
        request: points, metrics, cut-offs, definition.
        definitions: metric -> definition string in its rows.
        draws: orders by hash; 0: by time.
        seed: seed of these orders.
        curve: definition axis for points, order, test and users.
    """

    request: CurveRequest
    definitions: Mapping[str, str]
    draws: int = 0
    seed: int = 42
    curve: str = ""

    def list_cutoffs(self, metric: str) -> list[int | None]:
        """Return a metric's cut-offs; None: over the whole ranking."""
        return cutoffs(metric, self.request.ks, self.request.uncut)


# ------------------------------------------------------------------------------- values of users


def measure_users(
    plan: CurvePlan, member: CurveMember, batches: Batches, *, device: str = WHOLE_ROWS
) -> Batches:
    """Measure one model: `CURVE_ROWS` from `CURVE_USERS`.

    Users at no point are left out.

    Args:
        plan: points, metrics, definition, orders.
        member: the model.
        batches: held-out users; a batch is measured in pieces of limited size.
        device: torch device, or WHOLE_ROWS; for "cpu", WHOLE_ROWS is used where it is faster.
    """
    scorer, folder = member.model.open()
    for batch in batches:
        standing, points_u = select_standing(batch, plan)
        if not standing.num_rows:
            continue
        request = set_device(plan.request, scorer, points_u, device)
        orders = list_orders(standing, plan)
        draws = [measure_prefixes(scorer, folder, users, request) for users, _ in orders]
        for metric in plan.request.metrics:
            values = average_draws(np.stack([values_by_name[metric] for values_by_name in draws]))
            rows = _value_rows(standing, metric, values, points_u, plan)
            yield rows.set_column(0, CURVE_ROWS.field(0), pa.repeat(member.run_id, rows.num_rows))


def set_device(request: CurveRequest, scorer: Scorer, points_u: Ints, device: str) -> CurveRequest:
    """Return the request with the device for some users.

    Little work does not load torch.
    """
    little = device == "cpu" and is_little(scorer, int(points_u.sum()))
    return replace(request, device=WHOLE_ROWS if little else device)


def select_standing(batch: pa.RecordBatch, plan: CurvePlan) -> tuple[pa.RecordBatch, Ints]:
    """Return users who reach a point, and how many, (u,)."""
    points_u = count_points(flatten_lists(batch.column("items"))[0], plan.request.rule)
    return batch.filter(pa.array(points_u > 0)), points_u[points_u > 0]


def list_orders(batch: pa.RecordBatch, plan: CurvePlan) -> list[tuple[CurveUsers, Ints]]:
    """Return users with ordered rows, and the rows' places.

    There is one order by time, or each order by hash.
    """
    offsets, items_p = flatten_lists(batch.column("items"))
    ratings_p = flatten_lists(batch.column("ratings"))[1]
    keys_u = batch.column("user_key").to_numpy()
    users = CurveUsers(keys_u, offsets, items_p.astype(np.int64), ratings_p)
    if not plan.draws:
        return [(users, np.arange(int(offsets[-1])))]
    keys_p = flatten_lists(batch.column("item_keys"))[1]
    orders = [order_by_hash(offsets, keys_u, keys_p, draw, plan.seed) for draw in range(plan.draws)]
    return [(users.reorder(order), order) for order in orders]


def _value_rows(
    users: pa.RecordBatch, metric: str, values_ulc: Floats, points_u: Ints, plan: CurvePlan
) -> pa.RecordBatch:
    """Return rows of `CURVE_ROWS` without a run."""
    n, given, ks = users.num_rows, plan.request.rule.given, plan.list_cutoffs(metric)
    offsets, ratings_p = flatten_lists(users.column("ratings"))
    relevant_p = np.concatenate([[0], np.cumsum(is_relevant(ratings_p, plan.request.definition))])
    columns = {
        "run_id": pa.nulls(n, pa.string()),
        "user_id": users.column("user_id"),
        "user_key": users.column("user_key"),
        "part": users.column("part"),
        "metric": pa.repeat(metric, n),
        "definition": pa.repeat(plan.definitions[metric], n),
        "given": repeat_list(given, n),
        "points": pa.array(points_u, pa.int32()),
        "ks": repeat_list(ks, n),
        "values": nest_lists(np.moveaxis(values_ulc, 2, 1)),
        "n_relevant": pa.array(np.diff(relevant_p[offsets]), pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns, schema=CURVE_ROWS)


def nest_lists(values_ucl: Floats) -> pa.Array:
    """Return lists of lists, one row per user.

    Each cut-off has its values by point; NaN becomes NULL.

    >>> nest_lists(np.array([[[0.5, np.nan]]])).to_pylist()
    [[[0.5, None]]]
    """
    u, c, points = values_ucl.shape
    inner = make_lists(values_ucl.reshape(u * c, points))
    return pa.ListArray.from_arrays(np.arange(u + 1, dtype=np.int32) * c, inner)


def read_values(rows: pa.RecordBatch) -> Floats:
    """Read values of equal points and cut-offs, (u, c, l).

    NULL becomes NaN.
    """
    ks, given = rows.column("ks")[0].as_py(), rows.column("given")[0].as_py()
    numbers = flatten_lists(rows.column("values").flatten())[1]
    return np.asarray(numbers, np.float64).reshape(rows.num_rows, len(ks), len(given))


# ------------------------------------------------------------------------------- mean over the points


def average_curves(batches: Batches) -> Batches:
    """Compute MANDCG: `USER_VALUES` with a run, from NDCG curves.

    batches: rows of `CURVE_ROWS`.
    """
    for batch in batches:
        for rows in split_curves(batch):
            if rows.column("metric")[0].as_py() != CURVE_METRIC:
                continue
            ids, parts, relevant = (rows.column(name) for name in ("user_id", "part", "n_relevant"))
            ks, definition = (rows.column(name)[0].as_py() for name in ("ks", "definition"))
            means_uc = average_rows(rows)
            table = user_batch(ids, parts, MANDCG, means_uc, relevant, ks=ks, definition=definition)
            yield table.append_column("run_id", rows.column("run_id"))


def average_rows(rows: pa.RecordBatch) -> Floats:
    """Average each user's curve at each cut-off, (u, c).

    NaN: no value at any point.
    """
    values_ucl, given = read_values(rows), rows.column("given")[0].as_py()
    standing_u = rows.column("points").to_numpy()
    columns = [average_points(values_ucl[:, c], given, standing_u) for c in range(values_ucl.shape[1])]
    return np.stack(columns, axis=1)


def split_curves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows by run, part, metric and definition.

    An empty batch yields nothing.
    """
    code_n = np.zeros(batch.num_rows, np.int64)
    for name in CURVE_KEY:
        codes = pc.dictionary_encode(batch.column(name))
        code_n = code_n * max(len(codes.dictionary), 1) + codes.indices.to_numpy()
    for code in np.unique(code_n):
        yield batch.filter(pa.array(code_n == code))


# ------------------------------------------------------------------------------- sums over users


_SUMS = ("moments", "below", "boot", "weights")


def sum_curves(bootstrap: Bootstrap, batches: Batches) -> Batches:
    """Sum a task's curves: `CURVE_TOTALS` from `CURVE_ROWS`.

    One run's rows stand together, so a task holds one run's sums: 16 bytes per metric, cut-off, point and
    replicate, at most 256 MiB (`config.evaluation.MAX_CURVE_SUMS`).
    """
    totals: dict[tuple[str, ...], dict[str, Any]] = {}
    for batch in batches:
        for rows in split_curves(batch):
            key = tuple(rows.column(name)[0].as_py() for name in CURVE_KEY)
            if totals and key[0] != next(iter(totals))[0]:
                yield from _totals_batches(totals)
                totals = {}
            total = _sum_rows(rows, bootstrap)
            if key in totals:  # the order of additions changes no bit
                total |= {name: totals[key][name] + total[name] for name in _SUMS}
            totals[key] = total
    yield from _totals_batches(totals)


def _sum_rows(rows: pa.RecordBatch, bootstrap: Bootstrap) -> dict[str, Any]:
    """Return points, cut-offs and sums of one curve, for all columns.

    Columns are cut-offs x points, and for NDCG its means over the points. The sums are moments (c, 5),
    users below 0 (c,), bootstrap sums (b, c) and weights (b, c), each end to end.
    """
    values_ucl = read_values(rows)
    columns = values_ucl.reshape(rows.num_rows, -1)
    if rows.column("metric")[0].as_py() == CURVE_METRIC:
        columns = np.concatenate([columns, average_rows(rows)], axis=1)
    keys_u = rows.column("user_key").to_numpy()
    boot, weights = resampling.bootstrap_sums(keys_u, columns, bootstrap.replicates, bootstrap.seed)
    below = (columns < 0).sum(axis=0).astype(np.int64)
    sums = (part.reshape(-1) for part in (resampling.moments(columns), below, boot, weights))
    total = {name: rows.column(name)[0].as_py() for name in ("given", "ks")}
    return {**total, **dict(zip(_SUMS, sums, strict=True))}


def _totals_batches(totals: Mapping[tuple[str, ...], dict[str, Any]]) -> Batches:
    for key, total in totals.items():
        row = {**dict(zip(CURVE_KEY, key, strict=True)), **total}
        columns = {name: [value] for name, value in row.items()}
        yield pa.RecordBatch.from_pydict(columns, schema=CURVE_TOTALS)


def finish_curves(bootstrap: Bootstrap, table: pa.Table) -> pa.Table:
    """Finish one curve: `CURVE_MEANS` from all tasks' `CURVE_TOTALS`."""
    given, ks = table.column("given")[0].as_py(), table.column("ks")[0].as_py()
    metric = table.column("metric")[0].as_py()
    columns: list[tuple[int | None, int | None]] = [(k, point) for k in ks for point in given]
    columns += [(k, None) for k in ks] if metric == CURVE_METRIC else []
    numbers, n = _finish_columns(bootstrap, table, len(columns))
    few = (n < FEWEST_USERS) & np.array([point is not None for _, point in columns])
    rows = {
        **{name: [table.column(name)[0].as_py()] * len(columns) for name in CURVE_KEY},
        "metric": [metric if point is not None else MANDCG for _, point in columns],
        "k": [k for k, _ in columns],
        "given": [point for _, point in columns],
        **{name: _hide(column, few) for name, column in numbers.items()},
        "n": n,
    }
    return pa.Table.from_pydict(rows, schema=CURVE_MEANS)


def _finish_columns(bootstrap: Bootstrap, table: pa.Table, columns: int) -> tuple[dict[str, Floats], Ints]:
    """Return numbers and user counts for each column.

    The numbers are mean, error, interval and share below 0.
    """
    boot, weights = (sum_lists(table, name, (-1, columns)) for name in ("boot", "weights"))
    value, stderr, n = resampling.mean_and_error(sum_lists(table, "moments", (-1, 5)))
    low, high = resampling.interval(boot, weights, n, bootstrap.level)
    share = np.where(n > 0, sum_lists(table, "below", (-1,)) / np.maximum(n, 1), np.nan)
    names = ("value", "stderr", "ci_low", "ci_high", "share_below_zero")
    return dict(zip(names, (value, stderr, low, high, share), strict=True)), n


def _hide(numbers: Floats, few: Bools) -> pa.Array:
    """Return the numbers; NULL for NaN or few users."""
    return pa.array(numbers, pa.float64(), mask=np.isnan(numbers) | few)


# ------------------------------------------------------------------------------- counts for checks


def count_users(plan: CurvePlan, batches: Batches) -> Batches:
    """Count what no model changes: rows of `CURVE_COUNTS`.

    Each part in each batch of `CURVE_USERS` has one row.
    """
    for batch in batches:
        for part in batch.column("part").unique().to_pylist():
            yield _count_part(plan, part, batch.filter(pc.equal(batch.column("part"), part)))


def _count_part(plan: CurvePlan, part: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    lengths_u = np.diff(flatten_lists(batch.column("items"))[0])
    standing, _ = select_standing(batch, plan)
    empty_u = np.zeros(standing.num_rows, np.bool_)
    given_l, untrained_l = np.zeros((2, len(plan.request.rule.given)), np.int64)
    untrained_p = flatten_lists(standing.column("untrained"))[1]
    for users, places in list_orders(standing, plan):
        for start, stop in cut_batches(users, plan.request.rule):
            piece = users.select_users(start, stop)
            rows = places[users.offsets[start] : users.offsets[stop]]
            counted = _count_prefixes(plan, piece, untrained_p[rows])
            given_l, untrained_l = given_l + counted[0], untrained_l + counted[1]
            empty_u[start:stop] |= counted[2]
    row = {
        "part": part,
        "users": batch.num_rows,
        "short": batch.num_rows - standing.num_rows,
        "equal_times": int(pc.sum(standing.column("equal_times")).as_py() or 0),
        "empty": int(empty_u.sum()),
        "longest": int(lengths_u.max(initial=0)),
        "given_items": given_l.tolist(),
        "untrained_items": untrained_l.tolist(),
    }
    return pa.RecordBatch.from_pylist([row], schema=CURVE_COUNTS)


def _count_prefixes(plan: CurvePlan, users: CurveUsers, untrained_p: Bools) -> tuple[Ints, Ints, Bools]:
    """Return given and untrained items by point, and a mask.

    The mask is true for users without a relevant row at a point.
    """
    rule, n = plan.request.rule, len(users.keys_u)
    prefixes = make_prefixes(users.offsets, rule)
    place_x = np.searchsorted(rule.given, prefixes.point_x)
    before_p = np.concatenate([[0], np.cumsum(untrained_p)])
    first_x = users.offsets[prefixes.user_x]
    unknown_x = before_p[first_x + prefixes.point_x] - before_p[first_x]
    given_l = np.bincount(place_x, prefixes.point_x, len(rule.given)).astype(np.int64)
    untrained_l = np.bincount(place_x, unknown_x, len(rule.given)).astype(np.int64)
    relevant = is_relevant(users.ratings_p[prefixes.truth_p], plan.request.definition)
    relevant_x = np.diff(np.concatenate([[0], np.cumsum(relevant)])[prefixes.truth_offsets])
    return given_l, untrained_l, np.bincount(prefixes.user_x[relevant_x == 0], minlength=n) > 0


def merge_counts(rows: pa.Table) -> dict[str, dict[str, Any]]:
    """Add up rows of `CURVE_COUNTS`: part -> its counts.

    `longest` becomes the largest of all rows.
    """
    merged: dict[str, dict[str, Any]] = {}
    for row in rows.to_pylist():
        if row["part"] not in merged:
            merged[row["part"]] = row
            continue
        total = merged[row["part"]]
        for name in ("users", "short", "equal_times", "empty"):
            total[name] += row[name]
        for name in ("given_items", "untrained_items"):
            total[name] = [a + b for a, b in zip(total[name], row[name], strict=True)]
        total["longest"] = max(total["longest"], row["longest"])
    return merged
