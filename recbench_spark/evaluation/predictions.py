"""Predictions evaluated on either runner.

Tasks add up users, and count predictions in order. The predictions are dealt by user, and then by range. No
task sends more than sums to the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import islice
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import Bootstrap, Views, digest
from recbench_spark.core.arrays import Floats
from recbench_spark.core.checks import Check, warn_above_zero
from recbench_spark.core.definitions import VERSION
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.core.hashing import hash_longs, start
from recbench_spark.errors import DataError
from recbench_spark.evaluation.input_tables import RunPlace, open_place
from recbench_spark.evaluation.measured import Measured
from recbench_spark.evaluation.options import make_bootstrap
from recbench_spark.evaluation.outputs import open_outputs
from recbench_spark.metrics import prediction_ranges as ranges
from recbench_spark.metrics import predictions as values
from recbench_spark.metrics.kernels.roc import lowest_digit
from recbench_spark.metrics.predictions import (
    Cuts,
    MetricRow,
    PredictionOrder,
    PredictionTotals,
    UserSums,
    select_predictions,
    sum_users,
)
from recbench_spark.metrics.ranking_counts import mark_few_users
from recbench_spark.metrics.result import PART, Result
from recbench_spark.ranking.batch_schemas import METRIC_ROWS, USER_PREDICTIONS
from recbench_spark.schemas import IDS, require_names
from recbench_spark.sources.arrow_rows import combine_column, is_text, refuse_repeated
from recbench_spark.sources.dealt_ids import apply_both
from recbench_spark.sources.input_rows import Typing, check_input, open_input, type_table
from recbench_spark.storage.blocks import ChangedRows, TaskRows, return_rows
from recbench_spark.storage.packed_blocks import Block

VALUES = {"prediction": "double", "outcome": "double"}
LABEL = "label"
"""Column with the slice values, as text."""

WEIGHTED = "largest weight"
"""Name of the check that tells that rows have weights."""


def evaluate_predictions(
    predictions: Any,
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = None,
    views: Views | None = None,
    slice_by: str | None = None,
    *,
    scratch: str | None = None,
) -> Result:
    """Compute metrics from predictions.

    Metrics are RMSE, MSE, NMSE, MAE, PE, AUC, log-loss, RIG, GAUC and calibration error. Slices `fpr`,
    `threshold` and `prediction_quantile` add partial AUC, the rates at thresholds, and log-loss, RIG and PE
    by prediction quantile. Log-loss clips probabilities to 2^-52 .. 1 - 2^-52, the same on both sides; GAUC
    weights each user's AUC by the user's positives. Values and errors keep 12 digits at any scale and do
    not depend on partitions.

    With a column `weight` a row counts so many times in every metric and interval, bins have equal weight,
    and n still counts rows; those of weight 0 are left out. AUC's error counts rows: see `roc.auc_error`.

    Args:
        predictions: user_id, item_id, prediction, outcome (a rating, or 0 and 1)[, weight]: a Spark frame,
            or a table in this process.
        bootstrap: replicates, level and seed for the intervals.
        views: bins, thresholds, false-positive rates, and negatives kept.
        slice_by: a column with few values; all numbers are computed again for each value's rows.
        scratch: folder readable by all executors.

    Raises:
        SchemaError: a column is missing, or cannot slice.
        DataError: no rows; NULL or NaN values, with their number; too many slices; a negative weight, or
            none above 0; with `negatives_kept`, predictions that are no probabilities.
    """
    boot, wanted = make_bootstrap(bootstrap), views or Views()
    with open_place(predictions, scratch) as place:
        rows, notes, n = _open_rows(place, predictions, slice_by, wanted.negatives_kept)
        facts = reduce(add, rows.each(rows.names, _find_facts))
        if slice_by is not None:
            values.refuse_many_slices(slice_by, len(facts.labels))
        more = rows.names[len(values.PREDICTIONS) + 1 :]
        dealt = values.deal_users(place.engine, rows, more, facts.n)
        kinds = {values.WEIGHT: pa.list_(pa.float64()), LABEL: pa.list_(pa.string())}
        further = pa.schema({name: kinds[name] for name in more})
        schema = pa.unify_schemas([USER_PREDICTIONS, further])
        grouped = dealt.then(partial(apply_both, dealt.change, _add_part), tuple(schema.names))
        outputs = open_outputs(place.engine, grouped, schema)
        users = outputs.rows.open(dealt.names, return_rows, dealt.names)
        tasks = place.engine.count_tasks(facts.n)
        deal = partial(_deal_ranges, cuts=ranges.cut_ranges(facts.sample, tasks))
        definition = _name_definition(rows.names, wanted)
        if values.WEIGHT in rows.names:
            notes.append(Check("rows of weight 0", n - facts.n, None, "info", "left out"))
        with users.deal(deal, tasks).keep() as in_order:
            dealt_rows = PredictionRows(users, in_order, boot, wanted, facts.unit)
            metrics, checks = _measure(dealt_rows, facts, slice_by, definition)
        columns = [name for name in schema.names if name != LABEL]
        measure_users = partial(values.user_value_batches, definition=definition)
        result = outputs.finish(Measured(metrics, measure_users, columns, [*checks, *notes]))
        return replace(result, rankings=None, truth=digest(str(facts.hashes), facts.n))


def _name_definition(names: Sequence[str], views: Views) -> str:
    """Return the metrics' definition: by weights, recalibrated, or neither."""
    changed = ["weight=column"] if values.WEIGHT in names else []
    changed += [] if views.negatives_kept == 1 else [f"negatives_kept={views.negatives_kept!r}"]
    return ";".join([VERSION, *changed])


