"""Checks of submissions: the scale of predictions, and the plausibility of a result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import Benchmark
from recbench_spark.errors import DataError, MissingError
from recbench_spark.kernels.metrics.about import about_metric
from recbench_spark.leaderboard.entries import BESIDE_TABLE, Entry, make_published_entries
from recbench_spark.leaderboard.plausibility import (
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
from recbench_spark.leaderboard.published import load_published_boards
from recbench_spark.schemas import CHECKS
from recbench_spark.storage.shared_rows import load_parquet
from recbench_spark.storage.store import Store
from recbench_spark.tuning.board_update import (
    board_name,
    collect_nightly_entries,
    collect_own_entries,
    read_entries,
)
from recbench_spark.tuning.decisions import is_counted, read_latest_decisions
from recbench_spark.tuning.folds import FoldedLog

MAX_SCALE_VALUES = 100
"""Largest number of different ratings that count as steps of a scale."""

NEAR = 0.1
"""Share of a step: see `RatingHits`."""


class TrainingRatingStats(NamedTuple):
    """Mean and standard deviation of the training ratings."""

    mean: float
    spread: float


def read_training_stats(store: Store, log: FoldedLog) -> TrainingRatingStats:
    """Return mean and spread of the training rows; with folds, of all rows. One scan, no shuffle."""
    rows = load_parquet(store.spark, *log.files.shared.files)
    if not log.folds:
        rows = rows.where(F.col("part").isin(*log.divide_parts(None)[0]))
    (row,) = rows.agg(F.avg("rating").alias("mean"), F.stddev_pop("rating").alias("spread")).collect()
    return TrainingRatingStats(float(row["mean"]), float(row["spread"]))


def clip_to_scale(
    pairs: DataFrame, log: FoldedLog, learnt: TrainingRatingStats, name: str
) -> tuple[DataFrame, Sequence[str]]:
    """Clip predictions to the log's scale, as those of own models are; return the pairs and notes on this.

    Args:
        pairs: rows with a prediction.
        log: its scale is `dataset.scale`, or from its lowest to its highest rating.
        learnt: statistics of the log.
        name: name of the bundle.

    Raises:
        DataError: the predictions are on another scale.
    """
    low, high = log.files.scale
    p, far = F.col("prediction"), FAR_DISTANCE * (high - low)
    outside, beyond = (p < low) | (p > high), (p < low - far) | (p > high + far)
    counts = [F.count_if(outside).alias("out"), F.count_if(beyond).alias("far"), F.avg(p).alias("mean")]
    (row,) = pairs.agg(*counts, F.count("*").alias("n")).collect()
    spans = PredictionSpread(
        row["n"], row["out"], row["far"], row["mean"], (low, high), learnt.mean, learnt.spread
    )
    if fault := check_scale(spans):
        raise DataError(f"bundle {name}: {fault}", "bring them to the scale of the log's ratings")
    if not row["out"]:
        return pairs, []
    clipped = pairs.withColumn("prediction", F.greatest(F.lit(low), F.least(F.lit(high), p)))
    count_text = f"{row['out']:,} of {row['n']:,} predictions lie outside the scale {low:g} to {high:g}"
    return clipped, [f"note: {count_text} and were clipped to it, as our models' are"]


def find_rating_doubts(
    store: Store, benchmark: Benchmark, log: FoldedLog, pairs: DataFrame, part: str | None
) -> list[str]:
    """Return sentences on predictions that are better than the noise allows; empty for plausible ones.

    Args:
        store: the warehouse.
        benchmark: the benchmark of the board.
        log: the benchmark's log.
        pairs: prediction (clipped), outcome, part; for a protocol with several parts only the hidden one.
        part: its name; None for folds, each of which is judged by itself.
    """
    trusted = find_best_trusted(
        _list_entries(store, benchmark, log), store, board_name(benchmark), part, True
    )
    exactness = check_exactness(_count_hits(pairs))
    for row in pairs.groupBy("part").agg(*_moments()).orderBy("part").collect():
        base = trusted or TrustedRun("the mean of the ratings", math.sqrt(row["var_y"]), 0.0, 0)
        residual = row["var_y"] - (row["both"] ** 2 / row["var_p"] if row["var_p"] > 0 else 0.0)
        where = f"on {'fold' if part is None else 'the hidden part'} {row['part']}, by its best line,"
        error = base.value / math.sqrt(row["n"])
        doubt = check_level(math.sqrt(max(residual, 0.0)), base, 0.0, RATING_LIMITS, error, where=where)
        if doubt is not None:
            return [doubt, *([exactness] if exactness else [])]
    return [exactness] if exactness else []


def _moments() -> list[Column]:
    """Return the sums behind the RMSE of the best straight line, which does not depend on the scale."""
    p, y = F.col("prediction"), F.col("outcome")
    return [
        F.count("*").alias("n"), F.var_pop(p).alias("var_p"), F.var_pop(y).alias("var_y"),
        F.covar_pop(p, y).alias("both"),
    ]  # fmt: skip


def _count_hits(pairs: DataFrame) -> RatingHits:
    """Count `RatingHits`; all zero where ratings are no steps of a scale.

    The driver holds each different rating once.
    """
    rows = pairs.select("outcome").distinct().limit(MAX_SCALE_VALUES + 1).collect()
    values = sorted(row.outcome for row in rows)
    if not 2 < len(values) <= MAX_SCALE_VALUES:
        return RatingHits(0, 0, 0, 0)
    low, high = values[0], values[-1]
    step = min(b - a for a, b in pairwise(values))
    nearest = F.lit(low) + F.round((F.col("prediction") - low) / step) * step
    away = F.abs(F.col("prediction") - nearest) / step
    inside = (nearest > low + step / 2) & (nearest < high - step / 2)
    hit = F.abs(F.col("outcome") - nearest) < step / 1000
    near, beside = inside & (away <= NEAR), inside & (away > NEAR) & (away <= 2 * NEAR)
    counts = [F.count_if(one) for one in (near, near & hit, beside, beside & hit)]
    return RatingHits(*map(int, pairs.agg(*counts).collect()[0]))


def find_ranking_doubts(store: Store, benchmark: Benchmark, entry: Entry, error: float) -> list[str]:
    """Return a sentence on a headline that is better than the noise allows; empty for a plausible one.

    A metric without a best possible value is not judged. `error`: standard error over users.
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
    trusted = find_best_trusted(board_entries, store, entry.board, entry.part, entry.lower_is_better)
    if trusted is None and not math.isfinite(worst):
        return []
    base = trusted or TrustedRun("the worst possible value", worst, 0.0, 0)
    doubt = check_level(entry.value, base, possible, RANKING_LIMITS, error, where=f"on part {entry.part}")
    return [doubt] if doubt else []


