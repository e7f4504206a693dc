"""Checks of local files before an engine reads them.

They look at names, first lines and footers, and need no Spark.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from recbench_spark.errors import DataError, SchemaError
from recbench_spark.schemas import require_names
from recbench_spark.storage.object_access import explain_arrow, open_filesystem
from recbench_spark.storage.objects import open_input
from recbench_spark.storage.text_forms import BLANKS, TO_UTF8
from recbench_spark.storage.uris import LOG, is_hidden, is_remote

DAMAGED = "the file is damaged, cut off or in another format: write it again"

COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
"""Suffixes of readable compressed text files."""

UNSUPPORTED = (".zip", ".xz", ".lzma", ".snappy", ".7z", ".rar", ".tar", ".tgz")
"""Suffixes of compressed files to refuse."""

TEXT = (".csv", ".tsv")

HEAD_BYTES = 1 << 16
"""Bytes at a file's start for the checks."""

CHUNK_BYTES = 1 << 20
"""Bytes of a text file to decode at once."""

HEADER_LINES = 50
"""Lines among which a header line is searched."""


# ---------------------------------------------------------------------------------------- names


def bare_name(path: str) -> str:
    """Return a path's last part, without a compressed file's suffix."""
    name = path.rstrip("/").rsplit("/", 1)[-1]
    return next((name.removesuffix(end) for end in COMPRESSED if name.endswith(end)), name)


def is_text(path: str) -> bool:
    """Check whether a file's name means text with columns."""
    return bare_name(path).endswith(TEXT)


def separator(path: str) -> str:
    """Return a tab for `.tsv` (`.gz`, `.bz2`), else a comma."""
    return "\t" if bare_name(path).endswith(".tsv") else ","


def refuse_name(path: str) -> None:
    """Refuse a file which Spark skips or cannot unpack.

    The file's name or ending tells.

    Raises:
        DataError: the file is one of these.
    """
    place = Path(path)
    if not place.is_file():
        return
    if is_hidden(place.name):
        raise DataError(
            f"{path}: files whose names begin with _ or . are ignored as hidden",
            "give the file another name",
        )
    ending = next((end for end in UNSUPPORTED if place.name.endswith(end)), None)
    if ending:
        raise DataError(
            f"{path}: files compressed as {ending} are not read",
            "unpack it, or compress it with gzip (.gz)",
        )


def has_delta_log(path: str | Path) -> bool:
    """Check whether a local path is a Delta table's folder."""
    return Path(path, LOG).is_dir()


