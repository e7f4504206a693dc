"""A search as Spark tasks: validation rows alone, nothing tried twice, edges, later runs."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from recbench_spark.boards.search_spaces import replace_settings
from recbench_spark.commands.tune import describe_result, dry_run, resolve_search
from recbench_spark.config import make_benchmark
from recbench_spark.errors import ConfigError
from recbench_spark.models.fits import running
from recbench_spark.models.fits.tasks import name_settings
from recbench_spark.models.settings import make_model
from recbench_spark.night.results import find_grid_edges
from recbench_spark.query.answers import make_query_runner
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import BOARDS, FITS, TRIALS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.tuning import fold_fits
from recbench_spark.tuning.board_update import read_entries, update_board
from recbench_spark.tuning.credit import credit_searches, make_provenance
from recbench_spark.tuning.fold_fits import FitPlanner, run_plan
from recbench_spark.tuning.folds import open_folded_log
from recbench_spark.tuning.search import (
    SearchResult,
    apply_setting,
    check_searches,
    collect_searches,
    extend_searches,
    make_searches,
    read_searches,
    run_searches,
    trial_setting,
)
from recbench_spark.tuning.trials import RatingTrials
from tests.tuning.test_fold_fits import TASK, write_log

RATES = {"low": 0.0001, "high": 0.01, "log": True}
"""Too slow for five epochs: the best lies on the upper edge."""


def apply_best(model: Any, result: SearchResult) -> Any:
    """Return the model with the best settings of its searches, and the provenance of these."""
    better = apply_setting(model, trial_setting(result.space, result.best))
    return better.model_copy(update={"provenance": make_provenance(result, model.provenance)})


def benchmark(path: str, **search: Any) -> Any:
    spaces = {"sgd": {"rates": RATES}, "means": {"user_shrinkage": {"low": 0, "high": 50}}}
    return make_benchmark({
        "name": "tiny",
        "dataset": {"name": "tiny", "reader": "parquet", "path": path},
        "split": {"holdout": "folds", "folds": 3},
        "models": [{"name": "sgd", "kind": "sgd_mf", "dims": 2, "epochs": 5},
                   {"name": "means", "kind": "means"}],
        "evaluation": TASK,
        "search": {"budget": 4, "share": 0.2, "fold": 1, "seeds": 2, "spaces": spaces, **search},
    }, [], "test")  # fmt: skip


def test_a_search_is_resumed_extended_and_known_to_later_runs(tmp_path, monkeypatch) -> None:
    one = benchmark(write_log(tmp_path))
    store = ArrowStore(str(tmp_path / "warehouse"))
    journal = Journal(io.StringIO())
    fits = FitPlanner(store, one, open_folded_log(store, one, journal), purpose="search")
    trials_of = RatingTrials(fits, one.search)
    searches = make_searches(one, one.search, trials_of)
    small = one.search.model_copy(update={"budget": 2})
    run_searches(trials_of, small, searches, journal)
    counts: list[int] = []

    def count_tasks(session: Any, tasks: Any, *rest: Any) -> Any:
        counts.append(len(tasks))
        return running.run_tasks(session, tasks, *rest)

    monkeypatch.setattr(fold_fits, "run_tasks", count_tasks)
    results = run_searches(trials_of, one.search, searches, journal)
    run_searches(trials_of, one.search, searches, journal)
    assert counts == [8], "two more settings of two methods from two seeds"
    trials = store.rows(TRIALS)
    assert len(trials) == 8 and len({row["trial_id"] for row in trials}) == 8
    made = store.rows(FITS)
    assert {tuple(row["parts"]) for row in made} == {("validation",)}, (
        "no test row of the searched fold is looked at"
    )
    assert {row["fold"] for row in made} == {1} and {row["purpose"] for row in made} == {"search"}
    sgd = results["sgd"]
    assert sgd.best["value"] == min(row["value"] for row in trials if row["model"] == "sgd")
    assert [(edge.name, edge.side) for edge in sgd.edges] == [("rates", "high")]
    assert "lies on the high edge" in describe_result(sgd) and "expected best" in describe_result(sgd)

    further = extend_searches(one, one.search, trials_of, read_searches(store.rows, fits.log.log_id))
    beyond = {searched.model.name: searched.space for searched in further}
    assert (beyond["sgd"]["rates"].low, beyond["sgd"]["rates"].high) == (0.01, 0.1)
    better = run_searches(trials_of, one.search, further, journal)["sgd"]
    assert better.best["value"] < sgd.best["value"] and len(better.trials) == 8
    assert better.space["rates"].high == 0.1

    assert credit_searches(store, one).models[0].provenance.budget is None, "the file uses other rates"
    tuned = apply_best(one.models[0], better)
    assert tuned.rates.user_factors == better.best["searched"]["rates"]
    bare = tuned.model_copy(update={"provenance": one.models[0].provenance})
    later = credit_searches(store, one.model_copy(update={"models": (bare,)})).models[0]
    assert later.provenance.search_space["rates"] == (0.0001, 0.1)
    assert later.provenance.budget.startswith("8 settings, ")
    assert find_grid_edges(later, later.provenance) == [edge.name for edge in better.edges]


def names_credited(store: ArrowStore, one: Any) -> set[str]:
    return {model.name for model in credit_searches(store, one).models if model.provenance.budget}


def test_a_search_is_credited_by_model_settings_and_log(tmp_path) -> None:
    """Not by kind, not by the dataset's name, and not to a run that does not use what was result."""
    one = benchmark(write_log(tmp_path))
    store, journal = ArrowStore(str(tmp_path / "warehouse")), Journal(io.StringIO())
    fits = FitPlanner(store, one, open_folded_log(store, one, journal), purpose="search")
    trials = RatingTrials(fits, one.search)
    sgd = run_searches(trials, one.search, make_searches(one, one.search, trials)[:1], journal)["sgd"]
    tuned = apply_best(one.models[0], sgd).model_copy(update={"provenance": one.models[0].provenance})
    same_kind = tuned.model_copy(update={"name": "sgd_other"})
    wider = tuned.model_copy(update={"dims": 3})
    with_models = [one.model_copy(update={"models": (model, same_kind)}) for model in (tuned, wider)]
    assert names_credited(store, with_models[0]) == {"sgd"}
    assert names_credited(store, with_models[1]) == set(), "other dims than were searched"
    assert names_credited(store, one) == set(), "the file's rates are not those that were found"
    (tmp_path / "b").mkdir()
    elsewhere = benchmark(write_log(tmp_path / "b", timed=False))
    assert elsewhere.dataset.name == one.dataset.name
    assert names_credited(store, elsewhere.model_copy(update={"models": (tuned,)})) == set()
    fold = one.split.model_copy(update={"fold": 2})
    assert names_credited(store, with_models[0].model_copy(update={"split": fold})) == {"sgd"}


