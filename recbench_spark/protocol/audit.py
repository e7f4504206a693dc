"""What a task counts of labelled rows for the manifest: functions of Arrow tables, without a row in Java.

Of each piece of the rows one small table comes: a row a user and a row an item with its rows in each
part. These meet by id in one shuffle (`blocks`); what they say together is a few sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recbench_spark.kernels.arrays import Bools, Ints
from recbench_spark.protocol.labels import GIVEN, LATER, OPEN_LOOP, TRAIN, VALID
from recbench_spark.protocol.positions import encode_ids, id_column, id_numbers
from recbench_spark.storage.blocks import Block, partition_rows

COLUMNS = ("user_id", "item_id", "rating", "event_time", "part")

NOT_HELD_OUT = (TRAIN, GIVEN, LATER, OPEN_LOOP)
"""Parts whose times say nothing about the future of training; an open loop runs beside the log."""

ROWS_PER_PIECE = 1 << 22
"""Rows of a file that a task looks at together, 200 MB."""

USERS, ITEMS, TOTALS = 0, 1, 2
"""What a row of a piece's table is of: a user, an item, or a number of the whole piece."""

LATEST = np.iinfo(np.int64).max


class PartSummary(NamedTuple):
    """A part of a split: its rows, a hash that their order does not change, its first and last time."""

    rows: int
    content_hash: str
    earliest: int | None
    latest: int | None


@dataclass(frozen=True)
class AuditRequest:
    """What a task has to know: rows of each part, and the earliest time held out."""

    rows: dict[str, int]
    earliest: int | None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts there are, in an order that all tasks share."""
        return tuple(self.rows)


# ------------------------------------------------------------------------------------ files


def read_pieces(path: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """A file of labelled rows, as many whole row groups at a time as hold ROWS_A_PIECE rows, or one."""
    texts = [name for name in ("user_id", "item_id", "part") if name in columns]
    file = pq.ParquetFile(path, memory_map=True, read_dictionary=texts)
    held: list[int] = []
    n = 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if held and n + rows > ROWS_PER_PIECE:
            yield file.read_row_groups(held, columns=list(columns))
            held, n = [], 0
        held.append(group)
        n += rows
    if held:
        yield file.read_row_groups(held, columns=list(columns))


# ------------------------------------------------------------------------------------ by part


def summarise_parts(tables: Iterable[pa.Table]) -> dict[str, tuple[int, int, list[int], list[int]]]:
    """Of each part rows, the sum of the rows' hashes, and the ends of its times, none or one of each."""
    found: dict[str, tuple[int, int, list[int], list[int]]] = {}
    for table in tables:
        names, part_r = _read_parts(table)
        hash_r = _hash_rows(table)
        time_r, timed = _read_times(table)
        for n in np.unique(part_r).tolist():
            of = part_r == n
            times = time_r[of & timed]
            ends = ([int(times.min())], [int(times.max())]) if len(times) else ([], [])
            one = (int(of.sum()), exact_sum(hash_r[of]), *ends)
            found[names[n]] = one if names[n] not in found else _merge_pair(found[names[n]], one)
    return found


def merge_parts(
    found: Iterable[dict[str, tuple[int, int, list[int], list[int]]]],
) -> dict[str, PartSummary]:
    """The parts of a split, by name, from what its tasks found."""
    every: dict[str, tuple[int, int, list[int], list[int]]] = {}
    for one in found:
        for name, counted in one.items():
            every[name] = counted if name not in every else _merge_pair(every[name], counted)
    return {
        name: PartSummary(rows, str(hashes), min(first, default=None), max(last, default=None))
        for name, (rows, hashes, first, last) in sorted(every.items())
    }


def _merge_pair(
    one: tuple[int, int, list[int], list[int]], other: tuple[int, int, list[int], list[int]]
) -> tuple[int, int, list[int], list[int]]:
    return (
        one[0] + other[0],
        one[1] + other[1],
        [min(one[2] + other[2])] if one[2] or other[2] else [],
        [max(one[3] + other[3])] if one[3] or other[3] else [],
    )


