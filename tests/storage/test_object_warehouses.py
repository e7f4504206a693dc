"""A warehouse on a real S3 server holds what a folder holds, by both engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from recbench_spark.engine.versions import collect_arrow
from recbench_spark.errors import StoreError
from recbench_spark.schemas import REJECTS, RUNS, TRIALS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.frame_blocks import drop_scratch, share_rows
from recbench_spark.storage.object_access import HADOOP_ADDRESS
from recbench_spark.storage.objects import list_objects
from recbench_spark.storage.spark_places import hadoop_uri, require_address, require_jars, share_access
from recbench_spark.storage.store import Store
from tests.storage.test_missing_rows import trial

REJECTED = "split_id string, file string, line string, reason string"


def fill(store: Store) -> None:
    """Write through every method that appends or deletes rows."""
    spark = store.spark
    frame = spark.createDataFrame(
        [("s1", "a", None, "x"), ("s2", "a", "2", "y"), ("s1", "b", "3", "z")], REJECTED
    )
    for _ in range(2):  # the second one does nothing
        store.append(frame, REJECTS, once="first")
    named = collect_arrow(spark.createDataFrame([("s3", "c", "4", "w")], REJECTED))
    store.append(named, REJECTS, "s3", "split_id")
    store.append([trial(1), trial(2)], TRIALS, once="trials")
    store.append([trial(1), trial(2)], TRIALS, once="trials")
    store.append_missing([trial(2), trial(3)], TRIALS, ["trial_id", "status"])
    store.replace_rows([trial(1, "failed")], TRIALS, "trial_id", "t1")
    store.delete(REJECTS.name, "split_id", ["s2"])
    store.delete(TRIALS.name, "trial_id", ["t3"])


def contents(store: FileTables) -> dict[str, list[str]]:
    return {table.name: sorted(map(str, store.rows(table))) for table in (REJECTS, TRIALS, RUNS)}


def test_s3_holds_what_a_folder_holds(spark: SparkSession, bucket: str, tmp_path: Path) -> None:
    folder, remote = Store(spark, str(tmp_path / "w")), Store(spark, f"{bucket}/team/w/")
    for store in (folder, remote):
        fill(store)
    assert contents(remote) == contents(folder)
    assert contents(ArrowStore(f"{bucket}/team/w")) == contents(ArrowStore(str(tmp_path / "w")))
    assert [len(rows) for rows in contents(folder).values()] == [3, 2, 0]
    for column, value in (("split_id", "s1"), ("split_id", "s2")):
        assert remote.has(REJECTS, column, value) == folder.has(REJECTS, column, value)
        assert remote.count_rows(REJECTS, column, value) == folder.count_rows(REJECTS, column, value)


def test_tasks_write_no_row_that_the_table_forbids(spark: SparkSession, bucket: str) -> None:
    store = Store(spark, f"{bucket}/w")
    bad = spark.createDataFrame([("s1", None, None, "x")], REJECTED)
    with pytest.raises(PySparkException, match="column 'file' holds NULL"):
        store.append(bad, REJECTS)
    store.append([trial(1)], TRIALS)
    frame = spark.createDataFrame(ArrowStore(store.root).read_rows(TRIALS))
    store.append(frame, TRIALS)
    with pytest.raises(PySparkException, match="breaks the constraint trial_status_known"):
        store.append(frame.selectExpr("* EXCEPT (status)", "'odd' AS status"), TRIALS)
    assert len(store.rows(TRIALS)) == 2 and not store.rows(REJECTS)


def test_secrets_go_to_workers_and_stand_in_no_setting(spark: SparkSession, bucket: str) -> None:
    Store(spark, f"{bucket}/w")
    settings = [*spark.sparkContext.getConf().getAll(), *spark.conf.getAll.items()]
    assert not [key for key, value in settings if "secret-of-the-tester" in value]
    keys = spark.range(1).rdd.map(lambda _: __import__("os").environ.get("AWS_SECRET_ACCESS_KEY")).collect()
    assert keys == ["secret-of-the-tester"]


@pytest.mark.parametrize("scheme", ["s3", "S3", "s3a", "s3n"])
def test_a_session_has_one_name_for_s3(spark: SparkSession, scheme: str) -> None:
    assert hadoop_uri(spark, f"{scheme}://bucket/w") == "s3a://bucket/w"


def test_a_session_without_the_jars_of_a_storage_says_which(spark: SparkSession, bucket: str) -> None:
    store = Store(spark, f"{bucket}/w")
    store.append([trial(1)], TRIALS)
    missing = r"cannot read s3a://: the jar of org.apache.hadoop:hadoop-aws:3"
    with pytest.raises(StoreError, match=missing) as error:
        store.read(TRIALS)
    assert "conf/spark/s3.conf" in error.value.hint
    with pytest.raises(StoreError, match=r"the jar of org.apache.hadoop:hadoop-azure:3.* is missing"):
        require_jars(spark, "abfss://container@account.dfs.core.windows.net/w")


def test_a_session_that_locks_in_dynamodb_is_refused(spark: SparkSession, bucket: str) -> None:
    key = "spark.delta.logStore.s3a.impl"
    spark.conf.set(key, "io.delta.storage.S3DynamoDBLogStore")
    try:
        with pytest.raises(StoreError, match=f"{key} keeps locks in DynamoDB"):
            Store(spark, bucket)
        assert not Store(spark, bucket, read_only=True).exists("runs")
    finally:
        spark.conf.unset(key)


def test_a_metastore_without_the_address_of_a_server_is_refused(spark: SparkSession, bucket: str) -> None:
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    kept = {key: hadoop.get(key) for key in HADOOP_ADDRESS}
    schema = "spark_catalog.nights"
    try:
        for key in kept:
            hadoop.unset(key)
        with pytest.raises(StoreError, match="its metastore has no address of that server") as error:
            require_address(spark, schema, bucket)
        assert "--conf spark.hadoop.fs.s3a.endpoint=http://127.0.0.1:" in error.value.hint
        require_address(spark, schema, "hdfs://host:8020/nights")
        share_access(spark, bucket)
        require_address(spark, schema, bucket)
    finally:
        for key, value in kept.items():
            hadoop.set(key, value) if value else hadoop.unset(key)


def test_a_place_with_files_and_no_log_is_no_table(bucket: str) -> None:
    from recbench_spark.storage.objects import write_bytes

    write_bytes(f"{bucket}/w/trials/part-1.parquet", b"lost")
    store = ArrowStore(f"{bucket}/w")
    with pytest.raises(StoreError, match=r"trials holds part-1.parquet and is not a Delta table"):
        store.append([trial(1)], TRIALS)


def test_rows_that_workers_map_are_written_by_tasks(spark: SparkSession, bucket: str) -> None:
    share_access(spark, bucket)
    rows = spark.range(0, 1000, numPartitions=3).selectExpr(
        "CAST(id AS INT) AS item_index", "array(CAST(id AS FLOAT), CAST(NULL AS FLOAT)) AS vector",
        "IF(id % 2 = 0, CAST(id AS STRING), NULL) AS name", "timestamp_seconds(id) AS event_time",
    )  # fmt: skip
    shared = share_rows(bucket, rows.where("item_index % 7 <> 0"))
    expected = rows.where("item_index % 7 <> 0").toArrow()
    assert len(shared.files) == 3 and set(shared.files) == {
        f"{bucket}/{name}" for name in list_objects(bucket)
    }
    assert shared.dataset().to_table().sort_by("item_index").to_pylist() == expected.to_pylist()
    nothing = share_rows(bucket, rows.where("item_index < 0"))
    assert len(nothing.files) == 1
    assert nothing.dataset().to_table().schema.names == ["item_index", "vector", "name", "event_time"]
    drop_scratch(spark, bucket)
    assert not list(list_objects(bucket))
