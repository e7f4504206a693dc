"""Spark's `xxhash64` of Arrow texts; separate from `hashing`, since kernels on a GPU do not need Arrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recbench_spark.kernels.hashing import Hashes, Texts, hash_texts, start


def hash_ids(ids: pa.Array | pa.ChunkedArray, hashes_r: Hashes | None = None) -> Hashes:
    """Return (r,) the hash of each text.

    Args:
        ids: texts or bytes, no NULL.
        hashes_r: (r,) hash of the columns before it; None: there are none.
    """
    before = start(len(ids)) if hashes_r is None else hashes_r
    return hash_texts(flatten_texts(ids), np.arange(len(ids), dtype=np.int32), before)


def hash_encoded(ids: pa.DictionaryArray, hashes_r: Hashes | None = None) -> Hashes:
    """Return the same hashes of dictionary-encoded texts.

    Of the first column each distinct text is hashed once.
    """
    which_r = ids.indices.to_numpy()
    if hashes_r is None:
        hashes: Hashes = hash_ids(ids.dictionary)[which_r]
        return hashes
    return hash_texts(flatten_texts(ids.dictionary), which_r, hashes_r)


def flatten_texts(ids: pa.Array | pa.ChunkedArray) -> Texts:
    """Concatenate texts, or bytes, into one buffer with offsets."""
    flat = ids.cast(ids.type.value_type) if pa.types.is_dictionary(ids.type) else ids
    large = (flat.combine_chunks() if isinstance(flat, pa.ChunkedArray) else flat).cast(pa.large_binary())
    _, starts, content = large.buffers()
    if not len(large) or content is None:
        return Texts(np.zeros(len(large) + 1, np.int64), np.zeros(1, np.uint8))
    return Texts(
        np.frombuffer(starts, np.int64, len(large) + 1, 8 * large.offset), np.frombuffer(content, np.uint8)
    )
