"""A reader of the files of Arrow, as a package would add it with an entry point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from recbench_spark.storage.objects import open_input


class IpcFiles:
    """Reads the batches of Arrow's files."""

    name = "Arrow"
    endings: tuple[str, ...] = (".arrow", ".feather")

    def look(self, path: str) -> tuple[pa.Schema, list[tuple[int, int]]]:
        """Return the columns, and numbers and rows of the batches."""
        with open_input(path) as stream, pa.ipc.open_file(stream) as file:
            batches = range(file.num_record_batches)
            return file.schema, [(number, file.get_batch(number).num_rows) for number in batches]

    def read(self, path: str, piece: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of a batch."""
        with open_input(path) as stream, pa.ipc.open_file(stream) as file:
            yield file.get_batch(piece).select(list(columns))
