"""The study of Simpson's paradox: its parts by hand, its numbers beside a night's, twenty models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
import yaml

from jobs.studies import loop_estimates, loops, simpson, simpson_findings, simpson_runs
from jobs.studies.loop_estimates import HOLDOUT, ONE, Column
from recbench_spark.analyses.comparisons.kernels.significance import kendall_tau_b
from recbench_spark.boards.settings import SearchSettings
from recbench_spark.config import Benchmark, Dataset, load_benchmark, parse
from recbench_spark.errors import ConfigError, DataError, MissingError
from recbench_spark.models.rating.interface import Ratings
from recbench_spark.models.rating.kinds import VectorModel
from recbench_spark.models.rating.own import Vectors
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.schemas import METRICS, RUNS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import read_rows, run

USERS, ITEMS = 60, 40
FAMILIES: dict[str, dict[str, Any]] = {
    "wmf": {"kind": "wmf", "epochs": 3, "rate": 0.05},
    "gmf": {"kind": "gmf", "epochs": 2, "rate": 0.05},
    "ials": {"kind": "implicit_als", "sweeps": 2},
    "als": {"kind": "als_wr", "sweeps": 2},
    "sgd": {"kind": "sgd_mf", "epochs": 2},
    "neumf": {"kind": "neumf", "epochs": 2, "layers": [8, 4]},
}
TWENTY: list[dict[str, Any]] = [
    {"name": "popular", "kind": "popular"},
    {"name": "global_mean", "kind": "means", "means": "global"},
    *(
        {"name": f"{name}_{dims}", "dims": dims, **family}
        for name, family in FAMILIES.items()
        for dims in (2, 3, 4)
    ),
]
EVALUATION: dict[str, Any] = {
    "metrics": ["ndcg", "recall", "precision", "map"],
    "k": [5, 10],
    "parts": ["test"],
    "definition": {"threshold": 4, "candidates": "all", "ties": "expected", "hit": "count"},
    "slices": [],
    "bootstrap": {"replicates": 0},
    "exposure": {
        "propensities": {"method": "power_law"},
        "estimators": ["ips", "snips_user", "stratified"],
        "strata": {"kind": "equal_mass", "n": [2, 3]},
    },
}  # fmt: skip


class NoNumberModel(VectorModel):
    """Vectors that are no numbers."""

    kind: Literal["no_number"]

    def fit(self, ratings: Ratings, seed: int) -> Vectors:
        return Vectors(np.full((ratings.n_users, 1), np.nan), np.zeros((ratings.n_items, 1)))


@pytest.fixture(scope="module")
def coat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matrices as those of Coat: a closed loop that follows popularity, and an open one that does not."""
    folder, rng = tmp_path_factory.mktemp("coat"), np.random.default_rng(11)
    taste = rng.normal(size=(USERS, 2)) @ rng.normal(size=(2, ITEMS)) + rng.normal(size=ITEMS)
    rating = np.clip(np.rint(3 + taste + rng.normal(scale=0.5, size=taste.shape)), 1, 5).astype(int)
    shown = 1 / np.arange(1, ITEMS + 1)
    for name, chance, rows in (("train", shown / shown.sum(), 14), ("test", None, 10)):
        matrix = np.zeros_like(rating)
        for user in range(USERS):
            items = rng.choice(ITEMS, rows, replace=False, p=chance)
            matrix[user, items] = rating[user, items]
        np.savetxt(folder / f"{name}.ascii", matrix, fmt="%d")
    return folder


def make_benchmark(folder: Path, models: list[dict[str, Any]], **sections: Any) -> Benchmark:
    document = {
        "name": "small_study",
        "dataset": {"name": "coat", "reader": "coat", "path": str(folder), "closed_loop": "split"},
        "split": {"order": "random", "holdout": "ratio", "group": "global", "open_loop": "all"},
        "models": models,
        "evaluation": EVALUATION,
        **sections,
    }
    return parse(Benchmark, document, "test")


