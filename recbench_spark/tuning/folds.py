"""Store a benchmark's log with labels for all its folds.

It is written in one pass, under its hash.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from recbench_spark.config import FOLD_HOLDOUTS, Benchmark, digest
from recbench_spark.core.inputs import pin_inputs, require_unchanged
from recbench_spark.errors import ProtocolError, StoreError
from recbench_spark.models.fits.logs import COLUMNS, SharedRatingLog, collect_facts, find_scale
from recbench_spark.night.split import identify_split, write_labelled
from recbench_spark.runtime.journal import Journal
from recbench_spark.splits.labels import sum_dropped
from recbench_spark.splits.manifests import describe_rows, list_log_facts
from recbench_spark.splits.pairs import read_fold_part
from recbench_spark.storage.blocks import PieceRows, TaskRows
from recbench_spark.storage.delta_files import File, write_files
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.made_folders import write_once
from recbench_spark.storage.objects import read_bytes, write_bytes
from recbench_spark.storage.packed_blocks import read_partition_files, select_columns
from recbench_spark.storage.shared_arrays import SharedRows

FACTS_FILE = "facts.json"
"""File beside the rows with the facts the driver needs."""


@dataclass(frozen=True)
class FoldedLog:
    """A benchmark's log and its parts.

    Attributes:
        log_id: hash of log and protocol.
        files: files of the log.
        folds: fold numbers; empty where the log or the protocol names the parts.
        dataset: the dataset's name.
        split: the protocol in words; with folds, without the held-out one's number.
    """

    log_id: str
    files: SharedRatingLog
    folds: tuple[int, ...]
    dataset: str
    split: str

    def divide_parts(self, fold: int | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the training parts and the held-out parts.

        For a fold they are all others, and itself.
        """
        if fold is None:
            not_predicted = ("train", "given", "later", "open_loop", "valid")
            return ("train",), tuple(part for part in self.files.parts if part not in not_predicted)
        whole = [str(number) for number in self.folds if str(number) in self.files.parts]
        parts = [*whole, *(part for part in self.files.parts if ":" in part)]
        roles = {part: read_fold_part(part, fold) for part in parts}
        train, test = (tuple(part for part in parts if roles[part][place]) for place in (0, 1))
        return train, test


@pin_inputs()
def open_folded_log(store: FileTables, benchmark: Benchmark, journal: Journal) -> FoldedLog:
    """Return a benchmark's labelled log.

    The log is written once under the hash of all its inputs.

    Raises:
        ProtocolError: a fold without rows, or parts without rows.
        DataError: a rating outside `dataset.scale`.
    """
    split = benchmark.split
    folded = split.holdout in FOLD_HOLDOUTS
    first = split.model_copy(update={"fold": 0, "valid": False}) if folded else split
    whole = benchmark.model_copy(update={"split": first})
    identity = identify_split(store, whole)[0].partition(".")[0]
    log_id = digest("fits", identity)

    def write(folder: str) -> None:
        with journal.stage(
            "log", f"log {log_id}: {_describe_protocol(benchmark)}", log_id=log_id
        ) as counts:
            counts["rows"] = _write_log(store, whole, folder, folded, journal)

    folder_path = write_once(f"{store.files_root}/fit_files/logs/{log_id}", write, FACTS_FILE)
    files = _make_log_files(benchmark, log_id, folder_path, _read_facts(folder_path))
    folds = tuple(range(split.folds)) if folded else ()
    log = FoldedLog(log_id, files, folds, benchmark.dataset.name, _describe_protocol(benchmark))
    _refuse_empty(log)
    return log


def open_rows(store: FileTables, log: FoldedLog) -> PieceRows:
    """Open a log's labelled rows, which tasks read by themselves."""
    return _open_files(store, log.files.shared.files)


def _open_files(store: FileTables, files: Iterable[str]) -> PieceRows:
    return PieceRows(store.engine, [(file, {}) for file in files], read_partition_files)


def _describe_protocol(benchmark: Benchmark) -> str:
    split = benchmark.split
    if split.holdout not in FOLD_HOLDOUTS:
        return split.describe()
    if split.holdout == "consecutive":
        return f"{split.folds} folds of consecutive rows"
    row_group = "all rows" if split.group == "global" else "each user"
    return f"{split.folds} random folds of {row_group} seed {split.seed}"


def _write_log(
    store: FileTables, benchmark: Benchmark, folder: str, every_fold: bool, journal: Journal
) -> int:
    """Write the labelled rows, then their facts.

    The facts have the files' names. Returns the number of rows.
    """
    files: list[File] = []

    def write(blocks: TaskRows, _n: int) -> Counter[tuple[str, str]]:
        chosen = blocks.then(partial(select_columns, change=blocks.change, names=COLUMNS), COLUMNS)
        files[:] = write_files(chosen, folder, {})
        return sum_dropped(file.notes for file in files)

    written = write_labelled(store, benchmark.dataset, benchmark.split, write, every_fold=every_fold)
    for line in describe_rows([fact._asdict() for fact in list_log_facts(written.rows)]):
        journal.say(f"log of {benchmark.dataset.name}: {line}")
    require_unchanged()
    names = sorted(file.path for file in files)
    rows = _open_files(store, [f"{folder}/{name}" for name in names])
    facts = {**collect_facts(rows), "files": names}
    write_bytes(f"{folder}/{FACTS_FILE}", json.dumps(facts).encode())
    return int(facts["rows"])


def _read_facts(folder_path: str) -> dict[str, Any]:
    """Read a log's facts.

    Raises:
        StoreError: they are missing or damaged.
    """
    try:
        return dict(json.loads(read_bytes(f"{folder_path}/{FACTS_FILE}") or b""))
    except ValueError:
        raise StoreError(
            f"{folder_path}/{FACTS_FILE} is missing or damaged",
            f"remove {folder_path}: the next run makes it again",
        ) from None


def _make_log_files(
    benchmark: Benchmark, log_id: str, folder_path: str, facts: dict[str, Any]
) -> SharedRatingLog:
    scale = find_scale(facts, benchmark.dataset.scale)
    listed, parts = facts["files"], facts["parts"]
    assert isinstance(listed, list) and isinstance(parts, list)
    # Use the names alone: older versions stored full paths, and the warehouse may have been moved since.
    names = (file.rsplit("/", 1)[-1] for file in listed)
    shared = SharedRows(f"log-{log_id}", tuple(f"{folder_path}/{name}" for name in names))
    return SharedRatingLog(
        shared, tuple(parts), scale, facts["timed"] == facts["rows"], int(str(facts["rows"]))
    )


def _refuse_empty(log: FoldedLog) -> None:
    missing = [fold for fold in log.folds if not log.divide_parts(fold)[1]]
    if missing:
        raise ProtocolError(
            f"fold {missing[0]} of {len(log.folds)} has no rows to predict: the log has {log.files.rows}",
            "use fewer folds (split.folds), or more rows",
        )
    if not log.folds and ("train" not in log.files.parts or not log.divide_parts(None)[1]):
        raise ProtocolError(
            f"the split holds nothing to {'predict' if 'train' in log.files.parts else 'learn from'};"
            f" its parts: {', '.join(log.files.parts)}",
            "see split, and dataset.columns.part where the log names the parts",
        )
