"""Read candidates from a table, or from a dataset's files."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from recbench_spark.config import Benchmark
from recbench_spark.errors import ConfigError
from recbench_spark.models.adapters.external_models import check_known_ids
from recbench_spark.models.adapters.model_adapter import SplitData
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.schemas import IDS
from recbench_spark.sources.input_rows import check_input, open_input
from recbench_spark.sources.readers.published import find_negatives
from recbench_spark.storage.blocks import Engine, PieceRows, Rows, Side, Sides, deal_sides
from recbench_spark.storage.packed_blocks import unpack_blocks
from recbench_spark.storage.scratch import keep_results
from recbench_spark.storage.shared_arrays import bound_lists


def read_candidates(users: Rows, data: SplitData, benchmark: Benchmark) -> PieceRows:
    """Read user_id and candidates.

    The rows come from a table, or from the negatives listed in the dataset's files. The rows are shuffled
    once by user; the lists are kept in scratch.

    Raises:
        ConfigError: the benchmark names no table, and the dataset lists none.
        DataError: no item is in the catalogue, or no user has truth.
    """
    engine = data.store.engine
    table = _find_table(benchmark, engine)
    rows = check_input(open_input(engine, table, IDS, "candidates"), {}, "candidates")
    known = {"user_id": (users, "truth"), "item_id": (data.open_items(), "catalogue")}
    for name, (others, what) in known.items():
        check_known_ids(data, rows, name, others, ("candidates", what))
    dealt = deal_sides(engine, [Side(0, rows.rows, IDS)], engine.count_tasks(rows.n))
    group = partial(_group_candidates, known=data.known_items)
    return keep_results(data.store.scratch, dealt.then(group, ("user_id", "candidates")), engine)


def _find_table(benchmark: Benchmark, engine: Engine) -> object:
    path, dataset = benchmark.evaluation.candidates_path, benchmark.dataset
    if path:
        return path
    if dataset.lists_negatives:
        return find_negatives(str(dataset.path), engine).open(engine)
    raise ConfigError(
        "definition.candidates is 'given' and evaluation.candidates_path is missing",
        "give a table of user_id, item_id",
    )


def _group_candidates(sides: Sides, known: KnownItems) -> pa.Table:
    """Group the known items of a task's users.

    The columns are user_id and candidates (ascending item_index).
    """
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
