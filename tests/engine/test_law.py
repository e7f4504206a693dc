"""The law of measures: rows in 1, 3 or 17 pieces, in any order, give the same bits in every runner."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recbench_spark
from recbench_spark.analyses.comparisons.changes import ChangeRows, compute_changes
from recbench_spark.analyses.comparisons.comparisons import compare
from recbench_spark.analyses.comparisons.differences import ComparedRun
from recbench_spark.analyses.comparisons.flips import FlipPlan, ModelPair, find_smallest_flips
from recbench_spark.analyses.comparisons.paradoxes import ParadoxPlan, disagreement_measure
from recbench_spark.analyses.curves.batched import curve_measure
from recbench_spark.analyses.curves.crossings import find_crossings
from recbench_spark.analyses.exposure.debiased import estimation_measure
from recbench_spark.analyses.exposure.estimation_plan import EstimationPlan
from recbench_spark.analyses.exposure.exposure import Weights, weight_measure
from recbench_spark.analyses.exposure.kernels import exposure
from recbench_spark.analyses.exposure.kernels.exposure import EstimatorSettings
from recbench_spark.analyses.sampling.kernels import strata
from recbench_spark.analyses.sampling.sampled import correction_measures
from recbench_spark.config import Bootstrap
from recbench_spark.core.definitions import Definition
from recbench_spark.engine import measures as law
from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.measures import Measure, Pieces
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.evaluation.run_measures import map_user_values
from recbench_spark.metrics.accuracy import MetricPlan, rank_measure
from recbench_spark.metrics.beyond_accuracy import Facts
from recbench_spark.metrics.ceilings import ceiling_measure
from recbench_spark.metrics.item_labels import open_item_groups
from recbench_spark.metrics.listed import ListedCatalogue, list_measures
from recbench_spark.metrics.multiverse import multiverse_measure
from recbench_spark.metrics.pairs import pair_measure
from recbench_spark.metrics.ranking_counts import count_measure
from recbench_spark.ranking.batch_schemas import PROFILES, RANKED_USERS, USER_VALUES, to_ddl
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.storage.blocks import Engine, PieceRows, Rows, reduce_rows
from recbench_spark.storage.frame_blocks import FrameRows, reduce_frame
from recbench_spark.storage.shared_arrays import SharedRows
from tests import oracles
from tests.analyses.comparisons import test_beyond_means, test_changes, test_comparisons, test_slice_falls
from tests.analyses.curves import test_curve_crossings

PACKAGE = Path(recbench_spark.__file__).parent
USERS, ITEMS, DRAWS = 160, 60, 12
CHANCES = [1.0, 0.5, 0.25, 0.125]
FOUR = np.ones(4, dtype=int)
LISTED = (
    *("novelty", "mean_popularity", "aplt", "popularity_reo", "coverage", "gini", "entropy"),
    *(
        "popularity_rsp",
        "popularity_lift",
        "reo",
        "rsp",
        "group_recall",
        "exposure_share",
        "bias_disparity",
    ),
    *("calibration", "calibration_js", "category_diversity", "subtopic_recall"),
    *("serendipity", "serendipity_primitive"),
)
NAMES = ("ndcg", "recall", "map", "hit", "auc", "mrr")
PIECES = (1, 3, 17)
SOME = (1, 3, pytest.param(17, marks=pytest.mark.full))  # small batches take seven times as long


def plan(*names: str, **axes: Any) -> MetricPlan:
    return MetricPlan(names, (2, 5), Definition(threshold=3.0, **axes), Bootstrap(replicates=20))


def estimation() -> EstimationPlan:
    """Every estimator, with a reward model; the open loop needs none."""
    cuts = tuple(strata.cut("equal_count", n, np.array(CHANCES), FOUR, FOUR) for n in (2, 3))
    weights = Weights(8, 8.0, 5.0, np.array([1.0, 8.0]), np.array([3, 1]))
    return EstimationPlan(
        plan("ndcg", "recall", "hit", hit="count"), exposure.ESTIMATORS[1:],
        EstimatorSettings(3.0, 3.0, 2.0), "given", cuts,
        {"test": weights, "open_loop": weights}, ITEMS, "model", ("ndcg", 5),
    )  # fmt: skip


def catalogue(folder: Path) -> ListedCatalogue:
    """Two thirds of the items that lists hold."""
    columns = {
        "item_index": pa.array(range(40), pa.int32()),
        "item_id": [f"i{n}" for n in range(40)],
        "n_train": [n * n % 23 for n in range(40)],
    }
    pq.write_table(pa.table(columns), folder / "law.parquet")
    known = KnownItems(SharedRows(f"law-{folder.name}", (str(folder / "law.parquet"),)), 40)
    genres = {"item_id": columns["item_id"], "genre": [f"g{n % 5}" for n in range(40)]}
    labels = open_item_groups(LocalEngine(str(folder)), str(folder), pa.table(genres), ("genre", None))
    return ListedCatalogue(known, 40, Facts(30, None, 9), labels.join(known, 40))


PARADOX_PLAN = ParadoxPlan(
    tuple(ComparedRun(f"run{n}", f"model{n}", date(2026, 1, 1)) for n in range(3)),
    plan("ndcg", "auc"), (2, None), ("genre", "absent"), ("test", "open_loop"),
)  # fmt: skip

MAKERS: dict[str, Callable[[Path], dict[str, Measure]]] = {
    "accuracy.rank_measure": lambda _: {"ranks": rank_measure(plan(*NAMES))},
    "ceilings.ceiling_measure": lambda _: {"ceilings": ceiling_measure(plan(*NAMES, gain="linear"))},
    "ranking_counts.count_measure": lambda _: {"counts": count_measure(3.0)},
    "listed.list_measures": lambda folder: list_measures(
        plan(*LISTED),
        catalogue(folder),
    ),
    "sampled.correction_measures": lambda _: correction_measures(
        plan("ndcg", "hit", candidates="uniform"),
        ("rank_estimate", "monotone_least_squares", "maximum_likelihood"),
        DRAWS,
    ),
    # Fewer worlds: NDCG's ties are not varied.
    "multiverse.multiverse_measure": lambda _: {
        "multiverse": multiverse_measure(plan(*NAMES, ndcg_ties="expected"))
    },
    "debiased.estimation_measure": lambda _: {"estimates": estimation_measure(estimation())},
    "exposure.weight_measure": lambda _: {"weights": weight_measure(3.0)},
    "pairs.pair_measure": lambda _: {"pairs": pair_measure((2, 5))},
    "paradoxes.disagreement_measure": lambda _: {"disagreements": disagreement_measure(PARADOX_PLAN)},
}
"""Every function of the package that makes measures of rankings, by module and name."""

Inputs = Sequence[Rows]


@dataclass(frozen=True)
class Analysis:
    """An analysis that deals rows by user or by id first, so that its measures see all of one at once.

    Attributes:
        measures: the functions that make its measures.
        make: makes the tables that it reads.
        find: its result, from these rows on a runner and a number of tasks.
    """

    measures: tuple[str, ...]
    make: Callable[[], list[pa.Table]]
    find: Callable[[Engine, Inputs, int], Any]


def find_changes(engine: Engine, rows: Inputs, tasks: int) -> pa.Table:
    return compute_changes(engine, ChangeRows(*rows), test_changes.PLAN, tasks)


def find_flips(engine: Engine, rows: Inputs, tasks: int) -> Any:
    pairs = [ModelPair(side, "test", n, 0, 1 + n) for side in ("items", "users") for n in range(2)]
    metrics = PARADOX_PLAN.runs, ("ndcg", "recall"), (2, 5)
    return find_smallest_flips(rows[0], FlipPlan(*metrics, Definition(threshold=3.0), tuple(pairs)), tasks)


def make_curves() -> list[pa.Table]:
    """Rows of `curve_values` of three runs, with one list of cut-offs, as a run has it."""
    _, rows = test_curve_crossings.make_user_rows(60)
    rows = rows.filter(pa.array([ks == [1, 5] for ks in rows.column("ks").to_pylist()]))
    keys = pa.array([int(user[1:]) * 7_919**4 for user in rows.column("user_id").to_pylist()])
    return [rows.set_column(rows.column_names.index("user_key"), "user_key", keys)]


def find_curves(engine: Engine, rows: Inputs, tasks: int) -> pa.Table:
    return reduce_rows({"curves": curve_measure(Bootstrap(replicates=20))}, rows[0], tasks)["curves"]


ANALYSES = {
    "beyond means": Analysis(
        ("spreads.spread_measure", "preferences.compare_preferences"),
        test_beyond_means.draw_rows,
        lambda *given: [row for one in test_beyond_means.measure(*given) for row in one.to_pylist()],
    ),
    "changes": Analysis(
        ("changes.change_measure",), lambda: list(test_changes.draw_nights()[1:]), find_changes
    ),
    "comparisons": Analysis(
        ("comparisons.difference_measure",),
        lambda: [test_comparisons.draw_rows()],
        lambda _, rows, tasks: compare(rows[0], test_comparisons.PLAN, {}, tasks),
    ),
    "crossings": Analysis(
        ("crossings._crossing_measure",),
        lambda: [test_curve_crossings.make_user_rows(60)[1]],
        lambda _, rows, tasks: find_crossings(rows[0], test_curve_crossings.PLAN, tasks),
    ),
    "curves": Analysis(("batched.curve_measure",), make_curves, find_curves),
    "flips": Analysis(
        tuple(f"flips._{name}_measure" for name in ("start", "pass", "largest")),
        lambda: [make_rows()],
        find_flips,
    ),
    "slices": Analysis(
        ("slice_falls.slice_measure",), test_slice_falls.draw_rows, test_slice_falls.compare
    ),
}


def test_every_measure_of_the_package_is_under_the_law() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if " Measure(" in path.read_text()]
    calls = {
        f"{path.stem}.{function.name}"
        for path in files
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Measure"
    }
    known = {*MAKERS, *(name for one in ANALYSES.values() for name in one.measures)}
    assert calls == known, "a measure without a line in MAKERS or ANALYSES, or a line without a measure"


# ------------------------------------------------------------------------------------- rows


def make_rows() -> pa.Table:
    """Rankings with ties, users without lists or draws, slices, and rewards, over two parts."""
    draw = random.Random(7)
    reward_fields = [pa.field(f"{side}_rewards", pa.list_(pa.float64())) for side in ("truth", "listed")]
    schema = pa.schema([*RANKED_USERS, *PROFILES, *reward_fields, pa.field("run_id", pa.string())])
    return pa.Table.from_pylist([make_user(draw, n) for n in range(USERS)], schema=schema)


def make_user(draw: random.Random, n: int) -> dict[str, Any]:
    candidates = draw.sample(range(ITEMS), 0 if n % 17 == 0 else draw.randint(1, DRAWS))
    scores = {item: draw.randint(0, 24) / 4 for item in candidates}
    size = draw.randint(1, 8)
    known = candidates[: size // 2]
    others = [item for item in range(ITEMS) if item not in known]
    items = [*known, *draw.sample(others, size - len(known))]
    truth = {item: float(draw.randint(1, 5)) for item in items}
    rankings = oracles.make_rankings([(scores, truth)])
    top = None if n % 13 == 0 else [f"i{item}" for item in draw.sample(range(ITEMS), draw.randint(0, 5))]
    return {
        "user_id": f"u{n}",
        "run_id": f"run{n % 3}",
        "part": draw.choice(["test", "test", "open_loop"]),
        "user_key": draw.getrandbits(63),
        "item_ids": [f"i{item}" for item in items],
        "relevance": list(truth.values()),
        **{name: getattr(rankings, name).tolist() for name in ("above", "tied", "before")},
        "length": len(scores),
        "drawn": None if n % 7 == 0 else draw.choice([DRAWS, DRAWS, 9]),
        "pool": None if n % 7 == 0 else draw.randint(30, 50),
        "top_items": top if top is None or n % 5 else [*top, None],
        "slices": [("genre", [draw.choice(["x", "y", None]) for _ in items])],
        "propensity": [draw.choice(CHANCES) for _ in items],
        "truth_rewards": [draw.random() for _ in items],
        "listed_rewards": [draw.random() for _ in range(5)],
        "profile": draw.sample(range(40), n % 6),
        "closed": draw.sample(range(40), n % 5),
    }


def cut(rows: pa.Table, pieces: int) -> list[list[pa.RecordBatch]]:
    """Cut the rows into pieces of any sizes, in any order, each of some batches; two may be empty."""
    draw = np.random.default_rng(pieces)
    shuffled = rows.take(pa.array(draw.permutation(len(rows)))) if pieces > 1 else rows
    bounds = [0, *sorted(draw.integers(0, len(rows) + 1, pieces - 1).tolist()), len(rows)]
    return [
        shuffled.slice(start, end - start).combine_chunks().to_batches(max_chunksize=200 // pieces + 1)
        for start, end in pairwise(bounds)
    ]


def bits(results: dict[str, pa.Table]) -> dict[str, list[str]]:
    """All rows as text that tells floats apart to the last bit."""
    return {name: sorted(map(repr, rows.to_pylist())) for name, rows in results.items()}


# ------------------------------------------------------------------------------------- runners


def open_tables(pieces: list[pa.Table], columns: tuple[str, ...]) -> Iterator[pa.Table]:
    """Rows of pieces that are tables."""
    return (piece.select(columns) for piece in pieces)


def reduce_grouped(measures: law.Measures, pieces: Pieces) -> dict[str, pa.Table]:
    """Three models at once where a measure can, of which the second has other rows."""
    fewer = [batch for piece in pieces for batch in piece][:1]
    results = {}
    for name, measure in measures.items():
        if not measure.grouped:
            continue
        values, totals = measure.grouped
        sums = [totals([values(iter(rows)) for rows in (piece, fewer, piece)]) for piece in pieces]
        first, third = (
            law.reduce_pieces({name: _read_sums(measure)}, [models[at] for models in sums]) for at in (0, 2)
        )
        assert bits(first) == bits(third)
        results |= first
    return results


def _read_sums(measure: Measure) -> Measure:
    return Measure(lambda batches: batches, measure.key, measure.finish, measure.needs)


@pytest.fixture(scope="module")
def measures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measure]:
    folder = tmp_path_factory.mktemp("law")
    return {name: one for make in MAKERS.values() for name, one in make(folder).items()}


@pytest.fixture(scope="module")
def whole(measures: dict[str, Measure]) -> dict[str, list[str]]:
    """The bits of all measures from all rows in one piece."""
    results = bits(law.reduce_pieces(measures, cut(make_rows(), 1)))
    assert set(results) == set(measures) and all(len(rows) > 1 for rows in results.values())
    return results


@pytest.mark.parametrize("pieces", SOME[1:])
def test_in_this_process(measures: Any, whole: Any, pieces: int) -> None:
    assert bits(law.reduce_pieces(measures, cut(make_rows(), pieces))) == whole


@pytest.mark.parametrize("pieces", SOME)
def test_in_tasks_of_this_machine(
    measures: Any, whole: Any, pieces: int, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(law, "PIECE_ROWS", 40)
    tables = [pa.Table.from_batches(piece, make_rows().schema) for piece in cut(make_rows(), pieces)]
    rows = PieceRows(LocalEngine(str(tmp_path)), tables, open_tables)
    assert bits(reduce_rows(measures, rows, tasks=pieces)) == whole


@pytest.mark.parametrize("pieces", PIECES)
def test_several_models_at_once(measures: Any, whole: Any, pieces: int) -> None:
    results = bits(reduce_grouped(measures, cut(make_rows(), pieces)))
    assert results and results == {name: whole[name] for name in results}


def test_on_spark(spark: Any, measures: Any, whole: Any) -> None:
    """Values of users are rows of rows, without a sum: they are compared as well."""
    batch_rows, metric_plan = "spark.sql.execution.arrow.maxRecordsPerBatch", plan(*NAMES)
    before, rows = spark.conf.get(batch_rows), make_rows()
    values = {"values": pa.Table.from_batches(map_user_values(metric_plan, None, iter(rows.to_batches())))}
    for pieces in PIECES:
        spark.conf.set(batch_rows, str(200 // pieces))
        frame = spark.createDataFrame(rows).repartition(pieces)
        assert bits(reduce_frame(measures, frame)) == whole, pieces
        there = frame.mapInArrow(partial(map_user_values, metric_plan, None), to_ddl(USER_VALUES))
        assert bits({"values": there.toArrow()}) == bits(values)
    spark.conf.set(batch_rows, before)


@pytest.fixture(scope="module", params=ANALYSES)
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, list[str]]:
    """An analysis, and its result from whole tables by one task."""
    one = ANALYSES[request.param]
    engine = LocalEngine(str(tmp_path_factory.mktemp("law")))
    rows = [PieceRows(engine, [table], open_tables) for table in one.make()]
    result = list_bits(one.find(engine, rows, 1))
    assert len(result) > 1
    return one, result


def list_bits(result: Any) -> list[str]:
    return sorted(map(repr, result.to_pylist() if isinstance(result, pa.Table) else result))


@pytest.mark.parametrize("pieces", PIECES[1:])
def test_analyses_of_users_in_tasks_of_this_machine(case: Any, pieces: int, tmp_path: Path) -> None:
    analysis, whole = case
    engine = LocalEngine(str(tmp_path))
    rows = [
        PieceRows(
            engine,
            [pa.Table.from_batches(piece, table.schema) for piece in cut(table, pieces)],
            open_tables,
        )
        for table in analysis.make()
    ]
    assert list_bits(analysis.find(engine, rows, pieces)) == whole


def test_analyses_of_users_on_spark(spark: Any, case: Any) -> None:
    analysis, whole = case
    frames = [spark.createDataFrame(table) for table in analysis.make()]
    for pieces in PIECES:
        rows = [FrameRows(frame.repartition(pieces)) for frame in frames]
        assert list_bits(analysis.find(SparkEngine(spark), rows, min(pieces, 3))) == whole, pieces


@pytest.mark.parametrize("tasks", [1, 3])
def test_sums_without_a_row_are_no_result(tasks: int, tmp_path: Path) -> None:
    """For instance of a cut-off that no run has."""
    none = pa.RecordBatch.from_pydict({"user_id": pa.array([], pa.string())})
    measure = Measure(lambda _: iter([none]), ("user_id",), lambda sums: sums, ("user_id",))
    rows = PieceRows(LocalEngine(str(tmp_path)), [make_rows()], open_tables)
    assert reduce_rows({"none": measure}, rows, tasks) == {}
