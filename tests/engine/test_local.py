"""Tasks of this machine: the words of a Spark context, shuffles on disk, worker processes, their faults."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import pytest

from recbench_spark.engine import local
from recbench_spark.engine.local import LocalEngine, choose_workers
from recbench_spark.errors import DataError, EmptyPartError, StoreError
from tests.engine.test_tasks import CASES, NUMBERS

EXPECTED: dict[str, Any] = {
    "map": [x * x for x in NUMBERS],
    "one part": [sum(NUMBERS)],
    "flat": [x for x in NUMBERS for _ in range(x % 3)],
    "sum": sum(x + 1 for x in NUMBERS),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_words_by_hand(tmp_path: Path, name: str) -> None:
    assert CASES[name](LocalEngine(str(tmp_path))) == EXPECTED[name]


def deal(numbers: Iterator[int]) -> Iterator[tuple[int, Any]]:
    for number in numbers:
        yield number % 7, bytes([number])
        yield number % 3, {"n": number}


def note(task: int, pairs: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, list[str]]]:
    yield task, sorted(repr(value) for to, value in pairs if to == task)


def shuffle(engine: LocalEngine) -> list[Any]:
    tasks = engine.parallelize(NUMBERS, 4).mapPartitions(deal).partitionBy(7)
    return tasks.mapPartitionsWithIndex(note).collect()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("memory", [0, 40, 1 << 20])
def test_a_shuffle_brings_each_value_to_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, memory: int
) -> None:
    """In memory, in files, or both; nothing is left behind. Tasks without a value run, too."""
    monkeypatch.setattr(local, "SENT_BYTES", memory)
    wanted: dict[int, list[str]] = {task: [] for task in range(7)}
    for task, value in deal(iter(NUMBERS)):
        wanted[task].append(repr(value))
    results = shuffle(LocalEngine(str(tmp_path), workers))
    assert results == [(task, sorted(values)) for task, values in wanted.items()]
    assert not list(tmp_path.iterdir())


def test_two_shuffles_follow_each_other(tmp_path: Path) -> None:
    first = LocalEngine(str(tmp_path)).parallelize(NUMBERS, 3).mapPartitions(deal).partitionBy(5)
    second = first.map(lambda pair: (pair[0] % 2, 1)).partitionBy(2).values()
    assert second.treeReduce(add) == 2 * len(NUMBERS)


def end(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse(number: int) -> int:
    raise EmptyPartError("no rows", "a hint", (1, number))


def test_a_killed_worker_is_an_error_and_the_next_work_has_new_ones(tmp_path: Path) -> None:
    engine = LocalEngine(str(tmp_path), 2)
    with pytest.raises(BrokenProcessPool):
        engine.parallelize(NUMBERS, 6).map(end).collect()
    assert engine.parallelize(NUMBERS, 6).map(abs).collect() == NUMBERS


def sleep_and_name(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def test_work_that_is_given_up_ends_its_own_workers_alone(tmp_path: Path) -> None:
    engine = LocalEngine(str(tmp_path), 2)
    with ThreadPoolExecutor(1) as other:
        alone = other.submit(engine.run_alone, sleep_and_name, 2.0)
        results = engine.run(sleep_and_name, [0.0, 30.0])
        assert next(results) != os.getpid()
        results.close()  # as where a caller reads no further
        assert alone.result() != os.getpid()


def test_an_error_comes_whole_from_a_worker(tmp_path: Path) -> None:
    with pytest.raises(EmptyPartError, match="no rows") as raised:
        LocalEngine(str(tmp_path), 2).parallelize([4, 4], 2).map(refuse).collect()
    assert (raised.value.hint, raised.value.ends) == ("a hint", (1, 4))
    assert isinstance(raised.value, EmptyPartError) and not isinstance(raised.value, DataError)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SENT_BYTES", 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="a shuffle cannot write its rows") as raised:
        shuffle(LocalEngine(str(tmp_path / "file")))
    assert "TMPDIR" in raised.value.hint


def test_few_rows_need_one_process() -> None:
    assert choose_workers(1000) == 1
    assert choose_workers(1 << 40) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("workers", [1, 2])
def test_what_was_sent_is_read_several_times(tmp_path: Path, workers: int) -> None:
    """The tasks before the shuffle run once: each writes a line. Afterwards no file is left."""
    engine, runs = LocalEngine(str(tmp_path / "shuffles"), workers), tmp_path / "runs"
    tasks = engine.parallelize(NUMBERS, 4).mapPartitions(partial(deal_noted, runs=str(runs))).partitionBy(7)
    with tasks.hold() as held:
        assert held.mapPartitionsWithIndex(note).collect() == held.mapPartitionsWithIndex(note).collect()
    assert len(runs.read_text()) == 4 and not list((tmp_path / "shuffles").glob("*"))


def deal_noted(numbers: Iterator[int], runs: str) -> Iterator[tuple[int, Any]]:
    with Path(runs).open("a", encoding="utf-8") as file:
        file.write("x")
    yield from deal(numbers)


def test_a_pool_starts_while_others_import() -> None:
    """Add a module wherever Python collects garbage, as a thread may at any step."""
    added: list[str] = []

    def import_more(*_: object) -> None:
        added.append(f"module_{len(added)}")
        sys.modules[added[-1]] = os

    limits = gc.get_threshold()
    gc.callbacks.append(import_more)
    gc.set_threshold(1)
    try:
        local._make_pool(1).shutdown()
    finally:
        gc.set_threshold(*limits)
        gc.callbacks.remove(import_more)
        for name in added:
            del sys.modules[name]
    assert added
