"""Items that were candidates when a row was tested.

A user's rows at one time become one question, with candidates as of this time. Arrays with times are made
once a host, of all labelled rows. Axes: i items, n rows (a user and part), p truth items, q questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.core.checks import Check
from recbench_spark.core.definitions import Definition
from recbench_spark.core.hashed_ids import hash_encoded, hash_ids
from recbench_spark.core.hashing import Hashes, hash_bytes
from recbench_spark.errors import DataError
from recbench_spark.ranking.batches import read_item_lists, split_by_part
from recbench_spark.ranking.kernels.moments import (
    ALWAYS,
    Periods,
    UserMoments,
    count_available,
    mark_available,
)
from recbench_spark.ranking.kernels.positives import ItemLists, make_positives
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.ranking.successive import TRUTH, repeat_ranges
from recbench_spark.schemas import QUERY_ID
from recbench_spark.splits.labels import TRAIN
from recbench_spark.splits.positions import encode_ids, id_column, name_parts
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.shared_arrays import SharedRows, flatten_lists

AS_OF = "as_of"
"""Column with a question's moment, in microseconds; NULL without truth."""

Counts = dict[str, int]

LABELLED = ("user_id", "item_id", "event_time", "part")


@dataclass(frozen=True)
class ItemMoments:
    """Times when items were candidates, and truth items were tested.

    Attributes:
        rows: a split's labelled rows (LABELLED).
        items: the catalogue.
        parts: the evaluated parts.
        first_seen_in: rows that make an item seen: all, or those of training.
        unavailable: what becomes of truth that was no candidate: left out, not ranked, or (for counts)
            kept as it is.
    """

    rows: SharedRows
    items: KnownItems
    parts: tuple[str, ...]
    first_seen_in: Literal["log", "train"]
    unavailable: Literal["left_out", "miss", "keep"]

    def open(self) -> OpenMoments:
        """Return the arrays, mapped by this process."""
        return _open(self.rows, self.items, self.parts, self.first_seen_in)


class OpenMoments(NamedTuple):
    """Items' periods, and truth items' times by the hash of user, item and part.

    `hash_p` ascends; `time_p` has the times. span: the first and last of them.
    """

    periods: Periods
    hash_p: Hashes
    time_p: Ints
    span: tuple[int, int]

    def find_times(self, users: pa.Table) -> Ints:
        """Return the time of each truth item, (p,), of rows of `PART_USERS`."""
        lists = users.column("item_ids").combine_chunks()
        count_n = np.diff(flatten_lists(lists)[0])
        parts = pa.array(np.repeat(np.arange(len(users)), count_n))
        keys_p = np.repeat(users.column("user_key").to_numpy().view(np.uint64), count_n)
        hashes_p = hash_ids(lists.flatten(), hash_ids(users.column("part").take(parts), keys_p))
        times: Ints = self.time_p[np.searchsorted(self.hash_p, hashes_p)]
        return times

    def at(self, moment_u: Ints) -> UserMoments:
        """Return what counting needs for users in order of their moments."""
        return UserMoments(moment_u, self.periods, self.span)

    def hide_listed(self, users: pa.RecordBatch, masked: ItemLists | None) -> ItemLists:
        """Return masked items and listed ones that were no candidates; unknown items are not told."""
        listed = read_item_lists(users, "list_items")
        moment_u = users.column(AS_OF).fill_null(ALWAYS - 1).to_numpy()
        user_n = np.repeat(np.arange(len(moment_u)), np.diff(listed.offsets_u))
        items_n = listed.items_p
        known_n = (items_n >= 0) & (items_n < len(self.periods.offsets_i) - 1)
        known_n[known_n] = ~mark_available(self.periods, items_n[known_n], moment_u[user_n[known_n]])
        user_n, items_n = user_n[known_n], items_n[known_n]
        if masked is not None:
            user_n = np.append(user_n, np.repeat(np.arange(len(moment_u)), np.diff(masked.offsets_u)))
            items_n = np.append(items_n, masked.items_p)
        order = np.argsort(user_n, kind="stable")
        bounds = np.append(0, np.cumsum(np.bincount(user_n, minlength=len(moment_u))))
        return ItemLists(bounds, items_n[order])


@lru_cache(maxsize=2)
def _open(
    rows: SharedRows, items: KnownItems, parts: tuple[str, ...], seen_in: Literal["log", "train"]
) -> OpenMoments:
    named = SharedRows(f"{rows.key}-moments-{seen_in}-{'-'.join(parts)}", rows.files)
    arrays = named.arrays(lambda dataset, folder: _build(dataset, folder, items, parts, seen_in))
    first_i = arrays["first"]
    seen_i = first_i < ALWAYS
    begin_p = first_i[seen_i]
    offsets_i = np.append(0, np.cumsum(seen_i))
    periods = Periods(offsets_i, begin_p, np.full(len(begin_p), ALWAYS))
    time_p = arrays["time"]
    span = (int(time_p.min()), int(time_p.max())) if len(time_p) else (0, 0)
    return OpenMoments(periods, arrays["hash"], time_p, span)


