"""Reasons for a change of a model's mean between two nights: its users, or their results.

The difference of two published means is split, without remainder, over groups of users into the change of
their shares and the change of their means (`kernels.comparison.decomposition`). Groups are: users who
stayed, left or joined; users with 1, 2-3, 4-7 ... relevant items; the labels of slices of users. Sums are
whole numbers, so the partitioning does not change a bit.
Axes: u users, r rows of `user_metrics`, c cut-offs; nights are 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.engine.versions import change_groups
from recbench_spark.evaluation.comparison.counted import WHOLE_RANKING, CountedNumber
from recbench_spark.evaluation.comparison.differences import HOLDOUT, ComparedRun
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.comparison.decomposition import UNIT, Change, Group, split, whole_number
from recbench_spark.kernels.resampling import exact_sums
from recbench_spark.kernels.streams import Batches
from recbench_spark.storage.shared_arrays import flatten_lists

USERS, ACTIVITY = "users", "n_relevant"
"""The groups that every plan has, beside its slices of users."""

UNLABELLED = "unknown"
"""The group of users whose label in a slice is NULL."""


@dataclass(frozen=True)
class ChangePlan:
    """Plan of an explanation: pairs of runs, metrics, cut-offs and slices of users.

    Attributes:
        pairs: (before, after), two runs of one model each.
        metrics: names of the metrics.
        ks: cut-offs; None: the whole ranking.
        slices: keys of slices of users.
        numbers: for models and nights with several runs, the numbers that count. `pairs` has one of these
            runs.
    """

    pairs: tuple[tuple[ComparedRun, ComparedRun], ...]
    metrics: tuple[str, ...]
    ks: tuple[int | None, ...]
    slices: tuple[str, ...] = ()
    numbers: tuple[CountedNumber, ...] = ()


def compute_changes(user_metrics: DataFrame, rankings: DataFrame, plan: ChangePlan) -> DataFrame:
    """Explain changes by group of users: rows of the table `changes`.

    There is one row per pair of runs, part, metric, cut-off and group.

    Shuffles the rows of both nights once by user (and, for slices, a label per user and run), then one
    row per task and group. A task holds one batch of users. A pair has no rows where one night has no
    users, for instance because retention removed them.

    Args:
        user_metrics: rows of the table, of any runs.
        rankings: rows of the table, of any runs; they hold the labels of `plan.slices`.
        plan: runs, metrics, cut-offs, slices.
    """
    is_in_plan = (F.col("estimator") == HOLDOUT) & F.col("metric").isin(list(plan.metrics))
    entry = F.struct("night", "metric", "definition", "ks", "values", "n_relevant")
    rows = _select_pair_rows(gather_rows(user_metrics.where(is_in_plan), plan.numbers), plan)
    users = rows.groupBy(*_USER).agg(F.collect_list(entry).alias("rows"))
    if plan.slices:
        users = users.join(_label_users(rankings, plan), [*_USER], "left")
    # Batches of one pair and part: as many users as possible are added up at once.
    ordered = users.sortWithinPartitions("pair", "part")
    totals = ordered.mapInArrow(partial(_task_sums, plan), _TOTALS)

    # Spark reads the kind of the function from these annotations; a partial does not show them.
    def finish(table: pa.Table) -> pa.Table:
        return _finish(plan, table)

    return name_owners(change_groups(totals, _CELL, finish, _RESULTS), plan.numbers)


_USER = ("pair", "part", "user_id")


def _select_pair_rows(rows: DataFrame, plan: ChangePlan) -> DataFrame:
    """Select the rows of these runs, with `pair` (index of the pair) and `night`, 0 (before) or 1."""
    run_ids = [run.run_id for pair in plan.pairs for run in pair]
    number = number_runs(run_ids)
    chosen = rows.where(F.col("run_id").isin(run_ids))
    return chosen.withColumns({"pair": (number / 2).cast("int"), "night": number % 2})


def _label_users(rankings: DataFrame, plan: ChangePlan) -> DataFrame:
    """Read each user's label in each slice and night; all truth items of a user have the same label."""
    columns = [
        F.max(F.when(F.col("night") == night, F.col("slices")[key][0])).alias(_label_column(n, night))
        for n, key in enumerate(plan.slices)
        for night in (0, 1)
    ]
    return _select_pair_rows(rankings, plan).groupBy(*_USER).agg(*columns)


