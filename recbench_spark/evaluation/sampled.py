"""Corrected estimates from candidates drawn uniformly, beside the raw sampled values.

A raw value (estimator `holdout`) measures another thing than the metric over all items. Here each
truth item is ranked against the drawn negatives alone, and a table made for the draw turns its
sampled rank into an estimate of the metric over all candidates (see `kernels.sampled`). A user's
value is the mean over the user's truth items, one by one: with one truth item a user, as under
leave-one-out, it estimates the metric itself; with several, recall where each is ranked without the
others, which the definition says as `items=one_by_one`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame

from recbench_spark.evaluation import metrics as metric_rows
from recbench_spark.evaluation.batches import to_rankings
from recbench_spark.evaluation.metrics import (
    METRIC_ROWS,
    RANKING_COLUMNS,
    SLICE,
    TOTALS,
    Column,
    Plan,
    Selected,
    Totals,
)
from recbench_spark.kernels import resampling, sampled

Batches = Iterator[pa.RecordBatch]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LIKELIHOOD = "maximum_likelihood"
LIKELIHOOD_REPLICATES = 100
"""Each replicate of this estimator is an EM of its own: a second for a hundred of them."""

DIGITS = 3
"""Digits to which the number of candidates is kept: tables are made once for each, and shared."""


def corrected_metrics(rankings: DataFrame, plan: Plan, estimators: Sequence[str], draws: int) -> DataFrame:
    """Rows of `metrics` for each corrected estimator, with intervals over users.

    Nothing is shuffled but one row a task and slice.

    Args:
        rankings: rows of the table `rankings` with `drawn` and `pool`; users without are left out.
        plan: metrics (those that follow from one rank are corrected), cut-offs, definition, bootstrap.
        estimators: names of `kernels.sampled.ESTIMATORS`, and `maximum_likelihood`.
        draws: negatives drawn for most users: the likelihood is of those users alone.
    """
    drawn = rankings.where("pool IS NOT NULL").select(*RANKING_COLUMNS, "drawn", "pool")
    by_table = [name for name in estimators if name != LIKELIHOOD]
    frame = None
    if by_table:
        totals = drawn.mapInArrow(partial(_table_totals, plan, by_table), TOTALS)
        frame = metric_rows.finished(totals, columns_of(plan, by_table), plan.bootstrap)
    if LIKELIHOOD in estimators:
        likely = _likely(drawn, plan, draws)
        frame = likely if frame is None else frame.unionByName(likely)
    assert frame is not None
    return frame


def correctable(plan: Plan) -> list[str]:
    """The metrics asked for that follow from the rank of one item."""
    return [name for name in plan.of_ranks if name in sampled.OF_RANK]


def columns_of(plan: Plan, estimators: Sequence[str]) -> list[Column]:
    """The columns of all estimators' values, in order."""
    asked = plan.table(correctable(plan))
    return [
        Column(metric, k, f"{definition};items=one_by_one", name)
        for name in estimators
        for metric, k, definition, _ in asked
    ]


# ------------------------------------------------------------------------------- by tables


def _table_totals(plan: Plan, estimators: Sequence[str], batches: Batches) -> Batches:
    def totals(some: Selected) -> Totals:
        rank_p, draws = _ranks(some, plan), _draws(some)
        values = {
            f"{name} {metric}": _values(name, metric, plan, some.rankings.offsets, rank_p, draws)
            for name in estimators
            for metric in correctable(plan)
        }
        return metric_rows.totals_of(values, some.keys_u, plan.bootstrap)

    yield from metric_rows.totals_by_slice(batches, totals)


def _ranks(some: Selected, plan: Plan) -> Ints:
    """Sampled ranks of the truth items selected; all others of the user are taken out of the way first."""
    return sampled.sampled_ranks(to_rankings(some.batch), plan.definition)[some.kept]


def _draws(some: Selected) -> list[tuple[int, int]]:
    """Candidates (the item and its pool, in few digits) and negatives drawn, of each user."""
    pool, drawn = some.column("pool"), some.column("drawn")
    return [(_in_few_digits(n + 1), m) for n, m in zip(pool.tolist(), drawn.tolist(), strict=True)]


def _in_few_digits(n: int) -> int:
    return int(round(n, min(0, DIGITS - len(str(n)))))


