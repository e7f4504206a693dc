"""The board of a benchmark: published rows and ours entered once, searches beside them, verdicts on all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime

import pandas as pd
from pyspark.sql import functions as F

from recbench_spark.config import Benchmark, digest
from recbench_spark.errors import MissingError
from recbench_spark.kernels.metrics.about import about_metric
from recbench_spark.leaderboard.entries import (
    Entry,
    SettingsSource,
    canonical_method,
    judge_entries,
    make_published_entries,
    measure_setting_effects,
    search_columns,
    spread_columns,
)
from recbench_spark.leaderboard.published import load_published_boards
from recbench_spark.leaderboard.searches import SearchTrials
from recbench_spark.leaderboard.verdicts import TuningReason, TuningVerdict, uses_best
from recbench_spark.nightly.night import headline_filter, make_metric_plan
from recbench_spark.schemas import BOARDS, FITS, RUNS, TRIALS, VERDICTS
from recbench_spark.storage.store import Store
from recbench_spark.training.fits.tasks import Row
from recbench_spark.tuning.decisions import HELD, is_counted, read_latest_decisions
from recbench_spark.tuning.fold_fits import select_complete_seeds, summarise_models
from recbench_spark.tuning.folds import FoldedLog
from recbench_spark.tuning.search import (
    SearchResult,
    collect_searches,
    find_search,
    find_tuning,
    has_settings,
    read_credited_trials,
    read_searches,
)

RMSE = "rmse"


@dataclass(frozen=True)
class BoardState:
    """A board as it stands.

    Attributes:
        name: of the board.
        entries: its rows, best first within a part.
        verdicts: by entry id.
        searches: of this log, by model.
        held: why a row is held back and does not count, by entry id.
    """

    name: str
    entries: tuple[Entry, ...]
    verdicts: Mapping[str, TuningVerdict]
    searches: Mapping[str, SearchResult]
    held: Mapping[str, str] = field(default_factory=dict)


def board_name(benchmark: Benchmark) -> str:
    """The board that a benchmark's results go to."""
    return benchmark.board or benchmark.name


def update_board(store: Store, benchmark: Benchmark, log: FoldedLog | None) -> BoardState:
    """Enter what is new or has grown, judge, write the verdicts; the driver holds a row a fit and trial.

    `log`: the ratings that fits are over; None: ours are the headlines of nights that ranked.
    """
    name = board_name(benchmark)
    trials = read_credited_trials(store, benchmark)
    known = load_published_boards()
    found = make_published_entries(known[name]) if name in known else []
    if log:
        ours, searches = (
            collect_own_entries(store, benchmark, log, trials),
            read_searches(store, log.log_id),
        )
    else:
        ours, searches = collect_nightly_entries(store, benchmark, trials), collect_searches(trials)
    append_entries(store, [*found, *(entry for entry, _ in ours)])
    decisions = read_latest_decisions(store, name)
    held = {key: row["reason"] for key, row in decisions.items() if row["decision"] == HELD}
    entries = [
        e for e in read_entries(store, name) if e.entry_id in held or is_counted(e.entry_id, decisions)
    ]
    searched = {model: one.judged() for model, one in searches.items()}
    verdicts = judge_entries(
        [entry for entry in entries if entry.entry_id not in held],
        {model: search for model, search in searched.items() if search is not None},
        measure_setting_effects(read_other_searches(store, log)) if log else {},
        {entry.entry_id: tuning for entry, tuning in ours},
    )
    write_verdicts(store, name, verdicts)
    return BoardState(name, tuple(entries), verdicts, searches, held)


def collect_own_entries(
    store: Store, benchmark: Benchmark, log: FoldedLog, trials: Sequence[Row]
) -> list[tuple[Entry, SettingsSource]]:
    """A row a model and setting, of the seeds that cover all folds; of several parts one each.

    Beside each: where its settings are from. `trials`: rows that may be credited to it.
    """
    mine = (F.col("log_id") == log.log_id) & (F.col("suite") == benchmark.name)
    done = mine & (F.col("purpose") == "benchmark") & (F.col("status") == "succeeded")
    columns = [name for name in FITS.names if name != "rmse_by_step"]
    rows = [row.asDict() for row in store.read(FITS).where(done).select(*columns).collect()]
    by_setting: dict[tuple[str, str], list[Row]] = {}
    for row in {(row["fit_id"], row["model"]): row for row in rows}.values():
        by_setting.setdefault((row["model"], row["settings_json"]), []).append(row)
    found: list[tuple[Entry, SettingsSource]] = []
    for _, fits in sorted(by_setting.items()):
        whole = select_complete_seeds(fits, log.folds)
        found += _fit_entries(benchmark, log, whole, trials) if whole else []
    return found


