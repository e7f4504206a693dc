"""Hashes of texts: against published values of XXH64, and a plain reading of its specification."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recbench_spark.core import hashing
from recbench_spark.splits.labels import draw_hashes

PRIMES = (
    11400714785074694791,
    14029467366897019727,
    1609587929392839161,
    9650029242287828579,
    2870177450012600261,
)


def xxh64(text: bytes, seed: int) -> int:
    """Plain Python, whole numbers modulo 2^64."""
    p1, p2, p3, p4, p5 = PRIMES

    def cut(x: int) -> int:
        return x % 2**64

    def rotate(x: int, bits: int) -> int:
        return cut(x << bits) | cut(x) >> (64 - bits)

    def mix(lane: int, word: int) -> int:
        return cut(rotate(cut(lane + word * p2), 31) * p1)

    rest, state = text, cut(seed + p5)
    if len(text) >= 32:
        lanes = [cut(seed + p1 + p2), cut(seed + p2), seed, cut(seed - p1)]
        while len(rest) >= 32:
            lanes = [
                mix(lane, word) for lane, word in zip(lanes, struct.unpack("<4Q", rest[:32]), strict=True)
            ]
            rest = rest[32:]
        state = cut(sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)))
        for lane in lanes:
            state = cut((state ^ mix(0, lane)) * p1 + p4)
    state = cut(state + len(text))
    while len(rest) >= 8:
        state = cut(rotate(state ^ mix(0, struct.unpack("<Q", rest[:8])[0]), 27) * p1 + p4)
        rest = rest[8:]
    if len(rest) >= 4:
        state = cut(rotate(state ^ cut(struct.unpack("<I", rest[:4])[0] * p1), 23) * p2 + p3)
        rest = rest[4:]
    for byte in rest:
        state = cut(rotate(state ^ cut(byte * p5), 11) * p1)
    state = cut((state ^ state >> 33) * p2)
    state = cut((state ^ state >> 29) * p3)
    return state ^ state >> 32


@pytest.mark.parametrize(
    ("text", "seed", "wanted"),
    [(b"", 0, 0xEF46DB3751D8E999), (b"a", 0, 0xD24EC4F1A98C6E5B), (b"abc", 0, 0x44BC2CF5AD770999)],
)
def test_published_values(text: bytes, seed: int, wanted: int) -> None:
    assert xxh64(text, seed) == wanted
    assert hashing.hash_bytes(text, np.array([seed], np.uint64)).tolist() == [wanted]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.text(max_size=80), st.integers(0, 2**64 - 1)), min_size=1, max_size=5))
def test_every_length_and_every_state(rows: list[tuple[str, int]]) -> None:
    column = pa.array([text for text, _ in rows])
    states = np.array([state for _, state in rows], np.uint64)
    table = pa.table({"user_id": column, "item_id": column.dictionary_encode()})
    table = table.set_column(0, "user_id", column.dictionary_encode())
    wanted = [xxh64(text.encode(), state) for text, state in rows]
    for n, (text, _) in enumerate(rows):
        assert hashing.hash_bytes(text.encode(), states[n : n + 1]).tolist() == [wanted[n]]
    users = [xxh64(struct.pack("<q", -7), xxh64(text.encode(), 42)) for text, _ in rows]
    assert draw_hashes(table, -7, "user_id").tolist() == users


def test_places_lie_below_one() -> None:
    assert hashing.place_hashes(np.array([0, 2**64 - 1, 2**63], np.uint64)).tolist() == [
        0.0,
        1 - 2.0**-53,
        0.5,
    ]
