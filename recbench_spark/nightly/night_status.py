"""How a night ended, as it is printed; and whether a night has nothing to do, known without a session.

The last thing that a night writes is its file in `results/`. A night has nothing to do where every model's
run key has succeeded, and all that follows from the runs (comparisons, paradoxes, changes, the report) is
as that file saw it. Whatever else is found is left to a session, which makes what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Protocol

from recbench_spark import __version__, revisions
from recbench_spark.config import Benchmark, ModelConfig, digest
from recbench_spark.data import arrow_files
from recbench_spark.errors import FAILED, GATE, OK, REGRESSION, RecbenchError
from recbench_spark.nightly import run_keys
from recbench_spark.schemas import CHANGES, COMPARISONS, FLIPS, PARADOXES, RUNS, Table
from recbench_spark.storage.arrow_store import ArrowStore, Filters, is_local_folder

FOLLOWING_TABLES = (COMPARISONS, PARADOXES, FLIPS, CHANGES)
"""Tables of what follows from a night's runs."""


@dataclass(frozen=True)
class NightOutcome:
    """What a night did: new runs, skipped and failed models, and where to look.

    `held`: those of the failed that a gate on a fact of theirs stopped.
    """

    run_ids: dict[str, str]
    skipped: tuple[str, ...]
    failed: dict[str, str]
    report_path: str | None
    leaderboard: str
    sql_lines: tuple[str, ...]
    regressions: tuple[str, ...] = ()
    held: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """How the job ends; 3 where nothing but gates stopped models."""
        if self.failed:
            return GATE if self.failed.keys() == set(self.held) else FAILED
        return REGRESSION if self.regressions else OK


class RowReader(Protocol):
    """A warehouse, as far as few rows of it are read: `Store`, or `ArrowStore`."""

    def rows(
        self, table: Table, filters: Filters = ..., columns: Sequence[str] | None = ...
    ) -> list[dict[str, Any]]:
        """The rows that fulfil all filters."""


def night_file(folder: Path, suite: str, day: date) -> Path:
    """Where a night tells how it ended."""
    return folder / "results" / f"night-{suite}-{day}.json"


def report_file(folder: Path, suite: str, day: date) -> Path:
    """Where the report of a night lies."""
    return folder / "reports" / f"{suite}-{day}.html"


def hash_following(store: RowReader, benchmark: Benchmark, day: date) -> str:
    """A hash of all that comparisons, changes and the report of a night are made from and have written.

    Succeeded runs of the suite until this night, how many rows there are in the tables of what follows, and
    the settings that are not a model's.
    """
    of_suite = [("suite", "=", benchmark.name)]
    runs = store.rows(RUNS, [*of_suite, ("status", "=", "succeeded")], ["run_id", "logical_date"])
    until = sorted(row["run_id"] for row in runs if row["logical_date"] <= day)
    of_night = [*of_suite, ("logical_date", "=", day)]
    counts = [len(store.rows(table, of_night, ["suite"])) for table in FOLLOWING_TABLES]
    # A file tells of a suite and a day: with another dataset or split it is another night's.
    settings = benchmark.model_dump(exclude={"models"})
    return digest(until, counts, settings, __version__, revisions.REVISIONS)


def find_finished_night(root: str, benchmark: Benchmark, day: date) -> NightOutcome | None:
    """How the night ended before, where it is all done; None where there is anything to do or to find out.

    Args:
        root: of the warehouse.
        benchmark: with its placeholders filled in.
        day: the night.
    """
    if not is_local_folder(root):
        return None
    try:
        told = json.loads(night_file(Path(root), benchmark.name, day).read_text(encoding="utf-8"))
        store = ArrowStore(root, read_only=True)
        if not is_done(store, benchmark, day) or told.get("follows") != hash_following(
            store, benchmark, day
        ):
            return None
    except (OSError, ValueError, RecbenchError):  # a session says what is wrong, and mends what it can
        return None
    report = report_file(store.folder, benchmark.name, day)
    if told["failed"] or not report.is_file():
        return None
    skipped = tuple(model.name for model in benchmark.models)
    lines = tuple(told["sql_lines"]), tuple(told["regressions"])
    return NightOutcome({}, skipped, {}, str(report), told["leaderboard"], *lines)


def is_done(store: ArrowStore, benchmark: Benchmark, day: date) -> bool:
    """Whether every model of a night has succeeded with the settings and inputs of now.

    Raises:
        RecbenchError: an input that is not there, or that only Spark can tell of.
    """
    split_id, inputs = run_keys.hash_split(arrow_files.identity, benchmark)
    inputs |= {
        name: arrow_files.identity(path) for name, path in run_keys.evaluation_paths(benchmark).items()
    }
    definition = benchmark.evaluation.resolve()
    of_night = [("suite", "=", benchmark.name), ("logical_date", "=", day), ("status", "=", "succeeded")]
    rows = store.rows(RUNS, of_night, ["model", "run_key"])
    done = {(row["model"], row["run_key"]) for row in rows}

    def key(model: ModelConfig) -> str:
        every = {**inputs, **run_keys.identify_model_inputs(arrow_files.identity, model)}
        return run_keys.hash_run_key(benchmark, definition, split_id, every, model)

    return all((model.name, key(model)) in done for model in benchmark.models)
