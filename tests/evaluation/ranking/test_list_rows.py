"""Rows of lists in blocks: whatever the tasks and batches, the rankings of one process. No JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from recbench_spark.blocks import dealt_out
from recbench_spark.definitions import make_definition
from recbench_spark.evaluation.batch_schemas import RANKED
from recbench_spark.evaluation.metrics.accuracy import MetricPlan
from recbench_spark.evaluation.ranking import list_rows
from recbench_spark.evaluation.ranking.given import with_lists
from recbench_spark.evaluator import local, truth_tables

Blocks = dict[int, list[tuple[int, bytes]]]


class Known:
    """The catalogue as a dictionary."""

    def __init__(self, ids: pa.Array) -> None:
        self.index = {item: n for n, item in enumerate(ids.to_pylist())}

    def find(self, ids: pa.Array) -> tuple[Any, Any]:
        found = np.array([self.index.get(item, -1) for item in ids.to_pylist()], np.int64)
        return found, np.zeros_like(found)


def world(seed: int, *, text: bool) -> tuple[pa.Table, pa.Table]:
    """A truth, and rows of lists: some pairs twice, some users of neither, ranks that tie."""
    draws = np.random.default_rng(seed)
    truth, rows = (
        pa.table({"user_id": draws.integers(*users, n), "item_id": draws.integers(0, 40, n)})
        for users, n in (((0, 30), 90), ((5, 40), 400))
    )
    rows = rows.append_column("rank", pa.array(draws.integers(1, 9, 400)))
    rows = rows.append_column("score", pa.array(draws.integers(0, 5, 400) / 4))
    if text:
        truth, rows = (_as_text(table) for table in (truth, rows))
    return truth, rows


def _as_text(table: pa.Table) -> pa.Table:
    for n, name in enumerate(("user_id", "item_id")):
        table = table.set_column(n, name, table.column(name).cast(pa.string()))
    return table


def batches(table: pa.Table, size: int, seed: int) -> Iterator[pa.RecordBatch]:
    """The rows in another order, some at a time."""
    order = np.random.default_rng(seed).permutation(len(table))
    return iter(table.take(pa.array(order)).combine_chunks().to_batches(max_chunksize=size))


def dealt(rows: Iterator[pa.RecordBatch], tasks: int, holds: int, into: Blocks) -> None:
    for batch in list_rows._deal(rows, tasks):
        for task, block in zip(batch.column("task"), batch.column("rows"), strict=True):
            into.setdefault(task.as_py(), []).append((holds, block.as_py()))


def in_task(blocks: list[tuple[int, bytes]]) -> Iterator[pa.RecordBatch]:
    columns = {"holds": [holds for holds, _ in blocks], "rows": [rows for _, rows in blocks]}
    return iter([pa.RecordBatch.from_pydict(columns)])


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
@pytest.mark.parametrize("tasks", [1, 3, 17])
@pytest.mark.parametrize("by", ["rank", "score"])
def test_tasks_rank_rows_as_one_process_does(tasks: int, by: str, *, text: bool) -> None:
    truth, rows = world(tasks, text=text)
    rows = rows.select(["user_id", "item_id", by])
    expected = local.evaluate(truth, lists=rows, metrics=("ndcg",), k=(3,)).rankings
    plan = MetricPlan.checked(("ndcg",), (3,), make_definition(None, None))
    found = truth_tables.make(truth, None, _typed(rows), plan.definition)
    users = found.users.drop_columns(["masked"])
    key = list_rows._hashes(users.column("user_id").combine_chunks()).view(np.int64)
    users = users.append_column("_key", pa.array(key))
    blocks: Blocks = {}
    dealt(batches(rows, 7, tasks), tasks, list_rows.ROWS, blocks)
    for task, packed in dealt_out(users.combine_chunks(), np.mod(key, tasks).astype(np.int32)):
        blocks.setdefault(task, []).append((list_rows.USERS, packed))
    known: Any = Known(found.catalogue.ids)
    ranked = [
        batch.cast(RANKED)
        for one in blocks.values()
        for batch in list_rows._rank(in_task(one), known, plan.request(), (by,))
    ]
    assert expected is not None
    tables = [table.sort_by("user_id") for table in (pa.Table.from_batches(ranked), expected)]
    assert tables[0].equals(tables[1].cast(RANKED))


def _typed(rows: pa.Table) -> pa.Table:
    return local._typed_given("lists", rows)[0]


@pytest.mark.parametrize("tasks", [1, 4])
def test_tasks_count_rows_pairs_and_training_rows(tasks: int) -> None:
    train, rows = world(7, text=False)
    blocks: Blocks = {}
    dealt(batches(rows, 50, 1), tasks, list_rows.ROWS, blocks)
    dealt(batches(_as_text(train), 50, 2), tasks, list_rows.TRAIN, blocks)
    found: Counter[Any] = Counter()
    of: dict[str, Counter[str]] = {"user_id": Counter(), "item_id": Counter()}
    for one in blocks.values():
        for batch in list_rows._count(in_task(one)):
            for row in batch.to_pylist():
                of[row["of"]][row["id"]] += row["n"]
                if row["of"] == "user_id":
                    found.update({name: row[name] for name in ("n", "twice", "trained")})
    pairs = list(zip(*(rows.column(name).to_pylist() for name in ("user_id", "item_id")), strict=True))
    known = set(zip(*(train.column(name).to_pylist() for name in ("user_id", "item_id")), strict=True))
    assert found["n"] == 400 and found["twice"] == 400 - len(set(pairs)) > 0
    assert found["trained"] == sum(pair in known for pair in pairs) > 0
    for name, place in (("user_id", 0), ("item_id", 1)):
        assert of[name] == Counter(str(pair[place]) for pair in pairs)


def test_items_outside_the_catalogue_keep_keys_of_their_own() -> None:
    ids = pa.array(["a", "b", "c"])
    known: Any = Known(pa.array(["b"]))
    keys = list_rows._keys(ids, known)
    assert keys[1] == 0 and len(set(keys.tolist())) == 3 and min(keys[0], keys[2]) >= 1 << 32


def test_users_without_rows_have_empty_lists() -> None:
    users = pa.table({"user_id": ["u", "v"]})
    rows = pa.table({"item_id": ["a", "b"], "rank": [2, 1]})
    plan = MetricPlan.checked(("hit",), (1,), make_definition(None, None))
    found = with_lists(users, np.array([1, -1]), np.array([4, 5]), rows, plan.request())
    assert found.column("list_items").to_pylist() == [[], [4]]
    assert found.column("list_ranks").to_pylist() == [[], [2]]
    assert pc.list_value_length(found.column("list_items")).to_pylist() == [0, 1]
