"""Counts of labelled rows in tasks, without Spark: by hand, and for any cut of the rows into pieces."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from recbench_spark.protocol import audit
from recbench_spark.protocol.audit import COLUMNS, AuditRequest
from recbench_spark.storage.blocks import unpack_blocks

Row = tuple[str, str, float, int | None, str]


def table(rows: Sequence[Row]) -> pa.Table:
    kinds = (pa.string(), pa.string(), pa.float64(), pa.int64(), pa.string())
    columns = [pa.array([row[n] for row in rows], kind) for n, kind in enumerate(kinds)]
    return pa.table(dict(zip(COLUMNS, columns, strict=True)))


def sums(pieces: Sequence[pa.Table], request: AuditRequest, tasks: int) -> Counter[Any]:
    """Sum the counts of all tasks, after the blocks are brought together as Spark does it."""
    held: dict[int, list[bytes]] = {}
    for task, rows in audit.count_in_blocks(pieces, request, tasks):
        held.setdefault(task, []).append(rows)
    totals: Counter[Any] = Counter()
    for blocks in held.values():
        together = unpack_blocks(blocks)
        assert together is not None
        totals.update(audit.sum_counts(audit.merge_pieces(together), request))
    return totals


def drawn(seed: int) -> list[Row]:
    draws = random.Random(seed)
    parts = ("train", "train", "test", "valid", "open_loop", "given", "later")
    return [
        (f"u{draws.randrange(8)}", f"ü{draws.randrange(12)}", draws.choice([-0.0, 1.5]),
         draws.choice([None, *range(20)]), draws.choice(parts))
        for _ in range(80)
    ]  # fmt: skip


def by_loop(rows: Sequence[Row], earliest: int, asks_repeats: bool) -> dict[Any, int]:
    """The slow way."""
    parts = sorted({row[4] for row in rows})
    totals: dict[Any, int] = {"later": 0, "own_later": 0, "overlap": 0, "repeats": 0}
    held = [r for r in rows if r[4] not in audit.NOT_HELD_OUT and r[3] is not None]
    for row in rows:
        if row[4] == "train" and row[3] is not None:
            own = [r[3] for r in held if r[0] == row[0]]
            totals["later"] += row[3] > earliest
            totals["own_later"] += bool(own) and row[3] > min(own)  # type: ignore[type-var, operator]
    for pair in {row[:2] for row in rows}:
        of = [row[4] for row in rows if row[:2] == pair]
        opened = of.count("open_loop")
        known = opened and set(of) & {"train", "given", "valid"}
        others = [part for part in of if part not in ("open_loop", "later")]
        twice = max(map(of.count, of)) > 1 if asks_repeats else len(others) > 1
        totals["overlap"] += bool(opened > 1 or twice or known)
        trained, held_out = set(others) & {"train", "given"}, set(others) & {"test", "valid"}
        totals["repeats"] += bool(asks_repeats and trained and held_out)
    for n, owner in enumerate(("users", "items")):
        trained = {row[n] for row in rows if row[4] == "train"}
        totals[owner, "cold"] = len({row[n] for row in rows} - trained)
        for part in parts:
            there = {row[n] for row in rows if row[4] == part}
            totals[f"{owner} of", part] = len(there)
            totals[f"cold {owner} of", part] = len(there - trained)
    count = Counter((row[1], row[4]) for row in rows)
    size = Counter(row[4] for row in rows)
    for part in parts:
        totals["gap", part] = sum(
            abs(count[item, "train"] * size[part] - count[item, part] * size["train"])
            for item in {row[1] for row in rows}
        )
    return totals


@pytest.mark.parametrize("asks_repeats", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_pieces_say_together_what_a_loop_finds(seed: int, asks_repeats: bool) -> None:
    rows = drawn(seed)
    parts = audit.merge_parts([audit.summarise_parts([table(rows)])])
    cut = audit.merge_parts(audit.summarise_parts([table(rows[n::3])]) for n in range(3))
    assert parts == cut and list(parts) == sorted({row[4] for row in rows})
    times = [part.earliest for name, part in parts.items() if name in ("test", "valid")]
    earliest = min(time for time in times if time is not None)
    request = AuditRequest({name: part.rows for name, part in parts.items()}, earliest, False, asks_repeats)
    expected = by_loop(rows, earliest, asks_repeats)
    whole = sums([table(rows)], request, 1)
    assert {key: whole[key] for key in expected} == expected and whole["parted"] == 0
    by_user = [[row for row in rows if row[0] in ids] for ids in ({"u0", "u1"}, {"u2"}, {"u5"})]
    by_user.append([row for row in rows if row[0] not in {"u0", "u1", "u2", "u5"}])
    apart = sums([table(piece) for piece in by_user], request, 3)
    assert {key: apart[key] for key in expected} == expected and apart["parted"] == 0
    across = sums([table(rows[n::2]) for n in range(2)], request, 2)
    # Of users who stand in two pieces, a pass of its own says these.
    local = {"own_later", "overlap", "repeats"}
    assert across["parted"] > 0
    assert {key: across[key] for key in expected.keys() - local} == {
        key: expected[key] for key in expected.keys() - local
    }


def test_a_dictionary_may_name_parts_that_no_row_is_in() -> None:
    rows = table([("u", "a", 1.0, 3, "test"), ("u", "b", 1.0, 4, "train")])
    names = pa.array(["quiz", "train", "later", "test"])
    part = pa.DictionaryArray.from_arrays(pa.array([3, 1], pa.int8()), names)
    rows = rows.set_column(4, "part", part)
    parts = audit.merge_parts([audit.summarise_parts([rows])])
    assert {name: one.rows for name, one in parts.items()} == {"test": 1, "train": 1}
    totals = sums([rows], AuditRequest({"test": 1, "train": 1}, 3), 2)
    assert totals["users of", "test"] == 1 and totals["later"] == totals["own_later"] == 1


def test_sums_do_not_end_at_64_bits() -> None:
    values = pa.array([2**63 - 1, 2**63 - 1, -(2**63), 5]).to_numpy()
    assert audit.exact_sum(values) == 2**63 - 1 + 4
