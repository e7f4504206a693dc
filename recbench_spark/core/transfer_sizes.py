"""Sizes of what goes to and from object storage: `storage` moves it, the cost model counts its bytes."""

PART_BYTES = 10 << 20
"""Bytes of a request that writes a part of a new object; an object has at most 10,000 parts in S3."""

PARTS_AT_ONCE = 4
"""Parts of a new object that are on their way while the next one is filled."""

CHUNK_BYTES = 4 << 20
"""Bytes of an object that are fetched together."""

FETCHES_AT_ONCE = 8
"""Objects of an array that a process fetches at once."""