def collect_nightly_entries(
    store: Store, benchmark: Benchmark, trials: Sequence[Row] = ()
) -> list[tuple[Entry, SettingsSource]]:
    """A row a measured model: the headline of its latest night over the part test, no slice.

    Beside each: where its settings are from. `trials`: rows that may be credited to it.

    Raises:
        MissingError: no night of this benchmark has measured it.
    """
    metric, asked = benchmark.headline.partition("@")[0], benchmark.evaluation
    definition = make_metric_plan(asked, asked.resolve()).describe(metric)
    store.install_views()
    rows = store.spark.table("latest_metrics").where(
        headline_filter(benchmark) & (F.col("suite") == benchmark.name) & (F.col("part") == "test")
        & F.col("slice_key").isNull() & (F.col("estimator") == "holdout")
        & (F.col("definition") == definition) & (F.col("dataset") == benchmark.dataset.name)
        & (F.col("split") == benchmark.split.describe())
    ).orderBy("run_id").collect()  # fmt: skip
    rows = list({row.model: row for row in rows}.values())  # of two splits of one night the last one's
    if not rows:
        told = f"no night of {benchmark.name} in {store.root} has measured {benchmark.headline}"
        raise MissingError(told, "jobs/nightly.py with the same file comes first")
    # Older code scored bundles of lists in the benchmark's own suite: these are no models of ours.
    names = {model.name for model in benchmark.models}
    rows = [row for row in rows if row.model in names or row.model_kind != "lists"]
    settings = read_run_settings(store, [row.run_id for row in rows])
    lower = about_metric(metric).best == "small"
    found = []
    for row in rows:
        own = settings.get(row.run_id, {})
        entry = Entry(
            board_name(benchmark), "ours", row.dataset, f"{row.split}; {row.definition}",
            benchmark.headline, lower, canonical_method(row.model_kind, own), row.model,
            float(row.value), ran_by="ours", who=row.ran_by, year=row.logical_date.year,
            dims=own.get("dims"), evidence=f"run {row.run_id}",
        )  # fmt: skip
        found.append(_add_tuning(entry, benchmark, trials, own))
    return found


def read_run_settings(store: Store, run_ids: Sequence[str]) -> dict[str, Row]:
    """The model's settings of each run, as it ran: the file may have others by now."""
    rows = store.rows(RUNS, [("run_id", "in", list(run_ids))], ["run_id", "config_json"])
    return {row["run_id"]: json.loads(row["config_json"] or "{}").get("model", {}) for row in rows}


def _fit_entries(
    benchmark: Benchmark, log: FoldedLog, fits: Sequence[Row], trials: Sequence[Row]
) -> list[tuple[Entry, SettingsSource]]:
    first = fits[0]
    settings = json.loads(first["settings_json"])
    parts = sorted({part for row in fits for part in row["rmse_by_part"] or {} if not part.isdecimal()})
    found = []
    for part in parts if len(parts) > 1 else [None]:
        entry = Entry(
            board_name(benchmark), "ours", log.dataset, log.split, RMSE, True,
            canonical_method(first["kind"], settings), first["model"], part=part, ran_by="ours",
            who=benchmark.ran_by or os.environ.get("USER", "unknown"),
            year=max(row["finished_at"] for row in fits).year,
            dims=first["dims"], evidence=f"fits {digest(sorted(row['fit_id'] for row in fits))}",
            **spread_columns(summarise_models(fits, part)[first["model"]]),
        )  # fmt: skip
        found.append(_add_tuning(entry, benchmark, trials, settings))
    return found


def _add_tuning(
    entry: Entry, benchmark: Benchmark, trials: Sequence[Row], settings: Row
) -> tuple[Entry, SettingsSource]:
    """An entry with the search that found its settings, and where they are from."""
    model = next((model for model in benchmark.models if model.name == entry.name), None)
    tuning = find_tuning(trials, entry.name, settings, model.provenance if model else None)
    if model is not None and not has_settings(model, benchmark.evaluation.task):
        tuning = tuning._replace(fixed=True)
    if tuning.search is None or not uses_best(tuning.search, tuning.used or {}):
        return entry, tuning
    found = find_search(trials, entry.name, settings)
    assert found is not None
    seconds = sum(row["seconds"] or 0.0 for row in found.trials)
    facts = search_columns(tuning.search, seconds, [edge.name for edge in found.edges])
    return replace(entry, **facts), tuning


