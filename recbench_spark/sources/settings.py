"""Settings in the section `dataset`: a log and its reader."""

from __future__ import annotations

import re
from datetime import date, timedelta, timezone, tzinfo
from typing import Annotated, Any, ClassVar, Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from recbench_spark.core.strict_settings import (
    INT,
    SECRET,
    SECRETS_HINT,
    Location,
    Name,
    Seed,
    Share,
    Strict,
    holds_secret,
    make_error,
)
from recbench_spark.errors import nearest
from recbench_spark.readers import find_readers
from recbench_spark.storage.text_forms import BLANKS, TO_UTF8, is_wide

OFFSET = re.compile(r"[+-](0[0-9]|1[0-8]):[0-5][0-9]")
"""A time zone without a name: +02:00."""

LOG_COLUMNS = ("user_id", "item_id", "rating", "event_time", "part")
"""Standard names for a log's columns; the first two must exist."""

SourceName = Annotated[str, Field(pattern=r"^([^\x00]*[^\x00\s][^\x00]*)?$")]
"""The name of a log's column, or nothing."""

BuiltIn = Literal[
    "world", "movielens_100k", "movielens_1m", "movielens_10m", "movielens_20m", "movielens_25m",
    "movielens_32m", "movielens_latest", "netflix", "coat", "yahoo_r3", "lightgcn", "ncf", "csv", "json",
    "parquet", "delta",
]  # fmt: skip


def _check_reader(name: str) -> str:
    if name not in get_args(BuiltIn) and name not in find_readers():
        raise make_error(f"no reader '{name}'", nearest(name, [*get_args(BuiltIn), *find_readers()]))
    return name


ReaderName = Annotated[BuiltIn | str, AfterValidator(_check_reader)]
"""The name of a reader, from this package or another."""

READERS_WITHOUT_TIMES = ("coat", "yahoo_r3", "lightgcn")
"""Readers whose files have no times at all."""

READER_UNITS = {
    "netflix": ("days such as 2005-09-06", ("s", "timestamp")),
    "world": ("times of its own", ("s",)),
    **dict.fromkeys(READERS_WITHOUT_TIMES, ("no times", ("s",))),
}
"""Readers whose files have no times in a unit: what times they have, and the allowed units; s is the
default. A unit without effect is refused.
"""


CLOSED_LOOP_READERS = ("coat", "yahoo_r3")
"""Readers for two logs: a closed loop, which no file divides, and an open loop."""

BLANKS_OPTIONS = ("sep", "delimiter", "encoding", "charset", "comment", "header", "pathGlobFilter")
"""Options beside `sep: blanks`: fields between blanks have no quotes."""

READER_OPTIONS = {
    "csv": (*BLANKS_OPTIONS, "quote", "escape", "multiLine", "nullValue", "timestampFormat"),
    "json": ("encoding", "charset", "timestampFormat", "pathGlobFilter"),
    "parquet": ("pathGlobFilter",),
    "delta": ("versionAsOf", "timestampAsOf"),
}
"""Options to read, under the names of Spark's readers; all others are refused."""

_AS_TEXT = "every field is read as text, and converted by its role"
_WRITTEN = "it is of writers; readers go by the name of a file"
_FEED = "a feed of changes is no log: it has deleted rows; read the table, or a version of it (versionAsOf)"
_OWN_HEADER = "each file is read by its own header, and lines of another width are bad rows"
_OWN_ZONE = "set dataset.time_zone, and timestampFormat where times are text"
_FOLDERS = "folders NAME=VALUE are columns, others are not read; pathGlobFilter chooses files by name"
_LETTERS = "a field is all that stands between two separators: write it anew"
_STRICT = "a line is JSON or a bad row, as the error says: jq -c . FILE"
_CALENDAR = "a time before 1900 is read as it is stored"

