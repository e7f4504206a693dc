"""Writes propensities and fitted power laws.

Items' propensities go to the table `propensities`, ratings' to `rating_propensities`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from recbench_spark.analyses.exposure import logistic
from recbench_spark.analyses.exposure import propensities as fitting
from recbench_spark.analyses.exposure.kernels.power_law import PowerLaw, goodness
from recbench_spark.config import Propensities, digest
from recbench_spark.core.revisions import select_revisions
from recbench_spark.errors import DataError
from recbench_spark.schemas import (
    CELL_PROPENSITIES,
    IDS,
    POWER_LAWS,
    PROPENSITIES,
    RATING_PROPENSITIES,
    Table,
)
from recbench_spark.sources.dealt_ids import apply_both
from recbench_spark.sources.input_rows import Typing, open_input, type_rows
from recbench_spark.sources.opened_logs import choose_identity
from recbench_spark.storage.blocks import ChangedRows, Engine, Rows, TaskRows, count_table_rows
from recbench_spark.storage.commits import Addition, commit
from recbench_spark.storage.file_tables import FileTables, TaskParts
from recbench_spark.storage.scratch import share_table

SEED = 42
"""Seed for simulated laws behind the goodness of fit, and for cells drawn for logistic regression."""


@dataclass(frozen=True)
class ExposureLog:
    """Rows to fit propensities to.

    Attributes:
        store: the warehouse.
        split_id: the rows' name in the tables.
        rows: user_id, item_id, rating, part.
        parts: the parts to fit to; empty: all rows.
        items: the catalogue; None: the items with rows.
        sample: part with ratings of items drawn at random, for naive Bayes.
    """

    store: FileTables
    split_id: str
    rows: Rows
    parts: tuple[str, ...] = ()
    items: Rows | None = None
    sample: str = ""


def method_name(store: FileTables, settings: Propensities) -> str:
    """Return the value for the column `method`.

    The value names the settings, and a hash of their tables. A method reading tables adds its revision to
    the hash.
    """
    paths = [settings.path, settings.item_features, settings.user_features]
    identities: list[Any] = [choose_identity(store)(path) for path in paths if path]
    if not identities:
        return settings.name
    revised = select_revisions(settings.method)
    return f"{settings.name};content={digest([*identities, *([revised] if revised else [])], length=8)}"


def write_propensities(
    exposed: ExposureLog, settings: Propensities, replicates: int = 0, *, cells: bool = False
) -> PowerLaw | None:
    """Fit and append propensities once per name (`method_name`).

    Returns the fitted power law, if any.

    Args:
        exposed: the log.
        settings: method, scale, clipping.
        replicates: simulated laws behind the goodness of fit; 0: none.
        cells: with logistic regression also write a propensity for every user and item.
    """
    if settings.method == "naive_bayes":
        _append_rows(exposed, settings, RATING_PROPENSITIES, _fit_ratings(exposed))
        return None
    if settings.method == "given":
        _append_rows(exposed, settings, PROPENSITIES, read_given(exposed.store.engine, str(settings.path)))
        return None
    if settings.method == "logistic_regression":
        _fit_features(exposed, settings, cells=cells)
        return None
    with _count(exposed, "item_id", exposed.items).keep() as counts:
        observed = fitting.make_histogram(counts, _count_users(exposed))
        fitted = fitting.fit_propensities(observed, settings)
        name = method_name(exposed.store, settings)
        look_up = partial(fitting.look_up_propensities, observed=observed, fitted=fitted)
        change = partial(apply_both, counts.change, look_up)
        _append_tasks(exposed, PROPENSITIES, counts.then(change, ("item_id", "propensity")), name)
    if fitted.law:
        row = _law_row(observed, fitted, replicates)
        _append_rows(exposed, settings, POWER_LAWS, pa.Table.from_pylist([row]))
    return fitted.law


def _append_tasks(exposed: ExposureLog, table: Table, rows: TaskRows, name: str) -> None:
    """Append tasks' rows, with the method's name."""
    add_name = partial(apply_both, rows.change, partial(_add_method, name=name))
    parts = TaskParts([(rows.then(add_name, (*rows.names, "method")), {"split_id": exposed.split_id})])
    commit(exposed.store, Addition(table, f"{exposed.split_id}/{name}", parts))


def _add_method(rows: pa.Table, name: str) -> pa.Table:
    return rows.append_column("method", pa.repeat(name, len(rows)))


def _count(exposed: ExposureLog, name: str, others: Rows | None = None) -> Any:
    return fitting.count_ids(exposed.store.engine, exposed.rows, name, exposed.parts, others)


def _count_users(exposed: ExposureLog) -> int:
    return sum(_count(exposed, "user_id").each(len))


def _append_rows(exposed: ExposureLog, settings: Propensities, table: Table, rows: pa.Table) -> None:
    name = method_name(exposed.store, settings)
    for column, value in (("split_id", exposed.split_id), ("method", name)):
        rows = rows.append_column(column, pa.repeat(value, len(rows)))
    commit(exposed.store, Addition(table, f"{exposed.split_id}/{name}", rows))


def _fit_ratings(exposed: ExposureLog) -> pa.Table:
    sample = fitting.count_ratings(exposed.rows, [exposed.sample]) if exposed.sample else None
    if not sample:
        raise DataError("naive Bayes needs ratings of items drawn at random", "a log with an open loop")
    items = sum(_count(exposed, "item_id", exposed.items).each(len))
    logged = fitting.count_ratings(exposed.rows, exposed.parts)
    return fitting.rating_propensities(logged, sample, _count_users(exposed) * items)


def read_given(engine: Engine, path: str) -> pa.Table:
    """Read a table's item_id and propensity."""
    given = open_numbers(engine, path, "propensity", "propensities")
    names = ("item_id", "propensity")
    return pa.concat_tables(table for task in given.each(names, list) for table in task)


