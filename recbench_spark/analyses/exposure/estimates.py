"""Metrics estimated from rating matrices and logged rounds.

Either runner can do it; this module needs no Spark. Inputs are what `input_rows.open_input` opens: Spark
frames, tables in memory, and paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.exposure import bandit_feedback, rating_matrix
from recbench_spark.analyses.exposure.bandit_feedback import HEAVY_WEIGHT_SHARE, PolicyPlan, RoundFacts
from recbench_spark.analyses.exposure.kernels.exposure import EstimatorSettings
from recbench_spark.analyses.exposure.rating_matrix import FAULTS, CellSums
from recbench_spark.config import Bootstrap
from recbench_spark.core.checks import Check
from recbench_spark.core.sums import Sums
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.metrics.predictions import MetricRow
from recbench_spark.metrics.result import PART, Result, ShownTable
from recbench_spark.ranking.batch_schemas import METRIC_ROWS, USER_VALUES
from recbench_spark.schemas import IDS, require_names
from recbench_spark.sources import input_rows
from recbench_spark.sources.arrow_rows import combine_column
from recbench_spark.sources.input_rows import CheckedInput, InputRows, check_input, open_input
from recbench_spark.storage.blocks import ChangedRows, Engine, Side, Sides, StoredRows, deal_sides
from recbench_spark.storage.packed_blocks import unpack_blocks

DOUBLE, TEXTS = "double", (*IDS, "position")
"""Type of values, and columns joined as text."""

# ------------------------------------------------------------------------------- rating matrices


def estimate_matrix(
    engine: Engine,
    matrix: Any,
    log: Any,
    propensities: Any,
    bootstrap: Bootstrap,
    *,
    floor: float | None = None,
) -> Result:
    """Estimate MSE and MAE over a rating matrix's cells.

    The means are naive, IPS, SNIPS and DR (Schnabel et al. 2016). Matrix and log are dealt by user in one
    shuffle, and joined and summed by tasks.

    Args:
        engine: the runner.
        matrix: user_id, item_id, prediction for every cell; imputed, the rating a model expects, for DR;
            rating (NULL where unknown) if there is no log.
        log: user_id, item_id, rating for cells with a known rating; None: the matrix has them.
        propensities: propensity by item_id, by user_id and item_id, or by rating.
        bootstrap: replicates over users, level, seed.
        floor: smaller propensities are raised to it, and those above 1 are lowered to 1.

    Raises:
        SchemaError: a column is missing.
        DataError: a value cannot be used, a cell occurs twice, a rating has no prediction or propensity, or
            a propensity is outside (0, 1].
    """
    opened = open_input(engine, matrix, (), "matrix")
    names = opened.schema.names
    modelled = "imputed" in names
    cells = check_input(opened, dict.fromkeys(["prediction", *["imputed"] * modelled], DOUBLE), "matrix")
    if log is None:
        require_names(names, ["rating"], "matrix without a log")
        known = _select_rated(engine, opened)
    else:
        known = open_input(engine, log, (), "log")
    rated = check_input(known, {"rating": DOUBLE}, "log")
    keys, chances = _check_chances(open_input(engine, propensities, (), "propensities"))
    inputs = [cells, rated, *[chances] * (keys == IDS)]
    table = None if keys == IDS else collect_rows(chances)
    sides = [Side(n, one.rows, one.names) for n, one in enumerate(inputs)]
    dealt = deal_sides(engine, sides, engine.count_tasks(sum(one.n for one in inputs)))
    schemas = tuple(_type_side(one.names) for one in (cells, rated, chances))
    join = partial(_join_cells, schemas=schemas, chances=table, keys=keys, floor=floor)
    work = partial(rating_matrix.sum_cells, bootstrap=bootstrap)
    total = reduce(add, dealt.then(join, ()).each(work), CellSums())
    _refuse_cells(total)
    sizes = [input_rows.count_distinct(engine, cells, name) for name in IDS]
    checks = _check_matrix(total, sizes, modelled)
    return _make_result(rating_matrix.make_metrics(total, bootstrap, modelled=modelled), checks)


def _select_rated(engine: Engine, opened: InputRows) -> InputRows:
    """Return the matrix cells with a known rating."""
    columns = (*IDS, "rating")
    if opened.table is not None:
        return input_rows.open_table(engine, _drop_unrated(opened.table))
    rows = ChangedRows(opened.rows, columns, _drop_unrated, columns)
    return replace(opened, rows=cast("StoredRows", rows))


def _drop_unrated(rows: pa.Table) -> pa.Table:
    return rows.filter(rows.column("rating").is_valid())


def _check_chances(opened: InputRows) -> tuple[tuple[str, ...], CheckedInput]:
    """Check propensities; return their keys too."""
    names = opened.schema.names
    require_names(names, ["propensity"], "propensities")
    keys = tuple(name for name in (*IDS, "rating") if name in names)
    if keys not in (("item_id",), IDS, ("rating",)):
        by = ", ".join(keys) or "nothing"
        raise ConfigError(f"propensities by {by}", "item_id; user_id and item_id; or rating")
    values = {"propensity": DOUBLE, **({"rating": DOUBLE} if "rating" in keys else {})}
    ids = tuple(name for name in keys if name in IDS)
    return keys, check_input(opened, values, "propensities", ids=ids)


def _type_side(names: Sequence[str]) -> pa.Schema:
    return pa.schema({name: pa.string() if name in TEXTS else pa.float64() for name in names})


def _join_cells(
    sides: Sides,
    schemas: Sequence[pa.Schema],
    chances: pa.Table | None,
    keys: Sequence[str],
    floor: float | None,
) -> pa.Table:
    """Join a task's cells with their ratings and propensities."""
    cells, rated, own = (_open_side(sides, n, schema) for n, schema in enumerate(schemas))
    table = own if chances is None else chances
    if floor is not None:
        table = _set_numbers(table, "propensity", np.clip(table["propensity"].to_numpy(), floor, 1.0))
    if "rating" in keys:  # a join tells 0 from -0
        rated, table = (_set_numbers(x, "rating", x["rating"].to_numpy() + 0.0) for x in (rated, table))
    known = rated.join(table, list(keys), join_type="left outer")
    return cells.join(known, list(IDS), join_type="full outer").combine_chunks()


