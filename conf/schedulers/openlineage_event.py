"""OpenLineage: one event for a night, from its result file. Run it after the night, whatever its exit code.

    python openlineage_event.py --config shop.yaml --warehouse warehouse/shop --logical-date 2026-01-07

Needs openlineage-python beside recbench-spark. Without a setting of its client (OPENLINEAGE_URL,
openlineage.yml) the event goes to the log. Inputs are the files that the night reads, outputs the
tables with rows of the night. The run's facets have the metrics over all users, and a test for each
verdict, regression and failed model.
"""

from __future__ import annotations

import argparse
import json
import uuid
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import attr
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import RunFacet, nominal_time_run, test_run

from recbench_spark.config import Benchmark, make_benchmark
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.core.documents import load_yaml
from recbench_spark.night.job_size import list_inputs
from recbench_spark.night.night_status import night_file
from recbench_spark.storage.objects import read_bytes
from recbench_spark.storage.uris import absolute_place

PRODUCER = "https://github.com/recbench-spark"
NAMESPACE = "recbench-spark"

KEPT = ("run_id", "model", "part", "metric", "k", "definition", "value", "ci_low", "ci_high", "n")


@attr.define
class MetricsRunFacet(RunFacet):
    """The night's numbers over all users."""

    metrics: list[dict[str, Any]]


def name_dataset(place: str) -> tuple[str, str]:
    """Return a place's namespace and name, as OpenLineage names files and buckets."""
    parts = urlsplit(place)
    if parts.netloc:
        return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")
    return "file", parts.path


def list_tests(record: dict[str, Any]) -> list[test_run.TestExecution]:
    """Return a test a verdict on the headline, then what failed, fell, is doubted or was restated."""
    tests = [
        test_run.TestExecution(
            name=f"{one['model']} against {one['other']} ({one['kind']})",
            status="pass" if one["verdict"] in ("better", "equivalent", "not told apart") else "fail",
            severity="warn",
            type="verdict",
            description=one["reason"] or one["verdict"],
            expected=str(one["other_value"]),
            actual=str(one["value"]),
        )
        for one in record.get("verdicts", [])
    ]
    failed = [f"{model}: {error}" for model, error in record.get("failed", {}).items()]
    for kind, severity, texts in (
        ("failed", "error", failed),
        ("regression", "error", record.get("regressions", [])),
        ("restated", "error", record.get("restated", [])),
        ("doubt", "warn", record.get("doubts", [])),
    ):
        tests += [test_run.TestExecution(text, "fail", severity, kind) for text in texts]
    return tests


def make_event(record: dict[str, Any], benchmark: Benchmark, warehouse: str) -> RunEvent:
    """Make the event of a night, COMPLETE or FAIL. The same night has the same run id."""
    suite, day = record["suite"], date.fromisoformat(record["logical_date"])
    name = f"{warehouse}/{suite}/{day}/{record.get('follows') or record.get('attempt')}"
    night, morning = (f"{one}T00:00:00Z" for one in (day, day + timedelta(days=1)))
    facets = {
        "nominalTime": nominal_time_run.NominalTimeRunFacet(night, morning),
        "test": test_run.TestRunFacet(list_tests(record)),
        "recbenchMetrics": MetricsRunFacet(
            [{key: one[key] for key in KEPT} for one in record.get("metrics", [])]
        ),
    }
    paths = dict.fromkeys(list_inputs(fill_placeholders(benchmark, day)))
    done = record["state"] == "finished" and record["exit_code"] == 0
    return RunEvent(
        eventType=RunState.COMPLETE if done else RunState.FAIL,
        eventTime=datetime.now(UTC).isoformat(),
        run=Run(str(uuid.uuid5(uuid.NAMESPACE_URL, name)), facets),
        job=Job(NAMESPACE, f"nightly.{suite}"),
        inputs=[InputDataset(*name_dataset(path)) for path in paths],
        outputs=[OutputDataset(*name_dataset(f"{warehouse}/{table}")) for table in record["tables"]],
        producer=PRODUCER,
    )


def main() -> None:
    """Read a night's file, and send its event."""
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("--config", "--warehouse", "--logical-date"):
        parser.add_argument(flag, required=True)
    args = parser.parse_args()
    text = (read_bytes(absolute_place(args.config)) or b"").decode()
    benchmark = make_benchmark(load_yaml(text, args.config), (), args.config)
    warehouse, day = absolute_place(args.warehouse), date.fromisoformat(args.logical_date)
    place = night_file(warehouse, benchmark.name, day)
    record = json.loads(read_bytes(place) or b"null")
    if record is None:
        parser.exit(1, f"{place}: no such night\n")
    if record["state"] == "running":
        parser.exit(1, f"{place}: the night still runs, or its process was killed\n")
    OpenLineageClient().emit(make_event(record, benchmark, warehouse))


if __name__ == "__main__":
    main()
