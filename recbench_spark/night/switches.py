"""Build systems that switch between two models.

A switch uses one model's values up to some given ratings, and another one's from then on. Where the file
says `auto`, the place (and, among many models, the pair) with the largest mean over the points is chosen
on part `valid` alone, so the test users have no say in it. Its values are taken from stored ones: nothing
is ranked again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.curves.curve_batches import (
    CURVE_KEY,
    CURVE_ROWS,
    nest_lists,
    read_values,
    split_curves,
)
from recbench_spark.analyses.curves.kernels.crossings import choose_pair, find_place
from recbench_spark.config import CURVE_METRIC, SwitchModel
from recbench_spark.core.arrays import Floats
from recbench_spark.core.checks import Check
from recbench_spark.errors import DataError
from recbench_spark.night.night import BenchmarkNight, find_newest_runs
from recbench_spark.night.run_keys import choose_curve_cutoff, list_switched_models
from recbench_spark.schemas import CURVE_VALUES, LEARNING_CURVES
from recbench_spark.storage.blocks import Side, Sides, deal_sides
from recbench_spark.storage.commits import Addition, add_blocks
from recbench_spark.storage.packed_blocks import unpack_blocks

VALID = "valid"

FIRST, THEN = 0, 1
"""Numbers of the sides: the two models' values."""


@dataclass(frozen=True)
class SwitchChoice:
    """A switch: two models, and the point between them.

    Attributes:
        first, then: the models.
        given: the largest number of given ratings at which `first` is used; 0: never.
        origin: in words, where the place was chosen.
    """

    first: str
    then: str
    given: int
    origin: str

    def describe(self) -> str:
        """Describe the switch in words, for `runs.budget`.

        >>> SwitchChoice("popular", "als", 5, "by the file").describe()
        'popular up to 5 given ratings, then als: chosen by the file'
        """
        return f"{self.first} up to {self.given} given ratings, then {self.then}: chosen {self.origin}"

    def make_check(self) -> Check:
        """Make a check that tells the choice."""
        return Check("switch: given ratings", self.given, None, "info", self.describe())


def splice_switch(night: BenchmarkNight, model: SwitchModel, run_id: str) -> tuple[SwitchChoice, Addition]:
    """Choose a switch, and return the user values it has.

    The two models' rows are joined by user: one shuffle for both.

    Raises:
        DataError: a model in the switch has no run tonight, or part `valid` has too few users.
    """
    context = night.curves
    assert context is not None
    runs = _find_runs(night, model)
    choice = choose_switch(night, model, runs)
    if not all(night.store.has(CURVE_VALUES, "run_id", runs[name]) for name in (choice.first, choice.then)):
        raise DataError(
            f"model {model.name}: {choice.first} and {choice.then} have no values per user any more",
            f"retention has removed them; run the night again with --force, or leave out {model.name}",
        )
    # On the users who chose the place, the switch looks better than it is.
    parts = [part for part in night.benchmark.evaluation.parts if model.at != "auto" or part != VALID]
    place = count_before(context.plan.request.rule.given, choice.given)
    store, names = night.store, tuple(CURVE_ROWS.names)
    sides = [
        Side(number, store.open_rows(CURVE_VALUES, "run_id", [runs[name]]), names)
        for number, name in ((FIRST, choice.first), (THEN, choice.then))
    ]
    dealt = deal_sides(store.engine, sides, store.engine.count_tasks(0))
    spliced = dealt.then(partial(splice_values, parts=parts, place=place), names)
    return choice, add_blocks(CURVE_VALUES, run_id, spliced)


def _find_runs(night: BenchmarkNight, model: SwitchModel) -> dict[str, str]:
    """Return tonight's runs of a switch's models, by model."""
    newest = find_newest_runs(night, [("logical_date", "=", night.logical_date)])
    wanted = [one.name for one in list_switched_models(night.benchmark, model)]
    runs = {name: str(newest[name]["run_id"]) for name in wanted if name in newest}
    missing = [name for name in wanted if name not in runs]
    if missing:
        raise DataError(
            f"model {model.name}: model {missing[0]} has not succeeded tonight", "its values are needed"
        )
    return runs


