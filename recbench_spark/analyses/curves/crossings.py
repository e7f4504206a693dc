"""Crossings of a night's learning curves, with intervals over users.

Every pair of models has one. Rows of `curve_values` are shuffled by user once. Each task turns its users
into whole numbers, which are added up in one group for each part and pair, so single users' rows never
reach the driver. Axes: u users, n runs, l points, b replicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.comparisons import paired_values as paired
from recbench_spark.analyses.comparisons.differences import ComparedRun
from recbench_spark.analyses.curves.kernels.crossings import find_crossing
from recbench_spark.config import Bootstrap
from recbench_spark.core import resampling
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.metrics.kernels.learning_curves import FEWEST_USERS
from recbench_spark.metrics.list_rows import sum_lists
from recbench_spark.storage.blocks import Rows, reduce_tasks
from recbench_spark.storage.packed_blocks import Block

PIECE_BYTES = 1 << 27
"""Bytes of sums a task should hold: an eighth of a GiB."""

SUM_BYTES = 32
"""Bytes of a pair's sums per point and replicate: two curves, each with values and weights."""

CELL = ("part", "definition", "first_run", "second_run")

RunPair = tuple[int, int]
"""Two runs' numbers."""

_LONGS = pa.list_(pa.int64())
PAIR_TOTALS = pa.schema(
    {
        **dict.fromkeys(CELL[:2], pa.string()),
        **dict.fromkeys(CELL[2:], pa.int32()),
        **dict.fromkeys(("moments", "boot", "weights"), _LONGS),
    }
)
"""One row per task, part and run pair: both curves summed over users, point by point."""

CROSSINGS = pa.schema(
    {
        **dict.fromkeys(CELL[:2], pa.string()),
        **dict.fromkeys(CELL[2:], pa.int32()),
        "swapped": pa.int32(),
        **dict.fromkeys(("given", "given_low", "given_high", "sign_changes"), pa.int32()),
        **dict.fromkeys(("value", "share_at_ends"), pa.float64()),
    }
)
"""One row per part and pair; `swapped` is 1 where the second run comes first."""


@dataclass(frozen=True)
class CrossingPlan:
    """Runs, metric with cut-off, and points in which to search."""

    runs: tuple[ComparedRun, ...]
    metric: str
    k: int
    given: tuple[int, ...]
    bootstrap: Bootstrap


def find_crossings(values: Rows, plan: CrossingPlan, tasks: int) -> pa.Table:
    """Find every pair's crossing: rows of `CROSSINGS`.

    A pair with fewer than ten users at a point has none. Shuffles the rows once by user, then a row per
    task, part and pair. The pairs are divided into pieces, and a task reads its users again for each piece.
    It holds 32 bytes for each of the piece's pairs, points and replicates: at most `PIECE_BYTES`, or one
    pair where that needs more.

    Args:
        values: rows of `curve_values`, from any runs.
        plan: runs, metric, points, bootstrap.
        tasks: number of shuffle tasks.
    """
    columns = (*paired.KEY, "run_id", "user_id", "given", "ks", "values")
    by_user = values.deal(columns, partial(_deal_curves, plan=plan, tasks=tasks), tasks)
    measures = {str(n): _crossing_measure(plan, pairs) for n, pairs in enumerate(cut_pairs(plan))}
    crossings = reduce_tasks(measures, by_user.then(paired.sort_by_user, ()), tasks)
    return pa.concat_tables([CROSSINGS.empty_table(), *crossings.values()])


def _crossing_measure(plan: CrossingPlan, pairs: Sequence[RunPair]) -> Measure:
    """Return the measure for some pairs' crossings.

    The measure needs all rows of a user at once.
    """
    return Measure(partial(sum_pairs, plan, pairs), CELL, partial(finish_pair, plan), ())


