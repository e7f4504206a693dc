"""A warehouse read and written without Java.

It lies in a local folder or an object storage. It has the same tables as `store.Store`, with their
comments, constraints and layout. Both may write at once, since Delta's appends do not conflict. It is meant
for small results: memory holds the rows to append.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pyarrow.dataset import Dataset

from recbench_spark.errors import FallbackToSpark
from recbench_spark.schemas import TABLES, Table
from recbench_spark.storage import table_folders
from recbench_spark.storage.delta_files import CHECKED_VERSION
from recbench_spark.storage.delta_tables import hold_table
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.object_access import map_together
from recbench_spark.storage.objects import require_conditional_writes, require_storage
from recbench_spark.storage.table_sql import check_version
from recbench_spark.storage.uris import arrow_uri, is_object_storage, trim_uri

if TYPE_CHECKING:
    from recbench_spark.storage.store import Store


def is_local_folder(root: str) -> bool:
    """Check whether a warehouse is a folder of this machine."""
    return not (table_folders.is_catalog_schema(root) or "://" in root)


def needs_no_java(root: str) -> bool:
    """Check whether a warehouse works without Java.

    Folders and object storage do.
    """
    return is_local_folder(root) or is_object_storage(root)


def may_have_files(root: str) -> bool:
    """Check whether tasks may write files into a warehouse.

    Only a session knows this for Spark's own catalog.
    """
    return needs_no_java(root) or table_folders.may_have_folder(root)


def is_made(root: str) -> bool:
    """Check whether a warehouse without Java exists.

    An object storage always does.
    """
    return is_object_storage(root) or (is_local_folder(root) and Path(root).is_dir())


def require_session(store: FileTables, why: str) -> Store:
    """Return a warehouse with a session of Spark.

    Args:
        store: the warehouse.
        why: the work to do by a session, in words.

    Raises:
        FallbackToSpark: the warehouse has no session.
    """
    if store.spark is None:
        raise FallbackToSpark(why)
    return cast("Store", store)


class ArrowStore(FileTables):
    """A warehouse without Spark, in one folder or URI.

    Attributes:
        root: path of the folder, or the URI.
        workers: processes for tasks.
    """

    wait = 0.1  # an append takes some milliseconds

    def __init__(
        self, root: str, *, read_only: bool = False, any_version: bool = False, workers: int = 1
    ) -> None:
        """Open a warehouse; `any_version`: accept another schema.

        Raises:
            StoreError: the folder is not writable, or has another schema version; the object storage does
                not answer, refuses, or has no conditional write.
        """
        is_object = is_object_storage(root)
        self.root = arrow_uri(trim_uri(root)) if is_object else str(Path(root).resolve())
        self.workers = workers
        self._existing: set[str] = set()
        if self.folder is None:
            require_storage(self.root)
        if not read_only:
            table_folders.check_writable(self.folder) if self.folder else require_conditional_writes(
                self.root
            )
        if not any_version and self.exists("runs"):
            with hold_table(self.location("runs"), latest=False) as table:
                check_version(self.root, table.metadata().configuration)

    # ------------------------------------------------------------------------------- reading

    def open_datasets(self, names: Iterable[str]) -> dict[str, Dataset | None]:
        """Open tables by name, side by side; None: missing.

        A table opens as in `dataset`.
        """

        def open_existing(name: str) -> Dataset | None:
            return self.dataset(TABLES[name]) if self.exists(name) else None

        listed = list(names)
        return dict(zip(listed, map_together(self.root, open_existing, listed), strict=True))

    # ------------------------------------------------------------------------------- writing

    def check_appendable(self, tables: Iterable[Table]) -> None:
        """Check, before any work, that existing tables take rows.

        Raises:
            FallbackToSpark: a table requires a writer's feature missing in `deltalake`.
        """
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        for name in (table.name for table in tables if self.exists(table.name)):
            try:
                with hold_table(self.location(name), latest=False) as opened:
                    protocol = opened.protocol()
            except DeltaError as error:
                raise FallbackToSpark(f"table {name}: {str(error).splitlines()[0]}") from None
            if protocol.min_writer_version > CHECKED_VERSION:
                requirement = ", ".join(protocol.writer_features or []) or protocol.min_writer_version
                raise FallbackToSpark(f"table {name} of the warehouse requires {requirement}")
