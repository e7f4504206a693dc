"""Check a warehouse before Spark starts or a job writes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from recbench_spark.config import ModelConfig
from recbench_spark.errors import ConfigError, FallbackToSpark, nearest
from recbench_spark.schemas import TABLES, Table
from recbench_spark.storage.arrow_store import ArrowStore, is_local_folder, needs_no_java
from recbench_spark.storage.delta_files import partition_values
from recbench_spark.storage.objects import require_storage, try_writes
from recbench_spark.storage.table_folders import check_would_write, may_have_folder
from recbench_spark.storage.uris import has_driver

MAX_NEIGHBOURS = 1000
"""Most neighbours searched for a similar name.

A hint about a missing folder names the similar one.
"""


def check_warehouse(root: str) -> list[str]:
    """Refuse a warehouse to which a job could not write.

    No file in a folder is written. In an object storage, the check writes an object with a private name,
    reads it, writes it again (which must be refused) and removes it.

    Returns:
        A line about the object storage; nothing for a folder or a catalog.

    Raises:
        StoreError: the folder is a file, or may not be written to; the object storage does not answer,
            refuses, or has no conditional write.
    """
    if is_local_folder(root):
        check_would_write(Path(root))
    require_storage(root)
    return try_writes(root)


def check_models(root: str, models: Sequence[ModelConfig], *, opened: bool = False) -> None:
    """Refuse a warehouse which cannot hold a model's files.

    Only a session knows where a schema in Spark's own catalog lies, so such a warehouse is refused once a
    session has opened it.

    Raises:
        ConfigError: a model's files are mapped, and the warehouse is no folder; or tasks write them, and
            the warehouse is a catalog where Spark writes, or on a storage which only Java reads and writes.
    """
    if is_local_folder(root) or (may_have_folder(root) and not opened):
        return
    from recbench_spark.models.adapters.model_adapter import make_adapter  # noqa: PLC0415

    for model in (model for model in models if model.measured):
        adapter = make_adapter(model)
        if adapter.needs_folder or (adapter.needs_files and not has_driver(root)):
            raise ConfigError(
                f"model {model.name}: its files are mapped, and --warehouse {root} is no folder",
                "give a folder that the driver and all workers see, or leave the model out",
            )


def require_warehouse(root: str) -> None:
    """Refuse a warehouse from which a job could not read.

    A local folder without tables is refused, and so is an object storage without an answer.

    Raises:
        StoreError: the object storage does not answer, or refuses.
        ConfigError: the warehouse does not exist, or holds no tables; the hint names the nearest warehouse
            beside it.
    """
    require_storage(root)
    if not is_local_folder(root) or _holds_tables(Path(root)):
        return
    folder = Path(root)
    message = f"no results in warehouse {root}"
    if not folder.exists():
        message += ": there is no such folder"
    raise ConfigError(f"--warehouse: {message}", _suggest_warehouse(folder))


def require_partition(root: str, table: Table, name: str, flag: str) -> None:
    """Refuse a split or neighbourhoods missing in a local warehouse.

    Args:
        root: the warehouse's root.
        table: its first partition column has the names.
        name: the flag's value.
        flag: the flag's name, for the error.

    Raises:
        ConfigError: there is no such name; the hint names the nearest one.
    """
    require_warehouse(root)
    if not needs_no_java(root):
        return
    with suppress(FallbackToSpark):
        store = ArrowStore(root, read_only=True)
        column = table.partition_by[0]
        known = partition_values(store.location(table.name), column) if store.exists(table.name) else []
        if name not in known:
            raise ConfigError(f"{flag} {name}: no such {column} in {store.root}", nearest(name, known))


def check_journal_path(path: str | None, flag: str) -> None:
    """Check that a JSON-lines log's path can be a file.

    Raises:
        ConfigError: it cannot.
    """
    place = Path(path or "log.jsonl")
    if place.is_dir() or any(parent.is_file() for parent in place.parents):
        raise ConfigError(f"{flag} {path} is a folder, or lies in a file", "give the path of a file")


def _holds_tables(folder: Path) -> bool:
    """Return whether a table's folder exists.

    A table without its log gets its own error later.
    """
    return any((folder / name).is_dir() for name in TABLES)


def _suggest_warehouse(folder: Path) -> str:
    beside = folder.absolute().parent
    entries = sorted(beside.iterdir())[:MAX_NEIGHBOURS] if beside.is_dir() else []
    known = [entry.name for entry in entries if entry.is_dir() and _holds_tables(entry)]
    return f"{nearest(folder.name, known)} in {beside}" if known else "run recbench nightly first"