def list_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files and folders Spark reads in a folder.

    Files and folders are in order of their names.
    """
    entries = sorted(entry for entry in folder.iterdir() if not is_hidden(entry.name))
    return [x for x in entries if not x.is_dir()], [x for x in entries if x.is_dir()]


def data_files(folder: Path) -> list[Path]:
    """Return the files Spark reads in a folder, in order.

    Files in partition folders are among them.
    """
    entries = sorted(entry for entry in folder.iterdir() if not is_hidden(entry.name))
    return [file for entry in entries for file in (data_files(entry) if entry.is_dir() else [entry])]


def text_separator(path: str, files: Iterable[str] | None = None) -> str | None:
    """Return a text file's or folder's separator, else None.

    Args:
        path: a file or a folder.
        files: files to read in a folder, here or elsewhere; None: all.

    Raises:
        SchemaError: a folder holds text beside other files, or files with two separators.
    """
    folder = Path(path)
    if has_delta_log(path):
        return None
    if files is None and not folder.is_dir():
        return separator(path) if is_text(path) else None
    places = data_files(folder) if files is None else [*map(Path, files)]
    suffixes = {Path(bare_name(file.name)).suffix: file for file in reversed(places)}
    text_suffixes = [suffix for suffix in suffixes if suffix in TEXT]
    if text_suffixes and len(suffixes) > 1:
        raise formats_error(path, map(str, suffixes.values()))
    if text_suffixes:
        return "\t" if text_suffixes[0] == ".tsv" else ","
    return separator(path) if is_text(path) else None


# ----------------------------------------------------------------------------------- first lines


@contextmanager
def open_stream(place: str) -> Iterator[pa.NativeFile]:
    """Open and unpack a text on any storage."""
    if not is_remote(place):
        with pa.input_stream(place) as stream:
            yield stream
        return
    with explain_arrow(place):
        system, name = open_filesystem(place)
        with system.open_input_stream(name) as stream:
            yield stream


def read_head(path: str) -> bytes:
    """Return a text file's first bytes, unpacked.

    Raises:
        DataError: it cannot be read.
    """
    return next(read_chunks(path, HEAD_BYTES), b"")


def head_lines(head: bytes, encoding: str = "utf-8", comment: str = "") -> list[str]:
    """Return a head's lines, without empty ones and comments."""
    try:
        text = head.decode(encoding, errors="replace")
    except LookupError:  # Java knows encodings unknown to Python
        text = head.decode("utf-8", errors="replace")
    lines = [line for line in re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff")) if line.strip()]
    return [line for line in lines if not comment or not line.startswith(comment)]


def split_line(line: str, sep: str) -> list[str]:
    """Return a line's fields, without quotes."""
    if sep == BLANKS:
        return line.split()
    if len(sep) != 1:
        return line.split(sep)
    return next(csv.reader([line], delimiter=sep), [])


def require_columns(
    names: Sequence[str], columns: Sequence[str], what: str, path: str, sep: str | None = None
) -> None:
    """Check a text table's columns as `require_names`.

    For text, the hint names the line or separator to use.

    Args:
        names: columns of the table.
        columns: the required columns.
        what: name of the table, for the message.
        path: its file or folder.
        sep: the separator used; None: the one for the file's name.

    Raises:
        SchemaError: a column is missing.
    """
    try:
        require_names(names, list(columns), what)
    except SchemaError as error:
        hint = ""
        with suppress(SchemaError):  # files beside those being read
            hint = _text_hint(path, columns, sep or text_separator(path))
        raise SchemaError(error.message, hint or error.hint) from None


def _text_hint(path: str, columns: Sequence[str], used: str | None) -> str:
    """Return a hint where the first line lacks columns.

    The line was cut at a separator. Empty: nothing is known.
    """
    place = Path(path)
    if not place.exists() or used is None:
        return ""
    files = data_files(place) if place.is_dir() else [place]
    lines = [line for file in files[:1] for line in head_lines(read_head(str(file)))]
    for number, line in enumerate(lines[:HEADER_LINES], 1):
        for sep in SEPARATORS:
            if number == 1 and sep == used:
                continue
            if {*columns} <= cut_names(line, sep):
                line_hint = f"line {number} holds these names: remove the lines before it"
                by = f" fields are separated by {sep!r}: dataset.options sep of a log; else write commas"
                return f"{line_hint if number > 1 else ''}{by if sep != used else ''}".strip()
    kind = trec_kind(lines)
    return f"this is {TREC[kind][0]}: {TREC[kind][1]}" if kind else ""


def cut_names(line: str, sep: str) -> set[str]:
    """Return the column names in a first line."""
    return {name.strip() for name in split_line(line, sep)}


SEPARATORS = (",", "\t", ";", "|")


def refuse_strange_names(groups: Mapping[str, list[str]], sep: str, path: str) -> None:
    """Refuse a folder's files with strange column names.

    Such files have no column name in common, or differ in case alone.

    Args:
        groups: first line -> the files with it.
        sep: the separator of names.
        path: the folder.

    Raises:
        SchemaError: there are such files.
    """
    names = {line: cut_names(line, sep) for line in groups}
    first = next(iter(groups), "")
    for line, line_names in names.items():
        pair = f"{_file_name(groups[first][0])} begins with {first[:120]!r}"
        pair += f", {_file_name(groups[line][0])} with {line[:120]!r}"
        if line != first and not line_names & names[first]:
            raise SchemaError(
                f"{path}: {pair}: no name of a column in common", "the same line of names in every file"
            )
        if len({name.lower() for name in line_names | names[first]}) < len(line_names | names[first]):
            raise SchemaError(
                f"{path}: {pair}: names that differ in case alone", "one spelling in all files"
            )


def _file_name(file: str) -> str:
    return unquote(file.rsplit("/", 1)[-1])


TREC = {
    "run": (
        "a run of TREC (query, Q0, document, rank, score, tag)",
        "write columns user_id, item_id, rank, score: "
        """awk 'BEGIN{print "user_id,item_id,rank,score"}{print $1","$3","$4","$5}' FILE > lists.csv""",
    ),
    "qrels": (
        "judgements of TREC (query, iteration, document, relevance)",
        "write columns user_id, item_id, relevance: "
        """awk 'BEGIN{print "user_id,item_id,relevance"}{print $1","$3","$4}' FILE > truth.csv""",
    ),
}


def trec_kind(lines: Sequence[str]) -> str | None:
    """Return TREC's format, `run` or `qrels`, else None."""
    fields_by_line = [line.split() for line in lines[:HEADER_LINES]]
    if not fields_by_line:
        return None
    if all(len(x) == 6 and x[1] == "Q0" and x[3].isdigit() for x in fields_by_line[:2]):
        return "run"
    is_judgement = [
        len(x) == 4 and x[1] in ("0", "Q0") and re.fullmatch("-?[0-9]+", x[3]) for x in fields_by_line[:2]
    ]
    return "qrels" if all(is_judgement) else None


def find_undecoded(path: str) -> tuple[int, int] | None:
    """Find a text file's first byte outside UTF-8.

    Returns:
        Its line and value; None: there is none.

    Raises:
        DataError: it cannot be read.
    """
    line, rest = 1, b""
    for chunk in read_chunks(path):
        block = rest + chunk
        try:
            block.decode()
            rest = b""
        except UnicodeDecodeError as error:
            if error.end < len(block) or error.reason != "unexpected end of data":
                return line + block[: error.start].count(b"\n"), block[error.start]
            block, rest = block[: error.start], block[error.start :]
        line += block.count(b"\n")
    return (line, rest[0]) if rest else None


def describe_undecoded(path: str, *, is_file: bool = False) -> list[str]:
    """Describe a file's first byte outside UTF-8; empty: none.

    `is_file`: the path is known to be a file, and no name of a folder or a table.
    """
    place = find_undecoded(path) if is_file or Path(path).is_file() else None
    return [] if place is None else [f"byte 0x{place[1]:02X} in line {place[0]:,} is not UTF-8"]


def read_chunks(path: str, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yield a text file's bytes, unpacked, in chunks.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with open_stream(path) as stream:
            while chunk := bytes(stream.read(size)):
                yield chunk
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read: {str(error).splitlines()[0][:200]}", DAMAGED) from None


WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
"""First bytes of text in these encodings."""

MAGIC = {
    b"\xff\xfe\x00\x00": "text in UTF-32",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
    b"PAR1": "Parquet",
    b"\x1f\x8b": "compressed with gzip",
    b"BZh": "compressed with bzip2",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"\x04\x22\x4d\x18": "compressed with lz4",
    b"PK\x03\x04": "a zip archive or a sheet of Excel",
    b"ORC": "ORC",
    b"ARROW1": "Arrow (Feather)",
    b"Obj\x01": "Avro",
    b"SQLite": "a database of SQLite",
}
"""Files' first bytes, and the format they mean."""


def describe_content(path: str) -> tuple[str, str]:
    """Return a file's format and a hint.

    Empty texts: unknown.
    """
    with open_input(path) as file:
        head = bytes(file.read(HEAD_BYTES) or b"")
    kind = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)
    if kind:
        return kind, find_hint(
            kind, "give its name the ending of its format, or write it as Parquet or CSV"
        )
    lines = head_lines(head)
    if not head or b"\x00" in head or not lines:
        return ("empty" if not head else "", DAMAGED)
    trec = trec_kind(lines)
    if trec:
        return TREC[trec]
    return "text", "give its name the ending .csv or .tsv, with a first line of names"


def refuse_packed_text(path: str) -> None:
    """Refuse a file named as text but in another format.

    Raises:
        DataError: the file is not text.
    """
    if not Path(path).is_file() or bare_name(path) != Path(path).name:
        return
    with Path(path).open("rb") as file:
        head = file.read(8)
    kind = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)
    if kind:
        hint = find_hint(kind, "give its name the ending of its format")
        raise DataError(f"{path}: cannot be read: it is {kind}", hint)


