"""The warehouse: appended once, visible when published, clear errors, comments and constraints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as DeltaLakeTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from recbench_spark.engine.versions import collect_arrow
from recbench_spark.errors import StoreError
from recbench_spark.runtime.failures import explain_spark_error
from recbench_spark.schemas import (
    CHECKS,
    MANIFESTS,
    METRICS,
    RANKINGS,
    RUNS,
    SCHEMA_VERSION,
    TABLES,
    TRIALS,
    USER_METRICS,
)
from recbench_spark.storage import spark_places
from recbench_spark.storage.spark_places import resolve_location
from recbench_spark.storage.spark_types import conform, spark_schema
from recbench_spark.storage.store import Store
from recbench_spark.storage.table_folders import is_catalog_schema
from recbench_spark.storage.table_sql import VERSION_PROPERTY, query_files, view_files
from tests.storage.test_missing_rows import trial


@pytest.fixture
def store(spark, tmp_path: Path) -> Store:
    return Store(spark, str(tmp_path / "warehouse"))


SCHEMA = "spark_catalog.recbench_store_test"


@pytest.fixture
def schema(spark, tmp_path: Path) -> Iterator[str]:
    """A schema of Spark's own catalog in a folder."""
    (tmp_path / "100 % mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "100 % mine")
    spark.sql(f"CREATE SCHEMA {SCHEMA} LOCATION '{tmp_path / 'link' / 'schema'}'")
    yield SCHEMA
    spark.sql(f"DROP SCHEMA {SCHEMA} CASCADE")


@pytest.fixture
def catalog_store(spark, schema: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A warehouse in which Spark writes, as in a catalog that commits itself."""
    monkeypatch.setattr(spark_places, "find_schema_place", lambda *_: None)
    return Store(spark, schema)


def facts(store: Store, split: str, n: int = 3):
    rows = [(split, "log", f"fact{i}", float(i), None) for i in range(n)]
    return store.spark.createDataFrame(rows, spark_schema(MANIFESTS))


def metric(store: Store, run_id: str, k: int | None = 10, n: int = 5):
    row = (run_id, "test", "ndcg", "v1", k, "holdout", None, None, 0.5, None, None, None, n)
    return store.spark.createDataFrame([row], spark_schema(METRICS))


def run_row(store: Store, run_id: str, status: str = "succeeded", source: str = "baseline"):
    values = {
        "run_id": run_id, "run_key": "key", "attempt": 1, "suite": "s", "model": "m", "status": status,
        "logical_date": date(2026, 1, 1), "source": source,
    }  # fmt: skip
    row = tuple(values.get(name) for name in RUNS.names)
    return store.spark.createDataFrame([row], spark_schema(RUNS))


# ----------------------------------------------------------------------------------- appending


def test_a_table_is_created_by_its_first_rows(store: Store) -> None:
    assert not store.exists("manifests")
    assert store.read(MANIFESTS).collect() == []
    assert store.read(MANIFESTS).schema.names == MANIFESTS.names
    store.append(facts(store, "a"), MANIFESTS)
    assert store.exists("manifests")
    assert store.read(MANIFESTS).count() == 3
    assert store.has(MANIFESTS, "split_id", "a") and not store.has(MANIFESTS, "split_id", "b")


KINDS = pytest.mark.parametrize("kind", ["folder", pytest.param("catalog", marks=pytest.mark.slow)])
"""A warehouse in a catalog is the slower half of the same tests."""


@KINDS
def test_rows_of_one_name_are_appended_once(store: Store, catalog_store: Store, kind: str) -> None:
    store = store if kind == "folder" else catalog_store
    for split in ("a", "a", "b"):
        store.append(facts(store, split), MANIFESTS, once=split)
    assert store.read(MANIFESTS).count() == 6
    again = Store(store.spark, store.root)
    again.append(facts(store, "a"), MANIFESTS, once="a")
    assert again.read(MANIFESTS).count() == 6
    store.append(facts(store, "a"), MANIFESTS)
    assert store.read(MANIFESTS).count() == 9


@KINDS
def test_rows_of_a_name_that_were_deleted_are_made_again(
    store: Store, catalog_store: Store, kind: str
) -> None:
    store = store if kind == "folder" else catalog_store
    of_a = "split_id = 'a'"
    for deleted in range(3):
        for split in ("a", "b", "a"):
            store.append(collect_arrow(facts(store, split)), MANIFESTS, split, "split_id")
        rows = store.read(MANIFESTS)
        assert (rows.where(of_a).count(), rows.count()) == (3, 6), f"deleted {deleted} times"
        store.spark.sql(f"DELETE FROM {store.identifier('manifests')} WHERE {of_a}")
    store.append(collect_arrow(facts(store, "c").where("false")), MANIFESTS, "c", "split_id")
    assert store.read(MANIFESTS).count() == 3


@KINDS
def test_small_rows_go_by_arrow_and_come_back(store: Store, catalog_store: Store, kind: str) -> None:
    place = store if kind == "folder" else catalog_store
    assert place.rows(METRICS) == []
    row = {"run_id": "r1", "part": "test", "metric": "ndcg", "definition": "v1", "estimator": "holdout",
           "value": 0.1, "n": 3}  # fmt: skip
    place.append([row, {**row, "run_id": "r2", "k": 10}], METRICS, once="night")
    place.append([row], METRICS, once="night")
    assert len(place.rows(METRICS)) == 2
    (metric,) = place.rows(
        METRICS, [("run_id", "in", ["r2", "r3"]), ("k", ">=", 10)], ["k", "value", "ci_low"]
    )
    assert metric == {"k": 10, "value": 0.1, "ci_low": None}
    assert place.has(METRICS, "run_id", "r1") and not place.has(METRICS, "run_id", "r3")
    (spark_row,) = place.read(METRICS).where("run_id = 'r2'").collect()
    assert (spark_row.value, spark_row.n, spark_row.stderr) == (0.1, 3, None)


def test_small_rows_are_held_against_the_constraints(store: Store) -> None:
    row = {"run_id": "r1", "part": "test", "metric": "ndcg", "definition": "v1", "estimator": "holdout"}
    with pytest.raises(StoreError, match="cannot write"):
        store.append([{**row, "n": 3, "k": 0}], METRICS)
    assert store.rows(METRICS) == []


def test_writers_at_the_same_time_lose_nothing(spark, tmp_path: Path) -> None:
    """Four writers, each with a store of its own, create the table and append; two share a name."""
    root = str(tmp_path / "w")

    def write(name: str) -> None:
        store = Store(spark, root)
        if name == "b":  # not by Spark
            rows = [{"split_id": name, "part": "log", "fact": f"fact{n}", "value": 1.0} for n in range(3)]
            store.append(rows, MANIFESTS, once=name)
        else:
            store.append(facts(store, name), MANIFESTS, once=name)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, ["a", "b", "c", "c"]))
    split_ids = sorted(row.split_id for row in Store(spark, root).read(MANIFESTS).collect())
    assert split_ids == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_columns_are_put_in_order_and_nulls_filled_in(store: Store) -> None:
    frame = store.spark.createDataFrame([("rows", "log", "a")], "fact string, part string, split_id string")
    store.append(frame, MANIFESTS)
    assert [tuple(row) for row in store.read(MANIFESTS).collect()] == [("a", "log", "rows", None, None)]
    assert conform(frame, MANIFESTS).schema.names == MANIFESTS.names


# ---------------------------------------------------------------------------------- visibility


def test_rows_are_visible_once_their_run_has_succeeded(store: Store) -> None:
    store.append(metric(store, "good"), METRICS)
    store.append(metric(store, "lost"), METRICS)
    assert store.visible(METRICS).count() == 0
    store.append(run_row(store, "good"), RUNS)
    store.append(run_row(store, "bad", status="failed"), RUNS)
    assert [row.run_id for row in store.visible(METRICS).collect()] == ["good"]
    assert store.read_run("metrics", "lost")["run_id"].to_pylist() == ["lost"]


@KINDS
def test_orphans_go_when_they_are_old(store: Store, catalog_store: Store, kind: str) -> None:
    store = store if kind == "folder" else catalog_store
    for run_id in ("20260101T0-old", "20260102T0-kept", "20260109T0-running", "2026a-a-graph"):
        store.append(metric(store, run_id), METRICS)
    store.append(run_row(store, "20260102T0-kept"), RUNS)
    store.delete_orphans("20260105")
    assert sorted(r.run_id for r in store.read(METRICS).collect()) == [
        "20260102T0-kept",
        "20260109T0-running",
        "2026a-a-graph",
    ]


@KINDS
def test_views_are_installed_over_any_warehouse(store: Store, catalog_store: Store, kind: str) -> None:
    place = store if kind == "folder" else catalog_store
    place.append(metric(place, "r1"), METRICS)
    place.append(metric(place, "r0"), METRICS)
    place.append(run_row(place, "r1"), RUNS)
    assert set(place.install_views()) == set(view_files())
    (row,) = place.spark.sql("SELECT model, value FROM leaderboard").collect()
    assert (row.model, row.value) == ("m", 0.5)
    for name in view_files():
        place.spark.table(name).limit(0).collect()


def test_a_view_stands_before_those_that_need_it() -> None:
    names = list(view_files())
    assert names.index("current_runs") < names.index("latest_metrics")
    assert names.index("latest_metrics") < names.index("leaderboard")
    assert len(query_files()) >= 10


# --------------------------------------------------------------------------------------- errors


def test_another_schema_version_is_refused(store: Store) -> None:
    store.append(run_row(store, "r"), RUNS)
    Store(store.spark, store.root)
    change = f"ALTER TABLE {store.identifier('runs')} SET TBLPROPERTIES ('{VERSION_PROPERTY}' = '99')"
    store.spark.sql(change)
    with pytest.raises(StoreError, match=f"schema version 99, this code writes {SCHEMA_VERSION}") as error:
        Store(store.spark, store.root)
    assert "--warehouse" in error.value.hint


@pytest.mark.parametrize("root", ["/proc/recbench", "FILE/below"])
def test_a_folder_that_cannot_be_made_is_a_store_error(spark, tmp_path: Path, root: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError, match="cannot create warehouse"):
        Store(spark, root.replace("FILE", str(file)))


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_no_permission(spark, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(StoreError, match="no permission"):
        Store(spark, str(tmp_path))


def test_a_warehouse_opened_to_read_is_not_made(spark, tmp_path: Path) -> None:
    store = Store(spark, str(tmp_path / "typo"), read_only=True)
    assert not store.exists("runs")
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("root", ["no_such_catalog.x", "spark_catalog.no_such_schema"])
def test_an_unknown_catalog_or_schema_is_a_store_error(spark, root: str) -> None:
    with pytest.raises(StoreError, match=root.partition(".")[2 if "schema" in root else 0]):
        Store(spark, root)


def test_a_schema_in_a_folder_is_written_by_tasks_and_read_by_name(spark, schema: str) -> None:
    store = Store(spark, schema)
    assert store.is_file_storage and not store.in_catalog and store.root.endswith("/100 % mine/schema")
    assert list_names(spark, schema) == set(), "a store that only opens enters nothing"
    store.append([trial(1)], TRIALS)
    store.append(facts(store, "a"), MANIFESTS)
    assert spark.table(f"{schema}.trials").count() == 1
    assert spark.table(f"{schema}.manifests").count() == 3
    assert list_names(spark, schema) == {"trials", "manifests"}
    again = Store(spark, schema)
    again.append([trial(2)], TRIALS)
    assert spark.table(f"{schema}.trials").count() == 2
    assert len(Store(spark, store.root).rows(TRIALS)) == 2


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("s3a://bucket/a%20b/", "s3://bucket/a b"),
        ("s3://bucket/x", "s3://bucket/x"),
        ("hdfs://host/x", "hdfs://host/x"),
        ("viewfs://host/x", None),
        ("dbfs:/user/hive/warehouse", None),
        (None, None),
        ("file:/tmp/no%20such/../x/", "/tmp/x"),
    ],
)
def test_places_of_schemas_have_one_name(location: str | None, place: str | None) -> None:
    assert resolve_location(location) == place


def list_names(spark, schema: str) -> set[str]:
    rows = spark.sql(f"SHOW TABLES IN {schema}").collect()
    return {row.tableName for row in rows if not row.isTemporary}  # views of this session are shown too


def test_tables_of_a_schema_that_lie_elsewhere_are_kept(spark, schema: str, tmp_path: Path) -> None:
    """Spark writes where the table of runs has a place of its own; another name is refused."""
    elsewhere = Store(spark, str(tmp_path / "elsewhere"))
    elsewhere.create(TRIALS, RUNS)
    spark.sql(f"CREATE TABLE {schema}.trials USING delta LOCATION '{elsewhere.location('trials')}'")
    with pytest.raises(StoreError, match=r"trials lies at .*elsewhere/trials, and the schema at "):
        Store(spark, schema).append([trial(1)], TRIALS)
    assert not (tmp_path / "link" / "schema" / "trials").exists()
    spark.sql(f"CREATE TABLE {schema}.runs USING delta LOCATION '{elsewhere.location('runs')}'")
    store = Store(spark, schema)
    assert store.in_catalog
    store.append(run_row(store, "one"), RUNS)
    assert elsewhere.read(RUNS).count() == 1


def test_two_names_and_a_dot_are_a_catalog_unless_there_is_such_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_catalog_schema("main.recbench")
    for folder in ("warehouse", "./a.b", "a/b.c", "a.b.c", "s3://bucket/x", "2026.x", "/tmp/a.b"):
        assert not is_catalog_schema(folder)
    (tmp_path / "main.recbench").mkdir()
    assert not is_catalog_schema("main.recbench")


# --------------------------------------------------------------------------- what Delta is told


@KINDS
def test_comments_stand_on_every_column_and_layouts_hold(
    store: Store, catalog_store: Store, kind: str
) -> None:
    place = store if kind == "folder" else catalog_store
    place.create(*TABLES.values())
    for table in TABLES.values() if kind == "folder" else ():
        made = DeltaLakeTable(place.location(table.name))
        assert [(c.name, c.metadata["comment"]) for c in made.schema().fields] == [
            (c.name, c.comment) for c in table.columns
        ]
        assert (made.metadata().description, tuple(made.metadata().partition_columns)) == (
            table.comment, table.partition_by,
        )  # fmt: skip
        assert made.metadata().configuration[VERSION_PROPERTY] == str(SCHEMA_VERSION)
        protocol = made.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        assert not features & {"deletionVectors", "columnMapping", "clustering"}
    for table in (METRICS, RANKINGS, RUNS) if kind == "folder" else TABLES.values():
        name = place.identifier(table.name)
        columns = {row.col_name: row.comment for row in place.spark.sql(f"DESCRIBE {name}").collect()}
        assert {c.name: columns.get(c.name) for c in table.columns} == {
            c.name: c.comment for c in table.columns
        }
        (detail,) = place.spark.sql(f"DESCRIBE DETAIL {name}").collect()
        assert detail.description == table.comment
        assert tuple(detail.partitionColumns) == table.partition_by
        assert not detail.clusteringColumns, "deltalake appends to no table that is clustered"
        assert detail.properties[VERSION_PROPERTY] == str(SCHEMA_VERSION)
        # Other readers must be able to open the tables.
        assert not set(detail.tableFeatures) & {"deletionVectors", "columnMapping"}


def test_a_table_is_made_here_as_by_spark(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that links no files it is Spark's CREATE TABLE: the same metadata, down to the comments."""

    def describe_tables() -> list[object]:
        tables = (DeltaLakeTable(store.location(table.name)) for table in (RUNS, USER_METRICS, MANIFESTS))
        return [
            (table.schema().json(), table.protocol(), table.metadata().description, table.metadata().name,
             table.metadata().partition_columns, table.metadata().configuration)
            for table in tables
        ]  # fmt: skip

    store.create(RUNS, USER_METRICS, MANIFESTS)
    here = describe_tables()
    monkeypatch.setattr(os, "link", refuse)
    store = Store(store.spark, f"{store.root}_linkless")
    store.create(RUNS, USER_METRICS, MANIFESTS)
    assert here == describe_tables()
    assert not list(Path(store.root).rglob("*.tmp"))


def refuse(*_args: object) -> None:
    raise OSError(95, "Operation not supported")


@pytest.mark.parametrize(
    "broken",
    [
        lambda s: (metric(s, "r", k=0), METRICS),
        lambda s: (metric(s, "r", n=-1), METRICS),
        lambda s: (run_row(s, "r", status="done"), RUNS),
        lambda s: (run_row(s, "r", source="hearsay"), RUNS),
        lambda s: (
            s.spark.createDataFrame([("r", "c", "fatal", 1.0, None, True, None)], spark_schema(CHECKS)),
            CHECKS,
        ),
    ],
    ids=["k_positive", "n_not_negative", "status_known", "source_known", "severity_known"],
)
def test_constraints_hold(store: Store, broken, request: pytest.FixtureRequest) -> None:
    frame, table = broken(store)
    constraint = request.node.callspec.id
    with pytest.raises((Py4JJavaError, StoreError)) as error:
        store.append(frame, table)
    message = explain_spark_error(error.value)
    assert constraint in message
    assert "\n" not in message
    assert store.read(table).count() == 0


def test_an_intermediate_of_a_dead_writer_is_not_seen(store: Store) -> None:
    """Rows written to the folder and never committed, as a killed job leaves them, do not count."""
    store.append(facts(store, "a"), MANIFESTS)
    files = set((Path(store.root) / "manifests").rglob("*.parquet"))
    stray = next(iter(files))
    stray.with_name("part-99999-stray.parquet").write_bytes(stray.read_bytes())
    assert store.read(MANIFESTS).count() == 3


def test_results_are_deltas_own_tables(store: Store) -> None:
    store.create(USER_METRICS, RANKINGS)
    for table in (USER_METRICS, RANKINGS):
        assert DeltaTable.isDeltaTable(store.spark, f"{store.root}/{table.name}")


def test_an_error_of_a_python_worker_ends_in_what_the_worker_raised(spark) -> None:
    def fail(batches):
        yield from batches
        raise ValueError("the seventh item is missing")

    with pytest.raises(PySparkException) as error:
        spark.range(3).mapInArrow(fail, "id long").collect()
    assert explain_spark_error(error.value) == "ValueError: the seventh item is missing"
    with pytest.raises((PySparkException, Py4JJavaError)) as written:
        spark.range(3).mapInArrow(fail, "id long").write.format("noop").mode("append").save()
    assert explain_spark_error(written.value) == "ValueError: the seventh item is missing"
