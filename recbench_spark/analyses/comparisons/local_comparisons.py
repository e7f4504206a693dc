"""Runs compared in this process, without Spark.

It has differences, tests, wins and user slices. The sums and tests are those in a night's comparisons
(`differences`), so for the same users, seed and minimum every number has the same bits. Two runs are
compared on the users of both; those of one side alone are counted. Axes: u users, m models in a group, c
cut-offs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.comparisons import comparisons
from recbench_spark.analyses.comparisons import paired_values as paired
from recbench_spark.analyses.comparisons.differences import (
    ComparisonPlan,
    estimate_pair,
    scale_values,
)
from recbench_spark.analyses.comparisons.kernels import significance as kernel
from recbench_spark.analyses.comparisons.paired_values import KEY
from recbench_spark.config import MANDCG
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.engine.measures import reduce_pieces
from recbench_spark.metrics.beyond_accuracy import PER_USER

COMMON = "common"
"""Kind of group: two runs compared on the users of both."""

RELEVANT = "n_relevant"
"""Key for slices by a user's number of relevant items."""

OUTCOMES = pa.schema(
    {
        **dict.fromkeys(("part", "metric", "definition"), pa.string()),
        "k": pa.int32(),
        **dict.fromkeys(("model", "other", "slice_key", "slice_value"), pa.string()),
        "users": pa.int64(),
        **dict.fromkeys(("difference", "stderr", "ci_low", "ci_high"), pa.float64()),
        **dict.fromkeys(("wins", "ties", "losses", "only_model", "only_other"), pa.int64()),
    }
)
"""One row for each difference and user slice. wins: users for whom the model is better; only_model,
only_other: users with a value on one side alone. The interval is Student's. Without a slice: all users."""


class UserSlices(NamedTuple):
    """User labels: ascending hashed ids, (u,), and labels by key."""

    keys_u: Ints
    labels: Mapping[str, np.ndarray[Any, Any]]

    def find(self, keys_u: Ints) -> Iterator[tuple[str, str, np.ndarray[Any, Any]]]:
        """Yield key, label and a mask (u,) of its users."""
        at = np.searchsorted(self.keys_u, keys_u).clip(max=max(len(self.keys_u) - 1, 0))
        known = np.equal(self.keys_u[at], keys_u) if len(self.keys_u) else np.zeros(len(keys_u), bool)
        for key, label_u in self.labels.items():
            own = np.where(known, label_u[at] if len(label_u) else "", "")
            for label in np.unique(own[own != ""]).tolist():
                yield key, label, own == label


@dataclass
class OutcomeTally:
    """One difference's sums over users in one slice.

    Pair sums (9, 2, 2), wins, ties, losses, and users of one side.
    """

    sums: Ints = field(default_factory=lambda: np.zeros((kernel.PLANES, 2, 2), np.int64))
    counts: Ints = field(default_factory=lambda: np.zeros(5, np.int64))

    def add(self, raw_u2: Floats, sign: float) -> None:
        """Add users by their values in both runs.

        NaN where one has none; sign -1: small values are best.
        """
        valid = ~np.isnan(raw_u2)
        both = np.asarray(valid.all(axis=1))
        difference = (raw_u2[both, 0] - raw_u2[both, 1]) * sign
        self.sums = self.sums + kernel.pair_sums(raw_u2[both])
        outcomes = [(difference > 0).sum(), (difference == 0).sum(), (difference < 0).sum()]
        self.counts = self.counts + np.array([*outcomes, *(valid & ~both[:, None]).sum(axis=0)])


class ComparedRows(NamedTuple):
    """Differences with their tests, and rows of `OUTCOMES`.

    The first have the columns of `comparisons`, wins and users.
    """

    differences: pa.Table
    slices: pa.Table


def find_scales(largest: Mapping[tuple[str, str], float | None]) -> dict[str, float]:
    """Return `ComparisonPlan.scales` from the largest absolute values.

    `largest` has one for each metric and definition. Metrics are scaled where a night scales them, since
    they leave -1..1 by definition, and where values are too large for exact sums.
    """
    scaled: dict[str, float | None] = {}
    for (metric, definition), value in largest.items():
        if value and (leaves_unit(metric, definition) or value > kernel.LARGEST):
            scaled[metric] = max(value, scaled.get(metric) or 0.0)
    return scale_values(scaled)


def leaves_unit(metric: str, definition: str) -> bool:
    """Tell whether a metric can leave -1..1 under a definition.

    >>> leaves_unit("novelty", "v1"), leaves_unit("hit", "v1"), leaves_unit("hit", "v1;hit=count")
    (True, False, True)
    """
    axes = definition.split(";")
    signed = metric in ("ndcg", MANDCG) and "negative_grades=signed" in axes
    return metric in PER_USER or signed or (metric == "hit" and "hit=count" in axes)


def make_slices(user_metrics: pa.Table, labels: pa.Table | None) -> dict[str, UserSlices]:
    """Return user slices by part; arguments as `_make_part_slices`."""
    part_r = user_metrics.column("part")
    parts = {part: user_metrics.filter(pc.equal(part_r, part)) for part in pc.unique(part_r).to_pylist()}
    return {part: _make_part_slices(rows, labels) for part, rows in parts.items()}


