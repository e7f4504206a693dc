"""Spark's `xxhash64` on Arrow texts, separate from `hashing`.

Kernels on a GPU do not need Arrow.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recbench_spark.core.hashing import Hashes, Texts, hash_numbers, hash_texts, start


def hash_ids(ids: pa.Array | pa.ChunkedArray, hashes_r: Hashes | None = None) -> Hashes:
    """Return each text's hash, (r,).

    Args:
        ids: texts or bytes, no NULL.
        hashes_r: (r,) hash of the columns before it; None: there are none.
    """
    before = start(len(ids)) if hashes_r is None else hashes_r
    return hash_texts(flatten_texts(ids), np.arange(len(ids), dtype=np.int32), before)


def hash_encoded(ids: pa.DictionaryArray, hashes_r: Hashes | None = None) -> Hashes:
    """Return the same hashes for dictionary-encoded texts.

    In the first column each distinct text is hashed once.
    """
    which_r = ids.indices.to_numpy()
    if hashes_r is None:
        hashes: Hashes = hash_ids(ids.dictionary)[which_r]
        return hashes
    return hash_texts(flatten_texts(ids.dictionary), which_r, hashes_r)


def hash_rows(rows: pa.Table, seed: int) -> Hashes:
    """Return Spark's `xxhash64` of all columns and a seed, (r,).

    A NULL changes no hash.

    Raises:
        TypeError: a column holds neither texts nor numbers of at most 64 bits.
    """
    hashes_r = start(len(rows))
    for name in rows.column_names:
        column = rows.column(name).combine_chunks()
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        present = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        hashes_r[present] = _hash_column(column.drop_null(), hashes_r[present])
    return hash_numbers(np.full(len(rows), seed, np.int64), hashes_r)


def _hash_column(column: pa.Array, hashes_r: Hashes) -> Hashes:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return hash_ids(column, hashes_r)
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise TypeError(f"values of type {kind}")
    small = pa.types.is_boolean(kind) or kind.bit_width < 32
    return hash_numbers((column.cast(pa.int32()) if small else column).to_numpy(), hashes_r)


def flatten_texts(ids: pa.Array | pa.ChunkedArray) -> Texts:
    """Concatenate texts or bytes into one buffer with offsets."""
    flat = ids.cast(ids.type.value_type) if pa.types.is_dictionary(ids.type) else ids
    large = (flat.combine_chunks() if isinstance(flat, pa.ChunkedArray) else flat).cast(pa.large_binary())
    _, starts, content = large.buffers()
    if not len(large) or content is None:
        return Texts(np.zeros(len(large) + 1, np.int64), np.zeros(1, np.uint8))
    return Texts(
        np.frombuffer(starts, np.int64, len(large) + 1, 8 * large.offset), np.frombuffer(content, np.uint8)
    )
