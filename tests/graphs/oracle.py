"""Random multigraphs, and layers over them as dense algebra in float64: slow and obvious."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from recbench_spark.graphs.kernels import csr
from recbench_spark.graphs.kernels.csr import Csr
from recbench_spark.graphs.kernels.forms import LayerForm


@dataclass
class Drawn:
    """A multigraph: ids of its nodes and edges (src, dst, weight) by place of their ids."""

    ids: list[Any]
    edges: list[tuple[int, int, float]]

    def write(self, folder: Path, pieces: int = 3) -> tuple[str, str]:
        """Edges as Parquet in small row groups, and a table of all nodes."""
        folder.mkdir(parents=True, exist_ok=True)
        columns = {
            "src": [self.ids[s] for s, _, _ in self.edges],
            "dst": [self.ids[d] for _, d, _ in self.edges],
            "weight": [w for _, _, w in self.edges],
        }
        step = -(-len(self.edges) // pieces)
        pq.write_table(pa.table(columns), folder / "edges.parquet", row_group_size=step)
        pq.write_table(pa.table({"id": self.ids}), folder / "nodes.parquet")
        return str(folder / "edges.parquet"), str(folder / "nodes.parquet")

    def matrix(self, weighted: bool = False) -> np.ndarray:
        """(n, n) edges, or their weights, into a row from a column."""
        result = np.zeros((len(self.ids), len(self.ids)))
        for s, d, w in self.edges:
            result[d, s] += w if weighted else 1
        return result

    def both_ways(self) -> Drawn:
        return Drawn(self.ids, [*self.edges, *((d, s, w) for s, d, w in self.edges if s != d)])


def multigraph(n: int = 60, edges: int = 400, hub: int = 150, seed: int = 1, text: bool = False) -> Drawn:
    """A hub, isolated nodes, duplicate edges, self loops; ids in no order."""
    draw = random.Random(seed)
    ids: list[Any] = draw.sample(range(-(10**6), 10**12), n)
    if text:
        ids = [f"n\u00f8de {number}" for number in ids]
    alive = n - 5
    rows = [(draw.randrange(alive), draw.randrange(alive)) for _ in range(edges)]
    rows += [(draw.randrange(alive), 3) for _ in range(hub)] + rows[:20] + [(7, 7), (7, 7), (8, 8)]
    draw.shuffle(rows)
    return Drawn(ids, [(s, d, draw.choice([0.0, 0.25, 1.0, 3.5])) for s, d in rows])


def bipartite(left: int = 20, right: int = 30, edges: int = 200, seed: int = 1) -> Drawn:
    """Edges from the first `left` ids to the others; a few of both sides have none."""
    draw = random.Random(seed)
    ids = draw.sample(range(10**6), left + right)
    rows = [(draw.randrange(left - 2), left + draw.randrange(right - 2)) for _ in range(edges)]
    return Drawn(ids, [(s, d, draw.choice([0.5, 1.0, 2.0])) for s, d in rows])


def aggregate(kind: str, drawn: Drawn, z: np.ndarray) -> np.ndarray:
    """(n, m) what each node gets: sum, mean, importance, max or gcn over its edges."""
    counts = drawn.matrix().sum(axis=1, keepdims=True)
    if kind in ("sum", "mean", "gcn"):
        total = drawn.matrix() @ z
        if kind == "gcn":
            return (total + z) / (counts + 1)
        return total if kind == "sum" else total / np.maximum(counts, 1)
    if kind == "importance":
        weights = drawn.matrix(weighted=True)
        sums = weights.sum(axis=1, keepdims=True)
        return weights @ z / np.where(sums == 0, 1, sums)
    result = np.zeros((len(drawn.ids), z.shape[1]))
    for v in range(len(drawn.ids)):
        sources = [s for s, d, _ in drawn.edges if d == v]
        if sources:
            result[v] = z[sources].max(axis=0)
    return result


def unit(x: np.ndarray) -> np.ndarray:
    """Rows of length 1; zeros stay."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(lengths == 0, 1, lengths)


def layer(
    form: LayerForm, weights: dict[str, np.ndarray], drawn: Drawn, h: np.ndarray, pools: Any = None
) -> np.ndarray:
    """A layer by its equation; `pools` replaces the aggregation (bipartite graphs)."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    z = h
    if form.form == "convolve":
        z = np.maximum(h @ w["Q.weight"].T + w["Q.bias"], 0)
    elif form.aggregator == "max":
        z = np.maximum(h @ w["pool.weight"].T + w["pool.bias"], 0)
    n = pools(z) if pools else aggregate(form.aggregator, drawn, z)
    joined = n if form.aggregator == "gcn" else h + n if form.join == "add" else np.hstack([h, n])
    out = joined @ w["W.weight"].T + w["W.bias"]
    out = np.maximum(out, 0) if form.relu else out
    return unit(out) if form.normalise else out


def lstm_states(weights: dict[str, np.ndarray], sequences: list[list[int]], h: np.ndarray) -> np.ndarray:
    """(n, hidden) last states of torch.nn.LSTM over each node's sources, one node at a time."""
    hidden = weights["lstm.weight_hh_l0"].shape[1]
    net = torch.nn.LSTM(h.shape[1], hidden, batch_first=True).double()
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    net.load_state_dict({name: torch.from_numpy(weights[f"lstm.{name}"]).double() for name in names})
    result = np.zeros((len(sequences), hidden))
    for v, sources in enumerate(sequences):
        if sources:
            with torch.no_grad():
                result[v] = net(torch.from_numpy(h[sources])[None])[0][0, -1].numpy()
    return result


def build_csr(rows: int, edges: list[tuple[int, int]], weight: list[float] | None = None) -> Csr:
    """Edges (row, source)."""
    keys = csr.edge_keys(*(np.array([e[n] for e in edges], np.uint32) for n in (0, 1)))
    return csr.build_csr(rows, keys, None if weight is None else np.array(weight, np.float32))[0]
