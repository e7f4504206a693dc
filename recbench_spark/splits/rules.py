"""Open and label a log in tasks, without Spark.

A protocol reaches tasks as plain numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import tzinfo
from functools import partial
from math import inf

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import Dataset, Split
from recbench_spark.config.placeholders import log_end_micros
from recbench_spark.errors import ConfigError, DataError, FallbackToSpark, RecbenchError, nearest
from recbench_spark.schemas import INTERACTIONS
from recbench_spark.sources import columnar
from recbench_spark.sources.columnar import ColumnarLog
from recbench_spark.sources.conditions import count_selection, sum_selections
from recbench_spark.sources.events import EVENT, name_events
from recbench_spark.sources.log_checks import LogRules
from recbench_spark.sources.log_sources import open_raw_log
from recbench_spark.sources.log_survey import RowFacts
from recbench_spark.sources.opened_logs import OpenedLog, label_stretches, refuse_missing, report_conditions
from recbench_spark.splits import worlds
from recbench_spark.splits.events import SIGNAL, STRENGTH, EventRule
from recbench_spark.splits.labels import LATER, TRAIN, HeldOutIds, LabelMethod, SplitRule, label_rows
from recbench_spark.splits.pairs import PAIR_COLUMNS, DuplicateRule, find_doubled_pair
from recbench_spark.splits.windows import find_instants
from recbench_spark.storage import blocks
from recbench_spark.storage.dealt_rows import DealtRows, keep_columns
from recbench_spark.storage.scratch import keep_results

ROWS_PER_READER = 1 << 23
"""Most rows that a task reads and partitions: the work that is repeated if a task fails."""


def estimate_rows(dataset: Dataset) -> int:
    """Estimate how many rows tasks read from a log.

    The estimate is 0 if the reader will refuse the log.

    Raises:
        FallbackToSpark: only Spark reads the log.
    """
    if dataset.reader == "world":
        return dataset.world.interactions + dataset.world.open_loop
    try:
        return open_raw_log(dataset).n
    except FallbackToSpark:
        raise
    except RecbenchError:
        return 0


def open_plain_log(engine: blocks.Engine, dataset: Dataset, split: Split) -> OpenedLog | None:
    """Open a log with plain columns, without a pass.

    None: the log is another one. A value that needs a second look raises FallbackToSpark in a task.
    """
    files = columnar.open_columnar_log(dataset)
    if files is None or label_method(split) == "given":
        return None
    if split.temporal and "event_time" not in files.theirs:
        return None
    rows = open_log_rows(engine, files)
    if not files.conditions:
        return OpenedLog(rows, files.columns, files.n, files.whole)
    stored = replace(rows, read=partial(columnar.read_compared, files=files, readers=len(rows.pieces)))
    names = [*dict.fromkeys(condition.column for condition in files.conditions)]
    counted = sum_selections(stored.each(names, partial(count_selection, conditions=files.conditions)))
    if counted.bad:
        return None  # the other way says where
    report_conditions(files.conditions, counted)
    facts, rules = RowFacts(counted.rows, dropped=counted.dropped), LogRules(conditions=files.conditions)
    return OpenedLog(rows, files.columns, counted.rows, files.whole, facts=facts, rules=rules)


def open_world(engine: blocks.Engine, dataset: Dataset, scratch: str | None) -> OpenedLog:
    """Open a generated world, kept in scratch if possible.

    The world is generated once.

    Raises:
        ConfigError: a world has no such attribute. ProtocolError: its closed loop has no parts.
    """
    names = tuple(INTERACTIONS.names)
    if unknown := [name for name in dataset.attributes if name not in worlds.ATTRIBUTES]:
        hint = nearest(unknown[0], worlds.ATTRIBUTES)
        raise ConfigError(f"dataset.attributes: a world has no '{unknown[0]}'", hint)
    made = worlds.open_rows(engine, dataset.world)
    rows: blocks.Rows = made
    if scratch is not None:
        rows = keep_results(scratch, made.open(names, blocks.return_rows, names), engine)
    end = log_end_micros(dataset)
    later = 0 if end is None else sum(rows.each(["event_time"], partial(_count_later, end=end)))
    n = sum(rows.each(["rating"], blocks.count_table_rows)) - later
    facts = RowFacts(n, unparted=dataset.world.interactions)
    if later:
        rows = blocks.ChangedRows(rows, names, partial(_drop_later, end=end), names)
    return OpenedLog(rows, names, n, frozenset(), later, facts=facts)


def _count_later(tables: Iterable[pa.Table], end: int) -> int:
    return sum(pc.sum(pc.greater_equal(rows.column(0), end), min_count=0).as_py() for rows in tables)


def _drop_later(rows: pa.Table, end: int | None) -> pa.Table:
    return rows.filter(pc.less(rows.column("event_time"), end))


def open_log_rows(engine: blocks.Engine, files: ColumnarLog) -> blocks.PieceRows:
    """Return a log's rows; each task reads some row groups."""
    # Whole rounds over all cores: a task's memory does not depend on its rows, and each takes time to
    # start.
    cores = engine.cores
    readers = min(len(files.groups), cores * -(-files.n // (cores * ROWS_PER_READER)))
    read = partial(columnar.read_log, files=files, readers=readers)
    return blocks.PieceRows(engine, range(readers), read)


def find_cut(
    log: OpenedLog, split: Split, zone: tzinfo, events: EventRule | None = None, tasks: int = 1
) -> tuple[int, int, int] | None:
    """Find the instants of a cut in time, if any.

    Rows with a part decide nothing, and of events only targets do. Where rows are selected, tasks keep the
    times of those selected, which are read several times.
    """
    if label_method(split) != "instants":
        return None
    names = tuple(name for name in ("event_time", "part", EVENT) if name in log.columns)
    if log.rules.conditions or events or isinstance(log.rows, DealtRows):
        with keep_columns(log.rows, names, tasks) as kept:
            return _find_instants(kept, names, split, zone, events)
    return _find_instants(log.rows, names, split, zone, events)


def _find_instants(
    rows: blocks.Rows, names: tuple[str, ...], split: Split, zone: tzinfo, events: EventRule | None
) -> tuple[int, int, int]:
    every = rows
    if "part" in names:
        every = blocks.ChangedRows(rows, ("event_time", "part"), _drop_given, ("event_time",))
    if events is None:
        return find_instants(every, split, zone)
    select = partial(_select_targets, events=events)
    return find_instants(blocks.ChangedRows(rows, names, select, ("event_time",)), split, zone, every)


def _drop_given(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.is_null(rows.column("part")))


def _select_targets(rows: pa.Table, events: EventRule) -> pa.Table:
    rows = _drop_given(rows) if "part" in rows.column_names else rows
    return rows.filter(pa.array(events.mark_targets(rows)))


def make_event_rule(dataset: Dataset, split: Split) -> EventRule | None:
    """Return a log's events in the form which tasks need."""
    events, named = dataset.events, name_events(dataset)
    if events is None or named is None:
        return None
    return EventRule(
        named.names,
        tuple(events.weights[name] for name in named.names),
        tuple(named.names.index(name) for name in events.targets),
        events.repeats_of == "any",
        inf if events.cap is None else events.cap,
        events.grades,
        TRAIN if split.holdout == "consecutive" else LATER,
    )


def label_log(
    log: OpenedLog, dataset: Dataset, split: Split, engine: blocks.Engine, *, every_fold: bool = False
) -> blocks.TaskRows:
    """Label a log's rows.

    The only shuffle brings all rows of an owner together. Rows with a part keep it and do not count for
    others. Position p counts from the end of the user's order: the first `n_test` positions are test, the
    next `n_valid` are valid. In random order all rows of a pair share one position. Equal times are ordered
    by item id (for held-out items by user id): as numbers if all ids are whole numbers, else by UTF-8
    bytes, as ties in rankings are. So the split is a function of the data, and of two items at one instant
    the one that is last in tie order is tested.

    PySpark collects up to 10 blocks for each receiving task, or half of spark.python.worker.memory, before
    it passes them on.

    Args:
        log: the log.
        dataset: its settings: duplicates, the zone, whether the open loop is apart.
        split: the protocol.
        engine: the runner.
        every_fold: true if `part` is the number of the row's fold, as text: all folds in one pass.

    Raises:
        ProtocolError: a temporal split has no times, `given` has no parts, or training is empty.
        DataError: the log has duplicates, and they are an error.
        FallbackToSpark: in a task, when the result is computed (see `columnar`).
    """
    refuse_missing(log, split)
    if split.holdout == "consecutive":
        log = label_stretches(log, split, every_fold=every_fold)
    tasks, owner = engine.count_tasks(log.n), make_rule(split, None).owner
    dealt = log.rows.deal(log.columns, partial(columnar.deal_owners, owner=owner, tasks=tasks), tasks)
    duplicates: DuplicateRule | None = dataset.duplicates
    if dataset.duplicates == "error":
        duplicates = None
        # No pair in a generated world is in two rows of one loop.
        if dataset.reader != "world":
            # The open loop may be a log apart, which may show any pair.
            apart = split.open_loop == "all" or dataset.closed_loop == "split"
            _refuse_doubled(dealt, apart=apart)
    events = make_event_rule(dataset, split)
    rule = make_rule(split, duplicates, find_cut(log, split, dataset.zone, events, tasks))
    rule = replace(rule, numeric=rule.tie in log.numeric, every_fold=every_fold, events=events)
    rule = replace(rule, query=dataset.query or "")
    added = [SIGNAL] * bool(events) + [STRENGTH] * rule.pair_rule.in_time
    names = tuple(dict.fromkeys((*(name for name in log.columns if name != EVENT), "part", *added)))
    return blocks.mark_whole(dealt.then(partial(label_rows, rule=rule), names), owner)


def _refuse_doubled(dealt: blocks.TaskRows, *, apart: bool) -> None:
    """Raise DataError if a pair is in two rows.

    The message has one such pair.
    """
    doubled = dealt.then(partial(find_doubled_pair, apart=apart), PAIR_COLUMNS)
    pairs = [pair for task in doubled.each(pa.Table.to_pylist) for pair in task]
    if pairs:
        user, item, n = min(tuple(pair.values()) for pair in pairs)
        message = f"the log holds {n} rows of user {user}, item {item}"
        raise DataError(message, "set dataset.duplicates to keep_last or keep_first")


def make_rule(
    split: Split, duplicates: DuplicateRule | None, cut: tuple[int, int, int] | None = None
) -> SplitRule:
    """Return the protocol in the form which tasks need.

    Args:
        split: order, holdout, group and their amounts.
        duplicates: the row of a pair that stays in each part.
        cut: the starts of validation, test and the time after it, for cuts in time.
    """
    held_out, n = split.held_out, None  # for shares
    if split.holdout == "leave_one_out":
        n = (1, int(split.valid))
    elif split.n is not None and split.holdout != "ratio":
        n = (split.n, split.n if split.valid else 0)
    return SplitRule(
        by=label_method(split),
        temporal=split.temporal,
        ratio=split.ratio,
        n=n,
        folds=(split.folds, split.fold, split.valid),
        instants=cut or (0, 0, 0),
        parts=split.parts,
        held_out=HeldOutIds(held_out.of, held_out.test, held_out.valid) if held_out else None,
        duplicates=duplicates,
        repeats=split.repeats,
        keeps_known=split.open_loop == "all",
        targets=split.targets,
        validation=split.validation,
        valid_users=split.valid_users,
        seed=split.seed,
    )


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
