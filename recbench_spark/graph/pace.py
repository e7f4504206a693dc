"""How long it takes to read vectors from where a pass will read them: a probe of a second, before it runs.

Seconds an edge rise with the file of vectors: of some hundred megabytes the caches hold much, of some
gigabytes little. No count of bytes tells that, and machines differ; so a small part of the edges is taken
in once, by the kernel that a pass uses, by as many tasks at once as will run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from pyspark import SparkContext

from recbench_spark.graph.folders import Block, Graph, mapped
from recbench_spark.kernels.graph import costs
from recbench_spark.kernels.graph.aggregate import partial as pooled_part
from recbench_spark.kernels.graph.csr import Csr, window

EDGES = 1 << 22
"""Most that a task takes in; the second half is measured, when the caches hold what they will."""

ROWS = 1024
"""Destinations of a window: few, so that it ends in time where each source is read from the disk."""

SECONDS = 1.0
"""After so many a task stops: what is not in memory is read from the disk."""


def pace_of(context: SparkContext, graph: Graph, features: str) -> float:
    """Seconds of a core to take in a byte of vectors, all cores at work; `costs.PACE` without edges.

    Args:
        context: Spark's.
        graph: laid out.
        features: file of vectors by dense id.
    """
    tasks = context.defaultParallelism
    probe = partial(_probe, graph=graph, features=features, tasks=tasks)
    found = [one for one in context.parallelize(range(tasks), tasks).map(probe).collect() if one]
    return float(np.mean(found)) if found else costs.PACE


def _probe(number: int, graph: Graph, features: str, tasks: int) -> float | None:
    """The middle one of the paces of a task's windows, those that were read first left out."""
    z, began, taken = mapped(Path(features)), time.monotonic(), 0
    paces = []
    for part in _windows(graph, number, tasks):
        started = time.perf_counter()
        pooled_part("sum", part, z)
        seconds = time.perf_counter() - started
        paces.append(seconds / (part.edges * z.shape[1] * z.itemsize))
        taken += part.edges
        if taken >= EDGES or time.monotonic() - began > SECONDS:
            break
    return float(np.median(paces[len(paces) // 2 :])) if paces else None


def _windows(graph: Graph, number: int, tasks: int) -> Iterator[Csr]:
    """A task's windows of destinations: the first of each block, then the next of each."""
    blocks = [block for block in graph.blocks[number::tasks] if block.edges]
    for first in count(0, ROWS):
        longer = [block for block in blocks if first < block.rows]
        if not longer:
            return
        yield from filter(_has_edges, (_window(graph, block, first) for block in longer))


def _window(graph: Graph, block: Block, first: int) -> Csr:
    return window(graph.csr(block), first, min(first + ROWS, block.rows))


def _has_edges(part: Csr) -> bool:
    return part.edges > 0