def _list_entries(store: Store, benchmark: Benchmark, log: FoldedLog) -> list[Entry]:
    """Return the rows of the board, and the own rows that the next `jobs/board.py` will add."""
    own_entries = [entry for entry, _ in collect_own_entries(store, benchmark, log, ())]
    return [*own_entries, *_read_board_entries(store, benchmark)]


def _read_board_entries(store: Store, benchmark: Benchmark) -> list[Entry]:
    name, boards = board_name(benchmark), load_published_boards()
    published = make_published_entries(boards[name]) if name in boards else []
    return [*published, *read_entries(store, name)]


def find_best_trusted(
    entries: Sequence[Entry], store: Store, board: str, part: str | None, lower_is_better: bool
) -> TrustedRun | None:
    """Return the best row of a part that is published, own, or accepted by an operator; None without one.

    A submission that was not accepted is no reference: otherwise each bundle could raise the limit for the
    next one. A row without a part counts for every part.
    """
    decisions = read_latest_decisions(store, board)
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


def note_training_items(store: Store, run_id: str) -> list[str]:
    """Return a note on lists that recommend training items; empty if they do not."""
    filters = [("run_id", "=", run_id), ("check", "=", TRAINING_ITEMS)]
    n = sum(int(row["observed"] or 0) for row in store.rows(CHECKS, filters, ["observed"]))
    if not n:
        return []
    return [
        f"note: {n:,} rows of the lists are training items of their users: they keep their place and count"
        " as misses, where our models' lists leave them out"
    ]


TRAINING_ITEMS = "list rows of training items"
"""Name of the check: see `evaluation.ranking_counts.training_item_check`."""
