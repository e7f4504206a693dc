"""Label a log that tasks read by themselves, and name a protocol in plain numbers. Without Spark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import Dataset, Split, WorldSettings
from recbench_spark.data import columnar, worlds
from recbench_spark.data.columnar import COLUMNAR_READERS, COLUMNS, ColumnarLog
from recbench_spark.errors import FallbackToSpark
from recbench_spark.protocol.labels import HeldOutIds, LabelMethod, SplitRule, label_rows
from recbench_spark.protocol.pairs import DuplicateRule
from recbench_spark.protocol.windows import find_instants
from recbench_spark.schemas import INTERACTIONS
from recbench_spark.storage.blocks import Blocks, Engine, PieceRows, Rows, count_table_rows, return_rows
from recbench_spark.storage.scratch import keep_results
from recbench_spark.storage.sides import ChangedRows

ROWS_PER_READER = 1 << 23
"""Rows that a task reads and partitions at most: the work that is repeated where a task fails."""


@dataclass(frozen=True)
class TaskLog:
    """A log that tasks read by themselves.

    Attributes:
        n: its rows; of a generated world about as many.
        columns: its columns.
        whole: the names of id columns that are whole numbers.
        files: the log in files; None: the generated world.
        world: settings of the world.
    """

    n: int
    columns: tuple[str, ...]
    whole: frozenset[str]
    files: ColumnarLog | None
    world: WorldSettings

    def open(self, engine: Engine, scratch: str) -> tuple[PieceRows, int]:
        """Return the rows, and their number. A world is generated once, and kept in scratch."""
        if self.files is not None:
            return open_log_rows(engine, self.files), self.n
        made = worlds.open_rows(engine, self.world).open(self.columns, return_rows, self.columns)
        rows = keep_results(scratch, made, engine)
        return rows, sum(rows.each(["rating"], count_table_rows))


def open_log_rows(engine: Engine, files: ColumnarLog) -> PieceRows:
    """Return the rows of a log that tasks read, some row groups each."""
    # Whole rounds of all cores: a task's memory does not depend on its rows, and each takes time to start.
    cores = engine.cores
    readers = min(len(files.groups), cores * -(-files.n // (cores * ROWS_PER_READER)))
    return PieceRows(engine, range(readers), partial(columnar.read_log, files=files, readers=readers))


def find_cut(rows: Rows, log: TaskLog, split: Split, zone: tzinfo) -> tuple[int, int, int] | None:
    """Find the instants of a cut in time; None for other protocols. Rows with a part decide nothing."""
    if label_method(split) != "instants":
        return None
    if "part" in log.columns:
        rows = ChangedRows(rows, ("event_time", "part"), _drop_given, ("event_time",))
    return find_instants(rows, split, zone)


def _drop_given(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.is_null(rows.column("part")))


def label_log(rows: PieceRows, rule: SplitRule, n: int, columns: tuple[str, ...] = COLUMNS) -> Blocks:
    """Label the n rows of a log that tasks read: the only shuffle brings all rows of an owner together.

    PySpark collects up to 10 blocks for each receiving task, or half of spark.python.worker.memory, before
    it passes them on.

    Raises:
        FallbackToSpark: in a task, when the result is computed (see `columnar`).
    """
    tasks = rows.engine.count_tasks(n)
    dealt = rows.deal(columns, partial(columnar.deal_owners, owner=rule.owner, tasks=tasks), tasks)
    names = tuple(dict.fromkeys((*columns, "part")))
    return replace(dealt, change=partial(label_rows, rule=rule), names=names, whole=rule.owner)


def make_rule(
    split: Split,
    duplicates: DuplicateRule | None,
    cut: tuple[int, int, int] | None = None,
    numeric: bool = False,
) -> SplitRule:
    """Return the protocol in the form that tasks need.

    Args:
        split: order, holdout, group and their amounts.
        duplicates: the row of a pair that stays in each part.
        cut: the starts of validation, of test and of the time after it, for cuts in time.
        numeric: true if ids that decide between equal times are ordered as numbers.
    """
    held_out = split.held_out
    return SplitRule(
        by=label_method(split),
        temporal=split.temporal,
        ratio=split.ratio,
        n=_holdout_rows(split),
        folds=(split.folds, split.fold, split.valid),
        instants=cut or (0, 0, 0),
        parts=split.parts,
        held_out=HeldOutIds(held_out.of, held_out.test, held_out.valid) if held_out else None,
        duplicates=duplicates,
        repeats=split.repeats,
        seed=split.seed,
        numeric=numeric,
    )


def open_task_log(dataset: Dataset, split: Split) -> TaskLog:
    """Open a log that tasks read and label by themselves, without parts of its own.

    Raises:
        FallbackToSpark: the log or the split needs Spark's readers.
    """
    if dataset.reader == "world":
        return _open_world(dataset, split)
    if dataset.reader not in COLUMNAR_READERS:
        raise FallbackToSpark(f"reader {dataset.reader} is Spark's; {', '.join(COLUMNAR_READERS)} are not")
    if label_method(split) == "given":
        raise FallbackToSpark(f"the split takes its parts from the log ({split.describe()})")
    files = columnar.open_columnar_log(dataset)
    if files is None:
        raise FallbackToSpark("columns, options or bad rows of the log need Spark's reader")
    if split.temporal and "event_time" not in files.theirs:
        raise FallbackToSpark("the log has no event_time, and Spark's reader says what that means")
    return TaskLog(files.n, COLUMNS, files.whole, files, dataset.world)


def _open_world(dataset: Dataset, split: Split) -> TaskLog:
    if (
        dataset.until
        or label_method(split) == "given"
        or not set(dataset.attributes) <= set(worlds.ATTRIBUTES)
    ):
        raise FallbackToSpark("dataset.until, given parts and unknown attributes of a world are Spark's")
    n = dataset.world.interactions + dataset.world.open_loop
    return TaskLog(n, tuple(INTERACTIONS.names), frozenset(), None, dataset.world)


def label_method(split: Split) -> LabelMethod:
    """Return the way in which rows get their labels."""
    per_user: dict[str, LabelMethod] = {"folds": "user_folds", "n_given": "n_given"}
    if split.holdout in ("given", "consecutive"):
        return "given"
    if split.group == "user":
        return per_user.get(split.holdout, "position")
    if split.temporal:
        return "instants"
    return "folds" if split.holdout == "folds" else "share"


def _holdout_rows(split: Split) -> tuple[int, int] | None:
    """Return test and validation rows of a user; None where they are shares."""
    if split.holdout == "leave_one_out":
        return 1, int(split.valid)
    if split.n is None or split.holdout == "ratio":
        return None
    return split.n, split.n if split.valid else 0
