"""Item propensities estimated from how often a log shows them.

The log may have any size. A propensity is a function of an item's count. The histogram of counts, which has
at most sqrt(2 n) rows for n interactions, goes to the driver, is fitted there, and returns to the tasks as
a small table by count. Axes: x different counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.exposure.kernels import power_law, propensities
from recbench_spark.analyses.exposure.kernels.power_law import PowerLaw
from recbench_spark.config import Propensities
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.errors import DataError
from recbench_spark.storage.blocks import ChangedRows, Engine, Rows, Side, Sides, TaskRows, deal_sides
from recbench_spark.storage.packed_blocks import unpack_blocks

COUNTS = ("user_id", "n")
"""Columns of counted ids; rows are dealt to tasks by the first one, which may hold items."""


@dataclass(frozen=True)
class Histogram:
    """Ascending item counts, items with each count, and log users."""

    count_x: Ints
    items_x: Ints
    users: int

    @property
    def interactions(self) -> int:
        """Count the log's rows."""
        return int(self.count_x @ self.items_x)


@dataclass(frozen=True)
class FittedPropensities:
    """Each count's propensity, fitted law, scale factor, clipped items."""

    propensity_x: Floats
    law: PowerLaw | None
    factor: float
    raised: int
    lowered: int


def select_rows(rows: pa.Table, parts: Sequence[str]) -> pa.Table:
    """Return some parts' rows (none: all rows).

    Rows without a part are training data.
    """
    if not parts:
        return rows
    column = rows.column("part").cast(pa.string())
    wanted = pc.is_in(column, pa.array(parts, pa.string()))
    return rows.filter(pc.or_(wanted, pc.is_null(column)) if "train" in parts else wanted)


def count_ids(
    engine: Engine, rows: Rows, name: str, parts: Sequence[str], others: Rows | None = None
) -> TaskRows:
    """Count the rows of each user or item: user_id, n.

    Items stand in the column `user_id` too. Tasks count the rows they read; one shuffle adds up these
    counts.

    Args:
        engine: the runner.
        rows: user_id or item_id, and part.
        name: user_id or item_id.
        parts: the parts that count.
        others: further ids, which count 0 without a row.
    """
    count = partial(_count_rows, name=name, parts=parts)
    sides = [Side(0, ChangedRows(rows, (name, "part"), count, COUNTS), COUNTS)]
    if others is not None:
        zero = partial(_count_none, name=name)
        sides.append(Side(1, ChangedRows(others, (name,), zero, COUNTS), COUNTS))
    return deal_sides(engine, sides, engine.count_tasks(0)).then(_add_counts, COUNTS)


def _count_rows(rows: pa.Table, name: str, parts: Sequence[str]) -> pa.Table:
    counts = select_rows(rows, parts).column(name).cast(pa.string()).value_counts()
    return pa.table([counts.field(0), counts.field(1)], list(COUNTS))


def _count_none(rows: pa.Table, name: str) -> pa.Table:
    ids = rows.column(name).cast(pa.string())
    return pa.table([ids, np.zeros(len(rows), np.int64)], list(COUNTS))


def _add_counts(sides: Sides) -> pa.Table:
    """Add up the counts for a task's ids."""
    rows = unpack_blocks([block for blocks in sides.values() for block in blocks])
    assert rows is not None
    added = rows.group_by("user_id").aggregate([("n", "sum")])
    return pa.table([added.column("user_id"), added.column("n_sum")], list(COUNTS))


def make_histogram(counts: TaskRows, users: int) -> Histogram:
    """Return the histogram of item counts.

    A task returns one row per different count.
    """
    items = sum(counts.each(_count_counts), start=Counter[int]())
    if not users:
        raise DataError("no interactions to fit propensities to", "check the part and the log")
    count_x = np.array(sorted(items), np.int64)
    return Histogram(count_x, np.array([items[n] for n in count_x.tolist()], np.int64), users)


def _count_counts(rows: pa.Table) -> Counter[int]:
    pairs = rows.column("n").value_counts()
    return Counter(dict(zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True)))


def fit_propensities(observed: Histogram, settings: Propensities) -> FittedPropensities:
    """Compute each count's propensity: fitted, scaled, then clipped.

    A propensity is a fitted power law or a share of users.

    Raises:
        DataError: a power law is fitted to fewer than two different counts, or the counts follow none.
    """
    law = None
    if settings.method in propensities.POWERS:
        law = power_law.fit(observed.count_x, observed.items_x, settings.law)
        law = replace(law, against=power_law.alternatives(observed.count_x, observed.items_x, law))
        power_law.check(law)
        with np.errstate(over="ignore"):
            value_x = propensities.POWERS[settings.method](observed.count_x, law)
        if not np.isfinite(value_x).all():
            raise power_law.no_law(law, "propensities are too large for numbers")
    else:
        value_x = propensities.relative_frequency(observed.count_x, observed.users)
    per_user = observed.interactions / observed.users
    factor = propensities.scale(value_x, observed.items_x, settings.scale, per_user)
    value_x = value_x * factor
    if settings.floor is None:
        return FittedPropensities(value_x, law, factor, 0, 0)
    clipped = propensities.clip(value_x, observed.items_x, settings.floor)
    return FittedPropensities(clipped.propensity, law, factor, clipped.raised, clipped.lowered)


def look_up_propensities(rows: pa.Table, observed: Histogram, fitted: FittedPropensities) -> pa.Table:
    """Return item_id, propensity for a task's counts."""
    place_r = np.searchsorted(observed.count_x, rows.column("n").to_numpy())
    return pa.table({"item_id": rows.column("user_id"), "propensity": fitted.propensity_x[place_r]})


def count_ratings(rows: Rows, parts: Sequence[str]) -> Counter[float]:
    """Count the rows with each rating."""
    counted = rows.each(("rating", "part"), partial(_count_ratings, parts=parts))
    return sum(counted, start=Counter[float]())


def _count_ratings(tables: Iterable[pa.Table], parts: Sequence[str]) -> Counter[float]:
    total = Counter[float]()
    for table in tables:
        pairs = select_rows(table, parts).column("rating").value_counts()
        total.update(dict(zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True)))
    return total


def rating_propensities(logged: Counter[float], sample: Counter[float], cells: int) -> pa.Table:
    """Return rating, propensity by naive Bayes (see the kernel).

    The table has a row for each rating in the log.

    Args:
        logged: log rows by rating.
        sample: ratings in cells drawn uniformly.
        cells: the log's users x the catalogue's items.
    """
    ratings = sorted(logged)
    logged_r, sample_r = (np.array([part[rating] for rating in ratings]) for part in (logged, sample))
    propensity_r = propensities.naive_bayes(logged_r, sample_r, cells)
    is_known = ~np.isnan(propensity_r)
    return pa.table({"rating": np.array(ratings)[is_known], "propensity": propensity_r[is_known]})
