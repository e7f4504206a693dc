"""Learning curves in tasks, one model after the other.

A held-out user's row has all items and ratings in order. Prefixes, their vectors and their rankings are
made in the task (`curve_batches`), and never cross a shuffle. The driver gets one row per curve point.
Axes: u users, p the pairs' tested items, x pairs (user, point).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.curves import curve_batches
from recbench_spark.analyses.curves.curve_batches import CurveMember, CurvePlan
from recbench_spark.analyses.curves.learning_curves import RankedPrefixes, rank_prefixes
from recbench_spark.config import Bootstrap, HeldOut
from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.core.ids import encode_texts
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.metrics.list_rows import repeat_list
from recbench_spark.ranking.batch_schemas import USER_VALUES
from recbench_spark.ranking.kernels.scorers import WHOLE_ROWS
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.ranking.sources import Strings
from recbench_spark.storage.shared_arrays import bound_lists

BATCH_USERS = 4096
"""Users whose values are made at once: 8 bytes per metric, cut-off and point."""

HELD_OUT_ROWS = ("given", "test", "valid")
"""Labels in the table `splits` for rows of held-out users."""

LABELLED = ("user_id", "item_id", "rating", "event_time", "part")
"""Columns in labelled rows."""

Measurement = Callable[..., Batches]
"""Makes rows of a curve table from a model and held-out users."""


@dataclass(frozen=True)
class HeldOutUsers:
    """Held-out users in some parts.

    Attributes:
        names: the parts, `test` or `valid` or both.
        shares: the test's and the validation's shares of all users.
        seed: the split's seed; a hash of the user decides the part, as in the split.
    """

    names: tuple[str, ...]
    shares: HeldOut
    seed: int

    def find_parts(self, ids: pa.Array) -> npt.NDArray[np.str_]:
        """Return each user's part.

        Empty for training users, and for other parts.
        """
        from recbench_spark.core.hashed_ids import hash_ids  # noqa: PLC0415
        from recbench_spark.core.hashing import hash_longs, place_hashes  # noqa: PLC0415

        place_u = place_hashes(hash_longs(np.full(len(ids), self.seed, np.int64), hash_ids(ids)))
        test = self.shares.test
        part_u = np.select([place_u < test, place_u < test + self.shares.valid], ["test", "valid"], "")
        return np.where(np.isin(part_u, self.names), part_u, "")


def select_curve_users(
    rows: pa.Table, known: KnownItems, held_out: HeldOutUsers, plan: CurvePlan
) -> pa.Table:
    """Select held-out users with all rows, given and tested.

    Returns rows of `CURVE_USERS`.

    Args:
        rows: all labelled rows of some users (LABELLED).
        known: the catalogue.
        held_out: the held-out users.
        plan: points and order.
    """
    rows = rows.filter(_mark_held_out(rows))
    users, items = (encode_texts(rows.column(name)) for name in LABELLED[:2])
    user_r, item_r = (codes.indices.to_numpy() for codes in (users, items))
    index_i, trained_i = known.find(items.dictionary)
    part_u = held_out.find_parts(users.dictionary)
    time_r = np.zeros(len(rows), np.int64) if plan.draws else _read_times(rows)
    rating_r = rows.column("rating").to_numpy()
    chosen = np.flatnonzero((part_u[user_r] != "") & (index_i[item_r] >= 0))
    keys = (rating_r, index_i[item_r], time_r, user_r)
    order = chosen[np.lexsort([key[chosen] for key in keys])]
    numbers, place_o = np.unique(user_r[order], return_inverse=True)
    bounds = bound_lists(place_o, len(numbers))
    named = users.dictionary.take(pa.array(numbers))

    def list_rows(values: pa.Array) -> pa.ListArray:
        return pa.ListArray.from_arrays(bounds, values)

    columns = {
        "user_id": named,
        "part": pa.array(part_u[numbers].tolist(), pa.string()),
        "user_key": _hash_ids(named),
        "items": list_rows(pa.array(index_i[item_r[order]], pa.int32())),
        "ratings": list_rows(pa.array(rating_r[order])),
        "item_keys": list_rows(_hash_ids(items.dictionary).take(pa.array(item_r[order])))
        if plan.draws
        else repeat_list([], len(numbers)).cast(pa.list_(pa.int64())),
        "untrained": list_rows(pa.array((trained_i == 0)[item_r[order]])),
        "equal_times": _mark_equal_times(bounds.to_numpy(), time_r[order], plan),
    }
    return pa.table(columns, schema=curve_batches.CURVE_USERS)


def _mark_held_out(rows: pa.Table) -> pa.Array:
    return pc.is_in(rows.column("part").cast(pa.string()), pa.array(HELD_OUT_ROWS))


def count_untimed(tables: Iterable[pa.Table]) -> int:
    """Count held-out users' rows without a time."""
    held = (rows.filter(_mark_held_out(rows)) for rows in tables)
    return sum(rows.column("event_time").null_count for rows in held)


def _read_times(rows: pa.Table) -> Ints:
    times: Ints = rows.column("event_time").cast(pa.int64()).fill_null(np.iinfo(np.int64).min).to_numpy()
    return times


