"""Fit P(shown | user and item features) by logistic regression.

It runs over all cells of a log. Positives are the log's cells. Each other cell is drawn by hash with
probability `rate`, and the intercept is lowered by -ln(rate), as if all cells were used (King and Zeng
2001, "Logistic regression in rare events data", section 4.1; used for ratings by Schnabel et al. 2016,
section 5.2). One shuffle brings a user's rows to a task, which hashes the user's cells anew in each Newton
step. Sums over users are exact, so neither the runner nor the number of tasks changes a bit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from operator import add
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.exposure.kernels import shown_cells as kernel
from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.hashed_ids import flatten_texts, hash_ids
from recbench_spark.core.sums import Sums, exact_sums
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.sources.arrow_rows import as_double, distinct_ids, encode_ids, find_indices, read_column
from recbench_spark.sources.input_rows import open_input
from recbench_spark.storage import blocks
from recbench_spark.storage.blocks import ChangedRows, Engine, Rows, Side, Sides, TaskRows
from recbench_spark.storage.packed_blocks import unpack_blocks
from recbench_spark.storage.shared_arrays import SharedRows

STEP = 2.0**-12
"""The users' part in the log-odds is rounded to this step: a propensity is wrong by at most 0.013 %."""

CELLS_AT_ONCE = 1 << 20
"""Cells held by a task: some users', or some items x user groups."""

CELL = ("user_id", "item_id")


@dataclass(frozen=True)
class CellRule:
    """Features and draw by which tasks sum their users' cells.

    Attributes:
        items: item_id and each item's features, in byte order.
        of_users: columns with user features.
        of_items: columns with item features.
        rate: drawn share of cells outside the log.
        seed: the draw's seed.
        middle_f, half_f: each feature's middle and half range, users' features first: Newton's steps need
            features of one size.
    """

    items: SharedRows
    of_users: tuple[str, ...]
    of_items: tuple[str, ...]
    rate: float
    seed: int
    middle_f: Floats | float = 0.0
    half_f: Floats | float = 1.0

    def scale(self, of_user_uf: Floats, of_item_ig: Floats) -> tuple[Floats, Floats]:
        """Scale user and item features to -1..1."""
        n = len(self.of_users)
        middle_f, half_f = self.middle_f, self.half_f
        assert isinstance(middle_f, np.ndarray) and isinstance(half_f, np.ndarray)
        return (of_user_uf - middle_f[:n]) / half_f[:n], (of_item_ig - middle_f[n:]) / half_f[n:]


@dataclass(frozen=True)
class Odds:
    """Log-odds that a cell is shown.

    The log-odds are intercept + users @ features + items @ features.
    """

    intercept: float
    users: tuple[float, ...]
    items: tuple[float, ...]


# ---------------------------------------------------------------------------------------- features


def open_features(engine: Engine, path: str, key: str) -> ChangedRows:
    """Open key, 0, 1 ...: the id, and all other columns.

    Columns 0, 1 ... are numbers; NaN where a value is none.

    Raises:
        SchemaError: the table has no other column, or one without numbers.
    """
    table = open_input(engine, path, [key], what := f"features of {key}")
    columns = [name for name in table.schema.names if name != key]
    if not columns:
        raise SchemaError(
            f"{what} has no column beside {key}", "give one number per feature; write categories as 0 and 1"
        )
    names = (key, *map(str, range(len(columns))))
    change = partial(_read_numbers, key=key, columns=columns, what=what)
    return ChangedRows(table.rows, (key, *columns), change, names)


def _read_numbers(rows: pa.Table, key: str, columns: Sequence[str], what: str) -> pa.Table:
    ids = encode_ids(rows, key, what)[1].cast(pa.string())
    numbers = [as_double(read_column(rows, name, what), name) for name in columns]
    return pa.table([ids, *numbers], [key, *map(str, range(len(columns)))]).filter(pc.is_valid(ids))


