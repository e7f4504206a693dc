"""Check a submission's rating scale and plausibility."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.boards.entries import BESIDE_TABLE, Entry, make_published_entries
from recbench_spark.boards.plausibility import (
    FAR_DISTANCE,
    RANKING_LIMITS,
    RATING_LIMITS,
    PredictionSpread,
    RatingHits,
    TrustedRun,
    check_exactness,
    check_level,
    check_scale,
)
from recbench_spark.boards.published import load_published_boards
from recbench_spark.config import Benchmark
from recbench_spark.errors import DataError, MissingError
from recbench_spark.metrics.kernels.about import about_metric
from recbench_spark.models.rating.interface import Scale
from recbench_spark.schemas import CHECKS
from recbench_spark.storage.blocks import ChangedRows, Rows
from recbench_spark.storage.file_tables import FileTables, RowReader
from recbench_spark.tuning.board_update import (
    board_name,
    collect_nightly_entries,
    collect_own_entries,
    read_entries,
)
from recbench_spark.tuning.decisions import is_counted, read_latest_decisions
from recbench_spark.tuning.folds import FoldedLog, open_rows

PAIR_COLUMNS = ("user_id", "prediction", "outcome", "part", "place")
"""Columns for a held-out row and its prediction.

`place`: the held-out row's number in its task.
"""

PREDICTED = ("prediction", "outcome", "part")

Moments = npt.NDArray[np.float64]

MAX_SCALE_VALUES = 100
"""Most different ratings on a stepped scale."""

NEAR = 0.1
"""Share of a step: see `RatingHits`."""


class TrainingRatingStats(NamedTuple):
    """Mean and standard deviation of the training ratings."""

    mean: float
    spread: float


def read_training_stats(store: FileTables, log: FoldedLog) -> TrainingRatingStats:
    """Compute mean and spread of the training rows.

    With folds all rows count. This takes one scan and no shuffle.
    """
    parts = None if log.folds else log.divide_parts(None)[0]
    sums = open_rows(store, log).each(("rating", "part"), partial(_sum_ratings, parts=parts))
    n, total, squares = np.sum(sums, axis=0)
    return TrainingRatingStats(total / n, math.sqrt(max(squares / n - (total / n) ** 2, 0.0)))


def _sum_ratings(tables: Iterable[pa.Table], parts: Sequence[str] | None) -> npt.NDArray[np.float64]:
    """Return the ratings' number, their sum, and their squares' sum."""
    sums = np.zeros(3)
    for table in tables:
        learnt = pc.is_in(table.column("part").cast(pa.string()), pa.array(parts)) if parts else None
        ratings = (table if learnt is None else table.filter(learnt)).column("rating").to_numpy()
        sums += len(ratings), ratings.sum(), (ratings**2).sum()
    return sums


def clip_to_scale(
    pairs: Rows, log: FoldedLog, learnt: TrainingRatingStats, name: str
) -> tuple[Rows, Sequence[str]]:
    """Clip predictions to the log's scale, as for own models.

    Returns the pairs, and notes on the clipping.

    Args:
        pairs: rows of PAIR_COLUMNS.
        log: its scale is `dataset.scale`, or from its lowest to its highest rating.
        learnt: the log's statistics.
        name: the bundle's name.

    Raises:
        DataError: the predictions are on another scale.
    """
    low, high = scale = log.files.scale
    n, out, far, total = np.sum(pairs.each(("prediction",), partial(_count_outside, scale=scale)), axis=0)
    spans = PredictionSpread(int(n), int(out), int(far), total / n, scale, learnt.mean, learnt.spread)
    if fault := check_scale(spans):
        raise DataError(f"bundle {name}: {fault}", "bring them to the scale of the log's ratings")
    if not out:
        return pairs, []
    clipped = ChangedRows(pairs, PAIR_COLUMNS, partial(_clip, scale=scale), PAIR_COLUMNS)
    count_text = f"{int(out):,} of {int(n):,} predictions lie outside the scale {low:g} to {high:g}"
    return clipped, [f"note: {count_text} and were clipped to it, as our models' are"]


def _count_outside(tables: Iterable[pa.Table], scale: Scale) -> npt.NDArray[np.float64]:
    """Count predictions: all, outside the scale, and far outside.

    The sum of the predictions is added.
    """
    low, high = scale
    far, counts = FAR_DISTANCE * (high - low), np.zeros(4)
    for table in tables:
        p = table.column("prediction").to_numpy()
        beyond = ((p < low - far) | (p > high + far)).sum()
        counts += len(p), ((p < low) | (p > high)).sum(), beyond, p.sum()
    return counts


def _clip(rows: pa.Table, scale: Scale) -> pa.Table:
    at = rows.column_names.index("prediction")
    return rows.set_column(at, "prediction", pa.array(rows.column(at).to_numpy().clip(*scale)))


def find_rating_doubts(
    store: FileTables, benchmark: Benchmark, log: FoldedLog, pairs: Rows, part: str | None
) -> list[str]:
    """Describe doubts about predictions better than the noise allows.

    Plausible predictions raise no doubt.

    Args:
        store: the warehouse.
        benchmark: the board's benchmark.
        log: the benchmark's log.
        pairs: rows of PAIR_COLUMNS, clipped.
        part: name of the hidden part, which alone counts; None for folds, each judged by itself.
    """
    trusted = find_best_trusted(
        _list_entries(store, benchmark, log), store.rows, board_name(benchmark), part, True
    )
    exactness = check_exactness(_count_hits(pairs, part))
    work = partial(_sum_moments, part=part, middle=sum(log.files.scale) / 2)
    by_part: dict[str, Moments] = {}
    for sums in pairs.each(PREDICTED, work):
        for name, one in sums.items():
            by_part[name] = by_part.get(name, 0.0) + one
    for name, total in sorted(by_part.items()):
        var_p, var_y, both = _read_variances(total)
        base = trusted or TrustedRun("the mean of the ratings", math.sqrt(var_y), 0.0, 0)
        residual = var_y - (both**2 / var_p if var_p > 0 else 0.0)
        where = f"on {'fold' if part is None else 'the hidden part'} {name}, by its best line,"
        error = base.value / math.sqrt(total[0])
        doubt = check_level(math.sqrt(max(residual, 0.0)), base, 0.0, RATING_LIMITS, error, where=where)
        if doubt is not None:
            return [doubt, *([exactness] if exactness else [])]
    return [exactness] if exactness else []


def _sum_moments(tables: Iterable[pa.Table], part: str | None, middle: float) -> dict[str, Moments]:
    """Sum a part's n, p, y, p^2, y^2, p y.

    p is the prediction and y the outcome, both from the middle of the scale. They are behind the RMSE of
    the best straight line, which does not depend on the scale.
    """
    sums: dict[str, Moments] = {}
    for table in tables:
        for name, both in _split_parts(table, part):
            p, y = both - middle
            one = np.array([len(p), p.sum(), y.sum(), (p * p).sum(), (y * y).sum(), (p * y).sum()])
            sums[name] = sums.get(name, 0.0) + one
    return sums


def _split_parts(table: pa.Table, part: str | None) -> Iterator[tuple[str, Moments]]:
    """Yield each part's predictions and outcomes, or one part's."""
    parts = table.column("part").cast(pa.string())
    for name in parts.unique().to_pylist() if part is None else [part]:
        rows = table.filter(pc.equal(parts, name))
        yield name, np.array([rows.column(column).to_numpy() for column in ("prediction", "outcome")])


def _read_variances(sums: Moments) -> Moments:
    """Compute the variances of p and y, and their covariance."""
    n, p, y, pp, yy, py = sums
    return np.array([pp / n - (p / n) ** 2, yy / n - (y / n) ** 2, py / n - p * y / n**2])


def _count_hits(pairs: Rows, part: str | None) -> RatingHits:
    """Count `RatingHits`; all zero where ratings are no steps.

    The driver holds each different rating once.
    """
    listed = pairs.each(PREDICTED, partial(_list_outcomes, part=part))
    values = sorted(set[float]().union(*listed))
    if not 2 < len(values) <= MAX_SCALE_VALUES:
        return RatingHits(0, 0, 0, 0)
    counts = pairs.each(PREDICTED, partial(_sum_hits, part=part, values=values))
    return RatingHits(*map(int, np.sum(counts, axis=0)))


def _list_outcomes(tables: Iterable[pa.Table], part: str | None) -> set[float]:
    """List a task's different outcomes.

    The list has at most one outcome more than a scale may have.
    """
    values: set[float] = set()
    for table in tables:
        for _, (_, y) in _split_parts(table, part):
            values.update(np.unique(y).tolist()[: MAX_SCALE_VALUES + 1])
    return set(sorted(values)[: MAX_SCALE_VALUES + 1])


def _sum_hits(
    tables: Iterable[pa.Table], part: str | None, values: Sequence[float]
) -> npt.NDArray[np.int64]:
    low, high = values[0], values[-1]
    step = min(b - a for a, b in pairwise(values))
    counts = np.zeros(4, np.int64)
    for table in tables:
        for _, (p, y) in _split_parts(table, part):
            nearest = low + np.round((p - low) / step) * step
            away, hit = np.abs(p - nearest) / step, np.abs(y - nearest) < step / 1000
            inside = (nearest > low + step / 2) & (nearest < high - step / 2)
            near, beside = inside & (away <= NEAR), inside & (away > NEAR) & (away <= 2 * NEAR)
            counts += [one.sum() for one in (near, near & hit, beside, beside & hit)]
    return counts


def find_ranking_doubts(store: FileTables, benchmark: Benchmark, entry: Entry, error: float) -> list[str]:
    """Describe doubts about a headline better than noise allows.

    A plausible headline raises no doubt. A metric without a best possible value is not judged. `error`:
    standard error over users.
    """
    about = about_metric(benchmark.headline.partition("@")[0])
    low, high = about.bounds
    possible, worst = (low, high) if entry.lower_is_better else (high, low)
    if not math.isfinite(possible):
        return []
    try:
        entries = [entry for entry, _ in collect_nightly_entries(store, benchmark)]
    except MissingError:
        entries = []
    board_entries = [*entries, *_read_board_entries(store, benchmark)]
    trusted = find_best_trusted(board_entries, store.rows, entry.board, entry.part, entry.lower_is_better)
    if trusted is None and not math.isfinite(worst):
        return []
    base = trusted or TrustedRun("the worst possible value", worst, 0.0, 0)
    doubt = check_level(entry.value, base, possible, RANKING_LIMITS, error, where=f"on part {entry.part}")
    return [doubt] if doubt else []


def _list_entries(store: FileTables, benchmark: Benchmark, log: FoldedLog) -> list[Entry]:
    """Return the board's rows, and own rows to come.

    The next `recbench board` will add these.
    """
    own_entries = [entry for entry, _ in collect_own_entries(store.rows, benchmark, log, ())]
    return [*own_entries, *_read_board_entries(store, benchmark)]


def _read_board_entries(store: FileTables, benchmark: Benchmark) -> list[Entry]:
    name, boards = board_name(benchmark), load_published_boards()
    published = make_published_entries(boards[name]) if name in boards else []
    return [*published, *read_entries(store, name)]


def find_best_trusted(
    entries: Sequence[Entry], read: RowReader, board: str, part: str | None, lower_is_better: bool
) -> TrustedRun | None:
    """Find the best trusted row for a part, or None.

    A trusted row is published, own, or accepted by an operator. An unaccepted submission is no reference:
    otherwise each bundle could raise the limit for the next one. A row without a part counts for every
    part.
    """
    decisions = read_latest_decisions(read, board)
    trusted = [
        entry
        for entry in entries
        if entry.part in (part, None) and entry.evidence != BESIDE_TABLE and math.isfinite(entry.value)
        and is_counted(entry.entry_id, decisions)
        and (entry.origin != "bundle" or entry.entry_id in decisions)
    ]  # fmt: skip
    if not trusted:
        return None
    best = min(trusted, key=lambda entry: entry.value if lower_is_better else -entry.value)
    noise = math.hypot(best.spread_folds or 0.0, best.spread_seeds or 0.0)
    return TrustedRun(best.name, best.value, noise, len({entry.method for entry in trusted}))


def note_training_items(read: RowReader, run_id: str) -> list[str]:
    """Note lists that recommend training items.

    The list is empty if they do not.
    """
    filters = [("run_id", "=", run_id), ("check", "=", TRAINING_ITEMS)]
    n = sum(int(row["observed"] or 0) for row in read(CHECKS, filters, ["observed"]))
    if not n:
        return []
    return [
        f"note: {n:,} rows of the lists are training items of their users: they keep their place and count"
        " as misses, where our models' lists leave them out"
    ]


TRAINING_ITEMS = "list rows of training items"
"""Name of the check: see `metrics.ranking_counts.finish_row_checks`."""
