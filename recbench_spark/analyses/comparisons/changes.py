"""Reasons why a model's mean changes between two nights.

Either its users changed, or their results. The difference between two published means is split, without
remainder, over user groups into changed shares and changed means
(`analyses.comparisons.kernels.decomposition`). Groups are: users who stayed, left or joined; users with 1,
2-3, 4-7 ... relevant items; the labels in user slices. Sums are whole numbers, so the partitioning does not
change a bit. Axes: u users, r rows of `user_metrics`, c cut-offs, s slices; nights are 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.comparisons.comparisons import select_holdout
from recbench_spark.analyses.comparisons.counted import CountedNumber, gather_rows, name_owners
from recbench_spark.analyses.comparisons.differences import ComparedRun
from recbench_spark.analyses.comparisons.kernels import decomposition as kernel
from recbench_spark.analyses.comparisons.kernels.decomposition import Change, Group
from recbench_spark.analyses.comparisons.paired_values import (
    KEY,
    equal_key_ranges,
    select_runs,
    sort_by_user,
    spread_values,
)
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.resampling import exact_sums
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.schemas import QUERY_ID
from recbench_spark.storage.blocks import (
    ChangedRows,
    Engine,
    Rows,
    Side,
    Sides,
    TaskRows,
    deal_sides,
    reduce_tasks,
)
from recbench_spark.storage.packed_blocks import unpack_blocks

USERS, ACTIVITY = "users", "n_relevant"
"""Groups in every plan, beside its user slices."""

UNLABELLED = "unknown"
"""The group of users with a NULL label in a slice."""


@dataclass(frozen=True)
class ChangePlan:
    """Changes to explain: run pairs, metrics, cut-offs, user slices.

    Attributes:
        pairs: (before, after), two runs of one model each.
        metrics: metric names.
        ks: cut-offs; None: the whole ranking.
        slices: keys of user slices.
        numbers: for models and nights with several runs, the numbers that count. `pairs` has one of these
            runs.
    """

    pairs: tuple[tuple[ComparedRun, ComparedRun], ...]
    metrics: tuple[str, ...]
    ks: tuple[int | None, ...]
    slices: tuple[str, ...] = ()
    numbers: tuple[CountedNumber, ...] = ()

    @property
    def run_ids(self) -> list[str]:
        """All runs of the pairs, each once."""
        return list(dict.fromkeys(run.run_id for pair in self.pairs for run in pair))

    @property
    def places(self) -> list[list[int]]:
        """Each pair's places in `run_ids`."""
        return [[self.run_ids.index(run.run_id) for run in pair] for pair in self.pairs]


@dataclass(frozen=True)
class ChangeRows:
    """Rows of `user_metrics`, and of `rankings` with slice labels.

    These rows may come from any runs.
    """

    user_metrics: Rows
    rankings: Rows


def compute_changes(engine: Engine, rows: ChangeRows, plan: ChangePlan, tasks: int) -> pa.Table:
    """Explain changes by user group: rows of the table `changes`.

    There is one row per run pair, part, metric, cut-off and group. Shuffles both nights' rows once by user
    (and, for slices, a label per user and run), then one row per task and group. A pair has no rows where
    one night has no users, for instance because retention removed them.

    Args:
        engine: the runner.
        rows: user values, and labels.
        plan: runs, metrics, cut-offs, slices.
        tasks: number of shuffle tasks.
    """
    users = deal_labelled(engine, rows, plan, tasks)
    changes = reduce_tasks({"changes": change_measure(plan)}, users, tasks)
    return name_owners(changes.get("changes", _SCHEMA.empty_table()), plan.numbers)


def deal_labelled(engine: Engine, rows: ChangeRows, plan: ChangePlan, tasks: int) -> TaskRows:
    """Deal values and labels by user in one shuffle, for `read_cells`."""
    columns = (*KEY, "estimator", "run_id", "user_id", "ks", "values", "n_relevant")
    values = ChangedRows(rows.user_metrics, columns, partial(_choose_values, plan=plan), _VALUES)
    sides = [Side(0, values, _VALUES)]
    if plan.slices:
        names = (*_USER, *_name_labels(plan))
        needed = ("run_id", "part", "user_id", "slices", QUERY_ID)
        labels = ChangedRows(rows.rankings, needed, partial(_choose_labels, plan=plan), names)
        sides.append(Side(1, labels, names))
    return deal_sides(engine, sides, tasks).then(partial(_add_labels, plan=plan), ())


def change_measure(plan: ChangePlan) -> Measure:
    """Return the measure for changes by user group.

    The measure needs all rows of a user at once.
    """
    return Measure(partial(_task_sums, plan), _CELL, partial(_finish, plan), ())


_USER = ("run", "part", "user_id")
_VALUES = (*_USER, "metric", "definition", "ks", "values", "n_relevant")


def _choose_values(rows: pa.Table, plan: ChangePlan) -> pa.Table:
    wanted = gather_rows(select_holdout(rows, plan.metrics), plan.numbers)
    return select_runs(wanted, plan.run_ids).select(_VALUES)


