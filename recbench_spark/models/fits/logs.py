"""A rating log as arrays, mapped by a host's fits.

It is written once and never sent through the driver. Rows are sorted by (user, item, part), and ids as
rankings sort them (as numbers if all are whole numbers, else by UTF-8 bytes). So the arrays depend on the
log alone, not on its files and partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recbench_spark.core.arrays import Floats, Ints, Ints32
from recbench_spark.core.ids import CANONICAL_INTEGER
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.models.rating.interface import UNSEEN, Ratings, RatingSettings, Scale, check_ratings
from recbench_spark.ranking.known_items import share_rows
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.blocks import Rows
from recbench_spark.storage.shared_arrays import SharedRows

COLUMNS = ("user_id", "item_id", "rating", "event_time", "part")
MICROSECONDS = 1_000_000
UNIT, CONTEXT = Decimal(1).scaleb(-15), Context(prec=38)

TIES = ("ratings", "times")
"""Arrays which order a repeated pair's rows, the last array first."""


@dataclass(frozen=True)
class SharedRatingLog:
    """A labelled log in shared files, sent with every task.

    Beside the files, it has the few facts the driver knows.

    Attributes:
        shared: Parquet with `COLUMNS`.
        parts: names of the parts; the code of a row's part is its place here.
        scale: lowest and highest possible rating.
        has_times: true if every row has a time.
        rows: number of rows in the log.
    """

    shared: SharedRows
    parts: tuple[str, ...]
    scale: Scale
    has_times: bool
    rows: int

    def open(self) -> RatingLog:
        """Map the arrays; a host's first task builds them."""
        build = partial(_build, parts=self.parts, has_times=self.has_times)
        return RatingLog(self.shared.arrays(build), self.parts, self.scale)


class KnownIds(NamedTuple):
    """Users and items known to training, in the order of ids.

    Attributes:
        users: (u,) number of each in the log.
        items: (i,) likewise.
    """

    users: Ints
    items: Ints


@dataclass(frozen=True)
class RatingLog:
    """A log's mapped arrays, ready for learners.

    Attributes:
        arrays: `users`, `items`, `ratings`, `parts` and, if the log has times, `times` (seconds), one value
            per row; `user_ids`, `item_ids`, one per user and item.
        parts: names of the parts.
        scale: lowest and highest possible rating.
    """

    arrays: shared_arrays.Arrays
    parts: tuple[str, ...]
    scale: Scale

    def find_rows(self, parts: tuple[str, ...]) -> Ints:
        """Return these parts' row numbers, ascending.

        Raises DataError for a part not in the log.
        """
        unknown = set(parts) - set(self.parts)
        if unknown:
            raise DataError(f"the log has no part '{min(unknown)}'", f"its parts: {', '.join(self.parts)}")
        codes = [self.parts.index(part) for part in parts]
        return np.flatnonzero(np.isin(self.arrays["parts"], codes))

    def ratings(self, rows: Ints, known: KnownIds | None = None) -> Ratings:
        """Return some rows as learners need them.

        Args:
            rows: numbers of the rows.
            known: numbered users and items, others are `UNSEEN`; None: the whole log's.
        """
        arrays = self.arrays
        times = arrays["times"][rows] if "times" in arrays else None
        users, items, ratings = (arrays[name][rows] for name in ("users", "items", "ratings"))
        if known is None:
            sizes = {"n_users": len(arrays["user_ids"]), "n_items": len(arrays["item_ids"])}
            return check_ratings(users, items, ratings, self.scale, times, **sizes)
        sizes = {"n_users": len(known.users), "n_items": len(known.items)}
        place_u, place_i = self.find_places(known)
        pairs = place_u[users], place_i[items]
        return check_ratings(*pairs, ratings, self.scale, times, **sizes, lowest=UNSEEN)

    def find_places(self, known: KnownIds) -> tuple[Ints, Ints]:
        """Return each log user's and item's place among known ones.

        An unknown user or item has -1.
        """
        sizes = len(self.arrays["user_ids"]), len(self.arrays["item_ids"])
        places = tuple(np.full(size, UNSEEN) for size in sizes)
        for place, ids in zip(places, known, strict=True):
            place[ids] = np.arange(len(ids))
        return places[0], places[1]

    def list_known(self, rows: Ints) -> KnownIds:
        """Return some rows' users and items, ordered by these rows alone."""
        sides = (("user_ids", "users"), ("item_ids", "items"))
        return KnownIds(*(_sort_ids(self.arrays[ids], np.unique(self.arrays[n][rows])) for ids, n in sides))

    def sort_rows(self, rows: Ints, known: KnownIds) -> Ints:
        """Sort known users' and items' rows by their places."""
        if all((np.diff(ids) > 0).all() for ids in known):  # as in the log, whose rows are sorted
            return rows
        place_u, place_i = self.find_places(known)
        return rows[np.lexsort((place_i[self.arrays["items"][rows]], place_u[self.arrays["users"][rows]]))]

    def with_ids(self, rows: Ints) -> dict[str, pa.Array]:
        """Return user_id, item_id, part, rating with original ids."""
        arrays = self.arrays
        parts = pa.DictionaryArray.from_arrays(pa.array(arrays["parts"][rows]), pa.array(self.parts))
        return {
            "user_id": as_text(arrays["user_ids"][arrays["users"][rows]]),
            "item_id": as_text(arrays["item_ids"][arrays["items"][rows]]),
            "part": parts.cast(pa.string()),
            "rating": pa.array(arrays["ratings"][rows]),
        }


