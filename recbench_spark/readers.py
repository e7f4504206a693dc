"""Readers of file formats that packages add: entry points of the group `recbench_spark.readers`.

The name of an entry point is a value of `dataset.reader`; files are told by the endings of their names.
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
    """Name the package's reader for files with such names; None for Parquet, and where there is none."""
    if file.endswith(PARQUET):  # no package is loaded for it
        return None
    return next((name for name, one in find_readers().items() if file.endswith(tuple(one.endings))), None)


@cache
def find_readers() -> Mapping[str, FileReader]:
    """Return the readers of all packages by name. Raises ConfigError."""
    return {one.name: _load_reader(one) for one in entry_points(group=GROUP)}


def _load_reader(entry: EntryPoint) -> FileReader:
    try:
        return cast("FileReader", entry.load()())
    except Exception as error:
        package = entry.dist.name if entry.dist else entry.value
        message = f"reader {entry.name} of the package {package} cannot be loaded: {error}"
        raise ConfigError(message, f"mend {package}, or uninstall it") from error