def _open_rows(
    place: RunPlace, predictions: Any, slice_by: str | None, kept: float
) -> tuple[ChangedRows, list[Check], int]:
    """Open and check predictions, with the slice column as text.

    kept: share of the negatives that training kept. Returns typed rows, checks that tell what was done, and
    the number of rows as given.
    """
    opened = open_input(place.engine, predictions, (), "predictions")
    names = opened.schema.names
    require_names(names, [*IDS, *VALUES], "predictions")
    kinds = VALUES | ({values.WEIGHT: "double"} if values.WEIGHT in names else {})
    checked = check_input(opened, kinds, "predictions")
    if not checked.n:
        raise DataError("predictions: no rows", "check the path")
    notes = _check_ranges(checked.ranges, kept)
    if slice_by is not None:
        require_names(names, [slice_by], "predictions")
        refuse_repeated(names, [slice_by], "predictions")
        kind = opened.schema.field(slice_by).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or is_text(kind)):
            raise values.slice_type_error(slice_by)
    rules = Typing(IDS, kinds, "predictions", opened.where)
    more = () if slice_by is None else (slice_by,)
    columns = tuple(dict.fromkeys((*rules.columns, *more)))
    change = partial(_type_rows, rules=rules, slice_by=slice_by, kept=kept)
    return (
        ChangedRows(opened.rows, columns, change, (*rules.names, *(LABEL for _ in more))),
        notes,
        checked.n,
    )


LIGHTEST, HEAVIEST = 2.0**-100, 2.0**100
"""Weights between which products stay exact whole numbers, and float64 holds them: 8e-31 to 1e30."""


def _check_ranges(ends: Mapping[str, tuple[float, float]], kept: float) -> list[Check]:
    """Refuse weights and predictions out of range.

    Returns a check on each thing done with the others.
    """
    notes = []
    if values.WEIGHT in ends:
        least, most = ends[values.WEIGHT]
        if least < 0:
            raise DataError(f"predictions: weight is {least:g} in a row", "weights are 0 or more")
        if most == 0:
            raise DataError(
                "predictions: weight is 0 in all rows", "a row that counts has a weight above 0"
            )
        if most > HEAVIEST:
            raise DataError(
                f"predictions: weight is {most:g} in a row", "rescale the weights, e.g. to 0..1"
            )
        notes.append(Check(WEIGHTED, most, None, "info", "rows count by their column weight"))
    least, most = ends["prediction"]
    if kept != 1 and not 0 <= least <= most <= 1:
        what = f"negatives_kept is {kept:g}, and predictions are from {least:g} to {most:g}"
        raise DataError(what, "only probabilities, 0 to 1, can be recalibrated")
    if kept != 1:
        notes.append(Check("negatives kept", kept, None, "info", "probabilities are recalibrated"))
    return notes


def _type_rows(rows: pa.Table, rules: Typing, slice_by: str | None, kept: float) -> pa.Table:
    typed = type_table(rows.select(list(rules.columns)), rules)[0]
    if kept != 1:
        p = typed.column("prediction").to_numpy()
        typed = typed.set_column(2, "prediction", pa.array(recalibrate(p, kept)))
    if slice_by is not None:
        typed = typed.append_column(LABEL, combine_column(rows.column(slice_by)).cast(pa.string()))
    return typed if values.WEIGHT not in rules.values else _drop_weightless(typed)


def recalibrate(p: Floats, kept: float) -> Floats:
    """Return probabilities among all rows: p / (p + (1 - p) / kept).

    p: (n,) in [0, 1], of a model trained on all positives and this share of the negatives. Order and AUC
    stay. Source: He et al. 2014, "Practical lessons from predicting clicks on ads at Facebook", section
    6.3; TorchRec's RecalibratedNEMetric.
    """
    return p / (p + (1 - p) / kept)


def _drop_weightless(rows: pa.Table) -> pa.Table:
    """Drop rows of weight 0, as if they were repeated 0 times."""
    weights = rows.column(values.WEIGHT).to_numpy()
    least = weights[weights > 0].min(initial=HEAVIEST)
    if least < LIGHTEST:
        raise DataError(f"predictions: weight is {least:g} in a row", "rescale the weights, or give 0")
    return rows.filter(pa.array(weights > 0))


def _add_part(users: pa.Table) -> pa.Table:
    return users.add_column(1, "part", pa.repeat(PART, len(users)))


# --------------------------------------------------------------------------------------- facts of rows


