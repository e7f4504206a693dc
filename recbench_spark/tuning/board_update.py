"""Update a benchmark's board, and judge all its rows.

Rows are published ones, own results and searches.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import pandas as pd

from recbench_spark.boards.entries import (
    Entry,
    SettingsSource,
    canonical_method,
    judge_entries,
    make_published_entries,
    measure_setting_effects,
    search_columns,
    spread_columns,
)
from recbench_spark.boards.published import load_published_boards
from recbench_spark.boards.searches import SearchTrials
from recbench_spark.boards.verdicts import TuningReason, TuningVerdict, uses_best
from recbench_spark.config import Benchmark, digest
from recbench_spark.errors import MissingError
from recbench_spark.metrics.kernels.about import about_metric
from recbench_spark.models.fits.tasks import Row
from recbench_spark.night.measure_checks import make_metric_plan
from recbench_spark.query.answers import make_query_runner
from recbench_spark.schemas import BOARDS, FITS, RUNS, TRIALS, VERDICTS
from recbench_spark.storage.file_tables import FileTables, RowReader
from recbench_spark.tuning.credit import find_search, find_tuning, read_credited_trials
from recbench_spark.tuning.decisions import HELD, is_counted, keep_headline, read_latest_decisions
from recbench_spark.tuning.fold_fits import list_named_parts, select_complete_seeds, summarise_models
from recbench_spark.tuning.folds import FoldedLog
from recbench_spark.tuning.search import SearchResult, collect_searches, has_settings, read_searches

RMSE = "rmse"


@dataclass(frozen=True)
class BoardState:
    """A board after an update.

    Attributes:
        name: the board's name.
        entries: its rows, best first within a part.
        verdicts: verdicts by entry id.
        searches: searches on this log, by model.
        held: by entry id, the reason to hold a row back, so it does not count.
    """

    name: str
    entries: tuple[Entry, ...]
    verdicts: Mapping[str, TuningVerdict]
    searches: Mapping[str, SearchResult]
    held: Mapping[str, str] = field(default_factory=dict)


def board_name(benchmark: Benchmark) -> str:
    """Return the name of a benchmark's board."""
    return benchmark.board or benchmark.name


def update_board(store: FileTables, benchmark: Benchmark, log: FoldedLog | None) -> BoardState:
    """Append new and changed entries, and judge all.

    The verdicts are written.

    The driver holds one row for each fit and trial. `log`: the ratings to fit. None: the own results are
    headlines of nights that ranked.
    """
    name = board_name(benchmark)
    trials = read_credited_trials(store, benchmark)
    boards = load_published_boards()
    published = make_published_entries(boards[name]) if name in boards else []
    if log:
        own_entries, searches = (
            collect_own_entries(store.rows, benchmark, log, trials),
            read_searches(store.rows, log.log_id),
        )
    else:
        own_entries, searches = collect_nightly_entries(store, benchmark, trials), collect_searches(trials)
    append_entries(store, [*published, *(entry for entry, _ in own_entries)])
    decisions = read_latest_decisions(store.rows, name)
    held = {key: row["reason"] for key, row in decisions.items() if row["decision"] == HELD}
    entries = [
        e for e in read_entries(store, name) if e.entry_id in held or is_counted(e.entry_id, decisions)
    ]
    searched = {model: result.to_search_trials() for model, result in searches.items()}
    verdicts = judge_entries(
        [entry for entry in entries if entry.entry_id not in held],
        {model: search for model, search in searched.items() if search is not None},
        measure_setting_effects(read_other_searches(store.rows, log)) if log else {},
        {entry.entry_id: tuning for entry, tuning in own_entries},
    )
    write_verdicts(store, name, verdicts)
    return BoardState(name, tuple(entries), verdicts, searches, held)


def collect_own_entries(
    read: RowReader, benchmark: Benchmark, log: FoldedLog, trials: Sequence[Row]
) -> list[tuple[Entry, SettingsSource]]:
    """Make an entry for each model, setting and part.

    An entry covers the seeds with all folds, and comes with the source of its settings. `trials`: rows that
    may be credited to it.
    """
    rows = read_own_fits(read, benchmark, log)
    by_setting: dict[tuple[str, str], list[Row]] = {}
    for row in {(row["fit_id"], row["model"]): row for row in rows}.values():
        by_setting.setdefault((row["model"], row["settings_json"]), []).append(row)
    entries: list[tuple[Entry, SettingsSource]] = []
    for _, fits in sorted(by_setting.items()):
        complete = select_complete_seeds(fits, log.folds)
        entries += _fit_entries(benchmark, log, complete, trials) if complete else []
    return entries


def read_own_fits(read: RowReader, benchmark: Benchmark, log: FoldedLog) -> list[Row]:
    """Read a benchmark file's succeeded fits over all folds.

    Errors by step are left out.
    """
    own = {"log_id": log.log_id, "suite": benchmark.name, "purpose": "benchmark", "status": "succeeded"}
    columns = [name for name in FITS.names if name != "rmse_by_step"]
    return read(FITS, [(name, "=", value) for name, value in own.items()], columns)


