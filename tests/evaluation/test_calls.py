"""The first calls of a user of another library: names of columns, metrics and models; frames; views."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import recbench_spark
from recbench_spark.config import Benchmark, parse
from recbench_spark.core.definitions import make_definition
from recbench_spark.errors import ConfigError, RecbenchError, SchemaError
from recbench_spark.evaluation.evaluate import COLUMNS_TAKEN
from recbench_spark.evaluation.request_checks import LEFT_OUT
from recbench_spark.metrics.result import Result
from recbench_spark.night.run_keys import hash_run_key
from recbench_spark.sources.column_names import ColumnNames
from tests.nights import SMALL

# User 1 wants items 1 and 2, user 2 wants item 3.
TRUTH = pd.DataFrame({"user_id": [1, 1, 2], "item_id": [1, 2, 3]})
ALS = pd.DataFrame({"user_id": [1, 1, 2, 2], "item_id": [1, 3, 1, 3], "rank": [1, 2, 1, 2]})
POPULAR = pd.DataFrame({"user_id": [1, 1, 2, 2], "item_id": [4, 1, 4, 1], "rank": [1, 2, 1, 2]})

RECALL_ALS = {1: (Fraction(1, 2) + 0) / 2, 2: (Fraction(1, 2) + 1) / 2}
RECALL_POPULAR = {1: Fraction(0), 2: (Fraction(1, 2) + 0) / 2}


def recall(truth: Any = TRUTH, lists: Any = ALS, **options: Any) -> Result:
    options = {"metrics": "recall", "k": (1, 2), "bootstrap": 20, **options}
    return recbench_spark.evaluate(truth, lists=lists, **options)


def read_values(result: Result) -> dict[tuple[Any, ...], float]:
    frame = result.to_pandas()
    keys = [name for name in ("model", "metric", "k") if name in frame]
    return {tuple(row[key] for key in keys): row["value"] for _, row in frame.iterrows()}


def list_columns(frame: pd.DataFrame) -> dict[str, list[Any]]:
    return {str(name): frame[name].tolist() for name in frame}


def import_polars() -> Any:
    return pytest.importorskip("polars", reason="polars is not installed here")


FRAMES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "categories": lambda frame: frame.astype(str).astype({"user_id": "category", "item_id": "category"}),
    "arrow": pa.Table.from_pandas,
    "duckdb": lambda frame: duckdb.from_arrow(pa.Table.from_pandas(frame)),
    "columns": list_columns,
    "polars": lambda frame: import_polars().from_pandas(frame),
    "lazy": lambda frame: import_polars().from_pandas(frame).lazy(),
    "categorical": lambda frame: (
        import_polars()
        .from_pandas(frame.astype({"item_id": str, "user_id": str}))
        .cast(dict.fromkeys(("user_id", "item_id"), import_polars().Categorical))
    ),
    "enum": lambda frame: (
        import_polars()
        .from_pandas(frame.astype({"item_id": str, "user_id": str}))
        .cast({"user_id": import_polars().Enum(["1", "2"]), "item_id": import_polars().Enum(list("4321"))})
    ),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_of_every_kind_give_one_number(kind: str) -> None:
    convert = FRAMES[kind]
    values = read_values(recall(convert(TRUTH), convert(ALS)))
    assert values == {("recall", k): float(value) for k, value in RECALL_ALS.items()}


NAMES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "LensKit 0.14": ({"user_id": "user", "item_id": "item"}, {"user_id": "user", "item_id": "item"}),
    "RePlay": ({"user_id": "query_id"}, {"user_id": "query_id", "score": "rating"}),
    "RePlay 0.10": (
        {"user_id": "user_idx", "item_id": "item_idx"},
        {"user_id": "user_idx", "item_id": "item_idx", "score": "relevance"},
    ),
    "RecBole": (
        {"user_id": "user_id:token", "item_id": "item_id:token"},
        {"user_id": "user_id:token", "item_id": "item_id:token", "score": "score:float"},
    ),
    "ranx": ({"user_id": "q_id", "item_id": "doc_id"}, {"user_id": "q_id", "item_id": "doc_id"}),
    "TREC": (
        {"user_id": "qid", "item_id": "docno", "relevance": "label"},
        {"user_id": "qid", "item_id": "docno", "rank": "rank"},
    ),
    "MovieLens": ({"user_id": "userId", "item_id": "movieId"}, {"user_id": "userId", "item_id": "movieId"}),
    "Surprise": (
        {"user_id": "uid", "item_id": "iid"},
        {"user_id": "uid", "item_id": "iid", "score": "est"},
    ),
    "recommenders": (
        {"user_id": "userID", "item_id": "itemID"},
        {"user_id": "userID", "item_id": "itemID", "score": "prediction"},
    ),
}


@pytest.mark.parametrize("library", NAMES)
def test_usual_names_of_columns_are_taken_and_told(
    library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    truth_names, list_names = NAMES[library]
    truth = TRUTH.assign(relevance=1.0) if "relevance" in truth_names else TRUTH
    lists = ALS if "rank" in list_names else ALS.assign(score=-ALS["rank"]).drop(columns="rank")
    result = recall(truth.rename(columns=truth_names), lists.rename(columns=list_names))
    assert read_values(result) == {("recall", k): float(value) for k, value in RECALL_ALS.items()}
    (check,) = [check for check in result.checks if check.check == COLUMNS_TAKEN]
    said = capsys.readouterr().err
    for source, ours in [(b, a) for names in NAMES[library] for a, b in names.items() if a != b]:
        assert f"{source} for {ours}" in check.detail and f"{source} for {ours}" in said
    assert check.passed


def test_names_of_the_caller_decide(tmp_path: Path) -> None:
    truth = TRUTH.rename(columns={"user_id": "client", "item_id": "sku"})
    lists = ALS.rename(columns={"user_id": "client"})
    expected = read_values(recall())
    assert read_values(recall(truth, lists, columns={"user_id": "client", "item_id": "sku"})) == expected
    by_table = {"truth": {"user_id": "client", "item_id": "sku"}, "lists": {"user_id": "client"}}
    result = recall(truth, lists, columns=by_table)
    assert read_values(result) == expected
    assert COLUMNS_TAKEN not in [check.check for check in result.checks]
    # Another column with our name is not read where the caller names one.
    shadowed = lists.assign(user_id=0)
    assert read_values(recall(truth, shadowed, columns=by_table)) == expected
    truth.to_csv(tmp_path / "truth.csv", index=False)
    lists.to_parquet(tmp_path / "lists.parquet")
    paths = recall(tmp_path / "truth.csv", str(tmp_path / "lists.parquet"), columns=by_table)
    assert read_values(paths) == expected


def test_nothing_is_chosen_among_two_columns() -> None:
    both = TRUTH.rename(columns={"user_id": "user"}).assign(uid=1)
    with pytest.raises(SchemaError, match="truth: user and uid could both be user_id") as error:
        recall(both)
    assert "columns={'user_id': 'user'}" in error.value.hint
    with pytest.raises(SchemaError, match="truth has no column user_id"):
        recall(TRUTH.rename(columns={"user_id": "somebody"}))
    with pytest.raises(SchemaError, match="has no column Client") as error:
        recall(TRUTH.rename(columns={"user_id": "client"}), columns={"user_id": "Client"})
    assert "did you mean 'client'?" in error.value.hint
    notes = ColumnNames()
    assert notes.match(["user_id", "item_id", "rank", "rating"], "lists") == {} and notes.notes == []


@pytest.mark.parametrize("name", ["rating", "relevance", "rating:float"])
def test_ratings_beside_times_are_not_taken_for_scores(name: str) -> None:
    """A log or a truth that is passed as lists; RePlay's `rating` without times is a score."""
    lists = ALS.rename(columns={"rank": name})
    recall(lists=lists)
    log = lists.assign(timestamp=1_262_304_000)
    with pytest.raises(SchemaError, match=f"lists: {name} beside timestamp may be ratings") as error:
        recall(lists=log)
    assert f"columns={{'score': '{name}'}}" in error.value.hint
    assert read_values(recall(lists=log, columns={"score": name})) == read_values(recall(lists=lists))
    assert read_values(recall(lists=log.assign(rank=ALS["rank"]))) == read_values(recall())