def _make_part_slices(user_metrics: pa.Table, labels: pa.Table | None) -> UserSlices:
    """Return slices by number of relevant items and by labels.

    Args:
        user_metrics: rows of the table.
        labels: user_id as text, and a label column for each key; each user once. None: no more keys.
    """
    rows = user_metrics.group_by("user_id").aggregate([("n_relevant", "max")])
    numbers = rows.column("n_relevant_max").to_numpy(zero_copy_only=False).astype(np.float64)
    columns = {RELEVANT: np.array([_relevant_range(n) for n in numbers])}
    ids = rows.column("user_id").combine_chunks()
    if labels is not None:
        at = pc.index_in(ids, value_set=labels.column("user_id").combine_chunks())
        for name in labels.column_names:
            if name != "user_id":
                own = _name_labels(labels.column(name)).take(at)
                columns[name] = np.array(pc.fill_null(own, "").to_pylist(), dtype=object).astype(str)
    keys = hash_ids(ids).view(np.int64) if len(ids) else np.zeros(0, np.int64)
    order = np.argsort(keys)
    return UserSlices(keys[order], {name: column[order] for name, column in columns.items()})


def _name_labels(column: pa.ChunkedArray) -> pa.Array:
    """Return labels as text.

    float16 numbers are written as they print (0.7), not as the float64 beside.
    """
    if pa.types.is_float16(column.type):
        texts = [None if value is None else str(np.float16(value)) for value in column.to_pylist()]
        return pa.array(texts, pa.string())
    return column.cast(pa.string()).combine_chunks()


def _relevant_range(n: float) -> str:
    """Return a doubling range: 1, 2-3, 4-7 ...

    Empty without relevant items.
    """
    if not n >= 1:
        return ""
    low = 1 << (int(n).bit_length() - 1)
    return "1" if low == 1 else f"{low}-{2 * low - 1}"


def compare_tables(
    user_metrics: pa.Table,
    plan: ComparisonPlan,
    slices: Mapping[str, UserSlices],
    is_wanted: Callable[[str, int | None], bool] = lambda metric, k: True,
) -> ComparedRows:
    """Compare each group's two runs on the users of both.

    Args:
        user_metrics: rows of the table, from the plan's runs.
        plan: its groups are of kind COMMON.
        slices: user labels by part.
        is_wanted: chooses numbers by metric and cut-off; others enter no family.
    """
    rows = comparisons.select_holdout(user_metrics, plan.metrics)
    rows = paired.sort_by_user(paired.key_users(rows, [run.run_id for run in plan.runs])).combine_chunks()
    results = reduce_pieces({"tests": comparisons.difference_measure(plan)}, [rows.to_batches()])
    if not results:
        return ComparedRows(pa.table({}), OUTCOMES.empty_table())
    tests = results["tests"]
    figures = zip(*(tests.column(name).to_pylist() for name in ("metric", "k")), strict=True)
    tests = tests.filter(pa.array([is_wanted(*figure) for figure in figures], pa.bool_()))
    tallies = _tally_outcomes(rows, plan, slices)
    outcomes = [row for row in _list_outcomes(tallies, plan) if is_wanted(row["metric"], row["k"])]
    slices_of_users = pa.Table.from_pylist(outcomes, OUTCOMES)
    if not len(tests):
        return ComparedRows(pa.table({}), slices_of_users)
    cells = (tuple(row.values()) for row in tests.select([*KEY, "k", "group"]).to_pylist())
    counts = np.array([tallies[(*cell, None, None)].counts for cell in cells])
    for name, numbers in zip(_COUNTS, counts.T, strict=True):
        tests = tests.append_column(name, pa.array(numbers))
    return ComparedRows(comparisons.adjust_families(tests, plan), slices_of_users)


Tallies = Mapping[tuple[Any, ...], OutcomeTally]
"""By part, metric, definition, cut-off, group, and a slice's key and label (None: all users)."""


def _tally_outcomes(rows: pa.Table, plan: ComparisonPlan, slices: Mapping[str, UserSlices]) -> Tallies:
    tallies: dict[tuple[Any, ...], OutcomeTally] = {}
    for side in paired.read_paired_values(rows.to_batches(), len(plan.runs), plan.ks):
        sign = -1.0 if side.key[1] in plan.lower else 1.0
        masks = [(None, None, np.ones(len(side.keys_u), bool)), *slices[side.key[0]].find(side.keys_u)]
        for number, group in enumerate(plan.groups):
            raw = side.values_unc[:, list(group.runs)] * plan.scale(side.key[1])
            for c, k in enumerate(plan.ks):
                for key, label, mask in masks:
                    tally = tallies.setdefault((*side.key, k, number, key, label), OutcomeTally())
                    tally.add(raw[mask][:, :, c], sign)
    return tallies


_COUNTS = ("wins", "ties", "losses", "only_model", "only_other")


def _list_outcomes(tallies: Tallies, plan: ComparisonPlan) -> Iterator[dict[str, Any]]:
    """Yield rows of `OUTCOMES` with users in common."""
    for (*key, k, number, slice_key, label), tally in tallies.items():
        model, other = (plan.runs[place].model for place in plan.groups[number].runs)
        row = dict(zip(("part", "metric", "definition"), key, strict=True))
        row |= {"k": k, "model": model, "other": other, "slice_key": slice_key, "slice_value": label}
        row["users"] = int(tally.sums[0][0, 1])
        row |= estimate_pair(tally.sums, plan.bootstrap.level, plan.scale(key[1]))
        row |= dict(zip(_COUNTS, tally.counts.tolist(), strict=True))
        if row["users"]:
            yield row
