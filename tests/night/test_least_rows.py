"""Rare users and items: what `dataset.least` leaves out, beside a loop that counts one pair at a time."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recbench_spark.config import Benchmark, Dataset, Least, load_yaml, parse
from recbench_spark.engine.local import LocalEngine, LocalTasks
from recbench_spark.errors import ConfigError, DataError, ProtocolError
from recbench_spark.night.split import identify_split, write_labelled
from recbench_spark.schemas import MANIFESTS
from recbench_spark.sources.opened_logs import OpenedLog
from recbench_spark.splits.least import keep_frequent
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.blocks import PieceRows
from tests.night.test_event_logs import EVENTS, GLOBAL, NAMES, make, read_split, split_log, write
from tests.nights import PIECES, work_in

SEEDS = range(*map(int, os.environ.get("RECBENCH_LEAST_SEEDS", "0,4").split(",")))
"""Worlds drawn: a few in the suite, as many as one likes by hand."""

Row = tuple[Any, ...]


def draw_rows(seed: int) -> list[Row]:
    draw = random.Random(seed)
    return [
        (f"u{int(draw.paretovariate(0.5)) % 19}", f"i{int(draw.paretovariate(0.5)) % 23}", n, "purchase")
        for n in range(draw.choice([100, 160]))
    ]


def find_core(rows: list[Row], every: list[Row], least: dict[str, Any]) -> list[Row]:
    """Return those of all rows whose user and item stay, where `rows` count."""
    users, items = {row[0] for row in every}, {row[1] for row in every}
    while True:
        n = {
            (side, one): sum(row[side] == one and row[0] in users and row[1] in items for row in rows)
            for side, ids in ((0, users), (1, items))
            for one in ids
        }
        left_users = {user for user in users if n[0, user] >= least.get("user", 0)}
        left_items = {item for item in items if n[1, item] >= least.get("item", 0)}
        stable = (left_users, left_items) == (users, items) or least.get("until_stable") is False
        users, items = left_users, left_items
        if stable:
            return [row for row in every if row[0] in users and row[1] in items]


LEAST = [
    {"user": 3}, {"item": 4}, {"user": 3, "item": 3}, {"user": 4, "item": 2, "until_stable": False},
]  # fmt: skip


def choose_seeds(turn: int, turns: int) -> list[int]:
    """Few worlds in each of a test's turns, and the others in one of them."""
    return [seed for seed in SEEDS if seed < 4 or seed % turns == turn]


FILES = ["log.csv", "log.parquet"]
PARTS = ["last", "cut", "random", "events", "given users"]


@pytest.mark.parametrize("file", FILES)
def test_counted_in_the_log_the_split_is_that_of_the_core(tmp_path: Path, file: str) -> None:
    for seed in choose_seeds(FILES.index(file), len(FILES)):
        least = LEAST[seed % len(LEAST)]
        rows = draw_rows(seed)
        core = find_core(rows, rows, least)
        protocol = [GLOBAL, {"protocol": "TO_LS"}, {"protocol": "RO_RS"}][seed % 3]
        more = {"least": {**least, "on": "log"}, "events": None}
        one = make(write(tmp_path / f"{seed}" / file, rows), protocol, **more)
        other = make(write(tmp_path / f"core{seed}" / file, core), protocol, events=None)
        alone = read_split(split_log(tmp_path / f"b{seed}", other)[0])
        assert core and (len(core) < len(rows) or seed == 184)  # one world of a thousand has no rare user
        for tasks in PIECES:
            with work_in(tasks):
                store, facts = split_log(tmp_path / f"a{seed}_{tasks}", one)
            assert read_split(store) == alone
            assert facts["log", "rows_read"] == len(rows)
            gone = len(rows) - len(core)
            assert facts["log", "infrequent_rows"] == facts["log", "future_selection"] == gone
            text = describe(store)
            n_users, n_items = (len({row[side] for row in core}) for side in (0, 1))
            assert f"; {n_users} users, {n_items} items, " in text
            assert f"{len(core) / len(rows):.1%} of the rows stay" in text


