"""Pack submitted results into bundles, and score them without training.

A bundle has predictions or rankings from a run, with their provenance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recbench_spark import __version__
from recbench_spark.boards.entries import Entry, canonical_method, spread_columns
from recbench_spark.boards.fold_statistics import summarise_folds
from recbench_spark.config import Benchmark, ListsModel, digest, parse
from recbench_spark.config.bundle import Bundle
from recbench_spark.core.hashed_ids import hash_rows
from recbench_spark.core.sums import Sums
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.metrics.kernels.about import ABOUT
from recbench_spark.models.fits.table import find_place
from recbench_spark.models.fits.tasks import PREDICTIONS, Row, name_errors
from recbench_spark.schemas import METRICS, SUBMISSIONS
from recbench_spark.sources import arrow_files
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.objects import holds_files
from recbench_spark.storage.packed_blocks import (
    decode_dictionaries,
    read_files,
)
from recbench_spark.storage.publish import private_path, rename_folder
from recbench_spark.storage.scratch import keep_results
from recbench_spark.tuning.board_update import RMSE, append_entries, board_name, read_entries, read_own_fits
from recbench_spark.tuning.decisions import (
    ACCEPTED,
    HELD,
    RETRACTED,
    hold_back,
    keep_headline,
    read_latest_decisions,
    record_decision,
)
from recbench_spark.tuning.fold_fits import select_complete_seeds
from recbench_spark.tuning.folds import FoldedLog
from recbench_spark.tuning.plausibility_checks import (
    PAIR_COLUMNS,
    clip_to_scale,
    find_ranking_doubts,
    find_rating_doubts,
    note_training_items,
    read_training_stats,
)
from recbench_spark.tuning.scored_predictions import count_pairs, join_truth, refuse_rows, sum_parts

FACTS_FILE = "bundle.json"
ROW_FILES = {"predictions": "predictions.parquet", "rankings": "lists.parquet"}
CONTENT_SEED = 0
MAX_SUITE_PREFIX = 56
"""Longest prefix of a benchmark's name in its bundles' suite.