def _label_column(number: int, night: int) -> str:
    return f"label_{number}_{night}"


# ------------------------------------------------------------------------------- sums of a task

_NAMES = ("pair", "part", "metric", "definition")
_CELL = (*_NAMES, "k", "group_key")
_SUMS = ("users_before", "high_before", "low_before", "users_after", "high_after", "low_after")
_TOTALS = (
    "pair INT, part STRING, metric STRING, definition STRING, k INT, group_key STRING, "
    "group_value STRING, " + ", ".join(f"{name} LONG" for name in _SUMS)
)
_CELL_TYPES = (pa.int32(), *(pa.string(),) * 3, pa.int32(), *(pa.string(),) * 2)

ChangeKey = tuple[Any, ...]
"""pair, part, metric, definition, group key, group value."""


@dataclass(frozen=True)
class Cell:
    """Some users of one pair, part, metric and definition, on both nights.

    values: (2, u, c), NaN for users left out; labels: group key -> labels, (2, u)
    """

    key: tuple[Any, ...]
    values: Floats
    labels: Mapping[str, npt.NDArray[Any]]


def _task_sums(plan: ChangePlan, batches: Batches) -> Batches:
    totals: dict[ChangeKey, Ints] = {}
    for batch in batches:
        for cell in _read_cells(plan, batch):
            for group, sums in _group_sums(cell):
                key = (*cell.key, *group)
                totals[key] = totals[key] + sums if key in totals else sums
    for key, sums in totals.items():
        yield _sum_batch(key, sums, plan)


def _sum_batch(key: ChangeKey, sums: Ints, plan: ChangePlan) -> pa.RecordBatch:
    """Build one row per cut-off at which the group has users; sums: (2, c, 3)."""
    rows = [c for c in range(len(plan.ks)) if sums[:, c, 0].any()]
    cells = [(*key[:4], plan.ks[c], *key[4:]) for c in rows]
    keys = [pa.array([cell[n] for cell in cells], kind) for n, kind in enumerate(_CELL_TYPES)]
    columns = [pa.array(sums[night, rows, s]) for night in (0, 1) for s in range(3)]
    return pa.RecordBatch.from_arrays([*keys, *columns], [*_CELL, "group_value", *_SUMS])


def _read_cells(plan: ChangePlan, batch: pa.RecordBatch) -> Iterator[Cell]:
    lists = batch.column("rows")
    user_r = np.repeat(np.arange(batch.num_rows), np.diff(lists.offsets.to_numpy()))
    entries = pa.RecordBatch.from_struct_array(lists.flatten())
    values_rc = _values_at_cutoffs(entries, plan)
    night_r, relevant_r = (entries.column(name).to_numpy() for name in ("night", "n_relevant"))
    user_columns = [batch.column(name).take(pa.array(user_r)) for name in ("pair", "part")]
    keys = [*user_columns, entries.column("metric"), entries.column("definition")]
    for rows in _equal_key_ranges(keys):
        users, place_r = np.unique(user_r[rows], return_inverse=True)
        cells = (night_r[rows], place_r)
        # Cut-offs of one user can be in several rows: one per run that owns some of them.
        values = np.full((2, len(users), len(plan.ks)), np.nan)
        row, c = np.nonzero(~np.isnan(values_rc[rows]))
        values[cells[0][row], cells[1][row], c] = values_rc[rows[row], c]
        relevant = np.zeros((2, len(users)), dtype=np.int64)
        relevant[cells] = relevant_r[rows]
        labels = {ACTIVITY: activity_label(relevant), **_slice_labels(plan, batch, users)}
        yield Cell(tuple(key[int(rows[0])].as_py() for key in keys), values, labels)


def _equal_key_ranges(keys: list[pa.Array]) -> list[Ints]:
    """Return the row indices of each group of rows that agree in all keys."""
    code = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        encoded = key.dictionary_encode()
        code = code * len(encoded.dictionary) + encoded.indices.to_numpy()
    order = np.argsort(code, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1)


