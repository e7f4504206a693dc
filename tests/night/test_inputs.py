"""Nights, fits and graphs of other data are made anew; those of the same data are used again."""

from __future__ import annotations

import os
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from recbench_spark.analyses.exposure.night_propensity import ExposureLog, write_propensities
from recbench_spark.config import Benchmark, parse
from recbench_spark.config.evaluation import Propensities
from recbench_spark.errors import DataError
from recbench_spark.graphs.settings import GraphSource
from recbench_spark.graphs.stored_graphs import ensure_graph
from recbench_spark.night import run_keys
from recbench_spark.night import split as splitting
from recbench_spark.night.night_status import find_finished_night
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import CHANGES, COMPARISONS, GRAPHS, MANIFESTS, PROPENSITIES
from recbench_spark.sources import arrow_files
from recbench_spark.splits.manifests import Manifest
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.frame_blocks import FrameRows
from recbench_spark.storage.store import Store
from recbench_spark.tuning.folds import open_folded_log
from tests.nights import TINY, make_split, read_rows, run

FIRST, SECOND = date(2026, 1, 1), date(2026, 1, 2)


def rows(users: int, shift: int = 0) -> pa.Table:
    """A log in which each user has the items 0 to 9, the last of them held out."""
    pairs = [(f"u{user}", f"i{item}", user * 20 + (item + shift) % 10) for user in range(users)
             for item in range(10)]  # fmt: skip
    names = ("user_id", "item_id", "event_time")
    columns = dict(zip(names, map(list, zip(*pairs, strict=True)), strict=True))
    return pa.table(columns)


def list_held_out(shift: int) -> str:
    return f"i{(9 - shift) % 10}"


def night(path: str, models: list[dict[str, Any]], **dataset: Any) -> Benchmark:
    log = {"name": "log", "reader": "delta", "path": path, **dataset}
    split = {"protocol": "TO_LS"}
    changed = {"name": "inputs", "dataset": log, "split": split, "models": models}
    return parse(Benchmark, {**TINY, **changed}, "tests/night/test_inputs.py")


def lists(path: Path, item: str, users: int) -> None:
    columns = {"user_id": [f"u{n}" for n in range(users)], "item_id": [item] * users, "rank": [1] * users}
    write_deltalake(path, pa.table(columns), mode="overwrite")