def append_entries(store: Store, entries: Iterable[Entry]) -> int:
    """Append entries that are not there yet, or of which more is known by now; how many rows these were.

    A row is never changed: a later one of the same entry_id replaces it for all who read. Of two jobs that
    enter the same at once one finds the other's row, which came after its own look at the table.
    """
    wanted = {entry.entry_id: entry for entry in entries}
    rows = _read_rows(store, {entry.board for entry in wanted.values()})
    known, last = _keep_newest(rows), max((row["entered_at"] for row in rows), default=None)
    grown = {
        key: entry.merge_earlier(known[key]) if key in known else entry for key, entry in wanted.items()
    }
    fresh = {key: entry for key, entry in grown.items() if entry != known.get(key)}
    now = datetime.now(UTC)
    values = [
        {name: _column_value(entry, name, key, now) for name in BOARDS.names}
        for key, entry in fresh.items()
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


def read_newest_entries(store: Store, names: Iterable[str]) -> dict[str, Entry]:
    """The newest row of each entry of some boards, by its id; the driver holds a row an entry."""
    return _keep_newest(_read_rows(store, names))


def _read_rows(store: Store, names: Iterable[str]) -> list[Row]:
    return store.rows(BOARDS, [("board", "in", sorted(names))])


def _keep_newest(rows: Iterable[Row]) -> dict[str, Entry]:
    columns = [field.name for field in fields(Entry)]
    found = {}
    for row in sorted(rows, key=lambda row: (row["entered_at"], row["budget_settings"] or 0)):
        known = {key: value for key, value in row.items() if key in columns}
        listed = {key: tuple(known[key] or ()) for key in ("at_edge", "never_searched")}
        found[row["entry_id"]] = Entry(**{**known, **listed, "fold_values": dict(row["fold_values"] or ())})
    return found


def read_entries(store: Store, name: str) -> list[Entry]:
    """The rows of a board, best first within a part; those held back or retracted among them."""
    return sorted(
        read_newest_entries(store, [name]).values(),
        key=lambda e: (e.part or "", e.value if e.lower_is_better else -e.value, e.name),
    )


def read_other_searches(store: Store, log: FoldedLog) -> dict[str, tuple[str, SearchTrials]]:
    """Searches of rating models on other logs: method and search, by log and model."""
    others = (F.col("log_id") != log.log_id) & F.coalesce("metric", F.lit("rmse")).eqNullSafe("rmse")
    rows = [row.asDict() for row in store.read(TRIALS).where(others).collect()]
    by_log: dict[str, list[Row]] = {}
    for row in rows:
        by_log.setdefault(row["log_id"], []).append(row)
    found = {}
    for log_id, trials in by_log.items():
        for model, one in collect_searches(trials).items():
            judged, first = one.judged(), one.trials[0]
            if judged is not None:
                method = canonical_method(first["kind"], json.loads(first["settings_json"]))
                found[f"{log_id} {model}"] = (method, judged)
    return found


def write_verdicts(store: Store, name: str, verdicts: Mapping[str, TuningVerdict]) -> None:
    """Reasons and notes as they are now, in place of those before."""
    now = datetime.now(UTC)
    rows = [
        dict(
            zip(
                VERDICTS.names,
                (entry_id, name, one.code, one.text, now, isinstance(one, TuningReason)),
                strict=True,
            )
        )
        for entry_id, verdict in verdicts.items()
        for one in verdict.remarks
    ]
    if rows or store.exists(VERDICTS.name):
        store.replace_rows(rows, VERDICTS, "board", name)


def read_shown_fits(store: Store, log: FoldedLog) -> pd.DataFrame:
    """Succeeded fits of a log that were made to count or to be drawn, each once."""
    shown = F.col("purpose").isin("benchmark", "figure") & (F.col("status") == "succeeded")
    rows = store.read(FITS).where((F.col("log_id") == log.log_id) & shown)
    columns = ("fit_id", "model", "kind", "dims", "settings_json", "fold", "seed", "rmse", "rmse_by_step")
    return rows.select(*columns, "cpu_seconds").dropDuplicates(["fit_id"]).toPandas()


BOARD_VIEWS = ("board_gaps", "board_progress", "board_spreads", "board_looks", "board_decided")


def read_views(store: Store, name: str) -> dict[str, pd.DataFrame]:
    """The rows of a board's views; `search_curves` apart, which is of logs."""
    store.install_views()
    return {view: store.spark.table(view).where(F.col("board") == name).toPandas() for view in BOARD_VIEWS}
