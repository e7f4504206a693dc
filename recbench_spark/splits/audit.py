"""Count labelled rows for the manifest, in tasks without Java.

The functions work on Arrow tables. Each piece of the rows gives one small table: a row per user and per
item, with its number of rows in each part. One shuffle (`blocks`) brings an id's rows together; a few sums
over them give the facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.core.ids import PLACEHOLDERS
from recbench_spark.splits.events import SIGNAL
from recbench_spark.splits.labels import GIVEN, LATER, TRAIN, VALID
from recbench_spark.splits.pairs import OPEN_LOOP
from recbench_spark.splits.positions import encode_ids, id_column, id_numbers, name_parts
from recbench_spark.splits.queries import number_queries
from recbench_spark.storage.packed_blocks import Block, open_labelled, partition_rows

COLUMNS = ("user_id", "item_id", "rating", "event_time", "part")

NOT_HELD_OUT = (TRAIN, GIVEN, LATER, OPEN_LOOP)
"""Parts whose times do not count as the future of training; an open loop runs in parallel to the log."""

ROWS_PER_PIECE = 1 << 22
"""Rows of a file that a task holds at once, 200 MB."""

USERS, ITEMS, TOTALS = 0, 1, 2
"""Kinds of rows in a piece's table: a user, an item, or a total over the whole piece."""

OF_EVENTS = "dataset.events"
"""Stands for the part of trained rows whose events are no targets."""

LATEST = np.iinfo(np.int64).max


class PartSummary(NamedTuple):
    """A part's size, content hash, and first and last time.

    The hash does not depend on row order.
    """

    rows: int
    content_hash: str
    earliest: int | None
    latest: int | None


@dataclass(frozen=True)
class AuditRequest:
    """Request for an audit task: known facts, and allowed pairs.

    Attributes:
        rows: number of rows in each part.
        earliest: the earliest held-out time; None if rows have no times.
        keeps_known: true if the open loop may have pairs that training knows: they are no overlap.
        asks_repeats: true if other held-out parts may have them.
        signals: true if they may have pairs that training knows by events which are no targets.
        in_time: true if a pair may have several `later` rows: events before successive questions.
        query: column of queries, each of which may have a pair once; empty: there is none.
        by_time: true if a user's rows of each time are asked alone.
    """

    rows: dict[str, int]
    earliest: int | None
    keeps_known: bool = False
    asks_repeats: bool = False
    signals: bool = False
    in_time: bool = False
    query: str = ""
    by_time: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts, in an order that all tasks share."""
        return tuple(self.rows)


# ------------------------------------------------------------------------------------ files


def read_labelled(paths: Iterable[str], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Read files with labelled rows in groups of whole row groups.

    A group has up to ROWS_PER_PIECE rows, or is one row group.
    """
    for path in paths:
        file = open_labelled(path, columns)
        groups: list[int] = []
        n = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if groups and n + rows > ROWS_PER_PIECE:
                yield file.read_row_groups(groups, columns=list(columns))
                groups, n = [], 0
            groups.append(group)
            n += rows
        if groups:
            yield file.read_row_groups(groups, columns=list(columns))


# ------------------------------------------------------------------------------------ by part


Summaries = dict[str, tuple[int, int, list[int], list[int]]]
"""Each part's rows, hashes, first and last time; the times stand in lists, empty without times."""


def summarise_parts(tables: Iterable[pa.Table]) -> Summaries:
    """Sum up each part in some rows."""
    summaries: Summaries = {}
    for table in tables:
        names, part_r = name_parts(table)
        hash_r = _hash_rows(table)
        time_r, timed = _read_times(table)
        for n in np.unique(part_r).tolist():
            in_part = part_r == n
            times = time_r[in_part & timed]
            ends = ([int(times.min())], [int(times.max())]) if len(times) else ([], [])
            _add_summary(summaries, names[n], (int(in_part.sum()), exact_sum(hash_r[in_part]), *ends))
    return summaries


def merge_parts(summaries: Iterable[Summaries]) -> dict[str, PartSummary]:
    """Merge the summaries from all tasks, by part."""
    merged: Summaries = {}
    for one in summaries:
        for name, counted in one.items():
            _add_summary(merged, name, counted)
    return {
        name: PartSummary(rows, str(hashes), min(first, default=None), max(last, default=None))
        for name, (rows, hashes, first, last) in sorted(merged.items())
    }


def _add_summary(to: Summaries, name: str, one: tuple[int, int, list[int], list[int]]) -> None:
    rows, hashes, first, last = to.get(name, (0, 0, [], []))
    to[name] = (rows + one[0], hashes + one[1], sorted(first + one[2])[:1], sorted(last + one[3])[-1:])


