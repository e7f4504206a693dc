"""Files in `results/`: what a night writes is what the schema says, and what the tables hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pydantic
import pytest

from recbench_spark import __version__
from recbench_spark.core.revisions import REVISIONS
from recbench_spark.night.result_files import SCHEMA_VERSION, NightRecord, RunRecord
from recbench_spark.schemas import METRICS
from tests.nights import RANKED, Ran
from tools.result_schema import PLACE, write_schema


def read_file(ran: Ran, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(ran.store.root) / "results" / name).read_text())
    return content


def test_the_schema_is_current() -> None:
    assert PLACE.read_text(encoding="utf-8") == write_schema()


def test_a_night_tells_its_numbers(small_night: Ran) -> None:
    content = read_file(small_night, "night-small-2026-01-01.json")
    record = NightRecord.model_validate(content)
    assert record.model_dump(mode="json") == content
    assert (record.schema_version, record.exit_code, record.run_ids) == (
        SCHEMA_VERSION, 0, small_night.outcome.run_ids,
    )  # fmt: skip
    assert record.report is not None and (Path(small_night.store.root) / record.report).is_file()
    assert record.versions["recbench-spark"] == __version__ and "pyspark" in record.versions
    assert record.revisions == REVISIONS and record.comparisons == record.regressed == []
    filters = [("run_id", "in", list(record.run_ids.values())), ("estimator", "=", "holdout")]
    rows = [row for row in small_night.store.rows(METRICS, filters) if row["slice_key"] is None]
    names = ("run_id", "part", "metric", "k", "definition")
    table = {tuple(row[name] for name in names): row for row in rows}
    assert len(record.metrics) == len(table) > 100
    assert {one.model for one in record.metrics} == {*RANKED, "paper"}
    for one in record.metrics:
        row = table[tuple(getattr(one, name) for name in names)]
        numbers = ("value", "stderr", "ci_low", "ci_high", "n")
        assert [getattr(one, name) for name in numbers] == [row[name] for name in numbers]


def test_a_run_tells_its_numbers(small_night: Ran) -> None:
    night = NightRecord.model_validate(read_file(small_night, "night-small-2026-01-01.json"))
    for model, run_id in small_night.outcome.run_ids.items():
        record = RunRecord.model_validate(read_file(small_night, f"{run_id}.json"))
        assert (record.model, record.status, record.error) == (model, "succeeded", None)
        assert record.metrics == [one for one in night.metrics if one.model == model]


@pytest.mark.parametrize(
    "change", [{"more": 1}, {"schema_version": 2}, {"exit_code": None}, {"kind": "run"}]
)
def test_another_form_is_refused(small_night: Ran, change: dict[str, Any]) -> None:
    content = read_file(small_night, "night-small-2026-01-01.json")
    with pytest.raises(pydantic.ValidationError):
        NightRecord.model_validate({**content, **change})
