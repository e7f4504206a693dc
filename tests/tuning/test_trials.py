"""Searches of models that rank: nights over training rows alone, resumed, reported, known to later
nights."""

from __future__ import annotations

import io
import json
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.commands.tune import describe_result, dry_run
from recbench_spark.config import Benchmark, parse
from recbench_spark.errors import ConfigError
from recbench_spark.night.night import open_night
from recbench_spark.night.run_keys import hash_run_key, hash_split
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import RUNS, SPLITS, TRIALS
from recbench_spark.sources.arrow_files import identity
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.store import Store
from recbench_spark.tuning.credit import credit_searches
from recbench_spark.tuning.search import (
    check_searches,
    make_searches,
    read_searches,
    run_searches,
)
from recbench_spark.tuning.trials import (
    DAY,
    RankingTrials,
    check_trials,
    validation_benchmark,
    write_training_log,
)
from tests.nights import DATE, SMALL
from tests.tuning.test_search import apply_best

SPACES = {
    "item_knn": {"neighbours": {"low": 1, "high": 30}},
    "bpr": {"rate": {"low": 0.001, "high": 0.1, "log": True}, "negatives": {"low": 1, "high": 4}},
}


def benchmark(**changes: Any) -> Benchmark:
    return parse(Benchmark, {
        **SMALL,
        "models": [{"name": "popular", "kind": "popular"},
                   {"name": "item_knn", "kind": "item_knn", "neighbours": 10},
                   {"name": "bpr", "kind": "mf_bpr", "dims": 4, "epochs": 2}],
        "headline": "ndcg@5",
        "search": {"budget": 2, "share": 0.25, "seeds": 2, "spaces": SPACES},
        **changes,
    }, "test")  # fmt: skip


@pytest.mark.full
def test_settings_are_tried_on_training_rows_and_resumed(tmp_path) -> None:
    one, journal = benchmark(), Journal(io.StringIO())
    store = ArrowStore(str(tmp_path / "warehouse"))
    trials = RankingTrials(store, one, one.search, DATE, journal)
    searches = make_searches(one, one.search, trials)
    results = run_searches(trials, one.search, searches, journal)
    rows = store.rows(TRIALS)
    assert {(row["model"], row["number"], row["metric"]) for row in rows} == {
        (model, number, "ndcg@5") for model in SPACES for number in range(2)
    }
    assert {row["model"]: len(row["fit_ids"]) for row in rows} == {"item_knn": 1, "bpr": 2}, "a run a seed"
    assert all(0 < row["value"] < 1 for row in rows)
    best = max((row for row in rows if row["model"] == "bpr"), key=itemgetter("value"))
    assert results["bpr"].best["trial_id"] == best["trial_id"], "of a ranking the largest is best"
    assert "validation ndcg@5" in describe_result(results["bpr"])

    inner = open_night(store, trials.inner, DAY).split_id
    outer = open_night(store, one, DATE).split_id
    key = ["user_id", "item_id"]
    trained = store.rows(SPLITS, [("split_id", "=", outer), ("part", "=", "train")], key)
    used = store.rows(SPLITS, [("split_id", "=", inner)])
    pairs = [sorted((row["user_id"], row["item_id"]) for row in side) for side in (used, trained)]
    assert pairs[0] == pairs[1], "no held-out row is read"
    share = sum(row["part"] == "test" for row in used) / len(used)
    assert 0.15 < share < 0.3

    run_searches(trials, one.search, searches, journal)
    more = one.search.model_copy(update={"budget": 3})
    run_searches(trials, more, make_searches(one, more, trials), journal)
    assert len(store.rows(TRIALS)) == 6
    runs = store.rows(RUNS, [("suite", "=", "small-search")])
    assert len(runs) == 3 + 6, "none is run again"
    (place,) = {json.loads(row["config_json"])["dataset"]["path"] for row in runs}
    assert place.startswith("fit_files/"), "a warehouse that is moved names its own log"

    later = {model.name: model.provenance for model in credit_searches(store, one).models}
    assert all(provenance.budget is None for provenance in later.values()), "the file uses other settings"
    known = read_searches(store.rows, trials.log_id)
    tuned = [apply_best(model, known[model.name]) if model.name in known else model for model in one.models]
    bare = [model.model_copy(update={"provenance": one.models[0].provenance}) for model in tuned]
    sliced = one.model_copy(update={"models": tuple(bare)})
    later = {model.name: model.provenance for model in credit_searches(store, sliced).models}
    assert later["item_knn"].budget.startswith("3 settings, ") and later["popular"].budget is None
    assert later["item_knn"].search_space == {"neighbours": (1.0, 30.0)}


