"""Write propensities of items to `propensities`, of ratings to `rating_propensities`, and fitted power
laws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from recbench_spark.config import Propensities
from recbench_spark.data.arrow_files import read_table
from recbench_spark.data.arrow_rows import as_double, read_column
from recbench_spark.errors import DataError
from recbench_spark.kernels.estimators.power_law import PowerLaw, goodness
from recbench_spark.nightly.commits import Addition, commit
from recbench_spark.nightly.propensity_names import SEED, ExposureLog, method_name
from recbench_spark.protocol import propensities as fitting
from recbench_spark.schemas import POWER_LAWS, PROPENSITIES, RATING_PROPENSITIES, Table
from recbench_spark.storage.arrow_store import ArrowStore, require_session
from recbench_spark.storage.blocks import Rows

if TYPE_CHECKING:
    from recbench_spark.storage.arrow_store import AnyStore


def write_propensities(
    exposed: ExposureLog, settings: Propensities, replicates: int = 0, *, cells: bool = False
) -> PowerLaw | None:
    """Fit and append propensities once for each name (`method_name`); return the fitted power law, if any.

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
        _append_rows(exposed, settings, PROPENSITIES, read_given(exposed.store, str(settings.path)))
        return None
    if settings.method == "logistic_regression":
        frames = open_frames(exposed.store, "propensities by logistic regression")
        frames.fit_features(exposed, settings, cells)
        return None
    with _count(exposed, "item_id", exposed.items).keep() as counts:
        observed = fitting.make_histogram(counts, _count_users(exposed))
        fitted = fitting.fit_propensities(observed, settings)
        name = method_name(exposed.store, settings)
        look_up = partial(_look_up, change=counts.change, observed=observed, fitted=fitted, name=name)
        rows = counts.then(look_up, ("item_id", "propensity", "method"))
        parts = [(rows, {"split_id": exposed.split_id})]
        commit(exposed.store, Addition(PROPENSITIES, f"{exposed.split_id}/{name}", parts=parts))
    if fitted.law:
        row = _law_row(observed, fitted, replicates)
        _append_rows(exposed, settings, POWER_LAWS, pa.Table.from_pylist([row]))
    return fitted.law


def _look_up(rows: Any, change: Any, observed: Any, fitted: Any, name: str) -> pa.Table:
    """Return the propensities of a task's items."""
    looked = fitting.look_up_propensities(change(rows), observed, fitted)
    return looked.append_column("method", pa.repeat(name, len(looked)))


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


def read_given(store: AnyStore, path: str) -> pa.Table:
    """Read item_id and propensity of a table."""
    if not isinstance(store, ArrowStore):
        given: pa.Table = open_frames(store, "propensities").read_given(store, path)
        return given
    (table,) = read_tables([path], ["item_id", "propensity"], what="propensities")
    return table


def read_tables(paths: Iterable[str], columns: Sequence[str], what: str) -> Iterator[pa.Table]:
    """Yield whole tables, with ids as text; the last column is a number."""
    *ids, value = columns
    for path in paths:
        table = read_table(path, ["item_id", value], what)
        texts = [table.column(name).cast(pa.string()) for name in ids]
        yield pa.table([*texts, as_double(read_column(table, value, what), value)], [*columns])


def open_frames(store: AnyStore, what: str) -> Any:
    """Return the module of what Spark alone does. Raises FallbackToSpark: the warehouse has none."""
    require_session(store, what)
    from recbench_spark.nightly import exposure_frames  # noqa: PLC0415

    return exposure_frames


def _law_row(
    observed: fitting.Histogram, fitted: fitting.FittedPropensities, replicates: int
) -> dict[str, Any]:
    assert fitted.law is not None
    p = goodness(observed.count_x, observed.items_x, fitted.law, replicates, SEED) if replicates else None
    facts: dict[str, Any] = {
        **asdict(fitted.law),
        "fitted_by": fitted.law.method,
        "p": p,
        "replicates": replicates,
        "interactions": observed.interactions,
        "users": observed.users,
        "factor": fitted.factor,
        "raised": fitted.raised,
        "lowered": fitted.lowered,
    }
    names = {column.name for column in POWER_LAWS.columns} - {"method"}
    return {name: value for name, value in facts.items() if name in names}
