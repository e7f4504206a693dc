"""Rows that `dataset.where` selects: a log is split as if the others had not been written."""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from recbench_spark.config import Benchmark, Dataset, Split, parse
from recbench_spark.errors import ConfigError, DataError, ProtocolError, SchemaError
from recbench_spark.night.split import identify_split
from recbench_spark.schemas import MANIFESTS, REJECTS, SPLITS
from recbench_spark.sources import text_pieces
from recbench_spark.sources.conditions import Condition
from recbench_spark.sources.log_checks import LogRules
from recbench_spark.sources.opened_logs import OpenedLog, label_stretches
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.blocks import ChangedRows
from tests.night import test_event_logs as event_logs
from tests.night.test_event_logs import write
from tests.nights import PIECES, work_in

SEEDS = range(*map(int, os.environ.get("RECBENCH_WHERE_SEEDS", "0,6").split(",")))
"""Worlds drawn: a few in the suite, as many as one likes by hand."""

NAMES = ("user_id", "item_id", "rating", "event_time", "event", "price", "shown")
EVENTS = ("view", "cart", "purchase", "", "View")
START = datetime(2026, 1, 1, tzinfo=UTC)

Row = dict[str, Any]


def draw_rows(seed: int, n: int = 300) -> list[Row]:
    draw = random.Random(seed)
    return [
        {
            "user_id": f"u{draw.randrange(20)}", "item_id": f"i{draw.randrange(30)}",
            "rating": float(draw.randrange(1, 6)),
            "event_time": int(START.timestamp()) + 3600 * draw.randrange(24 * 40),
            "event": draw.choice(EVENTS) or None,
            "price": draw.choice([None, draw.randrange(-2, 9) / 2]),
            "shown": draw.choice([True, False, None]),
        }
        for _ in range(n)
    ]  # fmt: skip


CONDITIONS: dict[str, dict[str, Any]] = {
    "in": {"column": "event", "in": ["view", "purchase"]},
    "not in": {"column": "event", "not_in": ["view"]},
    "numbers": {"column": "price", "in": [1, 2.5, 0]},
    "flag": {"column": "shown", "in": [True]},
    "above": {"column": "price", "above": 0},
    "below": {"column": "price", "below": 2.5},
    "between": {"column": "price", "between": [0.5, 3]},
    "not null": {"column": "price", "not_null": True},
    "days": {"column": "event_time", "between": ["2026-01-05", "2026-01-20"]},
    "hours": {"column": "event_time", "between": ["2026-01-05T06:00", "2026-02-01T18:00:00+02:00"]},
}


def holds(row: Row, condition: dict[str, Any]) -> bool:
    """Decide by reading the setting, one row at a time."""
    value = row[condition["column"]]
    if value is None:
        return False
    if "in" in condition:
        return value in condition["in"]
    if "not_in" in condition:
        return value not in condition["not_in"]
    if "above" in condition or "below" in condition:
        return bool(value > condition["above"] if "above" in condition else value < condition["below"])
    first, last = condition.get("between", (value, value))
    if isinstance(first, str):
        begin, end = (
            moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            for moment in (datetime.fromisoformat(first), datetime.fromisoformat(last))
        )
        end += timedelta(days=1, microseconds=-1) if len(last) == 10 else timedelta()
        return begin <= datetime.fromtimestamp(value, UTC) <= end
    return bool(first <= value <= last)


def write_rows(path: Path, rows: list[Row]) -> Path:
    return write(path, [tuple(row.values()) for row in rows], NAMES, TYPES)


TYPES = (pa.string(), pa.string(), pa.float64(), pa.int64(), pa.string(), pa.float64(), pa.bool_())


def make(
    path: Path, where: list[dict[str, Any]], sections: dict[str, Any] | None = None, **more: Any
) -> Benchmark:
    return event_logs.make(path, event_logs.GLOBAL, sections, where=where, events=None, **more)