def exact_sum(values: Ints) -> int:
    """Return the exact sum, beyond 64 bits if need be."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def _hash_rows(table: pa.Table) -> Ints:
    """Compute (r,) Spark's `xxhash64(user_id, item_id, rating, event_time)`.

    The hash skips a missing time.
    """
    # Imported here, because numba takes half a second to load.
    from recbench_spark.core import hashing  # noqa: PLC0415
    from recbench_spark.core.hashed_ids import hash_encoded  # noqa: PLC0415

    hash_r = hashing.start(len(table))
    rows = encode_ids(table)
    for name in ("user_id", "item_id"):
        hash_r = hash_encoded(id_column(rows, name), hash_r)
    rating_r = table.column("rating").to_numpy() + 0.0  # -0.0 is hashed as 0.0
    hash_r = hashing.hash_longs(rating_r.view(np.int64), hash_r)
    time_r, timed = _read_times(table)
    return np.where(timed, hashing.hash_longs(time_r, hash_r), hash_r).view(np.int64)


def _read_times(table: pa.Table) -> tuple[Ints, Bools]:
    """Return times, 0 if missing, with a mask."""
    column = table.column("event_time")
    return pc.fill_null(column, 0).to_numpy(), pc.is_valid(column).to_numpy()


# ------------------------------------------------------------------------------- by user and item


def count_in_blocks(tables: Iterable[pa.Table], request: AuditRequest, tasks: int) -> Iterator[Block]:
    """Count each piece, and partition the counts by id."""
    from recbench_spark.sources.dealt_ids import deal_table  # noqa: PLC0415

    yield from deal_table((count_piece(table, request) for table in tables if len(table)), "id", tasks)


def deal_users(tables: Iterable[pa.Table], tasks: int) -> Iterator[Block]:
    """Deal labelled rows in blocks, each user's to one task."""
    from recbench_spark.core.hashed_ids import hash_encoded  # noqa: PLC0415

    for table in tables:
        if len(table):
            rows = encode_ids(table.combine_chunks())
            task_r = hash_encoded(id_column(rows, "user_id")) % np.uint64(tasks)
            yield from partition_rows(rows, task_r.astype(np.int32))


def count_piece(table: pa.Table, request: AuditRequest) -> pa.Table:
    """Count a piece's rows.

    Returns:
        A table of, id, pieces (1) and `n0`, `n1` ...: the rows in each part. Totals over the piece are in
            `n0`.
    """
    rows, part_r, parts = encode_ids(table), _number_parts(table, request.parts), len(request.parts)
    tables = []
    for kind, name in ((USERS, "user_id"), (ITEMS, "item_id")):
        ids, places = id_column(rows, name).dictionary, id_numbers(rows, name) * parts + part_r
        counts = np.bincount(places, minlength=parts * len(ids)).reshape(-1, parts)
        has_rows = counts.any(axis=1)
        tables.append(_make_counts(kind, ids.filter(pa.array(has_rows)), counts[has_rows]))
    whole = count_by_user(table, request)
    numbers = np.zeros((len(whole), parts), np.int64)
    numbers[:, 0] = list(whole.values())
    return pa.concat_tables([*tables, _make_counts(TOTALS, pa.array(list(whole)), numbers)])


def _number_parts(table: pa.Table, parts: Sequence[str]) -> Ints:
    names, part_r = name_parts(table)
    # A file's dictionary may hold parts without a row.
    return np.array([parts.index(name) if name in parts else -1 for name in names], np.int64)[part_r]


def _make_counts(kind: int, ids: pa.Array, numbers: Ints) -> pa.Table:
    columns = {f"n{p}": pa.array(np.ascontiguousarray(numbers[:, p])) for p in range(numbers.shape[1])}
    head = {"of": pa.repeat(np.int8(kind), len(ids)), "id": ids.cast(pa.string())}
    return pa.table({**head, "pieces": pa.repeat(np.int64(1), len(ids)), **columns})


def _in_parts(parts: Sequence[str], names: Iterable[str], part_r: Ints) -> Bools:
    names = set(names)
    return np.array([part in names for part in parts])[part_r]


def count_by_user(table: pa.Table, request: AuditRequest) -> dict[str, int]:
    """Count repeated pairs, training rows from the future, and questions of users with several.

    The table has all rows of its users.
    """
    rows, part_r = encode_ids(table), _number_parts(table, request.parts)
    counts = {**count_repeated_pairs(rows, part_r, request), **_count_future(rows, part_r, request)}
    return counts | (_count_questions(rows, part_r, request) if request.query or request.by_time else {})


