"""Dagster: a night as a daily asset, and its verdicts as asset checks. `dagster dev -f dagster_checks.py`.

Set RECBENCH_CONFIG to the benchmark file and RECBENCH_WAREHOUSE to the tables. A gate, a regression or a
doubt (exit codes 3 to 6) stores its numbers: the asset is made, a check fails. Other codes fail the run.
"""

import json
import os
import subprocess
import sys
from typing import Any

import yaml
from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    DailyPartitionsDefinition,
    Definitions,
    Failure,
    MaterializeResult,
    asset,
    build_schedule_from_partitioned_job,
    define_asset_job,
)
from upath import UPath

CONFIG = os.environ.get("RECBENCH_CONFIG", "conf/benchmarks/demo.yaml")
WAREHOUSE = os.environ.get("RECBENCH_WAREHOUSE", "warehouse")
COMMAND = [sys.executable, "-m", "recbench_spark", "nightly"]

STORED = (0, 3, 4, 5, 6)
"""Exit codes of nights whose numbers are stored: fine, a gate, a regression, doubts."""

CHECKS = {
    "models_succeeded": ("failed", AssetCheckSeverity.ERROR),
    "no_regression": ("regressions", AssetCheckSeverity.ERROR),
    "nothing_restated": ("restated", AssetCheckSeverity.ERROR),
    "no_doubt": ("doubts", AssetCheckSeverity.WARN),
}
"""Checks by name: the field of results/night-SUITE-DATE.json that must be empty."""


def read_night(day: str) -> dict[str, Any]:
    """Read a night's outcome, in a folder or on object storage."""
    suite = yaml.safe_load(UPath(CONFIG).read_text())["name"]
    record: dict[str, Any] = json.loads(
        (UPath(WAREHOUSE) / "results" / f"night-{suite}-{day}.json").read_text()
    )
    return record


def make_checks(record: dict[str, Any]) -> list[AssetCheckResult]:
    """Return each check's result; its metadata has the sentences, or the failed models."""
    return [
        AssetCheckResult(
            check_name=name,
            passed=not record.get(field),
            severity=severity,
            metadata={field: record.get(field) or []},
        )
        for name, (field, severity) in CHECKS.items()
    ]


@asset(
    partitions_def=DailyPartitionsDefinition(start_date="2026-01-01"),
    check_specs=[AssetCheckSpec(name, asset="night") for name in CHECKS],
)
def night(context: AssetExecutionContext) -> MaterializeResult:
    """Evaluate one day's models."""
    day = context.partition_key
    code = subprocess.run(
        [*COMMAND, "--config", CONFIG, "--warehouse", WAREHOUSE, "--logical-date", day], check=False
    ).returncode
    if code not in STORED:
        raise Failure(f"exit code {code}", allow_retries=code != 2)
    record = read_night(day)
    verdicts = {
        f"{one['model']} {one['metric']} {one['part']}": f"{one['verdict']} ({one['value']})"
        for one in record.get("verdicts", [])
    }
    return MaterializeResult(metadata={"exit_code": code, **verdicts}, check_results=make_checks(record))


nightly = define_asset_job("nightly", selection=[night])
definitions = Definitions(
    assets=[night],
    jobs=[nightly],
    schedules=[build_schedule_from_partitioned_job(nightly, hour_of_day=2, minute_of_hour=15)],
)
