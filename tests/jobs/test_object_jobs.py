"""Every job that reads or writes a warehouse, on a real S3 server: the rows of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from recbench_spark.storage.objects import list_objects
from tests.jobs.test_object_storage_night import DAY, start_job
from tests.jobs.test_odd_folder import LOG, NIGHT, RATINGS
from tools import compare_warehouses

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

SPLIT = ("--protocol", "RO_RS")


def write_inputs(folder: Path) -> None:
    """Write a log, two benchmark files, and lists with their truth."""
    rows = "\n".join(f"u{u},i{i},{r}" for u, i, r in LOG)
    (folder / "log.csv").write_text(f"user_id,item_id,rating\n{rows}\n")
    for settings in (NIGHT, RATINGS):
        dataset = {"name": "own", "reader": "csv", "path": str(folder / "log.csv")}
        text = yaml.safe_dump({**settings, "dataset": dataset})
        (folder / f"{settings['name']}.yaml").write_text(text)
    (folder / "truth.csv").write_text("user,item\na,1\nb,2\n")
    (folder / "lists.csv").write_text("user,item,rank\na,1,1\na,3,2\nb,1,1\nb,2,2\n")


def run_jobs(folder: Path, warehouse: str, name: str) -> dict[str, str]:
    """Run the jobs one after another; return what each printed on its standard output and log."""
    night = ("--config", str(folder / "odd.yaml"), "--logical-date", DAY)
    rated = ("--config", str(folder / "rated.yaml"))
    bundle = str(folder / f"bundle-{name}")
    jobs: list[tuple[str, tuple[str, ...]]] = [
        ("split.py", ("--log", str(folder / "log.csv"), *SPLIT)),
        ("nightly.py", night),
        ("report.py", night),
        (
            "query.py",
            ("--engine=spark", "--format=csv", "SELECT model, metric, k, value FROM current_metrics"),
        ),
        ("compare.py", ("popular", "knn", "--suite=odd", "--bootstrap=20")),
        (
            "evaluate.py",
            (
                "--model",
                "handed",
                "--lists",
                str(folder / "lists.csv"),
                "--truth",
                str(folder / "truth.csv"),
            ),
        ),
        ("multiverse.py", (*night, "--protocols=RO_RS", "--candidates=unseen")),
        ("benchmark.py", rated),
        ("tune.py", (*rated, "--models=means", "--budget=2")),
        ("board.py", rated),
        ("bundle.py", ("pack", *rated, "--model=means", f"--output={bundle}")),
        ("maintain.py", ("--keep-days=4000", "--logical-date=2026-01-02", "--optimize")),
    ]
    printed = {}
    for job, flags in jobs:
        with start_job(folder, f"{name}-{job}", job, *flags, "--warehouse", warehouse) as process:
            assert process.popen.wait(300) == 0, f"{job}: {process.remarks[-4000:]}"
            printed[job] = process.remarks
    return printed


def test_jobs_on_s3_write_the_rows_of_a_folder(bucket: str, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    warehouse, folder = f"{bucket}/team/w", str(tmp_path / "w")
    printed = [run_jobs(tmp_path, place, name) for name, place in (("folder", folder), ("s3", warehouse))]
    assert compare_warehouses.main([folder, warehouse]) == 0
    rows = [sorted(line for line in one["query.py"].splitlines() if ",ndcg," in line) for one in printed]
    assert rows[0] == rows[1] and rows[0]
    pages = {name for name in list_objects(warehouse) if name.startswith("reports/")}
    assert pages == {str(path.relative_to(folder)) for path in Path(folder, "reports").iterdir()}