def list_ids(rows: Rows, key: str) -> pa.Array:
    """Return distinct ids in byte order; the driver holds them."""
    ids = distinct_ids(rows.each((key,), partial(_list_distinct, key=key)))
    return ids.take(pc.array_sort_indices(ids))


def _list_distinct(tables: Iterable[pa.Table], key: str) -> pa.Array:
    return distinct_ids([table.column(key) for table in tables])


def join_items(ids: pa.Array, features: ChangedRows | None) -> pa.Table:
    """Return item_id and features; the driver holds them.

    Raises:
        DataError: an item has no row or two, or a feature is not a number.
    """
    if features is None:
        return pa.table({"item_id": ids})
    tasks = features.each(features.names, partial(_take_items, ids=ids))
    joined = _look_up(ids, pa.concat_tables(chain.from_iterable(tasks)), "item_id", features.names[1:])
    joined.facts.refuse("item_id")
    return pa.table([ids, *joined.values_rf.T], list(features.names))


def _take_items(tables: Iterable[pa.Table], ids: pa.Array) -> list[pa.Table]:
    return [table.filter(pc.is_in(table.column("item_id"), value_set=ids)) for table in tables]


class FeatureFacts(NamedTuple):
    """Counts about some ids, and their features' ranges.

    The counts are the ids, ids without all features, and further rows.
    """

    n: int
    holes: int
    doubles: int
    low_f: Floats
    high_f: Floats

    def refuse(self, key: str) -> None:
        """Refuse ids without exactly one row of numbers.

        Raises:
            DataError: there are such ids.
        """
        if self.holes:
            what = f"features of {key}: {self.holes} ids of {key} without all features"
            raise DataError(what, "give one row of numbers per id")
        if self.doubles:
            raise DataError(f"features of {key}: two rows of one {key}", "one row each")


class Joined(NamedTuple):
    """Some ids' features, and facts about them."""

    values_rf: Floats
    facts: FeatureFacts


def _look_up(ids: pa.Array, stored: pa.Table | None, key: str, names: Sequence[str]) -> Joined:
    """Return features by id, (r, f); NaN where missing."""
    values_rf, doubles = np.full((len(ids), len(names)), np.nan), 0
    if stored is not None and names:
        place_r = find_indices(ids, stored.column(key).combine_chunks())
        values_rf[place_r >= 0] = _stack(stored, names)[place_r[place_r >= 0]]
        own = pc.sum(pc.is_in(stored.column(key), value_set=ids), min_count=0).as_py()
        doubles = own - int((place_r >= 0).sum())
    holes = int((~np.isfinite(values_rf)).any(axis=1).sum())
    low_f, high_f = values_rf.min(axis=0, initial=np.inf), values_rf.max(axis=0, initial=-np.inf)
    return Joined(values_rf, FeatureFacts(len(ids), holes, doubles, low_f, high_f))


# --------------------------------------------------------------------------------------------- fit


def deal_cells(engine: Engine, rows: Rows, features: ChangedRows | None, tasks: int) -> TaskRows:
    """Deal a log's ids, and users' features, by user."""
    sides = [Side(0, rows, CELL)]
    if features is not None:
        sides.append(Side(1, features, features.names))
    return blocks.deal_sides(engine, sides, tasks)


def measure_features(cells: TaskRows, rule: CellRule) -> tuple[CellRule, int]:
    """Return the rule with features' ranges, and the user count.

    Raises:
        DataError: a user has no features or two rows of them, or a feature is not a number.
    """
    parts = cells.each(partial(_find_facts, rule=rule))
    items = _stack(rule.items.dataset().to_table(), rule.of_items)
    if not parts or not len(items):
        raise DataError("no interactions to fit propensities to", "check the part and the log")
    users = reduce(_add_facts, parts)
    users.refuse("user_id")
    low_f = np.append(users.low_f, items.min(axis=0, initial=np.inf))
    high_f = np.append(users.high_f, items.max(axis=0, initial=-np.inf))
    half_f = (high_f - low_f) / 2
    return replace(rule, middle_f=low_f + half_f, half_f=np.where(half_f > 0, half_f, 1.0)), users.n