def open_numbers(engine: Engine, path: str, value: str, what: str) -> ChangedRows:
    """Open a table's item_id[, user_id] and a number.

    A value that is no number is NULL.

    Raises:
        FallbackToSpark: only Spark reads the path.
    """
    table = open_input(engine, path, ["item_id", value], what)
    ids = tuple(name for name in IDS if name in table.schema.names)
    change = partial(type_rows, rules=Typing(ids, {value: "double"}, what, table.where))
    return ChangedRows(table.rows, (*ids, value), change, (*ids, value))


def _fit_features(exposed: ExposureLog, settings: Propensities, *, cells: bool) -> None:
    """Fit over the catalogue.

    Without a catalogue: over items with features, else over shown items.
    """
    store, engine = exposed.store, exposed.store.engine
    paths = {"user_id": settings.user_features, "item_id": settings.item_features}
    of = {key: logistic.open_features(engine, path, key) for key, path in paths.items() if path}
    of_users, of_items = of.get("user_id"), of.get("item_id")
    select = partial(fitting.select_rows, parts=exposed.parts)
    rows = ChangedRows(exposed.rows, (*IDS, "part"), select, IDS)
    catalogue = exposed.items or of_items or rows
    items = logistic.join_items(logistic.list_ids(catalogue, "item_id"), of_items)
    names_f, names_g = (one.names[1:] if one else () for one in (of_users, of_items))
    rule = logistic.CellRule(share_table(store.scratch, items), names_f, names_g, settings.rate, SEED)
    tasks = engine.count_tasks(sum(rows.each(("user_id",), count_table_rows)))
    name, floor = method_name(store, settings), settings.floor or 0.0
    with logistic.deal_cells(engine, rows, of_users, tasks).keep() as dealt:
        rule, n_users = logistic.measure_features(dealt, rule)
        odds = logistic.fit_odds(dealt, rule)
        chances = logistic.open_item_propensities(engine, dealt, rule, odds, floor)
        _append_tasks(exposed, PROPENSITIES, chances, name)
    if cells:
        dealt = logistic.deal_cells(engine, rows, of_users, engine.count_tasks(n_users * len(items)))
        chances = logistic.open_cell_propensities(dealt, rule, odds, floor)
        _append_tasks(exposed, CELL_PROPENSITIES, chances, name)


def _law_row(
    observed: fitting.Histogram, fitted: fitting.FittedPropensities, replicates: int
) -> dict[str, Any]:
    assert fitted.law is not None
    p = goodness(observed.count_x, observed.items_x, fitted.law, replicates, SEED) if replicates else None
    facts: dict[str, Any] = {**vars(fitted), **vars(observed), **asdict(fitted.law)}
    facts |= {"interactions": observed.interactions, "fitted_by": fitted.law.method}
    facts |= {"p": p, "replicates": replicates}
    return {name: facts[name] for name in POWER_LAWS.names if name in facts and name != "method"}