def run_study(benchmark: Benchmark, seed: int = 1, folder: Path | None = None) -> Any:
    work = simpson_runs.prepare_seed(benchmark, seed, folder)
    models = simpson_runs.seed_closed_loop(benchmark, seed).models
    return simpson_runs.collect_results(list(simpson_runs.run_models(models, work, 1)), work)


# ------------------------------------------------------------------------------- the log


def test_a_log_is_labelled_by_the_split(coat: Path) -> None:
    benchmark = make_benchmark(coat, TWENTY)
    closed, opened = (
        loops.label_log(loops.read_rows(night.dataset), night)
        for night in (
            simpson_runs.seed_closed_loop(benchmark, 1),
            simpson_runs.seed_open_loop(benchmark, 1),
        )
    )
    matrix = np.loadtxt(coat / "train.ascii")
    held, learnt = closed.select("test"), closed.select("train")
    assert len(held) + len(learnt) == (matrix > 0).sum() == len(opened.select("train"))
    assert 0.1 < len(held) / (matrix > 0).sum() < 0.3
    for rows in (held, learnt):
        assert np.array_equal(matrix[rows.users_r, rows.items_r], rows.ratings_r)
    assert len(opened.select("open_loop")) == USERS * 10 == len(closed.select("open_loop"))
    assert closed.count_items("train", "test").tolist() == (matrix > 0).sum(axis=0).tolist()
    other = loops.label_log(loops.read_rows(benchmark.dataset), simpson_runs.seed_closed_loop(benchmark, 2))
    assert other.digest() != closed.digest()


@pytest.mark.parametrize("reader", ["coat", "movielens_1m", "netflix"])
def test_other_logs_are_refused(reader: str) -> None:
    dataset = parse(Dataset, {"name": "x", "reader": reader, "path": "somewhere"}, "test")
    with pytest.raises(MissingError, match="no such file or folder: somewhere"):
        loops.read_rows(dataset)


def test_a_broken_matrix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.ascii").write_text("1 2 3\n1 2\n")
    (tmp_path / "test.ascii").write_text("1 2 3\n1 2 3\n")
    with pytest.raises(DataError, match=r"train\.ascii"):
        loops.read_rows(parse(Dataset, {"name": "x", "reader": "coat", "path": str(tmp_path)}, "test"))