UNUSED_OPTIONS = {
    **dict.fromkeys(("inferSchema", "preferDate", "samplingRatio", "nanValue", "positiveInf", "negativeInf",
                     "locale"), _AS_TEXT),
    **dict.fromkeys(("dateFormat", "timestampNTZFormat", "timeFormat", "enableDateTimeParsingFallback",
                     "timeZone"), _OWN_ZONE),
    **dict.fromkeys(("compression", "codec", "extension"), _WRITTEN),
    **dict.fromkeys(("mode", "columnNameOfCorruptRecord"), "set dataset.bad_rows: error or reject"),
    **dict.fromkeys(("enforceSchema", "columnPruning"), _OWN_HEADER),
    **dict.fromkeys(("readChangeFeed", "readChangeData", "startingVersion", "startingTimestamp",
                     "endingVersion", "endingTimestamp"), _FEED),
    **dict.fromkeys(("recursiveFileLookup", "modifiedAfter", "modifiedBefore"), _FOLDERS),
    **dict.fromkeys(("ignoreCorruptFiles", "ignoreMissingFiles"), "every file is read, or is an error"),
    **dict.fromkeys(("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "emptyValue", "maxColumns",
                     "maxCharsPerColumn", "charToEscapeQuoteEscaping", "unescapedQuoteHandling"), _LETTERS),
    **dict.fromkeys(("allowComments", "allowUnquotedFieldNames", "allowSingleQuotes",
                     "allowNumericLeadingZeros", "allowNonNumericNumbers", "allowUnquotedControlChars",
                     "allowBackslashEscapingAnyCharacter"), _STRICT),
    **dict.fromkeys(("datetimeRebaseMode", "int96RebaseMode"), _CALENDAR),
    "lineSep": "lines end as in Unix, Windows or old Macs",
    "mergeSchema": "the columns of all files are read",
    "inputBufferSize": "it changes nothing that is read",
}  # fmt: skip
"""Spark's options which are refused -> what to set instead, or why."""


class WorldSettings(Strict):
    """The generated world's size and feedback.

    `open_items`: the items that the open loop shows, uniformly: any item, where a split then leaves out the
    pairs in training, or (`unseen`) only items that the loop did not show to the user.
    """

    users: Annotated[int, Field(ge=1, le=10**9)] = 1000
    """Number of users."""
    items: Annotated[int, Field(ge=2, le=10**8)] = 300
    """Number of items."""
    interactions: Annotated[int, Field(ge=1000, le=10**8)] = 60_000
    """Rows in the closed loop, which the recommender showed."""
    open_loop: Annotated[int, Field(ge=0, le=10**9)] = 20_000
    """Rows in the open loop, which were shown uniformly."""
    loop: Share = 0.8
    """Strength of the feedback: the closed loop's share chosen by the recommender."""
    periods: Annotated[int, Field(ge=1, le=50)] = 4
    """Number of periods; after each, the recommender learns again."""
    seed: Seed = 42
    """Seed for the world."""
    tastes: Annotated[int, Field(ge=1, le=32)] = 8
    """Dimensions of a user's true taste."""
    open_items: Literal["all", "unseen"] = "all"


RULES = ("in", "not_in", "above", "below", "between", "not_null")
Value = str | int | float | bool