@pytest.mark.parametrize("scores", [np.nan, np.inf, None, 0.5, [9.0, 1.0, 1.0, 9.0]])
def test_a_rank_wins_over_a_score_whatever_it_is(scores: Any, tmp_path: Path) -> None:
    lists = ALS.assign(score=scores)
    assert read_values(recall(lists=lists)) == read_values(recall())
    TRUTH.to_parquet(tmp_path / "truth.parquet")
    lists.to_csv(tmp_path / "lists.csv", index=False)
    paths = recall(tmp_path / "truth.parquet", tmp_path / "lists.csv")
    assert read_values(paths) == read_values(recall())


@pytest.mark.parametrize("k", [2, np.int64(2), np.int32(2), np.array([2]), [2], (2,), range(2, 3)])
def test_one_cutoff_or_several(k: Any) -> None:
    assert read_values(recall(k=k)) == {("recall", 2): float(RECALL_ALS[2])}


@pytest.mark.parametrize(
    ("metrics", "k", "expected"),
    [
        ("recall@2", None, {("recall", 2)}),
        (["recall@1", "recall@2"], None, {("recall", 1), ("recall", 2)}),
        (["Recall@2", "HR@1"], None, {("recall", 2), ("hit", 1)}),
        (["recall@2", "hit_rate"], None, {("recall", 2), ("hit", 2)}),
        (["recall@2", "hit_rate"], 1, {("recall", 2), ("hit", 1), ("hit", 2)}),
        (["NDCG@2", "recip_rank@1"], None, {("ndcg", 2), ("mrr", 1)}),
        (["recall", "recall@2"], 1, {("recall", 1), ("recall", 2)}),
    ],
)
def test_names_of_metrics(metrics: Any, k: Any, expected: set[tuple[str, int]]) -> None:
    options = {} if k is None else {"k": k}
    result = recbench_spark.evaluate(TRUTH, lists=ALS, metrics=metrics, bootstrap=0, **options)
    assert set(read_values(result)) == expected
    frame = recbench_spark.evaluate_frames(TRUTH, ALS, metrics=metrics, bootstrap=0, **options)
    assert set(zip(frame.metric, frame.k, strict=True)) == expected


