"""Tasks over frames and of this machine against the RDDs whose words they have, in one classic session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from operator import add
from typing import Any

import pytest

from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.pipes import collect_some, unite_tasks
from recbench_spark.engine.sessions import is_connect, open_tasks
from recbench_spark.engine.tasks import FrameContext

NUMBERS = [*range(23)]


def send(numbers: Iterator[int]) -> Iterator[tuple[int, Any]]:
    for number in numbers:
        yield number % 5, number
        yield number % 3, bytes([number])


def note(task: int, pairs: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, list[Any]]]:
    yield task, sorted((value for _, value in pairs), key=repr)


CASES: dict[str, Callable[[Any], Any]] = {
    "map": lambda c: c.parallelize(NUMBERS, 4).map(lambda x: x * x).collect(),
    "one part": lambda c: c.parallelize(NUMBERS, 1).mapPartitions(lambda items: [sum(items)]).collect(),
    "flat": lambda c: c.parallelize(NUMBERS, 7).flatMap(lambda x: [x] * (x % 3)).collect(),
    "sum": lambda c: c.parallelize(NUMBERS, 7).map(lambda x: x + 1).treeReduce(add),
    "numbered": lambda c: c.parallelize(NUMBERS[:21], 3).mapPartitionsWithIndex(note_items).collect(),
    "shuffle": lambda c: c.parallelize(NUMBERS, 4).mapPartitions(send).partitionBy(6, int)
    .mapPartitionsWithIndex(note).collect(),
    "values": lambda c: sorted(
        c.parallelize(NUMBERS, 4).mapPartitions(send).partitionBy(6, int).values().collect(), key=repr
    ),
    "some tasks": lambda c: collect_some(
        c.parallelize(NUMBERS, 4).mapPartitions(send).partitionBy(6, int).mapPartitionsWithIndex(note),
        [1, 4],
    ),
}  # fmt: skip


def note_items(task: int, items: Iterable[int]) -> Iterator[tuple[int, int]]:
    yield task, sum(items)


@pytest.mark.parametrize("name", CASES)
def test_frames_rdds_and_this_machine_give_the_same(spark, name, tmp_path) -> None:
    items = CASES[name](FrameContext(spark))
    assert items == CASES[name](spark.sparkContext) == CASES[name](LocalEngine(str(tmp_path)))
    assert items


def unite_shuffles(context: Any) -> Any:
    """Return what each of six tasks has from three shuffles."""
    with ExitStack() as stack:
        sent = [
            context.parallelize(NUMBERS[n:], 4).mapPartitions(send).partitionBy(6, int) for n in (0, 7, 23)
        ]
        held = [stack.enter_context(one.hold()) if hasattr(one, "hold") else one for one in sent]
        every = unite_tasks([one.values() for one in held], 6)
        return every.map(lambda value: (0, value)).mapPartitionsWithIndex(note).collect()


def test_shuffles_meet_task_by_task(spark, tmp_path) -> None:
    united = unite_shuffles(LocalEngine(str(tmp_path)))
    assert united == unite_shuffles(FrameContext(spark)) == unite_shuffles(spark.sparkContext)
    wanted = [pair for start in (0, 7) for pair in send(iter(NUMBERS[start:]))]
    assert united == [(task, note_values(wanted, task)) for task in range(6)]


def note_values(pairs: Iterable[tuple[int, Any]], task: int) -> list[Any]:
    return sorted((value for number, value in pairs if number == task), key=repr)


def test_each_item_is_worked_on_once(spark, tmp_path) -> None:
    FrameContext(spark).parallelize(NUMBERS, 4).foreach(lambda x: (tmp_path / f"{x}").write_text("x"))
    assert {int(file.name) for file in tmp_path.iterdir()} == set(NUMBERS)


def test_a_classic_session_has_its_own_context(spark) -> None:
    assert not is_connect(spark)
    assert open_tasks(spark) is spark.sparkContext
