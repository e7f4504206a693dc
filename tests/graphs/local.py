"""A runner in this process that copies whatever would cross from task to task."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from recbench_spark.engine.local import LocalEngine
from recbench_spark.graphs.folders import Graph
from recbench_spark.storage.block_arrays import publish_parts, write_part
from recbench_spark.storage.object_access import delta_options

Part = Callable[[], Iterable[Any]]


class Rows:
    """An RDD: partitions are computed on request; what crosses a border is pickled."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    def mapPartitionsWithIndex(self, run: Callable[[int, Iterator[Any]], Iterable[Any]]) -> Rows:  # noqa: N802
        run = pickle.loads(pickle.dumps(run))
        return Rows([lambda n=n, part=part: run(n, iter(part())) for n, part in enumerate(self.parts)])

    def mapPartitions(self, run: Callable[[Iterator[Any]], Iterable[Any]]) -> Rows:  # noqa: N802
        run = pickle.loads(pickle.dumps(run))
        return Rows([lambda part=part: run(iter(part())) for part in self.parts])

    def map(self, run: Callable[[Any], Any]) -> Rows:
        run = pickle.loads(pickle.dumps(run))
        return Rows([lambda part=part: map(run, part()) for part in self.parts])

    def flatMap(self, run: Callable[[Any], Iterable[Any]]) -> Rows:  # noqa: N802
        return self.mapPartitions(partial(_run_flat, run=run))

    def partitionBy(self, n: int, place: Callable[[Any], int]) -> Rows:  # noqa: N802
        sent: list[list[Any]] = []

        def receive(number: int) -> list[Any]:
            if not sent:
                sent.extend([] for _ in range(n))
                for key, value in reversed(self.collect()):  # they arrive in any order
                    sent[place(key) % n].append((key, value))
            return sent[number]

        return Rows([lambda number=number: receive(number) for number in range(n)])

    def collect(self) -> list[Any]:
        return [pickle.loads(pickle.dumps(one)) for part in self.parts for one in part()]

    def keep(self, places: Sequence[int]) -> Rows:
        return Rows([self.parts[place] for place in places])

    def foreach(self, run: Callable[[Any], Any]) -> None:
        for one in self.collect():
            run(one)


def _run_flat(values: Iterator[Any], run: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    for value in values:
        yield from run(value)


class Context(LocalEngine):
    """A runner of two cores that sends all functions and values as bytes, and pairs in any order."""

    def __init__(self) -> None:
        super().__init__("")

    @property
    def cores(self) -> int:
        return 2

    def parallelize(self, values: Iterable[Any], parts: int | None = None) -> Any:
        given, n = list(values), parts or 2
        cuts = [given[k * len(given) // n : (k + 1) * len(given) // n] for k in range(n)]
        return Rows([lambda cut=cut: cut for cut in cuts])


VECTORS = {"block": pa.int32(), "first": pa.int64(), "nodes": pa.int32(), "dims": pa.int32()}
TABLES = {
    "graph_vectors": (
        {**VECTORS, "dtype": pa.string(), "vectors": pa.binary()},
        {"model_id": pa.string(), "layer": pa.int32()},
    ),
    "embeddings": (
        {"id": pa.string(), "vector": pa.list_(pa.float32()), "bias": pa.float64()},
        {"model_id": pa.string(), "side": pa.string()},
    ),
}


def warehouse(folder: Path) -> Path:
    """Empty tables of vectors."""
    make_tables(str(folder))
    return folder


def make_tables(root: str) -> str:
    """Empty tables of vectors in a folder or on object storage."""
    for name, (columns, by) in TABLES.items():
        schema = deltalake.Schema.from_arrow(pa.schema({**columns, **by}))
        options = delta_options(root)
        DeltaTable.create(f"{root}/{name}", schema=schema, partition_by=list(by), storage_options=options)
    return root


def write_matrix(place: Path, graph: Graph, rows: np.ndarray) -> str:
    """Write a matrix by dense id as tasks do, one object a block."""
    parts = [write_part(str(place), b.number, rows[b.first : b.end], b.first) for b in graph.blocks]
    publish_parts(str(place), parts, rows.shape, rows.dtype)
    return str(place)