def _count_questions(rows: pa.Table, part_r: Ints, request: AuditRequest) -> dict[str, int]:
    """Count each held-out part's questions: queries, or times, of a user."""
    held_r = np.flatnonzero(~_in_parts(request.parts, (TRAIN, GIVEN, LATER), part_r))
    held_out, n_parts = rows.take(pa.array(held_r)), len(request.parts)
    if request.query:
        number_h = number_queries(held_out, request.query) + 1
    else:
        number_h = np.unique(_read_times(held_out)[0], return_inverse=True)[1]
    user_h = id_numbers(rows, "user_id")[held_r]
    keys = np.unique((user_h * (len(held_r) + 1) + number_h) * n_parts + part_r[held_r])
    counts = np.bincount(keys % n_parts, minlength=n_parts).tolist()
    return {f"questions {part}": n for part, n in zip(request.parts, counts, strict=True)}


def count_repeated_pairs(rows: pa.Table, part_r: Ints, request: AuditRequest) -> dict[str, int]:
    """Count pairs in several rows, also those which are allowed.

    `overlap`: pairs in more rows than allowed. `known`: open-loop pairs that training knows. `repeats`:
    held-out pairs that training knows, if the split asks for them. A tested pair may be in the open loop,
    and any pair may come later.
    """
    pair_r = id_numbers(rows, "user_id") << 32 | id_numbers(rows, "item_id")
    order = np.argsort(pair_r, kind="stable")
    again_o = np.append(False, np.diff(pair_r[order]) == 0)
    if not again_o.any():
        return {"overlap": 0, "known": 0, "repeats": 0}
    doubled_o = again_o | np.append(again_o[1:], False)
    order, number_r = order[doubled_o], np.cumsum(~again_o[doubled_o]) - 1
    n_pairs, twice = int(number_r[-1]) + 1, np.empty(0, np.int64)
    if request.query:
        order, number_r, twice = _join_queries(rows, part_r, (order, number_r), request)
    part_r, in_parts = part_r[order], request.parts
    if request.signals:
        trained_r = _in_parts(in_parts, [TRAIN, GIVEN], part_r)
        signal_r = rows.column(SIGNAL).take(pa.array(order)).to_numpy()
        part_r, in_parts = np.where(trained_r & signal_r, len(in_parts), part_r), (*in_parts, OF_EVENTS)

    def count(names: Iterable[str]) -> Ints:
        chosen = number_r[_in_parts(in_parts, names, part_r)]
        return np.bincount(chosen, minlength=n_pairs)

    opened, trained = count([OPEN_LOOP]), count([TRAIN, GIVEN])
    known = trained + count([VALID])
    others = count([part for part in request.parts if part not in (OPEN_LOOP, LATER)])
    doubled = opened > 1
    doubled[twice] = True
    if request.signals:
        doubled |= count([TRAIN, GIVEN, OF_EVENTS]) > 1
    if not request.keeps_known:
        doubled |= (opened > 0) & (known > 0)
    if request.asks_repeats:
        for part in {*request.parts} - ({LATER} if request.in_time else set()):
            doubled |= count([part]) > 1
    else:
        doubled |= others > 1
    repeats = (trained > 0) & (others > trained) & request.asks_repeats
    both = (opened > 0) & (known > 0)
    return {"overlap": int(doubled.sum()), "known": int(both.sum()), "repeats": int(repeats.sum())}


def _join_queries(
    rows: pa.Table, part_r: Ints, doubled: tuple[Ints, Ints], request: AuditRequest
) -> tuple[Ints, Ints, Ints]:
    """Return one row of each pair and held-out part, as if its queries were one.

    Args:
        rows: all rows of some users.
        part_r: their parts.
        doubled: places of rows whose pair is in another row, and the numbers of their pairs.
        request: the parts, and the column of queries.

    Returns:
        Places and numbers of the rows left, and the pairs that a query has twice in a part.
    """
    place_d, number_d = doubled
    part_d = part_r[place_d]
    query_d = number_queries(rows.take(pa.array(place_d)), request.query)
    apart_d = _in_parts(request.parts, (*NOT_HELD_OUT, OPEN_LOOP), part_d)
    group_d = number_d * len(request.parts) + part_d
    first = np.zeros(len(place_d), np.bool_)
    first[np.unique(group_d, return_index=True)[1]] = True
    of_query = group_d[~apart_d] * (len(place_d) + 1) + query_d[~apart_d] + 1
    again = np.ones(len(of_query), np.bool_)
    again[np.unique(of_query, return_index=True)[1]] = False
    left = apart_d | first
    return place_d[left], number_d[left], number_d[~apart_d][again]