def collect_nightly_entries(
    store: FileTables, benchmark: Benchmark, trials: Sequence[Row] = ()
) -> list[tuple[Entry, SettingsSource]]:
    """Make an entry for each measured model.

    An entry is the headline from the model's latest night on part test, without slices. Each entry comes
    with the source of its settings. `trials`: rows that may be credited to it.

    Raises:
        MissingError: no night of this benchmark has measured the headline.
    """
    metric, evaluation = benchmark.headline.partition("@")[0], benchmark.evaluation
    definition = make_metric_plan(evaluation, benchmark.definition).describe(metric)
    latest = make_query_runner(store)(f"SELECT * FROM latest_metrics WHERE suite = '{benchmark.name}'")
    own = ("test", definition, benchmark.dataset.name, benchmark.split.describe())
    measured = sorted(
        (
            row
            for row in keep_headline(benchmark, list_records(latest))
            if (row["part"], row["definition"], row["dataset"], row["split"]) == own
        ),
        key=itemgetter("run_id"),
    )
    rows = list({row["model"]: row for row in measured}.values())  # the last one, if a night has two splits
    if not rows:
        message = f"no night of {benchmark.name} in {store.root} has measured {benchmark.headline}"
        raise MissingError(message, "run recbench nightly with the same file first")
    # Older code scored bundles with lists in the benchmark's own suite: these are no models in the file.
    names = {model.name for model in benchmark.models}
    rows = [row for row in rows if row["model"] in names or row["model_kind"] != "lists"]
    settings = read_run_settings(store.rows, [row["run_id"] for row in rows])
    lower = about_metric(metric).best == "small"
    entries = []
    for row in rows:
        used = settings.get(row["run_id"], {})
        entry = Entry(
            board_name(benchmark), "ours", row["dataset"], f"{row['split']}; {row['definition']}",
            benchmark.headline, lower, canonical_method(row["model_kind"], used), row["model"],
            float(row["value"]), ran_by="ours", who=row["ran_by"], year=row["logical_date"].year,
            dims=used.get("dims"), evidence=f"run {row['run_id']}",
        )  # fmt: skip
        entries.append(_add_tuning(entry, benchmark, trials, used))
    return entries


def read_run_settings(read: RowReader, run_ids: Sequence[str]) -> dict[str, Row]:
    """Read the settings each run's model had.

    The file may have others by now.
    """
    rows = read(RUNS, [("run_id", "in", list(run_ids))], ["run_id", "config_json"])
    return {row["run_id"]: json.loads(row["config_json"] or "{}").get("model", {}) for row in rows}


def _fit_entries(
    benchmark: Benchmark, log: FoldedLog, fits: Sequence[Row], trials: Sequence[Row]
) -> list[tuple[Entry, SettingsSource]]:
    first = fits[0]
    settings = json.loads(first["settings_json"])
    parts = list_named_parts(fits)
    entries = []
    for part in parts if len(parts) > 1 else [None]:
        entry = Entry(
            board_name(benchmark), "ours", log.dataset, log.split, RMSE, True,
            canonical_method(first["kind"], settings), first["model"], part=part, ran_by="ours",
            who=benchmark.ran_by or os.environ.get("USER", "unknown"),
            year=max(row["finished_at"] for row in fits).year,
            dims=first["dims"], evidence=f"fits {digest(sorted(row['fit_id'] for row in fits))}",
            **spread_columns(summarise_models(fits, part)[first["model"]]),
        )  # fmt: skip
        entries.append(_add_tuning(entry, benchmark, trials, settings))
    return entries


def _add_tuning(
    entry: Entry, benchmark: Benchmark, trials: Sequence[Row], settings: Row
) -> tuple[Entry, SettingsSource]:
    """Add the search that found an entry's settings.

    Returns the entry with the source of its settings.
    """
    model = next((model for model in benchmark.models if model.name == entry.name), None)
    tuning = find_tuning(trials, entry.name, settings, model.provenance if model else None)
    if model is not None and not has_settings(model, benchmark.evaluation.task):
        tuning = tuning._replace(fixed=True)
    if tuning.search is None or not uses_best(tuning.search, tuning.used or {}):
        return entry, tuning
    result = find_search(trials, entry.name, settings)
    assert result is not None
    seconds = sum(row["seconds"] or 0.0 for row in result.trials)
    facts = search_columns(tuning.search, seconds, [edge.name for edge in result.edges])
    return replace(entry, **facts), tuning