def find_hint(kind: str, otherwise: str) -> str:
    """Return the hint which turns text into UTF-8.

    A file in another format than text gets the other hint.
    """
    return TO_UTF8.replace("UTF-16", kind.rsplit(maxsplit=1)[-1]) if "UTF-" in kind else otherwise


# --------------------------------------------------------------------------------------- columns


def refuse_case(names: Iterable[str], where: str) -> None:
    """Refuse two columns whose names differ in case alone.

    Spark takes them for one.

    Raises:
        SchemaError: there are two such columns.
    """
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise SchemaError(f"{where}: columns {other} and {name} differ in case alone", "rename one")


def refuse_misspelt(names: Sequence[str], wanted: Sequence[str], where: str, key: str = "") -> None:
    """Refuse a column whose name is wanted in another case.

    Such a column would not be read.

    Raises:
        SchemaError: there is such a column.
    """
    lower = {name.lower(): name for name in names}
    for name in wanted:
        if name not in names and name in lower:
            hint = f"{key}: {{{name}: {lower[name]}}}" if key else f"rename it to {name}"
            raise SchemaError(f"{where}: column {lower[name]} is not read: {name} is expected", hint)


def formats_error(path: str, files: Iterable[str]) -> SchemaError:
    """Return the error for a folder with several file formats.

    `files`: one of each.
    """
    one, other = (file.rpartition("/")[2] for file in sorted(files)[:2])
    message = f"{path}: {one} and {other} are of two formats"
    return SchemaError(message, "one format in a folder, or the name of a file")


def parquet_error(where: str, file: str, error: Exception, wanted: str = "Parquet") -> DataError:
    """Return the error for a file in another format.

    The error names the real format.
    """
    kind, hint = describe_content(file) if Path(file).is_file() else ("", DAMAGED)
    name = "it" if where.endswith(Path(file).name) else Path(file).name
    if kind and kind != wanted:
        return DataError(f"{where}: cannot be read: {name} is {kind}, not a {wanted} file", hint)
    reason = str(error).strip().splitlines()[0]
    return DataError(f"{where}: cannot be read: {name} is not a {wanted} file: {reason[:300]}", DAMAGED)
