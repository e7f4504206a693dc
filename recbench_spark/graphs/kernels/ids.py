"""Hash node ids, and number nodes by hash order.

The hash of a whole number is a bijection on 64 bits: two ids never share one, and the id can be computed
from it. Texts are hashed by xxhash64. A node's dense id is its place in the order of hashes. So raw ids
need no sort, and a range of hashes is a range of dense ids. This order depends only on raw ids and seed:
adding in it gives the same bits however the graph is divided into blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.core.hashing import GAMMA, Hashes, mix, start

NOT_THERE = np.uint32(2**32 - 1)
"""Dense id for an id the graph lacks.

A graph has fewer nodes than this.
"""

MOST_NODES = int(NOT_THERE)

PER_ENTRY = 4
"""Average number of nodes for each index entry."""

INVERSE_1, INVERSE_2 = np.uint64(0x96DE1B173F119089), np.uint64(0x319642B2D24D8EC3)
"""Inverses modulo 2^64 of splitmix64's two factors."""


def hash_node_ids(ids: pa.Array | pa.ChunkedArray, seed: int) -> Hashes:
    """Hash each id, (r,).

    Args:
        ids: whole numbers or texts, without NULL.
        seed: seed for the hashes; another one orders nodes differently.
    """
    if pa.types.is_integer(ids.type):
        return hash_numbers(ids.cast(pa.int64()).to_numpy(), seed)
    array = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    hash_d = hash_texts(encoded.dictionary.cast(pa.large_binary()), seed)
    hash_r: Hashes = hash_d[encoded.indices.to_numpy()]
    return hash_r


def hash_texts(words: pa.Array, seed: int) -> Hashes:
    """Hash each text by xxhash64, (r,).

    Texts are given as large_binary. The seed's hash starts each of them.
    """
    begin = hash_numbers(np.array([seed], np.int64), 0)[0]
    return hash_ids(words, start(len(words)) ^ begin)


def hash_numbers(id_r: npt.NDArray[np.int64], seed: int) -> Hashes:
    """Hash whole numbers by splitmix64's output function, (r,).

    The function is a bijection for each seed.
    """
    return _hash_numbers(readonly(id_r).view(np.uint64), np.uint64(seed))


def unhash_numbers(hash_r: Hashes, seed: int) -> npt.NDArray[np.int64]:
    """Return the whole numbers with these hashes, (r,).

    This function inverts `hash_numbers`.
    """
    id_r: npt.NDArray[np.int64] = _unhash_numbers(readonly(hash_r), np.uint64(seed)).view(np.int64)
    return id_r


@compile_kernel
def _hash_numbers(id_r: Hashes, seed: np.uint64) -> Hashes:
    hash_r = np.empty(len(id_r), np.uint64)
    for r in range(len(id_r)):
        hash_r[r] = mix(id_r[r] + (seed + np.uint64(1)) * GAMMA)
    return hash_r


@compile_kernel
def _unhash_numbers(hash_r: Hashes, seed: np.uint64) -> Hashes:
    id_r = np.empty(len(hash_r), np.uint64)
    for r in range(len(hash_r)):
        x = _undo_shift(hash_r[r], 31) * INVERSE_2
        x = _undo_shift(x, 27) * INVERSE_1
        id_r[r] = _undo_shift(x, 30) - (seed + np.uint64(1)) * GAMMA
    return id_r


@compile_kernel
def _undo_shift(x: np.uint64, bits: int) -> np.uint64:
    """Undo `y ^ (y >> bits)`, for bits above 21."""
    return x ^ (x >> np.uint64(bits)) ^ (x >> np.uint64(2 * bits))


def sort_distinct(hash_r: Hashes) -> Hashes:
    """Return the distinct hashes, ascending.

    numpy's own `unique` uses a hash table and takes ten times as long.
    """
    ordered = np.sort(hash_r)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


MOST_BITS = 1 << 31
"""Largest range of whole numbers a task holds as bits: 256 MB."""


