"""Small graphs for models: adjacency in blocks of a multigraph drawn by `tests.graphs.oracle`."""

from __future__ import annotations

import numpy as np

from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.models.networks.subgraphs import Adjacency
from tests.graphs import oracle


def adjacency(drawn: oracle.Drawn, blocks: int = 1, weighted: bool = False) -> Adjacency:
    """Dense ids are places in `drawn.ids`."""
    n = len(drawn.ids)
    firsts = np.unique(np.linspace(0, n, blocks + 1).astype(int)[:-1])
    ends = [*firsts[1:].tolist(), n]
    parts = []
    for first, end in zip(firsts.tolist(), ends, strict=True):
        own = [(d - first, s, w) for s, d, w in drawn.edges if first <= d < end]
        weights = [w for *_, w in own] if weighted else None
        parts.append(oracle.build_csr(end - first, [(d, s) for d, s, _ in own], weights))
    return Adjacency(firsts, tuple(parts), hash_numbers(np.arange(n), 0))
