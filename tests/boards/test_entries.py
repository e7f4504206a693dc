"""Boards as rows: the source's tables replayed, ours beside them, what a search elsewhere says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from recbench_spark.boards.entries import (
    Entry,
    canonical_method,
    judge_entries,
    make_published_entries,
    measure_setting_effects,
    search_columns,
)
from recbench_spark.boards.fold_statistics import summarise_folds
from recbench_spark.boards.published import load_published_board
from recbench_spark.boards.searches import SearchTrials

ML10M = make_published_entries(load_published_board("ml10m_rmse"))


def ours(name: str, value: float, **more: object) -> Entry:
    facts = ("ml10m", "ten folds", "rmse", True, "matrix factorisation by SGD")
    return Entry("ml10m_rmse", "ours", *facts, name, value, ran_by="ours", **more)  # type: ignore[arg-type]


def search(**values: float) -> SearchTrials:
    trials = [{"settings": {"reg": float(x[1:]) / 100}, "value": y} for x, y in values.items()]
    return SearchTrials(space={"reg": (0.01, 0.05)}, trials=trials)


def test_the_sources_table_replayed_flags_the_three_and_no_rerun() -> None:
    verdicts = judge_entries(ML10M, {}, {})
    flagged = {entry.name for entry in ML10M if (v := verdicts.get(entry.entry_id)) and v.under_tuned}
    assert flagged == {"RSVD", "Biased MF", "BPMF"}
    assert len(ML10M) == 27 and len(verdicts) == 26, "what stands beside the table is shown, not judged"


def test_a_better_own_run_is_a_reason_too() -> None:
    better = ours("sgd_512", 0.76)
    verdicts = judge_entries([*ML10M, better], {}, {})
    flagged = {entry.name for entry in ML10M if (v := verdicts.get(entry.entry_id)) and v.under_tuned}
    assert "SGD MF" in flagged and not verdicts[better.entry_id].under_tuned


def test_ours_are_judged_by_their_search() -> None:
    one, other = ours("sgd", 0.9), replace(ours("gibbs", 0.89), method="Bayesian matrix factorisation")
    few = search(a1=0.95, a3=0.92, a5=0.90)
    many = search(a1=0.95, a2=0.91, a3=0.89, a4=0.90, a5=0.91, a25=0.889, a35=0.893)
    verdicts = judge_entries([one, other], {"sgd": few, "gibbs": many}, {one.method: {"init_sd": 0.02}})
    assert {reason.code for reason in verdicts[one.entry_id].reasons} == {
        "edge", "fewer_settings", "unsearched_setting",
    }  # fmt: skip
    assert not verdicts[other.entry_id].under_tuned


def test_parts_are_never_held_against_one_another() -> None:
    quiz, test = ours("a", 0.9, part="quiz"), ours("b", 0.8, part="test")
    assert not any(result.under_tuned for result in judge_entries([quiz, test], {}, {}).values())


def test_what_a_setting_moved_elsewhere() -> None:
    result = measure_setting_effects({"log m": ("MF", search(a1=0.99, a3=0.90, a5=0.95))})
    assert result["MF"]["reg"] == pytest.approx(0.09 / 0.90)
    assert measure_setting_effects({"log m": ("MF", search(a3=0.9))})["MF"]["reg"] == 0


def test_a_search_as_columns() -> None:
    result = search_columns(search(a1=0.9, a2=0.8), 12.0, ["reg"])
    assert (result["budget_settings"], result["budget_seconds"], result["at_edge"]) == (2, 12.0, ("reg",))
    assert result["never_searched"] == () and search_columns(search(a1=0.9), 1.0, [])["never_searched"] == (
        "reg",
    )
    assert search_columns(None, 0.0, ()) == {}


def test_methods_have_one_name_here_and_in_the_source() -> None:
    known = {entry.method for entry in ML10M}
    for features in ("u,i", "u,i,t", "u,i,iu", "u,i,t,iu", "u,i,t,iu,ii"):
        assert canonical_method("bayesian_mf", {"features": features}) in known
    assert {canonical_method("sgd_mf", {}), canonical_method("als", {})} <= known


def test_the_two_spreads_by_hand() -> None:
    result = summarise_folds({(0, 1): 1.0, (0, 2): 3.0, (1, 1): 4.0, (1, 2): 4.0})
    assert (result.mean, result.folds, result.seeds) == (3.0, 2, 2)
    assert result.over_folds == pytest.approx(math.sqrt(2)), "of 2 and 4"
    assert result.over_seeds == pytest.approx(1.0), "variances 2 and 0"
    alone = summarise_folds({(None, 1): 1.0})
    assert math.isnan(alone.over_folds) and math.isnan(alone.over_seeds) and alone.mean == 1.0
    assert summarise_folds({}).folds == 0
