"""Find files that the log of a table names and its folder lacks, and remove them from the log.

A file of another size than the log says counts as lost, too. Nothing here needs Java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from recbench_spark.errors import StoreError
from recbench_spark.storage import delta_files
from recbench_spark.storage.delta_tables import hold_table, list_stored_files
from recbench_spark.storage.objects import measure_files, stat_visible
from recbench_spark.storage.uris import arrow_uri, is_object_storage

HINT = "run its night again, which makes lost rows anew, or restore the file from a copy"


class LostFile(NamedTuple):
    """A lost file of a table: its path or URI, and the value of its partition (empty: it has none)."""

    path: str
    owner: str


def list_lost_files(
    place: str, column: str = "", is_owner: Callable[[str], bool] | None = None
) -> list[LostFile]:
    """List the lost files of a table that exists, in the log's order.

    Args:
        place: folder or URI of the table.
        column: a partition column; empty: files of all partitions.
        is_owner: which values of that column count; None: all.

    Raises:
        DeltaError, StoreError: as `delta_tables.open_table`.
    """
    place = arrow_uri(place) if is_object_storage(place) else place
    with hold_table(place) as table:
        stored = list_stored_files(table, place)
    owners = {path: known[f"partition.{column}"] if column else "" for path, known in stored.items()}
    files = [path for path in stored if is_owner is None or is_owner(owners[path])]
    sizes = zip(files, _measure(place, files), strict=True)
    return [LostFile(path, owners[path]) for path, size in sizes if size != stored[path]["size_bytes"]]


def _measure(place: str, files: Sequence[str]) -> list[int | None]:
    """Return the bytes of each file; of object storage by one listing of the table."""
    if not files or not is_object_storage(place):
        return measure_files(files)
    listed = {uri: one.size for uri, one in stat_visible(place).items()}
    return [listed.get(file) for file in files]


def forget_files(place: str, files: Sequence[str]) -> None:
    """Remove lost files from the log of a table, in one version; its other rows stay.

    Raises:
        ConflictError, StoreError: as `delta_files.delete_rows`.
    """
    place = arrow_uri(place) if is_object_storage(place) else place
    delta_files.remove_files(place, frozenset(files))


def lost_error(name: str, files: Sequence[str]) -> StoreError:
    """Return the error that names a table and its first lost file."""
    more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
    return StoreError(f"table {name} lacks files that its log names: {files[0]}{more}", HINT)


@contextmanager
def explain_lost(place: str) -> Iterator[None]:
    """Name the table where a file of it is missing while it is read. Raises StoreError."""
    try:
        yield
    except FileNotFoundError:
        lost = [one.path for one in list_lost_files(place)]
        if not lost:
            raise
        raise lost_error(place.rstrip("/").rpartition("/")[2], lost) from None
