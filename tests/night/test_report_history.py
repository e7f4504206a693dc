"""Facts of earlier nights that a report reads: changed settings, and the nights that it shows. No JVM."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

import duckdb
import pandas as pd

from recbench_spark.night.report_history import describe_regressions, list_changed_settings, read_history
from recbench_spark.reports import NIGHTS_SHOWN
from tests.reports.test_nights import COMPARED
from tests.reports.test_reports import number, report


def run(**model: Any) -> dict[str, str]:
    return {"config_json": json.dumps({"model": {"name": "a", **model}})}


def test_places_of_files_are_no_settings_that_changed() -> None:
    first, second = (
        {"kind": "embeddings", "users": f"i/{day}/u", "items": f"i/{day}/i"} for day in ("01", "02")
    )
    assert list_changed_settings(run(**first), run(**second, similarity="dot")) == [
        "similarity from none to dot"
    ]
    indexed = [
        run(kind="retrieved", base=base, length=length) for base, length in ((first, 5), (second, 9))
    ]
    assert list_changed_settings(*indexed) == ["length from 5 to 9"]
    graph = [run(kind="graph", weights=f"w/{day}", features={"path": day}) for day in ("01", "02")]
    assert list_changed_settings(*graph) == []


def test_settings_of_an_unknown_kind_are_told_by_their_names() -> None:
    runs = [run(kind="nobody_has_it", users=day, file_path=day) for day in ("01", "02")]
    assert list_changed_settings(*runs) == ["users from 01 to 02"]


def test_a_regression_in_numbers_has_no_zero_with_a_sign() -> None:
    (sentence,) = describe_regressions([{**COMPARED, "value": -0.00001, "ci_high": -0.00001}])
    assert sentence == (
        "ours: ndcg@10 of test is 0.0000, 0.0980 on 2026-02-02: -0.0650 [-0.0700, 0.0000], allowed 0.01"
    )


def test_only_the_nights_that_are_shown_are_read() -> None:
    days = [date(2026, 1, 1) + timedelta(days) for days in range(20)]
    numbers = [{**number("a", n / 100), "logical_date": day} for n, day in enumerate(days)]
    runs = [{"suite": "demo", "logical_date": day, "status": "succeeded"} for day in days]
    runs += [{**runs[0], "logical_date": day, "status": "failed"} for day in days]
    with duckdb.connect() as warehouse:
        warehouse.register("current_metrics", pd.DataFrame(numbers))
        warehouse.register("runs", pd.DataFrame(runs))
        rows = read_history(lambda sql: warehouse.sql(sql).df(), "demo", days[17], report(number("a", 0.5)))
    assert len(rows) == NIGHTS_SHOWN and list(rows.value) == [n / 100 for n in range(4, 18)]