class RowCondition(Strict):
    """A condition that rows must hold to count, on any column of the log.

    One of the keys beside `column` is given. Where a value is missing, none but a condition on other
    columns holds.
    """

    column: Location
    """The log's own name of the column."""
    one_of: Annotated[tuple[Value, ...] | None, Field(alias="in", min_length=1)] = None
    """Values of which a row has one: numbers compare as numbers, other values as texts."""
    not_in: Annotated[tuple[Value, ...], Field(min_length=1)] | None = None
    """Values of which a row has none."""
    above: float | None = None
    """A number below the row's value."""
    below: float | None = None
    """A number above the row's value."""
    between: tuple[float, float] | tuple[str, str] | None = None
    """The smallest and largest value: numbers, or times such as 2026-01-31; the last day counts whole."""
    not_null: bool | None = None
    """The row has a value."""

    @field_validator("one_of", "not_in", "between", mode="before")
    @classmethod
    def _spell_days(cls, values: Any) -> Any:
        many = isinstance(values, list | tuple)
        return [one.isoformat() if isinstance(one, date) else one for one in values] if many else values

    @model_validator(mode="after")
    def _check_rule(self) -> RowCondition:
        rules = self.list_rules()
        if len(rules) != 1:
            hint = f"give one of {', '.join(RULES)}"
            raise make_error(
                f"the condition on '{self.column}' has {' and '.join(rules) or 'no rule'}", hint
            )
        if self.not_null is False:
            raise ValueError("not_null is true, or is left out")
        first, last = self.between or (0.0, 0.0)
        if isinstance(first, float) and isinstance(last, float) and first > last:
            raise ValueError(f"between ends at {last:g}, before {first:g} where it begins")
        return self

    @model_serializer(mode="wrap")
    def _write_rule(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {
            "in" if key == "one_of" else key: one for key, one in handler(self).items() if one is not None
        }

    def list_rules(self) -> dict[str, tuple[Value, ...]]:
        """Return the given rules with their values."""
        given = self.model_dump(exclude={"column"})
        return {name: one if isinstance(one, tuple) else (one,) for name, one in given.items()}


class Events(Strict):
    """Events of a log's rows: what each is worth, and which are asked.

    Only rows of `targets` test and validate; a split counts them as if the log had no others. Rows of other
    events train if they come before the user's first held-out row, or before the cut where one is made for
    all users; the others are `later`. In random order they train. A pair (user, item) has one row a part:
    its rating in training is the sum of its events' weights, each once, and models that take ratings read
    it as a strength. Trained items are no candidates only where one of their events is a target.
    """

    column: Location
    """The log's own name of the column with events."""
    weights: Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=1, max_length=100)]
    """Event -> its weight; an event of the log without weight is refused."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    """Events whose rows test and validate."""
    repeats_of: Literal["targets", "any"] = "targets"
    """Trained rows that make a held-out row of their pair a repeat (`split.repeats`): those of targets, or
    of any event.
    """
    cap: Annotated[float, Field(gt=0)] | None = None
    """Largest sum of a pair's weights; without it all its events add up."""
    grades: bool = False
    """Weights are also the relevance of held-out rows; otherwise it is the log's rating, or 1."""

    @field_validator("weights", "targets", mode="before")
    @classmethod
    def _spell_events(cls, events: Any) -> Any:
        if isinstance(events, dict):
            return {_spell(name): weight for name, weight in events.items()}
        return [*map(_spell, events)] if isinstance(events, list | tuple) else events

    @model_validator(mode="after")
    def _check_targets(self) -> Events:
        for name in self.targets:
            if name not in self.weights:
                raise make_error(f"targets: '{name}' has no weight", nearest(name, self.weights))
        return self


def _spell(name: Any) -> Any:
    """Spell a name that YAML reads as a number or flag, as a log does."""
    return str(name).lower() if isinstance(name, bool) else str(name) if isinstance(name, int) else name


class Least(Strict):
    """Least rows of a user and an item; all rows of others are left out.

    `on`: rows are counted in training after the split, one a pair (`train`), or in the whole log before it
    (`log`), which lets held-out rows decide who trains: the manifest says so (`future_selection`).
    """

    user: Annotated[int, Field(ge=0, le=INT)] = 0
    """Least rows of a user; 0: any number."""
    item: Annotated[int, Field(ge=0, le=INT)] = 0
    """Least rows of an item; 0: any number."""
    on: Literal["train", "log"] = "train"
    until_stable: bool = True
    """Count again until nothing more is left out (the k-core); otherwise rows are counted once."""

    @model_validator(mode="after")
    def _check_least(self) -> Least:
        if not self.user and not self.item:
            raise make_error("neither user nor item is given", "least: {user: 5, item: 5}")
        return self


class Availability(Strict):
    """Table of the periods in which items are available (item_id, available_from, available_until).

    An item has one row a period, from its begin on and no longer at its end; an empty end is none. Times
    are read as the log's. An item without a row is never available; checks count such items.
    """

    path: Location
    """The table, on any storage; it may hold `{logical_date}`."""