def describe(store: ArrowStore) -> str:
    (row,) = store.rows(MANIFESTS, [("fact", "=", "infrequent_rows")])
    return str(row["detail"])


@pytest.mark.parametrize("name", PARTS)
def test_counted_in_training_the_split_loses_rare_ids_in_all_parts(tmp_path: Path, name: str) -> None:
    protocol = {
        "cut": GLOBAL, "random": {"protocol": "RO_RS"},
        "given users": {"protocol": "TO_RS", "held_out": {"test": 0.4}},
    }.get(name, {"protocol": "TO_LS", "valid": True})  # fmt: skip
    for seed in choose_seeds(PARTS.index(name), len(PARTS)):
        least = LEAST[seed % len(LEAST)]
        rows, events = draw_rows(seed), EVENTS if name == "events" else None
        if name == "events":
            rows = [(*row[:3], "view" if row[2] % 3 else "purchase") for row in rows]
        path = write(tmp_path / f"{seed}.csv", rows)
        whole, _ = split_log(tmp_path / f"a{seed}", make(path, protocol, events=events))
        labelled = read_split(whole)
        trained = [row for row in labelled if row[2] in ("train", "given")]
        core = find_core(trained, labelled, least)
        frequent = make(path, protocol, events=events, least=least)
        for tasks in PIECES:
            with work_in(tasks):
                check_core(tmp_path / f"b{seed}_{tasks}", frequent, len(rows), labelled, core)


def check_core(folder: Path, frequent: Benchmark, n: int, labelled: list[Row], core: list[Row]) -> None:
    """Split a log of n rows, of which a core stays."""
    if "test" not in {row[2] for row in core}:
        message = "no test rows: dataset.least leaves out" if core else "no row stays"
        with pytest.raises(DataError if not core else ProtocolError, match=message):
            split_log(folder, frequent)
        return
    store, facts = split_log(folder, frequent)
    assert read_split(store) == core and len(core) < len(labelled)
    assert facts["log", "infrequent_rows"] == len(labelled) - len(core)
    assert ("log", "future_selection") not in facts
    of_log = {fact: value for (part, fact), value in facts.items() if part == "log"}
    gone = ("infrequent_rows", "duplicates_dropped", "repeats_dropped", "events_added")
    assert of_log["rows_read"] == n == len(core) + sum(of_log.get(fact, 0) for fact in gone)


def test_nobody_who_stays_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", draw_rows(1))
    for on in ("log", "train"):
        with pytest.raises(DataError, match="least: no row stays: user 900, item 0"):
            split_log(tmp_path / on, make(path, GLOBAL, least={"user": 900, "on": on}))


def test_what_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", draw_rows(1))
    items = {"held_out": {"of": "items", "test": 0.2}}
    with pytest.raises(ConfigError, match="not together where items are held out"):
        split_log(tmp_path / "a", make(path, items, least={"user": 2}))
    with pytest.raises(ConfigError, match="consecutive folds count the places of all rows"):
        split_log(tmp_path / "b", make(path, {"holdout": "consecutive"}, least={"user": 2, "on": "log"}))
    folds = make(path, {"holdout": "folds"}, least={"user": 2}, events=None)
    for one in (folds, make(path, {"holdout": "folds"})):
        with pytest.raises(ConfigError, match="work on all folds at once"):
            write_labelled(
                ArrowStore(str(tmp_path / "c")),
                one.dataset,
                one.split,
                lambda *_: None,
                every_fold=True,  # type: ignore[arg-type,return-value]
            )
    with pytest.raises(ConfigError, match="neither user nor item is given"):
        parse(Dataset, {"name": "log", "reader": "csv", "path": "x", "least": {"on": "log"}}, "dataset")


def test_a_file_says_on_without_quotes() -> None:
    """YAML 1.1 takes the word for true."""
    text = "least: &least {user: 5, on: log, until_stable: yes}\nother: {<<: *least, on: train}"
    document = load_yaml(text, "file")
    log = {"name": "log", "reader": "csv", "path": "x", "least": document["least"]}
    least = parse(Dataset, log, "dataset").least
    assert least is not None and (least.user, least.on, least.until_stable) == (5, "log", True)
    assert document["other"] == {"user": 5, "on": "train", "until_stable": True}