A name has at most 64 letters.
"""

COLUMNS = {"predictions": ["user_id", "item_id", "prediction"], "rankings": ["user_id", "item_id", "rank"]}


def read_predictions(
    store: FileTables, benchmark: Benchmark, log: FoldedLog, model: str
) -> tuple[pa.Table, Row]:
    """Read a model's predictions for every fold.

    The predictions are from the lowest seed; one of its rows in `fits` comes along. The model was fitted by
    `recbench benchmark`.

    Raises:
        ConfigError: no seed has fits for all folds.
    """
    fits = read_own_fits(store.rows, benchmark, log)
    rows = [row for row in fits if row["model"] == model and row["files"] is not None]
    last = max(((row["finished_at"], row["settings_json"]) for row in rows), default=(None, None))[1]
    complete = select_complete_seeds([row for row in rows if row["settings_json"] == last], log.folds)
    if not complete:
        raise ConfigError(
            f"no seed of model {model} has stored fits of all folds", "run recbench benchmark first"
        )
    seed = min(row["seed"] for row in complete)
    first = {row["fold"]: row for row in rows if (row["settings_json"], row["seed"]) == (last, seed)}
    places = {fold: find_place(store, row["files"]) for fold, row in first.items()}
    _require_files(store, model, list(places.values()))
    parts = [
        part.append_column("fold", pa.repeat(pa.scalar(fold, pa.int32()), len(part)))
        for fold, place in places.items()
        for part in read_files([f"{place}/{PREDICTIONS}"], COLUMNS["predictions"])
    ]
    columns = [*COLUMNS["predictions"], *(["fold"] if log.folds else [])]
    texts = map(decode_dictionaries, parts)
    return pa.concat_tables(texts).select(columns), next(iter(first.values()))


def _require_files(store: FileTables, model: str, folders: Sequence[str]) -> None:
    """Refuse fits whose predictions were removed by retention.

    The rows of such fits in `fits` still exist.
    """
    missing = [place for place in folders if store.file_place() and not holds_files(place)]
    if missing:
        raise DataError(
            f"model {model}: files of {len(missing)} fits were removed, for example {missing[0]}",
            "recbench maintain --keep-days removes them with age; fit again from another seed: --seeds",
        )


def pack_bundle(rows: pa.Table, folder: Path, facts: Mapping[str, Any]) -> Bundle:
    """Write rows and facts into a folder; return the bundle's facts.

    The rows go into one file, in the order of users and items, since a submission is read on one machine,
    and this process holds them. Both files are made in a private folder beside it, so a pack that ends
    early leaves no half bundle. A folder with the same bundle stays as it is.

    Raises:
        ConfigError: the folder holds another bundle.
    """
    with private_path(folder.absolute()) as private:
        private.mkdir()
        place = private / ROW_FILES[str(facts["task"])]
        order = dict.fromkeys(("user_id", "item_id", *rows.column_names))
        rows = rows.sort_by([(name, "ascending") for name in order])
        pq.write_table(rows.replace_schema_metadata(None), place)
        content, n = hash_content(place)
        full_facts = {**facts, "rows": n, "content": content, "code_version": __version__, "digest": ""}
        document = parse(Bundle, full_facts, str(folder)).model_dump(mode="json")
        document["digest"] = digest_document(document)
        (private / FACTS_FILE).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        _publish_bundle(private, folder, str(document["digest"]))
    return parse(Bundle, document, str(folder))


def _publish_bundle(private: Path, folder: Path, packed: str) -> None:
    """Give a packed bundle its name.

    A folder without a bundle gets the files, the facts last.

    Raises:
        ConfigError: the folder holds another bundle.
    """
    if rename_folder(private, folder):
        return
    if (folder / FACTS_FILE).exists():
        if read_digest(folder) != packed:
            raise ConfigError(f"{folder} holds another bundle", "give another --output")
        return
    for file in sorted(private.iterdir(), key=lambda path: path.name == FACTS_FILE):
        file.replace(folder / file.name)


def read_digest(folder: Path) -> str | None:
    """Return the digest in a bundle's facts, or None.

    The facts may have none, or be unreadable.
    """
    try:
        return str(json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def digest_document(document: Mapping[str, Any]) -> str:
    """Compute the digest of `bundle.json` without `digest` itself.

    `content` stands for the rows.
    """
    return digest("bundle", {key: value for key, value in document.items() if key != "digest"}, length=32)


def hash_content(path: Path) -> tuple[str, int]:
    """Hash a file's rows in any order, and count them.

    The hash is the sum of the rows' hashes.
    """
    total, n = 0, 0
    with pq.ParquetFile(path) as file:
        names = sorted(file.schema_arrow.names)
        for batch in file.iter_batches(columns=names):
            hashes_r = hash_rows(pa.table(batch).select(names), CONTENT_SEED).view(np.int64)
            total += sum(hashes_r.tolist())
            n += len(hashes_r)
    return digest(str(total), n, names), n


def open_bundle(folder: Path) -> tuple[Bundle, Path]:
    """Open a bundle: its facts, and its row file.

    Raises:
        ConfigError: the folder holds no bundle.
        DataError: the bundle was changed.
    """
    try:
        document = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder} holds no {FACTS_FILE}: {error}", "recbench bundle pack makes one"
        ) from None
    bundle = parse(Bundle, document, str(folder / FACTS_FILE))
    if bundle.digest is not None and bundle.digest != digest_document(document):
        raise DataError(
            f"{folder / FACTS_FILE} was changed after it was packed: its digest does not match",
            "pack the run again with the right facts: --who names the person, --method the method",
        )
    path = folder / ROW_FILES[bundle.task]
    arrow_files.read_table(str(path), COLUMNS[bundle.task], f"bundle {bundle.name}")  # it checks values
    content, n = hash_content(path)
    if (content, n) != (bundle.content, bundle.rows):
        raise DataError(
            f"{path} is not what {FACTS_FILE} says: {n:,} rows for {bundle.rows:,}, or other values",
            "pack it again: the scored rows must be the submitted rows",
        )
    return bundle, path


def score_bundle(
    store: FileTables,
    benchmark: Benchmark,
    log: FoldedLog,
    folder: Path,
    rank: Callable[[Benchmark], str],
    *,
    accepted: tuple[str, str] | None = None,
    report: Callable[[str], None] = print,
) -> Entry:
    """Score a bundle, and append it to the board.

    The look at held-out rows is counted. A result better than the noise allows (`boards.plausibility`) is
    held back unless it is accepted: it neither leads nor is compared with others.

    Args:
        store: the warehouse.
        benchmark: the benchmark to score it on.
        log: the benchmark's log.
        folder: folder of the bundle.
        rank: runs a night with one model that must succeed, and returns its run id; for rankings.
        accepted: name and reason of a person who accepts a result better than the noise allows.
        report: takes each sentence the submitter should read.

    Raises:
        DataError: pairs are missing, twice, or from another fold; another split than the benchmark's;
            predictions on another scale; rows are on the board under other facts, or were retracted.
    """
    bundle, path = open_bundle(folder)
    _require_same_log(bundle, log)
    earlier = find_earlier_entry(store, board_name(benchmark), bundle)
    notes = [OLD_FORMAT] if bundle.format == 1 else []
    if bundle.task == "rankings":
        scored = _score_rankings(store, benchmark, bundle, folder, rank)
    else:
        scored = _score_predictions(store, benchmark, log, bundle, path)
    # In format 1 the year is the first scoring's, so the bundle keeps its row in later years.
    entry = scored.entry if earlier is None else replace(scored.entry, year=earlier.year)
    for note in (notes := [*notes, *scored.notes]):
        report(note)
    _record_decision(store, entry, scored.doubts, accepted, report)
    append_entries(store, [entry])
    _count_look(store, entry, bundle, scored.by_part, notes)
    return entry


def _require_same_log(bundle: Bundle, log: FoldedLog) -> None:
    if bundle.log_id != log.log_id and bundle.split == log.split:
        raise DataError(
            f"bundle {bundle.name} was made from a log with other rows or other reader settings "
            f"(log {bundle.log_id}, this one is {log.log_id})",
            "score it beside the log that it was packed from, with the same section dataset",
        )
    if bundle.log_id != log.log_id:
        raise DataError(
            f"bundle {bundle.name} was made on another split ({bundle.split}, log {bundle.log_id})",
            f"this benchmark's is {log.split}, log {log.log_id}",
        )


OLD_FORMAT = (
    "note: this bundle is of format 1, whose hash covers its rows only: name, who, method and search may"
    " have been changed after packing"
)


@dataclass(frozen=True)
class ScoredSubmission:
    """A bundle with its scores.

    Attributes:
        entry: its row on the board.
        by_part: the metric on each part or fold.
        notes: sentences on changes made by scoring.
        doubts: sentences on why it is implausible; empty if it is plausible.
    """

    entry: Entry
    by_part: Mapping[str, float]
    notes: Sequence[str]
    doubts: Sequence[str]


def find_earlier_entry(store: FileTables, board: str, bundle: Bundle) -> Entry | None:
    """Find the board row of this bundle's earlier scoring, or None.

    Raises:
        DataError: this row was retracted, or the board has the same predictions under other facts.
    """
    decisions = read_latest_decisions(store.rows, board)
    looks = store.rows(SUBMISSIONS, [("board", "=", board), ("content", "=", bundle.content)], ["entry_id"])
    same_rows = {row["entry_id"] for row in looks}
    earlier = None
    for entry in read_entries(store, board):
        decision = decisions.get(entry.entry_id, {})
        retracted = decision.get("decision") == RETRACTED
        if entry.evidence == bundle.evidence and entry.origin == "bundle":
            if retracted:
                raise DataError(
                    f"bundle {bundle.name} was retracted by {decision['who']}: {decision['reason']}",
                    f"recbench bundle accept --entry {entry.entry_id} brings it back",
                )
            earlier = entry
        elif not retracted and (
            entry.entry_id in same_rows or entry.evidence == f"bundle {bundle.content}"
        ):
            raise DataError(
                f"the board has the rows of bundle {bundle.name} already, as {entry.name} by {entry.who}",
                f"where its facts were wrong: recbench bundle retract --entry {entry.entry_id} first",
            )
    return earlier


def _record_decision(
    store: FileTables,
    entry: Entry,
    doubts: Sequence[str],
    accepted: tuple[str, str] | None,
    report: Callable[[str], None],
) -> None:
    """Hold an implausible result back, or accept it.

    The decision is written before the entry.
    """
    if not doubts:
        return
    decision = read_latest_decisions(store.rows, entry.board).get(entry.entry_id)
    if accepted is not None:
        who, why = accepted
        reason = f"{why} (doubted: {'; '.join(doubts)})"
        record_decision(store, entry.entry_id, entry.board, ACCEPTED, reason, who=who)
        report(f"accepted by {who}, though implausible: {'; '.join(doubts)}")
    elif decision is None:
        hold_back(store, entry.entry_id, entry.board, "; ".join(doubts))
    if accepted is None and (decision is None or decision["decision"] == HELD):
        report(
            f"held back as implausible: {'; '.join(doubts)}. It neither leads nor counts against others;"
            f" recbench bundle accept --entry {entry.entry_id} --why REASON lets it count"
        )


def _score_predictions(
    store: FileTables, benchmark: Benchmark, log: FoldedLog, bundle: Bundle, path: Path
) -> ScoredSubmission:
    """Compute RMSE by fold or part, with a night's sums."""
    joined = keep_results(store.scratch, join_truth(store, log, bundle, path), store.engine)
    held_out, pairs, matched = map(int, np.sum(joined.each(("prediction", "place"), count_pairs), axis=0))
    refuse_rows(bundle, bundle.rows, held_out, pairs, matched)
    rows, notes = clip_to_scale(joined, log, read_training_stats(store, log), bundle.name)
    parts = [str(fold) for fold in log.folds] or list(log.divide_parts(None)[1])
    totals: dict[str, Sums] = {}
    for sums in rows.each(PAIR_COLUMNS, sum_parts):
        for name, one in sums.items():
            totals[name] = totals[name] + one if name in totals else one
    by_part = {name: name_errors(totals[name])[RMSE] if name in totals else math.nan for name in parts}
    part = None if log.folds else ("test" if "test" in by_part else parts[-1])
    folds: dict[tuple[int | None, int], float] = {
        (int(fold), 0): by_part[fold] for fold in map(str, log.folds)
    }
    if part is not None:
        folds = {(None, 0): by_part[part]}
    doubts = find_rating_doubts(store, benchmark, log, rows, part)
    entry = _entry_fields(benchmark, bundle, log.dataset, log.split, RMSE, lower=True)
    scored_entry = Entry(**{**entry, **spread_columns(summarise_folds(folds)), "part": part})
    return ScoredSubmission(scored_entry, by_part, notes, doubts)