def verdict_codes(store: ArrowStore, one: Any) -> dict[str, list[str]]:
    log = open_folded_log(store, one, Journal(io.StringIO()))
    judged = update_board(store, one, log)
    return {
        f"{entry.name} {entry.evidence}": [said.code for said in judged.verdicts[entry.entry_id].remarks]
        for entry in judged.entries
    }


def test_a_later_search_is_joined_to_the_entry_that_uses_it(tmp_path) -> None:
    rates = {"low": 0.001, "high": 0.05, "log": True}
    one = benchmark(write_log(tmp_path), budget=8, seeds=1, spaces={"sgd": {"rates": rates}})
    low = replace_settings(one.models[0].model_dump(), {"rates": 0.0005})
    one = one.model_copy(update={"models": (make_model(low, "test"),)})
    store, journal = ArrowStore(str(tmp_path / "warehouse")), Journal(io.StringIO())
    fits = FitPlanner(store, one, open_folded_log(store, one, journal))
    run_plan(store, fits.over_folds(one.models), journal)
    assert list(verdict_codes(store, one).values()) == [["never_searched"]]

    trials = RatingTrials(replace(fits, purpose="search"), one.search)
    result = run_searches(trials, one.search, make_searches(one, one.search, trials), journal)["sgd"]
    (codes,) = verdict_codes(store, one).values()
    assert codes == ["better_not_used"]
    (row,) = store.rows(BOARDS)
    assert row["budget_settings"] is None, "what is not used is not credited"

    tuned = one.model_copy(update={"models": (apply_best(one.models[0], result),)})
    store.delete(TRIALS.name, "model", ["sgd"])
    run_plan(store, fits.over_folds(tuned.models), journal)
    assert sorted(verdict_codes(store, tuned)) != []
    ids = {row["entry_id"] for row in store.rows(BOARDS)}
    assert len(ids) == 2 and len(store.rows(BOARDS)) == 2
    run_searches(trials, one.search, make_searches(one, one.search, trials), journal)
    for _ in range(2):
        codes = list(verdict_codes(store, tuned).values())
        assert sorted("better_not_used" in known for known in codes) == [False, True]
    assert not any("never_searched" in known for known in codes)
    rows = store.rows(BOARDS)
    assert {row["entry_id"] for row in rows} == ids and len(rows) == 3, "a newer row of the entry, once"
    shown = make_query_runner(store)("SELECT budget_settings, fold_values FROM board_entries")
    assert sorted(shown.budget_settings.fillna(0)) == [0, 8]
    assert {dict(values)[0] for values in shown.fold_values} == {
        entry.fold_values[0] for entry in entries(store, one)
    }