def _choose_labels(rows: pa.Table, plan: ChangePlan) -> pa.Table:
    """Read each user's label in each slice.

    All truth items of a user have the same label: the first question's, where there are several.
    """
    chosen = select_runs(rows, plan.run_ids)
    query = chosen.column(QUERY_ID)
    chosen = chosen.filter(pc.or_(pc.is_null(query), pc.fill_null(pc.equal(query, "1"), False)))
    chosen = chosen.combine_chunks()
    labels = chosen.select(_USER)
    for name, key in zip(_name_labels(plan), plan.slices, strict=True):
        lists = pc.list_slice(pc.map_lookup(chosen.column("slices").combine_chunks(), key, "first"), 0, 1)
        has_label = pc.fill_null(pc.greater(pc.list_value_length(lists), 0), False).to_numpy(False)
        places = pa.array(np.cumsum(has_label) - 1, mask=~has_label)
        labels = labels.append_column(name, lists.flatten().take(places))
    return labels


def _name_labels(plan: ChangePlan) -> list[str]:
    return [f"label_{number}" for number in range(len(plan.slices))]


def _add_labels(sides: Sides, plan: ChangePlan) -> pa.Table:
    """Return a task's user values with their run's labels."""
    rows, labels = unpack_blocks(sides.get(0, ())), unpack_blocks(sides.get(1, ()))
    if rows is None:
        return pa.table({name: [] for name in _VALUES})
    names = _name_labels(plan)
    if labels is None:
        columns = [pa.nulls(len(rows), pa.string())] * len(names)
    else:  # an Arrow join takes no lists
        places = rows.select(_USER).append_column("place", pa.array(np.arange(len(rows))))
        joined = places.join(labels, list(_USER), join_type="left outer").sort_by("place")
        columns = [joined.column(name) for name in names]
    for name, column in zip(names, columns, strict=True):
        rows = rows.append_column(name, column)
    return rows


# ------------------------------------------------------------------------------- sums of a task

_CELL = ("pair", *KEY, "k", "group_key")
_SUMS = ("users_before", "high_before", "low_before", "users_after", "high_after", "low_after")
_CELL_TYPES = (pa.int32(), *(pa.string(),) * 3, pa.int32(), *(pa.string(),) * 2)


class RunLabels(NamedTuple):
    """Labels of users: their names, and each user's place among them in each run, (n, u)."""

    names: Sequence[str]
    code_nu: Ints


class LabelledValues(NamedTuple):
    """Some users' values in several runs for one key (`KEY`), with labels by group key.

    NaN: left out; n: the plan's `run_ids`.
    """

    key: tuple[str, str, str]
    values_nuc: Floats
    labels: dict[str, RunLabels]


def _task_sums(plan: ChangePlan, batches: Batches) -> Batches:
    """Sum some users' rows; users must be complete."""
    pairs = plan.places
    for cell in read_cells(plan, pa.Table.from_batches(batches)):
        for number, places in enumerate(pairs):
            labels = {key: RunLabels(names, code[places]) for key, (names, code) in cell.labels.items()}
            for group, sums in _group_sums(cell.values_nuc[places], labels):
                yield _sum_batch((number, *cell.key, *group), sums, plan)


def _sum_batch(key: tuple[Any, ...], sums: Ints, plan: ChangePlan) -> pa.RecordBatch:
    """Build one row per cut-off where the group has users.

    sums: (2, c, 3).
    """
    rows = [c for c in range(len(plan.ks)) if sums[:, c, 0].any()]
    cells = [(*key[:4], plan.ks[c], *key[4:]) for c in rows]
    keys = [pa.array([cell[n] for cell in cells], kind) for n, kind in enumerate(_CELL_TYPES)]
    columns = [pa.array(sums[night, rows, s]) for night in (0, 1) for s in range(3)]
    return pa.RecordBatch.from_arrays([*keys, *columns], [*_CELL, "group_value", *_SUMS])


def read_cells(plan: ChangePlan, rows: pa.Table) -> Iterator[LabelledValues]:
    """Yield a task's values of each key, from `deal_labelled`."""
    table, n = sort_by_user(rows).combine_chunks(), len(plan.run_ids)
    names = {name: _list_labels(table.column(name)) for name in _name_labels(plan)}
    for start, stop in equal_key_ranges(table, KEY) if len(table) else ():
        own = table.slice(start, stop - start)
        user_r, values = spread_values(own, n, plan.ks)
        cells = own.column("run").to_numpy(), user_r
        relevant: Ints = np.zeros((n, len(values)), np.int64)
        relevant[cells] = own.column("n_relevant").to_numpy()
        labels = {ACTIVITY: label_activity(relevant)}
        for key, (name, known) in zip(plan.slices, names.items(), strict=True):
            labels[key] = RunLabels(known, np.zeros_like(relevant))
            places = pc.index_in(own.column(name), value_set=pa.array(known, pa.string()))
            labels[key].code_nu[cells] = places.fill_null(0).to_numpy()
        part, metric, definition = (own.column(name)[0].as_py() for name in KEY)
        yield LabelledValues((part, metric, definition), values.transpose(1, 0, 2), labels)


