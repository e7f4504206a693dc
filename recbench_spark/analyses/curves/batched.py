"""Learning curves in tasks, one model after the other.

A held-out user's row has all items and ratings in order. Prefixes, their vectors and their rankings are
made in the task (`metrics.curve_batches`), and never cross a shuffle. The driver gets one row per curve
point.
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
from recbench_spark.analyses.curves.curve_batches import (
    CURVE_COUNTS,
    CURVE_KEY,
    CURVE_ROWS,
    CURVE_USERS,
    CurveMember,
    CurvePlan,
)
from recbench_spark.config import Bootstrap, HeldOut
from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.core.ids import encode_texts
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.ranking.batch_schemas import USER_VALUES
from recbench_spark.ranking.known_items import KnownItems
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
    no_keys = pa.array(np.zeros(len(numbers) + 1, np.int32))
    columns = {
        "user_id": named,
        "part": pa.array(part_u[numbers].tolist(), pa.string()),
        "user_key": _hash_ids(named),
        "items": pa.ListArray.from_arrays(bounds, pa.array(index_i[item_r[order]], pa.int32())),
        "ratings": pa.ListArray.from_arrays(bounds, pa.array(rating_r[order])),
        "item_keys": pa.ListArray.from_arrays(
            bounds, _hash_ids(items.dictionary).take(pa.array(item_r[order]))
        )
        if plan.draws
        else pa.ListArray.from_arrays(no_keys, pa.array([], pa.int64())),
        "untrained": pa.ListArray.from_arrays(bounds, pa.array((trained_i == 0)[item_r[order]])),
        "equal_times": _mark_equal_times(bounds.to_numpy(), time_r[order], plan),
    }
    return pa.table(columns, schema=CURVE_USERS)


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
    return pa.Table.from_batches(curve_batches.count_users(plan, batches), CURVE_COUNTS)


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
    return Measure(
        partial(curve_batches.sum_curves, bootstrap),
        CURVE_KEY,
        partial(curve_batches.finish_curves, bootstrap),
        tuple(CURVE_ROWS.names),
    )