def _open_side(sides: Sides, number: int, schema: pa.Schema) -> pa.Table:
    rows = unpack_blocks(sides.get(number, []))
    return schema.empty_table() if rows is None else rows.select(schema.names)


def _set_numbers(rows: pa.Table, name: str, values: Any) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, pa.array(values))


def _refuse_cells(total: CellSums) -> None:
    """Refuse cells unfit for an estimate.

    Raises:
        DataError: naming the fault.
    """
    if total.twice:
        raise DataError("a cell occurs twice", "in the matrix, the log or the propensities")
    for fault, n in zip(FAULTS, total.faults, strict=True):
        if n:
            raise DataError(f"{n} ratings {fault}", "every known rating needs both; or give a floor")
    if not total.rated:
        raise DataError("no rating is known", "check the log, or the column rating of the matrix")


def _check_matrix(total: CellSums, sizes: Sequence[int], modelled: bool) -> list[Check]:
    """Count the data behind the estimates."""
    assert total.weights
    weight, squares = total.weights.nearest().tolist()
    holes = sizes[0] * sizes[1] - total.cells
    share = total.most / weight
    checks = [
        Check(f"{PART}: users", sizes[0], None, "info", "users of the matrix"),
        Check("cells", total.cells, None, "info", "predictions"),
        Check("cells without a prediction", holes, 0.0, "warning", "errors are means over the cells given"),
        Check("known ratings", total.rated, None, "info", "cells with a rating"),
        Check("effective ratings", weight**2 / squares, None, "info", "(sum w)^2 / sum w^2"),
        Check("largest share of the weight", share, HEAVY_WEIGHT_SHARE, "warning", "of one rating"),
    ]
    return checks if modelled else [*checks, _column_check("imputed", "dr")]


def _column_check(column: str, names: str) -> Check:
    return Check(f"{names} undefined", 1, None, "info", f"needs the column {column}, from a model")


# ------------------------------------------------------------------------------- logged rounds


