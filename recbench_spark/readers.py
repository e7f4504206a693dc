"""Readers of file formats, added by other packages.

They are entry points in the group `recbench_spark.readers`. An entry point's name is a value for
`dataset.reader`; the endings of file names choose a reader, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol, cast

from recbench_spark.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

GROUP = __name__

PARQUET = ".parquet"


class FileReader(Protocol):
    """Reader of one file format with typed columns.

    Tasks get it pickled. A path is local or a URI of object storage: `storage.objects.open_input` opens
    both.

    Attributes:
        name: the format in messages.
        endings: endings of file names.
    """

    name: str
    endings: tuple[str, ...]

    def look(self, path: str) -> tuple[pa.Schema, Iterable[tuple[Any, int]]]:
        """Return a file's columns, and its pieces with their rows.

        A piece is whatever `read` needs.
        """

    def read(self, path: str, piece: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of a piece, in order of rows."""


def find_name(file: str) -> str | None:
    """Name the package's reader for a file, by its ending.

    None: the file is Parquet, or there is no reader.
    """
    if file.endswith(PARQUET):  # Parquet needs no package
        return None
    return next((name for name, one in find_readers().items() if file.endswith(tuple(one.endings))), None)


@cache
def find_readers() -> Mapping[str, FileReader]:
    """Return all packages' readers by name. Raises ConfigError."""
    return {one.name: _load_reader(one) for one in entry_points(group=GROUP)}


def _load_reader(entry: EntryPoint) -> FileReader:
    try:
        return cast("FileReader", entry.load()())
    except Exception as error:
        package = entry.dist.name if entry.dist else entry.value
        message = f"reader {entry.name} of the package {package} cannot be loaded: {error}"
        raise ConfigError(message, f"mend {package}, or uninstall it") from error
