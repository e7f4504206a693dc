"""Every preset against its library: random inputs, the library's own functions, our kernels.

Each library runs in its own environment (`make libraries`), MLlib in ours. A value may differ by 1e-9;
recbole's GAUC, which it computes in single precision, by 1e-6.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from recbench_spark.definitions import PRESET_VERSIONS, make_definition
from tests.libraries.inputs import KS, Input, our_values, random_input, weighted_auc

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
    "recpack": "recpack",
    "recbole": "recbole",
}
SCORES_EVERYTHING = {"cornac", "recbole"}
KNOWS_GRADES = {"ranx": 3, "trec_eval": 3, "recommenders": 3, "lenskit": 3}
OWN_RULE_FOR_TIES = {"replay", "recommenders", "rectools", "lenskit"}
"""replay: larger id first; the others keep the order they are given, here by item id."""


@cache
def answer(library: str, given: str) -> dict[str, Any]:
    python = ENVIRONMENTS / library / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment of {library} under {ENVIRONMENTS}: run `make libraries`")
    script = Path(__file__).with_name(f"run_{library}.py")
    done = subprocess.run(
        [python, "-W", "ignore", script], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def draw_input(library: str, seed: int, *, ties: bool = False) -> Input:
    full, grades = library in SCORES_EVERYTHING, KNOWS_GRADES.get(library, 1)
    return random_input(seed, full=full, grades=grades, ties=ties)


def tolerance(name: str) -> float:
    return 1e-6 if name == "weighted_auc" else 1e-9


def ours(given: Input, preset: str, axes: dict[str, Any]) -> dict[str, float]:
    definition = make_definition(preset, axes)
    return {**our_values(given, definition), "weighted_auc": weighted_auc(given, definition)}


@pytest.mark.slow
@pytest.mark.parametrize("library", PRESET_OF)
def test_a_preset_gives_the_numbers_of_its_library(library: str) -> None:
    given = draw_input(library, seed=1)
    actual = answer(library, json.dumps(given))
    if library != "trec_eval":
        assert actual["version"] == PRESET_VERSIONS[library]
    for result in actual["results"]:
        mine = ours(given, PRESET_OF[library], result["set"])
        assert len(result["values"]) > 1
        for name, value in result["values"].items():
            assert mine[name] == pytest.approx(value, abs=tolerance(name)), (name, result["set"])


@pytest.mark.slow
@pytest.mark.parametrize("library", PRESET_OF)
def test_tied_scores_follow_the_library_or_lie_between_our_bounds(library: str) -> None:
    given = draw_input(library, seed=2, ties=True)
    for result in answer(library, json.dumps(given))["results"]:
        check_ties(library, given, PRESET_OF[library], result)


def check_ties(library: str, given: Input, preset: str, result: dict[str, Any]) -> None:
    own = ours(given, preset, result["set"])
    low = ours(given, preset, {**result["set"], "ties": "pessimistic"})
    high = ours(given, preset, {**result["set"], "ties": "optimistic"})
    assert any(low[name] < high[name] - 1e-3 for name in result["values"]), "no tie matters"
    for name, value in result["values"].items():
        slack = tolerance(name)
        assert low[name] - slack <= value <= high[name] + slack, (name, result["set"])
        if library in OWN_RULE_FOR_TIES or low[name] == high[name]:
            assert own[name] == pytest.approx(value, abs=slack), (name, result["set"])


@pytest.mark.slow
@pytest.mark.parametrize("library", ["replay"])
def test_a_truth_item_given_twice_counts_once_where_the_library_says_so(library: str) -> None:
    given = draw_input(library, seed=3)
    twice = {user: [*rows, rows[0]] for user, rows in given["truth"].items()}
    given = {**given, "truth": twice}
    mine = ours(given, library, {})
    for name, value in answer(library, json.dumps(given))["results"][0]["values"].items():
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
    mine = ours(given, "mllib", {})
    for name, value in mllib_values(spark, rows).items():
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
