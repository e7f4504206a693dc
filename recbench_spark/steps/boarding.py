"""The board of a benchmark: published rows and ours entered once, searches beside them, verdicts on all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime

import pandas as pd
from pyspark.sql import functions as F

from recbench_spark.boards.entries import (
    Entry,
    judge,
    method_of,
    moved_by,
    published_entries,
    search_facts,
    spread_facts,
)
from recbench_spark.boards.published import published_boards
from recbench_spark.boards.searches import Search
from recbench_spark.boards.verdicts import Verdict
from recbench_spark.config import Benchmark, digest
from recbench_spark.errors import MissingError
from recbench_spark.kernels.metrics.about import about_metric
from recbench_spark.schemas import BOARDS, FITS, TRIALS, VERDICTS
from recbench_spark.steps.fitting import of_whole_seeds, summaries
from recbench_spark.steps.folding import FoldedLog
from recbench_spark.steps.night import at_headline, metric_plan
from recbench_spark.steps.standing import HELD, latest_decisions, stands
from recbench_spark.steps.tuning import Found, found_in, known_searches
from recbench_spark.store import Store
from recbench_spark.training.fits.tasks import Row

RMSE = "rmse"


@dataclass(frozen=True)
class Judged:
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
    verdicts: Mapping[str, Verdict]
    searches: Mapping[str, Found]
    held: Mapping[str, str] = field(default_factory=dict)


def board_name(benchmark: Benchmark) -> str:
    """The board that a benchmark's results go to."""
    return benchmark.board or benchmark.name


def update_board(store: Store, benchmark: Benchmark, log: FoldedLog | None) -> Judged:
    """Enter what is not there yet, judge, write the verdicts; the driver holds a row a fit and trial.

    `log`: the ratings that fits are over; None: ours are the headlines of nights that ranked.
    """
    name = board_name(benchmark)
    searches = known_searches(store, log.log_id) if log else {}
    known = published_boards()
    found = published_entries(known[name]) if name in known else []
    ours = our_entries(store, benchmark, log, searches) if log else nightly_entries(store, benchmark)
    enter(store, [*found, *ours])
    decisions = latest_decisions(store, name)
    held = {key: row["reason"] for key, row in decisions.items() if row["decision"] == HELD}
    entries = [e for e in entries_of(store, name) if e.entry_id in held or stands(e.entry_id, decisions)]
    searched = {model: one.judged() for model, one in searches.items()}
    verdicts = judge(
        [entry for entry in entries if entry.entry_id not in held],
        {model: search for model, search in searched.items() if search is not None},
        moved_by(elsewhere(store, log)) if log else {},
    )
    write_verdicts(store, name, verdicts)
    return Judged(name, tuple(entries), verdicts, searches, held)


def our_entries(
    store: Store, benchmark: Benchmark, log: FoldedLog, searches: Mapping[str, Found]
) -> list[Entry]:
    """A row a model and setting, of the seeds that cover all folds; of several parts one each."""
    mine = (F.col("log_id") == log.log_id) & (F.col("suite") == benchmark.name)
    done = mine & (F.col("purpose") == "benchmark") & (F.col("status") == "succeeded")
    columns = [name for name in FITS.names if name != "rmse_by_step"]
    rows = [row.asDict() for row in store.read(FITS).where(done).select(*columns).collect()]
    by_setting: dict[tuple[str, str], list[Row]] = {}
    for row in {(row["fit_id"], row["model"]): row for row in rows}.values():
        by_setting.setdefault((row["model"], row["settings_json"]), []).append(row)
    found = []
    for (model, _), fits in sorted(by_setting.items()):
        whole = of_whole_seeds(fits, log.folds)
        found += _entries(benchmark, log, whole, searches.get(model)) if whole else []
    return found


def nightly_entries(store: Store, benchmark: Benchmark) -> list[Entry]:
    """A row a measured model: the headline of its latest night over the part test, no slice.

    Raises:
        MissingError: no night of this benchmark has measured it.
    """
    metric, asked = benchmark.headline.partition("@")[0], benchmark.evaluation
    definition = metric_plan(asked, asked.resolve()).describe(metric)
    store.install_views()
    rows = store.spark.table("latest_metrics").where(
        at_headline(benchmark) & (F.col("suite") == benchmark.name) & (F.col("part") == "test")
        & F.col("slice_key").isNull() & (F.col("estimator") == "holdout")
        & (F.col("definition") == definition)
    ).collect()  # fmt: skip
    if not rows:
        told = f"no night of {benchmark.name} in {store.root} has measured {benchmark.headline}"
        raise MissingError(told, "jobs/nightly.py with the same file comes first")
    settings = {model.name: model.model_dump() for model in benchmark.models}
    # Older code scored bundles of lists in the benchmark's own suite: these are no models of ours.
    rows = [row for row in rows if row.model in settings or row.model_kind != "lists"]
    lower = about_metric(metric).best == "small"
    return [
        Entry(
            board_name(benchmark), "ours", row.dataset, f"{row.split}; {row.definition}",
            benchmark.headline, lower, method_of(row.model_kind, settings.get(row.model, {})), row.model,
            float(row.value), ran_by="ours", who=row.ran_by, year=row.logical_date.year,
            dims=settings.get(row.model, {}).get("dims"), evidence=f"run {row.run_id}",
        )
        for row in rows
    ]  # fmt: skip