def _build(
    dataset: ds.Dataset, folder: Path, items: KnownItems, parts: tuple[str, ...], seen_in: str
) -> None:
    """Write items' first times, (i,), and truth items' times by hash, (p,).

    The arrays take 8 bytes an item, and 16 a truth item.

    Raises:
        DataError: rows have no time; or two truth items have one hash.
    """
    first_i, hashes, times = (
        np.full(items.n_items, ALWAYS),
        [np.empty(0, np.uint64)],
        [np.empty(0, np.int64)],
    )
    for rows in map(_to_table, dataset.to_batches(columns=list(LABELLED))):
        time_r = rows.column("event_time").to_numpy()
        names, part_r = name_parts(rows)
        ids = id_column(rows, "item_id")
        item_r = items.find(ids.dictionary)[0][ids.indices.to_numpy()]
        seen_r = np.isin(names, [TRAIN] if seen_in == "train" else names)[part_r]
        np.minimum.at(first_i, item_r[seen_r], time_r[seen_r])
        tested_r = np.flatnonzero(np.isin(names, parts)[part_r])
        hashes.append(_hash_rows(rows.take(pa.array(tested_r)), names, part_r[tested_r]))
        times.append(time_r[tested_r])
    hash_p, time_p = np.concatenate(hashes), np.concatenate(times)
    order = np.argsort(hash_p)
    hash_p, time_p = hash_p[order], time_p[order]
    if (hash_p[1:] == hash_p[:-1]).any():
        raise DataError("two tested rows have one hash of user, part and item", "give other ids to users")
    for name, array in {"first": first_i, "hash": hash_p, "time": time_p}.items():
        shared_arrays.save_array(folder, name, array)


def _to_table(batch: pa.RecordBatch) -> pa.Table:
    rows = encode_ids(pa.Table.from_batches([batch]))
    if untimed := rows.column("event_time").null_count:
        raise DataError(
            f"definition.candidates_as_of: {untimed:,} of {len(rows):,} rows have no event_time",
            "map dataset.columns.event_time, or definition.candidates_as_of: none",
        )
    return rows


def _hash_rows(rows: pa.Table, names: list[str], part_r: Ints) -> Hashes:
    """Hash user, part and item of each row, as `OpenMoments.find_times`."""
    hash_r = hash_encoded(id_column(rows, "user_id"))
    for number, name in enumerate(names):
        hash_r[part_r == number] = hash_bytes(name.encode(), hash_r[part_r == number])
    return hash_encoded(id_column(rows, "item_id"), hash_r)


# ------------------------------------------------------------------------------- questions


def ask_at_times(users: pa.Table, moments: ItemMoments, keep_empty: bool) -> pa.Table:
    """Ask for each row's truth of one time alone: rows of `MOMENT_USERS`.

    Questions that have `query_id` keep it; others have the number of their time in the user's part, from
    1, or NULL without truth. Truth that was no candidate is left out, and so are questions without any
    other; or it stays as item -1, which is never ranked.

    Args:
        users: rows of `PART_USERS` or `QUESTION_USERS`.
        moments: the times.
        keep_empty: keep a row without truth for users who have no other.
    """
    truth = _order_truth(users, moments)
    empty_n = _list_empty(users, truth.row_p) if keep_empty else np.empty(0, np.int64)
    first_q = np.flatnonzero(_differs(truth.row_p) | _differs(truth.number_p))
    row_q = np.append(truth.row_p[first_q], empty_n)
    count_q = np.append(np.diff(np.append(first_q, len(truth.row_p))), np.zeros_like(empty_n))
    place_q = np.argsort(row_q, kind="stable")
    row_q, count_q = row_q[place_q], count_q[place_q]
    first_q = pa.array(np.append(first_q, empty_n)[place_q], mask=count_q == 0)
    bounds_q = np.append(0, np.cumsum(count_q))
    columns = {name: users.column(name).combine_chunks() for name in users.column_names}
    values = {name: columns[name].flatten().take(pa.array(truth.at_p)) for name in TRUTH}
    values["items"] = pa.array(truth.item_p, pa.int32())
    bounds = pa.array(bounds_q, pa.int32())
    lists = {name: pa.ListArray.from_arrays(bounds, one) for name, one in values.items()}
    taken = {name: one.take(pa.array(row_q)) for name, one in columns.items() if name not in lists}
    taken["slices"] = _take_labels(columns["slices"], row_q, bounds_q, truth.place_p)
    numbers = pa.array(truth.number_p).take(first_q).cast(pa.string())
    taken[QUERY_ID] = pc.if_else(first_q.is_valid(), taken.get(QUERY_ID, numbers), None)
    moments_q = pa.array(truth.time_p).take(first_q)
    every = {**taken, **lists, AS_OF: moments_q}
    return pa.table({name: every[name] for name in dict.fromkeys([*columns, QUERY_ID, AS_OF])})