def _stack(rows: pa.Table, names: Sequence[str]) -> Floats:
    columns = [rows.column(name).to_numpy() for name in names]
    return np.column_stack(columns) if columns else np.zeros((len(rows), 0))


def _add_facts(one: FeatureFacts, other: FeatureFacts) -> FeatureFacts:
    n, holes, doubles = (a + b for a, b in zip(one[:3], other[:3], strict=True))
    low_f, high_f = np.minimum(one.low_f, other.low_f), np.maximum(one.high_f, other.high_f)
    return FeatureFacts(n, holes, doubles, low_f, high_f)


def fit_odds(cells: TaskRows, rule: CellRule) -> Odds:
    """Fit the log-odds that a cell is in the log.

    Each cell costs one hash in each step.

    Args:
        cells: the result of `deal_cells`, kept.
        rule: the result of `measure_features`.

    Raises:
        DataError: the log has no cell, no cell outside it was drawn, or the fit does not converge.
    """

    def sum_at(weights_p: Floats) -> Floats:
        return reduce(add, cells.each(partial(_sum_cells, rule=rule, weights_p=weights_p))).floats()

    n = len(rule.of_users)
    scaled_p = kernel.climb(sum_at, 1 + n + len(rule.of_items))
    weights_f = scaled_p[1:] / rule.half_f
    intercept = float(scaled_p[0] - weights_f @ rule.middle_f) + math.log(rule.rate)
    return Odds(intercept, tuple(weights_f[:n].tolist()), tuple(weights_f[n:].tolist()))


# -------------------------------------------------------------------------------------- propensities