def test_a_file_names_metrics_in_the_same_way() -> None:
    def read(**section: Any) -> Any:
        return parse(
            Benchmark, {**SMALL, "evaluation": {**SMALL["evaluation"], **section}}, "file"
        ).evaluation

    plain = read(metrics=["ndcg", "hit"], k=[5, 10])
    assert read(metrics=["ndcg@10", "HR@5"], k=[]) == plain
    assert read(metrics=["NDCG@10", "hit_rate"], k=[5]) == plain
    section = {name: value for name, value in SMALL["evaluation"].items() if name != "k"}
    without = parse(Benchmark, {**SMALL, "evaluation": {**section, "metrics": ["ndcg@10"]}}, "file")
    assert (without.evaluation.metrics, without.evaluation.k) == (("ndcg",), (10,))
    with pytest.raises(ConfigError, match="'x' is no cut-off"):
        read(metrics=["ndcg@x"])


def test_a_bundle_in_a_file_is_its_names_spelled_out() -> None:
    """The same run key, and a line on what is left out for want of item features."""

    def read(*metrics: Any) -> Benchmark:
        section = {**SMALL["evaluation"], "metrics": list(metrics), "slices": []}
        return parse(Benchmark, {**SMALL, "evaluation": section}, "file")

    bundle = read("ndcg@5", {"family": "popularity"}, {"family": "diversity"})
    spelled = read("ndcg@5", *bundle.evaluation.metrics[1:])
    assert bundle.evaluation.metrics[:3] == ("ndcg", "novelty", "mean_popularity")
    assert "diversity (needs features)" in bundle.evaluation.left_out
    assert not spelled.evaluation.left_out
    assert bundle.model_dump() == spelled.model_dump()
    keys = [hash_run_key(one, make_definition(), "split", {}, one.models[0]) for one in (bundle, spelled)]
    assert keys[0] == keys[1]
    with pytest.raises(ConfigError, match="unknown family 'popular'"):
        read({"family": "popular"})
    with pytest.raises(ConfigError, match="valid string"):
        read({"family": "popularity", "k": 3})


