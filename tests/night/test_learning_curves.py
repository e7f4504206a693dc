"""Nights with learning curves: values against a slow oracle, tables, checks, switches, crossings."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbench_spark.analyses.curves.kernels.crossings import choose_pair, find_place
from recbench_spark.config import Benchmark, parse
from recbench_spark.core.resampling import mean_and_error, moments
from recbench_spark.errors import DataError, ProtocolError
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.night import batched_evaluation
from recbench_spark.night.night_status import find_finished_night
from recbench_spark.schemas import (
    CHECKS,
    COMPARISONS,
    CURVE_CROSSINGS,
    CURVE_RANKINGS,
    CURVE_VALUES,
    EMBEDDINGS,
    ITEMS,
    LEARNING_CURVES,
    METRICS,
    RUNS,
    SPLITS,
    USER_METRICS,
    Table,
)
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import DATE, Ran, run
from tests.one_fold_in import fold_in_explicit, fold_in_implicit

CURVES: dict[str, Any] = {
    "name": "curves",
    "dataset": {
        "name": "curves",
        "reader": "world",
        "world": {"users": 90, "items": 40, "interactions": 1800, "open_loop": 0, "seed": 3},
    },
    "split": {
        "order": "temporal",
        "holdout": "n_given",
        "n": 4,
        "held_out": {"of": "users", "test": 0.3, "valid": 0.3},
        "seed": 5,
    },
    "models": [
        {"name": "popular", "kind": "popular"},
        {"name": "als", "kind": "als", "rank": 3, "iterations": 3},
        {"name": "stars", "kind": "als", "rank": 3, "iterations": 3, "implicit": False},
        {"name": "switch", "kind": "switch", "first": "popular", "then": "als"},
        {"name": "at_2", "kind": "switch", "first": "als", "then": "popular", "at": 2},
        {"name": "best", "kind": "switch"},
    ],
    "evaluation": {
        "metrics": ["ndcg", "recall"],
        "k": [5, 10],
        "parts": ["valid", "test"],
        "definition": {"threshold": 4},
        "slices": [],
        "bootstrap": {"replicates": 50},
        "learning_curve": {"given": 4, "minimum": 2, "rankings": True},
    },
    "headline": "mandcg@10",
    "comparisons": {},
}


def curves(**changes: Any) -> Benchmark:
    """The benchmark with some settings of its section `learning_curve` replaced."""
    curve = {**CURVES["evaluation"]["learning_curve"], **changes}
    return parse(
        Benchmark, {**CURVES, "evaluation": {**CURVES["evaluation"], "learning_curve": curve}}, "tests"
    )


@pytest.fixture(scope="module")
def curve_night(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(ArrowStore(str(tmp_path_factory.mktemp("curves") / "warehouse")), curves())


LAST, MINIMUM, CUT = 4, 2, 10
PARTS = ("test", "valid")


def rows_by_run(night: Ran, table: Table, model: str, **wanted: Any) -> list[dict[str, Any]]:
    """Rows of a table of one model's run that have these values, without a job of Spark."""
    filters = [("run_id", "=", night.outcome.run_ids[model])]
    return night.store.rows(table, [*filters, *((name, "=", value) for name, value in wanted.items())])


def read_split_rows(night: Ran, table: Table) -> list[dict[str, Any]]:
    return night.store.rows(table, [("split_id", "=", night.night.split_id)])


def item_rows(night: Ran) -> dict[str, dict[str, Any]]:
    return {row["item_id"]: row for row in read_split_rows(night, ITEMS)}


def read_histories(night: Ran) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """The held-out users of each part, with (item, rating) by time; labels of tested rows name the part.

    The split gives four rows, so that a user with more has tested rows.
    """
    items = {name: row["item_index"] for name, row in item_rows(night).items()}
    rows = defaultdict(list)
    for row in read_split_rows(night, SPLITS):
        if row["part"] in ("given", "test", "valid"):
            rows[row["user_id"]].append(
                (row["event_time"], items[row["item_id"]], row["rating"], row["part"])
            )
    histories: dict[str, dict[str, list[tuple[int, float]]]] = {part: {} for part in PARTS}
    for user, events in rows.items():
        (part,) = {event[3] for event in events} - {"given"} or {None}
        if part is not None:
            histories[part][user] = [event[1:3] for event in sorted(events)]
    return histories


def read_factors(night: Ran, model: str) -> np.ndarray:
    """Item vectors of a model in float64; zeros for items without one."""
    settings = next(one for one in night.benchmark.models if one.name == model)
    items, key = item_rows(night), make_adapter(settings).key(night.night.data)
    factors = np.zeros((len(items), 3))
    for row in night.store.rows(EMBEDDINGS, [("model_id", "=", key), ("side", "=", "item")]):
        factors[items[row["id"]]["item_index"]] = row["vector"]
    return factors