def share_log(rows: Rows, given: Scale | None, scratch: str) -> SharedRatingLog:
    """Share labelled rows with all tasks on a host.

    The shared files are the split's, if tasks can read them.

    Args:
        rows: rows with `COLUMNS`.
        given: `dataset.scale`; None: the scale of the ratings.
        scratch: folder all workers can read.

    Raises:
        DataError: a rating outside the given scale.
    """
    facts = collect_facts(rows)
    scale = find_scale(facts, given)
    has_times = facts["timed"] == facts["rows"]
    shared = share_rows(rows, COLUMNS, scratch)
    return SharedRatingLog(shared, tuple(facts["parts"]), scale, has_times, facts["rows"])


def collect_facts(rows: Rows) -> dict[str, Any]:
    """Return a log's facts from one pass.

    The facts are `rows`, `timed` (rows with a time), `low` and `high` rating, and `parts`.
    """
    by_task = [facts for facts in rows.each(("rating", "event_time", "part"), _find_facts) if facts["rows"]]
    return {
        "rows": sum(facts["rows"] for facts in by_task),
        "timed": sum(facts["timed"] for facts in by_task),
        "low": min((facts["low"] for facts in by_task), default=None),
        "high": max((facts["high"] for facts in by_task), default=None),
        "parts": sorted(set().union(*(facts["parts"] for facts in by_task))),
    }


def _find_facts(tables: Iterable[pa.Table]) -> dict[str, Any]:
    lows, highs, parts, rows, timed = list[float](), list[float](), set[str](), 0, 0
    for table in tables:
        bounds = pc.min_max(table.column("rating")).as_py()
        if len(table):
            lows.append(bounds["min"])
            highs.append(bounds["max"])
        parts.update(table.column("part").unique().to_pylist())
        rows += len(table)
        timed += len(table) - table.column("event_time").null_count
    return {
        "rows": rows, "timed": timed, "low": min(lows, default=None), "high": max(highs, default=None),
        "parts": parts,
    }  # fmt: skip


def mean_rating(rows: Rows, parts: Sequence[str] = ("train",)) -> float:
    """Return the mean rating over some parts.

    As a sum of decimals it is the same under any partitioning.
    """
    sums = rows.each(("rating", "part"), partial(_sum_ratings, parts=parts))
    n = sum(n for _, n in sums)
    return float(sum((Fraction(total) for total, _ in sums), Fraction()) / n) if n else 0.0


def _sum_ratings(tables: Iterable[pa.Table], parts: Sequence[str]) -> tuple[Decimal, int]:
    total, n = Decimal(), 0
    for table in tables:
        chosen = pc.is_in(table.column("part").cast(pa.string()), pa.array(parts))
        ratings = table.column("rating").filter(chosen)
        total += (pc.sum(to_decimals(ratings.to_numpy())).as_py() or 0) if len(ratings) else 0
        n += len(ratings)
    return total, n