@dataclass(frozen=True)
class Policy:
    """A policy to evaluate.

    Attributes:
        name: its name in the definition.
        chance: its probability for each action; None: the rounds, or the table, have them.
        table: item_id[, position] as text, pi_e; an action missing here has 0.
    """

    name: str = "given"
    chance: float | None = None
    table: pa.Table | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns joining rounds with the table."""
        return () if self.table is None else tuple(self.table.column_names[:-1])

    def add_chances(self, rows: pa.Table) -> pa.Table:
        """Return rounds with pi_e."""
        if self.chance is not None:
            return rows.append_column("pi_e", pa.repeat(self.chance, len(rows)))
        if self.table is None:
            return rows
        joined = _as_texts(rows, self.keys).join(self.table, list(self.keys), join_type="left outer")
        return _set_numbers(joined, "pi_e", pc.fill_null(joined["pi_e"], 0.0)).combine_chunks()


def estimate_rounds(
    engine: Engine, rounds: Any, policy: Policy, settings: EstimatorSettings, level: float
) -> Result:
    """Estimate a policy's value by IPS, clipped IPS and SNIPS.

    With a reward model also by DM, DR, switch-DR and DRos. One pass checks the values, one counts them, and
    one adds them up.

    Args:
        engine: the runner.
        rounds: reward, propensity of the logged action, pi_e (the policy's probability for it) unless the
            policy tells; q and q_policy: a model's expected reward for this action, and for the policy's
            actions on average.
        policy: the evaluated policy.
        settings: bounds on weights.
        level: level for intervals.

    Raises:
        SchemaError: a column is missing.
        DataError: a value cannot be used, or there are no rounds.
    """
    opened = open_input(engine, rounds, (), "rounds")
    names = opened.schema.names
    model = [name for name in ("q", "q_policy") if name in names]
    if len(model) == 1:
        raise ConfigError(f"rounds have only {model[0]}", "a reward model gives q and q_policy")
    own = ["pi_e"] if policy.chance is None and policy.table is None else []
    require_names(names, list(policy.keys), "rounds")
    values = dict.fromkeys(["reward", "propensity", *own, *model], DOUBLE)
    checked = check_input(opened, values, "rounds", ids=(), others=policy.keys)
    columns = ("reward", "propensity", "pi_e", *model)
    rows = ChangedRows(checked.rows, checked.names, policy.add_chances, columns)
    plan = PolicyPlan(settings, policy.name, level, bool(model))
    facts = reduce(add, rows.each(columns, partial(bandit_feedback.find_facts, plan=plan)), RoundFacts())
    _refuse_rounds(facts)
    scale_c = bandit_feedback.find_scale(facts)
    sums = rows.each(columns, partial(bandit_feedback.sum_rounds, plan=plan, scale_c=scale_c))
    moments: Sums = reduce(add, (one for one in sums if one is not None))
    checks = bandit_feedback.check_rounds(facts, moments, scale_c, plan)
    undefined = [] if model else [_column_check("q and q_policy", "dm, dr, switch_dr, dros")]
    return _make_result(bandit_feedback.estimate_values(moments, scale_c, plan), [*checks, *undefined])


def _refuse_rounds(facts: RoundFacts) -> None:
    if not facts.n:
        raise DataError("no rounds", "check the path")
    for name, n in zip(("propensity", "pi_e"), facts.wrong, strict=True):
        if n:
            raise DataError(
                f"{n} of {facts.n} rounds have a {name} that is not a probability",
                "the logging policy must give every logged action a probability above 0",
            )


def read_policy(engine: Engine, policy: Any) -> Policy:
    """Read a policy from a table (item_id[, position], pi_e)."""
    opened = open_input(engine, policy, ("item_id", "pi_e"), "policy")
    require_names(opened.schema.names, ["item_id", "pi_e"], "policy")
    keys = ("item_id", *(["position"] if "position" in opened.schema.names else []))
    checked = check_input(opened, {"pi_e": DOUBLE}, "policy", ids=keys[:1], others=keys[1:])
    table = collect_rows(checked).select([*keys, "pi_e"])
    if table.group_by(list(keys)).aggregate([]).num_rows < len(table):
        raise DataError(f"policy: {', '.join(keys)} occur twice", "give one pi_e per key")
    return Policy("table", table=table)


def estimate_policy(engine: Engine, rounds: Any) -> Policy:
    """Estimate a policy by item shares at each position.

    The shares are counted in its own rounds. This estimates the policy over all contexts. The intervals do
    not include this estimate's error.
    """
    keys = ("item_id", "position")
    opened = open_input(engine, rounds, (), "rounds")
    require_names(opened.schema.names, list(keys), "rounds")
    checked = check_input(opened, {}, "rounds", ids=(), others=keys)
    counted = pa.concat_tables(checked.rows.each(keys, partial(_count_shown, schema=_type_side(keys))))
    shown = counted.group_by(list(keys)).aggregate([("n", "sum")])
    at = shown.group_by("position").aggregate([("n_sum", "sum")])
    shares = shown.join(at, "position", join_type="inner")
    chances = pc.divide(shares["n_sum"].cast(pa.float64()), shares["n_sum_sum"].cast(pa.float64()))
    return Policy("estimated_from_its_log", table=shares.select(list(keys)).append_column("pi_e", chances))


def _count_shown(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    keys = schema.names
    shown = (_as_texts(rows, keys).group_by(keys).aggregate([([], "count_all")]) for rows in tables)
    counts = [rows.rename_columns([*keys, "n"]) for rows in shown]
    return pa.concat_tables([schema.append(pa.field("n", pa.int64())).empty_table(), *counts])


# ------------------------------------------------------------------------------- rows, results


def collect_rows(checked: CheckedInput) -> pa.Table:
    """Return a small table's rows, for driver and tasks."""
    schema = _type_side(checked.names)
    return pa.concat_tables(checked.rows.each(schema.names, partial(_gather, schema=schema)))


def _gather(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    parts = (_as_texts(rows, TEXTS) for rows in tables)
    return pa.concat_tables([schema.empty_table(), *parts])


def _as_texts(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    for name in [name for name in names if name in rows.column_names]:
        text = combine_column(rows.column(name)).cast(pa.string())
        rows = rows.set_column(rows.column_names.index(name), name, text)
    return rows


def _make_result(numbers: Sequence[Mapping[str, object] | MetricRow], checks: list[Check]) -> Result:
    rows = [{"part": PART, **number} for number in numbers]
    metrics = pa.Table.from_pylist(rows, schema=METRIC_ROWS)
    return Result(ShownTable(metrics), ShownTable(USER_VALUES.empty_table()), None, checks)
