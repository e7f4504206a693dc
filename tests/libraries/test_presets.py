"""Every preset against its library: random inputs, the library's own functions, our kernels.

Each library runs in its own environment (`make libraries`), MLlib in ours. A value may differ by 1e-9; by
1e-6 where the library computes in single precision: GAUC of recbole, warprec, torchmetrics.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbench_spark.core.definitions import PRESET_VERSIONS, make_definition
from recbench_spark.metrics.kernels import item_groups
from recbench_spark.metrics.kernels.accuracy import METRICS
from recbench_spark.metrics.kernels.beyond_accuracy import (
    ListedCounts,
    average_entries,
    coverage,
    entropy,
    gini,
    novelty,
)
from recbench_spark.metrics.kernels.item_groups import BY_HEAD
from recbench_spark.metrics.kernels.user_lists import CountedItems, HeadAndTail, UserLists
from recbench_spark.splits.popularity import find_head
from tests.libraries.inputs import KS, Input, our_values, pool_precision, random_input, weighted_auc

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = Path(os.environ.get("RECBENCH_LIBRARIES", ROOT / ".venv-libraries"))

PRESET_OF = {
    "ranx": "ranx",
    "trec_eval": "ranx",
    "cornac": "cornac",
    "replay": "replay",
    "recommenders": "recommenders",
    "rectools": "rectools",
    "lenskit": "lenskit",
    "lenskit-2025": "lenskit==2025.8.1",
    "recpack": "recpack",
    "recbole": "recbole",
    "warprec": "warprec",
    "sklearn": "sklearn",
    "torchmetrics": "torchmetrics",
    "implicit": "implicit",
    "mlflow": "mlflow",
}
SCRIPTS = {"lenskit-2025": "lenskit", "implicit": "implicit_metrics"}
"""Scripts that have another name than the environment."""
SCORES_EVERYTHING = {"cornac", "recbole", "warprec", "sklearn", "torchmetrics", "implicit"}
KNOWS_GRADES = {"ranx": 3, "trec_eval": 3, "recommenders": 3} | dict.fromkeys(
    ("lenskit", "lenskit-2025", "warprec", "sklearn", "torchmetrics"), 3
)
SINGLE_PRECISION = {"warprec", "torchmetrics"}
OWN_RULE_FOR_TIES = {"replay", "warprec", "sklearn"}
"""replay: larger id first; warprec: a hash; sklearn: the mean over all orders."""
KEEPS_ORDER = {"recommenders", "rectools", "lenskit", "lenskit-2025", "implicit", "mlflow"}
"""They keep the order that they are given, here by item id."""
INPUTS = 1000
"""Random inputs of each library, of eight users, in four tests."""


def answer(library: str, given: Input) -> dict[str, Any]:
    return answers(library, json.dumps(given))[0]


@cache
def answers(library: str, given: str) -> list[dict[str, Any]]:
    """Values of inputs, one a line."""
    python = ENVIRONMENTS / library / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment of {library} under {ENVIRONMENTS}: run `make libraries`")
    script = Path(__file__).with_name(f"run_{SCRIPTS.get(library, library)}.py")
    command = [python, "-W", "ignore", script.with_name("run_many.py"), script]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def draw_input(library: str, seed: int, *, ties: bool = False, **more: int) -> Input:
    options: dict[str, Any] = {"full": library in SCORES_EVERYTHING, "grades": KNOWS_GRADES.get(library, 1)}
    return random_input(seed, ties=ties, **options | more)


def tolerance(library: str, name: str) -> float:
    return 1e-6 if name == "weighted_auc" or library in SINGLE_PRECISION else 1e-9


def ours(given: Input, preset: str, axes: dict[str, Any], names: Iterable[str]) -> dict[str, float]:
    """Our values of these names, and of the other cut-offs of their metrics."""
    definition = make_definition(preset, axes)
    wanted = {name.split("@")[0] for name in names}
    known = [metric for metric in METRICS if metric in wanted]
    values = our_values(given, definition, known) if known else {}
    if "pooled_precision" in wanted:
        values |= pool_precision(given, definition)
    return values | ({"weighted_auc": weighted_auc(given, definition)} if "weighted_auc" in wanted else {})


def check_values(library: str, given: Input, results: list[dict[str, Any]]) -> list[float]:
    """Compare all values of a library with ours; return their absolute differences."""
    differences = []
    for result in results:
        mine = ours(given, PRESET_OF[library], result["set"], result["values"])
        assert result["values"]
        for name, value in result["values"].items():
            assert mine[name] == pytest.approx(value, abs=tolerance(library, name)), (name, result["set"])
            differences.append(abs(mine[name] - value))
    return differences


@pytest.mark.slow
@pytest.mark.parametrize("library", PRESET_OF)
def test_a_preset_gives_the_numbers_of_its_library(library: str) -> None:
    given = draw_input(library, seed=1)
    actual = answer(library, given)
    if library != "trec_eval":
        assert actual["version"] == PRESET_VERSIONS[PRESET_OF[library]]
    assert len(check_values(library, given, actual["results"])) > 1


@pytest.mark.slow
@pytest.mark.parametrize("library", PRESET_OF)
def test_tied_scores_follow_the_library_or_lie_between_our_bounds(library: str) -> None:
    given = draw_input(library, seed=2, ties=True)
    for result in answer(library, given)["results"]:
        check_ties(library, given, PRESET_OF[library], result)


def check_ties(library: str, given: Input, preset: str, result: dict[str, Any]) -> None:
    own = ours(given, preset, result["set"], result["values"])
    if library in OWN_RULE_FOR_TIES:
        check_values(library, given, [result])
        return
    low = ours(given, preset, {**result["set"], "ties": "pessimistic"}, result["values"])
    high = ours(given, preset, {**result["set"], "ties": "optimistic"}, result["values"])
    assert any(low[name] < high[name] - 1e-3 for name in result["values"]), "no tie matters"
    for name, value in result["values"].items():
        slack = tolerance(library, name)
        assert low[name] - slack <= value <= high[name] + slack, (name, result["set"])
        if library in KEEPS_ORDER or low[name] == high[name]:
            assert own[name] == pytest.approx(value, abs=slack), (name, result["set"])


@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(4))
@pytest.mark.parametrize("library", PRESET_OF)
def test_a_thousand_inputs(library: str, quarter: int) -> None:
    """Every second one has ties where the library has a rule for them or keeps the order of its input."""
    tied = library in OWN_RULE_FOR_TIES | KEEPS_ORDER
    seeds = range(10 + quarter, 10 + INPUTS, 4)
    inputs = [draw_input(library, n, ties=tied and n // 4 % 2 == 1, users=8) for n in seeds]
    given = "\n".join(map(json.dumps, inputs))
    differences: list[float] = []
    for one, actual in zip(inputs, answers(library, given), strict=True):
        differences += check_values(library, one, actual["results"])
    halves = "half of them tied" if tied else "untied"
    print(
        f"{library}: {len(differences)} values of {len(inputs)} inputs ({halves}),"
        f" largest difference {max(differences):.1e}"
    )


@pytest.mark.slow
def test_torchmetrics_averages_ties_in_ndcg_alone() -> None:
    """NDCG of tied scores is exact; the other values lie between those of the best and the worst order."""
    inputs = [draw_input("torchmetrics", n, ties=True, users=8) for n in range(10, 10 + INPUTS // 2)]
    for one, actual in zip(
        inputs, answers("torchmetrics", "\n".join(map(json.dumps, inputs))), strict=True
    ):
        values = actual["results"][0]["values"]
        exact = {name: value for name, value in values.items() if name.split("@")[0] in ("ndcg", "auc")}
        check_values("torchmetrics", one, [{"set": {}, "values": exact}])
        # Its MAP is no larger for more hits, so its bounds are those of no order.
        loose = {name: v for name, v in values.items() if name not in exact and name.split("@")[0] != "map"}
        low, high = (
            ours(one, "torchmetrics", {"ties": rule}, loose) for rule in ("pessimistic", "optimistic")
        )
        assert all(low[name] - 1e-6 <= value <= high[name] + 1e-6 for name, value in loose.items())


@pytest.mark.slow
def test_a_thousand_inputs_have_the_short_head_of_warprec() -> None:
    """Its sort decides which of equally popular items are in the head, so popularities differ here.

    A user without relevant items does not count in its means over users.
    """
    check_families("warprec", {*BY_HEAD, "mean_popularity", "coverage", "gini", "entropy"}, 1e-6)


@pytest.mark.slow
def test_a_thousand_inputs_have_the_novelty_popularity_and_coverage_of_rectools() -> None:
    check_families("rectools", {"novelty", "mean_popularity", "coverage"}, 1e-9)


def check_families(library: str, metrics: set[str], limit: float) -> None:
    """Compare metrics beyond accuracy; each item has another popularity, and one has none."""
    inputs = [draw_input(library, n, users=8) for n in range(INPUTS)]
    for n, given in enumerate(inputs):
        given["popularity"] = np.random.default_rng(n).permutation(given["items"]).tolist()
    theirs = answers(library, "\n".join(map(json.dumps, inputs)))
    differences = []
    for given, actual in zip(inputs, theirs, strict=True):
        mine, (result,) = measure_families(given, of_warprec=library == "warprec"), actual["results"]
        assert {name.partition("@")[0] for name in result["values"]} == metrics
        for name, value in result["values"].items():
            assert mine[name] == pytest.approx(value, abs=limit, rel=limit, nan_ok=True), name
            differences.append(abs(mine[name] - value))
    print(f"{library}: {len(differences)} values, largest difference {np.nanmax(differences):.1e}")


def measure_families(given: Input, *, of_warprec: bool) -> dict[str, float]:
    """Our values from lists without training items, with the library's factors.

    Popularity counts users in both, at least 1 in WarpRec; WarpRec counts items for coverage, and its Gini
    is n / (n - 1) times ours.
    """
    popularity = np.array(given["popularity"])
    head = find_head(Counter(filter(None, given["popularity"])), item_groups.HEAD_SHARE)
    users = sorted(given["lists"], key=int)
    shown = [[i for i, _ in given["lists"][u] if i not in given["train"][u]] for u in users]
    truth = [[i for i, _ in given["truth"].get(u, [])] for u in users]
    bounds, held_out = (np.cumsum([0, *map(len, rows)]) for rows in (shown, truth))
    listed, relevant = (np.array([i for row in rows for i in row]) for rows in (shown, truth))
    lists = ListedCounts(bounds, popularity[listed], 1, head)
    counted = np.array([len(row) > 0 for row in truth]) | (not of_warprec)
    means = {
        "aplt": item_groups.long_tail_share(lists, KS)[counted].mean(axis=0),
        "aclt": item_groups.count_long_tail(lists, KS)[counted].mean(axis=0),
        "mean_popularity": average_entries(lists, np.maximum(popularity, of_warprec)[listed], KS)[
            counted
        ].mean(axis=0),
        "novelty": novelty(replace(lists, users=int(popularity.max())), KS)[counted].mean(axis=0),
    }
    hits = np.array([i in row for items, row in zip(shown, truth, strict=True) for i in items])
    masked = [given["train"][u] for u in users]
    starts, closed = np.cumsum([0, *map(len, masked)]), np.array([i for row in masked for i in row], int)
    own = UserLists(
        CountedItems(bounds, listed, popularity[listed]), hits,
        CountedItems(held_out, relevant, popularity[relevant]), None,
        CountedItems(starts, closed, popularity[closed]), None, users=1, head=head,
        n_items=given["items"],
    )  # fmt: skip
    in_head = int((popularity >= head).sum())
    sides = HeadAndTail(head, (given["items"] - in_head, in_head))
    kinds = ("relevant", "hits", "listed", "offered")
    groups = item_groups.count_groups(own, sides, kinds, KS)
    counts = item_groups.GroupCounts(**{kind: one.mean(axis=0) for kind, one in groups.items()})
    for name in ("popularity_reo", "popularity_rsp"):
        means[name] = np.abs(item_groups.GROUP_METRICS[name].measure(counts))
    first = [Counter(i for row in shown for i in row[:k]) for k in KS]
    for name, measure, factor in (
        ("entropy", entropy, 1.0),
        ("coverage", coverage, given["items"] if of_warprec else 1.0),
        ("gini", gini, given["items"] / (given["items"] - 1)),
    ):
        shown_x = [([*one.values()], [1] * len(one), given["items"]) for one in first]
        means[name] = np.array([measure(*one) for one in shown_x]) * factor
    return {f"{name}@{k}": float(v) for name, row in means.items() for k, v in zip(KS, row, strict=True)}


@pytest.mark.slow
def test_no_definition_gives_the_map_of_evidently() -> None:
    """It exceeds 1 and depends on the order of rows: docs/presets.md."""
    values = answer("evidently", {})["values"]
    assert values == {"best_first": 1.0, "worst_first": pytest.approx(1 + 1 / 2 + 1 / 3)}


@pytest.mark.slow
@pytest.mark.parametrize(("library", "clips"), [("lenskit", True), ("lenskit-2025", False)])
def test_lenskit_clips_grades_below_zero_since_2026(library: str, clips: bool) -> None:
    """An ideal of 0 gives 0. Rows of a grade of 0 or less are relevant in LensKit's other metrics."""
    inputs = [draw_input(library, n, users=8, lowest=-2) for n in range(10, 10 + INPUTS // 4)]
    differing = 0
    for one, actual in zip(inputs, answers(library, "\n".join(map(json.dumps, inputs))), strict=True):
        graded = next(result for result in actual["results"] if result["set"] == {"gain": "linear"})
        mine = ours(one, PRESET_OF[library], {"gain": "linear"}, graded["values"])
        wrong = [name for name, value in graded["values"].items() if abs(mine[name] - value) > 1e-9]
        differing += bool(wrong)
    assert (differing == 0) == clips


@pytest.mark.slow
@pytest.mark.parametrize("library", ["replay"])
def test_a_truth_item_given_twice_counts_once_where_the_library_says_so(library: str) -> None:
    given = draw_input(library, seed=3)
    twice = {user: [*rows, rows[0]] for user, rows in given["truth"].items()}
    given = {**given, "truth": twice}
    values = answer(library, given)["results"][0]["values"]
    mine = ours(given, library, {}, values)
    for name, value in values.items():
        # replay counts the second row in the ideal list and in MAP's denominator (pandas only).
        if name.split("@")[0] not in ("ndcg", "map"):
            assert mine[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Deprecated in 3.0.0:FutureWarning")
@pytest.mark.parametrize("graded", [False, True])
def test_the_mllib_preset_gives_the_numbers_of_mllib(spark: Any, graded: bool) -> None:
    """Called from Python, MLlib takes grades and does not use them."""
    given = random_input(4, grades=3, ties=True)
    rows = mllib_rows(given, graded=graded)
    assert spark.version == PRESET_VERSIONS["mllib"]
    values = mllib_values(spark, rows)
    mine = ours(given, "mllib", {}, values)
    for name, value in values.items():
        assert mine[name] == pytest.approx(value, abs=1e-9), name


def mllib_rows(given: Input, *, graded: bool) -> list[tuple[list[float], ...]]:
    """Every list with its truth, with grades or else with its first item given twice."""
    rows: list[tuple[list[float], ...]] = []
    for user, pairs in given["lists"].items():
        truth = sorted(given["truth"].get(user, []), key=lambda pair: -pair[1])
        items, grades = [float(i) for i, _ in truth], [float(g) for _, g in truth]
        shown = [float(i) for i, _ in pairs]
        rows.append((shown, items, grades) if graded else (shown, items + items[:1]))
    return rows


def mllib_values(spark: Any, rows: list[tuple[list[float], ...]]) -> dict[str, float]:
    from pyspark.mllib.evaluation import RankingMetrics

    result = RankingMetrics(spark.sparkContext.parallelize(rows, 2))
    at_k = {
        "precision": result.precisionAt,
        "recall": result.recallAt,
        "ndcg": result.ndcgAt,
        "map": result.meanAveragePrecisionAt,
    }
    values = {f"{name}@{k}": metric(k) for name, metric in at_k.items() for k in KS}
    return {**values, "map": result.meanAveragePrecision}
