"""How long it takes to read vectors from where a pass will read them: a probe of a second, before it runs.

Seconds an edge rise with the file of vectors: of some hundred megabytes the caches hold much, of some
gigabytes little. No count of bytes tells that, and machines differ; so a small part of the edges is taken
in once, by the kernel that a pass uses, by as many tasks at once as will run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from pyspark import SparkContext

from recbench_spark.graph.folders import Graph, NodeBlock, map_array
from recbench_spark.kernels.graph import costs
from recbench_spark.kernels.graph.aggregate import sum_sources as pooled_part
from recbench_spark.kernels.graph.csr import Csr, window

PROBE_EDGES = 1 << 22
"""Most that a task takes in; the second half is measured, when the caches hold what they will."""

WINDOW_ROWS = 1024
"""Destinations of a window: few, so that it ends in time where each source is read from the disk."""

CHUNK_BYTES = 1 << 20
"""Bytes read at once."""

PROBE_SECONDS = 1.0
"""After so many a task stops: what is not in memory is read from the disk."""


def measure_read_throughput(context: SparkContext, graph: Graph, features: str) -> float:
    """Seconds of a core to take in a byte of vectors, all cores at work; `costs.DEFAULT_READ_SECONDS` without edges.

    Args:
        context: Spark's.
        graph: laid out.
        features: file of vectors by dense id.
    """
    tasks = context.defaultParallelism
    probe = partial(_probe_task, graph=graph, features=features, tasks=tasks)
    found = [one for one in context.parallelize(range(tasks), tasks).map(probe).collect() if one]
    return float(np.mean(found)) if found else costs.DEFAULT_READ_SECONDS


def _probe_task(number: int, graph: Graph, features: str, tasks: int) -> float | None:
    """The middle one of the paces of a task's windows, those that were read first left out."""
    z = map_array(Path(features))
    if z.nbytes <= free_memory(0) // 2:
        _warm_cache(Path(features), number, tasks)
    first = next(_make_windows(graph, number, tasks), None)
    if first is None:
        return None
    pooled_part("sum", _copy_to_memory(first), z)  # a process loads the kernel, for half a second or more
    began, taken, paces = time.monotonic(), 0, []
    for found in _make_windows(graph, number, tasks):
        part = _copy_to_memory(found)
        started = time.perf_counter()
        pooled_part("sum", part, z)
        seconds = time.perf_counter() - started
        paces.append(seconds / (part.edges * z.shape[1] * z.itemsize))
        taken += part.edges
        if taken >= PROBE_EDGES or time.monotonic() - began > PROBE_SECONDS:
            break
    return float(np.median(paces[len(paces) // 2 :]))


def _warm_cache(file: Path, number: int, tasks: int) -> None:
    """A task's share of a file from its first byte to its last, as disks like it: then it is in memory.

    A file that was written a moment ago may be half gone from the cache. A pass pays for that once; the
    probe, which reads here and there, would take it for the price of every edge.
    """
    share, buffer = -(-file.stat().st_size // tasks), bytearray(CHUNK_BYTES)
    with file.open("rb", buffering=0) as source:
        source.seek(number * share)
        for _ in range(-(-share // CHUNK_BYTES)):
            source.readinto(buffer)


def free_memory(otherwise: int) -> int:
    """Bytes that are free or hold files only (Linux)."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return otherwise


def _make_windows(graph: Graph, number: int, tasks: int) -> Iterator[Csr]:
    """A task's windows of destinations: the first of each block, then the next of each."""
    blocks = [block for block in graph.blocks[number::tasks] if block.edges]
    for first in count(0, WINDOW_ROWS):
        longer = [block for block in blocks if first < block.rows]
        if not longer:
            return
        yield from filter(_has_edges, (_make_window(graph, block, first) for block in longer))


def _make_window(graph: Graph, block: NodeBlock, first: int) -> Csr:
    return window(graph.csr(block), first, min(first + WINDOW_ROWS, block.rows))


def _copy_to_memory(part: Csr) -> Csr:
    """Edges that need not come from the disk: a pass reads them in order, the probe here and there."""
    weight = None if part.weight is None else np.array(part.weight)
    return Csr(np.array(part.indptr), np.array(part.src), weight)


def _has_edges(part: Csr) -> bool:
    return part.edges > 0