def split(folder: Path, benchmark: Benchmark, store: Any = None) -> tuple[list[Row], dict[str, Row], str]:
    store, _ = event_logs.split_log(folder, benchmark, store)
    split_id, _ = identify_split(store, benchmark)
    facts = store.rows(MANIFESTS, [("split_id", "=", split_id), ("part", "=", "log")])
    rows = store.rows(SPLITS, [("split_id", "=", split_id)])
    for row in rows:
        del row["split_id"]
    return sorted(rows, key=repr), {row["fact"]: row for row in facts}, split_id


@pytest.mark.parametrize(
    ("seed", "file"),
    [
        pytest.param(seed, file, marks=pytest.mark.full if seed else ())
        for seed in SEEDS
        for n, file in enumerate(event_logs.FILES)
        if seed < 6 or seed % 3 == n
    ],
)
def test_the_split_is_that_of_a_log_without_the_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, file: str
) -> None:
    rows, names = draw_rows(seed), random.Random(-seed).sample(sorted(CONDITIONS), 1 + seed % 3)
    where = [CONDITIONS[name] for name in names]
    left, dropped = rows, list[int]()
    for one in where:
        kept = [row for row in left if holds(row, one)]
        left, dropped = kept, [*dropped, len(left) - len(kept)]
    more: dict[str, Any] = {"attributes": ["event"]} if seed % 4 == 1 else {}
    benchmark = make(write_rows(tmp_path / "x" / file, rows), where, **more)
    try:
        wanted, plain, _ = split(tmp_path / "b", make(write_rows(tmp_path / "y" / file, left), [], **more))
    except (DataError, ProtocolError) as error:  # too few rows are left for the split's shares
        message = re.escape(error.message) if left else "no row holds it"
        with pytest.raises((DataError, ProtocolError), match=message):
            split(tmp_path / "a", benchmark)
        return
    for n, tasks in enumerate(PIECES):
        monkeypatch.setattr(text_pieces, "BYTES_A_PIECE", [150, 600, 4000][(seed + n) % 3])
        with work_in(tasks):
            made, facts, _ = split(tmp_path / str(tasks), benchmark)
        assert made == wanted and made
    assert facts["rows_read"]["value"] == len(rows) and plain["rows_read"]["value"] == len(left)
    assert facts["unselected_rows"]["value"] == len(rows) - len(left) == sum(dropped)
    assert [
        int(text.rpartition(": ")[2]) for text in facts["unselected_rows"]["detail"].split("; ")
    ] == dropped
    assert "unselected_rows" not in plain


def test_rows_that_do_not_count_are_never_bad(tmp_path: Path) -> None:
    rows = [*draw_rows(1), {**dict.fromkeys(NAMES, "x"), "event": "robot", "user_id": ""}]
    path = write_rows(tmp_path / "log.csv", rows)
    with pytest.raises(DataError, match="1 rows whose"):
        split(tmp_path / "a", make(path, [CONDITIONS["flag"] | {"in": [True, "x"]}]))
    assert split(tmp_path / "b", make(path, [CONDITIONS["in"]]))[0]


def test_a_value_that_cannot_be_compared_is_bad_and_a_broken_line_stays_one(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "log.csv", draw_rows(2))
    with path.open("a") as file:
        file.write("u1,i1,3.0,1767225600,view,free,true\nu1,i1\n")
    with pytest.raises(
        DataError, match=r"1 lines that are not 7 fields .*'price' is not a number \(dataset.where\)"
    ):
        split(tmp_path / "a", make(path, [CONDITIONS["above"]]))
    _, facts, _ = split(tmp_path / "b", make(path, [CONDITIONS["above"]], bad_rows="reject"))
    assert facts["rejected_rows"]["value"] == 2
    reasons = [row["reason"] for row in ArrowStore(str(tmp_path / "b")).rows(REJECTS)]
    assert sorted(reasons) == ["'price' is not a number (dataset.where)", "not 7 fields separated by ','"]