def _entries(
    benchmark: Benchmark, log: FoldedLog, fits: Sequence[Row], search: Found | None
) -> list[Entry]:
    first = fits[0]
    settings = json.loads(first["settings_json"])
    parts = sorted({part for row in fits for part in row["rmse_by_part"] or {} if not part.isdecimal()})
    searched = search_facts(
        search.judged() if search else None,
        sum(row["seconds"] or 0.0 for row in search.trials) if search else 0.0,
        [edge.name for edge in search.edges] if search else (),
    )
    return [
        Entry(
            board_name(benchmark), "ours", log.dataset, log.split, RMSE, True,
            method_of(first["kind"], settings), first["model"], part=part, ran_by="ours",
            who=benchmark.ran_by or os.environ.get("USER", "unknown"), year=datetime.now(UTC).year,
            dims=first["dims"], evidence=f"fits {digest(sorted(row['fit_id'] for row in fits))}",
            **spread_facts(summaries(fits, part)[first["model"]]), **searched,
        )
        for part in (parts if len(parts) > 1 else [None])
    ]  # fmt: skip


def enter(store: Store, entries: Iterable[Entry]) -> int:
    """Append entries that are not there yet; how many these were."""
    known = {row.entry_id for row in store.read(BOARDS).select("entry_id").collect()}
    fresh = {entry.entry_id: entry for entry in entries if entry.entry_id not in known}
    now = datetime.now(UTC)
    values = [tuple(_value(entry, name, key, now) for name in BOARDS.names) for key, entry in fresh.items()]
    if values:
        store.append(store.spark.createDataFrame(values, BOARDS.schema), BOARDS)
    return len(values)


def _value(entry: Entry, name: str, key: str, now: datetime) -> object:
    if name == "entry_id":
        return key
    if name == "entered_at":
        return now
    value = getattr(entry, name)
    return list(value) if isinstance(value, tuple) else value


def entries_of(store: Store, name: str) -> list[Entry]:
    """The rows of a board, best first within a part; those held back or retracted among them."""
    rows = store.read(BOARDS).where(F.col("board") == name).collect()
    names = [field.name for field in fields(Entry)]
    found = []
    for row in rows:
        known = {key: value for key, value in row.asDict().items() if key in names}
        listed = {key: tuple(known[key] or ()) for key in ("at_edge", "never_searched")}
        found.append(Entry(**{**known, **listed}))
    unique = {entry.entry_id: entry for entry in found}
    return sorted(
        unique.values(),
        key=lambda e: (e.part or "", e.value if e.lower_is_better else -e.value, e.name),
    )


def elsewhere(store: Store, log: FoldedLog) -> dict[str, tuple[str, Search]]:
    """Searches of rating models on other logs: method and search, by log and model."""
    others = (F.col("log_id") != log.log_id) & F.coalesce("metric", F.lit("rmse")).eqNullSafe("rmse")
    rows = [row.asDict() for row in store.read(TRIALS).where(others).collect()]
    by_log: dict[str, list[Row]] = {}
    for row in rows:
        by_log.setdefault(row["log_id"], []).append(row)
    found = {}
    for log_id, trials in by_log.items():
        for model, one in found_in(trials).items():
            judged, first = one.judged(), one.trials[0]
            if judged is not None:
                method = method_of(first["kind"], json.loads(first["settings_json"]))
                found[f"{log_id} {model}"] = (method, judged)
    return found


def write_verdicts(store: Store, name: str, verdicts: Mapping[str, Verdict]) -> None:
    """The reasons as they are now, in place of those before."""
    now = datetime.now(UTC)
    rows = [
        (entry_id, name, reason.code, reason.text, now)
        for entry_id, verdict in verdicts.items()
        for reason in verdict.reasons
    ]
    if store.exists(VERDICTS.name):
        store.delete(VERDICTS.name, "board", [name])
    if rows:
        store.append(store.spark.createDataFrame(rows, VERDICTS.schema), VERDICTS)


def fits_shown(store: Store, log: FoldedLog) -> pd.DataFrame:
    """Succeeded fits of a log that were made to count or to be drawn, each once."""
    shown = F.col("purpose").isin("benchmark", "figure") & (F.col("status") == "succeeded")
    rows = store.read(FITS).where((F.col("log_id") == log.log_id) & shown)
    columns = ("fit_id", "model", "kind", "dims", "settings_json", "fold", "seed", "rmse", "rmse_by_step")
    return rows.select(*columns, "cpu_seconds").dropDuplicates(["fit_id"]).toPandas()


VIEWS = ("board_gaps", "board_progress", "board_spreads", "board_looks", "board_decided")


def views_of(store: Store, name: str) -> dict[str, pd.DataFrame]:
    """The rows of a board's views; `search_curves` apart, which is of logs."""
    store.install_views()
    return {view: store.spark.table(view).where(F.col("board") == name).toPandas() for view in VIEWS}
