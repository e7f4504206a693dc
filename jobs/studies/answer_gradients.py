"""Compute a memory network's gradients over word bags, compiled.

The equations are those in `memory.MemoryNetwork`; the loss is the answers' summed cross-entropy. Stories
are so small that a torch step spends its time between operations: this code takes a tenth of it. Tests
compare it with torch's gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.core.compiling import compile_kernel

Array = npt.NDArray[Any]


class MemoryWeights(NamedTuple):
    """A network's weights as `MemoryNetwork` names them, or their gradients.

    With adjacent tying, `queries` and `answers` are `table`, and `map` has no rows.
    """

    table: Array
    times: Array
    queries: Array
    answers: Array
    map: Array


class WeightedWords(NamedTuple):
    """The words of all entries, ready for position encoding.

    Word w in an entry has the weight even - share slope, where share is k/d in dimension k from 1.

    Attributes:
        starts: (entries + 1,) place where an entry's words begin.
        word: (w,) tokens.
        even: (w,) first part of the weights.
        slope: (w,) second part.
        share: (T d,) k/d for each column of a table.
    """

    starts: Array
    word: Array
    even: Array
    slope: Array
    share: Array


class HopPlaces(NamedTuple):
    """Maps hops and answers to their first columns in tables.

    Attributes:
        hops: (hops, 2) column of input and output vectors.
        answer: column of answers.
        linear: True leaves out the softmax of attention.
    """

    hops: Array
    answer: int
    linear: bool


class QuestionPass(NamedTuple):
    """Work arrays for one question's forward and backward pass.

    Attributes:
        rows: (n, T d) vectors of its entries plus those of their places.
        by_row: (n, T d) their gradients.
        states: (hops + 1, d).
        attention: (hops, n).
        change: (d,) gradient of the state after a hop.
        before: (d,) gradient of the state before it.
    """

    rows: Array
    by_row: Array
    states: Array
    attention: Array
    change: Array
    before: Array


def list_words(entries: Sequence[Sequence[int]], dims: int, columns: int, dtype: Any) -> WeightedWords:
    """Return all entries' words with position encoding; see `memory.WordBags`."""
    starts = np.concatenate([[0], np.cumsum([len(words) for words in entries])])
    word = np.array([token for words in entries for token in words], np.int64)
    place = np.concatenate([np.arange(1, len(words) + 1) / max(len(words), 1) for words in entries])
    share = np.tile(np.arange(1, dims + 1) / dims, columns // dims).astype(dtype)
    return WeightedWords(starts, word, (1 - place).astype(dtype), (1 - 2 * place).astype(dtype), share)


def _sum_products(x: Array, table: Array, row: int, start: int) -> float:
    total: float = x[0] * table[row, start]
    for k in range(1, len(x)):
        total += x[k] * table[row, start + k]
    return total


_dot = compile_kernel(_sum_products, fastmath={"reassoc", "contract"})


@compile_kernel
def encode_words(table: Array, words: WeightedWords) -> Array:
    """Return all entries' vectors, (entries, columns)."""
    vectors = np.zeros((len(words.starts) - 1, table.shape[1]), table.dtype)
    for entry in range(len(vectors)):
        for w in range(words.starts[entry], words.starts[entry + 1]):
            row, even, slope = table[words.word[w]], words.even[w], words.slope[w]
            for k in range(table.shape[1]):
                vectors[entry, k] += (even - words.share[k] * slope) * row[k]
    return vectors


@compile_kernel
def _return_words(gradient: Array, words: WeightedWords, out: Array) -> None:
    """Add a table's gradient, given its entries' gradients."""
    for entry in range(len(gradient)):
        for w in range(words.starts[entry], words.starts[entry + 1]):
            row, even, slope = out[words.word[w]], words.even[w], words.slope[w]
            for k in range(gradient.shape[1]):
                row[k] += (even - words.share[k] * slope) * gradient[entry, k]


@compile_kernel
def _weigh(at: QuestionPass, row: Array, hop: int, start: int, linear: bool) -> None:
    """Set each entry's attention in a hop; 0 for empty entries."""
    state, weight, top, total = at.states[hop], at.attention[hop], -np.inf, 0.0
    weight[:] = 0
    for i in range(len(row)):
        if row[i]:
            weight[i] = _dot(state, at.rows, i, start)
            top = max(top, weight[i])
    if linear:
        return
    for i in range(len(row)):
        if row[i]:
            weight[i] = np.exp(weight[i] - top)
            total += weight[i]
    for i in range(len(row)):
        if row[i]:
            weight[i] /= total


@compile_kernel
def _read(at: QuestionPass, weights: MemoryWeights, places: HopPlaces, row: Array) -> None:
    """Set the state after each hop, and each hop's attention.

    The first state is given.
    """
    for hop in range(len(places.hops)):
        start, state, new = places.hops[hop, 1], at.states[hop], at.states[hop + 1]
        _weigh(at, row, hop, places.hops[hop, 0], places.linear)
        for k in range(len(new)):
            new[k] = _dot(state, weights.map, k, 0) if len(weights.map) else state[k]
        for i in range(len(row)):
            if row[i]:
                weight = at.attention[hop, i]
                for k in range(len(new)):
                    new[k] += weight * at.rows[i, start + k]


@compile_kernel
def _return_map(at: QuestionPass, weights: MemoryWeights, hop: int, by_map: Array) -> None:
    """Set the gradient of the state before a hop, map only.

    This gradient is the part which goes around the memory.
    """
    if not len(weights.map):
        at.before[:] = at.change
        return
    at.before[:] = 0
    for k in range(len(at.change)):
        for n in range(len(at.change)):
            at.before[n] += weights.map[k, n] * at.change[k]
            by_map[k, n] += at.change[k] * at.states[hop, n]


@compile_kernel
def _return_hop(at: QuestionPass, places: HopPlaces, row: Array, hop: int) -> None:
    """Add one hop's gradients: the memory's and the prior state's."""
    d, (start, end), mean, state = len(at.change), places.hops[hop], 0.0, at.states[hop]
    by_weight = np.zeros(len(row), at.change.dtype)
    for i in range(len(row)):
        if row[i]:
            weight = at.attention[hop, i]
            by_weight[i] = _dot(at.change, at.rows, i, end)
            mean += weight * by_weight[i]
            for k in range(d):
                at.by_row[i, end + k] += weight * at.change[k]
    for i in range(len(row)):
        if row[i]:
            if not places.linear:
                by_weight[i] = at.attention[hop, i] * (by_weight[i] - mean)
            slope = by_weight[i]  # has the array's type, as all numbers in the loop
            for k in range(d):
                at.before[k] += slope * at.rows[i, start + k]
                at.by_row[i, start + k] += slope * state[k]


@compile_kernel
def _answer(table: Array, start: int, state: Array, answer: int, change: Array, by_table: Array) -> float:
    """Add the answers' gradient, set the state's; return the loss."""
    score = np.empty(len(table), state.dtype)
    for v in range(len(table)):
        score[v] = _dot(state, table, v, start)
    top = score.max()
    total = np.exp(score - top).sum()
    loss = np.log(total) + top - score[answer]
    change[:] = 0
    for v in range(len(table)):
        score[v] = np.exp(score[v] - top) / total - (v == answer)
        slope = score[v]
        for k in range(len(state)):
            change[k] += slope * table[v, start + k]
            by_table[v, start + k] += slope * state[k]
    return float(loss)


@compile_kernel
def _gather(at: QuestionPass, vectors: Array, times: Array, row: Array) -> None:
    """Gather a question's entry vectors and clear their gradients."""
    for i in range(len(row)):
        if row[i]:
            for k in range(vectors.shape[1]):
                at.rows[i, k] = vectors[row[i], k] + times[i, k]
                at.by_row[i, k] = 0


@compile_kernel
def _scatter(at: QuestionPass, row: Array, by_vector: Array, by_time: Array) -> None:
    """Add a question's entry gradients to those of vectors and places."""
    for i in range(len(row)):
        if row[i]:
            for k in range(by_vector.shape[1]):
                by_vector[row[i], k] += at.by_row[i, k]
                by_time[i, k] += at.by_row[i, k]


@compile_kernel
def add_gradients(
    weights: MemoryWeights, words: WeightedWords, places: HopPlaces, memory: Array, query: Array,
    answer: Array, out: MemoryWeights,
) -> float:  # fmt: skip
    """Add a minibatch's gradients.

    Args:
        weights: weights of the network.
        words: words of all entries.
        places: first columns in tables.
        memory: (b, n) entries, the newest first.
        query: (b,) entries.
        answer: (b,) tokens.
        out: gradients, added to.

    Returns:
        Sum of the loss.
    """
    hops, d, own = len(places.hops), weights.answers.shape[1] - places.answer, len(weights.map) > 0
    vectors = encode_words(weights.table, words)
    by_entry = encode_words(weights.queries, words) if own else vectors
    by_vector = np.zeros_like(vectors)
    by_query = np.zeros_like(by_entry) if own else by_vector
    n, kind = memory.shape[1], vectors.dtype
    rows, by_row = np.empty((n, vectors.shape[1]), kind), np.empty((n, vectors.shape[1]), kind)
    states, attention = np.empty((hops + 1, d), kind), np.empty((hops, n), kind)
    at = QuestionPass(rows, by_row, states, attention, np.empty(d, kind), np.empty(d, kind))
    loss = 0.0
    for b in range(len(query)):
        states[0] = by_entry[query[b], :d]
        _gather(at, vectors, weights.times, memory[b])
        _read(at, weights, places, memory[b])
        loss += _answer(weights.answers, places.answer, states[hops], answer[b], at.change, out.answers)
        for hop in range(hops - 1, -1, -1):
            _return_map(at, weights, hop, out.map)
            _return_hop(at, places, memory[b], hop)
            at.change[:] = at.before
        _scatter(at, memory[b], by_vector, out.times)
        for k in range(d):
            by_query[query[b], k] += at.change[k]
    _return_words(by_vector, words, out.table)
    if own:
        _return_words(by_query, words, out.queries)
    return loss