def refit(night: Ran, model: str) -> Any:
    """Return a function from given rows to {item: score}: one ridge regression, or the items' counts."""
    if model == "popular":
        counts = {row["item_index"]: float(row["n_train"]) for row in item_rows(night).values()}
        return lambda rows: counts
    factors = read_factors(night, model)
    known = {int(i) for i in np.flatnonzero(factors.any(axis=1))}

    def fold(rows: list[tuple[int, float]]) -> dict[int, float]:
        used = [row for row in rows if row[0] in known and (model == "stars" or row[1] >= 4)]
        if not used:
            return {}
        items, ratings = np.array([row[0] for row in used]), np.array([row[1] for row in used])
        bounds = np.array([0, len(used)])
        if model == "stars":
            x = fold_in_explicit(bounds, items, ratings, factors, 0.05)[0]
        else:
            x = fold_in_implicit(bounds, items, np.ones(len(used)), factors, 0.05, alpha=1.0)[0]
        rounded = x.astype(np.float32).astype(np.float64)
        return {i: sum(float(a * b) for a, b in zip(rounded, factors[i], strict=True)) for i in known}

    return cache_rows(fold)


def cache_rows(fold: Any) -> Any:
    cached = cache(lambda rows: fold(list(rows)))
    return lambda rows: cached(tuple(rows))


def slow_ndcg(scores: dict[int, float], truth: dict[int, float]) -> Any:
    """NDCG of the items by score and then by id; None where no tested row is relevant."""
    relevant = {item for item, rating in truth.items() if rating >= 4}
    if not relevant:
        return None
    order = sorted(scores, key=lambda item: (-scores[item], item))[:CUT]
    gain = sum(1 / math.log2(rank + 1) for rank, item in enumerate(order, 1) if item in relevant)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(CUT, len(relevant)) + 1))
    return pytest.approx(gain / ideal, abs=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("model", ["popular", "als", "stars"])
def test_every_value_equals_a_refit_of_its_prefix(curve_night: Ran, model: str) -> None:
    scores_of = refit(curve_night, model)
    for part, users in read_histories(curve_night).items():
        standing = {user for user, rows in users.items() if len(rows) >= LAST + MINIMUM}
        stored = rows_by_run(curve_night, CURVE_VALUES, model, part=part, metric="ndcg")
        assert {row["user_id"] for row in stored} == standing and len(standing) >= 10
        for row in stored:
            events = users[row["user_id"]]
            hidden = {item for item, _ in events[:LAST]}
            truth = dict(events[LAST:])
            assert row["given"] == [1, 2, 3, 4] and row["ks"] == [5, 10, None]
            for point, value in zip(row["given"], row["values"][1], strict=True):
                scores = {i: s for i, s in scores_of(events[:point]).items() if i not in hidden}
                assert value == slow_ndcg(scores, truth)


@pytest.mark.full
def test_means_follow_from_the_values_of_users(curve_night: Ran) -> None:
    for part in PARTS:
        values = rows_by_run(curve_night, CURVE_VALUES, "als", part=part, metric="ndcg")
        table = np.array([row["values"][1] for row in values], float)
        means, errors, n = mean_and_error(moments(table))
        rows = rows_by_run(curve_night, LEARNING_CURVES, "als", part=part, metric="ndcg", k=CUT)
        by_point = {row["given"]: row for row in rows}
        assert sorted(by_point) == [1, 2, 3, 4]
        for at, point in enumerate(sorted(by_point)):
            row = by_point[point]
            assert (row["value"], row["stderr"], row["n"]) == (means[at], errors[at], n[at])
            assert row["ci_low"] <= row["value"] <= row["ci_high"] and row["share_below_zero"] == 0
        # MANDCG is the mean of a user's points, here all of the same weight.
        mandcg = rows_by_run(curve_night, USER_METRICS, "als", part=part, metric="mandcg")
        by_user = {row["user_id"]: row["values"][row["ks"].index(CUT)] for row in mandcg}
        with np.errstate(invalid="ignore"):
            expected = {row["user_id"]: np.nanmean(v) for row, v in zip(values, table, strict=True)
                        if not np.isnan(v).all()}  # fmt: skip
        assert {user: v for user, v in by_user.items() if v is not None} == pytest.approx(expected)
        (overall,) = rows_by_run(curve_night, METRICS, "als", part=part, metric="mandcg", k=CUT)
        assert overall["value"] == pytest.approx(np.mean(list(expected.values())))
        assert overall["definition"] == mandcg[0]["definition"] and "curve=1 to 4" in overall["definition"]


@pytest.mark.full
def test_one_model_at_a_time_gives_the_same_bits(curve_night: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {**CURVES, "name": "alone", "models": CURVES["models"][:1]}
    document["evaluation"] = {**CURVES["evaluation"], "learning_curve": {"given": 4, "minimum": 2}}
    benchmark = parse(Benchmark, document, "tests")
    monkeypatch.setattr(batched_evaluation, "MAX_MODELS", 1)
    alone = run(curve_night.store, benchmark)
    for table in (CURVE_VALUES, LEARNING_CURVES):
        both = [rows_by_run(night, table, "popular") for night in (curve_night, alone)]
        bare = [sorted(str({**row, "run_id": ""}) for row in rows) for rows in both]
        assert bare[0] and bare[0] == bare[1]
    # Its file asks for no ranks.
    assert not rows_by_run(alone, CURVE_RANKINGS, "popular")


@pytest.mark.full
@pytest.mark.parametrize("model", ["popular", "als", "stars"])
def test_ranks_on_request_give_the_values(curve_night: Ran, model: str) -> None:
    ranked = rows_by_run(curve_night, CURVE_RANKINGS, model, part="test")
    by_pair = {(row["user_id"], row["given"]): row for row in ranked}
    stored = rows_by_run(curve_night, CURVE_VALUES, model, part="test", metric="ndcg")
    assert len(by_pair) == len(ranked) == 4 * len(stored) > 40
    names = {row["item_index"]: name for name, row in item_rows(curve_night).items()}
    users = read_histories(curve_night)["test"]
    for row in stored:
        for point, value in zip(row["given"], row["values"][1], strict=True):
            pair = by_pair[row["user_id"], point]
            tested = users[row["user_id"]][LAST:]
            assert dict(zip(pair["item_ids"], pair["relevance"], strict=True)) == {
                names[item]: rating for item, rating in tested
            }
            places = zip(pair["above"], pair["before"], pair["relevance"], strict=True)
            ranks = [above + before + 1 for above, before, rating in places if rating >= 4 and above >= 0]
            relevant = sum(rating >= 4 for rating in pair["relevance"])
            ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(CUT, relevant) + 1))
            gain = sum(1 / math.log2(rank + 1) for rank in ranks if rank <= CUT)
            assert value == (pytest.approx(gain / ideal) if relevant else None)
            assert pair["draw"] is None and pair["definition"].startswith("curve=1 to 4 given by time")