class _OrderedTruth(NamedTuple):
    """Truth items by row and time, (p,) each.

    `row_p`; `time_p`; `number_p`: the time's number in the row, from 1; `item_p`; `at_p`, `place_p`: their
    places among all truth items, and in the row's.
    """

    row_p: Ints
    time_p: Ints
    number_p: Ints
    item_p: Ints
    at_p: Ints
    place_p: Ints


def _order_truth(users: pa.Table, moments: ItemMoments) -> _OrderedTruth:
    """Order the truth by time; leave out or hide what was no candidate."""
    opened = moments.open()
    offsets, item_p = flatten_lists(users.column("items"))
    row_p, time_p = np.repeat(np.arange(len(users)), np.diff(offsets)), opened.find_times(users)
    at_p = np.lexsort((time_p, row_p))
    row_p, time_p, item_p = row_p[at_p], time_p[at_p], item_p[at_p].astype(np.int64)
    known_p = mark_available(opened.periods, item_p, time_p)
    if moments.unavailable == "miss":
        item_p = np.where(known_p, item_p, -1)
    stays_p = known_p | (moments.unavailable != "left_out")
    columns = row_p, time_p, _number_times(row_p, time_p), item_p, at_p, at_p - offsets[row_p]
    return _OrderedTruth(*(one[stays_p] for one in columns))


def sort_moments(users: pa.RecordBatch) -> tuple[pa.RecordBatch, Ints]:
    """Return rows in order of their moments, and their places; without truth, rows are of the end."""
    moment_n = users.column(AS_OF).fill_null(ALWAYS - 1)
    order = np.argsort(moment_n, kind="stable")
    place = users.schema.names.index(AS_OF)
    return users.set_column(place, AS_OF, moment_n).take(pa.array(order)), order


def _differs(values: Ints) -> Bools:
    """Mark values that differ from the one before; the first does."""
    marks: Bools = np.append(True, values[1:] != values[:-1])[: len(values)]
    return marks


def _number_times(row_p: Ints, time_p: Ints) -> Ints:
    """Number each row's times from 1, (p,)."""
    new_row_p = _differs(row_p)
    group_p = np.cumsum(new_row_p | _differs(time_p))
    first_p: Ints = group_p[new_row_p][np.cumsum(new_row_p) - 1]
    return group_p - first_p + 1


