"""A search as Spark tasks: validation rows alone, nothing tried twice, edges, later runs."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from recbench_spark.commands.tuning import asked_search, dry_run, in_words
from recbench_spark.config import make_benchmark
from recbench_spark.errors import ConfigError
from recbench_spark.journal import Journal
from recbench_spark.schemas import FITS, TRIALS
from recbench_spark.steps import fitting
from recbench_spark.steps.fitting import Fits
from recbench_spark.steps.folding import folded_log
from recbench_spark.steps.rating_trials import RatingTrials
from recbench_spark.steps.results import grid_edges
from recbench_spark.steps.tuning import (
    best_model,
    check_searches,
    first_searches,
    found_in,
    further_searches,
    known_searches,
    run_searches,
    with_searches,
)
from recbench_spark.store import Store
from recbench_spark.training.fits import running
from tests.steps.test_fitting import TASK, write_log

RATES = {"low": 0.0001, "high": 0.01, "log": True}
"""Too slow for five epochs: the best lies on the upper edge."""


def benchmark(path: str, **search: Any) -> Any:
    spaces = {"sgd": {"rates": RATES}, "means": {"user_shrinkage": {"low": 0, "high": 50}}}
    return make_benchmark({
        "name": "tiny",
        "dataset": {"name": "tiny", "reader": "csv", "path": path},
        "split": {"holdout": "folds", "folds": 3},
        "models": [{"name": "sgd", "kind": "sgd_mf", "dims": 2, "epochs": 5},
                   {"name": "means", "kind": "means"}],
        "evaluation": TASK,
        "search": {"budget": 4, "share": 0.2, "fold": 1, "seeds": 2, "spaces": spaces, **search},
    }, [], "test")  # fmt: skip


@pytest.mark.spark
def test_a_search_is_resumed_extended_and_known_to_later_runs(spark, tmp_path, monkeypatch) -> None:
    one = benchmark(write_log(tmp_path))
    store = Store(spark, str(tmp_path / "warehouse"))
    journal = Journal(io.StringIO())
    fits = Fits(store, one, folded_log(store, one, journal), purpose="search")
    trials_of = RatingTrials(fits, one.search)
    searches = first_searches(one, one.search, trials_of)
    small = one.search.model_copy(update={"budget": 2})
    run_searches(trials_of, small, searches, journal)
    asked: list[int] = []

    def counted(session: Any, tasks: Any, *rest: Any) -> Any:
        asked.append(len(tasks))
        return running.run_tasks(session, tasks, *rest)

    monkeypatch.setattr(fitting, "run_tasks", counted)
    found = run_searches(trials_of, one.search, searches, journal)
    run_searches(trials_of, one.search, searches, journal)
    assert asked == [8], "two more settings of two methods from two seeds"
    trials = store.read(TRIALS).collect()
    assert len(trials) == 8 and len({row.trial_id for row in trials}) == 8
    made = store.read(FITS).collect()
    assert {tuple(row.parts) for row in made} == {("validation",)}, "test rows are never looked at"
    assert {row.fold for row in made} == {1} and {row.purpose for row in made} == {"search"}
    sgd = found["sgd"]
    assert sgd.best["value"] == min(row.value for row in trials if row.model == "sgd")
    assert [(edge.name, edge.side) for edge in sgd.edges] == [("rates", "high")]
    assert "lies on the high edge" in in_words(sgd) and "expected best" in in_words(sgd)

    further = further_searches(one, one.search, trials_of, known_searches(store, fits.log.log_id))
    beyond = {searched.model.name: searched.space for searched in further}
    assert (beyond["sgd"]["rates"].low, beyond["sgd"]["rates"].high) == (0.01, 0.1)
    better = run_searches(trials_of, one.search, further, journal)["sgd"]
    assert better.best["value"] < sgd.best["value"] and len(better.trials) == 8
    assert better.space["rates"].high == 0.1

    later = with_searches(store, one).models[0]
    assert later.provenance.search_space["rates"] == (0.0001, 0.1)
    assert later.provenance.budget.startswith("8 settings, ")
    assert grid_edges(later, later.provenance) == [edge.name for edge in better.edges]
    tuned = best_model(one.models[0], better)
    assert tuned.rates.user_factors == better.best["searched"]["rates"]


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
    found = found_in(rows)["m"]
    assert [trial["trial_id"] for trial in found.trials] == ["3", "2"]
    assert (found.space["rates"].low, found.space["rates"].high) == (0.1, 10)
    assert [trial["trial_id"] for trial in found_in(rows[:1])["m"].trials] == ["1"]


def test_what_a_search_cannot_try_is_told_before_it_starts(tmp_path) -> None:
    path = write_log(tmp_path)

    def searched(space: Any) -> Any:
        one = benchmark(path, spaces={"sgd": space})
        return check_searches(one, one.search)

    with pytest.raises(ConfigError, match=r"sgd_mf' has no setting 'rate'") as error:
        searched({"rate": RATES})
    assert "did you mean 'rates'" in error.value.hint
    with pytest.raises(ConfigError, match="dims"):
        searched({"dims": {"low": 0, "high": 4}})
    with pytest.raises(ConfigError, match="no model 'sgdd' in this file"):
        benchmark(path, spaces={"sgdd": {"rates": RATES}})
    with pytest.raises(ConfigError, match="no fold 3 in this split"):
        benchmark(path, fold=3)
    one = benchmark(path)
    with pytest.raises(ConfigError, match="declares no search"):
        asked_search(one.model_copy(update={"search": None}), None, None)
    told = dry_run(one, asked_search(one, "sgd", 7))
    assert "7 settings a method, 2 fits each" in told and "rates: 0.0001 to 0.01, logarithmic" in told
