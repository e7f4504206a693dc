"""Record a night's outcome, and recognise a finished night.

No Spark session is needed. The last thing a night writes is its file in `results/`. A night has nothing
to do if every model's run key has succeeded, and everything computed from the runs (comparisons,
paradoxes, changes, the report) is in the state recorded in this file. In any other state a Spark session
starts and makes what is missing.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import date

from recbench_spark import __version__
from recbench_spark.config import Benchmark, ModelConfig, digest
from recbench_spark.core import revisions
from recbench_spark.errors import FAILED, GATE, OK, REGRESSION, VERDICT_CODES, RecbenchError
from recbench_spark.night import run_keys
from recbench_spark.night.lost_rows import find_lost_rows
from recbench_spark.schemas import (
    BESIDE_COMPARISONS,
    CHANGES,
    COMPARISONS,
    CURVE_CROSSINGS,
    FLIPS,
    PARADOXES,
    RUNS,
)
from recbench_spark.sources import arrow_files
from recbench_spark.storage.arrow_store import ArrowStore, needs_no_java
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.object_access import map_together
from recbench_spark.storage.objects import measure_files, read_bytes
from recbench_spark.storage.table_folders import reports_place
from recbench_spark.storage.uris import join_uri

FOLLOWING_TABLES = (COMPARISONS, PARADOXES, FLIPS, CHANGES)
"""Tables computed from a night's runs."""


@dataclass(frozen=True)
class NightOutcome:
    """A night's outcome: runs, models, report and leaderboard.

    `skipped` and `failed` are models. `held`: failed models stopped by a gate on one of their facts.
    `doubts`: sentences on models that are too good, or cannot be judged. `restated`: sentences on numbers
    that replaced others of this night and moved too far. `doubt_code`: exit code for doubts, where the
    file asks for it.
    """

    run_ids: dict[str, str]
    skipped: tuple[str, ...]
    failed: dict[str, str]
    report_path: str | None
    leaderboard: str
    sql_lines: tuple[str, ...]
    regressions: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    restated: tuple[str, ...] = ()
    doubt_code: int = OK

    @property
    def exit_code(self) -> int:
        """The job's exit code; 3 if only gates stopped models."""
        if self.failed:
            return GATE if self.failed.keys() == set(self.held) else FAILED
        if self.restated:
            return GATE
        return REGRESSION if self.regressions else self.doubt_code


def night_file(root: str, suite: str, day: date) -> str:
    """Return the place of the file with a night's outcome."""
    return join_uri(root, "results", f"night-{suite}-{day}.json")


def report_file(root: str, suite: str, day: date) -> str:
    """Return the place of a night's report."""
    return join_uri(reports_place(root), f"{suite}-{day}.html")


def read_filled_tables(root: str, suite: str, day: date) -> list[str]:
    """Return the tables a night had filled when it ended.

    The night's file tells; without a file there are none.
    """
    with suppress(OSError, ValueError):
        record = json.loads(read_bytes(night_file(root, suite, day)) or b"{}")
        return list(record.get("tables") or ())
    return []


def hash_following(store: FileTables, benchmark: Benchmark, day: date) -> str:
    """Hash everything that follows from a night's runs.

    The hash decides if comparisons, changes and report are up to date. It covers the suite's
    succeeded runs until this night, the row counts in `FOLLOWING_TABLES`, and all settings but those of
    models.
    """
    suite_filters = [("suite", "=", benchmark.name)]
    runs = store.rows(RUNS, [*suite_filters, ("status", "=", "succeeded")], ["run_id", "logical_date"])
    run_ids = sorted(row["run_id"] for row in runs if row["logical_date"] <= day)
    night_filters = [*suite_filters, ("logical_date", "=", day)]
    # Nights without curves, watched slices, spreads or fronts keep the hash they had before.
    later = [CURVE_CROSSINGS] if benchmark.evaluation.learning_curve else []
    compared = benchmark.comparisons
    later += BESIDE_COMPARISONS[:1] if benchmark.regression_slices else []
    later += BESIDE_COMPARISONS[1:] if compared and (compared.users or compared.fronts) else []
    tables = (*FOLLOWING_TABLES, *later)
    counts = map_together(
        store.root, lambda table: len(store.rows(table, night_filters, ["suite"])), tables
    )
    # The file's name has suite and day only: another dataset or split means another night.
    settings = benchmark.model_dump(exclude={"models"})
    return digest(run_ids, counts, settings, __version__, revisions.REVISIONS)


def find_finished_night(root: str, benchmark: Benchmark, day: date) -> NightOutcome | None:
    """Return a complete night's recorded outcome.

    The result is None if there may be anything to do.

    Args:
        root: the warehouse's root.
        benchmark: its placeholders are filled in.
        day: the night.
    """
    if not needs_no_java(root):
        return None
    try:
        store = ArrowStore(root, read_only=True)
        record = json.loads(read_bytes(night_file(store.root, benchmark.name, day)) or b"")
        split_hash, _ = run_keys.hash_split(arrow_files.identity, benchmark)
        lost = find_lost_rows(store, benchmark.name, day, split_hash, record.get("tables") or ())
        if lost:
            print(f"night {day}: {lost.describe()}; the night makes it again", file=sys.stderr)
            return None
        if not is_done(store, benchmark, day) or record.get("follows") != hash_following(
            store, benchmark, day
        ):
            return None
    except (OSError, ValueError, RecbenchError):  # a Spark session reports the error, or repairs it
        return None
    report = report_file(store.root, benchmark.name, day)
    if record["failed"] or measure_files([report]) == [None]:
        return None
    skipped = tuple(model.name for model in benchmark.models)
    lines = tuple(record["sql_lines"]), tuple(record["regressions"])
    doubts = tuple(record.get("doubts") or ())
    code = record["exit_code"] if record["exit_code"] in VERDICT_CODES.values() else OK
    return NightOutcome(
        {}, skipped, {}, report, record["leaderboard"], *lines, doubts=doubts, doubt_code=code
    )


def is_done(store: ArrowStore, benchmark: Benchmark, day: date) -> bool:
    """Tell whether every model of a night has succeeded.

    Settings and inputs are the present ones.

    Raises:
        RecbenchError: an input is not there, or only Spark can identify it.
    """
    split_id, inputs = run_keys.hash_split(arrow_files.identity, benchmark)
    inputs |= {
        name: arrow_files.identity(path) for name, path in run_keys.evaluation_paths(benchmark).items()
    }
    definition = benchmark.definition
    filters = [("suite", "=", benchmark.name), ("logical_date", "=", day), ("status", "=", "succeeded")]
    rows = store.rows(RUNS, filters, ["model", "run_key"])
    done = {(row["model"], row["run_key"]) for row in rows}

    def key(model: ModelConfig) -> str:
        every = {**inputs, **run_keys.identify_model_inputs(arrow_files.identity, model)}
        every |= {f"run of {one.name}": key(one) for one in run_keys.list_switched_models(benchmark, model)}
        return run_keys.hash_run_key(benchmark, definition, split_id, every, model)

    return all((model.name, key(model)) in done for model in benchmark.models)
