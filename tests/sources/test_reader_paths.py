"""Folders of datasets are listed without Hadoop, so that sessions of Spark Connect read them too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyspark.sql import SparkSession

from recbench_spark.config import Dataset
from recbench_spark.errors import ConfigError, DataError, MissingError
from recbench_spark.sources.log_sources import HERE, find_text_files
from recbench_spark.sources.readers.paths import (
    file_system,
    is_folder,
    list_files,
    list_names,
    read_file_head,
)
from recbench_spark.storage.spark_places import hadoop_uri, is_delta, share_access

ODD = ("plain", "with space", "per%20cent", "näive")


class Conf(dict[str, str]):
    """Settings that a server tells; none can be set."""


@pytest.fixture
def connect() -> SparkSession:
    """A session of Spark Connect, judged by its class alone; it has no server."""
    kind = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "conf": Conf()})
    session: Any = kind()
    return session  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_folder_is_listed_by_any_name(tmp_path: Path, name: str, prefix: str) -> None:
    folder = tmp_path / name
    (folder / "inner").mkdir(parents=True)
    for file in ("train.ascii.gz", "test.ascii", "notes.txt"):
        (folder / file).write_text("1 2\n", encoding="utf-8")
    place = f"{prefix}{folder}"
    assert HERE.is_folder(place)
    assert not HERE.is_folder(f"{place}/notes.txt")
    assert HERE.list_names(place) == ["inner", "notes.txt", "test.ascii", "train.ascii.gz"]
    assert HERE.find(place, ["train.ascii"]) == f"{place}/train.ascii.gz"
    assert HERE.read_head(f"{place}/test.ascii") == b"1 2\n"
    assert [Path(file).name for file in HERE.list_files(place, "t*")] == ["test.ascii", "train.ascii.gz"]
    with pytest.raises(ConfigError, match=r"no train\.csv") as error:
        HERE.find(place, ["train.csv"])
    assert "train.ascii" in error.value.hint


def test_first_lines_of_several_files_are_read_at_once(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("user_id,item_id\n1,2\n", encoding="utf-8")
    both = Barrier(2)

    def read_head(path: str) -> bytes:
        both.wait(timeout=20)
        return HERE.read_head(path)

    dataset = Dataset(name="n", reader="csv", path=str(tmp_path))
    files = find_text_files(dataset, replace(HERE, read_head=read_head)).files
    assert [Path(file).name for _, file, _ in files] == ["a.csv", "b.csv"]


def test_a_relative_folder_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netflix" / "training_set").mkdir(parents=True)
    (tmp_path / "netflix" / "training_set" / "mv_0000001.txt").write_text("1:\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    ((_, file, layout),) = find_text_files(Dataset(name="n", reader="netflix", path="netflix"), HERE).files
    assert (file, layout.single) == ("netflix/training_set/mv_0000001.txt", True)  # type: ignore[attr-defined]


def test_missing_places_and_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("x", encoding="utf-8")
    for missing in (f"{tmp_path}/none", f"file:{tmp_path}/none"):
        with pytest.raises(MissingError, match="no such file or folder"):
            HERE.is_folder(missing)
    with pytest.raises(ConfigError, match=r"file\.txt is a file"):
        HERE.find(f"{tmp_path}/file.txt", ["train.ascii"])


@pytest.mark.parametrize("name", ODD)
def test_sparks_session_lists_a_folder_by_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Hadoop lists and reads them; a local file system represents any."""
    folder = tmp_path / name
    for day in ("1", "a b"):
        (folder / f"day={day}").mkdir(parents=True)
        (folder / f"day={day}" / "x.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    (folder / "old").mkdir()
    assert is_folder(spark, str(folder)) and not is_folder(spark, f"{folder}/day=1/x.csv")
    assert list_names(spark, str(folder)) == ["day=1", "day=a b", "old"]
    listed = list_files(spark, str(folder), "x*")
    assert [one["day"] for one in listed.values()] == ["1", "a b"]
    assert {read_file_head(spark, file) for file in listed} == {b"a,b\n1,2\n"}
    with pytest.raises(DataError, match=r"x\.csv: cannot be read"):
        read_file_head(spark, f"{folder}/x.csv")


def test_places_that_hadoop_alone_knows_are_refused_by_connect(connect: SparkSession) -> None:
    with pytest.raises(ConfigError, match="a place that Hadoop reads needs a classic session"):
        file_system(connect, "wasbs://c@a/data")


def test_a_cluster_keeps_its_own_access_by_connect(connect: SparkSession) -> None:
    """The address belongs to the server's settings: nothing is set there by a job."""
    before = dict(connect.conf)  # type: ignore[call-overload]
    share_access(connect, "s3a://bucket/w")
    assert dict(connect.conf) == before  # type: ignore[call-overload]
    assert hadoop_uri(connect, "s3://bucket/w") == "s3a://bucket/w"


@pytest.mark.parametrize("name", ODD)
def test_a_table_is_told_from_files_by_connect(connect: SparkSession, tmp_path: Path, name: str) -> None:
    table = tmp_path / name
    (table / "_delta_log").mkdir(parents=True)
    (table / "side=user").mkdir()
    (tmp_path / "log.csv").write_text("user,item\n", encoding="utf-8")
    assert is_delta(connect, str(table))
    assert is_delta(connect, f"file://{table}")
    assert is_delta(connect, f"{table}/side=user")
    assert not is_delta(connect, str(tmp_path))
    assert not is_delta(connect, f"{tmp_path}/log.csv")
    assert not is_delta(connect, "shop.orders")
