"""Aggregate over each node's neighbours, in a fixed order.

All sums are float32. A destination adds its edges one by one, by ascending source (`graphs.kernels.ids`);
a hub adds them in segments. Block size, batch size and the place of a source's vector change no bit.

Sources: Hamilton, Ying and Leskovec 2017, section 3.3 (mean, GCN, LSTM, pool); Ying et al. 2018,
algorithm 1 and section 3.1 (importance pooling).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.core.hashing import Hashes, stream
from recbench_spark.graphs.kernels.csr import Csr, count_offsets
from recbench_spark.graphs.kernels.forms import Aggregator
from recbench_spark.graphs.kernels.simd import (
    PREFETCH_EDGES,
    as_single,
    fma,
    max_row_1,
    max_row_4,
    max_row_8,
    sum_row_1,
    sum_row_4,
    sum_row_8,
    weighted_row_1,
    weighted_row_4,
    weighted_row_8,
)

SEGMENT = 2048
"""Edges in a segment: a hub's segments are summed one by one.

So the rounding error grows with this number and with the number of segments, not with all its edges.
"""

Vectors = npt.NDArray[Any]
"""(nodes, dims) float32 or float16."""


def view_flat(vectors: Vectors) -> Any:
    """Return vectors as kernels take them: read-only and flat.

    Half-precision numbers are passed as their 16 bits.
    """
    flat = np.ascontiguousarray(vectors).reshape(-1)
    return readonly(flat.view(np.uint16) if vectors.dtype == np.float16 else flat)


def pool_neighbours(
    kind: Aggregator, csr: Csr, z: Vectors, own: Vectors | None = None
) -> npt.NDArray[np.float32]:
    """Return the aggregate over each destination's neighbours, (r, m).

    sum: sum z_u; mean: sum z_u / n; importance: sum a z_u / sum a (zero where all a are 0); max: the
    largest in each column; gcn: (sum z_u + z_v) / (n + 1). A destination without neighbours gets zeros.

    Args:
        kind: any but `lstm`.
        csr: edges into the destinations; `src` are rows of z.
        z: (s, m) vectors of sources.
        own: (r, m) the destinations' own vectors, for `gcn`.
    """
    return finish_sums(kind, sum_sources(kind, csr, z), *count_edges(csr), own)


def sum_sources(kind: Aggregator, csr: Csr, z: Vectors) -> npt.NDArray[np.float32]:
    """Sum over the given sources, (r, m).

    The sums are weighted for importance. For max they are maxima, -inf without neighbours.
    """
    rows, dims = len(csr.indptr) - 1, z.shape[1]
    out = np.full((rows, dims), -np.inf if kind == "max" else 0.0, np.float32)
    args = (readonly(csr.indptr), readonly(csr.src), view_flat(z), dims, out.reshape(-1))
    if kind == "max":
        _max(*args)
    else:
        weight = csr.weight if kind == "importance" else None
        _sum(*args, readonly(np.empty(0, np.float32) if weight is None else weight))
    return out


def count_edges(csr: Csr) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return edges and weight sums of each destination, both (r,)."""
    counts = np.diff(csr.indptr)
    if csr.weight is None:
        return counts, counts.astype(np.float64)
    sums = np.zeros(len(counts))
    _sum_weights(readonly(csr.indptr), readonly(csr.weight), sums)
    return counts, sums


def finish_sums(
    kind: Aggregator,
    acc: npt.NDArray[np.float32],
    counts: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float64],
    own: Vectors | None = None,
) -> npt.NDArray[np.float32]:
    """Turn sums into the aggregate, (r, m), in place.

    Args:
        kind: the aggregator.
        acc: (r, m) from `sum_sources` over all sources.
        counts: (r,) edges.
        weights: (r,) sums of weights.
        own: (r, m) for `gcn`.
    """
    if kind == "sum":
        return acc
    if kind == "max":
        acc[counts == 0] = 0.0
        return acc
    if kind == "gcn":
        assert own is not None
        with np.errstate(over="ignore", invalid="ignore"):  # checked where the sums are used
            acc += own.astype(np.float32)
        counts = counts + 1
    divisor = (weights if kind == "importance" else counts).astype(np.float32)
    acc[divisor == 0] = 0.0
    acc /= np.where(divisor == 0, np.float32(1), divisor)[:, None]
    return acc


