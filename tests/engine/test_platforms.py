"""Checks of the platform before a session starts, without a JVM."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from recbench_spark.engine import platforms
from recbench_spark.errors import ConfigError
from recbench_spark.runtime import session
from recbench_spark.runtime.session import choose_delta

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
    for name in ("share_own_modules", "find_update_server"):
        monkeypatch.setattr(session, name, lambda _: None)
    assert session.get_session(small=True) is remote
    assert settings["spark.sql.shuffle.partitions"] == parts
