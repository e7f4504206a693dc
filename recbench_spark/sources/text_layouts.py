"""Layouts of text files, column types, and their names.

No Spark is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from recbench_spark.core.inputs import Options
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.schemas import ID_KIND, ID_TYPE
from recbench_spark.storage.local_files import bare_name
from recbench_spark.storage.text_forms import TO_UTF8

REPLACEMENT = "spark.recbench.replacement"
"""Spark setting: `keep` if U+FFFD in text files is intended and no sign of undecodable bytes."""


@dataclass(frozen=True)
class Layout:
    """Separator, field names and encoding of a text file.

    Without names (None), they are in the first line.
    """

    separator: str = ","
    names: tuple[str, ...] | None = None
    encoding: str = "UTF-8"


OPTION_ALIASES = {"delimiter": "sep", "charset": "encoding"}
"""Second names for Spark's CSV options."""


def read_options(given: Options) -> dict[str, str]:
    """Return a log's options by first names, in small letters.

    Raises:
        ConfigError: an option has two names with two values, or an impossible value.
    """
    options: dict[str, str] = {}
    for key, value in given.items():
        name = OPTION_ALIASES.get(key.lower(), key.lower())
        if options.setdefault(name, value) != value:
            message = f"dataset.options: {key} and {name} are one option, with two values"
            raise ConfigError(message, "leave one out")
    for name in ("quote", "escape", "comment"):
        if len(options.get(name, "")) > 1:
            message = f"dataset.options: {name} is one letter, not {options[name]!r}"
            raise ConfigError(message, "leave it out")
    try:
        "".encode(options.get("encoding", "utf-8"))
    except (LookupError, UnicodeError):
        message = f"dataset.options: no encoding {options['encoding']!r} is known"
        raise ConfigError(message, f"a name of Python's: utf-8, cp1252, iso-8859-1; or {TO_UTF8}") from None
    return options


def open_quote_error(file: str, line: str, separator: str, width: int | None) -> DataError:
    """Return the error for a quote which is not closed.

    Args:
        file: the file with the line.
        line: the line's text.
        separator: the separator between fields.
        width: number of fields in the header; None if this line is the header. A line with as many fields,
            quotes ignored, is a complete row; the quote would join it with other rows.
    """
    hint = (
        "write the file without line breaks in fields, or as Parquet; for a log set dataset.options "
        "multiLine: 'true', or quote: '' where quotes are characters like any others"
    )
    if width is not None and line.count(separator) + 1 == width:
        hint = (
            "the line has all its fields, so its quotes are characters like any others: for a log set "
            "dataset.options quote: '', else write the quotes doubled (RFC 4180), or Parquet"
        )
    return DataError(f"{file}: a quoted field continues in the next line: {line[:120]!r}", hint)


def make_nested_error(file: str, row: str) -> DataError:
    """Return the error for a quoted field with whole rows."""
    return DataError(
        f"{file}: a quoted field holds whole rows of the file, which would be lost: {row[:120]!r}",
        "where quotes are characters like any others set dataset.options quote: '' instead of multiLine; "
        "fields that hold such lines can be read from Parquet",
    )


TEXT_FILE = "text of a file"
"""Name for the type of fields in a text file, in messages."""

TEXT_NOTES = {ID_KIND: "text", ID_TYPE: TEXT_FILE}
"""Metadata for ids that a reader itself cuts from a text file's lines."""


def note_texts(names: Iterable[str], folders: Collection[str]) -> pa.Schema:
    """Return text columns whose notes say where they come from."""
    notes = {name: FOLDER_NOTES if name in folders else TEXT_NOTES for name in names}
    return pa.schema([pa.field(name, pa.string(), metadata=one) for name, one in notes.items()])


def is_folder(column: pa.Field) -> bool:
    """Return whether folder names give a column."""
    return (column.metadata or {}).get(ID_TYPE.encode()) == FOLDER_NOTES[ID_TYPE].encode()


FOLDER_NOTES = {ID_KIND: "text", ID_TYPE: "name of a folder"}
"""Metadata for a column that folders give."""


IN_UTF8 = (
    "the file is in another encoding: iconv -f cp1252 -t UTF-8 FILE, or, of a log, dataset.options "
    "{encoding: cp1252}, ISO-8859-1 or what it is; "
    f"where U+FFFD is meant: --conf {REPLACEMENT}=keep"
)

RATINGS = ("user_id", "item_id", "rating", "event_time")

GENRES = tuple(f"genre{n}" for n in range(19))

LAYOUTS: dict[str, Layout] = {
    "u.data": Layout("\t", RATINGS),
    "u.user": Layout("|", ("user_id", "age", "gender", "occupation", "zip_code"), "ISO-8859-1"),
    "u.item": Layout("|", ("item_id", "title", "release_date", "video_date", "url", *GENRES), "ISO-8859-1"),
    "ratings.dat": Layout("::", RATINGS),
    "users.dat": Layout("::", ("user_id", "gender", "age", "occupation", "zip_code"), "ISO-8859-1"),
    "movies.dat": Layout("::", ("item_id", "title", "genres"), "ISO-8859-1"),
    "ratings.tsv": Layout("\t"),
    "ratings.csv": Layout(","),
}
"""Layouts by file name; a `.gz` ending may follow."""

MOVIELENS: dict[str, tuple[str, ...]] = {
    "movielens_100k": ("u.data",),
    "movielens_1m": ("ratings.dat", "ratings.tsv"),
    "movielens_10m": ("ratings.dat",),
    "movielens_20m": ("ratings.csv",),
    "movielens_25m": ("ratings.csv",),
    "movielens_32m": ("ratings.csv",),
    "movielens_latest": ("ratings.csv",),
}
"""Each data set's ratings file: the first one that exists."""

SOURCE_COLUMNS: dict[str, dict[str, str]] = {
    "ratings.tsv": {"user_id": "user", "item_id": "item"},
    "ratings.csv": {"user_id": "userId", "item_id": "movieId", "event_time": "timestamp"},
}
"""Canonical names to the header's names, where they differ."""


def name_layout(file: Path, names: tuple[str, ...]) -> str:
    """Return a ratings file's name in LAYOUTS, by its ending."""
    ending = Path(bare_name(file.name)).suffix
    return next((name for name in names if Path(name).suffix == ending), names[0])


NUMBER_COLUMNS = (
    *("rating", "relevance", "score", "prediction", "outcome"),
    *("bias", "weight", "propensity", "reward"),
)
"""Columns which are read as float64."""

OPTIONAL_COLUMNS = {
    "lists": ("rank", "score"),
    "truth": ("relevance",),
    **dict.fromkeys(("items", "item embeddings"), ("bias",)),
}
"""Columns that a table may lack, and that change results if present."""

FINITE_TEXT = "a finite number, below 2^53 where it is whole"

BELOW_2_53 = "a number below 2^53, where float64 tells whole numbers apart"