def _count_future(rows: pa.Table, part_r: Ints, request: AuditRequest) -> dict[str, int]:
    """Count training rows later than the earliest held-out row.

    `own_later` compares rows with the same user's, `later` with all users'.
    """
    time_r, timed = _read_times(rows)
    train = _in_parts(request.parts, [TRAIN], part_r) & timed
    held_out = ~_in_parts(request.parts, NOT_HELD_OUT, part_r) & timed
    user_r = id_numbers(rows, "user_id")
    first_u = np.full(len(id_column(rows, "user_id").dictionary), LATEST)
    np.minimum.at(first_u, user_r[held_out], time_r[held_out])
    later = 0 if request.earliest is None else int((time_r[train] > request.earliest).sum())
    return {"later": later, "own_later": int((time_r[train] > first_u[user_r[train]]).sum())}


# ------------------------------------------------------------------------------ totals


def sum_pieces(pieces: pa.Table, request: AuditRequest) -> Counter[Any]:
    """Sum over users and items in pieces; results from tasks add up."""
    names = [name for name in pieces.column_names if name not in ("of", "id")]
    counts = pieces.group_by(["of", "id"], use_threads=False).aggregate([(name, "sum") for name in names])
    counts = counts.rename_columns([name.removesuffix("_sum") for name in counts.column_names])
    kinds = counts.column("of").to_numpy()
    numbers = np.stack([counts.column(f"n{p}").to_numpy() for p in range(len(request.parts))], axis=1)
    sums: Counter[Any] = Counter()
    names = counts.column("id").filter(pa.array(kinds == TOTALS)).to_pylist()
    for name, n in zip(names, numbers[kinds == TOTALS, 0].tolist(), strict=True):
        sums[name] += n
    # A piece's totals add up to the split's if no user is in two pieces.
    sums["parted"] = int((counts.column("pieces").to_numpy()[kinds == USERS] > 1).sum())
    for kind, owner in ((USERS, "users"), (ITEMS, "items")):
        own = kinds == kind
        sums.update(_sum_owners(numbers[own], owner, request.parts))
        sums.update(_find_suspects(counts.column("id").filter(pa.array(own)), numbers[own], owner, request))
    if TRAIN in request.parts:
        sums.update(_sum_gaps(numbers[kinds == ITEMS], request))
    return sums


def _sum_owners(counts: Ints, owner: str, parts: Sequence[str]) -> dict[tuple[str, str], int]:
    """Count owners: all, by part, cold, with only given rows.

    Cold owners have no training rows.
    """
    has_rows = counts > 0
    cold = ~has_rows[:, parts.index(TRAIN)] if TRAIN in parts else np.ones(len(counts), np.bool_)
    totals = {}
    for part, has_row in zip(parts, has_rows.T, strict=True):
        totals[f"{owner} of", part] = int(has_row.sum())
        totals[f"cold {owner} of", part] = int((has_row & cold).sum())
    given = has_rows[:, parts.index(GIVEN)] if GIVEN in parts else np.zeros(len(counts), np.bool_)
    not_tested = [part in (GIVEN, LATER, OPEN_LOOP) for part in parts]
    untested = given & ~has_rows[:, ~np.array(not_tested)].any(axis=1)
    whole = {"all": len(counts), "cold": int(cold.sum()), "untested": int(untested.sum())}
    return totals | {(owner, name): n for name, n in whole.items()}


EXTREME_SHARE = 0.1
"""Share of a log's rows from which on one id is suspect: it may stand for all whose id is missing."""


def _find_suspects(
    ids: pa.ChunkedArray, counts: Ints, owner: str, request: AuditRequest
) -> dict[tuple[str, str, str], int]:
    """Count rows of suspect ids.

    A suspect id has an extreme share of the log, or is a text which stands for a missing id.
    """
    rows = counts.sum(axis=1)
    extreme = rows > EXTREME_SHARE * sum(request.rows.values())
    placeholders = pc.is_in(pc.utf8_lower(ids), pa.array(sorted(PLACEHOLDERS))).to_numpy()
    suspects: dict[tuple[str, str, str], int] = {}
    for what, chosen in (("extreme", extreme), ("placeholder", placeholders)):
        names = ids.filter(pa.array(chosen)).to_pylist()
        suspects |= {(what, owner, name): n for name, n in zip(names, rows[chosen].tolist(), strict=True)}
    return suspects


def _sum_gaps(items: Ints, request: AuditRequest) -> dict[tuple[str, str], int]:
    """Sum up differences in popularity between training and each part.

    The differences are |n_train(i) n_part - n_part(i) n_train| over items i, in whole numbers.
    """
    train = request.parts.index(TRAIN)
    trained = request.rows[TRAIN]
    return {
        ("gap", part): exact_sum(np.abs(items[:, train] * request.rows[part] - items[:, p] * trained))
        for p, part in enumerate(request.parts)
    }