def _list_labels(column: pa.ChunkedArray) -> list[str]:
    """Return all labels of a column, before them that of users without one."""
    return list(dict.fromkeys([UNLABELLED, *pc.unique(column.fill_null(UNLABELLED)).to_pylist()]))


def label_activity(relevant_nu: Ints) -> RunLabels:
    """Label users by doubling ranges: 0, 1, 2-3, 4-7 ...

    The ranges hold numbers of relevant items.
    """
    names = ["0", "1", *(f"{1 << b}-{(2 << b) - 1}" for b in range(1, 32))]
    return RunLabels(names, np.frexp(relevant_nu.astype(np.float64))[1].astype(np.int64))


def _group_sums(values: Floats, labels: Mapping[str, RunLabels]) -> Iterator[tuple[tuple[str, str], Ints]]:
    """Count users and add their values exactly in each group.

    Sums are (2, c, 3), for both nights and all cut-offs.
    """
    has_value = ~np.isnan(values)
    both, either = has_value.all(axis=0), has_value.any(axis=0)
    members = {"stayed": both, "left": either & ~has_value[1], "joined": either & ~has_value[0]}
    for name, member_uc in members.items():
        yield (USERS, name), _exact_sums(np.where(member_uc, values, np.nan))
    for key, (names, code_2u) in labels.items():
        for code in np.unique(code_2u).tolist():
            yield (key, names[code]), _exact_sums(np.where((code_2u == code)[:, :, None], values, np.nan))


def _exact_sums(values: Floats) -> Ints:
    return np.stack(
        [np.column_stack([(~np.isnan(night)).sum(axis=0), exact_sums(night)]) for night in values]
    )


# ------------------------------------------------------------------------------- the changes

_SCHEMA = pa.schema(
    {
        **dict.fromkeys(("model", "run_id", "other_run_id"), pa.string()),
        **dict.fromkeys(("logical_date", "other_date"), pa.date32()),
        **dict.fromkeys(("part", "metric", "definition"), pa.string()),
        "k": pa.int32(),
        **dict.fromkeys(("group_key", "group_value"), pa.string()),
        **dict.fromkeys(("users_before", "users_after"), pa.int64()),
        **dict.fromkeys(("share_before", "share_after", "mean_before", "mean_after"), pa.float64()),
        **dict.fromkeys(
            ("mix_change", "within_change", "difference", "value", "other_value"), pa.float64()
        ),
    }
)


def _finish(plan: ChangePlan, table: pa.Table) -> pa.Table:
    cell = {name: table.column(name)[0].as_py() for name in _CELL}
    one, two = plan.pairs[cell.pop("pair")]
    nights = _add_up(table)
    if not all(sum(users for users, _ in night.values()) for night in nights):
        return _SCHEMA.empty_table()
    facts = {
        **cell,
        "model": two.model,
        "run_id": two.run_id,
        "other_run_id": one.run_id,
        "logical_date": two.logical_date,
        "other_date": one.logical_date,
        "value": _night_mean(nights[1]),
        "other_value": _night_mean(nights[0]),
    }
    rows = [{**facts, **_change_columns(change, nights)} for change in kernel.split(*nights)]
    return pa.Table.from_pylist(rows, _SCHEMA)


def _add_up(table: pa.Table) -> tuple[dict[str, Group], dict[str, Group]]:
    """Add up all tasks' rows.

    Returns each group's users and exact sum on both nights.
    """
    nights: tuple[dict[str, Group], dict[str, Group]] = ({}, {})
    for row in table.select(["group_value", *_SUMS]).to_pylist():
        for night, when in zip(nights, ("before", "after"), strict=True):
            users, total = night.get(row["group_value"], (0, 0))
            addend = kernel.whole_number(row[f"high_{when}"], row[f"low_{when}"])
            night[row["group_value"]] = (users + row[f"users_{when}"], total + addend)
    return nights


def _night_mean(night: Mapping[str, Group]) -> float:
    users, total = (sum(group[part] for group in night.values()) for part in (0, 1))
    return float(total * kernel.UNIT / users)


def _change_columns(
    change: Change, nights: tuple[Mapping[str, Group], Mapping[str, Group]]
) -> dict[str, Any]:
    before, after = change.mean_before, change.mean_after
    return {
        "group_value": change.group,
        "users_before": nights[0][change.group][0],
        "users_after": nights[1][change.group][0],
        "share_before": float(change.share_before),
        "share_after": float(change.share_after),
        "mean_before": None if before is None else float(before),
        "mean_after": None if after is None else float(after),
        "mix_change": float(change.mix),
        "within_change": float(change.within),
        "difference": float(change.mix + change.within),
    }
