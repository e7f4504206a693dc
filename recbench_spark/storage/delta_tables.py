"""Open Delta tables with `deltalake`, whatever the folder's name.

`deltalake` takes a table's place for a URL and decodes it more than once: it looks for a folder with `%20`
in its name under another name, and one with `[` ends the library in a panic. For such a folder this module
makes a private one with a plain name, whose `_delta_log` is a link to the real log. Data files are read in
their real folder. Object storage gets its URI and the settings to reach it.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyarrow.dataset import Dataset, FileSystemDataset, ParquetReadOptions

from recbench_spark.errors import FallbackToSpark, StoreError
from recbench_spark.storage import uris
from recbench_spark.storage.drivers import repeat_if_cut
from recbench_spark.storage.makers import cache_in_process
from recbench_spark.storage.object_access import delta_options, storage_error
from recbench_spark.storage.objects import LISTED_AT_ONCE, list_behind, stat_in_turn
from recbench_spark.storage.publish import local_path, publish_file

if TYPE_CHECKING:
    from deltalake import DeltaTable

T = TypeVar("T")

UNSUPPORTED_CHARACTERS = re.compile(r"[%\[\]\\^|\x00-\x1f\x7f]")
"""Characters refused by `deltalake` in the name of a table's folder."""

MAPPING = "delta.columnMapping.mode"
"""Property of a table whose columns have other names in its files, or ids."""

PLAIN_FEATURES = frozenset({"timestampNtz", "variantType", "variantType-preview"})
"""Delta's features which leave the rows to the files: the files have the right names, types and deletions.
"""

_plain_folders: dict[str, Path] = {}
"""Real folder -> the private folder with a link to its log."""


def open_table(place: str | Path, version: int | None = None) -> DeltaTable:
    """Open a table.

    If the table's folder has an odd name, the paths inside the result are private: take files from
    `list_files`, rows from `read_dataset`, and write with `open_for_write`.

    Args:
        place: folder of this machine, or a URI.
        version: None: the latest.

    Raises:
        DeltaError: there is no table, or it has features unknown to `deltalake`.
        StoreError: an object storage does not answer, or refuses.
    """
    from deltalake import DeltaTable  # noqa: PLC0415

    uri, options = _table_uri(place), delta_options(place)
    try:
        return repeat_if_cut(lambda: DeltaTable(uri, version=version, storage_options=options))
    except OSError as error:  # object storage; a folder without a table has errors of `deltalake`
        if not uris.is_object_storage(place):
            raise
        raise storage_error(str(place), str(error)) from None


KEEP_SECONDS = 60.0
"""For so long after a look, a table's protocol in object storage counts as known."""

OTHER_FILE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""Begin of a data file's URI in a log; others are relative."""

COMMIT_NAME = re.compile(r"[0-9]{20}\.json")


