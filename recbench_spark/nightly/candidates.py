"""Candidates that a user's items are ranked among: given in a table, or drawn by hash and stored."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.data.external_inputs import group_candidates
from recbench_spark.data.readers.published import read_negatives
from recbench_spark.data.readers.tables import read_table
from recbench_spark.definitions import SAMPLED
from recbench_spark.errors import ConfigError
from recbench_spark.evaluation.ranking.candidates import Candidates
from recbench_spark.evaluation.ranking.negatives import draw_candidates, weight_rows
from recbench_spark.nightly.night import BenchmarkNight
from recbench_spark.schemas import CANDIDATES, ITEMS
from recbench_spark.storage.shared_rows import share_rows


def select_candidates(night: BenchmarkNight) -> Candidates | None:
    """Return the candidates that the definition names for each user; None for all items."""
    mode, evaluation = night.definition.candidates, night.benchmark.evaluation
    if mode == "given" and not evaluation.candidates_path and night.benchmark.dataset.lists_negatives:
        return Candidates(_read_negative_lists(night), with_truth=True)
    if mode == "given":
        return Candidates(_read_candidates(night))
    if mode in SAMPLED:
        return Candidates(ensure_drawn_candidates(night), drawn=mode, n_items=night.n_items)
    return None


def _read_candidates(night: BenchmarkNight) -> DataFrame:
    path = night.benchmark.evaluation.candidates_path
    if not path:
        raise ConfigError(
            "definition.candidates is 'given' and evaluation.candidates_path is missing",
            "give a table of user_id, item_id",
        )
    rows = read_table(night.spark, path, ["user_id", "item_id"], "candidates")
    return group_candidates(rows, night.table(ITEMS), night.select_users(joined=True))


def _read_negative_lists(night: BenchmarkNight) -> DataFrame:
    """Return the negatives that the files of the dataset list; the truth is added to them as candidates."""
    rows = read_negatives(night.spark, str(night.benchmark.dataset.path))
    return group_candidates(rows, night.table(ITEMS), night.select_users(joined=True))


def ensure_drawn_candidates(night: BenchmarkNight) -> DataFrame:
    """Return the drawn candidates of this split. They are drawn and stored once, and read afterwards."""
    mode, draw = night.definition.candidates, night.benchmark.evaluation.draw
    name = f"{mode} {draw.n} a {draw.per} seed {draw.seed}"
    for part in night.benchmark.evaluation.parts:
        stored = _read_stored(night, name).where(F.col("part") == part)
        if stored.isEmpty():
            weights = share_rows(night.store.scratch, weight_rows(night.table(ITEMS), mode))
            rows = draw_candidates(
                night.select_users().where(F.col("part") == part), weights, night.n_items, draw
            )
            named = rows.withColumn("draw", F.lit(name)).withColumn("split_id", F.lit(night.split_id))
            night.store.append(named, CANDIDATES, once=f"{night.split_id}/{part}/{name}")
    return _read_stored(night, name)


def _read_stored(night: BenchmarkNight, name: str) -> DataFrame:
    return night.table(CANDIDATES).where(F.col("draw") == name)