def test_a_bundle_in_a_call_leaves_out_what_has_no_table() -> None:
    train = pd.DataFrame({"user_id": [8, 9], "item_id": [1, 2]})
    options: dict[str, Any] = {"lists": ALS, "bootstrap": 0, "k": 2}
    for bundle in ({"family": "popularity"}, ["family:popularity"]):
        full = recbench_spark.evaluate(TRUTH, metrics=bundle, train=train, **options)
        names = {metric for metric, _ in read_values(full)}
        assert {"novelty", "aplt", "mean_popularity"} < names and "diversity" not in names
    mixed = recbench_spark.evaluate(TRUTH, metrics=["family:coverage", "family:popularity"], **options)
    assert {metric for metric, _ in read_values(mixed)} == {"coverage", "gini", "entropy"}
    (note,) = [check for check in mixed.checks if check.check == LEFT_OUT]
    assert note.passed and note.detail.startswith("novelty (needs train), ")
    with pytest.raises(ConfigError, match="novelty needs the training rows"):
        recbench_spark.evaluate(TRUTH, metrics=["novelty"], **options)
    compared = recbench_spark.compare(
        {"als": ALS, "popular": POPULAR}, TRUTH, metrics=["hit@1", "family:coverage", "family:popularity"],
        train=train, bootstrap=100,
    )  # fmt: skip
    assert {"hit", "novelty", "aplt"} <= {*compared.to_pandas().metric} < {"hit", *names}


def test_several_models_are_one_result() -> None:
    both = recall(lists={"als": ALS, "popular": POPULAR})
    assert read_values(both) == {
        (model, "recall", k): float(value)
        for model, values in (("als", RECALL_ALS), ("popular", RECALL_POPULAR))
        for k, value in values.items()
    }
    assert set(both.user_metrics.to_pandas().model) == {"als", "popular"}
    assert "als: test: users" in [check.check for check in both.checks]
    backwards = recall(lists={"popular": POPULAR, "als": ALS})
    assert read_values(backwards) == read_values(both)
    with pytest.raises(RecbenchError, match="model popular: lists has no column score"):
        recall(lists={"als": ALS, "popular": POPULAR.drop(columns="rank")})
    with pytest.raises(ConfigError, match="exactly one of"):
        recall(lists={"als": ALS}, scores=ALS)
    frame = recbench_spark.evaluate_frames(
        TRUTH, {"als": ALS, "popular": POPULAR}, metrics="recall@2", bootstrap=0
    )
    assert frame[["model", "value"]].values.tolist() == [["als", 0.75], ["popular", 0.25]]