def _values_at_cutoffs(entries: pa.RecordBatch, plan: ChangePlan) -> Floats:
    """Read the values at the cut-offs of the plan, (r, c)."""
    offsets, k_p = flatten_lists(entries.column("ks"))
    _, value_p = flatten_lists(entries.column("values"))
    row_p = np.repeat(np.arange(entries.num_rows), np.diff(offsets))
    # A NULL cut-off, the whole ranking, is NaN among the floats.
    cut_p = np.nan_to_num(k_p.astype(np.float64), nan=0.0)
    values: Floats = np.full((entries.num_rows, len(plan.ks)), np.nan)
    for c, k in enumerate(plan.ks):
        selected = cut_p == (k or 0)
        values[row_p[selected], c] = value_p[selected]
    return values


def activity_label(relevant: Ints) -> npt.NDArray[Any]:
    """Name ranges of numbers of relevant items that double: 0, 1, 2-3, 4-7 ..."""
    bits = np.frexp(relevant.astype(np.float64))[1]
    names = np.array(["0", "1", *(f"{1 << b}-{(2 << b) - 1}" for b in range(1, 32))], dtype=object)
    return names[bits]


def _slice_labels(plan: ChangePlan, batch: pa.RecordBatch, users: Ints) -> dict[str, npt.NDArray[Any]]:
    def night_labels(number: int, night: int) -> npt.NDArray[Any]:
        column = batch.column(_label_column(number, night)).fill_null(UNLABELLED)
        labels: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)[users]
        return labels

    return {key: np.stack([night_labels(n, 0), night_labels(n, 1)]) for n, key in enumerate(plan.slices)}


def _group_sums(cell: Cell) -> Iterator[tuple[tuple[str, str], Ints]]:
    """Count users and add their values exactly in each group: (2, c, 3), both nights and all cut-offs."""
    has_value = ~np.isnan(cell.values)
    both, either = has_value.all(axis=0), has_value.any(axis=0)
    members = {"stayed": both, "left": either & ~has_value[1], "joined": either & ~has_value[0]}
    for name, member_uc in members.items():
        yield (USERS, name), _exact_sums(np.where(member_uc, cell.values, np.nan))
    for key, labels in cell.labels.items():
        for name in np.unique(labels):
            yield (key, name), _exact_sums(np.where((labels == name)[:, :, None], cell.values, np.nan))


def _exact_sums(values: Floats) -> Ints:
    return np.stack(
        [
            np.column_stack([(~np.isnan(night)).sum(axis=0), exact_sums(night)])
            for night in values
        ]
    )  # fmt: skip


# ------------------------------------------------------------------------------- the changes

_RESULT_TYPES = {
    "model": (pa.string(), "STRING"),
    "run_id": (pa.string(), "STRING"),
    "other_run_id": (pa.string(), "STRING"),
    "logical_date": (pa.date32(), "DATE"),
    "other_date": (pa.date32(), "DATE"),
    "part": (pa.string(), "STRING"),
    "metric": (pa.string(), "STRING"),
    "definition": (pa.string(), "STRING"),
    "k": (pa.int32(), "INT"),
    "group_key": (pa.string(), "STRING"),
    "group_value": (pa.string(), "STRING"),
    "users_before": (pa.int64(), "LONG"),
    "users_after": (pa.int64(), "LONG"),
    **dict.fromkeys(
        (
            *("share_before", "share_after", "mean_before", "mean_after"),
            *("mix_change", "within_change", "difference", "value", "other_value"),
        ),
        (pa.float64(), "DOUBLE"),
    ),
}
_RESULTS = ", ".join(f"{name} {kind}" for name, (_, kind) in _RESULT_TYPES.items())
_SCHEMA = pa.schema([(name, kind) for name, (kind, _) in _RESULT_TYPES.items()])


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
    rows = [{**facts, **_change_columns(change, nights)} for change in split(*nights)]
    return pa.Table.from_pylist(rows, _SCHEMA)


