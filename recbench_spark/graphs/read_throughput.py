"""Measure how long a pass takes to read vectors.

A probe takes a second, before the pass runs. The seconds for each edge rise with the size of the
vector file: caches hold much of some hundred megabytes, and little of some gigabytes. A byte count does
not show this, and machines differ. So the probe aggregates a small part of the edges with the pass's
kernel, in as many tasks as the pass will have at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels import costs
from recbench_spark.graphs.kernels.aggregate import sum_sources as pooled_part
from recbench_spark.graphs.kernels.csr import Csr, window
from recbench_spark.storage.block_arrays import map_whole, read_parts
from recbench_spark.storage.blocks import Engine

PROBE_EDGES = 1 << 22
"""Most edges a task reads.

The second half is measured, when the caches are filled.
"""

WINDOW_ROWS = 1024
"""Destinations in a window.

They are few, so a window ends in time even where each source is read from the disk.
"""

CHUNK_BYTES = 1 << 20
"""Bytes read at once."""

PROBE_SECONDS = 1.0
"""Seconds after which a task stops, in case vectors are read from the disk."""


def measure_read_throughput(engine: Engine, graph: Graph, features: str) -> float:
    """Return a core's seconds per vector byte, all cores reading.

    Without edges the result is `costs.DEFAULT_READ_SECONDS`.

    Args:
        engine: the runner.
        graph: the graph on disk.
        features: where vectors lie, by dense id.
    """
    tasks = engine.cores
    probe = partial(_probe_task, graph=graph, features=features, tasks=tasks)
    measured = [one for one in engine.parallelize(range(tasks), tasks).map(probe).collect() if one]
    return float(np.mean(measured)) if measured else costs.DEFAULT_READ_SECONDS


def _probe_task(number: int, graph: Graph, features: str, tasks: int) -> float | None:
    """Return a task's median seconds for a byte.

    Only the second half of its windows counts.
    """
    z = map_whole(features)
    if z.nbytes <= free_memory(0) // 2:
        _warm_cache(features, number, tasks)
    first = next(_make_windows(graph, number, tasks), None)
    if first is None:
        return None
    pooled_part("sum", _copy_to_memory(first), z)  # loads the kernel, which takes half a second or more
    start, edges_read, byte_seconds = time.monotonic(), 0, []
    for edges in _make_windows(graph, number, tasks):
        part = _copy_to_memory(edges)
        before = time.perf_counter()
        pooled_part("sum", part, z)
        seconds = time.perf_counter() - before
        byte_seconds.append(seconds / (part.edges * z.shape[1] * z.itemsize))
        edges_read += part.edges
        if edges_read >= PROBE_EDGES or time.monotonic() - start > PROBE_SECONDS:
            break
    return float(np.median(byte_seconds[len(byte_seconds) // 2 :]))


def _warm_cache(features: str, number: int, tasks: int) -> None:
    """Read a task's share of the vectors into memory.

    Disks read fastest in order. A file written a moment ago may be half gone from the cache. A pass pays
    for this once, but the probe reads here and there and would count it for every edge.
    """
    array, buffer = read_parts(features), bytearray(CHUNK_BYTES)
    for part in sorted(array.parts.values())[number::tasks]:
        with array.open(part) as source:
            while source.readinto(buffer):  # type: ignore[attr-defined]
                pass


def free_memory(otherwise: int) -> int:
    """Return the memory bytes that are free or hold files.

    Without Linux's figures the result is `otherwise`.
    """
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return otherwise


def _make_windows(graph: Graph, number: int, tasks: int) -> Iterator[Csr]:
    """Yield a task's destination windows.

    First comes each block's first window, then each block's next.
    """
    blocks = [block for block in graph.blocks[number::tasks] if block.edges]
    for first in count(0, WINDOW_ROWS):
        longer = [block for block in blocks if first < block.rows]
        if not longer:
            return
        for block in longer:
            part = window(graph.csr(block), first, min(first + WINDOW_ROWS, block.rows))
            if part.edges:
                yield part


def _copy_to_memory(part: Csr) -> Csr:
    """Copy edges to memory.

    A pass reads them in order, but the probe would read them here and there.
    """
    weight = None if part.weight is None else np.array(part.weight)
    return Csr(np.array(part.indptr), np.array(part.src), weight)