@compile_kernel
def _sum(indptr: Any, src: Any, x: Any, d: int, out: Any, weight: Any) -> None:
    part = np.empty(d, np.float32)
    for r in range(len(indptr) - 1):
        a, b = indptr[r], indptr[r + 1]
        if b - a <= SEGMENT:
            _sum_edges(src, x, d, out, r * d, weight, a, b)
            continue
        for begin in range(a, b, SEGMENT):
            part[:] = 0
            _sum_edges(src, x, d, part, 0, weight, begin, min(begin + SEGMENT, b))
            for j in range(d):
                out[r * d + j] += part[j]


@compile_kernel
def _sum_edges(src: Any, x: Any, d: int, out: Any, at: int, weight: Any, a: int, b: int) -> None:
    if len(weight):
        _sum_weighted_edges(src, x, d, out, at, weight, a, b)
        return
    column = 0
    while column + 128 <= d:
        sum_row_8(out, at + column, x, column, d, src, x, a, b)
        column += 128
    while column + 64 <= d:
        sum_row_4(out, at + column, x, column, d, src, x, a, b)
        column += 64
    while column + 16 <= d:
        sum_row_1(out, at + column, x, column, d, src, x, a, b)
        column += 16
    for j in range(column, d):
        for e in range(a, b):
            out[at + j] += as_single(x[np.int64(src[e]) * d + j])


@compile_kernel
def _sum_weighted_edges(src: Any, x: Any, d: int, out: Any, at: int, weight: Any, a: int, b: int) -> None:
    column = 0
    while column + 128 <= d:
        weighted_row_8(out, at + column, x, column, d, src, weight, a, b)
        column += 128
    while column + 64 <= d:
        weighted_row_4(out, at + column, x, column, d, src, weight, a, b)
        column += 64
    while column + 16 <= d:
        weighted_row_1(out, at + column, x, column, d, src, weight, a, b)
        column += 16
    for j in range(column, d):
        for e in range(a, b):
            out[at + j] = fma(weight[e], as_single(x[np.int64(src[e]) * d + j]), out[at + j])


@compile_kernel
def _max(indptr: Any, src: Any, x: Any, d: int, out: Any) -> None:
    for r in range(len(indptr) - 1):
        a, b, at, column = indptr[r], indptr[r + 1], r * d, 0
        while column + 128 <= d:
            max_row_8(out, at + column, x, column, d, src, x, a, b)
            column += 128
        while column + 64 <= d:
            max_row_4(out, at + column, x, column, d, src, x, a, b)
            column += 64
        while column + 16 <= d:
            max_row_1(out, at + column, x, column, d, src, x, a, b)
            column += 16
        for j in range(column, d):
            for e in range(a, b):
                value = as_single(x[np.int64(src[e]) * d + j])
                out[at + j] = value if value > out[at + j] else out[at + j]


@compile_kernel
def _sum_weights(indptr: Any, weight: Any, sums: Any) -> None:
    for r in range(len(indptr) - 1):
        for e in range(indptr[r], indptr[r + 1]):
            sums[r] += weight[e]


# ------------------------------------------------------------------------------------------- LSTM


