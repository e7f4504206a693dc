"""Spark's `xxhash64` of Arrow texts; apart from `hashing`, since kernels on a GPU do without Arrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recbench_spark.kernels.hashing import Hashes, Texts, hash_texts, start


def hash_ids(ids: pa.Array | pa.ChunkedArray, hashes_r: Hashes | None = None) -> Hashes:
    """(r,) hash of each text.

    Args:
        ids: texts or bytes, no NULL.
        hashes_r: (r,) hash of the columns before it; None: it is the first.
    """
    before = start(len(ids)) if hashes_r is None else hashes_r
    return hash_texts(flatten_texts(ids), np.arange(len(ids), dtype=np.int32), before)


def hash_encoded(ids: pa.DictionaryArray, hashes_r: Hashes | None = None) -> Hashes:
    """The same of texts in a dictionary; of the first column each distinct text is hashed once."""
    which_r = ids.indices.to_numpy()
    if hashes_r is None:
        found: Hashes = hash_ids(ids.dictionary)[which_r]
        return found
    return hash_texts(flatten_texts(ids.dictionary), which_r, hashes_r)


def flatten_texts(ids: pa.Array | pa.ChunkedArray) -> Texts:
    """Texts, or bytes, end to end."""
    flat = ids.cast(ids.type.value_type) if pa.types.is_dictionary(ids.type) else ids
    large = (flat.combine_chunks() if isinstance(flat, pa.ChunkedArray) else flat).cast(pa.large_binary())
    _, starts, content = large.buffers()
    if not len(large) or content is None:
        return Texts(np.zeros(len(large) + 1, np.int64), np.zeros(1, np.uint8))
    return Texts(
        np.frombuffer(starts, np.int64, len(large) + 1, 8 * large.offset), np.frombuffer(content, np.uint8)
    )
