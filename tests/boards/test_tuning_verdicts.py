"""Verdicts on searches of few trials: what was found and not used, never searched, or cannot be said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jobs.studies import planted_boards
from jobs.studies.planted_boards import BUDGETS, count_verdicts, drop_searches, gather_methods, make_method
from recbench_spark.boards.entries import Entry, SettingsSource, judge_entries
from recbench_spark.boards.fold_statistics import compare_folds
from recbench_spark.boards.published import BoardRun
from recbench_spark.boards.response_surfaces import Surface
from recbench_spark.boards.searches import SearchTrials
from recbench_spark.boards.verdicts import find_trial, judge_run, uses_best
from recbench_spark.reports import board_text, make_board, pairs_text
from tests.boards.test_verdicts import make_published_board

REGS = (0.01, 0.02, 0.04, 0.07, 0.11, 0.2, 0.4, 0.8)


def bowl(best: float = 0.1, noise: float = 0.0003) -> SearchTrials:
    """Eight trials of one setting, as those of als_wr: .8137 at the best, more on both sides."""
    trials = [
        {"settings": {"regulariser": reg}, "value": 0.8137 + 0.02 * np.log(reg / best) ** 2} for reg in REGS
    ]
    return SearchTrials(space={"regulariser": (0.01, 1.0)}, trials=trials, noise=noise)


def ours(name: str, value: float, **more: object) -> Entry:
    facts = ("b", "ours", "log", "ten folds", "rmse", True, "ALS-WR", name, value)
    return Entry(*facts, ran_by="ours", **more)  # type: ignore[arg-type]


def list_codes(entry: Entry, tuning: SettingsSource | None) -> list[str]:
    used = {} if tuning is None else {entry.entry_id: tuning}
    return [one.code for one in judge_entries([entry], {}, {}, used)[entry.entry_id].remarks]


def test_what_the_search_found_better_and_was_not_used() -> None:
    """A trial of the search itself, and a setting between its trials."""
    for reg in (0.04, 0.05):
        run = BoardRun(method="als", value=0.841)
        verdict = judge_run(run, make_published_board(run), bowl(), used={"regulariser": reg})
        assert [reason.code for reason in verdict.reasons] == ["better_not_used"], reg
        assert "regulariser 0.11" in verdict.reasons[0].text
    assert list_codes(ours("als", 0.8137), SettingsSource(bowl(), {"regulariser": 0.11})) == []
    assert list_codes(ours("als", 0.8137), SettingsSource(bowl(), {"regulariser": 0.1101})) == [], "rounded"
    near = list_codes(ours("als", 0.8137), SettingsSource(bowl(), {"regulariser": 0.098}))
    assert near in (["never_searched"], ["no_power"]), "it is as good as the best, and no search found it"
    little = ours("als", 0.8137, spread_folds=0.0015)
    trials = [{"settings": {"r": r}, "value": 0.8 + 0.02 * abs(r - 0.5)} for r in (0.1, 0.3, 0.5, 0.7, 0.9)]
    close = SearchTrials(space={"r": (0.0, 1.0)}, trials=trials)
    verdicts = judge_entries([little], {}, {}, {little.entry_id: SettingsSource(close, {"r": 0.3})})
    (one,) = verdicts.values()
    assert not one.under_tuned and [note.code for note in one.notes] == ["better_not_used"], "by .5 %"


def test_a_search_belongs_to_its_entry_and_not_to_its_name() -> None:
    one, other = ours("als", 0.8137, evidence="a"), ours("als", 0.841, evidence="b")
    verdicts = judge_entries(
        [one, other], {"als": bowl()}, {}, {one.entry_id: SettingsSource(bowl(), {"regulariser": 0.11})}
    )
    assert [note.code for note in verdicts[other.entry_id].notes] == ["never_searched"]
    assert verdicts[one.entry_id].notes == ()


def test_never_searched_is_reported_and_accuses_nobody() -> None:
    result = judge_entries([ours("rbm", 0.95)], {}, {})
    (one,) = result.values()
    assert not one.under_tuned and [note.code for note in one.notes] == ["never_searched"]
    messages = board_text(make_board("b", [ours("rbm", 0.95)], result, {}, {}))
    assert "never searched" in messages and "no search of this model" in messages
    assert list_codes(ours("popular", 0.95), SettingsSource(fixed=True)) == []
    assert list_codes(ours("sgd", 0.83), SettingsSource(description="12 settings by hand")) == ["no_power"]
    assert list_codes(replace(ours("theirs", 0.8), origin="bundle"), None) == ["never_searched"]
    assert list_codes(replace(ours("published", 0.8), origin="published"), None) == []


def test_a_search_too_small_to_judge_has_no_power() -> None:
    few = SearchTrials(
        space={"rate": (0.0, 1.0), "reg": (0.0, 1.0)},
        trials=[{"settings": {"rate": x, "reg": y}, "value": x + y}
                for x, y in ((0.5, 0.2), (0.1, 0.7), (0.8, 0.9))],
    )  # fmt: skip
    assert list_codes(ours("m", 0.7), SettingsSource(few, {"rate": 0.5, "reg": 0.2})) == ["no_power"]


def test_a_choice_has_no_edge() -> None:
    trials = [
        {"settings": {"order": x, "reg": y}, "value": 0.9 - 0.1 * x + 0.001 * (y - 0.5) ** 2}
        for x in (0.0, 1.0, 2.0)
        for y in (0.1, 0.3, 0.5, 0.7, 0.9)
    ]
    space = {"order": (0.0, 1.0, 2.0), "reg": (0.0, 1.0)}
    choice = SearchTrials(space=space, trials=trials, noise=1e-4, choices=("order",))
    number = SearchTrials(space=space, trials=trials, noise=1e-4)
    assert "edge" in list_codes(ours("m", 0.7), SettingsSource(number))
    assert list_codes(ours("m", 0.7), SettingsSource(choice)) == []


def test_used_settings_are_matched_by_place() -> None:
    search = bowl()
    assert (
        find_trial(search, {"regulariser": 0.4}) == 6 and find_trial(search, {"regulariser": 0.3}) is None
    )
    assert uses_best(search, {"regulariser": 0.11}) and not uses_best(search, {"regulariser": 0.2})


def test_another_run_that_is_better_on_every_fold() -> None:
    """Less apart than the folds are, and surely better: p = .0003 was silent before folds were paired."""
    rng = np.random.default_rng(5)
    hard = rng.normal(0.84, 0.003, 10)
    one = {
        n: float(x + 0.0012 + e) for n, (x, e) in enumerate(zip(hard, rng.normal(0, 6e-4, 10), strict=True))
    }
    two = {n: float(x) for n, x in enumerate(hard)}
    runs = [
        BoardRun(method=name, value=float(np.mean([*of.values()])), spread=0.003, by_fold=of)
        for name, of in (("sgd_32", one), ("sgd_64", two))
    ]
    pair = compare_folds(one, two)
    assert pair is not None and 1e-5 < pair.p < 1e-3
    result = [judge_run(run, make_published_board(*runs)) for run in runs]
    assert [[reason.code for reason in one.reasons] for one in result] == [["better_run_known"], []]
    assert "fold by fold, over 10 folds" in result[0].reasons[0].text
    blind = [run.model_copy(update={"by_fold": {}}) for run in runs]
    assert not judge_run(blind[0], make_published_board(*blind)).under_tuned


def test_equal_differences_of_folds_say_nothing() -> None:
    pair = compare_folds({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.0})
    assert pair is not None and pair.mean == 1.0 and np.isnan(pair.t) and np.isnan(pair.p)
    same = compare_folds({0: 2.0, 1: 3.0}, {0: 2.0, 1: 3.0})
    assert same is not None and (same.mean, same.t, same.p) == (0.0, 0.0, 1.0)


def test_the_paired_table_by_hand() -> None:
    folds = {"a": (3.0, 5.0, 7.0), "b": (2.0, 3.0, 4.0), "c": (2.0, 3.0, 5.0)}
    entries = [ours(name, 1.0, fold_values=dict(enumerate(of))) for name, of in folds.items()]
    lines = pairs_text("b", [*entries, ours("no folds", 1.0)]).splitlines()
    assert len(lines) == 2 + 3 and "3 pairs" in lines[0]
    assert lines[2].split() == [
        "a",
        "b",
        "+2.0000",
        "+3.46",
        "0.074",
        "0.15",
        "+1.0000",
        "+2.0000",
        "+3.0000",
    ]
    assert "no two rows" in pairs_text("b", [ours("a", 1.0)])


def test_equal_trials_give_equal_chances_and_a_known_slope_is_seen() -> None:
    rng = np.random.default_rng(3)
    places = rng.random((16, 3))
    loss = 0.8 + 0.05 * (1.3 - places[:, 0]) ** 2 + 0.02 * (places[:, 1] - 0.4) ** 2
    surfaces = [Surface(places, loss, 1e-4) for _ in range(2)]
    reach = np.full((3, 2), 0.5)
    first, second = (one.find_better(one.places_nd[0], 0.002, reach) for one in surfaces)
    assert first.chance == second.chance > 0.9 and first.place_d[0] > 1
    inside = surfaces[0].find_better(surfaces[0].places_nd[0], 0.02, np.zeros((3, 2)))
    assert inside.chance < 0.2


@pytest.mark.full
def test_the_planted_world_in_small() -> None:
    """The study in small: of 15 of each kind one method may be missed and one be accused."""
    for dims in (2, 4):
        counts = count_verdicts(gather_methods(dims, 16, 15))
        assert counts["under-tuned"]["fine"] <= 1 and counts["under-tuned"]["flagged"] >= 3
        assert counts["fair"]["flagged"] <= 1 and counts["fair"]["fine"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3, 4])
@pytest.mark.parametrize(("dims", "budget"), [one for one in BUDGETS if one[1] >= 8])
def test_the_planted_world(dims: int, budget: int, seed: int) -> None:
    """The board flags 95 % of 100 under-tuned runs and at most 5 % of fair ones; "no power" is left out.

    The thresholds of the verdicts were chosen on seeds 1 and 2.
    """
    counts = count_verdicts(gather_methods(dims, budget, 100, seed))
    under_tuned, fair = counts["under-tuned"], counts["fair"]
    assert under_tuned["flagged"] >= 0.95 * (under_tuned["flagged"] + under_tuned["fine"])
    assert fair["flagged"] <= 0.05 * (fair["flagged"] + fair["fine"])


def test_methods_without_a_search_are_never_searched_and_none_is_flagged() -> None:
    counts = count_verdicts(drop_searches(gather_methods(2, 16, 3)))
    assert counts == {"under-tuned": {"never searched": 3}, "fair": {"never searched": 3}}


def test_seeds_of_the_planted_world_draw_other_methods() -> None:
    first, same, other = (make_method(1, 2, 16, seed) for seed in (0, 0, 1))
    assert first == same and first.tuning.search != other.tuning.search and first.excess != other.excess


def test_the_study_prints_a_line_a_budget(capsys, monkeypatch) -> None:
    monkeypatch.setattr(planted_boards, "BUDGETS", ((2, 4),))
    assert planted_boards.main(planted_boards.parser().parse_args(["--methods", "2"])) == 0
    assert "| 2 x 4 |" in capsys.readouterr().out