@pytest.mark.full
def test_a_night_of_older_code_is_compared_and_its_data_not_said_to_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first night names its log as version 0.1.0 did; the next ones by its content."""
    store, log = ArrowStore(str(tmp_path / "w")), tmp_path / "log.parquet"
    pq.write_table(rows(10), log)
    popular = [{"name": "popular", "kind": "popular"}]
    benchmark = night(str(log), popular, reader="parquet")
    benchmark = benchmark.model_copy(
        update={"comparisons": parse(Benchmark, {**TINY, "comparisons": {}}, "").comparisons}
    )
    with monkeypatch.context() as old:
        old.setattr(splitting, "choose_identity", lambda _: lambda *_, **__: "files:1:123:0123456789ab")
        old.setattr("recbench_spark.core.revisions.REVISIONS", {})
        before = run(store, benchmark, FIRST)
    after = run(store, benchmark, SECOND)
    assert after.outcome.run_ids.keys() == {"popular"} and "already made" not in after.remarks
    pairs = {(row["run_id"], row["other_run_id"]) for row in store.rows(COMPARISONS)}
    assert pairs == {(after.outcome.run_ids["popular"], before.outcome.run_ids["popular"])}
    changes = read_rows(store, CHANGES)
    assert changes and {(row.code_change is None, row.code_alone) for row in changes} == {(False, None)}
    os.utime(log)
    shutil.move(log, tmp_path / "moved.parquet")
    moved = benchmark.model_copy(
        update={"dataset": benchmark.dataset.model_copy(update={"path": str(tmp_path / "moved.parquet")})}
    )
    again = run(store, moved, date(2026, 1, 3))
    assert f"split {again.night.split_id}: already made" in again.remarks
    assert find_finished_night(store.root, moved, date(2026, 1, 3)) is not None


def test_fits_of_another_table_find_its_own_ratings(tmp_path: Path) -> None:
    logs = []
    for name, rating in (("a", 1.0), ("b", 5.0)):
        log = rows(10).append_column("rating", pa.array([rating] * 100))
        write_deltalake(tmp_path / name, log)
        benchmark = night(str(tmp_path / name), [{"name": "mean", "kind": "means"}])
        benchmark = benchmark.model_copy(
            update={
                "split": parse(Benchmark, {**TINY, "split": {"holdout": "folds", "folds": 2}}, "").split
            }
        )
        store = ArrowStore(str(tmp_path / f"w-{name}"))
        log_of = open_folded_log(store, benchmark, Journal())
        logs.append((log_of.log_id, set(log_of.files.open().arrays["ratings"].tolist())))
    assert logs[0][0] != logs[1][0] and [ratings for _, ratings in logs] == [{1.0}, {5.0}]


def test_graphs_of_other_edges_are_laid_out_anew(tmp_path: Path) -> None:
    store, journal = ArrowStore(str(tmp_path / "w")), Journal()
    write_deltalake(tmp_path / "a", pa.table({"src": ["1", "2"], "dst": ["2", "3"]}))
    write_deltalake(tmp_path / "b", pa.table({"src": ["1", "2", "3"], "dst": ["2", "3", "4"]}))
    graphs = [ensure_graph(store, GraphSource(edges=str(tmp_path / name)), 1, journal) for name in "ab"]
    assert [graph.edges for graph in graphs] == [2, 3]
    edges = tmp_path / "edges.csv"
    edges.write_text("src,dst\n1,2\n")
    one = ensure_graph(store, GraphSource(edges=str(edges)), 1, journal)
    stat = edges.stat()
    edges.write_text("src,dst\n1,3\n")
    os.utime(edges, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    two = ensure_graph(store, GraphSource(edges=str(edges)), 1, journal)
    os.utime(edges)
    shutil.copy(edges, tmp_path / "copy.csv")
    three = ensure_graph(store, GraphSource(edges=str(tmp_path / "copy.csv")), 1, journal)
    assert one.graph_id != two.graph_id == three.graph_id
    assert store.read_rows(GRAPHS).num_rows == 4


def test_propensities_of_other_features_are_fitted_anew(spark: Any, tmp_path: Path) -> None:
    store, given = Store(spark, str(tmp_path / "w")), tmp_path / "given"
    settings = Propensities(method="given", path=str(given))
    exposed = ExposureLog(
        store, "s", FrameRows(spark.createDataFrame([("u", "i")], ["user_id", "item_id"]))
    )
    for chance in (0.25, 0.5, 0.5):
        write_deltalake(given, pa.table({"item_id": ["i"], "propensity": [chance]}), mode="overwrite")
        write_propensities(exposed, settings)
    rows_ = store.read(PROPENSITIES).select("method", "propensity").collect()
    assert len({row.method for row in rows_}) == 3 and {row.propensity for row in rows_} == {0.25, 0.5}


def test_a_log_that_changes_while_it_is_split_is_no_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log = ArrowStore(str(tmp_path / "w")), tmp_path / "log.parquet"
    pq.write_table(rows(10), log)
    benchmark = night(str(log), [{"name": "popular", "kind": "popular"}], reader="parquet")
    audit = splitting.build_manifest

    def audit_late(*args: Any, **more: Any) -> Manifest:
        pq.write_table(rows(9), log)
        return audit(*args, **more)

    monkeypatch.setattr(splitting, "build_manifest", audit_late)
    with pytest.raises(DataError, match="changed while it was read"):
        make_split(store, benchmark)
    assert not store.rows(MANIFESTS)


def test_a_slice_elsewhere_is_the_same_slice(tmp_path: Path) -> None:
    def split_name(name: str) -> str:
        place = tmp_path / name
        if name != "one":
            shutil.copytree(tmp_path / "one", place)
        benchmark = night(str(place / "log.parquet"), [{"name": "p", "kind": "popular"}], reader="parquet")
        cut = {"key": "age", "of": "users", "path": str(place / "users.csv")}
        slices = parse(Benchmark, {**TINY, "evaluation": {"slices": [cut]}}, "").evaluation.slices
        evaluation = benchmark.evaluation.model_copy(update={"slices": slices})
        changed = benchmark.model_copy(update={"evaluation": evaluation})
        return run_keys.hash_split(arrow_files.identity, changed)[0]

    (tmp_path / "one").mkdir()
    pq.write_table(rows(10), tmp_path / "one" / "log.parquet")
    (tmp_path / "one" / "users.csv").write_text("user_id,age\nu1,7\n")
    first = split_name("one")
    assert split_name("two") == first
    (tmp_path / "one" / "users.csv").write_text("user_id,age\nu1,8\n")
    assert split_name("one") != first


def test_names_count_where_they_say_what_a_file_holds(tmp_path: Path) -> None:
    def split_name(folder: Path, reader: str, **split: Any) -> str:
        benchmark = night(str(folder), [{"name": "p", "kind": "popular"}], reader=reader)
        changed = parse(Benchmark, {**TINY, "split": split}, "").split if split else benchmark.split
        return run_keys.hash_split(arrow_files.identity, benchmark.model_copy(update={"split": changed}))[0]

    one, two = tmp_path / "one", tmp_path / "two"
    for folder, names in ((one, ("train.txt", "test.txt")), (two, ("test.txt", "train.txt"))):
        folder.mkdir()
        for name, text in zip(names, ("1 2 3\n", "1 4\n"), strict=True):
            (folder / name).write_text(text)
    assert split_name(one, "lightgcn") != split_name(two, "lightgcn")
    assert split_name(one, "csv") == split_name(two, "csv")
    folds = {"holdout": "consecutive", "folds": 2}
    assert split_name(one, "csv", **folds) != split_name(two, "csv", **folds)