def exact_sum(values: Ints) -> int:
    """The sum of 64-bit numbers, which 64 bits need not hold."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def _hash_rows(table: pa.Table) -> Ints:
    """(r,) Spark's `xxhash64(user_id, item_id, rating, event_time)`, which passes a missing time over."""
    # Here: numba takes half a second to load.
    from recbench_spark.kernels import hashing  # noqa: PLC0415
    from recbench_spark.kernels.hashed_ids import hash_encoded  # noqa: PLC0415

    hash_r = hashing.start(len(table))
    rows = encode_ids(table)
    for name in ("user_id", "item_id"):
        hash_r = hash_encoded(id_column(rows, name), hash_r)
    rating_r = table.column("rating").to_numpy() + 0.0  # -0.0 is hashed as 0.0
    hash_r = hashing.hash_longs(rating_r.view(np.int64), hash_r)
    time_r, timed = _read_times(table)
    return np.where(timed, hashing.hash_longs(time_r, hash_r), hash_r).view(np.int64)


def _read_times(table: pa.Table) -> tuple[Ints, Bools]:
    """The rows' times, 0 where they have none, and which have one."""
    column = table.column("event_time")
    return pc.fill_null(column, 0).to_numpy(), pc.is_valid(column).to_numpy()


def _read_parts(table: pa.Table) -> tuple[list[str], Ints]:
    """The names of parts, and the number of each row's among them."""
    column = table.column("part").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.unify_dictionaries().chunks)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.dictionary.to_pylist(), column.indices.to_numpy().astype(np.int64)


# ------------------------------------------------------------------------------- by user and item


def count_in_blocks(tables: Iterable[pa.Table], asked: AuditRequest, tasks: int) -> Iterator[Block]:
    """What is counted of each piece, dealt out by id."""
    from recbench_spark.kernels.hashed_ids import hash_ids  # noqa: PLC0415

    for table in tables:
        if len(table):
            found = count_piece(table, asked)
            hashes = hash_ids(found.column("id"))
            yield from partition_rows(found, (hashes % np.uint64(tasks)).astype(np.int32))


def count_piece(table: pa.Table, asked: AuditRequest) -> pa.Table:
    """of, id, pieces (1) and `n0`, `n1` ...: rows in each part; of the piece itself a number in `n0`."""
    rows = encode_ids(table)
    part_r = _number_parts(table, asked.parts)
    tables = [
        _count_owners(rows, name, of, part_r, len(asked.parts))
        for of, name in ((USERS, "user_id"), (ITEMS, "item_id"))
    ]
    whole = {"overlap": _count_overlap(rows, part_r, asked), **_count_future(rows, part_r, asked)}
    numbers = np.zeros((len(whole), len(asked.parts)), np.int64)
    numbers[:, 0] = list(whole.values())
    return pa.concat_tables(
        [*tables, _make_counts(TOTALS, pa.array(list(whole)), numbers)]
    ).combine_chunks()


def _number_parts(table: pa.Table, parts: Sequence[str]) -> Ints:
    names, part_r = _read_parts(table)
    # A file's dictionary may name parts that no row of it is in.
    return np.array([parts.index(name) if name in parts else -1 for name in names], np.int64)[part_r]


def _make_counts(of: int, ids: pa.Array, numbers: Ints) -> pa.Table:
    columns = {f"n{p}": pa.array(np.ascontiguousarray(numbers[:, p])) for p in range(numbers.shape[1])}
    head = {"of": pa.repeat(np.int8(of), len(ids)), "id": ids.cast(pa.string())}
    return pa.table({**head, "pieces": pa.repeat(np.int64(1), len(ids)), **columns})


def _count_owners(rows: pa.Table, name: str, of: int, part_r: Ints, parts: int) -> pa.Table:
    column = id_column(rows, name)
    places = id_numbers(rows, name) * parts + part_r
    counts = np.bincount(places, minlength=parts * len(column.dictionary)).reshape(-1, parts)
    there = counts.any(axis=1)
    return _make_counts(of, column.dictionary.filter(pa.array(there)), counts[there])


def _in_parts(parts: Sequence[str], wanted: Iterable[str], part_r: Ints) -> Bools:
    wanted = set(wanted)
    return np.array([part in wanted for part in parts])[part_r]