def to_decimals(values_n: Floats) -> pa.Array:
    """Round numbers to 15 decimals, whose sums are exact.

    Halves of their shortest texts go up.
    """
    distinct, place_n = np.unique(values_n, return_inverse=True)
    rounded = [Decimal(repr(number)).quantize(UNIT, ROUND_HALF_UP, CONTEXT) for number in distinct.tolist()]
    return pa.array(rounded, pa.decimal128(38, 15)).take(pa.array(place_n))


def find_scale(facts: dict[str, Any], given: Scale | None) -> Scale:
    """Return the rating scale: `dataset.scale`, else the log's extremes.

    Raises:
        DataError: a rating outside the given scale.
    """
    low, high = float(facts["low"]), float(facts["high"])
    scale = given or (low, high)
    if low < scale[0] or high > scale[1]:
        raise DataError(
            f"the log holds the rating {low if low < scale[0] else high:g}, outside dataset.scale"
            f" {scale[0]:g} to {scale[1]:g}",
            "correct the rows, or give the scale that the ratings are on",
        )
    return scale


def require_times(files: SharedRatingLog, model: str, settings: RatingSettings) -> None:
    """Raise ConfigError if a day-feature model gets an untimed log.

    The model could learn nothing.
    """
    features = str(getattr(settings, "features", ""))
    if "t" in features.split(",") and not files.has_times:
        raise ConfigError(
            f"model {model}: features '{features}' need the time of each rating; this log has rows without",
            f"features: {features.replace(',t', '')}, or map dataset.columns.event_time",
        )


def as_text(ids: npt.NDArray[Any]) -> pa.Array:
    """Convert ids to text."""
    return pa.array(ids).cast(pa.string())


def _build(dataset: ds.Dataset, folder: Path, parts: tuple[str, ...], has_times: bool) -> None:
    """Write a log's arrays from its Parquet.

    Memory holds the log once, and its sort order.
    """
    names = [name for name in COLUMNS if name != "event_time" or has_times]
    table = dataset.to_table(columns=names)
    users_r, user_ids = index_ids(table.column("user_id"))
    items_r, item_ids = index_ids(table.column("item_id"))
    parts_r = pc.index_in(table.column("part").combine_chunks(), pa.array(parts)).to_numpy()
    columns = {"users": users_r, "items": items_r, "parts": parts_r.astype(np.int16)}
    columns["ratings"] = table.column("rating").to_numpy()
    if has_times:
        columns["times"] = table.column("event_time").to_numpy() // MICROSECONDS
    order_r = _sort_rows([parts_r, items_r, users_r], [columns[name] for name in columns if name in TIES])
    for name, column in columns.items():
        shared_arrays.save_array(folder, name, column[order_r])
    shared_arrays.save_array(folder, "user_ids", user_ids)
    shared_arrays.save_array(folder, "item_ids", item_ids)


def _sort_rows(keys: list[npt.NDArray[Any]], ties: list[npt.NDArray[Any]]) -> Ints:
    """Sort rows by keys, the last key first.

    Further columns order repeated pairs, not their files.
    """
    order_r = np.lexsort(keys)
    repeated = [np.diff(key[order_r]) == 0 for key in keys]
    return np.lexsort([*ties, *keys]) if np.logical_and.reduce(repeated).any() else order_r


def index_ids(ids: pa.ChunkedArray) -> tuple[Ints32, npt.NDArray[Any]]:
    """Return (r,) each row's id index, and the distinct ids.

    The distinct ids are sorted UTF-8 bytes.
    """
    encoded = ids.combine_chunks().dictionary_encode()
    as_bytes = np.array(encoded.dictionary.cast(pa.binary()).to_pylist(), dtype=bytes)
    order = _sort_ids(as_bytes, np.arange(len(as_bytes)))
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return place[encoded.indices.to_numpy()], as_bytes[order]


def _sort_ids(ids: npt.NDArray[Any], chosen: Ints) -> Ints:
    """Sort some ids, (k,), as numbers or as UTF-8 bytes.

    Numbers decide the order if all ids are whole numbers.
    """
    texts = as_text(ids[chosen])
    whole = bool(pc.all(pc.match_substring_regex(texts, CANONICAL_INTEGER)).as_py())
    keys = pc.cast(texts, pa.int64()).to_numpy() if whole else ids[chosen]
    return chosen[np.argsort(keys, kind="stable")]