# ------------------------------------------------------------------------------- switches


def read_curve(night: Ran, model: str, part: str) -> np.ndarray:
    rows = rows_by_run(night, LEARNING_CURVES, model, part=part, metric="ndcg", k=CUT)
    return np.array([row["value"] for row in sorted(rows, key=lambda row: row["given"])])


@pytest.mark.full
def test_a_switch_is_chosen_on_validation_users_and_measured_on_others(curve_night: Ran) -> None:
    valid = {model: read_curve(curve_night, model, "valid") for model in ("popular", "als", "stars")}
    place = find_place(valid["popular"], valid["als"], (1, 2, 3, 4))
    first, then, best = choose_pair(valid, (1, 2, 3, 4))
    expected = {
        "switch": ("popular", "als", place.given),
        "at_2": ("als", "popular", 2),
        "best": (first, then, best.given),
    }
    for model, (before, after, given) in expected.items():
        parts = ("test", "valid") if model == "at_2" else ("test",)
        stored = rows_by_run(curve_night, CURVE_VALUES, model)
        assert {row["part"] for row in stored} == set(parts)
        sides = [
            {
                (row["user_id"], row["part"], row["metric"]): row
                for row in rows_by_run(curve_night, CURVE_VALUES, name)
            }
            for name in (before, after)
        ]
        for row in stored:
            key = (row["user_id"], row["part"], row["metric"])
            spliced = [
                [*one[:given], *other[given:]]
                for one, other in zip(*(side[key]["values"] for side in sides), strict=True)
            ]
            assert row["values"] == spliced
        words = f"{before} up to {given} given ratings, then {after}: chosen"
        (published,) = rows_by_run(curve_night, RUNS, model)
        assert published["budget"].startswith(words)
        assert ("on part valid" in published["budget"]) == (model != "at_2")
        (noted,) = rows_by_run(curve_night, CHECKS, model, check="switch: given ratings")
        assert noted["observed"] == given and noted["detail"] == published["budget"]


