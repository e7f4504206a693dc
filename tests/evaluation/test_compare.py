"""Comparisons outside of a night: by hand, against scipy, with the bits of a night, and what is refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats

import recbench_spark
from recbench_spark.analyses.comparisons.comparison import Comparison
from recbench_spark.analyses.comparisons.comparisons import compare as compare_runs
from recbench_spark.analyses.comparisons.differences import ComparisonPlan, find_regression
from recbench_spark.analyses.comparisons.kernels.significance import holm
from recbench_spark.analyses.comparisons.local_comparisons import make_slices
from recbench_spark.config import Bootstrap, Comparisons, Regression
from recbench_spark.errors import ConfigError, DataError, RecbenchError
from recbench_spark.night.comparisons import make_plan
from recbench_spark.schemas import RUNS, USER_METRICS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import RANKED, Ran

# Each of four users wants one item.
TRUTH = pd.DataFrame({"user_id": ["a", "b", "c", "d"], "item_id": [1, 2, 3, 4]})
ALS = pd.DataFrame({"user_id": ["a", "b", "c", "d"], "item_id": [1, 2, 3, 9], "rank": 1})
POPULAR = pd.DataFrame({"user_id": ["a", "b", "c", "d"], "item_id": [1, 1, 1, 1], "rank": 1})


def by_hand(**options: Any) -> Comparison:
    options = {"metrics": "hit@1", "bootstrap": 400, **options}
    return recbench_spark.compare({"als": ALS, "popular": POPULAR}, TRUTH, **options)


def read_row(comparison: Comparison, **wanted: Any) -> pd.Series:
    frame = comparison.to_pandas()
    for name, value in wanted.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1, (wanted, len(frame))
    return frame.iloc[0]


def test_four_users_by_hand() -> None:
    """Differences of hits are 0, 1, 1, 0: their variance is 1/3, and t is the root of 3."""
    row = read_row(by_hand())
    difference = [Fraction(d) for d in (0, 1, 1, 0)]
    mean = sum(difference) / 4
    variance = sum((d - mean) ** 2 for d in difference) / 3
    assert (mean, variance) == (Fraction(1, 2), Fraction(1, 3))
    assert (row["value"], row["other_value"], row["difference"]) == (3 / 4, 1 / 4, 1 / 2)
    assert row["stderr"] == pytest.approx(math.sqrt(variance / 4), rel=1e-15)
    assert row["p_t"] == pytest.approx(2 * stats.t.sf(math.sqrt(3), 3), rel=1e-14)
    assert row["effect"] == pytest.approx(float(mean) / math.sqrt(variance), rel=1e-15)
    # Both of two differences are positive: 2 of 4 patterns of signs are as extreme.
    assert row["p_wilcoxon"] == Fraction(1, 2)
    assert (row["wins"], row["ties"], row["losses"], row["users"]) == (2, 2, 0, 4)
    # The sum of signs is 2 or -2 in half of the draws.
    assert abs(row["p_randomisation"] - 0.5) < 4 * math.sqrt(0.25 / 400)
    seen = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * row["stderr"]
    assert row["detectable"] == pytest.approx(seen, rel=1e-12)
    assert row["verdict"] == "unclear" and row["p_holm"] == row["p_t"]


@pytest.mark.parametrize("users", [1, 2, 5, 6, 40])
def test_equal_differences_of_few_users_say_nothing(users: int) -> None:
    """All hits against none: five equal signs come by chance in 2 of 32 cases, six in 2 of 64."""
    truth = pd.DataFrame({"user_id": np.arange(users), "item_id": 1})
    hits, misses = truth.assign(rank=1), truth.assign(item_id=2, rank=1)
    made = recbench_spark.compare({"hits": hits, "misses": misses}, truth, metrics="hit@1", bootstrap=200)
    row, few = read_row(made), [check for check in made.checks if "fewer than 30 users" in check.check]
    assert row["difference"] == 1.0
    if users < 6:
        assert row["verdict"] == "unclear" and pd.isna(row["ci_low"]) and pd.isna(row["ci_high"])
        assert "have no verdict" in few[0].detail and "warning: comparisons over fewer" in repr(made)
    else:
        assert row["verdict"] == "better" and (row["ci_low"], row["ci_high"]) == (1.0, 1.0)
    assert [check.passed for check in few] == ([] if users == 40 else [False])


def test_a_certain_fall_needs_users_who_can_show_it() -> None:
    rule = Regression(metric="hit", k=1, drop=0.1, certain=True)
    row = {"kind": "previous", "part": "test", "metric": "hit", "k": 1, "model": "als", "difference": -1.0}
    plan = ComparisonPlan((), (), (), (), {}, Bootstrap(), rules=(rule,))
    fallen = [
        find_regression(plan, {**row, "users": users, "ci_low": low, "ci_high": low})[:2]
        for users, low in ((1, None), (5, -1.0), (6, -1.0))
    ]
    assert fallen == [(0.1, False), (0.1, False), (0.1, True)]


# ------------------------------------------------------------------------------------------- oracle

RNG = np.random.default_rng(11)
WORLD = pd.DataFrame(
    {
        "user_id": np.repeat(np.arange(90), 4),
        "item_id": np.concatenate([RNG.choice(40, 4, False) for _ in range(90)]),
    }
)


def draw_lists(seed: int, known: float) -> pd.DataFrame:
    """Lists of ten items, of which a share is drawn from the truth."""
    rng = np.random.default_rng(seed)
    rows = []
    for user, own in WORLD.groupby("user_id"):
        hits = own.item_id[rng.random(len(own)) < known].to_numpy()
        items = rng.permutation(np.unique(np.concatenate([hits, rng.choice(40, 8, False)])))
        rows += [(user, int(item), rank) for rank, item in enumerate(items, 1)]
    return pd.DataFrame(rows, columns=["user_id", "item_id", "rank"])


MODELS = {"good": draw_lists(1, 0.6), "fair": draw_lists(2, 0.5), "poor": draw_lists(3, 0.2)}
OPTIONS: dict[str, Any] = {"metrics": ["ndcg", "recall"], "k": [5, 10], "bootstrap": 300}


@pytest.fixture(scope="module")
def three_models() -> Comparison:
    return recbench_spark.compare(MODELS, WORLD, **OPTIONS)


def user_values(model: str, metric: str, k: int) -> np.ndarray:
    result = recbench_spark.evaluate(WORLD, lists=MODELS[model], metrics=metric, k=k, bootstrap=0)
    rows = result.user_metrics.to_pandas().sort_values("user_id")
    return np.array([values[list(ks).index(k)] for ks, values in zip(rows.ks, rows["values"], strict=True)])


@pytest.mark.parametrize(("metric", "k"), [("ndcg", 5), ("ndcg", 10), ("recall", 5)])
@pytest.mark.parametrize("model", ["good", "fair"])
def test_numbers_agree_with_scipy(three_models: Comparison, model: str, metric: str, k: int) -> None:
    x, y = user_values(model, metric, k), user_values("poor", metric, k)
    row = read_row(three_models, model=model, metric=metric, k=k)
    test = stats.ttest_rel(x, y)
    assert row["difference"] == pytest.approx((x - y).mean(), abs=1e-9)
    assert row["stderr"] == pytest.approx(stats.sem(x - y), rel=1e-6)
    assert row["p_t"] == pytest.approx(test.pvalue, rel=1e-6)
    steps = np.rint((x - y) * 2**16)
    expected = stats.wilcoxon(steps, method="approx", correction=False).pvalue
    assert row["p_wilcoxon"] == pytest.approx(expected, rel=1e-9)
    assert row["ci_low"] < row["difference"] < row["ci_high"]
    drawn = stats.bootstrap(
        (x - y,), np.mean, n_resamples=2000, method="percentile", rng=5
    ).confidence_interval
    assert row["ci_low"] == pytest.approx(drawn.low, abs=0.5 * row["stderr"])
    assert row["ci_high"] == pytest.approx(drawn.high, abs=0.5 * row["stderr"])
    assert (row["wins"], row["ties"], row["losses"]) == ((x > y).sum(), (x == y).sum(), (x < y).sum())
    shuffled = stats.permutation_test(
        (x, y), lambda a, b: np.mean(a - b), permutation_type="samples", n_resamples=2000, rng=5
    ).pvalue
    assert abs(row["p_randomisation"] - shuffled) < 0.1


def test_the_family_is_named_and_adjusted(three_models: Comparison) -> None:
    frame = three_models.to_pandas()
    assert len(frame) == 2 * (2 + 2) and three_models.baseline == "poor"
    np.testing.assert_allclose(frame.p_holm, holm(frame.p_t.to_numpy()), rtol=1e-15)
    assert three_models.family == (
        "8 t-tests of good, fair with poor on ndcg@5, ndcg@10, recall@5, recall@10 of test"
    )
    two_metrics = recbench_spark.compare(MODELS, WORLD, metrics=["ndcg@5", "recall@10"], bootstrap=300)
    numbers = two_metrics.to_pandas()
    assert set(zip(numbers.metric, numbers.k, strict=True)) == {("ndcg", 5), ("recall", 10)}
    np.testing.assert_allclose(numbers.p_holm, holm(numbers.p_t.to_numpy()), rtol=1e-15)
    assert two_metrics.family.startswith("4 t-tests")


def test_all_numbers_are_compared_where_none_is_named() -> None:
    options = {"metrics": ["ndcg", "recall", "auc"], "k": [5, 10], "bootstrap": 0}
    results = {
        name: recbench_spark.evaluate(WORLD, lists=MODELS[name], **options) for name in ("good", "poor")
    }

    def list_pairs(**chosen: Any) -> set[tuple[str, int | None]]:
        frame = recbench_spark.compare(results, bootstrap=20, **chosen).to_pandas()
        return {(m, None if pd.isna(k) else k) for m, k in zip(frame.metric, frame.k, strict=True)}

    at_five = {("ndcg", 5), ("recall", 5), ("auc", None)}
    assert list_pairs() == {*at_five, ("ndcg", 10), ("ndcg", None), ("recall", 10)}
    assert list_pairs(k=5) == at_five
    assert list_pairs(metrics=["recall", "recall@10"], k=5) == {("recall", 5)}
    assert list_pairs(metrics=["recall@10", "auc"]) == {("recall", 10), ("auc", None)}
    assert list_pairs(metrics=["recall", "ndcg"], k=[None, 10]) == {
        ("recall", 10),
        ("ndcg", 10),
        ("ndcg", None),
    }


def test_order_changes_no_bit(three_models: Comparison) -> None:
    shuffled = {
        name: MODELS[name].sample(frac=1, random_state=n) for n, name in enumerate(("fair", "good", "poor"))
    }
    truth = WORLD.sample(frac=1, random_state=9)
    again = recbench_spark.compare(shuffled, truth, baseline="poor", **OPTIONS).to_pandas()
    order = ["model", "metric", "k"]
    pd.testing.assert_frame_equal(
        again.sort_values(order).reset_index(drop=True),
        three_models.to_pandas().sort_values(order).reset_index(drop=True),
        check_exact=True,
    )


def test_the_other_side_is_the_mirror_image() -> None:
    pair = {name: MODELS[name] for name in ("good", "poor")}
    ours = recbench_spark.compare(pair, WORLD, **OPTIONS).to_pandas()
    theirs = recbench_spark.compare(pair, WORLD, baseline="good", **OPTIONS).to_pandas()
    for name in ("difference", "effect"):
        assert (theirs[name] == -ours[name]).all()
    for name in ("p_t", "p_wilcoxon", "p_randomisation", "p_bootstrap", "stderr", "detectable", "ties"):
        assert (theirs[name] == ours[name]).all()
    assert (theirs.wins == ours.losses).all() and (theirs.value == ours.other_value).all()
    np.testing.assert_allclose(theirs.ci_low, -ours.ci_high, atol=1e-15)


def test_results_and_lists_give_the_same(three_models: Comparison) -> None:
    options = {**OPTIONS, "bootstrap": 0}
    several = recbench_spark.evaluate(WORLD, lists=MODELS, **options)
    single = {
        name: recbench_spark.evaluate(WORLD, lists=lists, **options) for name, lists in MODELS.items()
    }
    for source in (several, single):
        again = recbench_spark.compare(source, k=[5, 10], bootstrap=300).to_pandas()
        pd.testing.assert_frame_equal(again, three_models.to_pandas(), check_exact=True)


def test_users_of_one_side_are_counted_and_not_compared() -> None:
    """Under mllib only users with a list are averaged."""
    pair = {
        "good": MODELS["good"][MODELS["good"].user_id >= 10],
        "poor": MODELS["poor"][MODELS["poor"].user_id < 85],
    }
    comparison = recbench_spark.compare(pair, WORLD, metrics="ndcg@5", preset="mllib", bootstrap=100)
    row = read_row(comparison)
    assert (row["users"], row["only_model"], row["only_other"]) == (75, 5, 10)
    (check,) = [check for check in comparison.checks if "alone" in check.check]
    assert check.observed == 15 and not check.passed
    assert "5 have a value of good alone, 10 of poor alone" in check.detail
    # The tests by resampling exist too: both sides are averaged over the users of both.
    assert row["p_randomisation"] > 0 and row["p_bootstrap"] > 0
    both = {name: lists[lists.user_id.between(10, 84)] for name, lists in MODELS.items() if name in pair}
    same = read_row(recbench_spark.compare(both, WORLD, metrics="ndcg@5", preset="mllib", bootstrap=100))
    numbers = ["value", "other_value", "difference", "stderr", "ci_low", "ci_high", "p_randomisation"]
    assert row[numbers].tolist() == same[numbers].tolist()


def test_slices_of_users_add_up_to_all() -> None:
    labels = pd.DataFrame({"userId": range(80), "land": ["north", "south"] * 40})
    comparison = recbench_spark.compare(MODELS, WORLD, metrics="ndcg@5", bootstrap=50, slices=labels)
    rows = comparison.slices.to_pandas()
    good = rows[rows.model == "good"]
    (whole,) = good[good.slice_key.isna()].to_dict("records")
    lands = good[good.slice_key == "land"]
    assert set(lands.slice_value) == {"north", "south"} and lands.users.tolist() == [40, 40]
    relevant = good[good.slice_key == "n_relevant"]
    assert relevant.slice_value.tolist() == ["4-7"]
    assert relevant[["difference", "wins", "ties", "losses"]].values.tolist() == [
        [whole["difference"], whole["wins"], whole["ties"], whole["losses"]]
    ]
    x, y = user_values("good", "ndcg", 5), user_values("poor", "ndcg", 5)
    users = np.array(sorted(map(str, range(90))), dtype=int)
    north = (users < 80) & (users % 2 == 0)
    (row,) = lands[lands.slice_value == "north"].to_dict("records")
    assert row["difference"] == pytest.approx((x - y)[north].mean(), abs=1e-9)
    assert row["wins"] == (x > y)[north].sum()
    with pytest.raises(DataError, match="a user stands twice"):
        recbench_spark.compare(MODELS, WORLD, slices=pd.concat([labels, labels]))


def test_metrics_that_are_best_when_small_and_exceed_one() -> None:
    rng = np.random.default_rng(4)
    outcome = rng.integers(1, 6, 300).astype(float)
    rows = {"user_id": np.arange(300) % 30, "item_id": np.arange(300), "outcome": outcome}
    results = {
        name: recbench_spark.evaluate_predictions(
            pd.DataFrame({**rows, "prediction": outcome + noise * rng.normal(size=300)}), bootstrap=0
        )
        for name, noise in (("near", 1.0), ("far", 30.0))
    }
    comparison = recbench_spark.compare(results, metrics="mse", bootstrap=200)
    row = read_row(comparison)
    assert row["difference"] < -100 and row["wins"] > row["losses"]
    assert row["verdict"] == "better" and comparison.find_marks() == ["+"]
    other = pd.DataFrame({**rows, "outcome": outcome[::-1], "prediction": outcome})
    results["other"] = recbench_spark.evaluate_predictions(other, bootstrap=0)
    with pytest.raises(ConfigError, match="their held-out items differ"):
        recbench_spark.compare(results)


# ----------------------------------------------------------------------------------------- refusals


def evaluate_pair(**second: Any) -> dict[str, Any]:
    base = {"metrics": ["ndcg", "recall"], "k": 5, "bootstrap": 0}
    return {
        "one": recbench_spark.evaluate(WORLD, lists=MODELS["good"], **base),
        "two": recbench_spark.evaluate(
            second.pop("truth", WORLD), lists=MODELS["poor"], **{**base, **second}
        ),
    }


def test_other_definitions_are_refused() -> None:
    pair = evaluate_pair(definition={"ideal": "k"})
    with pytest.raises(
        ConfigError, match="ndcg of one is of the definition v1 and that of two of v1;ideal=k"
    ):
        recbench_spark.compare(pair)
    assert len(recbench_spark.compare(pair, metrics="recall").to_pandas()) == 1


def test_another_truth_is_refused() -> None:
    moved = WORLD.assign(item_id=np.where(WORLD.user_id == 3, WORLD.item_id + 40, WORLD.item_id))
    with pytest.raises(ConfigError, match="one and two: held-out items of 1 of 90 users differ"):
        recbench_spark.compare(evaluate_pair(truth=moved))
    grades = WORLD.assign(relevance=np.where(WORLD.user_id < 2, 2.0, 1.0))
    with pytest.raises(ConfigError, match="items of 2 of 90 users differ"):
        recbench_spark.compare(evaluate_pair(truth=grades))


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"metrics": "coverage"}, "no values of users of coverage", "ndcg, recall"),
        ({"metrics": "ndgc"}, "no values of users of ndgc", "did you mean 'ndcg'?"),
        ({"k": 7}, "k: no values at 7", "known: 5, the whole ranking"),
        ({"baseline": "thre"}, "baseline is 'thre'", "known: one, two"),
        ({"part": "valid"}, "part 'valid' is not in all of the runs", "one: test; two: test"),
        ({"bootstrap": 0}, "bootstrap is 0", "1000"),
        ({"k": "x"}, "k: 'x' is no cut-off", "whole numbers"),
        ({"k": [0]}, "k: 0 is no cut-off", "whole numbers"),
        ({"metrics": 5}, "metrics is 5", "ndcg@10"),
        ({"metrics": [None]}, "metrics is [None]", "ndcg@10"),
        ({"minimum": -1}, "minimum is -1", "smallest difference"),
        ({"minimum": math.nan}, "minimum is nan", "smallest difference"),
        ({"slices": 5}, "slices: int is not a table", "pandas"),
        ({"preset": "recbole"}, "preset is not used with results", "definitions"),
    ],
)
def test_what_is_not_there_is_refused(options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(RecbenchError) as error:
        recbench_spark.compare(evaluate_pair(), **options)
    assert message in error.value.message and hint in error.value.hint


@pytest.mark.parametrize(
    ("models", "truth", "message"),
    [
        ({"als": ALS}, TRUTH, "1 models to compare"),
        (ALS, TRUTH, "models is"),
        ({"als": ALS, "popular": POPULAR}, None, "models is"),
        ([1, 2], None, "models is"),
    ],
)
def test_what_are_no_models_is_refused(models: Any, truth: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recbench_spark.compare(models, truth)


# -------------------------------------------------------------------------------------------- views


def test_a_comparison_has_every_view(three_models: Comparison, tmp_path: Path) -> None:
    latex = three_models.to_latex(tmp_path / "table.tex", digits=3)
    assert (tmp_path / "table.tex").read_text() == latex
    lines = latex.splitlines()
    assert " & ndcg@5 & ndcg@10 & recall@5 & recall@10 \\\\" in lines
    (line,) = [line for line in lines if line.startswith("good")]
    assert line.count("$^{+}$") == 4
    (caption,) = [line for line in lines if line.startswith("\\caption")]
    assert (
        "$^{+}$ better, $^{-}$ worse than poor" in caption and "Holm" in caption and "90 users" in caption
    )
    assert [line.partition(" ")[0] for line in lines[7:10]] == ["poor", "good", "fair"]
    figure = three_models.plot(tmp_path / "picture.pdf")
    assert len(figure.axes) == 4 and (tmp_path / "picture.pdf").stat().st_size > 1000
    page = three_models._repr_html_()
    assert "8 t-tests" in page and "n_relevant" in page
    files = three_models.save(tmp_path / "saved")
    record = json.loads((tmp_path / "saved" / "comparison.json").read_text())
    assert len(files) == 4 and record["version"] == recbench_spark.__version__
    assert record["settings"]["replicates"] == 300 and len(record["differences"]) == 8
    assert record["differences"][0]["difference"] == three_models.to_pandas().difference[0]
    assert "8 t-tests of good, fair" in repr(three_models)


def test_a_baseline_over_other_users_stands_in_parentheses() -> None:
    models = {**MODELS, "good": MODELS["good"][MODELS["good"].user_id >= 10]}
    latex = recbench_spark.compare(models, WORLD, metrics="ndcg@5", preset="mllib", bootstrap=50).to_latex()
    lines = latex.splitlines()
    assert not [line for line in lines if line.startswith("poor")]
    assert all("(0." in line for line in lines if line.startswith(("good", "fair")))
    assert "80 to 90 users" in latex


# -------------------------------------------------------------------------------------------- night


@pytest.mark.full
def test_the_bits_are_those_of_a_night(small_night: Ran) -> None:
    settings = Comparisons(baseline="popular", replicates=60, minimum_difference=0.01)
    plan = make_plan(small_night.night, settings)
    assert plan is not None
    store = small_night.store
    rows = store.open_rows(USER_METRICS, "run_id", [run.run_id for run in plan.runs])
    tests = compare_runs(rows, plan, {}, 2)
    nightly = tests.filter(tests.column("with_baseline")).to_pandas()
    comparison = recbench_spark.compare(
        sorted(RANKED), warehouse=store.root, suite="small", baseline="popular", minimum=0.01,
        bootstrap=Bootstrap(replicates=60),
    )  # fmt: skip
    ours: pd.DataFrame = comparison.differences.to_pandas()
    key = ["model", "part", "metric", "k"]
    same = [
        *("other", "run_id", "other_run_id", "definition", "users", "value", "other_value", "difference"),
        *("stderr", "ci_low", "ci_high", "p_t", "p_randomisation", "p_bootstrap", "p_wilcoxon", "effect"),
        *("detectable", "verdict", "family", "p_holm", "p_bh"),
    ]
    frames = [one.sort_values(key).reset_index(drop=True)[[*key, *same]] for one in (nightly, ours)]
    assert len(ours) == len(nightly) == 128 and set(ours.metric) >= {"ndcg", "auc", "hit"}
    pd.testing.assert_frame_equal(*frames, check_exact=True, check_dtype=False)


def test_runs_are_named_by_id_model_and_night(small_night: Ran) -> None:
    root = small_night.store.root
    ids = {model: run_id for model, run_id in small_night.outcome.run_ids.items() if model in RANKED}
    options: dict[str, Any] = {"warehouse": root, "suite": "small", "metrics": "ndcg@10", "bootstrap": 20}
    names = recbench_spark.compare(["random", "popular"], **options).to_pandas()
    nights = {"random": "random@2026-01-01", "popular": "popular@2026-01-01"}
    by_id = {name: ids[name] for name in ("random", "popular")}
    for models in (nights, by_id):
        pd.testing.assert_frame_equal(recbench_spark.compare(models, **options).to_pandas(), names)
    for models, message in (
        (["random", "populr"], "no run 'populr' in suite small"),
        (["random", "popular@2026-02-01"], "no run 'popular@2026-02-01'"),
        (["random", "paper"], "has no values of users"),
        ("random", "models is 'random'"),
        (5, "models is 5"),
        ([], r"models is \[\]"),
        ({"a": "random", "b": 5}, "models is"),
        (["random"], "1 models to compare"),
        (["random", "random@2026-01-01"], "random and random@2026-01-01 are one run"),
    ):
        with pytest.raises(ConfigError, match=message):
            recbench_spark.compare(models, **options)


@dataclass(frozen=True)
class Published:
    """A run of one user, with what decides whether it compares."""

    model: str
    split: str = "s1"
    part: str = "test"
    definition: str = "v1"
    suite: str = "small"
    day: int = 1
    kind: str = "lists"
    revisions: str | None = None


def publish(store: ArrowStore, *runs: Published) -> None:
    for number, run in enumerate(runs, 1):
        run_id = f"r{number}"
        facts = {"run_id": run_id, "run_key": "key", "attempt": 1, "suite": run.suite, "model": run.model}
        facts |= {
            "model_kind": run.kind,
            "revisions": run.revisions,
            "status": "succeeded",
            "logical_date": date(2026, 1, run.day),
        }
        facts |= {"split_id": run.split, "source": "own", "dataset": "small"}
        facts |= {"finished_at": datetime(2026, 1, run.day, tzinfo=UTC)}
        store.append([{name: facts.get(name) for name in RUNS.names}], RUNS)
        values = {"run_id": run_id, "user_id": "u", "part": run.part, "metric": "ndcg", "n_relevant": 1}
        values |= {"definition": run.definition, "estimator": "holdout", "ks": [5], "values": [0.5]}
        store.append([values], USER_METRICS)


@pytest.mark.parametrize(
    ("runs", "names", "message", "hint"),
    [
        (
            (Published("one"), Published("two", split="s2", day=2)), ["one", "two"],
            r"one \(2026-01-01\) is of split s1 and two \(2026-01-02\) of split s2", "MODEL@YYYY-MM-DD",
        ),
        (
            (Published("one"), Published("two", part="valid")), ["one", "two"],
            "other parts of their split", "one: test; two: valid",
        ),
        (
            (Published("one"), Published("two", definition="v1;gain=linear")), ["one", "two"],
            "ndcg of one is of the definition v1 and that of two of v1;gain=linear", "one definition",
        ),
        (
            (Published("one"), Published("one", suite="large"), Published("two")), ["one", "two"],
            "'one' is a model of the suites large, small", "--suite",
        ),
    ],
)  # fmt: skip
def test_runs_that_do_not_compare_are_refused(
    runs: tuple[Published, ...], names: list[str], message: str, hint: str, tmp_path: Path
) -> None:
    store = ArrowStore(str(tmp_path / "warehouse"))
    publish(store, *runs)
    with pytest.raises(ConfigError, match=message) as error:
        recbench_spark.compare(names, warehouse=store.root)
    assert hint in error.value.hint


def test_runs_of_the_newest_common_split_are_taken(tmp_path: Path) -> None:
    """`two` was run again on a newer split, where `one` was not; `s1.1` is `s1`, made again."""
    store = ArrowStore(str(tmp_path / "warehouse"))
    runs = (Published("one"), Published("two", day=2, split="s1.1"), Published("two", day=3, split="s2"))
    publish(store, *runs)
    row = recbench_spark.compare(
        ["one", "two"], warehouse=store.root, bootstrap=10
    ).differences.to_pylist()[0]
    assert (row["run_id"], row["other_run_id"], row["difference"]) == ("r1", "r2", 0.0)
    assert row["p_t"] is None and row["verdict"] == "unclear"  # of few users


OLD = Published("one", revisions='{"metrics": 2, "item_knn": 2}', kind="item_knn")


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (Published("two", revisions='{"metrics": 3}'), "are of other code, metrics 2 -> 3: run them anew"),
        (Published("two", revisions='{"metrics": 2}'), None),
        (Published("two", revisions='{"metrics": 2}', kind="item_knn"), "item_knn 2 -> 1"),
        (Published("two"), "metrics 2 -> 1"),
    ],
    ids=["other metrics", "another kind", "another revision of the kind", "older than revisions"],
)
def test_runs_of_other_code_give_a_warning(other: Published, expected: str | None, tmp_path: Path) -> None:
    store = ArrowStore(str(tmp_path / "warehouse"))
    publish(store, OLD, other)
    comparison = recbench_spark.compare(["one", "two"], warehouse=store.root, bootstrap=10)
    warnings = [check for check in comparison.checks if check.check == "code of one and two"]
    assert [expected in check.detail for check in warnings if expected] == [True] * bool(expected)
    assert bool(warnings) == bool(expected)


def test_the_tests_need_neither_torch_nor_spark() -> None:
    code = (
        "import sys; from recbench_spark.analyses.comparisons.kernels import significance as s; "
        "import numpy as np; "
        "print(s.paired_t(s.pair_sums(np.array([[1.0, 0.0], [0.5, 0.0]]))).mean[0, 1]); "
        "print({'torch', 'pyspark'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.75", "set()"]


def test_a_cutoff_that_one_model_lacks_is_refused() -> None:
    both = recbench_spark.evaluate(TRUTH, lists=ALS, metrics="hit", k=(1, 2))
    one = recbench_spark.evaluate(TRUTH, lists=POPULAR, metrics="hit", k=2)
    for request in ({"k": (1, 2)}, {"metrics": "hit@1"}):
        with pytest.raises(ConfigError, match="no values at 1 for every model"):
            recbench_spark.compare({"als": both, "popular": one}, bootstrap=20, **request)
    row = read_row(recbench_spark.compare({"als": both, "popular": one}, bootstrap=20, k=2), metric="hit")
    assert row["k"] == 2


def test_a_model_without_common_users_is_refused() -> None:
    def evaluate(lists: pd.DataFrame, truth: pd.DataFrame = TRUTH) -> Any:
        return recbench_spark.evaluate(truth, lists=lists, metrics="hit", k=1)

    others = {"user_id": ["w", "x", "y", "z"]}
    pair = {"als": evaluate(ALS), "popular": evaluate(POPULAR)}
    apart = evaluate(ALS.assign(**others), TRUTH.assign(**others))
    with pytest.raises(DataError, match="apart and popular have no users in common"):
        recbench_spark.compare({"apart": apart, **pair}, bootstrap=20)
    assert len(recbench_spark.compare(pair, bootstrap=20, k=1).to_pandas()) == 1


def test_slices_of_relevant_items_are_those_of_the_part() -> None:
    """User a has one item in `test` and four in `valid`."""
    rows = pa.table(
        {
            "part": ["test", "valid"],
            "user_id": ["a", "a"],
            "n_relevant": pa.array([1, 4], pa.int32()),
        }
    )
    slices = make_slices(rows, None)
    labels = {
        part: {(name, label) for name, label, mask in one.find(one.keys_u) if mask.any()}
        for part, one in slices.items()
    }
    assert labels == {"test": {("n_relevant", "1")}, "valid": {("n_relevant", "4-7")}}