def choose_switch(night: BenchmarkNight, model: SwitchModel, runs: dict[str, str]) -> SwitchChoice:
    """Return the file's switch, or the best on validation users.

    The best one has the largest mean on part `valid`.

    Raises:
        DataError: part `valid` has a point with too few users.
    """
    if model.at != "auto":
        assert model.first is not None and model.then is not None
        return SwitchChoice(model.first, model.then, model.at, "by the file")
    k = choose_curve_cutoff(night.benchmark)
    given = night.curves.plan.request.rule.given if night.curves else ()
    means = _read_means(night, runs, k)
    if model.first is not None and model.then is not None:
        first, then = model.first, model.then
        switch = find_place(means[first], means[then], given)
    else:
        first, then, switch = choose_pair(means, given)
    origin = f"on part {VALID} by the mean of {CURVE_METRIC}@{k} over the points"
    return SwitchChoice(first, then, switch.given, origin)


def _read_means(night: BenchmarkNight, runs: dict[str, str], k: int) -> dict[str, Floats]:
    """Read the mean curves on part `valid`, (l,) by model."""
    filters = [
        ("run_id", "in", sorted(runs.values())),
        ("part", "=", VALID),
        ("metric", "=", CURVE_METRIC),
        ("k", "=", k),
    ]
    rows = sorted(night.store.rows(LEARNING_CURVES, filters), key=lambda row: row["given"])
    means = {}
    for name, run_id in runs.items():
        values = [row["value"] for row in rows if row["run_id"] == run_id]
        if not values or None in values:
            raise DataError(
                f"part '{VALID}' has a point with too few users to choose a switch",
                "a larger split.held_out.valid, or fewer points",
            )
        means[name] = np.array(values)
    return means


def count_before(given: Sequence[int], switch: int) -> int:
    """Count the points at which the first model is used.

    >>> count_before([1, 2, 5, 20], 5), count_before([1, 2, 5, 20], 0)
    (3, 0)
    """
    return sum(point <= switch for point in given)


def splice_values(sides: Sides, parts: Sequence[str], place: int) -> pa.Table:
    """Join one run's early values with another's later ones.

    Args:
        sides: rows of `curve_values` of two runs with the same split and plan; a task has all of its
            users.
        parts: the parts the switch has.
        place: number of points of the first one.
    """
    first, then = (unpack_blocks(sides.get(number, [])) for number in (FIRST, THEN))
    if first is None or then is None:
        return CURVE_ROWS.empty_table()
    later = dict(_list_curves(then))
    spliced = [
        _splice_curve(rows, later[key], place)
        for key, rows in _list_curves(first)
        if key[0] in parts and key in later
    ]
    return pa.Table.from_batches(spliced, CURVE_ROWS)


def _list_curves(table: pa.Table) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
    """Yield each curve's part, metric and definition, with rows."""
    for rows in split_curves(table.select(CURVE_ROWS.names).combine_chunks().to_batches()[0]):
        yield tuple(rows.column(name)[0].as_py() for name in CURVE_KEY[1:]), rows


def _splice_curve(rows: pa.RecordBatch, later: pa.RecordBatch, place: int) -> pa.RecordBatch:
    at_u = pc.index_in(rows.column("user_id"), later.column("user_id"))
    rows, at_u = rows.filter(pc.is_valid(at_u)), at_u.drop_null()
    values = np.concatenate(
        [read_values(rows)[:, :, :place], read_values(later)[at_u.to_numpy(), :, place:]], axis=2
    )
    return rows.set_column(CURVE_ROWS.names.index("values"), CURVE_ROWS.field("values"), nest_lists(values))