def lstm(
    csr: Csr,
    gates: Vectors,
    recurrent_t: npt.NDArray[np.float32],
    own_hash: Hashes,
    source_hash: Hashes,
    *,
    most: int,
    seed: int,
) -> npt.NDArray[np.float32]:
    """Run an LSTM over each destination's neighbours, (r, h).

    The result is its last state.

    A hash of seed, destination and source orders the neighbours; the first `most` are read. With gates i,
    f, g, o in torch.nn.LSTM's order, c = sigma(f) c + sigma(i) tanh(g) and h = sigma(o) tanh(c).

    Args:
        csr: edges into the destinations; `src` are rows of gates and of source_hash.
        gates: (s, 4 h) W_ih x + b_ih + b_hh for each source.
        recurrent_t: (h, 4 h) W_hh transposed.
        own_hash: (r,) the destinations' raw ids, hashed.
        source_hash: (s,) the sources' raw ids, hashed.
        most: neighbours to read at most.
        seed: seed for the order.
    """
    hidden = recurrent_t.shape[0]
    out = np.zeros((len(csr.indptr) - 1, hidden), np.float32)
    hashes = (readonly(own_hash), readonly(source_hash))
    order = _order_for_lstm(readonly(csr.indptr), readonly(csr.src), *hashes, np.uint64(seed))
    _lstm(readonly(csr.indptr), order, most, view_flat(gates), readonly(recurrent_t), out)
    return out


def order_for_lstm(csr: Csr, own_hash: Hashes, source_hash: Hashes, most: int, seed: int) -> Csr:
    """Return the sources `lstm` reads, in its order.

    The result has no weights.

    Args:
        csr: edges into the destinations; `src` are rows of source_hash.
        own_hash: (r,) the destinations' raw ids, hashed.
        source_hash: (s,) the sources' raw ids, hashed.
        most: neighbours to read at most.
        seed: seed for the order.
    """
    hashes = (readonly(np.asarray(own_hash)), readonly(np.asarray(source_hash)))
    order = _order_for_lstm(readonly(csr.indptr), readonly(csr.src), *hashes, np.uint64(seed))
    counts = np.minimum(np.diff(csr.indptr), most)
    indptr = count_offsets(counts)
    places = np.arange(indptr[-1]) + np.repeat(csr.indptr[:-1] - indptr[:-1], counts)
    return Csr(indptr, np.append(order[places], np.zeros(PREFETCH_EDGES, np.uint32)), None)


@compile_kernel
def _order_for_lstm(indptr: Any, src: Any, own_hash: Any, source_hash: Any, seed: np.uint64) -> Any:
    """Sort each destination's sources into reading order, (e,)."""
    ordered = src.copy()
    for r in range(len(indptr) - 1):
        a, b = indptr[r], indptr[r + 1]
        keys, own = np.empty(b - a, np.uint64), stream(seed, own_hash[r])
        for e in range(a, b):
            keys[e - a] = stream(own, source_hash[src[e]])
        ordered[a:b] = src[a:b][np.argsort(keys, kind="mergesort")]
    return ordered


@compile_kernel
def _lstm(indptr: Any, order: Any, most: int, gates: Any, recurrent_t: Any, out: Any) -> None:
    hidden = recurrent_t.shape[0]
    cell, gate = np.empty(hidden, np.float32), np.empty(4 * hidden, np.float32)
    for r in range(len(indptr) - 1):
        cell[:] = 0
        for e in range(indptr[r], min(indptr[r + 1], indptr[r] + most)):
            _step_lstm(gates, np.int64(order[e]) * 4 * hidden, recurrent_t, out[r], cell, gate)


@compile_kernel
def _step_lstm(gates: Any, at: int, recurrent_t: Any, state: Any, cell: Any, gate: Any) -> None:
    hidden = len(state)
    for j in range(4 * hidden):
        gate[j] = as_single(gates[at + j])
    for k in range(hidden):
        for j in range(4 * hidden):
            gate[j] = fma(state[k], recurrent_t[k, j], gate[j])
    for j in range(hidden):
        let_in, keep = _sigma(gate[j]), _sigma(gate[hidden + j])
        cell[j] = keep * cell[j] + let_in * math.tanh(np.float64(gate[2 * hidden + j]))
        state[j] = _sigma(gate[3 * hidden + j]) * math.tanh(np.float64(cell[j]))


@compile_kernel
def _sigma(x: np.float32) -> float:
    return 1.0 / (1.0 + math.exp(-np.float64(x)))
