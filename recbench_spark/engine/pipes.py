"""Spark's RDD words, as functions over a task's items.

They follow one another and need no Spark. A runner supplies the rest: `tasks` over frames of Spark, `local`
in processes of this machine.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from operator import itemgetter
from typing import Any, Self, TypeVar, cast

import pyarrow as pa

S = TypeVar("S", bound=Sequence[Any])
Pipe = Callable[[int, Iterator[Any]], Iterator[Any]]


@dataclass(frozen=True)
class PipedTasks:
    """Functions over a list's parts, or over a shuffle's pairs.

    Nothing runs before `collect`.

    Attributes:
        pipes: functions from (task, items) to items, in order.
    """

    pipes: tuple[Pipe, ...] = ()

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Apply a function to each item."""
        return self.mapPartitions(partial(map, function))

    def flatMap(self, function: Callable[[Any], Iterable[Any]]) -> Self:  # noqa: N802
        """Apply a function to each item; its results are items."""
        return self.mapPartitions(partial(_flatten_items, function=function))

    def mapPartitions(self, function: Callable[[Iterator[Any]], Iterable[Any]]) -> Self:  # noqa: N802
        """Apply a function to all items in a task."""
        return self._then(partial(_change_part, function=function))

    def mapPartitionsWithIndex(  # noqa: N802
        self, function: Callable[[int, Iterator[Any]], Iterable[Any]]
    ) -> Self:
        """Apply a function to a task's number and its items."""
        return self._then(partial(_change_numbered, function=function))

    def values(self) -> Self:
        """Keep the second of each pair."""
        return self.map(itemgetter(1))

    def collect(self) -> list[Any]:
        """Return all items, task by task; the driver holds them."""
        raise NotImplementedError

    def iterate(self) -> Iterator[Any]:
        """Yield all items, task by task."""
        return iter(self.collect())

    def treeReduce(self, add: Callable[[Any, Any], Any]) -> Any:  # noqa: N802
        """Return the sum of all items, via each task's sum."""
        return reduce(add, self.mapPartitions(partial(_reduce_part, add=add)).iterate())

    def foreach(self, function: Callable[[Any], object]) -> None:
        """Apply a function to each item, and drop its results."""
        self.mapPartitions(partial(_drop_results, function=function)).collect()

    def _then(self, pipe: Pipe) -> Self:
        return replace(self, pipes=(*self.pipes, pipe))


def collect_some(tasks: Any, places: Sequence[int]) -> list[Any]:
    """Run only the tasks with these numbers.

    Later calls can use the shuffle's pairs again.
    """
    if hasattr(tasks, "keep"):
        return list(tasks.keep(places).collect())
    return list(tasks.context.runJob(tasks, iter, places))


def unite_tasks(sides: Sequence[Any], tasks: int) -> Any:
    """Bring the items of several shuffles together, by the numbers of their tasks.

    Runners whose shuffles are kept have the method `beside`; RDDs are shuffled once more.
    """
    first, *others = sides
    if not others:
        return first
    if hasattr(first, "beside"):
        return first.beside(others, tasks)
    numbered = [one.mapPartitionsWithIndex(number_items) for one in sides]
    return first.context.union(numbered).partitionBy(tasks, int).values()


def number_items(task: int, items: Iterator[Any]) -> Iterator[tuple[int, Any]]:
    """Yield a task's items as pairs with its number."""
    return ((task, item) for item in items)


def remove_shuffle(shuffled: Any) -> None:
    """Remove a shuffle's files after reading.

    Only RDDs need it; other runners do so themselves.
    """
    if hasattr(shuffled, "_jrdd"):
        shuffled._jrdd.rdd().cleanShuffleDependencies(False)


def cut_parts(items: S, parts: int) -> list[S]:
    """Cut a list or range into nearly equal parts.

    Their lengths differ by one at most. No part is empty, except the only one.

    >>> cut_parts(range(5), 2)
    [range(0, 2), range(2, 5)]
    """
    n, parts = len(items), max(1, min(parts, len(items)))
    return [cast(S, items[n * i // parts : n * (i + 1) // parts]) for i in range(parts)]


def run_pipes(task: int, items: Iterator[Any], pipes: Iterable[Pipe]) -> Iterator[Any]:
    """Apply the functions to a task's items."""
    for pipe in pipes:
        items = pipe(task, items)
    return items


def encode_value(value: Any) -> bytes:
    """Return a value as bytes: bytes unchanged, others pickled."""
    return b"b" + value if isinstance(value, bytes) else b"p" + pickle.dumps(value)


def decode_value(block: bytes | pa.Buffer) -> Any:
    """Return the value in a block from `encode_value`."""
    view = memoryview(block)
    return bytes(view[1:]) if view[0] == ord("b") else pickle.loads(view[1:])


def _flatten_items(items: Iterator[Any], function: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    return chain.from_iterable(map(function, items))


def _change_part(
    _: int, items: Iterator[Any], function: Callable[[Iterator[Any]], Iterable[Any]]
) -> Iterator[Any]:
    return iter(function(items))


def _change_numbered(
    task: int, items: Iterator[Any], function: Callable[[int, Iterator[Any]], Iterable[Any]]
) -> Iterator[Any]:
    return iter(function(task, items))


def _reduce_part(items: Iterator[Any], add: Callable[[Any, Any], Any]) -> Iterator[Any]:
    for first in items:
        yield reduce(add, items, first)


def _drop_results(items: Iterator[Any], function: Callable[[Any], object]) -> Iterator[Any]:
    for item in items:
        function(item)
    return iter(())
