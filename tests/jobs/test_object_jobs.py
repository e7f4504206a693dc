"""Every job that reads or writes a warehouse, on a real S3 server: the rows of a folder.

Each group of jobs runs twice in a process of its own, in a folder and on the server. `-k GROUP` runs one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from recbench_spark.storage.objects import list_objects, write_bytes
from tests.cluster.processes import ROOT
from tests.conftest import SETTINGS
from tests.jobs.test_object_storage_night import DAY
from tests.jobs.test_odd_folder import LOG, NIGHT, RATINGS
from tests.models.adapters.test_sequence_models import FIT, KINDS, write_log
from tools import compare_warehouses

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

Jobs = list[tuple[str, list[str]]]
RO_RS = ["--protocol", "RO_RS"]
SELECT = "SELECT model, metric, k, value FROM current_metrics ORDER BY ALL"


def write_inputs(folder: Path, place: str) -> None:
    """Write a log, benchmark files, and tables of systems; the latter also below a URI."""
    rows = "\n".join(f"u{u},i{i},{r}" for u, i, r in LOG)
    (folder / "log.csv").write_text(f"user_id,item_id,rating\n{rows}\n")
    own = {"name": "own", "reader": "csv", "path": str(folder / "log.csv")}
    kinds = [{"name": kind, "kind": kind, **FIT, **KINDS[kind]} for kind in ("sasrec", "memn2n")]
    sequences = {
        "name": "sequences", "dataset": write_log(folder / "times.parquet", 1), "models": kinds,
        "split": {"protocol": "given"}, "evaluation": {"metrics": ["ndcg"], "k": [5]},
    }  # fmt: skip
    for settings in ({**NIGHT, "dataset": own}, {**RATINGS, "dataset": own}, sequences):
        (folder / f"{settings['name']}.yaml").write_text(yaml.safe_dump(settings))
    cells = "\n".join(f"u{u},i{i},{3 + (u + i) % 2},{r}" for u, i, r in LOG)
    chances = "\n".join(f"u{u},i{i},0.5" for u, i, _ in LOG)
    tables = {
        "truth.csv": "user,item\na,1\nb,2\n",
        "lists.csv": "user,item,rank\na,1,1\na,3,2\nb,1,1\nb,2,2\n",
        "log.csv": (folder / "log.csv").read_text(),
        "matrix.csv": f"user_id,item_id,prediction,rating\n{cells}\n",
        "chances.csv": f"user_id,item_id,propensity\n{chances}\n",
    }
    for name, text in tables.items():
        (folder / name).write_text(text)
        write_bytes(f"{place}/{name}", text.encode())


def list_jobs(group: str, folder: Path, name: str) -> Jobs:
    """Return the jobs of a group, without the flag for the warehouse."""
    night = ["--config", str(folder / "odd.yaml"), "--logical-date", DAY]
    rated = ["--config", str(folder / "rated.yaml")]
    groups: dict[str, Jobs] = {
        "night": [
            ("nightly", night),
            ("report", night),
            ("query", ["--engine=spark", "--format=csv", SELECT]),
            ("query", ["--engine=local", "--format=csv", SELECT]),
            ("compare", ["popular", "knn", "--suite=odd", "--bootstrap=20"]),
            ("maintain", ["--keep-days=4000", "--logical-date=2026-01-02", "--optimize"]),
        ],
        "splits": [
            ("split", ["--log", str(folder / "log.csv"), *RO_RS]),
            ("multiverse", [*night, "--protocols=RO_RS", "--candidates=unseen"]),
        ],
        "ratings": [
            ("benchmark", rated),
            ("tune", [*rated, "--models=means", "--budget=2"]),
            ("board", rated),
            ("bundle", ["pack", *rated, "--model=means", f"--output={folder / f'bundle-{name}'}"]),
        ],
        "sequences": [("nightly", ["--config", str(folder / "sequences.yaml"), "--logical-date", DAY])],
    }
    return groups[group]


def list_input_jobs(inputs: str) -> Jobs:
    """Return jobs that read tables of systems below a folder or a URI."""
    lists = [f"--lists={inputs}/lists.csv", f"--truth={inputs}/truth.csv", "--dataset=own"]
    matrix = [f"--matrix={inputs}/matrix.csv", f"--propensities={inputs}/chances.csv", "--dataset=own"]
    return [
        ("evaluate", ["--model=handed", *lists, f"--logical-date={DAY}"]),
        ("propensity", [f"--log={inputs}/log.csv", "--reader=csv", "--method=relative_frequency"]),
        ("estimate", ["--model=handed", *matrix, "--bootstrap=20", f"--logical-date={DAY}"]),
    ]


def run_jobs(folder: Path, jobs: Jobs, warehouse: str) -> list[dict[str, Any]]:
    """Run jobs in one process; return what each printed. All must succeed."""
    s3 = (ROOT / "conf" / "spark" / "s3.conf").read_text().splitlines()
    added = [line for line in s3 if line.startswith(("spark.jars.", "spark.hadoop."))]
    settings = [f"{key} {value}" for key, value in SETTINGS.items()]
    (folder / "spark.conf").write_text("\n".join([*settings, *added, ""]))
    variables = {
        "RECBENCH_SPARK_PROPERTIES": str(folder / "spark.conf"),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
    }
    given = json.dumps([(name, [*flags, f"--warehouse={warehouse}"]) for name, flags in jobs])
    command = [sys.executable, "-m", "tests.jobs.job_runner"]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, **variables},
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"job"')]
    for row in rows:
        print(f"{row['job']}: {row['seconds']} s on {warehouse}")
    last = rows[-1]["errors"][-3000:] if rows else ""
    assert [row["code"] for row in rows] == [0] * len(jobs), f"{last}\n{done.stderr[-3000:]}"
    return rows


@pytest.mark.parametrize("group", ["night", "splits", "ratings", "sequences"])
def test_jobs_on_s3_write_the_rows_of_a_folder(group: str, bucket: str, tmp_path: Path) -> None:
    write_inputs(tmp_path, f"{bucket}/inputs")
    warehouse, folder = f"{bucket}/team/w", str(tmp_path / "w")
    printed = [
        run_jobs(tmp_path, list_jobs(group, tmp_path, name), place)
        for name, place in (("folder", folder), ("s3", warehouse))
    ]
    assert compare_warehouses.main([folder, warehouse]) == 0
    answers = [[row["output"] for row in rows if row["job"] == "query"] for rows in printed]
    assert answers[0] == answers[1]
    assert all("ndcg" in answer for answer in answers[0]) and len(answers[0]) == 2 * (group == "night")
    pages = {name for name in list_objects(warehouse) if name.startswith("reports/")}
    reports = Path(folder, "reports")
    assert pages == {str(path.relative_to(folder)) for path in reports.glob("*")}


def test_inputs_and_warehouse_may_lie_on_different_storages(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_inputs(tmp_path, f"{bucket}/inputs")
    places = {str(tmp_path / "w"): f"{bucket}/inputs", f"{bucket}/team/w": str(tmp_path)}
    for warehouse, inputs in places.items():
        run_jobs(tmp_path, list_input_jobs(inputs), warehouse)
    compare_warehouses.main(list(places))
    lines = re.findall(r"^(\w+) +\d+ rows  (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert {"metrics", "user_metrics", "propensities"} <= {table for table, _ in lines}
    assert [table for table, verdict in lines if verdict != "same"] == ["runs"], "they name their inputs"