GRU = {"name": "gru", "kind": "gru4rec", "history": "with_valid"}


def test_models_that_read_times_get_them_on_any_split(tmp_path) -> None:
    store, journal = ArrowStore(str(tmp_path / "warehouse")), Journal(io.StringIO())
    plain = write_training_log(open_night(store, benchmark(), DATE), journal)
    one = benchmark(models=[GRU], search=None)
    timed = write_training_log(open_night(store, one, DATE), journal)
    assert not one.split.temporal and plain != timed
    assert "event_time" not in pq.read_table(plain).column_names
    rows = pq.read_table(timed)
    assert 0 == rows["event_time"].null_count < len(rows)


def test_both_runners_name_a_search_alike(spark, tmp_path) -> None:
    """The bytes of the training log name it, and hang on no file of the split."""
    names = {}
    for store in (ArrowStore(str(tmp_path / "local")), Store(spark, str(tmp_path / "spark"))):
        trials = RankingTrials(store, benchmark(), benchmark().search, DATE, Journal(io.StringIO()))
        names[store.root] = (trials.log_id, trials.credited_log_id)
    assert len(names) == 2 and len(set(names.values())) == 1


def test_trials_show_no_part_valid() -> None:
    """A trial holds out a part test alone, so `with_valid` has nothing to show in it."""
    one = benchmark(models=[GRU], search={"spaces": {"gru": {"rate": {"low": 0.001, "high": 0.1}}}})
    (model,) = validation_benchmark(one, one.search, "log").models
    assert model.history == "train" and one.models[0].history == "with_valid"


def test_what_cannot_be_searched_is_told_before_spark_starts() -> None:
    def make_search(space: Any, **changes: Any) -> None:
        one = benchmark(search={"spaces": space}, **changes)
        check_searches(one, one.search)
        check_trials(one)

    with pytest.raises(ConfigError, match="mf_bpr' has no setting 'rates'") as error:
        make_search({"bpr": {"rates": {"low": 0.1, "high": 1}}})
    assert "did you mean 'rate'" in error.value.hint
    with pytest.raises(ConfigError, match="rate"):
        make_search({"bpr": {"rate": {"low": 0.0, "high": 1.0}}})
    with pytest.raises(ConfigError, match="popular' has no settings of its own"):
        make_search({"popular": {"x": {"low": 0, "high": 1}}})
    with pytest.raises(ConfigError, match="candidates are given"):
        given = {"definition": {"candidates": "given"}, "candidates_path": "c.parquet"}
        make_search({"bpr": SPACES["bpr"]}, evaluation=given)
    make_search(SPACES)
    one = benchmark()
    text = dry_run(one, one.search)
    assert "25% of each user's training rows, ndcg@5" in text and "rate: 0.001 to 0.1, logarithmic" in text


def test_names_of_trial_nights_do_not_depend_on_the_place_of_the_warehouse(tmp_path) -> None:
    """A moved warehouse keeps its trials; no session is needed to name them."""
    one = benchmark()
    named = []
    for place in (tmp_path / "here", tmp_path / "moved" / "there"):
        place.mkdir(parents=True)
        rows = pa.table({"user_id": [1], "item_id": [2], "rating": [3.0]})
        pq.write_table(rows, place / "part-0.parquet")
        inner = validation_benchmark(one, one.search, str(place))
        split_id, inputs = hash_split(identity, inner)
        keys = [
            hash_run_key(inner, inner.evaluation.resolve(), split_id, inputs, each) for each in inner.models
        ]
        named.append((split_id, inputs, keys))
    assert named[0] == named[1] and len(set(named[0][2])) == len(one.models)
