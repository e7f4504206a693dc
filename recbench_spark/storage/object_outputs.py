"""New objects of an object storage, written in parts: they appear whole or not at all."""

from __future__ import annotations

from typing import Any

from recbench_spark.storage.object_access import choose_library, open_bucket
from recbench_spark.storage.object_errors import explain_storage
from recbench_spark.storage.uris import split_bucket
from recbench_spark.transfer_sizes import PART_BYTES, PARTS_AT_ONCE


class ObjectOutput:
    """ObjectOutput is a new object, written by obstore or the client of HDFS.

    Arrow's streams publish what they have when they are closed, also after an error. It holds
    PARTS_AT_ONCE parts. Only errors of the storage become a StoreError here.
    """

    closed = False

    def __init__(self, place: str) -> None:
        bucket = split_bucket(place)
        self.place = place
        with explain_storage(place):
            store = open_bucket(bucket.root)
            self.writer = choose_library(store).open_writer(
                store, bucket.key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )

    def __enter__(self) -> ObjectOutput:
        """Return this output."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Publish the object, or drop its parts after an error."""
        if kind is not None:
            self.writer.__exit__(kind, *error)
            return
        with explain_storage(self.place):
            self.writer.close()

    def write(self, content: Any) -> int:
        """Write bytes, and return their number."""
        with explain_storage(self.place):
            count: int = self.writer.write(memoryview(content).cast("B"))
        return count