def test_models_may_be_named_as_columns_are() -> None:
    values = read_values(recall(lists={"user": ALS, "item": POPULAR}))
    assert values == {
        **{("user", "recall", k): float(value) for k, value in RECALL_ALS.items()},
        **{("item", "recall", k): float(value) for k, value in RECALL_POPULAR.items()},
    }
    assert read_values(recall(lists=list_columns(ALS))) == read_values(recall())
    users = {"user_id": [1, 2], "vector": [[1.0, 0.0], [0.0, 1.0]]}
    items = {"item_id": [1, 2, 3], "vector": [[1.0, 0.0], [0.5, 0.0], [0.0, 1.0]]}
    options: dict[str, Any] = {"metrics": "recall@2", "bootstrap": 0}
    both = recbench_spark.evaluate(
        TRUTH, embeddings={"user": (users, items), "item": (users, items)}, **options
    )
    assert {key[0] for key in read_values(both)} == {"user", "item"}


def test_several_models_of_scores_and_of_embeddings() -> None:
    scores = {name: lists.assign(score=-lists["rank"]) for name, lists in (("a", ALS), ("b", POPULAR))}
    train = pd.DataFrame({"user_id": [9], "item_id": [9]})
    options: dict[str, Any] = {"train": train, "metrics": "recall@2", "bootstrap": 0}
    result = recbench_spark.evaluate(TRUTH, scores=scores, **options)
    assert read_values(result) == {("a", "recall", 2): 0.75, ("b", "recall", 2): 0.25}
    users = pd.DataFrame({"user_id": [1, 2], "vector": [[1.0, 0.0], [0.0, 1.0]]})
    items = pd.DataFrame({"item_id": [1, 2, 3], "vector": [[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]]})
    turned = items.assign(item_id=[3, 2, 1])
    pairs = {"good": (users, items), "turned": (users, turned)}
    by_vectors = recbench_spark.evaluate(TRUTH, embeddings=pairs, metrics="recall@1", bootstrap=0)
    assert read_values(by_vectors) == {("good", "recall", 1): 0.75, ("turned", "recall", 1): 0.0}


def test_runs_and_judgements_as_dicts() -> None:
    """The form that ranx and pytrec_eval take: a dict of users, each a dict of items and numbers."""
    qrels = {"1": {"1": 1, "2": 1}, "2": {"3": 1}}
    run = {"1": {"1": 0.9, "3": 0.5}, "2": {"1": 0.8, "3": 0.1}}
    expected = {("recall", k): float(value) for k, value in RECALL_ALS.items()}
    assert read_values(recall(qrels, run)) == expected
    models = read_values(recall(qrels, {"als": run}))
    assert models == {("als", *key): value for key, value in expected.items()}


def test_runs_and_judgements_as_files_of_trec(tmp_path: Path) -> None:
    run, qrels = tmp_path / "system.run", tmp_path / "qrels.txt"
    # As in trec_eval the scores decide, and not the ranks beside them.
    run.write_text("1 Q0 1 2 9.5 tag\n1 Q0 3 1 8 tag\n2\tQ0\t1\t1\t2\ttag\n2 Q0 3 2 1e-3 tag\n")
    qrels.write_text("1 0 1 1\n1 0 2 1\n2 0 3 1\n")
    expected = {("recall", k): float(value) for k, value in RECALL_ALS.items()}
    assert read_values(recall(qrels, run)) == expected
    assert read_values(recall(TRUTH.astype(str), str(run))) == expected
    assert read_values(recall(qrels, {"als": run})) == {("als", *key): one for key, one in expected.items()}
    run.write_text("1 Q0 1 1 9.5 tag\n1 Q0 3 2 8 tag\n2 Q0 1 1\n")
    with pytest.raises(RecbenchError, match="1 lines that are not 6 fields"):
        recall(qrels, run)
    run.write_text("1 Q0 1 1 9.5 tag\n1 Q0 3 2 8 tag\n2 Q0 1 1 first tag\n")
    with pytest.raises(RecbenchError, match="score"):
        recall(qrels, run)


# ------------------------------------------------------------------------------------------- views