def _count_overlap(rows: pa.Table, part_r: Ints, asked: AuditRequest) -> int:
    """Pairs in more than one row. What is tested on may be shown in the open loop too; what was trained on
    must not."""
    pair_r = id_numbers(rows, "user_id") << 32 | id_numbers(rows, "item_id")
    order = np.argsort(pair_r, kind="stable")
    again = np.append(False, np.diff(pair_r[order]) == 0)
    if not again.any():
        return 0
    pair_r, number_r = np.unique(pair_r, return_inverse=True)
    open_r = _in_parts(asked.parts, [OPEN_LOOP], part_r)
    known_r = _in_parts(asked.parts, [TRAIN, GIVEN, VALID], part_r)
    opened, others, known = (np.bincount(number_r, of) for of in (open_r, ~open_r, known_r))
    return int(((opened > 1) | (others > 1) | ((opened > 0) & (known > 0))).sum())


def _count_future(rows: pa.Table, part_r: Ints, asked: AuditRequest) -> dict[str, int]:
    """Training rows later than the earliest held-out row, of all users and of their own."""
    time_r, timed = _read_times(rows)
    train = _in_parts(asked.parts, [TRAIN], part_r) & timed
    held_out = ~_in_parts(asked.parts, NOT_HELD_OUT, part_r) & timed
    user_r = id_numbers(rows, "user_id")
    first_u = np.full(len(id_column(rows, "user_id").dictionary), LATEST)
    np.minimum.at(first_u, user_r[held_out], time_r[held_out])
    later = 0 if asked.earliest is None else int((time_r[train] > asked.earliest).sum())
    return {"later": later, "own_later": int((time_r[train] > first_u[user_r[train]]).sum())}


# ------------------------------------------------------------------------------ what it says together


def merge_pieces(pieces: pa.Table) -> pa.Table:
    """One row a user, an item and a number, of all pieces."""
    names = [name for name in pieces.column_names if name not in ("of", "id")]
    found = pieces.group_by(["of", "id"], use_threads=False).aggregate([(name, "sum") for name in names])
    return found.rename_columns([name.removesuffix("_sum") for name in found.column_names])


def sum_counts(found: pa.Table, asked: AuditRequest) -> Counter[Any]:
    """Sums over users and items: those of all tasks add up."""
    of = found.column("of").to_numpy()
    every = np.stack([found.column(f"n{p}").to_numpy() for p in range(len(asked.parts))], axis=1)
    sums: Counter[Any] = Counter()
    for name, n in zip(
        found.column("id").filter(pa.array(of == TOTALS)), every[of == TOTALS, 0], strict=True
    ):
        sums[name.as_py()] += int(n)
    # Numbers of pieces add up to those of the split where no user stands in two of them.
    sums["parted"] = int((found.column("pieces").to_numpy()[of == USERS] > 1).sum())
    for kind, owner in ((USERS, "users"), (ITEMS, "items")):
        sums.update(_sum_owners(every[of == kind], owner, asked.parts))
    if TRAIN in asked.parts:
        sums.update(_sum_gaps(every[of == ITEMS], asked))
    return sums


def _sum_owners(counts: Ints, owner: str, parts: Sequence[str]) -> dict[tuple[str, str], int]:
    """Owners with rows in each part; of these the ones without training; all whose rows are given."""
    there = counts > 0
    cold = ~there[:, parts.index(TRAIN)] if TRAIN in parts else np.ones(len(counts), np.bool_)
    found = {(f"{owner} of", part): int(there[:, p].sum()) for p, part in enumerate(parts)}
    found |= {(f"cold {owner} of", part): int((there[:, p] & cold).sum()) for p, part in enumerate(parts)}
    given = there[:, parts.index(GIVEN)] if GIVEN in parts else np.zeros(len(counts), np.bool_)
    known = [part in (GIVEN, LATER, OPEN_LOOP) for part in parts]
    untested = given & ~there[:, ~np.array(known)].any(axis=1)
    return found | {(owner, "cold"): int(cold.sum()), (owner, "untested"): int(untested.sum())}


def _sum_gaps(items: Ints, asked: AuditRequest) -> dict[tuple[str, str], int]:
    """Of each part sum over items of |n_train(i) n_part - n_part(i) n_train|, whole numbers."""
    train = asked.parts.index(TRAIN)
    trained = asked.rows[TRAIN]
    return {
        ("gap", part): exact_sum(np.abs(items[:, train] * asked.rows[part] - items[:, p] * trained))
        for p, part in enumerate(asked.parts)
    }
