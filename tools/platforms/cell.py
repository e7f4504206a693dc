"""Run the jobs of a cell in this process: python -m tools.platforms.cell FOLDER INPUTS JOB ...

A line of JSON for each job goes to FOLDER/jobs.jsonl, what it prints to FOLDER/JOB.txt, and the trace of an
error to FOLDER/JOB.trace. The first line has the versions of this environment.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATE = ("--logical-date", "2026-01-31")
SPLIT = ("--engine", "spark", *DATE)
QUESTION = """SELECT part, estimator, model, metric, k, value FROM leaderboard
    ORDER BY part, estimator, model, metric, k, value"""

JOBS: Mapping[str, tuple[str, ...]] = {
    "night": ("nightly", "--engine", "spark", "--config", "{inputs}/night.yaml", *DATE),
    "query": ("query", "--engine", "spark", "--format", "csv", "which_model_is_best"),
    "select": ("query", "--engine", "spark", "--format", "csv", QUESTION),
    "evaluate": (
        *("evaluate", "--engine", "spark", "--model", "m", "--k", "1,3,10", *DATE),
        *("--lists", "{inputs}/lists.parquet", "--truth", "{inputs}/truth.parquet"),
    ),
    "split_csv": ("split", "--log", "{inputs}/log.csv", "--protocol", "TO_LS", *SPLIT),
    "split_parquet": ("split", "--log", "{inputs}/log.parquet", "--protocol", "RO_LS", *SPLIT),
    "embed": (
        *("embed", "--engine", "spark", "--edges", "{inputs}/edges.csv", "--undirected", "--widths", "8,8"),
        *("--blocks", "2", "--seed", "1", "--nearest", "5"),
    ),
    "als": ("nightly", "--engine", "spark", "--config", "{inputs}/als.yaml", *DATE),
}
"""Command and words of each job; `als` is last, since it ended a Connect server once."""

QUESTIONS = ("query", "select")
"""Jobs that read the warehouse of `night`, and print their answer."""


def main(folder: Path, inputs: Path, jobs: list[str]) -> None:
    """Run the jobs one after the other; a job that fails does not stop the next."""
    note(folder, {"versions": read_versions()})
    for job in jobs:
        started = time.monotonic()
        code, sentence = run_job(folder, inputs, job)
        seconds = round(time.monotonic() - started, 1)
        note(folder, {"job": job, "exit": code, "seconds": seconds, "sentence": sentence})


def run_job(folder: Path, inputs: Path, job: str) -> tuple[int, str]:
    """Run a job; return its exit code, and the sentence that ended it if one did."""
    name, *words = (word.format(inputs=inputs) for word in JOBS[job])
    warehouse = folder / ("night" if job in QUESTIONS else job)
    if job not in QUESTIONS:
        shutil.rmtree(warehouse, ignore_errors=True)
    with (folder / f"{job}.txt").open("w", encoding="utf-8") as out, redirect_stdout(out):
        try:
            command = import_module(f"recbench_spark.commands.{name}")
            args = command.parser().parse_args([*words, "--warehouse", str(warehouse)])
            return int(command.main(args)), ""
        except (Exception, SystemExit) as error:
            (folder / f"{job}.trace").write_text(traceback.format_exc(), encoding="utf-8")
            code, sentence = describe(error)
            return code, f"{sentence.strip()} [{find_place(error)}]"


def describe(error: BaseException) -> tuple[int, str]:
    """Return exit code and sentence of an error, as the command line says them if it can be loaded."""
    try:
        from recbench_spark import cli  # noqa: PLC0415
    except (ImportError, AttributeError):
        return 1, f"{type(error).__name__}: {error}"
    return cli.read_error(error)


def find_place(error: BaseException) -> str:
    """Return file and line of this checkout where an error arose."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(f"{ROOT}/recbench_spark")] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}"


def read_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter."""
    versions = {"python": platform.python_version()}
    for name in ("pyspark", "pyspark-client", "delta-spark", "pandas", "numpy", "pyarrow"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def note(folder: Path, row: Mapping[str, Any]) -> None:
    """Append a line to the cell's notes."""
    with (folder / "jobs.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
    sys.stdout.flush()
    os._exit(0)  # Java, or a client whose server is gone, would hold the process
