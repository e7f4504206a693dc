"""Counts of labelled rows in tasks, without Spark: by hand, and for any cut of the rows into pieces."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from recbench_spark.splits import audit, manifests
from recbench_spark.splits.audit import COLUMNS, AuditRequest
from recbench_spark.storage.packed_blocks import unpack_blocks

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
        totals.update(audit.sum_pieces(together, request))
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


def suspect_facts(rows: Sequence[Row], pieces: int) -> dict[str, tuple[float | None, str | None]]:
    request = AuditRequest(dict(Counter(row[4] for row in rows)), None)
    totals = sums([table(rows[n::pieces]) for n in range(pieces)], request, 3)
    facts = [
        *manifests._suspect_facts(totals, "user", len(rows)),
        *manifests._suspect_facts(totals, "item", len(rows)),
    ]
    return {fact.fact: (fact.value, fact.detail) for fact in facts}


@pytest.mark.parametrize("pieces", [1, 4])
def test_an_id_of_an_extreme_share_is_named_in_a_log_of_many(pieces: int) -> None:
    """A guest has 50 of 300 rows, a sixth; an empty cell was written as NULL in 12."""
    rows: list[Row] = [(f"u{n % 119}", f"i{n % 150}", 1.0, n, "train") for n in range(238)]
    rows += [("guest-7", f"i{n}", 1.0, n, "train") for n in range(50)]
    rows += [("NULL", f"i{n}", 1.0, n, "test") for n in range(12)]
    facts = suspect_facts(rows, pieces)
    assert facts == {
        "extreme_user_share": (50 / 300, "'guest-7' 50 rows, of 300"),
        "placeholder_user_share": (12 / 300, "'NULL' 12 rows, of 300"),
    }
    stored = [{"part": "log", "fact": name, "value": v, "detail": d} for name, (v, d) in facts.items()]
    checks = manifests.check_suspects([*stored, {"part": "log", "fact": "overlap", "value": 1.0}])
    assert [(check.check, check.passed, check.severity) for check in checks] == [
        ("log: extreme user share", False, "warning"),
        ("log: placeholder user share", False, "warning"),
    ]
    assert "'guest-7' 50 rows, of 300" in checks[0].summary_line()


def test_a_log_of_few_users_and_an_even_one_have_no_suspects() -> None:
    few: list[Row] = [(f"u{n % 9}", f"i{n}", 1.0, n, "train") for n in range(200)]
    even: list[Row] = [(f"u{n % 100}", f"i{n}", 1.0, n, "train") for n in range(1000)]
    at_bound: list[Row] = [*even[:900], *(("u0", f"i{n}", 1.0, n, "train") for n in range(91))]
    assert suspect_facts(few, 2) == suspect_facts(even, 2) == {}
    assert suspect_facts(at_bound, 2).keys() == {"extreme_user_share"}, "100 of 991 is above a tenth"