def _score_rankings(
    store: FileTables, benchmark: Benchmark, bundle: Bundle, folder: Path, rank: Callable[[Benchmark], str]
) -> ScoredSubmission:
    """Score the headline in a night with only these lists.

    The night has a suite of its own: in the benchmark's suite, submitted lists would count as a model of
    the file, or replace one with the same name.
    """
    lists = ListsModel(
        name=bundle.name, kind="lists", path=str((folder / ROW_FILES[bundle.task]).resolve()),
        provenance=bundle.provenance,
    )  # fmt: skip
    suite = f"{benchmark.name[:MAX_SUITE_PREFIX]}.bundles"
    update = {"name": suite, "board": board_name(benchmark), "models": (lists,)}
    night = benchmark.model_copy(update={**update, "comparisons": None, "regressions": ()})
    run_id = rank(night)
    rows = keep_headline(benchmark, store.rows(METRICS, [("run_id", "=", run_id)]))
    by_part = {row["part"]: float(row["value"]) for row in rows}
    part = "test" if "test" in by_part else next(iter(by_part))
    lower = ABOUT[benchmark.headline.partition("@")[0]].best == "small"
    entry = _entry_fields(
        benchmark,
        bundle,
        benchmark.dataset.name,
        benchmark.split.describe(),
        benchmark.headline,
        lower=lower,
    )
    scored_entry = Entry(**{**entry, "value": by_part[part], "part": part})
    error = next((row["stderr"] for row in rows if row["part"] == part), None) or 0.0
    doubts = find_ranking_doubts(store, benchmark, scored_entry, error)
    return ScoredSubmission(scored_entry, by_part, note_training_items(store.rows, run_id), doubts)


