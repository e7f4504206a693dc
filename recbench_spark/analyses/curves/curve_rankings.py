"""Ranks along learning curves as rows, on request.

These are functions of batches without Spark. A night needs no such rows: its values follow from ranks
inside a task. Axes: u users, p the pairs' tested items, x pairs (user, point).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recbench_spark.analyses.curves.curve_batches import (
    CurveMember,
    CurvePlan,
    list_orders,
    select_standing,
    set_device,
)
from recbench_spark.analyses.curves.learning_curves import RankedPrefixes, rank_prefixes
from recbench_spark.core.streams import Batches
from recbench_spark.ranking.kernels.scorers import WHOLE_ROWS
from recbench_spark.ranking.sources import Strings

_LONGS, _DOUBLES = pa.list_(pa.int64()), pa.list_(pa.float64())

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
        "relevance": _DOUBLES,
        **dict.fromkeys(("above", "tied", "before"), _LONGS),
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
        standing, points_u = select_standing(batch, plan)
        request = set_device(plan.request, scorer, points_u, device)
        orders = list_orders(standing, plan) if standing.num_rows else []
        for draw, (users, _) in enumerate(orders):
            for ranked in rank_prefixes(scorer, folder, users, request):
                rows = _make_rows(standing, ranked, ids, plan)
                yield _set_columns(rows, member.run_id, draw if plan.draws else None)


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


def _set_columns(columns: dict[str, pa.Array], run_id: str, draw: int | None) -> pa.RecordBatch:
    n = len(columns["length"])
    named = {
        **columns,
        "run_id": pa.repeat(run_id, n),
        "draw": pa.repeat(pa.scalar(draw, pa.int32()), n),
    }
    return pa.RecordBatch.from_pydict(
        {name: named[name] for name in CURVE_RANKED.names}, schema=CURVE_RANKED
    )
