"""Points of a search by number alone, edges and what lies beyond them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import qmc

from recbench_spark.boards.search_spaces import (
    draw_points,
    extend_space,
    find_edges,
    make_search,
    merge_spaces,
    replace_settings,
)
from recbench_spark.config import SearchSettings, SettingRange, parse
from recbench_spark.errors import ConfigError

SPACE = {
    "rates": SettingRange(low=0.001, high=0.1, log=True),
    "dims": SettingRange(low=2, high=8),
    "order": SettingRange(values=("given", "shuffled")),
}


@pytest.mark.parametrize("method", ["sobol", "random"])
def test_a_larger_budget_begins_with_the_smaller_one(method) -> None:
    few, many = (draw_points(SPACE, n, method, 1) for n in (5, 20))
    assert many[:5] == few and draw_points(SPACE, 5, method, 2) != few
    assert all(0.001 <= p["rates"] < 0.1 and p["dims"] in range(2, 9) for p in many)
    assert {p["order"] for p in many} == {"given", "shuffled"}


def test_low_discrepancy_is_lower_than_that_of_chance() -> None:
    space = {name: SettingRange(low=0.0, high=1.0) for name in "abc"}
    result = {
        method: np.mean([
            qmc.discrepancy(np.array([list(p.values()) for p in draw_points(space, 64, method, seed)]))
            for seed in range(5)
        ])
        for method in ("sobol", "random")
    }  # fmt: skip
    assert result["sobol"] < 0.3 * result["random"]


def test_places_of_a_range_by_hand() -> None:
    assert [SPACE["dims"].at(u) for u in (0.0, 1 / 7 - 1e-9, 1 / 7 + 1e-9, 0.9999)] == [2, 2, 3, 8]
    assert SPACE["rates"].at(0.5) == pytest.approx(0.01)
    assert SPACE["order"].at(0.49) == "given" and SPACE["order"].place("shuffled") == 1


def test_edges_and_what_lies_beyond_them() -> None:
    result = find_edges(SPACE, {"rates": 0.0011, "dims": 8, "order": "given"})
    assert [(edge.name, edge.side) for edge in result] == [("dims", "high"), ("rates", "low")]
    assert find_edges(SPACE, {"rates": 0.01, "dims": 5, "order": "given"}) == []
    further = extend_space(SPACE, result)
    assert (further["rates"].low, further["rates"].high) == (0.0001, 0.001)
    assert (further["dims"].low, further["dims"].high) == (8, 11)
    whole = merge_spaces(SPACE, further)
    assert (whole["rates"].low, whole["rates"].high, whole["dims"].high) == (0.0001, 0.1, 11)
    at_nought = {"reg": SettingRange(low=0.0, high=0.1)}
    assert extend_space(at_nought, find_edges(at_nought, {"reg": 0.0})) == {}, "nothing lies below 0"


def test_a_dot_leads_into_a_section() -> None:
    before = {"rates": {"user_factors": 1.0, "item_factors": 1.0}, "dims": 2}
    after = replace_settings(before, {"rates.user_factors": 2.0, "dims": 3})
    assert after == {"rates": {"user_factors": 2.0, "item_factors": 1.0}, "dims": 3}
    assert before["dims"] == 2


def test_trials_as_boards_judge_them() -> None:
    result = make_search(SPACE, [({"rates": 0.01, "dims": 2.0, "order": 1.0}, 0.9)], 0.001)
    assert result.space == {"rates": (0.001, 0.1), "dims": (2.0, 8.0), "order": (0.0, 1.0)}
    assert make_search(SPACE, []) is None


@pytest.mark.parametrize(
    ("space", "report"),
    [
        ({"low": 1}, "both low and high"),
        ({"low": 2, "high": 1}, "is not below"),
        ({"low": 0, "high": 1, "log": True}, "above 0"),
        ({"low": 0, "high": 1, "values": [1]}, "either low and high, or values"),
        ({}, "either low and high, or values"),
    ],
)
def test_a_range_that_is_none(space, report) -> None:
    with pytest.raises(ConfigError, match=report):
        parse(SettingRange, space, "test")


def test_a_search_names_what_it_searches() -> None:
    with pytest.raises(ConfigError, match=r"spaces\.a: name a setting"):
        parse(SearchSettings, {"spaces": {"a": {}}}, "test")


def test_truths_are_taken_where_a_section_inside_a_map_asks_for_them() -> None:
    request = {
        "spaces": {
            "a": {"rates": {"low": 0.1, "high": 1, "log": True}, "biases": {"values": [True, False]}}
        }
    }
    result = parse(SearchSettings, request, "test").spaces["a"]
    assert result["rates"].log and result["biases"].values == (True, False)
    with pytest.raises(ConfigError, match="low: a number or text is expected, and not true"):
        parse(SearchSettings, {"spaces": {"a": {"rates": {"low": True, "high": 2}}}}, "test")