class _KeptTable:
    """A table kept open in this process.

    So a later look reads new commits alone. One thread uses it at a time, since a look and a commit change
    it. `seen`: version and tag of the last commit in a look, which tell when somebody has removed the
    table and made it again. `options`: settings from the opening; renewed keys open it anew.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.table: DeltaTable | None = None
        self.last_look = 0.0
        self.depth = 0
        self.seen = (0, "")
        self.options: dict[str, str] | None = None

    @contextmanager
    def hold(self, place: str, version: int | None, *, latest: bool) -> Iterator[DeltaTable]:
        """Open the table for a block.

        After an error in the block the table is opened anew.
        """
        with self.lock:
            options = delta_options(place)
            if options != self.options and not self.depth:
                self.table, self.options = None, options
            table = self._open(place, version, latest)
            self.depth += 1
            try:
                yield table
            except BaseException:
                self.table = None
                raise
            finally:
                self.depth -= 1

    def _open(self, place: str, version: int | None, latest: bool) -> DeltaTable:
        table = self.table
        if version is not None:
            return table if table is not None and table.version() == version else open_table(place, version)
        if self.depth:  # the outer block has looked, and its version must stay
            return open_table(place)
        latest = latest or not uris.is_object_storage(place)
        if table is not None and not latest and time.monotonic() - self.last_look < KEEP_SECONDS:
            return table
        if table is None or not self._look(table, place):
            table = open_table(place)
            version = table.version()
            tag = _list_commits(place, version).get(version)
            self.table, self.seen = (table, (version, tag)) if tag else (None, (0, ""))
        self.last_look = time.monotonic()
        return table

    def _look(self, table: DeltaTable, place: str) -> bool:
        """Read the commits since the last look; False: open anew.

        The last look's commit must be there unchanged. This process may have added others.
        """
        version, tag = self.seen
        tags = _list_commits(place, version)
        if tags.get(version) != tag or table.version() not in tags:
            return False
        if max(tags) > table.version():
            try:
                table.update_incremental()
            except Exception:  # an answer was cut, or a commit is gone: opening tells
                return False
        if table.version() in tags:
            self.seen = (table.version(), tags[table.version()])
        return True


def _list_commits(place: str, version: int) -> dict[int, str]:
    """Return the tags of commits from a version on.

    One call returns a thousand commits at most. HDFS and folders list no names from one on, so there each
    version is asked for by name. A tag is an ETag, or a file's number, size and time.
    """
    log = uris.join_uri(place, uris.LOG)
    names = (f"{number:020}.json" for number in range(version, version + LISTED_AT_ONCE))
    if not uris.is_remote(place):
        return dict(enumerate(_tag_files(log, names), version))
    if uris.is_hdfs(place):
        listed = stat_in_turn(log, names)
    else:
        listed = list_behind(log, f"{version - 1:020}.json")
    return {int(entry.name[:20]): entry.tag for entry in listed if COMMIT_NAME.fullmatch(entry.name)}


def _tag_files(folder: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the files' tags, up to a missing one."""
    with suppress(FileNotFoundError):
        for name in names:
            file = Path(folder, name).stat()
            yield f"{file.st_ino}-{file.st_size}-{file.st_mtime_ns}"


@cache_in_process(64)
def _keep_table(uri: str) -> _KeptTable:
    """Return a place's table; those used longest ago go first."""
    del uri
    return _KeptTable()


@contextmanager
def hold_table(
    place: str | Path, version: int | None = None, *, latest: bool = True
) -> Iterator[DeltaTable]:
    """Open a table for a block.

    The table stays open, for later blocks of this process.

    Args:
        place, version: as for `open_table`.
        latest: false where any version from the last minute in this process will do, in object storage.

    Raises:
        DeltaError, StoreError: as `open_table`.
    """
    remote = uris.is_remote(place)
    real = str(place if remote else _real_folder(place))
    if not uris.is_object_storage(place) if remote else UNSUPPORTED_CHARACTERS.search(real):
        yield open_table(place, version)
        return
    kept = _keep_table(_table_uri(place) if remote else real)
    with kept.hold(real, version, latest=latest) as table:
        yield table


def list_features(table: DeltaTable) -> list[str]:
    """Return features which make rows differ from the files.

    The features are in order; mostly there are none.
    """
    mode = table.metadata().configuration.get(MAPPING, "none")
    features = {*(table.protocol().reader_features or ())} - PLAIN_FEATURES - {"columnMapping"}
    return sorted(features | ({f"columnMapping by {mode}"} if mode != "none" else set()))


MOST_FILES = 64
"""Most files of a table whose rows stay open with it: they hold what a scan has read of each footer."""


def read_dataset(place: str | Path, version: int | None = None) -> Dataset:
    """Open a table's rows without reading them yet.

    Arguments and errors are those of `open_table`.

    Raises:
        FallbackToSpark: with the table's features, the files alone are not the rows.
    """
    with hold_table(place, version) as table:
        rows = _make_once(table, "_rows", partial(_open_dataset, table, place))
        if len(rows.files) > MOST_FILES:
            del vars(table)["_rows"]
        return rows


def _make_once(table: DeltaTable, name: str, make: Callable[[], T]) -> T:
    """Return what is made of a table's version, and keep it with the open table."""
    known: tuple[int, T] | None = vars(table).get(name)
    if known is None or known[0] != table.version():
        known = vars(table)[name] = (table.version(), make())
    return known[1]


