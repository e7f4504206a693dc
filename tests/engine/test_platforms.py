"""Checks of the platform before a session starts, without a JVM."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, PySparkImportError

from recbench_spark.core.extras import CORE
from recbench_spark.engine import platforms, sessions, versions
from recbench_spark.errors import ConfigError
from recbench_spark.runtime import session
from recbench_spark.runtime.session import choose_delta
from recbench_spark.storage import spark_places

PACKAGES = "spark.jars.packages"


@pytest.mark.parametrize(
    ("version", "package"),
    [
        ("3.5.8", "io.delta:delta-spark_2.12:3.3.2"),
        ("4.0.2", "io.delta:delta-spark_2.13:4.0.1"),
        ("4.1.1", "io.delta:delta-spark_4.1_2.13:4.4.0"),
        ("4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
    ],
)
def test_each_spark_gets_its_delta(monkeypatch, version, package) -> None:
    monkeypatch.setattr(platforms, "client_version", version)
    monkeypatch.setattr(platforms.name_version, "__defaults__", (version,))
    settings = {
        PACKAGES: "io.delta:delta-spark_4.2_2.13:4.4.0,org.apache.hadoop:hadoop-aws:3.4.1",
        "a": "b",
    }
    chosen = choose_delta(settings)
    assert chosen == {PACKAGES: f"{package},org.apache.hadoop:hadoop-aws:3.4.1", "a": "b"}
    assert choose_delta({"a": "b"}) == {"a": "b"}


@pytest.mark.parametrize(
    ("version", "why"), [("4.3.0", "no Delta for it is on Maven Central"), ("3.4.4", "it is too old")]
)
def test_other_sparks_are_refused_in_a_sentence(monkeypatch, version, why) -> None:
    monkeypatch.setattr(platforms, "client_version", version)
    monkeypatch.setattr(platforms.name_version, "__defaults__", (version,))
    with pytest.raises(ConfigError) as error:
        platforms.check_client()
    assert error.value.exit_code == 2
    assert error.value.message == f"Spark {version} cannot be used: {why}"
    assert "pyspark~=4.2.0" in error.value.hint


@pytest.mark.parametrize(("master", "parts"), [("local[*]", "2"), ("spark://host:7077", "8"), (None, "8")])
def test_a_small_job_is_small_on_a_local_connect_server_too(monkeypatch, master, parts) -> None:
    """Without these settings a night by Connect took twice the CPU of a classic one."""
    settings = {"spark.sql.shuffle.partitions": "8"} | ({"spark.master": master} if master else {})
    conf = SimpleNamespace(
        get=lambda key, default=None: settings.get(key, default), set=settings.__setitem__
    )
    remote = SimpleNamespace(conf=conf)
    builder = SimpleNamespace(appName=lambda _: SimpleNamespace(getOrCreate=lambda: remote))
    monkeypatch.setenv(session.REMOTE, "sc://127.0.0.1:15002")
    monkeypatch.setattr(
        session, "SparkSession", SimpleNamespace(getActiveSession=lambda: None, builder=builder)
    )
    monkeypatch.setattr(session, "prepare_session", lambda _: "")
    monkeypatch.setattr(session, "share_own_modules", lambda _: None)
    for name in ("require_server", "find_update_server"):
        monkeypatch.setattr(sessions, name, lambda _: None)
    assert session.get_session(small=True) is remote
    assert settings["spark.sql.shuffle.partitions"] == parts


class Settings(dict[str, str]):
    """Settings of a session, as some clusters keep them: they hide some and let no job change any."""

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        if key == "hidden":
            raise AnalysisException("[CONFIG_NOT_AVAILABLE] Configuration hidden is not available.")
        return super().get(key, default)

    def set(self, key: str, value: str) -> None:
        raise AnalysisException(f"[CANNOT_MODIFY_STATIC_CONFIG] Cannot modify {key}")


def cluster(**settings: str) -> Any:
    return SimpleNamespace(conf=Settings({key.replace("_", "."): value for key, value in settings.items()}))


def test_ansi_that_the_cluster_keeps_off_is_refused() -> None:
    for spark in (cluster(), cluster(spark_sql_ansi_enabled="false")):
        with pytest.raises(ConfigError, match=r"keeps spark\.sql\.ansi\.enabled off") as error:
            platforms._require_ansi(spark)
        assert error.value.exit_code == 2
    platforms._require_ansi(cluster(spark_sql_ansi_enabled="true"))


def test_settings_that_a_cluster_hides_or_keeps_stop_no_job() -> None:
    spark = cluster(a="0", spark_sql_shuffle_partitions="auto")
    assert versions.read_setting(spark, "hidden", "x") == "x"
    session.replace_defaults(spark, {"a": ("0", "4"), "hidden": ("1", "2"), "unknown": ("1", "2")})
    assert versions.count_shuffle_tasks(spark) == 0  # the cluster chooses
    assert versions.count_shuffle_tasks(cluster(spark_sql_shuffle_partitions="8")) == 8


GOOD = {name: CORE[name] for name in platforms.WORKER_PACKAGES}


@pytest.mark.parametrize(
    ("packages", "said", "hint"),
    [
        ({"scipy": None}, "no scipy", "'scipy>=1.14'"),
        (
            {"pyarrow": "15.0.2", "pandas": "1.5.3"},
            "pyarrow 15.0.2, pandas 1.5.3",
            "'pyarrow>=18' 'pandas>=2.2'",
        ),
    ],
)
def test_packages_that_tasks_lack_are_named(
    monkeypatch, packages: Mapping[str, str], said: str, hint: str
) -> None:
    facts = {"python": list(sys.version_info[:2]), "ours": True, "packages": GOOD | packages}
    monkeypatch.setattr(platforms, "_ask_worker", lambda _: facts)
    with pytest.raises(ConfigError) as error:
        platforms._prepare_workers(cluster())
    assert error.value.message == f"tasks of this cluster cannot run recbench-spark: {said}"
    assert hint in error.value.hint
    facts["packages"] = GOOD
    platforms._prepare_workers(cluster())


def answer(text: str = "", error: Exception | None = None) -> Any:
    """A session whose tasks answer this, or fail so."""

    def collect() -> list[dict[str, str]]:
        if error:
            raise error
        return [{"facts": text}]

    rows = SimpleNamespace(select=lambda *_: SimpleNamespace(collect=collect))
    return SimpleNamespace(range=lambda *_: rows)


@pytest.mark.parametrize("words", ["different version: 3.12 than that", "different version 3.12 than that"])
def test_another_python_of_tasks_is_named(monkeypatch, words: str) -> None:
    here = ".".join(map(str, sys.version_info[:2]))
    monkeypatch.setattr(platforms.F, "udf", lambda *_, **__: lambda _: SimpleNamespace(alias=str))
    broken = PySparkException(f"[PYTHON_VERSION_MISMATCH] Python in worker has {words} in driver: {here}")
    old = json.dumps({"python": [3, 12] if here != "3.12" else [3, 13], "ours": True, "packages": GOOD})
    for spark in (answer(error=broken), answer(old)):
        with pytest.raises(ConfigError, match=rf"run Python 3.1\d, and this job {here}"):
            platforms._prepare_workers(spark)


def test_a_server_that_takes_no_artifact_is_named(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise PySparkException("RESOURCE_EXHAUSTED: too large\nmore")

    monkeypatch.setattr(sessions, "send_package", refuse)
    with pytest.raises(ConfigError, match="took no artifact: RESOURCE_EXHAUSTED: too large more\n"):
        platforms._send_package(cluster())
    monkeypatch.setattr(sessions, "send_package", lambda *_: None)
    monkeypatch.setattr(platforms, "_ask_worker", lambda _: {"ours": False})
    with pytest.raises(ConfigError, match="took no artifact\n"):
        platforms._send_package(cluster())


def test_a_sent_package_holds_its_files_and_no_compiled_code(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "own" / "__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "a.sql", "__pycache__/a.pyc"):
        (tmp_path / "own" / name).write_text("")
    sent: list[str] = []
    monkeypatch.setattr(sessions, "send_module", lambda _, file: sent.append(file))
    sessions.send_package(cluster(), tmp_path / "own")
    assert Path(sent[0]).name == "own.zip"
    names = {name for name in zipfile.ZipFile(sent[0]).namelist() if not name.endswith("/")}
    assert names == {"own/__init__.py", "own/a.sql"}


@pytest.mark.parametrize(
    "said",
    [
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta.",
        "Failed to find data source: delta. Please find packages at",
        "[DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG] This Delta operation requires",
        "java.lang.ClassNotFoundException: org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "[CATALOG_PLUGIN_CLASS_NOT_FOUND]",
    ],
)
def test_a_session_without_delta_is_refused(said: str) -> None:
    def load(_: str) -> Any:
        raise AnalysisException(said)

    reader = SimpleNamespace(format=lambda _: SimpleNamespace(load=load))
    with pytest.raises(ConfigError, match=r"session of Spark 4\.1\.3 has no Delta, or lacks its settings"):
        platforms._require_delta(SimpleNamespace(read=reader, version="4.1.3"))  # type: ignore[arg-type]


def test_a_client_without_its_packages_and_a_server_that_is_not_there(monkeypatch) -> None:
    monkeypatch.setattr(sessions, "getproxies", dict)
    with pytest.raises(ConfigError, match=r"answers at 127\.0\.0\.1:1: Connection refused"):
        sessions.require_server("sc://127.0.0.1:1/;token=secret")

    def build() -> None:
        raise PySparkImportError("[PACKAGE_NOT_INSTALLED] grpcio >= 1.48.1 must be installed.")

    builder = SimpleNamespace(appName=lambda _: SimpleNamespace(getOrCreate=build))
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder))
    with pytest.raises(ConfigError, match="no client of Spark Connect here: grpcio >= 1") as error:
        session._open_session("x")
    assert "pyspark[connect]~=" in error.value.hint


def test_a_file_is_no_delta_table_by_connect(monkeypatch, tmp_path: Path) -> None:
    """deltalake looks for a log inside it, which is an error."""
    (tmp_path / "a.parquet").write_text("")
    monkeypatch.setattr(sessions, "is_connect", lambda _: True)
    assert not spark_places.is_delta(cluster(), str(tmp_path / "a.parquet"))
    assert not spark_places.is_delta(cluster(), f"file:{tmp_path}/a.parquet")
    assert not spark_places.is_delta(cluster(), str(tmp_path))