@pytest.mark.full
def test_a_switch_stands_on_the_board_and_is_compared_with_its_models(curve_night: Ran) -> None:
    assert not curve_night.outcome.failed
    for model in ("popular", "als", "stars", "switch", "at_2", "best"):
        assert model in curve_night.outcome.leaderboard
    rows = curve_night.store.rows(
        COMPARISONS, [("metric", "=", "mandcg"), ("part", "=", "test"), ("k", "=", CUT)]
    )
    pairs = {frozenset((row["model"], row["other"])): row for row in rows}
    for other in ("popular", "als"):
        row = pairs[frozenset(("at_2", other))]
        assert row["users"] >= 10 and row["p_holm"] >= row["p_t"]
        assert row["ci_low"] <= row["difference"] <= row["ci_high"]
    (number,) = rows_by_run(curve_night, METRICS, "switch", part="test", metric="mandcg", k=CUT)
    assert number["ci_low"] < number["value"] < number["ci_high"]


@pytest.mark.full
def test_crossings_of_all_pairs_are_stored_and_shown(curve_night: Ran) -> None:
    rows = curve_night.store.rows(CURVE_CROSSINGS)
    assert {(row["part"], row["model"], row["other"]) for row in rows} == {
        (part, *pair)
        for part in PARTS
        for pair in (("als", "popular"), ("als", "stars"), ("popular", "stars"))
    }
    for row in rows:
        assert row["share_holm"] >= row["share_at_ends"] and row["shown"] == (row["share_holm"] < 0.05)
        assert row["given_low"] <= row["given_high"] and {row["first"], row["then"]} == {
            row["model"],
            row["other"],
        }
    page = Path(str(curve_night.outcome.report_path)).read_text()
    assert "<h2>Learning curves</h2>" in page and "ndcg by given ratings, test" in page
    assert "no crossing shown" in page or "given ratings, then" in page


@pytest.mark.full
def test_checks_count_users_and_given_items(curve_night: Ran) -> None:
    users = read_histories(curve_night)["test"]
    standing = [rows for rows in users.values() if len(rows) >= LAST + MINIMUM]
    checks = {row["check"]: row for row in rows_by_run(curve_night, CHECKS, "als")}
    assert checks["test: learning curves: users"]["observed"] == len(standing)
    # Users whose rows are all given are held out as well, and have too few rows.
    assert checks["test: learning curves: users with too few rows"]["observed"] >= len(users) - len(
        standing
    )
    no_relevant = sum(all(rating < 4 for _, rating in rows[LAST:]) for rows in standing)
    assert checks["test: learning curves: users without relevant items"]["observed"] == no_relevant
    untrained = {row["item_index"] for row in item_rows(curve_night).values() if not row["n_train"]}
    given = [item for rows in standing for item, _ in rows[:LAST]]
    share = checks["test: learning curves: given items without training rows"]
    assert share["observed"] == sum(item in untrained for item in given) / len(given)
    assert f"4: {sum(item in untrained for item in given)} of {len(given)}" in share["detail"]
    assert checks["test: learning curves: users with equal times"]["observed"] == 0


# ------------------------------------------------------------------------------- again, and bad input


@pytest.mark.full
def test_a_night_that_is_done_is_not_run_again(curve_night: Ran) -> None:
    assert find_finished_night(curve_night.store.root, curve_night.benchmark, DATE) is not None
    again = run(curve_night.store, curve_night.benchmark)
    assert not again.outcome.run_ids and len(again.outcome.skipped) == 6
    assert len(again.store.rows(CURVE_CROSSINGS)) == 6


@pytest.mark.full
def test_points_beyond_every_history_are_refused_before_a_model_is_fitted(curve_night: Ran) -> None:
    runs = len(curve_night.store.rows(RUNS))
    with pytest.raises(DataError, match="no user of part 'valid' has 502 rows; the longest of"):
        run(curve_night.store, curves(given=500))
    assert len(curve_night.store.rows(RUNS)) == runs


def test_an_order_by_time_needs_times(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    pairs = [(user, item) for user in range(40) for item in range(8) if (user + item) % 3]
    log.write_text("user_id,item_id,rating\n" + "".join(f"{u},{i},4\n" for u, i in pairs))
    document = {
        **CURVES,
        "dataset": {"name": "log", "reader": "csv", "path": str(log)},
        "split": {**CURVES["split"], "order": "random"},
    }
    with pytest.raises(ProtocolError, match="order 'time' needs a time in every row"):
        run(ArrowStore(str(tmp_path / "warehouse")), parse(Benchmark, document, "tests"))