def _values(
    estimator: str, metric: str, plan: Plan, offsets: Ints, rank_p: Ints, draws: list[tuple[int, int]]
) -> Floats:
    """The estimates of each user, (u, c); users are looked up in the table of their own draw."""
    ks = tuple(plan.columns(metric))
    values = np.full((len(draws), len(ks)), np.nan)
    for draw in sorted(set(draws)):
        table = _table(estimator, metric, ks, draw)
        mine = np.flatnonzero([other == draw for other in draws])
        # Other users' ranks may lie beyond this table; their values are not kept.
        values[mine] = sampled.user_values(offsets, np.minimum(rank_p, len(table)), table)[mine]
    return values


@lru_cache(maxsize=4096)
def _table(estimator: str, metric: str, ks: tuple[int | None, ...], draw: tuple[int, int]) -> Floats:
    n, m = draw
    return sampled.ESTIMATORS[estimator](metric, ks, sampled.Draw(n, min(m, n - 1)))


# ------------------------------------------------------------------------------- by likelihood


def _likely(drawn: DataFrame, plan: Plan, draws: int) -> DataFrame:
    """The likely ranks of all truth items together: each task sends histograms of sampled ranks."""
    few = plan.bootstrap.model_copy(
        update={"replicates": min(plan.bootstrap.replicates, LIKELIHOOD_REPLICATES)}
    )
    asked = Plan(plan.metrics, plan.ks, plan.definition, few)

    # Spark reads the kind of function from these annotations, which a partial does not show.
    def finish(table: pa.Table) -> pa.Table:
        return _finish_likelihood(asked, draws, table)

    of_draw = drawn.where(drawn["drawn"] == draws)
    totals = of_draw.mapInArrow(partial(_histograms, asked, draws), TOTALS)
    return totals.groupBy(*SLICE).applyInArrow(finish, METRIC_ROWS)


def _histograms(plan: Plan, draws: int, batches: Batches) -> Batches:
    def totals(some: Selected) -> Totals:
        offsets, pool_u = some.rankings.offsets, some.column("pool")
        counts = _user_histograms(offsets, _ranks(some, plan), draws, pool_u)
        return metric_rows.totals_of({"ranks": counts}, some.keys_u, plan.bootstrap)

    yield from metric_rows.totals_by_slice(batches, totals)


POOL_UNIT = 2.0**24
"""Pools are added in this unit, so that the sums of a bootstrap stay exact."""


def _user_histograms(offsets: Ints, rank_p: Ints, m: int, pool_u: Ints) -> Floats:
    """Truth items of each user at each sampled rank 0 (not ranked) .. m + 1, and items x pool."""
    users, length = len(offsets) - 1, np.diff(offsets)
    cell_p = np.repeat(np.arange(users), length) * (m + 2) + rank_p
    counts = np.bincount(cell_p, minlength=users * (m + 2)).reshape(users, m + 2)
    return np.column_stack([counts, length * (pool_u / POOL_UNIT)]).astype(np.float64)


def _finish_likelihood(plan: Plan, draws: int, table: pa.Table) -> pa.Table:
    totals = metric_rows.add_up(table, draws + 3, plan.bootstrap.replicates)
    mean_j, _, n = resampling.mean_and_error(totals.moments_c5)
    every = np.concatenate([mean_j[None, :], totals.boot_bc.astype(np.float64)])
    pool = round(mean_j[-1] * POOL_UNIT / mean_j[:-1].sum())
    values = _likely_values(plan, every[:, :-1], sampled.Draw(_in_few_digits(1 + pool), draws))
    columns = columns_of(plan, [LIKELIHOOD])
    low, high = resampling.percentile_interval(values[1:], plan.bootstrap.level)
    error = values[1:].std(axis=0, ddof=1) if len(values) > 2 else np.full(len(columns), np.nan)
    counted = np.full(len(columns), n[0], dtype=np.int64)
    return metric_rows.metric_table(table, columns, (values[0], error, low, high), counted)


def _likely_values(plan: Plan, count_bj: Floats, draw: sampled.Draw) -> Floats:
    """The metrics under the likely ranks, (b, c); column 0 counts items not ranked, which are worth 0."""
    ranked, items = count_bj[:, 1:].sum(axis=1), count_bj.sum(axis=1)
    ranks, share = sampled.rank_distribution(count_bj[:, 1:], draw, plan.ks)
    tables = [sampled.rank_values(metric, ranks.rank, plan.columns(metric)) for metric in correctable(plan)]
    scale = np.divide(ranked, items, out=np.full(len(items), np.nan), where=items > 0)
    values: Floats = share @ np.concatenate(tables, axis=1) * scale[:, None]
    return values