@pytest.mark.parametrize("file", ["log.csv", "log.parquet"])
def test_conditions_that_select_nothing_or_all_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    path = write_rows(tmp_path / file, draw_rows(3))
    with pytest.raises(DataError, match="event in vieww: no row holds it") as caught:
        split(tmp_path / "a", make(path, [{"column": "event", "in": ["vieww"]}]))
    assert "did you mean 'view'?" in caught.value.hint
    split(
        tmp_path / "b",
        make(path, [{"column": "event", "in": ["view", "buy"]}, {"column": "rating", "above": 0}]),
    )
    said = capsys.readouterr().err
    assert "event in view, buy: no row has 'buy'" in said and "rating above 0: every row holds it" in said
    with pytest.raises(SchemaError, match="no column evnt") as missing:
        split(tmp_path / "c", make(path, [{"column": "evnt", "in": ["view"]}]))
    assert "did you mean 'event'?" in missing.value.hint


def test_a_condition_is_part_of_the_log_and_its_absence_changes_no_name(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "log.csv", draw_rows(4))
    ids = [
        split(tmp_path / "w", make(path, where))[2]
        for where in ([], [CONDITIONS["in"]], [CONDITIONS["above"]])
    ]
    assert len(set(ids)) == 3
    dataset = make(path, [CONDITIONS["in"], CONDITIONS["days"]]).dataset
    assert parse(Dataset, json.loads(dataset.model_dump_json()), "again") == dataset
    assert "where" not in make(path, []).dataset.model_dump()


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ({"column": "event"}, "the condition on 'event' has no rule"),
        ({"column": "event", "in": ["a"], "above": 1}, "has in and above"),
        ({"column": "event", "in": []}, "where.0.in"),
        ({"column": "price", "between": [3, 1]}, "between ends at 1, before 3"),
        ({"column": "price", "not_null": False}, "not_null is true"),
        ({"column": "event", "inn": ["a"]}, "where.0.inn"),
    ],
)
def test_wrong_conditions_are_refused(condition: dict[str, Any], message: str) -> None:
    document = {"name": "log", "reader": "csv", "path": "log.csv", "where": [condition]}
    with pytest.raises(ConfigError, match=message):
        parse(Dataset, document, "dataset")


@pytest.mark.parametrize("ends", [["2026-01-31", "soon"], ["2026-02-01", "2026-01-01"]])
def test_a_period_needs_times_in_order(tmp_path: Path, ends: list[str]) -> None:
    path = write_rows(tmp_path / "log.csv", draw_rows(5))
    with pytest.raises(ConfigError, match=r"'soon' is no time|it ends before it begins"):
        split(tmp_path / "a", make(path, [{"column": "event_time", "between": ends}]))


def test_folds_of_the_file_are_of_the_rows_that_count(tmp_path: Path) -> None:
    rows, where = draw_rows(6), [CONDITIONS["in"]]
    left = [row for row in rows if holds(row, where[0])]
    folds: dict[str, Any] = {"split": {"holdout": "consecutive", "folds": 4, "fold": 1}}
    made, _, _ = split(tmp_path / "a", make(write_rows(tmp_path / "log.csv", rows), where, folds))
    wanted, _, _ = split(tmp_path / "b", make(write_rows(tmp_path / "left.csv", left), [], folds))
    assert made == wanted and made
    in_frame = OpenedLog(ChangedRows(cast(Any, None), (), cast(Any, None), ()), (), 9)
    rules = LogRules(conditions=(Condition("event", "not_null"),))
    with pytest.raises(ConfigError, match="Spark reads this log"):
        label_stretches(replace(in_frame, rules=rules), Split.model_validate(folds["split"]))


def test_a_generated_world_has_no_conditions() -> None:
    with pytest.raises(ConfigError, match="all rows of a generated world count"):
        parse(Dataset, {"name": "w", "reader": "world", "where": [CONDITIONS["in"]]}, "dataset")
