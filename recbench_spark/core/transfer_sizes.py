"""Sizes of transfers to and from object storage.

`storage` moves the bytes, the cost model counts them.
"""

PART_BYTES = 10 << 20
"""Bytes in one part of a new object; in S3 an object has at most 10,000 parts."""

PARTS_AT_ONCE = 4
"""Parts of a new object on their way while the next one is filled."""

CHUNK_BYTES = 4 << 20
"""Bytes of an object fetched together."""

FETCHES_AT_ONCE = 8
"""Objects of an array fetched at once by a process."""