class NumberSet:
    """Distinct whole numbers, collected as bits.

    The set accepts numbers while the bits need no more bytes than the numbers themselves would.
    """

    def __init__(self) -> None:
        self.low, self.met = 0, 0
        self.bits = np.zeros(0, np.uint8)

    def add(self, id_r: npt.NDArray[np.int64]) -> bool:
        """Add some numbers, unless they are too far apart.

        Then nothing is added and the result is False.
        """
        if not len(id_r):
            return True
        least, most = int(id_r.min()) & ~7, int(id_r.max())
        low = min(self.low, least) if self.met else least
        end = max(most + 1, self.low + 8 * len(self.bits)) if self.met else most + 1
        if end - low > min(MOST_BITS, 64 * (self.met + len(id_r)) + (1 << 20)):
            return False
        self._grow(low, end)
        self.met += len(id_r)
        _mark(readonly(id_r), self.low, self.bits)
        return True

    def _grow(self, low: int, end: int) -> None:
        size, size_before = -(-(end - low) // 8), len(self.bits)
        if low == self.low and size <= size_before:
            return
        before = (self.low - low) // 8 if size_before else 0
        bits = np.zeros(max(size, min(2 * size_before, MOST_BITS // 8)), np.uint8)
        bits[before : before + size_before] = self.bits
        self.low, self.bits = low, bits

    def numbers(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the collected numbers, ascending, in batches.

        A batch has at most two million numbers.
        """
        for at in range(0, len(self.bits), 1 << 18):
            offsets = np.flatnonzero(np.unpackbits(self.bits[at : at + (1 << 18)], bitorder="little"))
            if len(offsets):
                yield offsets + (self.low + 8 * at)


@compile_kernel
def _mark(id_r: Any, low: int, bits: Any) -> None:
    for r in range(len(id_r)):
        at = id_r[r] - low
        bits[at >> 3] |= np.uint8(1 << (at & 7))


def look_up_numbers(
    id_r: npt.NDArray[np.int64], low: int, table: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Look up the dense id of each whole number, (r,).

    The id is NOT_THERE where the graph has no such node.

    Args:
        id_r: numbers to look up.
        low: least number in the table.
        table: by number, dense id plus 1; 0 where there is no node.
    """
    dense_r = np.empty(len(id_r), np.uint32)
    _look_up_numbers(readonly(id_r), np.int64(low), readonly(table), dense_r)
    return dense_r


@compile_kernel
def _look_up_numbers(id_r: Any, low: Any, table: Any, dense_r: Any) -> None:
    for r in range(len(id_r)):
        at = np.uint64(id_r[r]) - np.uint64(low)
        dense_r[r] = table[at] - np.uint32(1) if at < np.uint64(len(table)) else NOT_THERE


def assign_blocks(hash_r: Hashes, blocks: int) -> npt.NDArray[np.int32]:
    """Assign each hash to its block, (r,).

    Blocks are equal ranges of hashes, so they follow dense ids.
    """
    return _assign_blocks(readonly(hash_r), blocks)


@compile_kernel
def _assign_blocks(hash_r: Hashes, blocks: int) -> npt.NDArray[np.int32]:
    block_r = np.empty(len(hash_r), np.int32)
    for r in range(len(hash_r)):
        block_r[r] = ((hash_r[r] >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)
    return block_r


def build_index(sorted_n: Hashes) -> npt.NDArray[np.int64]:
    """Index sorted hashes by their leading bits, (2^bits + 1,).

    An entry is the first place of the hashes with this prefix, which few hashes share.

    Args:
        sorted_n: all hashes, ascending.
    """
    bits = max(1, int(len(sorted_n) // PER_ENTRY).bit_length())
    firsts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
    return np.append(np.searchsorted(sorted_n, firsts), len(sorted_n)).astype(np.int64)


def look_up_hashes(
    hash_r: Hashes, sorted_n: Hashes, index: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """Look up the dense id of each hash, (r,).

    The id is NOT_THERE where the graph has no such node.

    Args:
        hash_r: hashes to look up.
        sorted_n: hashes of all nodes (on a side), ascending.
        index: from `build_index`.
    """
    dense_r = np.empty(len(hash_r), np.uint32)
    bits = (len(index) - 1).bit_length() - 1
    _look_up_hashes(readonly(hash_r), readonly(sorted_n), readonly(index), 64 - bits, dense_r)
    return dense_r


@compile_kernel
def _look_up_hashes(hash_r: Hashes, sorted_n: Hashes, index: Any, shift: int, dense_r: Any) -> None:
    for r in range(len(hash_r)):
        prefix = hash_r[r] >> np.uint64(shift)
        at, end = index[prefix], index[prefix + np.uint64(1)]
        while at < end and sorted_n[at] < hash_r[r]:
            at += 1
        dense_r[r] = at if at < end and sorted_n[at] == hash_r[r] else NOT_THERE
