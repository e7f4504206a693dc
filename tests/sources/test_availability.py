"""Periods of items, from tables of every kind."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.sources.availability import NO_END, open_availability, read_periods

SECOND = 1_000_000
DAY = 86_400 * SECOND


def read(path: Path, unit: str = "s", zone: str = "UTC") -> list[tuple[str, int, int]]:
    rows = open_availability(LocalEngine(str(path.parent)), str(path))
    tables = rows.rows.each(rows.names, list)
    table = pa.concat_tables([one for tables in tables for one in tables])
    return list(zip(table["item_id"].to_pylist(), *read_periods(table, unit, ZoneInfo(zone)), strict=True))


@pytest.mark.parametrize(
    ("begin", "end", "unit", "zone", "periods"),
    [
        ([0, 2], [1, None], "s", "UTC", [(0, SECOND), (2 * SECOND, NO_END)]),
        ([0, 2], [1, None], "us", "UTC", [(0, 1), (2, NO_END)]),
        ([0, 86400], None, "s", "UTC", [(0, NO_END), (DAY, NO_END)]),
        (
            [date(1970, 1, 2), date(1970, 1, 3)], [date(1970, 1, 4), None], "s", "Europe/Rome",
            [(DAY - 3600 * SECOND, 3 * DAY - 3600 * SECOND), (2 * DAY - 3600 * SECOND, NO_END)],
        ),
        (
            [datetime(1970, 1, 2, tzinfo=UTC), datetime(1970, 1, 3, tzinfo=UTC)], [None, None],
            "s", "Europe/Rome", [(DAY, NO_END), (2 * DAY, NO_END)],
        ),
        (["1970-01-02", "1970-01-03 00:00:00Z"], ["9999-12-31", None], "s", "UTC",
         [(DAY, 253402214400 * SECOND), (2 * DAY, NO_END)]),
        (["1", "2"], [" ", "3"], "s", "UTC", [(SECOND, NO_END), (2 * SECOND, 3 * SECOND)]),
    ],
)  # fmt: skip
def test_times_are_read_as_a_logs(
    begin: list[object],
    end: list[object] | None,
    unit: str,
    zone: str,
    periods: list[tuple[int, int]],
    tmp_path: Path,
) -> None:
    columns = {"item_id": ["a", "b"], "available_from": begin, **({"available_until": end} if end else {})}
    pq.write_table(pa.table(columns), tmp_path / "periods.parquet")
    assert read(tmp_path / "periods.parquet", unit, zone) == [
        (item, *period) for item, period in zip("ab", periods, strict=True)
    ]


def test_text_files_are_read_too(tmp_path: Path) -> None:
    lines = "item_id,available_from,available_until\n01,1970-01-02,\n2,1970-01-03,1970-01-04\n"
    (tmp_path / "periods.csv").write_text(lines)
    assert read(tmp_path / "periods.csv") == [("01", DAY, NO_END), ("2", 2 * DAY, 3 * DAY)]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("available_from", ["soon", "1970-01-02"], "1 rows whose available_from is no time, e.g. 'soon'"),
        (
            "available_until",
            ["1970-01-02", "never"],
            "1 rows whose available_until is no time, e.g. 'never'",
        ),
        ("available_from", [None, "1970-01-02"], "1 rows have no available_from"),
    ],
)
def test_what_is_no_time_is_refused(
    column: str, values: list[str | None], message: str, tmp_path: Path
) -> None:
    times = {"available_from": ["1970-01-01", "1970-01-01"], column: values}
    pq.write_table(pa.table({"item_id": ["a", "b"], **times}), tmp_path / "periods.parquet")
    with pytest.raises(DataError, match=message):
        read(tmp_path / "periods.parquet")


def test_a_table_without_its_columns_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"item_id": ["a"], "from": [1]}), tmp_path / "periods.parquet")
    with pytest.raises(SchemaError, match="available_from"):
        read(tmp_path / "periods.parquet")
