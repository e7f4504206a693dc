"""Find columns by the caller's names or other libraries' names.

A column with our name is always taken. A missing one is looked for under its names in LensKit, RecTools,
RePlay, RecBole, ranx, Surprise, recommenders, MLlib, MovieLens, and TREC's runs and judgements. Each choice
is noted, so that the caller reads it. Between two candidates nothing is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from recbench_spark.errors import ConfigError, SchemaError, nearest, show_value
from recbench_spark.schemas import QUERY_ID
from recbench_spark.sources.list_columns import unfold_frame, unfold_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ARRAYS = ("recommendations", "recs", "itemids")
"""Usual names for a column with all items of a user: see `sources.list_columns`."""

USUAL: Mapping[str, tuple[str, ...]] = {
    "user_id": ("userid", "user", "useridx", "uid", "queryid", "qid", "query", "topic", "topicid",
                "visitorid", "customerid"),
    "item_id": ("itemid", "item", "itemidx", "iid", "movieid", "docid", "docno", "doc", "document",
                "documentid", "productid", "sku", "skuid"),
    "query_id": ("queryid", "qid", "query"),
    "rank": ("rank",),
    "score": ("score", "scores", "prediction", "est", "sim", "rating", "relevance"),
    "relevance": ("relevance", "rel", "label", "grade"),
    "rating": ("rating",),
    "prediction": ("prediction", "pred", "est", "ratingpred", "score"),
    "outcome": ("outcome", "rui", "rating", "ratingtrue", "label", "target"),
    "weight": ("weight", "sampleweight"),
    "vector": ("vector", "embedding", "factors", "features"),
    "bias": ("bias", "itembias"),
}  # fmt: skip
"""Our name for a column, and the usual ones: in small letters, without `_` and without a type behind `:`.
"""

LOG_NAMES: Mapping[str, tuple[str, ...]] = {
    "user_id": (*USUAL["user_id"], "reviewerid", "memberid", "accountid", "authorid", "steamid"),
    "item_id": (*USUAL["item_id"], "asin", "parentasin", "businessid", "locationid", "venueid", "poiid",
                "trackid", "songid", "artistid", "bookid", "isbn", "gameid", "recipeid", "articleid",
                "newsid", "courseid", "jobid"),
    "rating": ("rating", "ratings", "relevance", "overall", "stars", "score", "weight", "playcount",
               "plays", "label", "bookrating", "userrating", "reviewrating", "reviewscore", "starrating"),
    "event_time": ("eventtime", "timestamp", "time", "datetime", "date", "ts", "unixreviewtime",
                   "reviewtime", "createdat", "ratingtimestamp", "ratingtime", "timestampms",
                   "checkintime"),
}  # fmt: skip
"""Our name for a log's column, and the usual ones, in the form of `USUAL`."""

EVENT_NAMES = (
    *(
        "event",
        "eventtype",
        "eventname",
        "action",
        "actiontype",
        "activity",
        "interaction",
        "interactiontype",
    ),
    *("behavior", "behaviour", "behaviortype", "behaviourtype"),
)
"""Usual names of a column with events, in the form of `USUAL`."""

TARGET_NAMES = (
    "purchase",
    "buy",
    "bought",
    "transaction",
    "order",
    "conversion",
    "pay",
    "click",
    "complete",
)
"""Usual names of what a shop or a site asks for, the first one first."""

_PAIR = ("user_id", "item_id")

ROLES: Mapping[str, tuple[str, ...]] = {
    "truth": (*_PAIR, "relevance", "rating"),
    "lists": (*_PAIR, "rank", "score"),
    "scores": (*_PAIR, "score"),
    "predictions": (*_PAIR, "prediction", "outcome", "weight"),
    "features": ("item_id", "vector"),
    "items": ("item_id", "vector", "bias"),
    "item embeddings": ("item_id", "vector", "bias"),
    "user embeddings": ("user_id", "vector"),
    "pairs": ("query_id", "item_id"),
}
"""The columns read from each table; from all others, the pair of ids."""

ASKED = ("truth", "lists", "scores", "candidates")
"""Tables with a query_id beside user_id, where users have several rankings: under our name, or one that the
caller gives."""

INSTEAD = {"relevance": "rating", "rating": "relevance", "score": "rank"}
"""Columns ignored if the table has the other one: a rank wins over a score."""

VECTOR_ID = "id"
"""MLlib's name for ids beside vectors, both users' and items'."""


def strip_name(name: str) -> str:
    """Return a name in the form of `USUAL`.

    >>> strip_name("userId"), strip_name("item_id:token"), strip_name("r_ui")
    ('userid', 'itemid', 'rui')
    """
    return re.sub(r"[\s_-]+", "", re.sub(r":(token|float)(_seq)?$", "", str(name)).lower())


def names_ids(keys: Iterable[Any]) -> bool:
    """Return whether keys name an id column.

    A dict with such a key is a table.
    """
    usual = {name for role, names in USUAL.items() if role.endswith("_id") for name in names}
    return any(strip_name(key) in usual for key in keys if isinstance(key, str))


def list_roles(what: str) -> tuple[str, ...]:
    """Return our names for a table's columns.

    The table is called `lists` or `lists of als`, for example.
    """
    return ROLES.get(what.partition(" of ")[0], _PAIR)