def _open_dataset(table: DeltaTable, place: str | Path) -> FileSystemDataset:
    """Return an open table's rows; errors as `read_dataset`."""
    features = list_features(table)
    if features:
        raise FallbackToSpark(f"{place} has features of Delta that are Spark's: {', '.join(features)}")
    system = None
    if not uris.is_remote(place):
        # By Arrow alone: a scanner starts with Python's lock held, and threads that read through Python
        # wait for that lock, so a query by DuckDB could hang.
        system = fs.SubTreeFileSystem(str(_real_folder(place)), fs.LocalFileSystem())
    if uris.is_object_storage(place):
        system = open_small_files(table, str(place))
    # Spark's old timestamps have 96 bits; nanoseconds hold them up to 2262 alone.
    options = ParquetReadOptions(coerce_int96_timestamp_unit="us")
    return table.to_pyarrow_dataset(filesystem=system, parquet_read_options=options)


def list_files(place: str | Path, partition: Mapping[str, str] | None = None) -> list[str]:
    """Return a table's data files in the log's order.

    The files are paths or URIs; the log holds paths as encoded URIs. The caller holds one path per file.

    Args:
        place: folder of this machine, or a URI.
        partition: column -> value in the wanted files; None: all files.

    Raises:
        DeltaError: as `open_table`.
        StoreError: the table is not partitioned by one of the columns.
    """
    with hold_table(place) as table:
        return list_table_files(table, place, partition)


def list_table_files(
    table: DeltaTable, place: str | Path, partition: Mapping[str, str] | None = None
) -> list[str]:
    """Return `list_files` of an open table."""
    return _real_files(place, _list_actions(table, place, partition or {}))


def _real_files(place: str | Path, actions: pa.Table) -> list[str]:
    """Return the paths or URIs from `_list_actions`.

    A shallow clone names other tables' files by URIs.
    """
    folder = str(place if uris.is_remote(place) else _real_folder(place))
    return [
        uris.decode_uri(path) if OTHER_FILE.match(path) else uris.join_uri(folder, unquote(path))
        for path in actions["path"].to_pylist()
    ]


def list_stored_files(table: DeltaTable, place: str | Path) -> dict[str, dict[str, Any]]:
    """Return the log's facts on each data file, by path.

    The table is open; a path may be a URI.
    """
    actions = _list_actions(table, place, {})
    return dict(zip(_real_files(place, actions), actions.to_pylist(), strict=True))


def count_rows(place: str | Path, partition: Mapping[str, str]) -> int | None:
    """Count a partition's rows from the log; None: no statistics.

    One file without statistics is enough for None.

    Args:
        place: folder of this machine, or a URI.
        partition: column -> value in the files to count.

    Raises:
        DeltaError, StoreError: as `list_files`.
    """
    with hold_table(place) as table:
        actions = _list_actions(table, place, partition)
    rows = actions["num_records"] if "num_records" in actions.column_names else pa.nulls(len(actions))
    return None if rows.null_count else int(pc.sum(rows).as_py() or 0)


def _list_actions(table: DeltaTable, place: str | Path, partition: Mapping[str, str]) -> pa.Table:
    """Return a row for each file in a partition.

    Columns are path, num_records ... Raises StoreError.
    """
    missing = set(partition) - set(table.metadata().partition_columns)
    if missing:
        raise StoreError(f"{place} is not partitioned by {min(missing)}", "name a column of its partitions")
    actions = _make_once(table, "_actions", lambda: pa.table(table.get_add_actions(flatten=True)))
    for name, value in partition.items():
        actions = actions.filter(pc.equal(actions[f"partition.{name}"].cast(pa.string()), str(value)))
    return actions