def _list_empty(users: pa.Table, row_p: Ints) -> Ints:
    """Return the first row of each user and part whose rows have no truth."""
    new_n = np.zeros(len(users), np.bool_)
    new_n[:1] = True
    for name in ("user_id", "part"):
        column = users.column(name).combine_chunks()
        new_n[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    owner_n = np.cumsum(new_n) - 1
    return np.flatnonzero(new_n & ~np.isin(owner_n, owner_n[np.unique(row_p)]))


def _take_labels(slices: pa.MapArray, row_q: Ints, bounds_q: Ints, place_p: Ints) -> pa.MapArray:
    """Return questions' labels by slice key; NULL without truth.

    Args:
        slices: labels of each row's truth.
        row_q: the row behind each question.
        bounds_q: bounds of each question's truth items, (q + 1,).
        place_p: their places in the row's truth.
    """
    starts, count_q = slices.offsets.to_numpy(), np.diff(bounds_q)
    missing_q = slices.is_null().to_numpy(zero_copy_only=False)[row_q] | (count_q == 0)
    length_q = np.where(missing_q, 0, np.diff(starts)[row_q])
    question_e, entry_e = repeat_ranges(starts[row_q], length_q)
    at_e, place = repeat_ranges(bounds_q[question_e], count_q[question_e])
    labels = slices.items.offsets.to_numpy()[entry_e][at_e] + place_p[place]
    bounds_e = pa.array(np.append(0, np.cumsum(count_q[question_e])), pa.int32())
    values = pa.ListArray.from_arrays(bounds_e, slices.items.values.take(pa.array(labels)))
    bounds = pa.array(np.append(0, np.cumsum(length_q)), pa.int32())
    maps = pa.MapArray.from_arrays(bounds, slices.keys.take(pa.array(entry_e)), values)
    return maps.take(pa.array(np.arange(len(maps)), mask=missing_q)).cast(slices.type)


# ------------------------------------------------------------------------------- counts

COUNTED = ("part", AS_OF, "items", "masked")
"""Columns of `MOMENT_USERS` read for the counts."""

COUNTS = ("questions", "items", "truth", "unavailable", "never", "itself")
"""Counts of `count_questions` that are added up, beside `least`."""


def count_questions(
    tables: Iterable[pa.Table], moments: ItemMoments, masks: bool
) -> list[tuple[str, Counts]]:
    """Count questions, candidates and truth by part.

    Args:
        tables: rows of `MOMENT_USERS` whose truth is kept as it is.
        moments: the times.
        masks: whether masked items are no candidates.

    Returns:
        Part and counts: questions, all their candidates (`items`) and the least of one, truth, truth that
        was no candidate (`unavailable`), among it truth that never was (`never`); truth of items that no
        earlier moment showed (`itself`).
    """
    opened = moments.open()
    return [
        (part, _count_part(users, opened, masks))
        for table in tables
        for batch in table.filter(table.column(AS_OF).is_valid()).combine_chunks().to_batches()
        for part, users in split_by_part(batch)
    ]


def _count_part(users: pa.RecordBatch, opened: OpenMoments, masks: bool) -> Counts:
    moment_q, truth = users.column(AS_OF).to_numpy(), read_item_lists(users, "items")
    scored_i = np.ones(len(opened.periods.offsets_i) - 1, np.bool_)
    none = ItemLists.empty(len(moment_q))
    plan = make_positives(scored_i, none, read_item_lists(users, "masked") if masks else none)
    items_q = count_available(scored_i, opened.at(moment_q), plan)
    moment_p = np.repeat(moment_q, np.diff(truth.offsets_u))
    known_p = mark_available(opened.periods, truth.items_p, moment_p)
    has_period_i = np.diff(opened.periods.offsets_i) > 0
    before_p = mark_available(opened.periods, truth.items_p, moment_p - 1)
    counts = (
        len(moment_q),
        items_q.sum(),
        len(known_p),
        (~known_p).sum(),
    )
    more = (~has_period_i[truth.items_p]).sum(), (known_p & ~before_p).sum()
    return {**dict(zip(COUNTS, map(int, (*counts, *more)), strict=True)), "least": int(items_q.min())}


def add_counts(counts: Iterable[tuple[str, Counts]]) -> dict[str, Counts]:
    """Add up counts by part."""
    total: dict[str, Counts] = {}
    for part, one in counts:
        own = total.setdefault(part, {**dict.fromkeys(COUNTS, 0), "least": one["least"]})
        total[part] = {name: own[name] + one[name] for name in COUNTS}
        total[part]["least"] = min(own["least"], one["least"])
    return total


def refuse_left_out(counts: Mapping[str, Counts], definition: Definition) -> None:
    """Refuse a part whose truth is left out as a whole.

    Raises:
        DataError: with the part, and the axes that leave it out.
    """
    for part, own in sorted(counts.items()):
        if own["unavailable"] == own["truth"] and definition.unavailable == "left_out":
            raise DataError(
                f"part '{part}': none of its {own['truth']} items was a candidate at its moment "
                f"(definition.candidates_as_of={definition.candidates_as_of})",
                "definition.first_seen_in: log, or definition.unavailable: miss",
            )


def check_moments(counts: Mapping[str, Counts], items: int, definition: Definition) -> list[Check]:
    """Make the checks on candidates as of their moments.

    Args:
        counts: by part, from `add_counts`.
        items: the catalogue's size.
        definition: the evaluation definition.
    """
    return [
        check for part in sorted(counts) for check in _check_part(part, counts[part], items, definition)
    ]


def _check_part(part: str, own: Counts, items: int, definition: Definition) -> list[Check]:
    mean, rule = own["items"] / own["questions"], definition.unavailable
    number = f"mean of {own['questions']} queries, at least {own['least']}, of {items} items"
    becomes = "left out" if rule == "left_out" else "not ranked: a miss"
    gone = f"of {own['truth']} items; {own['never']} never were; {becomes} (unavailable={rule})"
    checks = [
        Check(f"{part}: candidates as of the moment", mean, None, "info", number),
        Check(f"{part}: truth that was no candidate then", own["unavailable"], None, "info", gone),
    ]
    if definition.candidates_as_of != "first_seen" or definition.first_seen_in != "log":
        return checks
    itself = "no earlier row of the log showed the item (first_seen_in=log): only the asked moment does"
    return [*checks, Check(f"{part}: truth seen at its own moment", own["itself"], None, "info", itself)]