def _deal_curves(tables: Iterable[pa.Table], plan: CrossingPlan, tasks: int) -> Iterator[Block]:
    """Yield the curves at the plan's cut-off.

    Points stand in the place of cut-offs.
    """
    run_ids = [run.run_id for run in plan.runs]
    for table in tables:
        rows = table.filter(pc.equal(table.column("metric"), plan.metric)).combine_chunks()
        cuts = rows.column("ks").combine_chunks()
        at = pc.indices_nonzero(pc.equal(cuts.flatten(), plan.k))
        curves = rows.column("values").combine_chunks().flatten().take(at)
        rows = rows.take(pc.list_parent_indices(cuts).take(at)).drop_columns(["ks", "values"])
        rows = rows.rename_columns({"given": "ks"}).append_column("values", curves)
        yield from paired.deal_by_user(paired.key_users(rows, run_ids), tasks)


def cut_pairs(plan: CrossingPlan) -> list[list[RunPair]]:
    """Return all run pairs in pieces small enough for tasks.

    A piece has one pair or more.
    """
    pairs = list(combinations(range(len(plan.runs)), 2))
    pair_bytes = SUM_BYTES * len(plan.given) * max(plan.bootstrap.replicates, 1)
    at_once = max(PIECE_BYTES // pair_bytes, 1)
    return [pairs[start : start + at_once] for start in range(0, len(pairs), at_once)]


def sum_pairs(plan: CrossingPlan, pairs: Sequence[RunPair], batches: Batches) -> Batches:
    """Sum some pairs' curves over a task's users.

    Makes rows of `PAIR_TOTALS`. A part's and definition's rows stand together: a task holds sums for one at
    a time.
    """
    totals: dict[tuple[str, str, int, int], list[Ints]] = {}
    for side in paired.read_paired_values(batches, len(plan.runs), plan.given):
        part, _, definition = side.key
        if totals and (part, definition) != next(iter(totals))[:2]:
            yield from _total_rows(totals)
            totals = {}
        for a, b in pairs:
            sums = _sum_pair(side.keys_u, side.values_unc[:, a], side.values_unc[:, b], plan.bootstrap)
            key = (part, definition, a, b)
            before = totals.get(key)
            totals[key] = sums if before is None else [x + y for x, y in zip(before, sums, strict=True)]
    yield from _total_rows(totals)


def _total_rows(totals: Mapping[tuple[str, str, int, int], list[Ints]]) -> Batches:
    for key, sums in totals.items():
        names = dict(zip(("moments", "boot", "weights"), (x.reshape(-1) for x in sums), strict=True))
        row = {**dict(zip(CELL, key, strict=True)), **names}
        yield pa.RecordBatch.from_pydict({name: [v] for name, v in row.items()}, schema=PAIR_TOTALS)


def _sum_pair(keys_u: Ints, first_ul: Floats, second_ul: Floats, bootstrap: Bootstrap) -> list[Ints]:
    """Return both curves' sums.

    A user without both values at a point counts in neither curve there.
    """
    missing = np.isnan(first_ul) | np.isnan(second_ul)
    columns = np.where(np.tile(missing, 2), np.nan, np.column_stack([first_ul, second_ul]))
    boot, weights = resampling.bootstrap_sums(keys_u, columns, bootstrap.replicates, bootstrap.seed)
    return [resampling.moments(columns), boot, weights]


def finish_pair(plan: CrossingPlan, table: pa.Table) -> pa.Table:
    """Find one pair's crossing from its rows of `PAIR_TOTALS`.

    These rows come from all tasks. Few users: no row.
    """
    at = len(plan.given)
    boot, weights = (sum_lists(table, name, (-1, 2 * at)) for name in ("boot", "weights"))
    means, _, n = resampling.mean_and_error(sum_lists(table, "moments", (-1, 5)))
    if n.min() < FEWEST_USERS or not len(boot):
        return CROSSINGS.empty_table()
    means_b = resampling.replicate_means(boot, weights)
    crossing = find_crossing(
        means[:at], means[at:], means_b[:, :at], means_b[:, at:], plan.given, level=plan.bootstrap.level
    )
    row = {
        **{name: table.column(name)[0].as_py() for name in CELL},
        "swapped": int(crossing.switch.swapped),
        "given": crossing.switch.given,
        "given_low": crossing.low,
        "given_high": crossing.high,
        "sign_changes": crossing.sign_changes,
        "value": crossing.switch.value,
        "share_at_ends": crossing.share_at_ends,
    }
    return pa.Table.from_pylist([row], schema=CROSSINGS)
