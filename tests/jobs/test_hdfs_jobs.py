"""Jobs on a real HDFS do what they do on S3 and in a folder: the tests of S3 run with another place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from recbench_spark.config import Benchmark, parse
from recbench_spark.storage.objects import list_objects
from recbench_spark.storage.store import Store
from tests.jobs import test_object_embed, test_object_storage
from tests.jobs.test_object_embed import inputs  # noqa: F401 (a fixture)
from tests.jobs.test_object_storage import files  # noqa: F401 (a fixture)
from tests.nights import DATE, TINY, run
from tests.storage import test_object_warehouses
from tools import compare_warehouses


def test_evaluate_and_query_print_what_they_print_for_a_folder(
    files: Path, hdfs_place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    test_object_storage.test_evaluate_and_query_print_what_they_print_for_a_folder(
        files, hdfs_place, tmp_path, capsys
    )


def test_a_dry_run_writes_reads_writes_again_and_removes(
    files: Path, hdfs_place: str, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    words = test_object_storage.argv(files, f"{hdfs_place}/w", "--dry-run")
    assert test_object_storage.run(test_object_storage.evaluate, *words) == 0
    assert "an object was written, read, refused a second time, and removed" in capsys.readouterr().out
    assert not list(test_object_storage.list_objects(hdfs_place))


def test_hdfs_holds_what_a_folder_holds(spark: SparkSession, hdfs_place: str, tmp_path: Path) -> None:
    test_object_warehouses.test_s3_holds_what_a_folder_holds(spark, hdfs_place, tmp_path)


def test_rows_that_workers_map_are_written_by_tasks(spark: SparkSession, hdfs_place: str) -> None:
    test_object_warehouses.test_rows_that_workers_map_are_written_by_tasks(spark, hdfs_place)


def test_embeddings_on_hdfs_have_the_bits_of_a_folder(
    spark: SparkSession, hdfs_place: str, inputs: Path, tmp_path: Path, monkeypatch, capsys  # noqa: F811
) -> None:  # fmt: skip
    test_object_embed.test_embeddings_on_s3_have_the_bits_of_a_folder(
        spark, hdfs_place, inputs, tmp_path, monkeypatch, capsys
    )


FEATURES = {"features": {"kind": "hashed", "dims": 6}}
SAGE = {"form": "sage", "aggregator": "mean", "width": 4}
CONVOLVE = {"form": "convolve", "aggregator": "importance", "width": 4, "hidden": 4}
GRAPHS = [
    {"name": "pins", "kind": "graph", **FEATURES, "layers": [SAGE, SAGE], "wire": "float16"},
    {"name": "both_sides", "kind": "graph", "mode": "projected", **FEATURES, "layers": [CONVOLVE]},
]
MEANS = [{"name": "mean", "kind": "means", "means": "global"}, {"name": "means", "kind": "means"}]
RATINGS = {"task": "rating", "bootstrap": {"replicates": 10}}
NIGHTS: dict[str, dict[str, Any]] = {
    "graphs": {
        **TINY, "name": "graphs", "models": [*TINY["models"], *GRAPHS],
        "comparisons": {"baseline": "popular", "replicates": 20},
    },
    "ratings": {**TINY, "name": "ratings", "models": MEANS, "evaluation": RATINGS},
}  # fmt: skip


@pytest.mark.slow  # four nights: minutes
def test_nights_of_lists_graphs_and_ratings_have_the_bits_of_a_folder(
    spark: SparkSession, hdfs_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "disk"))
    folder = str(tmp_path / "w")
    for root in (folder, hdfs_place):
        store = Store(spark, root)
        for suite, settings in NIGHTS.items():
            ran = run(store, parse(Benchmark, settings, suite))
            assert ran.outcome.failed == {}
            if suite == "graphs":
                assert "rank popular, item_knn, pins, both_sides" in ran.remarks, "not in one pass"
    assert compare_warehouses.main([folder, hdfs_place]) == 0
    names = set(list_objects(hdfs_place))
    for suite in NIGHTS:
        assert {f"reports/{suite}-{DATE}.html", f"results/night-{suite}-{DATE}.json"} <= names
