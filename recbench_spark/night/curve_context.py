"""Hold what all learning curves of a night share.

These are held-out users and their counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from recbench_spark.analyses.curves import batched as curves
from recbench_spark.analyses.curves.batched import HeldOutUsers
from recbench_spark.analyses.curves.curve_batches import CURVE_COUNTS, CURVE_USERS, CurvePlan, merge_counts
from recbench_spark.config import Benchmark
from recbench_spark.core.checks import Check, warn_above_zero
from recbench_spark.errors import DataError, ProtocolError
from recbench_spark.models.adapters.split_data import SplitData
from recbench_spark.night.measure_checks import make_curve_plan
from recbench_spark.splits.labelled_rows import open_labelled
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.scratch import keep_results


@dataclass(frozen=True)
class CurveContext:
    """A night's held-out users, and the plan for their curves."""

    data: SplitData
    benchmark: Benchmark
    plan: CurvePlan

    @property
    def keeps_rankings(self) -> bool:
        """True if the file asks for rows of `curve_rankings`."""
        curve = self.benchmark.evaluation.learning_curve
        return curve is not None and curve.rankings

    @cached_property
    def users(self) -> PieceRows:
        """Rows of `CURVE_USERS`, kept in files.

        The rows are made once for all models and checks of the night.
        """
        split, store = self.benchmark.split, self.data.store
        assert split.held_out is not None
        held_out = HeldOutUsers(self.benchmark.evaluation.parts, split.held_out, split.seed)
        select = partial(
            curves.select_curve_users, known=self.data.known_items, held_out=held_out, plan=self.plan
        )
        users = self.data.open_by_user(curves.LABELLED, select, tuple(CURVE_USERS.names))
        return keep_results(store.scratch, users, store.engine)

    @cached_property
    def counts(self) -> dict[str, dict[str, Any]]:
        """User counts by part.

        The driver holds one row for each batch of users.
        """
        count = partial(curves.count_curve_users, plan=self.plan)
        tables = self.users.each(CURVE_USERS.names, count)
        return merge_counts(pa.concat_tables([CURVE_COUNTS.empty_table(), *tables]))

    def require_users(self) -> None:
        """Refuse a night without usable users, before any fit.

        Raises:
            ProtocolError: rows lack a time, and time orders them.
            DataError: no user in a part has enough rows.
        """
        if not self.plan.draws:
            rows = open_labelled(self.data.store, self.data.split_id)
            if sum(rows.each(("part", "event_time"), curves.count_untimed)):
                raise ProtocolError(
                    "evaluation.learning_curve: order 'time' needs a time in every row of held-out users, "
                    "and there are rows without",
                    "order: hash, or map dataset.columns.event_time",
                )
        for part in self.benchmark.evaluation.parts:
            self._require_standing(part)

    def _require_standing(self, part: str) -> None:
        row, rule = self.counts.get(part, {"users": 0, "short": 0, "longest": 0}), self.plan.request.rule
        if row["users"] > row["short"]:
            return
        fewest = (rule.given[-1] if rule.users == "fixed" else rule.given[0]) + rule.minimum
        raise DataError(
            f"evaluation.learning_curve: no user of part '{part}' has {fewest} rows; "
            f"the longest of {row['users']} histories has {row['longest']}",
            "a smaller evaluation.learning_curve.given",
        )

    def make_checks(self) -> list[Check]:
        """Make the checks on users, the same for every model."""
        return [check for part, row in sorted(self.counts.items()) for check in self._check_part(part, row)]

    def _check_part(self, part: str, row: Mapping[str, Any]) -> list[Check]:
        last, name = self.plan.request.rule.given[-1], f"{part}: learning curves"
        checks = [
            Check(f"{name}: users", row["users"] - row["short"], None, "info", "users at a point"),
            Check(f"{name}: users with too few rows", row["short"], None, "info", "they stand at no point"),
            Check(
                f"{name}: users without relevant items", row["empty"], None, "info",
                "at one point or more: left out there, or 0, as `empty_users` says",
            ),
            Check(
                f"{name}: given items without training rows",
                row["untrained_items"][-1] / max(row["given_items"][-1], 1), None, "info",
                describe_untrained(self.plan.request.rule.given, row),
            ),
        ]  # fmt: skip
        if self.plan.draws:
            return checks
        detail = f"the first {last} rows of these users have one time, so that item ids order them"
        return [*checks, warn_above_zero(f"{name}: users with equal times", row["equal_times"], detail)]


def describe_untrained(given: Sequence[int], row: Mapping[str, Any]) -> str:
    """Describe, by point, which share of given items is untrained.

    >>> describe_untrained([1, 2], {"given_items": [4, 8], "untrained_items": [1, 3]})
    'share of the given items; by given ratings 1: 1 of 4, 2: 3 of 8'
    """
    counts = zip(given, row["untrained_items"], row["given_items"], strict=True)
    by_point = ", ".join(f"{point}: {unknown} of {items}" for point, unknown, items in counts)
    return f"share of the given items; by given ratings {by_point}"


def build_curve_context(data: SplitData, benchmark: Benchmark) -> CurveContext:
    """Return the data for the learning curves in the file."""
    return CurveContext(data, benchmark, make_curve_plan(benchmark.evaluation, data.definition))
