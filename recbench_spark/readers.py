"""Readers of file formats that packages add: entry points of the group `recbench_spark.readers`.

The name of an entry point is a value of `dataset.reader`; files are told by the endings of their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

GROUP = __name__


class FileReader(Protocol):
    """Reads files of one format, whose columns have types. Tasks get it pickled.

    A path is one of this machine or a URI of object storage: `storage.objects.open_input` opens both.

    Attributes:
        name: the format in messages.
        endings: of names of files.
    """

    name: str
    endings: tuple[str, ...]

    def look(self, path: str) -> tuple[pa.Schema, Iterable[tuple[Any, int]]]:
        """Return the columns of a file, and for each of its pieces what `read` needs, and its rows."""

    def read(self, path: str, piece: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of a piece, in the order of its rows."""


def find_name(file: str) -> str | None:
    """Return the name of the reader whose files have such names; None without one."""
    return next((name for name, one in find_readers().items() if file.endswith(one.endings)), None)


@cache
def find_readers() -> Mapping[str, FileReader]:
    """Return the readers of all packages by name."""
    return {one.name: one.load()() for one in entry_points(group=GROUP)}
