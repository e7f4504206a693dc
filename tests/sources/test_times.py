"""Times that are refused: a time of day without a date, times of another unit, years that no log has."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from recbench_spark.auctions.auction_values import RowRules, _read_times
from recbench_spark.commands.dry_runs import check_log
from recbench_spark.config import Dataset, parse
from recbench_spark.errors import DataError, FallbackToSpark, RecbenchError
from recbench_spark.sources.arrow_times import check_times, read_movielens_times
from recbench_spark.sources.columnar import _convert_times
from recbench_spark.sources.times import CHECKED, coarser_unit, convert_times, guess_unit, time_hint
from tests.labelled import open_log, read_log

SECOND = 1_000_000
IN_2021 = 1_609_459_200
NOON = IN_2021 + 43_200


@pytest.mark.parametrize(
    ("number", "unit"),
    [
        (IN_2021, "s"),
        (IN_2021 * 1000, "ms"),
        (IN_2021 * 10**6, "us"),
        (IN_2021 * 10**9, "ns"),
        (20_000, None),
        (0, None),
        (-IN_2021, None),
        (10**30, None),
    ],
)
def test_the_unit_that_fits_a_number(number: int, unit: str | None) -> None:
    assert guess_unit(number) == unit


def test_only_a_whole_log_says_that_its_unit_is_coarser() -> None:
    assert coarser_unit(IN_2021, IN_2021 + 9, "ms") == "s"
    assert coarser_unit(IN_2021 * 1000, IN_2021 * 1000, "us") == "ms"
    assert coarser_unit(0, IN_2021, "ms") is None  # milliseconds since the log began
    assert coarser_unit(IN_2021, IN_2021, "s") is None
    assert coarser_unit(0, 10**6, "s") is None
    assert coarser_unit(None, None, "s") is None


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("1609459200000", "s", "dataset.time_unit: ms, by which 1609459200000 is of 2021-01-01"),
        ("1609459200000000", "ms", "dataset.time_unit: us"),
        ("1609459200000000000", "us", "divide them by 1000 and set dataset.time_unit: us"),
        ("1609459200", "timestamp", "dataset.time_unit: s, by which"),
        ("17", "timestamp", "dataset.time_unit to s, ms or us"),
        ("2021-01-01 10:51:09", "s", "dataset.time_unit: timestamp"),
        ("10:51:09", "timestamp", "write both, such as 2026-01-31 12:00:00"),
        ("10:51:09", "s", "write both, such as 2026-01-31 12:00:00"),
        ("noon", "s", ""),
        ("253402300799", "s", ""),
    ],
)
def test_hints_name_the_key_and_the_value_that_fit(text: str, unit: str, expected: str) -> None:
    hint = time_hint(text, unit)
    assert hint.startswith("set " + expected) if expected.startswith("dataset") else expected in hint
    assert bool(hint) == bool(expected)


LOGS: dict[str, tuple[str, list[Any], str, str]] = {
    "time of day": ("timestamp", ["10:51:09", "10:52:09"], "is not a timestamp such as", "write both"),
    "minutes": ("timestamp", ["T10:51"], "is not a timestamp such as", "write both"),
    "ms as s": ("s", [IN_2021 * 1000], "is not a time in s before the year 2100", "time_unit: ms"),
    "us as s": ("s", [IN_2021 * 10**6], "is not a time in s", "time_unit: us"),
    "us as ms": ("ms", [IN_2021 * 10**6], "is not a time in ms before the year 2100", "time_unit: us"),
    "ns as s": ("s", [IN_2021 * 10**9], "is not a time in s", "divide them by 1000"),
    "ns as us": ("us", [IN_2021 * 10**9], "is not a time in us before the year 2100", "divide them by"),
    "s as ms": ("ms", [IN_2021, IN_2021 + 86400], "between 1970-01-19 and 1970-01-19", "time_unit: s, by"),
    "ms as us": ("us", [IN_2021 * 1000] * 2, "between 1970-01-19 and 1970-01-19", "time_unit: ms, by"),
    "texts as s": ("s", ["2021-01-01", "2021-01-02"], "is not a time in s", "time_unit: timestamp"),
    "short zone": ("timestamp", ["2026-07-01 12:00:00 BST"], "no offset, Z, UTC, GMT or", "Europe/Rome"),
    "s as texts": ("timestamp", [str(IN_2021)], "is not a timestamp such as", "time_unit: s, by which"),
}  # fmt: skip
"""Unit, times, the message, and the hint."""


ZONED = {
    "2026-07-01 12:00:00 Z": 12, "2026-07-01 12:00:00 UTC": 12, "2026-07-01T12:00:00 GMT": 12,
    "2026-07-01 12:00:00+01:00": 11, "2026-07-01 12:00:00 +0530": 6.5, "2026-07-01 12:00:00-7": 19,
    "2026-07-01 12:00:00 UTC+02:00": 10, "2026-07-01 12:00:00.5 GMT-5": 17 + 0.5 / 3600,
    "2026-07-01 12:00:00 Europe/Rome": 10, "2026-07-01 12:00:00[Europe/Rome]": None,
    "2026-07-01 12:00:00 America/Argentina/Buenos_Aires": 15, "2026-07-01 12:00:00 US/Pacific": 19,
    "2026-07-01 12:00:00 Etc/GMT+3": 15,  # as IANA writes it: west of Greenwich
    "2026-03-29 02:30:00 Europe/Rome": 1.5 - 94 * 24,  # skipped: by the offset before
    "2026-10-25 02:30:00 Europe/Rome": 0.5 + 116 * 24,  # twice: the first one
    **dict.fromkeys(f"2026-07-01 12:00:00 {zone}" for zone in (
        "BST", "AST", "SST", "CST", "IST", "ECT", "EST", "PST", "MST", "HST", "JST", "CET", "EET", "UT",
        "UCT", "Zulu", "z", "GMT0", "PST8PDT", "EST5EDT", "Japan", "SystemV/PST8", "Europe/Atlantis",
        "europe/rome", "UT+1", "+19:00", "AM",
    )),
    "2026-07-01 12:00:00BST": None,
    "2026-07-01T12:00:00.250 IST": None,
}  # fmt: skip
"""Texts, and their hours after 2026-07-01 in UTC; None: no time."""


def list_zoned_micros() -> list[int | None]:
    start = int(datetime(2026, 7, 1, tzinfo=UTC).timestamp()) * 10**6
    return [None if hours is None else start + round(hours * 3600 * 10**6) for hours in ZONED.values()]


def test_zones_in_process() -> None:
    assert _read_times(pa.array(list(ZONED)), RowRules("s"), "log").tolist() == pytest.approx(
        [float("nan") if one is None else one for one in list_zoned_micros()], abs=0, nan_ok=True
    )


def test_zones_in_a_log() -> None:
    for zone in (UTC, ZoneInfo("Asia/Tokyo")):  # the texts name their own
        micros = convert_times(pa.array(list(ZONED)), "timestamp", zone)
        assert micros.to_pylist() == list_zoned_micros()


def write_log(folder: Path, reader: str, times: list[Any], **settings: Any) -> Dataset:
    path = folder / f"log.{reader}"
    columns = {"user_id": [f"u{n}" for n in range(len(times))], "item_id": ["i"] * len(times)}
    if reader == "csv":
        lines = [f"{u},i,{t}" for u, t in zip(columns["user_id"], times, strict=True)]
        path.write_text("\n".join(["user_id,item_id,event_time", *lines, ""]))
    else:
        pq.write_table(pa.table({**columns, "event_time": times}), path)
    return Dataset(name="d", reader=reader, path=str(path), **settings)


@pytest.mark.parametrize("reader", ["csv", "parquet"])
@pytest.mark.parametrize("name", LOGS)
def test_times_that_are_none_are_refused_with_what_fits(
    spark, tmp_path: Path, name: str, reader: str
) -> None:
    unit, times, message, hint = LOGS[name]
    with pytest.raises(RecbenchError) as error:
        read_log(spark, write_log(tmp_path, reader, times, time_unit=unit))
    assert message in error.value.message
    assert hint in error.value.hint


@pytest.mark.parametrize("name", LOGS)
def test_a_dry_run_says_the_same(name: str) -> None:
    unit, times, message, hint = LOGS[name]
    for column in (pa.array(times), pa.array([str(time) for time in times])):
        with pytest.raises(RecbenchError) as error:
            check_times(column, "event_time", unit, "log", whole=True, all_bad=False)
        assert message in error.value.message
        assert hint in error.value.hint


@pytest.mark.parametrize(
    ("unit", "times"),
    [
        ("s", [0, 1, 2]),
        ("s", [-5, 3]),
        ("ms", [0, IN_2021]),
        ("ms", [17, 18]),
        ("us", [1, 2]),
        ("s", [None, IN_2021]),
        ("timestamp", ["2021-01-01", " 2021-01-01T10:51:09Z"]),
        ("timestamp", [datetime(2021, 1, 1, tzinfo=UTC)]),
    ],
)
def test_counters_and_times_in_their_unit_pass(unit: str, times: list[Any]) -> None:
    check_times(pa.array(times), "event_time", unit, "log", whole=True, all_bad=False)


def test_counters_are_orders_and_rejected_rows_are_counted(spark, tmp_path: Path) -> None:
    assert [
        row.event_time for row in read_log(spark, write_log(tmp_path, "parquet", [0, 1])).collect()
    ] == [
        0,
        SECOND,
    ]
    log = write_log(tmp_path, "csv", [IN_2021, IN_2021 * 1000], bad_rows="reject")
    opened = open_log(spark, log)
    assert (opened.rejected, opened.rows.count()) == (1, 1)
    assert opened.reasons == {"'event_time' is not a time in s before the year 2100": 1}


def test_stored_timestamps_of_impossible_years_are_refused(spark, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    spark.sql(
        f"SELECT 'u' AS user_id, 'i' AS item_id, CAST({IN_2021 * 1000}L AS TIMESTAMP) AS event_time"
    ).write.parquet(path)
    with pytest.raises(DataError, match="'event_time' is not before the year 2100") as error:
        read_log(spark, Dataset(name="d", reader="parquet", path=path))
    assert "milliseconds were taken for seconds" in error.value.hint


MISREAD: dict[str, tuple[str, list[int], str, str]] = {
    "s as ns": (
        "ns",
        [NOON, NOON + 86400],
        "between 1970-01-01 00:00:01.609 and",
        "time_unit: s, by",
    ),
    "s as us": ("us", [NOON, NOON + 86400], "between 1970-01-01 00:26:49.502 and", "time_unit: ms"),
    "ms as ns": ("ns", [NOON * 1000] * 2, "between 1970-01-01 00:26:49.502 and", "time_unit: ms, by"),
    "s as ms": ("ms", [NOON, NOON + 86400], "between 1970-01-19 15:05:02.400 and", "time_unit: us"),
}
"""Unit of the stored timestamps, their numbers, the message, and the hint."""


@pytest.mark.parametrize("name", MISREAD)
def test_a_dry_run_and_python_see_timestamps_of_another_unit(name: str) -> None:
    unit, numbers, message, hint = MISREAD[name]
    for zone in (None, "UTC"):
        column = pa.array(numbers).cast(pa.timestamp(unit, zone))
        with pytest.raises(DataError) as error:
            check_times(column, "event_time", "s", "log", whole=True, all_bad=False)
        assert message in error.value.message and hint in error.value.hint
        assert "lie between 2021-01-01 and 2021-01-0" in error.value.hint
        with pytest.raises(FallbackToSpark):
            _convert_times(column, 1)


@pytest.mark.parametrize("name", MISREAD)
def test_stored_timestamps_of_another_unit_are_refused(spark, tmp_path: Path, name: str) -> None:
    unit, numbers, message, hint = MISREAD[name]
    with pytest.raises(DataError) as error:
        open_log(spark, write_log(tmp_path, "parquet", pa.array(numbers).cast(pa.timestamp(unit, "UTC"))))
    assert message in error.value.message and hint in error.value.hint


@pytest.mark.parametrize("micros", [[0, 1], [0, IN_2021], [IN_2021, 10**12], [10, 20, None], []])
def test_timestamps_from_1970_on_pass_where_another_unit_does_not_explain_them(micros: list[Any]) -> None:
    column = pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC"))
    check_times(column, "event_time", "s", "log", whole=True, all_bad=False)
    check_times(pa.array([IN_2021]).cast(pa.timestamp("us")), "t", "s", "log", whole=False, all_bad=False)


@pytest.mark.parametrize(
    ("reader", "name", "line"),
    [
        ("movielens_100k", "u.data", "1\t2\t5\t{}\n"),
        ("movielens_1m", "ratings.dat", "1::2::5::{}\n"),
        ("movielens_latest", "ratings.csv", "userId,movieId,rating,timestamp\n1,2,5,{}\n"),
        ("movielens_latest", "ratings.csv.gz", "userId,movieId,rating,timestamp\n1,2,5,{}\n"),
    ],
)
def test_a_dry_run_looks_at_times_of_movielens(tmp_path: Path, reader: str, name: str, line: str) -> None:
    for number, unit, fits in ((IN_2021 * 1000, "s", "ms"), (IN_2021, "ms", "s"), (IN_2021, "s", None)):
        text = line.format(number).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        for path in (tmp_path, tmp_path / name):
            log = {"name": "d", "reader": reader, "path": str(path), "time_unit": unit}
            dataset = parse(Dataset, log, "file")
            if fits is None:
                assert check_log(dataset)
                continue
            with pytest.raises(DataError) as error:
                check_log(dataset)
            assert error.value.hint.startswith(f"set dataset.time_unit: {fits}, by which")
    (tmp_path / name).unlink()
    assert read_movielens_times(str(tmp_path), reader, 5) is None


def test_times_that_were_read_before_keep_their_unit(spark, tmp_path: Path) -> None:
    """The training rows of a search, in microseconds: of a log that numbers its rows these look like ms."""
    path = str(tmp_path / "log")
    rows = spark.sql(f"SELECT 'u' AS user_id, 'i' AS item_id, {IN_2021 * 1000}L AS event_time")
    time = rows.event_time.alias("event_time", metadata={CHECKED: True})
    rows.select("user_id", "item_id", time).write.parquet(path)
    log = Dataset(name="d", reader="parquet", path=path, time_unit="us")
    assert read_log(spark, log).first().event_time == IN_2021 * 1000


@pytest.mark.parametrize(
    ("column", "micros"),
    [
        (pa.array([IN_2021 * 1000]), SECOND),
        (pa.array([IN_2021]), 1000),
        (pa.array([253_402_300_799 * SECOND], pa.timestamp("us", "UTC")), 1),
    ],
)
def test_python_leaves_such_times_to_sparks_reader(column: pa.Array, micros: int) -> None:
    with pytest.raises(FallbackToSpark):
        _convert_times(column, micros)


def test_movielens_and_ncf_obey_the_unit(spark, tmp_path: Path) -> None:
    (tmp_path / "ratings.dat").write_text(f"1::2::5::{IN_2021 * 1000}\n")
    for unit, micros in (("ms", IN_2021 * SECOND), ("us", IN_2021 * 1000)):
        log = Dataset(name="d", reader="movielens_1m", path=str(tmp_path), time_unit=unit)
        if unit == "us":
            with pytest.raises(DataError, match="by time_unit us all times"):
                read_log(spark, log)
        else:
            assert read_log(spark, log).first().event_time == micros
    with pytest.raises(DataError) as error:
        read_log(spark, Dataset(name="d", reader="movielens_1m", path=str(tmp_path)))
    assert error.value.hint.startswith("set dataset.time_unit: ms")
    for part in ("train", "test"):
        (tmp_path / f"x.{part}.rating").write_text(f"1\t2\t5\t{IN_2021 * 1000}\n")
    ncf = Dataset(name="d", reader="ncf", path=str(tmp_path), time_unit="ms")
    assert {row.event_time for row in read_log(spark, ncf).collect()} == {IN_2021 * SECOND}


@pytest.mark.parametrize("reader", ["netflix", "coat", "yahoo_r3", "lightgcn", "world"])
def test_a_unit_that_would_not_be_obeyed_is_refused(reader: str) -> None:
    with pytest.raises(ValidationError, match="leave out time_unit 'ms'"):
        Dataset(name="d", reader=reader, path="p", time_unit="ms")
    assert Dataset(name="d", reader=reader, path="p", time_unit="s").time_unit == "s"