@dataclass(frozen=True)
class PredictionFacts:
    """Counts over some rows; those from several tasks are added.

    Attributes:
        n: number of rows.
        hashes: summed hashes of users, items and outcomes.
        sample: some predictions.
        labels: slice values, at most one more than slices can be.
        unlabelled: rows without one.
        unit: power of two that divides all weights (`roc.lowest_digit`).
    """

    n: int
    hashes: int
    sample: Floats
    labels: frozenset[str]
    unlabelled: int
    unit: int = 0

    def __add__(self, other: PredictionFacts) -> PredictionFacts:
        """Join both tasks' facts."""
        return PredictionFacts(
            self.n + other.n,
            self.hashes + other.hashes,
            np.concatenate([self.sample, other.sample]),
            _limit_labels(self.labels | other.labels),
            self.unlabelled + other.unlabelled,
            min(self.unit, other.unit),
        )


def _limit_labels(labels: Iterable[str]) -> frozenset[str]:
    return frozenset(islice(labels, values.MAX_SLICES + 1))


def _find_facts(tables: Iterable[pa.Table]) -> PredictionFacts:
    facts = reduce(add, map(_count_table, tables), PredictionFacts(0, 0, np.zeros(0), frozenset(), 0))
    return replace(facts, sample=ranges.sample_range(facts.sample, ranges.SAMPLE_TASK))


def _count_table(rows: pa.Table) -> PredictionFacts:
    labels = rows.column(LABEL) if LABEL in rows.column_names else pa.nulls(0, pa.string())
    sample = ranges.sample_range(rows.column("prediction").to_numpy(), ranges.SAMPLE_TABLE)
    distinct = _limit_labels(labels.drop_null().unique().to_pylist())
    unit = lowest_digit(rows.column(values.WEIGHT).to_numpy()) if values.WEIGHT in rows.column_names else 0
    return PredictionFacts(len(rows), sum_hashes(rows), sample, distinct, labels.null_count, unit)


def sum_hashes(rows: pa.Table) -> int:
    """Add up hashes of user_id, item_id, outcome and weight.

    All predictions of the same outcomes have the same sum.
    """
    hashes = start(len(rows))
    for name in IDS:
        hashes = hash_ids(rows.column(name), hashes)
    # Spark hashes a float64's bits; both zeros have the bits of 0.
    for name in [name for name in ("outcome", values.WEIGHT) if name in rows.column_names]:
        hashes = hash_longs((rows.column(name).to_numpy() + 0.0).view(np.int64), hashes)
    return sum(hashes.view(np.int64).tolist())


# ------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class PredictionRows:
    """Tasks' predictions, by user and in order, with results."""

    users: TaskRows
    in_order: TaskRows
    bootstrap: Bootstrap
    views: Views
    unit: int = 0

    def measure(self, label: str | None = None) -> tuple[list[MetricRow], list[Check], int]:
        """Measure one label's predictions.

        Returns rows of `metrics`, checks on undefined ones, and the number of users.
        """
        choose = partial(_select_range, label=label)
        order = PredictionOrder.from_ranges(ranges.run_ranges(self.in_order, choose, self.unit), self.views)
        cuts = order.cuts(self.views)
        sums = self.users.each(partial(_sum_label, label=label, bootstrap=self.bootstrap, cuts=cuts))
        totals = PredictionTotals.from_sums(sums, self.bootstrap, cuts)
        return *values.value_rows(order, totals, self.views), totals.users


def _measure(
    rows: PredictionRows, facts: PredictionFacts, slice_by: str | None, definition: str
) -> tuple[pa.Table, list[Check]]:
    """Measure all predictions and each slice.

    Returns rows of `metrics`, and checks.
    """
    numbers, checks, n_users = rows.measure()
    checks.append(Check(f"{PART}: users", n_users, None, "info", "users with predictions"))
    checks += mark_few_users(PART, n_users)
    if slice_by is not None:
        checks.append(warn_above_zero(f"rows without {slice_by}", facts.unlabelled, "in no slice"))
        for label in sorted(facts.labels, key=str.encode):
            numbers += values.label_slice(rows.measure(label)[0], slice_by, label)
    named = [{"part": PART, **row, "definition": definition} for row in numbers]
    return pa.Table.from_pylist(named, schema=METRIC_ROWS), checks


def _sum_label(users: pa.Table, label: str | None, bootstrap: Bootstrap, cuts: Cuts) -> UserSums:
    mine = users if label is None else select_predictions(users, LABEL, label)
    return sum_users([mine], bootstrap, cuts)


def _select_range(rows: pa.Table, label: str | None) -> pa.Table:
    return rows if label is None else rows.filter(pc.equal(rows.column(LABEL), label))


def _deal_ranges(tables: Iterable[pa.Table], cuts: Floats) -> Iterator[Block]:
    """Send each prediction to its range's task."""
    names = ("prediction", "outcome", values.WEIGHT, LABEL)
    for users in tables:
        lists = {name: combine_column(users.column(name)) for name in names if name in users.column_names}
        flat = pa.table({name: column.flatten() for name, column in lists.items()})
        yield from ranges.deal_ranges([flat], cuts)