def test_yahoo_is_read_as_two_loops(tmp_path: Path) -> None:
    for name, text in (("train", "1\t14\t5\n2\t35\t1\n"), ("test", "1\t49\t1\n")):
        (tmp_path / f"ydata-ymusic-rating-study-v1_0-{name}.txt").write_text(text)
    dataset = parse(Dataset, {"name": "x", "reader": "yahoo_r3", "path": str(tmp_path)}, "test")
    rows = loops.read_rows(dataset).select(["user_id", "item_id", "rating", "part"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("1", "14", 5.0, "train"), ("2", "35", 1.0, "train"), ("1", "49", 1.0, "open_loop"),
    ]  # fmt: skip


def test_movielens_is_read_in_both_forms(tmp_path: Path) -> None:
    dataset = parse(Dataset, {"name": "x", "reader": "movielens_1m", "path": str(tmp_path)}, "test")
    pd.DataFrame({"user": [1, 2], "item": [7, 9], "rating": [4, 5]}).to_csv(
        tmp_path / "ratings.tsv.gz", sep="\t", index=False
    )
    tabs = loops.read_rows(dataset).drop_columns("event_time")
    (tmp_path / "ratings.dat").write_text("1::7::4::978300760\n2::9::5::978300761\n")
    assert loops.read_rows(dataset).drop_columns("event_time").equals(tabs)
    assert tabs.column("item_id").to_pylist() == ["7", "9"] and tabs.column("part").null_count == 2


def test_items_without_training_rows_are_not_ranked() -> None:
    train = Ratings(np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([5.0, 4, 3]), 3, 3)
    (als,) = make_benchmark(Path("x"), [{"name": "als", "kind": "als_wr", "dims": 2, "sweeps": 1}]).models
    fitted = loops.fit_scorer(als, train, 4.0)
    assert fitted.scorer.scored_i.tolist() == [True, True, False]
    assert fitted.known_u.tolist() == [True, True, False]
    (popular,) = make_benchmark(Path("x"), [{"name": "popular", "kind": "popular"}]).models
    by_count = loops.fit_scorer(popular, train, 4.0)
    assert by_count.scorer.products is not None
    assert by_count.scorer.products.bias_i.tolist() == [2, 1, 0]


# ------------------------------------------------------------------------------- propensities, strata


def test_the_wrong_key_is_the_place_of_first_appearance() -> None:
    chances, train = np.array([0.1, 0.2, 0.3, 0.4]), np.array([3, 3, 1, 2, 1])
    order = train[np.random.default_rng(6).permutation(5)].tolist()
    numbered = list(dict.fromkeys(order))
    wanted = [chances[numbered.index(item)] if item in numbered else chances[item] for item in range(4)]
    assert loop_estimates.miskey(chances, train, 6).tolist() == wanted


def test_strata_by_hand() -> None:
    chances, mass = np.array([1.0, 2.0, 3.0, 11.0]), np.array([1, 1, 2, 4])
    cut = {
        kind: loop_estimates.cut_items(kind, 2, chances, mass)
        for kind in ("equal_width", "equal_count", "equal_mass")
    }
    assert cut["equal_width"].stratum_i.tolist() == [0, 0, 0, 1]
    assert cut["equal_count"].items == (2, 2) and cut["equal_mass"].items == (3, 1)
    assert loop_estimates.cut_items("equal_mass", 1, chances, mass).items == (4,)


def test_one_stratum_is_the_holdout_and_quotients_ignore_the_scale(coat: Path) -> None:
    results = run_study(make_benchmark(coat, TWENTY[:4]))
    assert np.array_equal(results.estimates[ONE], results.estimates[HOLDOUT])
    simpson.check_one_stratum(results)
    results.estimates[ONE][0, 0] += 1e-16
    with pytest.raises(DataError, match="one stratum"):
        simpson.check_one_stratum(results)


# ------------------------------------------------------------------------------- findings


def test_leads_and_pairs_equal_plain_loops(coat: Path) -> None:
    benchmark = make_benchmark(coat, TWENTY[:9])
    work = simpson_runs.prepare_seed(benchmark, 1)
    models = simpson_runs.seed_closed_loop(benchmark, 1).models
    results = simpson_runs.collect_results(list(simpson_runs.run_models(models, work, 1)), work)
    columns = work.plan.columns
    truth = results.truth_mc  # whole-number means: models with equal values tie
    np.testing.assert_allclose(truth, np.nanmean(results.truth_umc, axis=0), atol=1e-14)
    rows = simpson_findings.compare_estimators(results, columns, 20)
    for row in rows:
        c = [str(column) for column in columns].index(row["column"])
        own = results.estimates[row["estimator"]][:, c]
        if np.isfinite(own).all() and np.ptp(own):
            assert row["tau"] == pytest.approx(kendall_tau_b(own, truth[:, c]), abs=1e-12)
    assert {row["estimator"] for row in rows if "adjusted_p" in row} <= set(work.plan.strata)
    pairs = simpson_findings.compare_pairs(results, columns, ("wmf", "gmf"), ("ndcg",))
    assert [(row["part"], row["size"]) for row in pairs] == [
        (part, size) for part in ("whole", "Q1", "Q2", "open loop") for size in ("2", "3", "4")
    ]
    place = list(results.models).index("wmf_2")
    assert pairs[0]["first"] == pytest.approx(np.nanmean(results.holdout_umc[:, place, 2]), abs=1e-12)
    assert all(row["adjusted_p"] >= row["p"] for row in pairs)
    assert sum(row["tested"] for row in simpson_findings.list_strata(work)) == len(
        work.closed.select("test")
    )


def test_families() -> None:
    assert [simpson_runs.name_family(name) for name in ("pmf_linear_10", "popular", "bpr_100")] == [
        "pmf_linear", "popular", "bpr",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["gmf", "gmf:", "a:b:c"])
def test_pairs_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a list of pairs"):
        simpson.parse_pairs(text)


def test_a_pair_must_be_in_the_file(coat: Path) -> None:
    with pytest.raises(ConfigError, match="no family 'bpr'") as error:
        simpson.check_study(make_benchmark(coat, TWENTY), [("wmf", "bpr")])
    assert "wmf" in error.value.hint


# ------------------------------------------------------------------------------- searches


def test_a_search_sees_training_rows_alone(coat: Path) -> None:
    benchmark = make_benchmark(coat, TWENTY)
    work = simpson_runs.prepare_seed(benchmark, 1)
    inner, train = simpson_runs.hold_rows_out(work.closed, 0.2, 5), work.closed.select("train")
    learnt, watched = inner.select("train"), inner.select("valid")
    pairs = {(u, i) for rows in (learnt, watched) for u, i in zip(rows.users_r, rows.items_r, strict=True)}
    assert pairs == set(zip(train.users_r, train.items_r, strict=True))
    assert len(learnt) + len(watched) == len(train) and len(watched) > 0
    with pytest.raises(DataError):
        inner.select("test")


def test_the_best_setting_is_that_of_all_sizes(coat: Path) -> None:
    benchmark = make_benchmark(coat, TWENTY)
    work = simpson_runs.prepare_seed(benchmark, 1)
    space = {"wmf_3": {"rate": {"low": 0.001, "high": 0.5, "log": True}}}
    search = SearchSettings.model_validate({"budget": 3, "share": 0.2, "spaces": space})
    best = simpson_runs.search_settings(benchmark.models, search, Column("ndcg", 10), work, 1)
    setting, value = best["wmf_3"]
    inner = simpson_runs.hold_rows_out(work.closed, search.share, search.seed)
    chosen = simpson_runs.apply_settings(benchmark.models, best)
    assert {model.rate for model in chosen if model.name.startswith("wmf")} == {setting["rate"]}
    (model,) = (model for model in chosen if model.name == "wmf_3")
    rankings = loops.rank_part(
        loops.fit_scorer(model, inner.select("train"), 4.0), loops.list_tested(inner, "valid")
    )
    values = loop_estimates.measure_users(rankings, work.plan)
    assert value == pytest.approx(np.nanmean(values[:, work.plan.columns.index(Column("ndcg", 10))]))


# ------------------------------------------------------------------------------- the whole


@pytest.mark.full
def test_twenty_models_through_the_whole_study(
    coat: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study prints every table, goes on where it ended, and one model that fails ends no other."""
    failing = {"name": "no_number", "kind": f"{__name__}:NoNumberModel"}
    search = {"budget": 2, "share": 0.2, "spaces": {"wmf_2": {"epochs": {"low": 1, "high": 3}}}}
    document = make_benchmark(coat, [*TWENTY, failing], search=search).model_dump(
        mode="json", exclude_unset=True
    )
    file, table = tmp_path / "small.yaml", tmp_path / "table.csv"
    file.write_text(yaml.safe_dump(document))
    flags = ["--config", str(file), "--seeds", "1,2", "--processes", "1", "--replicates", "10", "--tuned"]
    flags += ["--pairs", "gmf:wmf", "--folder", str(tmp_path / "ranks"), "--table", str(table)]
    assert simpson.main(simpson.parser().parse_args(flags)) == 0
    printed = capsys.readouterr()
    for title in (
        "Strata as published", "tau-b with the open loop", "2 to 10 strata", "Limits", "Claims",
        "adjusted by Benjamini and Hochberg", "gmf:wmf, ndcg@10",
    ):  # fmt: skip
        assert title in printed.out
    assert printed.err.count("model no_number failed") == 2
    rows = pd.read_csv(table)
    assert set(rows.seed) == {1, 2}
    assert set(rows[(rows.table == "lead") & rows.tau.notna()].models) == {20}
    monkeypatch.setattr(loops, "fit_scorer", lambda *_: pytest.fail("a fit is repeated"))
    file.write_text(yaml.safe_dump({**document, "models": document["models"][:-1]}))
    assert simpson.main(simpson.parser().parse_args(flags)) == 0
    assert capsys.readouterr().out == printed.out


@pytest.mark.full
def test_the_numbers_are_those_of_two_nights(coat: Path, tmp_path: Path) -> None:
    """Plain and stratified values are equal to the last bit; weighted ones are added in another order."""
    chosen = [
        model
        for model in TWENTY
        if model["name"] in ("popular", "global_mean", "wmf_3", "als_2", "neumf_2")
    ]
    benchmark, store = make_benchmark(coat, chosen), ArrowStore(str(tmp_path))
    work = simpson_runs.prepare_seed(benchmark, 7)
    nights = simpson_runs.seed_closed_loop(benchmark, 7), simpson_runs.seed_open_loop(benchmark, 7)
    results = simpson_runs.collect_results(list(simpson_runs.run_models(nights[0].models, work, 1)), work)
    for night in nights:
        run(store, night)
    names = {row.run_id: row.model for row in read_rows(store, RUNS)}
    compared = 0
    for row in read_rows(store, METRICS):
        if row.slice_key is not None or row.value is None:
            continue
        name = row.estimator
        if name == "stratified":
            name = loop_estimates.name_strata(
                "ours", "equal_mass", int(row.definition.split("strata=")[1][0])
            )
        if name in ("ips", "snips_user"):
            name = f"{name} ours"
        values = results.truth_mc if row.part == "open_loop" else results.estimates.get(name)
        column = Column(row.metric, row.k)
        if values is not None and column in work.plan.columns:
            own = values[results.models.index(names[row.run_id]), work.plan.columns.index(column)]
            exact = row.estimator in ("holdout", "stratified")
            assert own == (row.value if exact else pytest.approx(row.value, rel=1e-12)), row
            compared += 1
    # 5 models; holdout, open loop, 2 and 3 strata: 10 columns each; ips and snips: recall and ndcg.
    assert compared >= 5 * (4 * 10 + 2 * 5)


@pytest.mark.parametrize("name", ["coat_debiased", "movielens_1m_strata"])
def test_files_of_the_study(name: str) -> None:
    pytest.importorskip("cornac", reason="the extra `zoo` is not installed")
    benchmark = load_benchmark(name, ["dataset.path=somewhere"])
    check_benchmark(benchmark)
    simpson.check_study(benchmark, [("wmf", "bpr")])


# ------------------------------------------------------------------------------- real data


@pytest.mark.data
def test_coat_in_this_process_gives_the_published_figures(shared_data: Path) -> None:
    """Figures of the authors' code in the open loop, 5 items in Q2, 5,568 training rows or about."""
    models = [
        {"name": "popular", "kind": "popular"},
        {"name": "global_mean", "kind": "means", "means": "global"},
    ]
    evaluation = {**EVALUATION, "k": [5, 10, 20, 30, 100]}
    results = run_study(make_benchmark(shared_data / "coat", models, evaluation=evaluation), seed=123)
    published = [0.02561, 0.03522, 0.05588, 0.06709, 0.12482, 0.24194]
    np.testing.assert_allclose(results.truth_mc[0, :6], published, atol=5e-6)
    work = simpson_runs.prepare_seed(
        make_benchmark(shared_data / "coat", models, evaluation=evaluation), 123
    )
    assert work.plan.strata[work.plan.user_strata].items == (295, 5)