@dataclass
class ColumnNames:
    """The caller's column names, and notes on other names taken.

    Attributes:
        given: our name -> the caller's name, for all tables; or a table's name -> such a mapping.
        notes: one text for each table in which other names than ours were taken.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the caller's names. Raises ConfigError."""
        if not isinstance(self.given, Mapping):
            hint = "give our names and yours: columns={'user_id': 'userId'}"
            raise ConfigError(f"columns is {show_value(self.given)}", hint)
        known = {*USUAL, *ROLES, "train", "candidates"}
        for name, value in self.given.items():
            if name not in known:
                raise ConfigError(f"columns: unknown {show_value(name)}", nearest(str(name), known))
            entries = value if isinstance(value, Mapping) else {name: value}
            for role, source in entries.items():
                if role not in USUAL or not isinstance(source, str):
                    hint = nearest(str(role), USUAL)
                    raise ConfigError(f"columns: {show_value({role: source})}", hint)

    def match(self, names: Sequence[str], what: str) -> dict[str, str]:
        """Return our name -> the table's, if different; note it.

        Raises:
            SchemaError: a column named by the caller is missing; two columns could be the same one.
        """
        everywhere = {name: value for name, value in self.given.items() if isinstance(value, str)}
        own = {**everywhere, **self.given.get(what.partition(" of ")[0], {})}
        matched: dict[str, str] = {}
        roles = list_roles(what)
        if QUERY_ID in own and what.partition(" of ")[0] in ASKED:
            roles = (QUERY_ID, *(role for role in roles if role != QUERY_ID))
        for role in roles:
            if role in own and (own[role] in names or role not in names):
                if own[role] not in names:
                    raise SchemaError(f"{what} has no column {own[role]}", nearest(own[role], names))
                matched[role] = own[role]
            elif role not in names and INSTEAD.get(role) not in (*names, *matched):
                source = self._find_usual(role, names, matched, what)
                matched |= {role: source} if source else {}
        self._refuse_log(matched, own, names, what)
        taken = [f"{source} for {role}" for role, source in matched.items() if own.get(role) != source]
        if taken:
            self.notes.append(f"{what}: {', '.join(taken)}")
        return {role: source for role, source in matched.items() if role != source}

    @staticmethod
    def _refuse_log(
        matched: Mapping[str, str], own: Mapping[str, str], names: Sequence[str], what: str
    ) -> None:
        """Refuse lists whose only scores are ratings beside times.

        Such lists look like rows from a log.

        Raises:
            SchemaError: the lists are such; the hint says how to take the column as it is.
        """
        source = matched.get("score", "")
        is_rating = strip_name(source) in LOG_NAMES["rating"][:3] and own.get("score") != source
        times = [name for name in names if strip_name(name) in LOG_NAMES["event_time"]]
        if what.partition(" of ")[0] == "lists" and is_rating and times:
            message = f"{what}: {source} beside {times[0]} may be ratings of users, no scores"
            hint = f"where they are scores of a model: columns={{'score': '{source}'}}; else give its lists"
            raise SchemaError(message, hint)

    @staticmethod
    def _find_usual(role: str, names: Sequence[str], matched: Mapping[str, str], what: str) -> str | None:
        usual = USUAL[role]
        if "vector" in list_roles(what) and role.endswith("_id"):
            usual = (*usual, VECTOR_ID)
        elif role == "item_id":
            usual = (*usual, *ARRAYS)
        free = [name for name in names if name not in matched.values() and name not in list_roles(what)]
        similar = [name for name in free if strip_name(name) in usual]
        if role == "user_id" and len(similar) > 1 and QUERY_ID in similar:
            similar.remove(QUERY_ID)  # beside a column of users it is a query
        if len(similar) > 1:
            hint = f"say which: columns={{'{role}': '{similar[0]}'}}"
            raise SchemaError(f"{what}: {' and '.join(similar)} could both be {role}", hint)
        return similar[0] if similar else None

    def list_unread(self, names: Sequence[str], what: str) -> list[str]:
        """Return scores which stay unread, because their lists have ranks."""
        return ["score"] if what.startswith("lists") and {"rank", "score"} <= set(names) else []

    def rename(self, table: pa.Table, what: str) -> pa.Table:
        """Return an Arrow table under our names, without replaced columns."""
        ours, replaced = self._list_changes(table.column_names, what)
        table = table.drop_columns(replaced)
        table = table.rename_columns([ours.get(name, name) for name in table.column_names])
        table = unfold_table(table, what.partition(" of ")[0])
        return table.drop_columns(self.list_unread(table.column_names, what))

    def rename_frame(self, frame: DataFrame, what: str) -> DataFrame:
        """Return a Spark frame under our names, as `rename` does."""
        ours, replaced = self._list_changes(frame.columns, what)
        frame = frame.drop(*replaced)
        frame = frame.toDF(*(ours.get(name, name) for name in frame.columns))
        frame = unfold_frame(frame, what.partition(" of ")[0])
        return frame.drop(*self.list_unread(frame.columns, what))

    def take(self, names: Sequence[str], what: str) -> dict[str, str]:
        """Return our name -> the table's, for columns read."""
        ours, replaced = self._list_changes(names, what)
        taken = {ours.get(name, name): name for name in names if name not in replaced}
        unread = self.list_unread(list(taken), what)
        return {name: source for name, source in taken.items() if name not in unread}

    def rename_names(self, names: Sequence[str], what: str) -> list[str]:
        """Return a table's column names under our names."""
        ours, replaced = self._list_changes(names, what)
        return [ours.get(name, name) for name in names if name not in replaced]

    def _list_changes(self, names: Sequence[str], what: str) -> tuple[dict[str, str], list[str]]:
        """Return the table's name -> ours, and columns not read.

        The latter's names go to other columns.
        """
        matched = self.match(names, what)
        ours = {source: role for role, source in matched.items()}
        return ours, [role for role in matched if role in names and role not in ours]