def entries(store: ArrowStore, one: Any) -> list[Any]:
    return read_entries(store, one.name)


def test_what_was_tried_with_other_settings_of_the_file_is_another_search() -> None:
    """Three epochs, then fifteen, then beyond an edge of these: the best had three, and is left out."""

    def row(number: int, value: float, low: float, **settings: Any) -> dict[str, Any]:
        space = {"rates": {"low": low, "high": 10 * low, "log": True}}
        return {
            "model": "m", "trial_id": str(number), "finished_at": number, "metric": "ndcg@20",
            "value": value, "searched": {"rates": low * number}, "space_json": json.dumps(space),
            "settings_json": json.dumps({"rates": {"all": low * number}, **settings}),
        }  # fmt: skip

    rows = [row(1, 0.9, 0.1, epochs=3), row(2, 0.5, 0.1, epochs=15), row(3, 0.6, 1.0, epochs=15)]
    result = collect_searches(rows)["m"]
    assert [trial["trial_id"] for trial in result.trials] == ["3", "2"]
    assert (result.space["rates"].low, result.space["rates"].high) == (0.1, 10)
    assert [trial["trial_id"] for trial in collect_searches(rows[:1])["m"].trials] == ["1"]


def test_searches_of_all_items_and_of_trained_ones_are_two(tmp_path) -> None:
    """Else trials of the one would stand for those of the other, and boards would mix their fits."""
    trials = RatingTrials.__new__(RatingTrials)
    trials.log_id = "log"
    one = benchmark(write_log(tmp_path), spaces={"sgd": {"rates": RATES}})
    models = [{**one.models[0].model_dump(), "items": items} for items in ("trained", "catalogue")]
    (first,), (second,) = (
        make_searches(one.model_copy(update={"models": (make_model(model, "m"),)}), one.search, trials)
        for model in models
    )
    assert first.search_id != second.search_id
    learner = {"kind": "sgd_mf", "rates": 0.1}
    assert name_settings(learner, whole=False) == learner != name_settings(learner, whole=True)


def test_what_a_search_cannot_try_is_told_before_it_starts(tmp_path) -> None:
    path = write_log(tmp_path)

    def make_search(space: Any) -> Any:
        one = benchmark(path, spaces={"sgd": space})
        return check_searches(one, one.search)

    with pytest.raises(ConfigError, match=r"sgd_mf' has no setting 'rate'") as error:
        make_search({"rate": RATES})
    assert "did you mean 'rates'" in error.value.hint
    with pytest.raises(ConfigError, match="dims"):
        make_search({"dims": {"low": 0, "high": 4}})
    with pytest.raises(ConfigError, match="no model 'sgdd' in this file"):
        benchmark(path, spaces={"sgdd": {"rates": RATES}})
    with pytest.raises(ConfigError, match="no fold 3 in this split"):
        benchmark(path, fold=3)
    one = benchmark(path)
    with pytest.raises(ConfigError, match="declares no search"):
        resolve_search(one.model_copy(update={"search": None}), None, None)
    text = dry_run(one, resolve_search(one, "sgd", 7))
    assert "20% of the training rows of fold 1; they are test rows of the other folds" in text
    assert "7 settings per method, 2 fits each" in text and "rates: 0.0001 to 0.01, logarithmic" in text