class Dataset(Strict):
    """The log: where it is, and how to read it.

    `columns` maps the standard names (user_id, item_id, rating, event_time, part) to the log's columns; an
    empty name (`rating: ""`) says that the log has none, although a column is called so. In parquet and
    delta it may name arrays, such as the items and times of a session: each item is a row; `events.item` is
    a field in an array of structs. `attributes` lists further columns, kept for slices. `time_unit` is the
    unit of numeric times; times from 2100 on are refused (`sources.times`). `time_zone` is the zone for
    times without an offset, and for days, weeks and months in a split's period. `bad_rows`: raise an error,
    or leave the rows out, count them and keep them in the table `rejects`. `until`: the log's last day, in
    `time_zone`; later rows are left out and counted. Paths, options and `until` may hold `{logical_date}`
    (see `placeholders`). `scale`: the lowest and the highest possible rating, to which rating models clip
    their predictions; by default the log's own. `closed_loop`: in a log with an open loop (coat, yahoo_r3),
    the closed loop's rows all train, as their files give them, or the split divides them.
    """

    added_later: ClassVar[frozenset[str]] = frozenset(
        {"scale", "closed_loop", "where", "events", "least", "availability", "query"}
    )

    name: Name
    """The dataset's name in tables and reports."""
    reader: ReaderName
    """Format of the log; `world` generates one. The formats which take `columns` are csv, json, parquet,
    delta and those from other packages.
    """
    path: Location | None = None
    """File or folder with the log, on any storage; it may hold `{logical_date}`."""
    columns: dict[str, SourceName] = {}
    attributes: tuple[Location, ...] = ()
    options: dict[str, str] = {}
    """Options for the reader, such as `{delimiter: ";"}`; those that change nothing are refused."""
    time_unit: Literal["s", "ms", "us", "timestamp"] = "s"
    time_zone: str = "UTC"
    bad_rows: Literal["error", "reject"] = "error"
    """`error` stops at an unusable row; `reject` drops bad rows, counts them and keeps them in the table
    `rejects`.
    """
    duplicates: Literal["keep_last", "keep_first", "error"] = "keep_last"
    """The row that stays if a user has an item twice in one part of the split: the last one, or the first
    one; `error` refuses two rows wherever they are. With equal or missing times, a hash of the row decides.
    """
    scale: tuple[float, float] | None = None
    until: str | None = None
    where: tuple[RowCondition, ...] = ()
    """Conditions that all hold for the rows that count; no other row is read."""
    events: Events | None = None
    """Weight of each event, and the target events that are held out."""
    least: Least | None = None
    """Least rows of users and items that stay."""
    availability: Availability | None = None
    """Periods of items, for `definition.candidates_as_of: availability`."""
    query: Location | None = None
    """Column with queries or sessions: each of a user's queries in a held-out part is a question."""
    closed_loop: Literal["as_given", "split"] = "as_given"
    world: WorldSettings = WorldSettings()
    """Size and feedback of the generated world, for reader `world`."""

    @field_validator("time_zone")
    @classmethod
    def _check_time_zone(cls, zone: str) -> str:
        try:
            known = OFFSET.fullmatch(zone) or ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            known = None
        if not known:
            raise ValueError(f"no time zone '{zone}': give one such as UTC, Europe/Rome or +02:00")
        return zone

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: dict[str, str]) -> dict[str, str]:
        for name, source in columns.items():
            if name not in LOG_COLUMNS:
                raise make_error(f"unknown column '{name}'", nearest(name, LOG_COLUMNS))
            if not source and name in LOG_COLUMNS[:2]:
                raise make_error(f"a log needs the column {name}", f"columns: {{{name}: NAME}}")
        sources = [source for source in columns.values() if source]
        if twice := next((name for name in sources if sources.count(name) > 1), None):
            message = f"'{twice}' is two of {', '.join(columns)}"
            raise make_error(message, "give each standard name a column of its own")
        return columns

    @field_validator("options")
    @classmethod
    def _refuse_secret_options(cls, options: dict[str, str]) -> dict[str, str]:
        for key, value in options.items():
            if re.search(SECRET, key, re.IGNORECASE) or holds_secret(value):
                raise ValueError(f"option {key} holds a secret; {SECRETS_HINT}")
        return options

    @field_validator("until", mode="before")
    @classmethod
    def _format_until(cls, until: Any) -> Any:
        return until.isoformat() if isinstance(until, date) else until  # YAML reads 2026-01-31 as a date

    @property
    def source_names(self) -> dict[str, str]:
        """Standard name -> the log's name, without columns declared absent."""
        names = {name: self.columns.get(name, name) for name in LOG_COLUMNS}
        return {name: source for name, source in names.items() if source}

    @property
    def value_columns(self) -> list[str]:
        """Columns of conditions and events, by the log's names."""
        events = [self.events.column] if self.events else []
        return [*(condition.column for condition in self.where), *events]

    @property
    def zone(self) -> tzinfo:
        """The zone in which days, weeks and months begin."""
        if not OFFSET.fullmatch(self.time_zone):
            return ZoneInfo(self.time_zone)
        sign = -1 if self.time_zone[0] == "-" else 1
        hours, minutes = int(self.time_zone[1:3]), int(self.time_zone[4:6])
        return timezone(sign * timedelta(hours=hours, minutes=minutes))

    @property
    def is_typed(self) -> bool:
        """True if the log's columns have types."""
        return self.reader in ("parquet", "delta") or self.reader not in get_args(BuiltIn)

    @property
    def is_table(self) -> bool:
        """True for a table with columns of its own."""
        return self.is_headed or self.reader == "json"

    @property
    def is_headed(self) -> bool:
        """True if a table's columns are known before reading rows."""
        return self.is_typed or self.reader == "csv"

    @property
    def lists_negatives(self) -> bool:
        """True if the files list candidates.

        Then `definition.candidates: given` needs no path.
        """
        return self.reader == "ncf"

    @field_validator("scale")
    @classmethod
    def _check_scale(cls, scale: tuple[float, float] | None) -> tuple[float, float] | None:
        if scale is not None and not scale[0] < scale[1]:
            raise ValueError(f"the scale ends at {scale[1]:g}, not above {scale[0]:g} where it begins")
        return scale

    @model_validator(mode="after")
    def _check_reader_keys(self) -> Dataset:
        times, units = READER_UNITS.get(self.reader, ("", (self.time_unit,)))
        if self.time_unit not in units:
            raise ValueError(f"reader '{self.reader}' has {times}: leave out time_unit '{self.time_unit}'")
        if not self.is_table and (self.columns or self.options):
            message = f"reader '{self.reader}' takes no 'columns' and no 'options'"
            raise make_error(message, "use reader 'csv' for a file with another layout")
        if self.reader != "world" and self.world != WorldSettings():
            message = f"reader '{self.reader}' reads a log, and 'world' is what one is generated from"
            raise make_error(message, "reader: world, or leave 'world' out")
        for key in ("where", "events") if self.reader == "world" else ():
            if getattr(self, key):
                raise make_error(f"{key}: all rows of a generated world count alike", f"leave '{key}' out")
        if self.closed_loop == "split" and self.reader not in CLOSED_LOOP_READERS:
            message = f"closed_loop: reader '{self.reader}' has no closed loop beside an open one"
            hint = f"leave it out; readers that have one: {', '.join(CLOSED_LOOP_READERS)}"
            raise make_error(message, hint)
        return self

    @model_validator(mode="after")
    def _check_options(self) -> Dataset:
        known = READER_OPTIONS.get(self.reader, ("pathGlobFilter",) if self.is_typed else ())
        if self.separates_by_blanks:
            known = BLANKS_OPTIONS
        lower = {name.lower() for name in known}
        unused = {name.lower(): why for name, why in UNUSED_OPTIONS.items()}
        if self.reader == "json":
            unused["multiline"] = "write an object in each line: jq -c '.[]' FILE"
        for name in self.options:
            if name.lower() in unused and name.lower() not in lower:
                message = f"options: {name} is not read by reader '{self.reader}'"
                raise make_error(message, f"leave it out: {unused[name.lower()]}")
            if name.startswith("fs."):
                message = f"options: {name} is a setting of Hadoop, and none of a reader"
                raise make_error(message, f"give it to the session: --conf spark.hadoop.{name}=VALUE")
            if name.lower() not in lower:
                with_blanks = " with sep: blanks" if self.separates_by_blanks else ""
                message = f"options: reader '{self.reader}'{with_blanks} has no '{name}'"
                raise make_error(message, nearest(name, known))
        if self.time_format and self.time_unit != "timestamp":
            message = f"options: timestampFormat has no effect on times in {self.time_unit}"
            raise make_error(message, "set dataset.time_unit: timestamp")
        for name, value in self.options.items():
            if self.reader == "json" and name.lower() in ("encoding", "charset") and is_wide(value):
                raise make_error(f"options: lines of {value} are not found", TO_UTF8)
        return self

    @property
    def separates_by_blanks(self) -> bool:
        """True if blanks separate the fields in a text file."""
        return any(
            name.lower() in ("sep", "delimiter") and value.lower() == BLANKS
            for name, value in self.options.items()
        )

    @property
    def time_format(self) -> str:
        """Pattern for times in text; empty if they are ISO."""
        return {name.lower(): value for name, value in self.options.items()}.get("timestampformat", "")

    @model_validator(mode="after")
    def _require_path(self) -> Dataset:
        if self.reader != "world" and not self.path:
            raise ValueError(f"reader '{self.reader}' needs 'path'")
        return self