def open_item_propensities(
    engine: Engine, cells: TaskRows, rule: CellRule, odds: Odds, floor: float
) -> TaskRows:
    """Return item_id, propensity: the mean chance over users.

    Users are grouped by their part in the log-odds, rounded to STEP. The few thousand different values are
    sent to tasks, for any number of users. `floor`: smaller propensities are raised to it.
    """
    groups = sum(cells.each(partial(_count_steps, rule=rule, odds=odds)), start=Counter[int]())
    part_n = np.array(sorted(groups), np.float64)
    times_n = np.array([groups[int(step)] for step in part_n], np.float64)
    most = max(1, CELLS_AT_ONCE // len(part_n))
    n_items = rule.items.dataset().count_rows()
    pieces = [(start, most) for start in range(0, n_items, most)]
    items = blocks.PieceRows(engine, pieces, partial(_read_items, items=rule.items))
    change = partial(_average, odds=odds, groups=(part_n * STEP, times_n), floor=floor)
    return items.open(("item_id", *rule.of_items), change, ("item_id", "propensity"))


def open_cell_propensities(cells: TaskRows, rule: CellRule, odds: Odds, floor: float) -> TaskRows:
    """Return user_id, item_id, propensity for every cell.

    The table has users x items rows. No shuffle.
    """
    return cells.then(partial(_list_cells, rule=rule, odds=odds, floor=floor), (*CELL, "propensity"))


# ------------------------------------------------------------------------------------ what tasks do


class TaskUsers(NamedTuple):
    """A task's users: ids, features, and items shown to them."""

    ids: pa.Array
    features: Joined
    user_r: Ints
    items_r: pa.ChunkedArray


def _read_users(sides: Sides, rule: CellRule) -> TaskUsers:
    log, stored = (unpack_blocks(sides.get(number, [])) for number in (0, 1))
    log = pa.table({name: pa.array([], pa.string()) for name in CELL}) if log is None else log
    ids = distinct_ids([log.column("user_id")])
    joined = _look_up(ids, stored, "user_id", rule.of_users)
    return TaskUsers(ids, joined, find_indices(log.column("user_id"), ids), log.column("item_id"))


def _find_facts(sides: Sides, rule: CellRule) -> FeatureFacts:
    return _read_users(sides, rule).features.facts


def _sum_cells(sides: Sides, rule: CellRule, weights_p: Floats) -> Sums:
    """Sum the cells of a task's users, exactly."""
    total = exact_sums(np.zeros((0, kernel.count_sums(len(weights_p)))))
    users, items = _read_users(sides, rule), rule.items.dataset().to_table()
    of_user_uf, of_item_ig = rule.scale(users.features.values_rf, _stack(items, rule.of_items))
    for part, shown_ui, drawn_ui in _draw_users(users, items, rule):
        used_ui = shown_ui | drawn_ui
        total += exact_sums(kernel.sum_users(used_ui, shown_ui, of_user_uf[part], of_item_ig, weights_p))
    return total


def _draw_users(users: TaskUsers, items: pa.Table, rule: CellRule) -> Iterator[tuple[slice, Bools, Bools]]:
    """Yield users in pieces, with shown and drawn cells."""
    n, texts = len(items), flatten_texts(items.column("item_id"))
    item_r = find_indices(users.items_r, items.column("item_id").combine_chunks())
    known_r = item_r >= 0
    cell_r = np.unique(users.user_r[known_r] * n + item_r[known_r])
    hash_u, most = hash_ids(users.ids), max(1, CELLS_AT_ONCE // n)
    for start in range(0, len(hash_u), most):
        part = slice(start, start + most)
        drawn_ui = kernel.draw_cells(hash_u[part], texts, rule.rate, rule.seed)
        shown_ui = np.zeros(drawn_ui.shape, bool)
        first, last = np.searchsorted(cell_r, [start * n, start * n + shown_ui.size])
        shown_ui.reshape(-1)[cell_r[first:last] - start * n] = True
        yield part, shown_ui, drawn_ui


def _count_steps(sides: Sides, rule: CellRule, odds: Odds) -> Counter[int]:
    step_u = np.rint(_dot(_read_users(sides, rule).features.values_rf, odds.users) / STEP)
    return Counter(step_u.astype(np.int64).tolist())


def _dot(values_rf: Floats, weights: Sequence[float]) -> Floats:
    """Return the product, added in feature order on any machine."""
    total_r = np.zeros(len(values_rf))
    for values_r, weight in zip(values_rf.T, weights, strict=True):
        total_r += values_r * weight
    return total_r


def _read_items(
    pieces: Iterable[tuple[int, int]], columns: Sequence[str], items: SharedRows
) -> Iterator[pa.Table]:
    for start, most in pieces:
        yield items.dataset().to_table(columns=list(columns)).slice(start, most)


def _average(items: pa.Table, odds: Odds, groups: tuple[Floats, Floats], floor: float) -> pa.Table:
    ids, *features = items.column_names
    logit_i = odds.intercept + _dot(_stack(items, features), odds.items)
    chance_i = np.maximum(kernel.mean_chances(logit_i, *groups), floor)
    return pa.table({"item_id": items.column(ids), "propensity": chance_i})


def _list_cells(sides: Sides, rule: CellRule, odds: Odds, floor: float) -> pa.Table:
    users, items = _read_users(sides, rule), rule.items.dataset().to_table()
    of_user_u = odds.intercept + _dot(users.features.values_rf, odds.users)
    of_item_i = _dot(_stack(items, rule.of_items), odds.items)
    with np.errstate(over="ignore"):
        chance_c = 1 / (1 + np.exp(-(of_user_u[:, None] + of_item_i)))
    user_c, item_c = (index.reshape(-1) for index in np.indices(chance_c.shape))
    places = ((user_c, users.ids), (item_c, items.column("item_id").combine_chunks()))
    ids = [pa.DictionaryArray.from_arrays(pa.array(at_c, pa.int32()), texts) for at_c, texts in places]
    return pa.table([*ids, pa.array(np.maximum(chance_c.reshape(-1), floor))], [*CELL, "propensity"])
