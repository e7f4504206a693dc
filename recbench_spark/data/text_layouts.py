"""Layouts of text files, types of columns, and what messages call them; without Spark."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from recbench_spark.data.times import TIME_FORMATS
from recbench_spark.errors import DataError, FallbackToSpark
from recbench_spark.inputs import Options
from recbench_spark.schemas import ID_KIND, ID_TYPE
from recbench_spark.storage.local_files import bare_name

REPLACEMENT = "spark.recbench.replacement"
"""Spark setting: `keep` where U+FFFD in text files is intended and not a sign of undecodable bytes."""


@dataclass(frozen=True)
class Layout:
    """Layout of a text file: separator, names of fields (None: in the first line), encoding."""

    separator: str = ","
    names: tuple[str, ...] | None = None
    encoding: str = "UTF-8"

    def options(self) -> dict[str, str]:
        """Return options for Spark's CSV reader; files with given names are not quoted."""
        options = {"sep": self.separator, "encoding": self.encoding}
        # A quote within quotes is doubled (RFC 4180), while Spark expects a backslash by default.
        return {**options, **({"escape": '"'} if self.names is None else {"quote": ""})}


OPTION_ALIASES = {"delimiter": "sep", "charset": "encoding"}
"""Second names of Spark's CSV options."""


LOCAL_OPTIONS = {"sep", "encoding", "header", "comment", "quote", "timestampformat"}
"""Options of text whose meaning these readers know, by their first names."""


def read_options(options: Options) -> dict[str, str]:
    """Return the options of a text file by their first names in small letters."""
    return {OPTION_ALIASES.get(key.lower(), key.lower()): value for key, value in options.items()}


def require_known(given: Options, options: Mapping[str, str]) -> None:
    """Refuse options that only Spark knows. Raises FallbackToSpark."""
    strange = sorted(set(options) - LOCAL_OPTIONS)
    pattern = options.get("timestampformat", "")
    unread = {
        ", ".join(strange): bool(strange),
        "two names of one option": len(options) < len(given),
        "sep with a backslash": "\\" in options.get("sep", ""),
        "quote": options.get("quote", "") != "",
        "comment": len(options.get("comment", "")) > 1,
        f"timestampFormat {pattern}": bool(pattern) and pattern not in TIME_FORMATS,
        "encoding": not _is_known(options.get("encoding", "utf-8")),
    }
    for name, is_spark in unread.items():
        if is_spark:
            raise FallbackToSpark(f"dataset.options: {name} is for Spark's reader")


def _is_known(encoding: str) -> bool:
    try:
        return not codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
    except LookupError:
        return False


def open_quote_error(file: str, line: str, separator: str, width: int | None) -> DataError:
    """Return the error for a line in which a quote is opened and not closed.

    Args:
        file: the file with the line.
        line: the text of the line.
        separator: the separator of fields.
        width: number of fields in the header, None where the line is the header. A line with as many
            fields, if
            quotes are ignored, is a complete row; the quote would join it with other rows.
    """
    message = f"{file}: a quoted field continues in the next line: {line[:120]!r}"
    if width is not None and line.count(separator) + 1 == width:
        return DataError(
            message,
            "the line has all its fields, so its quotes are characters like any others: for a log set "
            "dataset.options quote: '', else write the quotes doubled (RFC 4180), or Parquet",
        )
    return DataError(
        message,
        "write the file without line breaks in fields, or as Parquet; for a log set dataset.options "
        "multiLine: 'true', or quote: '' where quotes are characters like any others",
    )


TEXT_FILE = "text of a file"
"""Name of the type of a text file's fields in messages."""

TEXT_NOTES = {ID_KIND: "text", ID_TYPE: TEXT_FILE}
"""Metadata of ids that a reader extracts itself from the lines of a text file."""

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
"""The ratings file of each data set: the first one that exists."""

SOURCE_COLUMNS: dict[str, dict[str, str]] = {
    "ratings.tsv": {"user_id": "user", "item_id": "item"},
    "ratings.csv": {"user_id": "userId", "item_id": "movieId", "event_time": "timestamp"},
}
"""Canonical names to the header's names, where they differ."""


def name_layout(file: Path, names: tuple[str, ...]) -> str:
    """Return the name in LAYOUTS of a ratings file's layout, by its ending."""
    ending = Path(bare_name(file.name)).suffix
    return next((name for name in names if Path(name).suffix == ending), names[0])


NUMBER_COLUMNS = (
    *("rating", "relevance", "score", "prediction", "outcome"),
    *("bias", "weight", "propensity", "reward"),
)
"""Columns of tables that are read as float64."""

OPTIONAL_COLUMNS = {
    "lists": ("rank", "score"),
    "truth": ("relevance",),
    **dict.fromkeys(("items", "item embeddings"), ("bias",)),
}
"""Columns that a table may lack, and that change results where it has them."""

FINITE_TEXT = "a finite number, below 2^53 where it is whole"

BELOW_2_53 = "a number below 2^53, where float64 tells whole numbers apart"