def test_one_result_has_every_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = recall(lists={"als_4": ALS, "popular": POPULAR}, metrics=["recall@2", "hit@1"])
    wide = result.pivot()
    assert list(wide.index) == ["als_4", "popular"] and list(wide.columns) == ["recall@2", "hit@1"]
    assert wide.loc["als_4", "recall@2"] == 0.75
    latex = result.to_latex(tmp_path / "table.tex", digits=2)
    assert (tmp_path / "table.tex").read_text() == latex
    assert r"als\_4 & 0.75 $\pm$ 0.25 & 0.50 $\pm$ 0.50 \\" in latex
    page = result._repr_html_()
    assert "als_4" in page and "0.7500" in page and "<details>" in page
    figure = result.plot(tmp_path / "plot.png")
    assert len(figure.axes) == 2 and (tmp_path / "plot.png").stat().st_size > 1000
    files = result.save(tmp_path / "saved")
    assert {file.name for file in files} == {
        "metrics.parquet", "user_metrics.parquet", "rankings.parquet", "result.json",
    }  # fmt: skip
    record = json.loads((tmp_path / "saved" / "result.json").read_text())
    assert record["version"] == recbench_spark.__version__ and record["metrics"][0]["value"] == 0.75
    result.metrics.show()
    assert "als_4" in capsys.readouterr().out and "als_4" in repr(result)
    assert recall().pivot().index.tolist() == ["value"]
    assert "slice_key" in recall(train=TRUTH.head(1)).to_pandas(slices=True)


def test_failed_checks_stand_in_the_page() -> None:
    result = recall(TRUTH, ALS[ALS.user_id == 1])
    assert "users without output" in result._repr_html_()


def test_both_engines_take_the_same_calls(spark: Any) -> None:
    truth = TRUTH.rename(columns={"user_id": "userId"})
    lists = {"als": ALS.rename(columns={"item_id": "movieId"}), "popular": POPULAR}
    options: dict[str, Any] = {"metrics": ["recall@2", "hr"], "k": 1, "bootstrap": 20}
    here = recbench_spark.evaluate(truth, lists=lists, **options)
    there = recbench_spark.evaluate(
        spark.createDataFrame(truth),
        lists={name: spark.createDataFrame(frame) for name, frame in lists.items()},
        **options,
    )
    order = ["model", "metric", "k"]
    frames = [one.to_pandas().sort_values(order).reset_index(drop=True) for one in (here, there)]
    pd.testing.assert_frame_equal(*frames)
    assert sorted(map(str, here.checks)) == sorted(map(str, there.checks))
    pd.testing.assert_frame_equal(here.pivot()[sorted(here.pivot())], there.pivot()[sorted(there.pivot())])
    assert "to_pandas()" in repr(there)
    there.metrics.show()
    there.release()


def test_grades_of_a_truth_of_recbole_are_read() -> None:
    """`rating:float` is the column `rating`: a grade and no mere row."""
    grades = TRUTH.assign(rating=[3.0, 1.0, 2.0])
    named = grades.rename(
        columns={"user_id": "user_id:token", "item_id": "item_id:token", "rating": "rating:float"}
    )
    starred = grades.rename(columns={"rating": "stars"})
    options: dict[str, Any] = {"lists": ALS, "metrics": "ndcg", "k": 2, "definition": {"gain": "linear"}}
    expected = read_values(recbench_spark.evaluate(grades, **options))
    assert read_values(recbench_spark.evaluate(named, **options)) == expected
    assert (
        read_values(recbench_spark.evaluate(starred, columns={"truth": {"rating": "stars"}}, **options))
        == expected
    )
    assert read_values(recbench_spark.evaluate(TRUTH, **options)) != expected


def test_names_of_the_caller_may_be_swapped() -> None:
    swapped = ALS.rename(columns={"user_id": "item_id", "item_id": "user_id"})
    columns = {"lists": {"user_id": "item_id", "item_id": "user_id"}}
    assert read_values(recall(lists=swapped, columns=columns)) == read_values(recall())
