"""A task of a night, without Spark: several models over the same users, each failing alone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from recbench_spark.core.definitions import Definition
from recbench_spark.core.streams import serialize_table
from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.measures import reduce_pieces
from recbench_spark.evaluation import shuffle, task
from recbench_spark.evaluation.task import USERS_MEMBER, BatchedWork, Member
from recbench_spark.metrics import accuracy, listed
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.metrics.beyond_accuracy import Facts
from recbench_spark.metrics.listed import ListedCatalogue
from recbench_spark.metrics.questions import Owners
from recbench_spark.ranking.batch_schemas import RANKED_USERS, TOTALS, USER_VALUES
from recbench_spark.ranking.given import rank_batches
from recbench_spark.ranking.inputs import GivenRows, ScoredModel
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.ranking.request import RankingRequest
from recbench_spark.ranking.scored import score_batches
from recbench_spark.ranking.sources import DotSource
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.blocks import ChangedRows, PieceRows
from recbench_spark.storage.packed_blocks import read_partition_files
from recbench_spark.storage.shared_arrays import SharedRows
from tests.evaluation.test_batches import DIMS, ITEMS, PLAN, USERS, share_rows, users

REQUEST = RankingRequest(PLAN.definition)
VECTOR = pa.schema({"vector": pa.list_(pa.float32())})
LISTS = pa.schema({"list_items": pa.list_(pa.int64()), "list_scores": pa.list_(pa.float64())})
ONCE = accuracy.rank_measure(PLAN)
RANKS = replace(ONCE, grouped=None)


class Broken(DotSource):
    """A model that cannot be opened."""

    def scorer(self) -> Any:
        raise ValueError("half a file")


def blocks(tables: dict[int, list[pa.Table]]) -> dict[int, list[Any]]:
    return {place: [serialize_table(table) for table in parts] for place, parts in tables.items()}


@pytest.fixture
def result(tmp_path: Path) -> dict[tuple[int, str], list[pa.Table]]:
    """Evaluate vectors, a broken model, lists and the same vectors; blocks come out of order."""
    every = users()
    source = DotSource(share_rows(tmp_path), ITEMS, DIMS)
    broken = Broken(share_rows(tmp_path), ITEMS, DIMS)
    members = (
        Member("vectors", source, columns=VECTOR),
        Member("broken", broken, columns=VECTOR),
        Member("lists", None, mask=True, columns=LISTS),
        Member("again", source, columns=VECTOR),
    )
    vectors = every.select(["user_id", "vector"]).filter(every.column("vector").is_valid())
    flat = {"key": every.column("list_items"), "score": every.column("list_scores")}
    owners = pc.list_parent_indices(every.column("list_items"))
    lists = pa.table({name: pc.list_flatten(column) for name, column in flat.items()})
    lists = lists.append_column("user_id", every.column("user_id").take(owners))
    lists = lists.take(pa.array(np.random.default_rng(3).permutation(len(lists))))
    mine = every.drop_columns(["vector", "list_items", "list_ids", "list_scores"])
    tables = {
        3: [vectors],
        USERS_MEMBER: [mine.slice(40), mine.slice(0, 40)],
        0: [vectors.slice(7), vectors.slice(0, 7)],
        2: [lists],
        1: [vectors],
    }
    folders = (str(tmp_path / "rankings"), str(tmp_path / "values"))
    values = partial(accuracy.user_value_batches, PLAN)
    work = BatchedWork(members, REQUEST, {"ranks": RANKS, "once": ONCE}, values, folders)
    rows: dict[tuple[int, str], list[pa.Table]] = {}
    for batch in task.run_task(work, lambda: "cpu", blocks(tables)):
        (row,) = batch.to_pylist()
        rows.setdefault((row["member"], row["kind"]), []).append(pa.ipc.open_stream(row["rows"]).read_all())
    return rows


def alone(folder: Path, kind: str) -> list[pa.RecordBatch]:
    """The same users ranked by one function of batches."""
    every = users().sort_by("user_id").combine_chunks()
    if kind == "lists":
        (batch,) = every.drop_columns(["vector"]).to_batches()
        return list(rank_batches(REQUEST, iter([batch])))
    (batch,) = every.drop_columns(["list_items", "list_ids", "list_scores"]).to_batches()
    return list(score_batches(DotSource(share_rows(folder), ITEMS, DIMS), REQUEST, iter([batch])))


def read(folder: Path, files: pa.Table, names: list[str]) -> list[str]:
    table = pa.concat_tables(
        [pq.ParquetFile(folder / path).read() for path in files.column("path").to_pylist()]
    )
    return sorted(repr(row) for row in table.select(names).to_pylist())


class Kept(NamedTuple):
    """Rows in a file, and how a task opens them."""

    engine: LocalEngine
    folder: Path

    def rows(self, name: str, table: pa.Table, pieces: int = 3) -> PieceRows:
        files = [str(self.folder / f"{name}-{n}.parquet") for n in range(pieces)]
        for n, file in enumerate(files):
            size = -(-len(table) // pieces)
            pq.write_table(table.slice(n * size, size), file, row_group_size=7)
        return PieceRows(self.engine, [(file, {}) for file in files], partial(read_partition_files, most=5))


LISTED = ["vector", "list_items", "list_ids", "list_scores"]


def evaluate_all(folder: Path, workers: int, sources: Sequence[Any]) -> list[shuffle.BatchedResult]:
    """Rank vectors, and lists whose ids are looked up, on processes of this machine."""
    every, engine = users(), LocalEngine(str(folder), workers)
    kept = Kept(engine, folder)
    vectors = every.select(["user_id", "vector"]).filter(every.column("vector").is_valid())
    owners = pc.list_parent_indices(every.column("list_items"))
    lists = pa.table(
        {
            "user_id": every.column("user_id").take(owners),
            "item_id": pc.list_flatten(every.column("list_ids")),
            "score": pc.list_flatten(every.column("list_scores")),
        }
    )
    catalogue = pa.table(
        {
            "item_index": pa.array(range(ITEMS), pa.int32()),
            "item_id": [f"i{i}" for i in range(ITEMS)],
            "n_train": [1] * ITEMS,
        }
    )
    pq.write_table(catalogue, folder / "catalogue.parquet")
    known = KnownItems(SharedRows(f"{folder.name}-known", (str(folder / "catalogue.parquet"),)), ITEMS)
    whole = ChangedRows(
        kept.rows("users", every),
        every.column_names,
        halve,
        tuple(every.drop_columns(LISTED).column_names),
        11,
    )
    ranked = [
        *(ScoredModel(source, kept.rows("vectors", vectors)) for source in sources),
        GivenRows(kept.rows("lists", lists), ("score",), known, mask=True),
    ]
    members = tuple(shuffle.to_member(f"run{n}", one, REQUEST) for n, one in enumerate(ranked))
    folders = (str(folder / "rankings"), str(folder / "values"))
    work = BatchedWork(
        members, REQUEST, {"ranks": ONCE}, partial(accuracy.user_value_batches, PLAN), folders
    )
    return shuffle.evaluate(engine, shuffle.PassInputs(whole, ranked, USERS), work)


def halve(rows: pa.Table) -> pa.Table:
    """A change that tasks apply to some users at a time."""
    assert len(rows) <= 11
    return rows.drop_columns(LISTED)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_dealt_out_comes_back_whole(tmp_path: Path, workers: int, monkeypatch) -> None:
    """Dealt to tasks, ranked, measured and finished: the metrics of all users in one process."""
    monkeypatch.setattr(shuffle, "PAIRS_PER_TASK", 30)
    source = DotSource(share_rows(tmp_path), ITEMS, DIMS)
    results = evaluate_all(tmp_path, workers, [source])
    for result, kind in zip(results, ("vectors", "lists"), strict=True):
        assert result.error is None and result.seconds > 0
        assert len(result.rankings) == len(result.values) == workers
        assert sum(file.rows for file in result.rankings) == USERS
        wanted = reduce_pieces({"ranks": RANKS}, [alone(tmp_path, kind)])["ranks"].to_pylist()
        assert len(wanted) > 40
        assert sorted(map(repr, result.measured["ranks"].to_pylist())) == sorted(map(repr, wanted))
    assert not list(tmp_path.glob("shuffle-*"))


class Deadly(DotSource):
    """A model that ends the process that opens it, as the system does where memory runs out."""

    def scorer(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_an_error_of_the_whole_pass(tmp_path: Path) -> None:
    sources = [kind(share_rows(tmp_path), ITEMS, DIMS) for kind in (DotSource, Deadly)]
    with pytest.raises(BrokenProcessPool):
        evaluate_all(tmp_path, 2, sources)
    assert not list(tmp_path.glob("shuffle-*"))
    results = evaluate_all(tmp_path, 2, [sources[0], Broken(share_rows(tmp_path), ITEMS, DIMS)])
    assert [result.error for result in results] == [None, "ValueError: half a file", None]


@pytest.mark.parametrize(("place", "kind"), [(0, "vectors"), (2, "lists"), (3, "vectors")])
def test_each_model_gets_what_it_gets_alone(result, tmp_path: Path, place: int, kind: str) -> None:
    wanted = alone(tmp_path, kind)
    (files,) = result[place, task.RANKINGS]
    names = [name for name in RANKED_USERS.names if name != "drawn"]
    rows = pa.Table.from_batches(wanted).select(names).to_pylist()
    assert read(tmp_path / "rankings", files, names) == sorted(map(repr, rows))
    (files,) = result[place, task.VALUES]
    values = pa.Table.from_batches(list(accuracy.user_value_batches(PLAN, iter(wanted))))
    assert read(tmp_path / "values", files, USER_VALUES.names) == sorted(map(repr, values.to_pylist()))
    totals = sorted(
        repr(row) for batch in accuracy.total_batches(PLAN, iter(wanted)) for row in batch.to_pylist()
    )
    assert len(totals) == 6, "two parts, each whole, head and tail"
    for name in ("ranks", "once"):
        mine = pa.concat_tables(result[place, name]).select(TOTALS.names)
        assert sorted(map(repr, mine.to_pylist())) == totals, name


def test_a_model_that_fails_leaves_its_error_and_nothing_else(result) -> None:
    assert {kind for place, kind in result if place == 1} == {task.FAILED, task.SECONDS}
    (error,) = result[1, task.FAILED]
    assert error.column("error").to_pylist() == ["ValueError: half a file"]


def test_the_only_model_raises_so_that_spark_tries_again(tmp_path: Path) -> None:
    members = (Member("broken", Broken(share_rows(tmp_path), ITEMS, DIMS)),)
    work = BatchedWork(members, REQUEST, {}, None, (str(tmp_path), str(tmp_path)), repeats=True)
    table = users().drop_columns(["vector", "list_items", "list_ids", "list_scores"])
    with pytest.raises(ValueError, match="half a file"):
        list(task.run_task(work, lambda: "cpu", blocks({USERS_MEMBER: [table]})))


def test_models_of_other_users_have_weights_of_their_own() -> None:
    rng = np.random.default_rng(1)
    columns = len(PLAN.table(PLAN.rank_metrics))

    def values(keys: list[int]) -> accuracy.SliceValues:
        table = rng.random((len(keys), columns))
        table[0, 0] = np.nan
        return {("test", None, None): [(Owners(np.array(keys, np.int64)), table)]}

    models = [values([1, 2, 3]), values([1, 2, 4]), values([1, 2, 3]), {}]
    together = accuracy.model_totals(PLAN, models)
    one_by_one = [accuracy.model_totals(PLAN, [model])[0] for model in models]
    assert [len(batches) for batches in together] == [1, 1, 1, 0]
    for mine, wanted in zip(together, one_by_one, strict=True):
        assert [batch.to_pylist() for batch in mine] == [batch.to_pylist() for batch in wanted]
    lists = [json.dumps(batches[0].to_pylist()) for batches in together[:3]]
    assert len(set(lists)) == 3


# --------------------------------------------------------------------------------- lists


@pytest.fixture
def known_items(tmp_path: Path) -> KnownItems:
    """Items b, a and ä (whose bytes come last), of 5, 7 and 0 training rows."""
    columns = {
        "item_index": pa.array([0, 1, 2], pa.int32()),
        "item_id": ["b", "a", "ä"],
        "n_train": [5, 7, 0],
    }
    pq.write_table(pa.table(columns), tmp_path / "items.parquet")
    return KnownItems(SharedRows(f"known-{tmp_path.name}", (str(tmp_path / "items.parquet"),)), 3)


def make_lists(lists: list[list[str] | None]) -> pa.RecordBatch:
    rows = [
        {"user_id": f"u{n}", "part": "test", "user_key": n, "relevance": [3.0, 1.0], "top_items": top}
        for n, top in enumerate(lists)
    ]
    return pa.RecordBatch.from_pylist(
        rows, schema=pa.schema([f for f in RANKED_USERS if f.name in rows[0]])
    )


def test_lists_meet_the_catalogue(known_items) -> None:
    batch = make_lists([["a", "z", "ä"], [], None, ["b"]])
    (rows,) = listed.look_up_listed_items(known_items, 2.0, iter([batch]))
    kept = [
        (row["user_id"], row["n_relevant"], row["counts"], row["item_index"]) for row in rows.to_pylist()
    ]
    assert kept == [("u0", 1, [7, 0, 0], [1, -1, 2]), ("u3", 1, [5], [0])]


def test_how_often_items_are_listed_by_hand(known_items) -> None:
    """Three users of four have a list; at 1: a twice, b once; at 3 of a catalogue of 3: a 3, b 1, ä 1."""
    batches = [make_lists([["a", "z", "ä"], ["a"]]), make_lists([["b", "a"], None])]
    plan = MetricPlan.checked(("coverage", "gini"), (1, 3), Definition())
    catalogue = ListedCatalogue(known_items, 3, Facts(1, None))
    (rows,) = reduce_pieces(listed.list_measures(plan, catalogue), [batches]).values()
    values = {(row["metric"], row["k"]): row["value"] for row in rows.to_pylist()}
    assert set(rows.column("n").to_pylist()) == {3}
    # Gini of (0, 1, 2): (0 * -2 + 1 * 0 + 2 * 2) / (3 * 3); of (1, 1, 3): (-2 + 0 + 6) / (3 * 5).
    assert values == {("coverage", 1): 2 / 3, ("gini", 1): 4 / 9, ("coverage", 3): 1.0, ("gini", 3): 4 / 15}


def test_vectors_are_read_as_they_were_stored(known_items, tmp_path: Path) -> None:
    """Item "b" (index 0) has no vector; "x" is nobody's."""
    rows = {
        "id": ["x", "ä", "a"],
        "vector": pa.array([[9.0, 9.0], [1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32())),
        "bias": [9.0, 0.5, 0.25],
    }
    pq.write_table(pa.table(rows), tmp_path / "stored.parquet")
    place = SharedRows(f"stored-{tmp_path.name}", (str(tmp_path / "stored.parquet"),))
    source = DotSource(place, 3, 2, catalogue=known_items)
    arrays = source.rows.arrays(source.build)
    assert arrays["vectors"].tolist() == [[0, 0], [3, 4], [1, 2]]
    assert arrays["bias"].tolist() == [0, 0.25, 0.5]
    assert arrays["scored"].tolist() == [False, True, True]
    assert [text.decode() for text in source.item_ids()] == ["b", "a", "ä"]


def test_what_a_source_shares_is_made_once_and_removed_with_its_rows(tmp_path: Path) -> None:
    source, made = DotSource(share_rows(tmp_path), ITEMS, DIMS), []

    def make() -> dict[str, Any]:
        made.append(1)
        return {"packed": np.arange(3), "shares": np.zeros(0)}

    assert source.share(make)["packed"].tolist() == [0, 1, 2]
    assert source.share(make)["shares"].tolist() == []
    shared_arrays.remove_arrays(source.rows.key)
    assert made == [1]
    source.share(make)
    assert made == [1, 1]
    shared_arrays.remove_arrays(source.rows.key)