def _hash_ids(ids: pa.Array) -> pa.Array:
    from recbench_spark.core.hashed_ids import hash_ids  # noqa: PLC0415

    return pa.array(hash_ids(ids).view(np.int64))


def _mark_equal_times(bounds: Ints, time_o: Ints, plan: CurvePlan) -> Bools:
    """Mark users whose first L rows share one time."""
    last = plan.request.rule.given[-1]
    if plan.draws or last == 1:
        return np.zeros(len(bounds) - 1, bool)
    end = np.minimum(bounds[:-1] + last, bounds[1:]) - 1
    equal: Bools = time_o[bounds[:-1]] == time_o[end]
    return equal


def run_member(
    users: pa.Table, measure: Measurement, member: CurveMember, device: Callable[[], str], schema: pa.Schema
) -> pa.Table:
    """Measure one model on a task's users.

    Beside the model's mapped item side it holds the prefixes of some users: their vectors and lists
    (`learning_curves.BATCH_PAIRS`).
    """
    batches = iter(users.to_batches(max_chunksize=BATCH_USERS))
    return pa.Table.from_batches(measure(member, batches, device=device()), schema)


def count_curve_users(tables: Iterable[pa.Table], plan: CurvePlan) -> pa.Table:
    """Count a task's users: rows of `CURVE_COUNTS`."""
    batches = (batch for table in tables for batch in table.to_batches(max_chunksize=BATCH_USERS))
    return pa.Table.from_batches(curve_batches.count_users(plan, batches), curve_batches.CURVE_COUNTS)


def average_points(values: pa.Table) -> pa.Table:
    """Compute MANDCG for a task's users.

    Makes rows of `user_metrics` from rows of `curve_values`.
    """
    schema = USER_VALUES.append(pa.field("run_id", pa.string()))
    return pa.Table.from_batches(curve_batches.average_curves(values.to_batches()), schema)


def curve_measure(bootstrap: Bootstrap) -> Measure:
    """Return the measure from `curve_values` to `CURVE_MEANS`.

    Rows may come from any runs. A task has one row with cut-offs x points x replicates whole numbers for
    each curve, so nothing grows with the number of users.
    """
    sums, finish = (
        partial(work, bootstrap) for work in (curve_batches.sum_curves, curve_batches.finish_curves)
    )
    return Measure(sums, curve_batches.CURVE_KEY, finish, tuple(curve_batches.CURVE_ROWS.names))


# ------------------------------------------------------------------------------- ranks, on request

CURVE_RANKED = pa.schema(
    {
        "run_id": pa.string(),
        "user_id": pa.string(),
        "user_key": pa.int64(),
        "part": pa.string(),
        "definition": pa.string(),
        "draw": pa.int32(),
        "given": pa.int32(),
        "item_ids": pa.list_(pa.string()),
        "relevance": pa.list_(pa.float64()),
        **dict.fromkeys(("above", "tied", "before"), pa.list_(pa.int64())),
        "length": pa.int64(),
    }
)
"""One row per user, order and point: the table `curve_rankings`."""


def rank_users(
    plan: CurvePlan, member: CurveMember, batches: Batches, *, device: str = WHOLE_ROWS
) -> Batches:
    """Rank tested items for each user, order and point.

    Makes rows of `CURVE_RANKED` from `CURVE_USERS`. `curve_batches.measure_users` computes its values from
    the same ranks. One batch of limited size is in memory.

    Args:
        plan: points, metrics, definition, orders.
        member: the model.
        batches: held-out users.
        device: as for `measure_users`.
    """
    scorer, folder = member.model.open()
    ids = member.model.source.item_ids()
    for batch in batches:
        standing, points_u = curve_batches.select_standing(batch, plan)
        request = curve_batches.set_device(plan.request, scorer, points_u, device)
        orders = curve_batches.list_orders(standing, plan) if standing.num_rows else []
        for draw, (users, _) in enumerate(orders):
            for ranked in rank_prefixes(scorer, folder, users, request):
                columns = _make_rows(standing, ranked, ids, plan)
                n = len(columns["length"])
                columns["run_id"] = pa.repeat(member.run_id, n)
                columns["draw"] = pa.repeat(pa.scalar(draw if plan.draws else None, pa.int32()), n)
                yield pa.RecordBatch.from_pydict(columns, schema=CURVE_RANKED)


def _make_rows(
    users: pa.RecordBatch, ranked: RankedPrefixes, ids: Strings, plan: CurvePlan
) -> dict[str, pa.Array]:
    rankings, rows = ranked.rankings, pa.array(ranked.user_x)
    bounds = pa.array(rankings.offsets, pa.int32())
    names = pa.array(ids[ranked.items_p], pa.binary()).cast(pa.string())
    numbers = {name: pa.array(getattr(rankings, name)) for name in ("relevance", "above", "tied", "before")}
    lists = {"item_ids": names, **numbers}
    return {
        **{name: users.column(name).take(rows) for name in ("user_id", "user_key", "part")},
        "definition": pa.repeat(plan.curve, len(rows)),
        "given": pa.array(ranked.point_x, pa.int32()),
        **{name: pa.ListArray.from_arrays(bounds, values) for name, values in lists.items()},
        "length": pa.array(rankings.length.astype(np.int64)),
    }