@contextmanager
def open_for_write(place: str | Path) -> Iterator[DeltaTable]:
    """Open a table for one write by `write_deltalake`.

    The write appends or replaces rows. For a folder with an odd name, the rows and their commit are made in
    a private folder, which has links to the real log's files and to the data. At the end the new files move
    to the real folder, and then the commit gets its name there.

    Raises:
        FileExistsError: another writer's commit has that name already; nothing was written.
        DeltaError: as `open_table`.
    """
    if not has_odd_name(place):
        with hold_table(place) as table:
            yield table
        return
    from deltalake import DeltaTable  # noqa: PLC0415

    real, stage = _real_folder(place), _new_folder()
    try:
        (stage / uris.LOG).mkdir()
        for file in (real / uris.LOG).iterdir():
            (stage / uris.LOG / file.name).symlink_to(file)
        for entry in real.iterdir():
            if entry.name != uris.LOG:
                (stage / entry.name).symlink_to(entry)
        yield DeltaTable(stage.as_uri())
        _publish_commits(stage, real)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _publish_commits(stage: Path, real: Path) -> None:
    """Move data files to their folder, then publish commits."""
    new_files = [file for file in stage.rglob("*.parquet") if not file.is_symlink()]
    for file in [file for file in new_files if uris.LOG not in file.relative_to(stage).parts]:
        target = real / file.relative_to(stage)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(file, target)
    commits = (file for file in (stage / uris.LOG).glob("*.json") if not file.is_symlink())
    for commit in sorted(commits):
        target = real / uris.LOG / commit.name
        if not publish_file(target, partial(shutil.copyfile, commit)):
            raise FileExistsError(f"{target} was written by another process")


def _real_folder(place: str | Path) -> Path:
    return local_path(place).resolve()


def has_odd_name(place: str | Path) -> bool:
    """Check whether `deltalake` refuses the name of a table's folder."""
    return not uris.is_remote(place) and UNSUPPORTED_CHARACTERS.search(str(_real_folder(place))) is not None


def _table_uri(place: str | Path) -> str:
    if uris.is_object_storage(place):
        uris.require_table_name(str(place))
    if uris.is_remote(place):
        return uris.arrow_uri(str(place))
    return (_plain_folder(_real_folder(place)) if has_odd_name(place) else _real_folder(place)).as_uri()


def _plain_folder(real: Path) -> Path:
    """Return this process's private folder for a real one.

    The private folder links to the real folder's log.
    """
    plain = _plain_folders.get(str(real))
    if (
        plain is None or not (plain / uris.LOG).is_symlink()
    ):  # somebody may have cleaned the temporary folder
        plain = _plain_folders[str(real)] = _new_folder()
        (plain / uris.LOG).symlink_to(real / uris.LOG)
    return plain


def _new_folder() -> Path:
    """Make a private folder with a plain name.

    The folder is removed when this process ends.

    Raises:
        StoreError: the folder for temporary files has an odd name itself.
    """
    folder = Path(tempfile.mkdtemp(prefix="recbench-spark-delta-")).resolve()
    atexit.register(_remove_in_owner, folder, os.getpid())
    if UNSUPPORTED_CHARACTERS.search(str(folder)):
        raise StoreError(
            f"the folder for temporary files, {folder.parent}, has a name that `deltalake` does not take",
            "set TMPDIR to a folder without %, [, ], ^, | and backslashes in its name",
        )
    return folder


def _remove_in_owner(folder: Path, owner: int) -> None:
    """Remove a private folder, except in a fork."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------- small files, fetched whole once a process and kept

FILE_BYTES = 1 << 21
"""Largest size of a kept file; larger ones are read in parts, by column."""

KEPT_BYTES = 1 << 26
"""Bytes of all kept files; those used longest ago go first."""

_contents: OrderedDict[tuple[str, str], bytes] = OrderedDict()
_contents_lock = threading.Lock()


def open_small_files(table: DeltaTable, place: str) -> fs.FileSystem:
    """Return an open table's file system, for `to_pyarrow_dataset`.

    The table is in object storage.
    """
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415

    sizes = table._table.get_add_file_sizes()
    handler: Any = DeltaStorageHandler.from_table(table._table, delta_options(place), sizes)
    # Arrow asks the handler for this function by its name.
    handler.open_input_file = partial(_open_file, handler.open_input_file, sizes, place)
    return fs.PyFileSystem(handler)


def _open_file(fetch: Callable[[str], Any], sizes: Mapping[str, int], place: str, path: str) -> Any:
    """Open a file; fetch a small one whole, once."""
    if sizes.get(path, FILE_BYTES + 1) > FILE_BYTES:
        return fetch(path)
    key = (place, path)
    with _contents_lock:
        content = _contents.get(key)
        if content is not None:
            _contents.move_to_end(key)
    if content is None:
        content = fetch(path).read()
        with _contents_lock:
            _contents[key] = content
            held = sum(map(len, _contents.values()))
            while held > KEPT_BYTES:
                held -= len(_contents.popitem(last=False)[1])
    return pa.BufferReader(content)
