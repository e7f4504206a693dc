"""Rows distributed by user: with any tasks and batches the numbers are those of one process. No JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from recbench_spark.adhoc import ground_truth, local_engine, partition_tasks
from recbench_spark.adhoc.partition_tasks import LISTED, TRAIN, TRUTH, TaskCatalogue
from recbench_spark.definitions import make_definition
from recbench_spark.evaluation.batch_schemas import RANKED_USERS, USERS
from recbench_spark.evaluation.metrics.accuracy import MetricPlan
from recbench_spark.evaluation.ranking.given import add_lists
from recbench_spark.protocol.popularity import find_bounds
from recbench_spark.schemas import IDS

HELD = pa.schema({"task": pa.int32(), "rows": pa.binary(), "holds": pa.int32()})

Tables = dict[int, pa.Table]


class Known:
    """The catalogue as a dictionary."""

    def __init__(self, catalogue: ground_truth.ArrowCatalogue) -> None:
        self.index = {item: n for n, item in enumerate(catalogue.ids.to_pylist())}
        self.n_train_i = np.append(catalogue.n_train_i, 0)

    def find(self, ids: pa.Array) -> tuple[Any, Any]:
        index = np.array([self.index.get(item, -1) for item in ids.to_pylist()], np.int64)
        return index, self.n_train_i[index]


def world(seed: int, *, text: bool) -> Tables:
    """Rows in which pairs stand twice, ranks tie, and each table has users and items that others lack."""
    draws = np.random.default_rng(seed)
    shapes = {TRUTH: ((0, 20), 30, 90), LISTED: ((5, 40), 60, 400), TRAIN: ((10, 50), 40, 200)}
    tables = {
        holds: pa.table({"user_id": draws.integers(*users, n), "item_id": draws.integers(0, items, n)})
        for holds, (users, items, n) in shapes.items()
    }
    if text:
        tables = {
            holds: pa.table([column.cast(pa.string()) for column in table.columns], IDS)
            for holds, table in tables.items()
        }
    # Some rows without an item, among them all of the first row's user.
    users = tables[TRUTH].column("user_id")
    holes = pc.or_(pa.array(draws.random(90) < 0.1), pc.equal(users, users[0]))
    items = pc.if_else(holes, None, tables[TRUTH].column("item_id"))
    tables[TRUTH] = tables[TRUTH].set_column(1, "item_id", items)
    tables[TRUTH] = tables[TRUTH].append_column("rating", pa.array(draws.integers(0, 4, 90) / 1.0))
    ranked = tables[LISTED].append_column("rank", pa.array(draws.integers(1, 9, 400)))
    tables[LISTED] = ranked.append_column("score", pa.array(draws.integers(0, 5, 400) / 4))
    return tables


def in_tasks(tables: Tables, tasks: int) -> list[Iterator[pa.RecordBatch]]:
    """The blocks of each task; rows in another order, some at a time."""
    blocks: list[pa.RecordBatch] = []
    for holds, table in tables.items():
        order = np.random.default_rng(tasks).permutation(len(table))
        some = iter(table.take(pa.array(order)).combine_chunks().to_batches(max_chunksize=7))
        blocks += list(partition_tasks.partition_rows(tasks, holds, some))
    every = pa.Table.from_batches(blocks, HELD)
    return [iter(every.filter(pc.equal(every.column("task"), n)).to_batches(3)) for n in range(tasks)]


def list_values(tables: Tables) -> dict[int, tuple[str, ...]]:
    return {holds: tuple(table.column_names[2:]) for holds, table in tables.items()}


def count_in_tasks(tables: Tables) -> tuple[ground_truth.ArrowTruth, TaskCatalogue]:
    """The truth as one process has it, and what its tasks know of the whole."""
    typed = local_engine._convert_system("lists", tables[LISTED])[0]
    truth = ground_truth.make_arrow_truth(tables[TRUTH], tables[TRAIN], typed, make_definition(None, None))
    known: Any = Known(truth.catalogue)
    return truth, TaskCatalogue(known, find_bounds(truth.catalogue.n_train_i))


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
@pytest.mark.parametrize("tasks", [1, 3, 17])
@pytest.mark.parametrize("by", ["rank", "score"])
def test_tasks_rank_rows_as_one_process_does(tasks: int, by: str, *, text: bool) -> None:
    tables = world(tasks, text=text)
    tables[LISTED] = tables[LISTED].select([*IDS, by])
    kind = "lists" if by == "rank" else "scores"
    given: Any = {kind: tables[LISTED], "train": tables[TRAIN]}
    expected = local_engine.evaluate(tables[TRUTH], metrics=("ndcg", "coverage"), k=(3,), **given).rankings
    assert expected is not None
    request = MetricPlan.checked(("ndcg", "coverage"), (3,), make_definition(None, None)).request()
    _, known = count_in_tasks(tables)
    ranked = [
        batch.cast(RANKED_USERS)
        for one in in_tasks(tables, tasks)
        for batch in partition_tasks.rank_users(known, request, by == "score", list_values(tables), one)
    ]
    assert by_user(pa.Table.from_batches(ranked)) == by_user(expected.cast(RANKED_USERS))


@pytest.mark.parametrize("tasks", [1, 3, 17])
def test_tasks_make_the_users_of_one_process(tasks: int) -> None:
    tables = world(tasks, text=False)
    here, known = count_in_tasks(tables)
    batches = [
        batch
        for one in in_tasks(tables, tasks)
        for batch in partition_tasks.build_users(known, list_values(tables), one)
    ]
    users = pa.Table.from_batches(batches, USERS)
    assert by_user(users) == by_user(here.users)
    assert min(users.column("masked").combine_chunks().value_lengths().to_pylist()) == 0
    assert None in users.column("slices").to_pylist()


def by_user(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["user_id"])


@pytest.mark.parametrize("tasks", [1, 4])
def test_tasks_count_rows_pairs_users_and_items(tasks: int) -> None:
    tables = world(7, text=False)
    sums, items = Counter[str](), {name: Counter[str]() for name in ("listed", "train", "truth")}
    for one in in_tasks(tables, tasks):
        for batch in partition_tasks.count_rows(list_values(tables), one):
            for row in batch.to_pylist():
                sums.update(dict(row["sums"] or ()))
                for name, counter in items.items():
                    counter[row["item_id"]] += row[name] or 0
    listed, train, truth = (list_pairs(tables[holds]) for holds in (LISTED, TRAIN, TRUTH))
    assert sums["listed"] == 400 and sums["twice"] == 400 - len(set(listed)) > 0
    assert sums["trained"] == sum(pair in set(train) for pair in listed) > 0
    assert sums["train dropped"] == len(train) - len(set(train)) > 0
    assert sums["truth dropped"] == len(truth) - len(set(truth)) > 0
    assert {name: +counter for name, counter in items.items()} == {
        "listed": Counter(str(item) for _, item in listed),
        "train": Counter(str(item) for _, item in set(train)),
        "truth": Counter(str(item) for _, item in set(truth)),
    }
    users = {holds: set(table.column("user_id").to_pylist()) for holds, table in tables.items()}
    for name, holds in (("listed", LISTED), ("train", TRAIN), ("truth", TRUTH)):
        assert sums[f"{name} users"] == sums[f"{name} numbers"] == len(users[holds])
        assert sums[f"{name} common"] == len(users[holds] & users[TRUTH]) > 0


def list_pairs(table: pa.Table) -> list[tuple[Any, Any]]:
    ids = (table.column(name).to_pylist() for name in IDS)
    return [(user, item) for user, item in zip(*ids, strict=True) if item is not None]


def test_a_task_without_rows_of_a_kind_has_an_empty_table() -> None:
    tables = world(1, text=False)
    (one,) = in_tasks({TRUTH: tables[TRUTH]}, 1)
    unpacked = partition_tasks.unpack_tables(one, list_values(tables))
    assert [unpacked[holds].num_rows for holds in (LISTED, TRAIN, TRUTH)] == [0, 0, 90]
    assert unpacked[LISTED].column_names == [*IDS, "rank", "score"]


def test_users_without_rows_have_empty_lists() -> None:
    users = pa.table({"user_id": ["u", "v"]})
    rows = pa.table({"item_id": ["a", "b"], "rank": [2, 1]})
    plan = MetricPlan.checked(("hit",), (1,), make_definition(None, None))
    with_lists = add_lists(users, np.array([1, -1]), np.array([4, 5]), rows, plan.request())
    assert with_lists.column("list_items").to_pylist() == [[], [4]]
    assert with_lists.column("list_ranks").to_pylist() == [[], [2]]
    assert pc.list_value_length(with_lists.column("list_items")).to_pylist() == [0, 1]