def append_entries(store: FileTables, entries: Iterable[Entry]) -> int:
    """Append entries that are new or better known.

    Returns the number of rows. A row is never changed: readers take the last row for an entry_id. If two
    jobs append the same entry at once, one of them sees the other's row, which was written after its own
    read of the table.
    """
    by_id = {entry.entry_id: entry for entry in entries}
    rows = _read_rows(store, {entry.board for entry in by_id.values()})
    stored, last = _keep_newest(rows), max((row["entered_at"] for row in rows), default=None)
    merged = {
        key: entry.merge_earlier(stored[key]) if key in stored else entry for key, entry in by_id.items()
    }
    changed = {key: entry for key, entry in merged.items() if entry != stored.get(key)}
    now = datetime.now(UTC)
    values = [
        {name: _column_value(entry, name, key, now) for name in BOARDS.names}
        for key, entry in changed.items()
    ]
    columns = [name for name in BOARDS.names if name != "entered_at"]
    store.append_missing(values, BOARDS, columns, None if last is None else ("entered_at", last))
    return len(values)


def _column_value(entry: Entry, name: str, key: str, now: datetime) -> object:
    if name == "entry_id":
        return key
    if name == "entered_at":
        return now
    value = getattr(entry, name)
    if isinstance(value, Mapping):
        return dict(value) or None
    return list(value) if isinstance(value, tuple) else value


def read_newest_entries(store: FileTables, names: Iterable[str]) -> dict[str, Entry]:
    """Return the newest row of each entry, by id.

    The entries are those of some boards; the driver holds all of them.
    """
    return _keep_newest(_read_rows(store, names))


def _read_rows(store: FileTables, names: Iterable[str]) -> list[Row]:
    return store.rows(BOARDS, [("board", "in", sorted(names))])


def _keep_newest(rows: Iterable[Row]) -> dict[str, Entry]:
    columns = [field.name for field in fields(Entry)]
    entries = {}
    for row in sorted(rows, key=lambda row: (row["entered_at"], row["budget_settings"] or 0)):
        entry_values = {key: value for key, value in row.items() if key in columns}
        listed = {key: tuple(entry_values[key] or ()) for key in ("at_edge", "never_searched")}
        entries[row["entry_id"]] = Entry(
            **{**entry_values, **listed, "fold_values": dict(row["fold_values"] or ())}
        )
    return entries


def read_entries(store: FileTables, name: str) -> list[Entry]:
    """Return a board's rows, best first within a part.

    Rows that are held back or retracted are included.
    """
    return sorted(
        read_newest_entries(store, [name]).values(),
        key=lambda e: (e.part or "", e.value if e.lower_is_better else -e.value, e.name),
    )


def read_other_searches(read: RowReader, log: FoldedLog) -> dict[str, tuple[str, SearchTrials]]:
    """Return rating searches on other logs, by log and model.

    A search comes with its method.
    """
    by_log: dict[str, list[Row]] = {}
    for row in read(TRIALS, [("log_id", "!=", log.log_id)]):
        if (row["metric"] or RMSE) == RMSE:
            by_log.setdefault(row["log_id"], []).append(row)
    searches = {}
    for log_id, trials in by_log.items():
        for model, result in collect_searches(trials).items():
            judged, first = result.to_search_trials(), result.trials[0]
            if judged is not None:
                method = canonical_method(first["kind"], json.loads(first["settings_json"]))
                searches[f"{log_id} {model}"] = (method, judged)
    return searches


def write_verdicts(store: FileTables, name: str, verdicts: Mapping[str, TuningVerdict]) -> None:
    """Replace a board's reasons and notes by the present ones."""
    now = datetime.now(UTC)
    rows = [
        dict(
            zip(
                VERDICTS.names,
                (entry_id, name, remark.code, remark.text, now, isinstance(remark, TuningReason)),
                strict=True,
            )
        )
        for entry_id, verdict in verdicts.items()
        for remark in verdict.remarks
    ]
    if rows or store.exists(VERDICTS.name):
        store.replace_rows(rows, VERDICTS, "board", name)


def read_shown_fits(store: FileTables, log: FoldedLog) -> pd.DataFrame:
    """Return a log's succeeded fits for benchmarks and figures.

    No fit is listed twice.
    """
    purposes = ["benchmark", "figure"]
    counted = [("log_id", "=", log.log_id), ("purpose", "in", purposes), ("status", "=", "succeeded")]
    columns = ("fit_id", "model", "kind", "dims", "settings_json", "fold", "seed", "rmse", "rmse_by_step")
    rows: pd.DataFrame = store.read_rows(FITS, counted, [*columns, "cpu_seconds"]).to_pandas()
    return rows.drop_duplicates("fit_id")


BOARD_VIEWS = ("board_gaps", "board_progress", "board_spreads", "board_looks", "board_decided")


def read_views(store: FileTables, name: str) -> dict[str, pd.DataFrame]:
    """Read the rows of a board's views.

    `search_curves` is left out, since it is a view of logs.
    """
    ask = make_query_runner(store)
    return {view: ask(f"SELECT * FROM {view} WHERE board = '{name}'") for view in BOARD_VIEWS}


def list_records(rows: pd.DataFrame) -> list[Row]:
    """Turn rows into plain objects, with None for missing values."""
    plain: Any = rows.astype(object)
    return [dict(row) for row in plain.where(rows.notna(), None).to_dict("records")]