def _entry_fields(
    benchmark: Benchmark, bundle: Bundle, data: str, protocol: str, metric: str, *, lower: bool
) -> dict[str, Any]:
    provenance = bundle.provenance
    return {
        "board": board_name(benchmark), "origin": "bundle", "data": data, "protocol": protocol,
        "metric": metric, "lower_is_better": lower, "method": bundle.method, "name": bundle.name,
        "ran_by": bundle.ran_by, "who": bundle.who, "dims": bundle.dims,
        "year": provenance.year or datetime.now(UTC).year, "at_edge": provenance.at_edge,
        "search_space": json.dumps(provenance.search_space) if provenance.search_space else None,
        "evidence": bundle.evidence,
    }  # fmt: skip


def _count_look(
    store: FileTables, entry: Entry, bundle: Bundle, by_part: Mapping[str, float], notes: Sequence[str]
) -> None:
    now = datetime.now(UTC)
    row = (
        digest(bundle.content, now), entry.board, bundle.name, bundle.who, bundle.log_id, bundle.content,
        by_part.get("quiz"), by_part.get("test", entry.value), now, entry.entry_id,
        "; ".join(notes) or None,
    )  # fmt: skip
    store.append([dict(zip(SUBMISSIONS.names, row, strict=True))], SUBMISSIONS)


def make_facts(benchmark: Benchmark, log: FoldedLog, row: Row, who: str) -> dict[str, Any]:
    """Make a bundle's facts from the benchmark's own fits."""
    settings = json.loads(row["settings_json"])
    model = next(model for model in benchmark.models if model.name == row["model"])
    return {
        "name": row["model"], "task": "predictions", "who": who, "ran_by": "ours", "kind": row["kind"],
        "method": canonical_method(row["kind"], settings), "settings": settings, "dims": row["dims"],
        "benchmark": benchmark.name, "log_id": log.log_id, "split": log.split,
        "provenance": model.provenance.model_dump(),
    }  # fmt: skip
