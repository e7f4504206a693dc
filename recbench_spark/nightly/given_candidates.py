"""Candidates that only Spark reads: tables and files of datasets."""

from __future__ import annotations

from recbench_spark.data.external_inputs import group_candidates
from recbench_spark.data.readers.published import read_negatives
from recbench_spark.data.readers.tables import read_table
from recbench_spark.errors import ConfigError
from recbench_spark.nightly.night import BenchmarkNight
from recbench_spark.schemas import ITEMS
from recbench_spark.storage.frame_blocks import FrameRows


def read_candidates(night: BenchmarkNight) -> FrameRows:
    """Read the candidates of a table, or the negatives that the files of the dataset list.

    Raises:
        ConfigError: the benchmark names no table, and the dataset lists none.
    """
    path, dataset = night.benchmark.evaluation.candidates_path, night.benchmark.dataset
    if path:
        rows = read_table(night.spark, path, ["user_id", "item_id"], "candidates")
    elif dataset.lists_negatives:
        rows = read_negatives(night.spark, str(dataset.path))
    else:
        raise ConfigError(
            "definition.candidates is 'given' and evaluation.candidates_path is missing",
            "give a table of user_id, item_id",
        )
    return FrameRows(group_candidates(rows, night.table(ITEMS), night.open_user_frame()))