def _add_up(table: pa.Table) -> tuple[dict[str, Group], dict[str, Group]]:
    """Add up the rows of all tasks: users and the exact sum of each group on both nights."""
    nights: tuple[dict[str, Group], dict[str, Group]] = ({}, {})
    for row in table.select(["group_value", *_SUMS]).to_pylist():
        for night, when in zip(nights, ("before", "after"), strict=True):
            users, total = night.get(row["group_value"], (0, 0))
            addend = whole_number(row[f"high_{when}"], row[f"low_{when}"])
            night[row["group_value"]] = (users + row[f"users_{when}"], total + addend)
    return nights


def _night_mean(night: Mapping[str, Group]) -> float:
    users, total = (sum(group[part] for group in night.values()) for part in (0, 1))
    return float(total * UNIT / users)


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


# ------------------------------------------------------------------------------- several runs

_NUMBER = ("part", "metric", "definition")
_TYPES = "run_id STRING, owner STRING, part STRING, metric STRING, definition STRING, k INT"


def gather_rows(user_metrics: DataFrame, numbers: Sequence[CountedNumber]) -> DataFrame:
    """Return rows of `user_metrics` with all numbers of a model and night under one run.

    Rows of runs that share no numbers stay as they are. Nothing is shuffled: the numbers are broadcast.

    Args:
        user_metrics: rows of the table, of any runs.
        numbers: all numbers that count, of each model and night with several runs.
    """
    if not numbers:
        return user_metrics
    shared = sorted({run_id for number in numbers for run_id in (number.run_id, number.owner)})
    representatives = _numbers_frame(user_metrics.sparkSession, numbers).withColumnRenamed(
        "run_id", "standing"
    )
    owned_numbers = representatives.groupBy("standing", F.col("owner").alias("run_id"), *_NUMBER)
    cut_offs = owned_numbers.agg(F.collect_list("k").alias("owned_ks"))
    pairs = F.filter(
        F.arrays_zip("ks", "values"),
        lambda pair: F.array_contains("owned_ks", F.coalesce(pair["ks"], F.lit(WHOLE_RANKING))),
    )
    shared_rows = user_metrics.where(F.col("run_id").isin(shared))
    chosen = shared_rows.join(F.broadcast(cut_offs), ["run_id", *_NUMBER]).withColumn("pairs", pairs)
    lists = {"ks": F.col("pairs.ks"), "values": F.col("pairs.values")}
    gathered = chosen.where(F.size("pairs") > 0).withColumns({"run_id": F.col("standing"), **lists})
    alone = user_metrics.where(~F.col("run_id").isin(shared))
    return alone.unionByName(gathered.select(*user_metrics.columns))


def name_owners(results: DataFrame, numbers: Sequence[CountedNumber]) -> DataFrame:
    """Return results whose `run_id` and `other_run_id` are those of the runs that own the numbers.

    Args:
        results: with columns run_id, other_run_id, part, metric, definition, k.
        numbers: as in `gather_rows`.
    """
    if not numbers:
        return results
    named = results
    for name in ("run_id", "other_run_id"):
        owners = _numbers_frame(results.sparkSession, numbers).alias("owners")
        conditions = [named[name] == F.col("owners.run_id")]
        conditions += [named[column] == F.col(f"owners.{column}") for column in _NUMBER]
        conditions += [F.coalesce(named["k"], F.lit(WHOLE_RANKING)) == F.col("owners.k")]
        renamed = F.coalesce(F.col("owners.owner"), named[name]).alias(name)
        columns = [renamed if column == name else named[column] for column in named.columns]
        named = named.join(F.broadcast(owners), conditions, "left").select(*columns)
    return named


def _numbers_frame(spark: SparkSession, numbers: Sequence[CountedNumber]) -> DataFrame:
    return spark.createDataFrame([astuple(number) for number in numbers], _TYPES)


def number_runs(run_ids: Sequence[str]) -> Column:
    """Return each row's place of its run among these ids."""
    places = F.map_from_arrays(
        F.array(*map(F.lit, run_ids)), F.array(*(F.lit(n) for n in range(len(run_ids))))
    )
    return F.element_at(places, F.col("run_id"))
