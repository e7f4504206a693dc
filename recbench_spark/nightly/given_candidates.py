"""Candidates of a table, or of the files of a dataset."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recbench_spark.config import Dataset, Split
from recbench_spark.data.input_rows import CheckedInput, check_input, open_input
from recbench_spark.data.log_sources import NEGATIVES
from recbench_spark.data.opened_logs import OpenedLog
from recbench_spark.data.text_layouts import TEXT_FILE
from recbench_spark.errors import ConfigError
from recbench_spark.evaluation.ranking.known_items import KnownItems
from recbench_spark.nightly.night import BenchmarkNight
from recbench_spark.nightly.split import open_any_log
from recbench_spark.schemas import IDS
from recbench_spark.storage.blocks import PieceRows, Rows
from recbench_spark.storage.packed_blocks import unpack_blocks
from recbench_spark.storage.scratch import keep_results
from recbench_spark.storage.shared_arrays import bound_lists
from recbench_spark.storage.sides import Side, Sides, deal_sides
from recbench_spark.training.external_models import check_known_ids

if TYPE_CHECKING:
    from recbench_spark.storage.arrow_store import AnyStore


def read_candidates(night: BenchmarkNight) -> PieceRows:
    """Read user_id, candidates of a table, or of the negatives that the files of the dataset list.

    One shuffle of the rows by user; the lists are kept in scratch.

    Raises:
        ConfigError: the benchmark names no table, and the dataset lists none.
        DataError: no item is in the catalogue, or no user has truth.
    """
    engine = night.store.engine
    rows = _open_candidates(night)
    known: dict[str, tuple[Rows, str]] = {
        "user_id": (night.select_users(), "truth"),
        "item_id": (night.data.open_items(), "catalogue"),
    }
    for name, (others, what) in known.items():
        check_known_ids(night.data, rows, name, others, ("candidates", what))
    dealt = deal_sides(engine, [Side(0, rows.rows, IDS)], engine.count_tasks(rows.n))
    group = partial(_group_candidates, known=night.data.known_items)
    return keep_results(night.store.scratch, dealt.then(group, ("user_id", "candidates")), engine)


def _open_candidates(night: BenchmarkNight) -> CheckedInput:
    path, dataset = night.benchmark.evaluation.candidates_path, night.benchmark.dataset
    if path:
        return check_input(open_input(night.store.engine, path, IDS, "candidates"), {}, "candidates")
    if dataset.lists_negatives:
        log = open_negatives(night.store, dataset)
        return CheckedInput(log.rows, log.columns, log.n, {}, dict.fromkeys(IDS, ("integer", TEXT_FILE)))
    raise ConfigError(
        "definition.candidates is 'given' and evaluation.candidates_path is missing",
        "give a table of user_id, item_id",
    )


def open_negatives(store: AnyStore, dataset: Dataset) -> OpenedLog:
    """Open the negatives that the files of a dataset list, as a log; every bad line is an error."""
    changes: dict[str, Any] = {"reader": NEGATIVES, "bad_rows": "error", "until": None, "attributes": []}
    return open_any_log(store, dataset.model_copy(update=changes), Split())


def _group_candidates(sides: Sides, known: KnownItems) -> pa.Table:
    """Return the known items of each user of a task: user_id, candidates (ascending item_index)."""
    rows = unpack_blocks(sides[0])
    assert rows is not None
    users, items = (rows.column(name).combine_chunks().dictionary_encode() for name in IDS)
    index_r = known.find(items.dictionary)[0][items.indices.to_numpy()]
    pairs = np.stack([users.indices.to_numpy()[index_r >= 0], index_r[index_r >= 0]], axis=1)
    user_p, index_p = np.unique(pairs, axis=0).T
    listed = pa.ListArray.from_arrays(
        bound_lists(user_p, len(users.dictionary)), pa.array(index_p, pa.int32())
    )
    return pa.table({"user_id": users.dictionary, "candidates": listed})