def test_items_are_held_out_of_a_core(tmp_path: Path) -> None:
    rows, least = draw_rows(2), {"user": 3, "item": 3}
    items = {"held_out": {"of": "items", "test": 0.4}, "protocol": "TO_RS"}
    more = {"least": {**least, "on": "log"}, "events": None}
    store, _ = split_log(tmp_path / "a", make(write(tmp_path / "log.parquet", rows), items, **more))
    core = write(tmp_path / "core.parquet", find_core(rows, rows, least))
    alone, _ = split_log(tmp_path / "b", make(core, items, events=None))
    assert read_split(store) == read_split(alone)


def test_a_new_number_is_a_new_split(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", draw_rows(1), NAMES)
    names = [
        identify_split(ArrowStore(str(tmp_path / "w")), make(path, GLOBAL, least=least))[0]
        for least in (None, {"user": 3}, {"user": 3, "on": "log"}, {"user": 3, "until_stable": False})
    ]
    assert len(set(names)) == 4


@pytest.mark.parametrize("on", ["log", "train"])
def test_on_spark_the_core_is_the_same(spark: Any, tmp_path: Path, on: str) -> None:
    from recbench_spark.storage.store import Store

    least = {"user": 3, "item": 2, "on": on}
    benchmark = make(write(tmp_path / "log.parquet", draw_rows(3)), GLOBAL, least=least)
    splits = [
        read_split(split_log(tmp_path / "a", benchmark)[0]),
        read_split(split_log(tmp_path / "b", benchmark, Store(spark, str(tmp_path / "b")))[0]),
    ]
    assert splits[0] == splits[1] and splits[0]


@pytest.mark.parametrize("until_stable", [True, False])
def test_rows_that_spark_reads_have_the_same_core(spark: Any, tmp_path: Path, until_stable: bool) -> None:
    from recbench_spark.engine.sessions import SparkEngine
    from recbench_spark.storage.frame_blocks import FrameRows

    rows, least = draw_rows(3), {"user": 3, "item": 2, "on": "log", "until_stable": until_stable}
    frame = spark.createDataFrame(rows, ["user_id", "item_id", "event_time", "event"]).repartition(3)
    log = OpenedLog(FrameRows(frame), tuple(frame.columns), len(rows))
    with keep_frequent(log, parse(Least, least, "least"), SparkEngine(spark)) as (left, counts):
        stored = [row for task in left.rows.each(left.columns, list_rows) for row in task]
    core = find_core(rows, rows, least)
    assert sorted(stored) == sorted(core) and 0 < len(core) < len(rows)
    assert counts is not None and (counts.before, counts.rows) == (len(rows), len(core))


def list_rows(tables: Iterable[pa.Table]) -> list[Row]:
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


@pytest.mark.parametrize("tasks", PIECES)
def test_only_numbers_of_rows_reach_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    collected: list[Any] = []
    collect = LocalTasks.collect
    monkeypatch.setattr(
        LocalTasks, "collect", lambda self: collected.append(collect(self)) or collected[-1]
    )
    rows = draw_rows(3)
    table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], NAMES)
    engine = LocalEngine(str(tmp_path))
    pieces = PieceRows(engine, [table.slice(n, 9) for n in range(0, len(rows), 9)], read_pieces)
    monkeypatch.setattr(LocalEngine, "count_tasks", lambda *_: tasks)
    log, least = OpenedLog(pieces, NAMES, len(rows)), Least(user=3, item=2, on="log")
    with keep_frequent(log, least, engine) as (_, counts):
        assert counts is not None and 0 < counts.rows < len(rows)
    results = [one for results in collected for one in results]
    assert {type(n) for one in results for n in (one if isinstance(one, tuple) else (one,))} == {int}
    assert len(collected) >= 4 and len(results) <= tasks * len(collected)


def read_pieces(pieces: Iterable[pa.Table], columns: Sequence[str]) -> Iterator[pa.Table]:
    return (piece.select(list(columns)) for piece in pieces)
