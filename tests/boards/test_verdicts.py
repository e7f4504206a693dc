"""The verdict: each reason by hand, and caught and false ones over 200 generated searches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from recbench_spark.boards.published import Board, BoardRun
from recbench_spark.boards.searches import SearchTrials
from recbench_spark.boards.verdicts import check_budget, check_edge, check_setting_searched, judge_run

NOISE = 0.0005
GRID = (0.001, 0.003, 0.01, 0.03, 0.1)


def make_published_board(*runs: BoardRun) -> Board:
    one = {"aliases": {"the method": tuple({run.method for run in runs})}}
    facts = {"name": "b", "data": "d", "protocol": "p", "metric": "rmse", "source": "s"}
    return Board(**facts, lower_is_better=True, runs=runs, **one)


def run_trials(space, values: dict[float, float], noise: float = 0.0) -> SearchTrials:
    trials = [{"settings": {"reg": x}, "value": y} for x, y in values.items()]
    return SearchTrials(space={"reg": space}, trials=trials, noise=noise)


def test_an_optimum_on_the_edge_of_a_grid() -> None:
    falling = dict(zip(GRID, (0.80, 0.79, 0.78, 0.77, 0.75), strict=True))
    inside = dict(zip(GRID, (0.80, 0.76, 0.75, 0.77, 0.78), strict=True))
    bent = dict(zip(GRID, (0.80, 0.76, 0.77, 0.77, 0.75), strict=True))
    assert "reg (0.1) lies on the edge" in check_edge(run_trials(GRID, falling), "reg").text
    assert check_edge(run_trials(GRID, inside), "reg") is None
    assert check_edge(run_trials(GRID, bent, noise=0.02), "reg") is None
    assert check_edge(run_trials(GRID, falling, noise=0.02), "reg") is None, "a fall within the noise"
    up = SearchTrials(**run_trials(GRID, falling).model_dump() | {"lower_is_better": False})
    assert "reg (0.001)" in check_edge(up, "reg").text


def test_a_single_value_has_no_edge_but_was_never_searched() -> None:
    once = run_trials((0.02,), {0.02: 0.8})
    assert check_edge(once, "reg") is None
    assert "moved the method by 1.5%" in check_setting_searched(once, "reg", 0.015).text
    assert "init_sd was never searched" in check_setting_searched(once, "init_sd", -0.01).text
    assert check_setting_searched(once, "init_sd", 0.001) is None
    assert check_setting_searched(run_trials(GRID, {0.001: 1.0, 0.003: 2.0}), "reg", 0.5) is None


def test_fewer_settings_than_a_rival() -> None:
    few, many = run_trials(GRID, {0.001: 1.0}), run_trials(GRID, dict.fromkeys(GRID, 1.0))
    assert check_budget(few, {"new": many}).text == "1 settings tried, 5 of new"
    assert check_budget(many, {"new": many, "other": few}) is None and check_budget(few, {}) is None


def test_a_better_run_within_the_spread_is_none() -> None:
    ours, other = (
        BoardRun(method="a", value=0.80, spread=0.01),
        BoardRun(method="b", value=0.79, spread=0.005),
    )
    assert not judge_run(ours, make_published_board(ours, other)).under_tuned
    sure = BoardRun(method="a", value=0.80, spread=0.001)
    result = judge_run(sure, make_published_board(sure, BoardRun(method="b", value=0.79, ran_by="rerun")))
    assert [reason.code for reason in result.reasons] == ["better_run_known"]


# --------------------------------------------------------------------------- 200 generated searches


class Case(NamedTuple):
    planted: str | None
    run: BoardRun
    board: Board
    search: SearchTrials
    rivals: dict[str, SearchTrials]
    moved: dict[str, float]


def surface(rng: np.random.Generator, names: list[str], inside: bool):
    """Error over settings in 0..1: a bowl in most of them, some flat; its bottom inside or beyond."""
    bottoms = dict(zip(names, rng.uniform(0.2, 0.8, len(names)), strict=True))
    depth = {name: rng.choice([0.0, rng.uniform(0.03, 0.15)]) for name in names}
    if not inside:
        bottoms[names[0]], depth[names[0]] = rng.choice([-1, 1]) * rng.uniform(0.6, 1.2) + 0.5, 0.1

    def error(x: dict[str, float]) -> float:
        bowl = sum(depth[name] * (x[name] - bottoms[name]) ** 2 for name in names)
        return float(0.78 + bowl + rng.normal(0, NOISE))

    return error


def run_search(rng: np.random.Generator, error, names: list[str], count: int) -> SearchTrials:
    """A grid of five values a setting, as much of it as the budget allows, or random points."""
    if rng.random() < 0.5:
        points = rng.integers(0, 5, (count, len(names))) / 4
        space = {name: tuple(10 ** (-4 + 3 * step / 4) for step in range(5)) for name in names}
    else:
        points, space = rng.random((count, len(names))), dict.fromkeys(names, (1e-4, 1e-1))
    rows = [dict(zip(names, point.tolist(), strict=True)) for point in points]
    trials = [
        {"settings": {name: 10 ** (-4 + 3 * x) for name, x in row.items()}, "value": error(row)}
        for row in rows
    ]
    return SearchTrials(space=space, trials=trials, noise=NOISE)


def case(number: int, planted: str | None) -> Case:
    rng = np.random.default_rng(number)
    names = ["rate", "reg", "init_sd"][: rng.integers(2, 4)]
    budget = int(rng.integers(30, 60))
    count = int(rng.integers(3, 13)) if planted == "fewer_settings" else budget
    error = surface(rng, names, planted != "edge")
    search = run_search(rng, error, names, count)
    rival = run_search(rng, surface(rng, names, True), names, int(budget * rng.uniform(0.8, 1.2)))
    value = min(trial.value for trial in search.trials)
    gain = rng.uniform(0.004, 0.06) if planted == "better_run_known" else rng.uniform(-0.05, 0.001)
    run = BoardRun(method="a", value=value, spread=NOISE)
    board = make_published_board(run, BoardRun(method="b", value=value * (1 - gain), spread=NOISE))
    moved = {names[0]: 0.02, "epochs": rng.uniform(0, 0.0015)}
    if planted == "unsearched_setting":
        moved["order"] = rng.uniform(0.004, 0.05)
    return Case(planted, run, board, search, {"rival": rival}, moved)


KINDS = ["edge", "fewer_settings", "better_run_known", "unsearched_setting"]


@pytest.mark.full
def test_two_hundred_generated_searches() -> None:
    """Half with one planted fault, in turns: at least 90 % caught, at most 5 % of the others accused."""
    cases = [case(n, KINDS[n % 4] if n < 100 else None) for n in range(200)]
    result = [judge_run(c.run, c.board, c.search, c.rivals, c.moved) for c in cases]
    caught = [
        c.planted in {reason.code for reason in v.reasons} for c, v in zip(cases, result, strict=True)
    ]
    assert np.mean(caught[:100]) >= 0.9
    assert np.mean([v.under_tuned for v in result[100:]]) <= 0.05
    for at, kind in enumerate(KINDS):
        assert np.mean(caught[at:100:4]) >= 0.8, kind


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_is_one_reason(kind: str) -> None:
    """The other reasons are silent about a planted fault in nine of ten cases."""
    at = KINDS.index(kind)
    cases = [case(n, kind) for n in range(at, 120, 4)]
    result = [{reason.code for reason in judge_run(*c[1:]).reasons} for c in cases]
    assert np.mean([codes <= {kind} for codes in result]) >= 0.9
