"""Handles of sessions, classic and by Connect, without a JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.java_collections import JavaList, JavaMap
from py4j.java_gateway import JavaObject
from pyspark.sql import types as T

from recbench_spark.engine import sessions, versions
from recbench_spark.engine.sessions import is_java
from recbench_spark.runtime.failures import SERVER_ENDED, describe_error, is_java_gone


def test_lists_and_maps_of_java_are_objects_of_java() -> None:
    """The guard of queries looks into every one of them."""
    for kind in (JavaObject, JavaList, JavaMap):
        assert is_java(kind.__new__(kind)), kind
    assert not any(map(is_java, ("JavaObject", 1, None, [], {})))


def test_a_client_of_spark_3_5_waits_as_short_as_others(monkeypatch) -> None:
    client = SimpleNamespace(_retry_policy={"max_retries": 15, "max_backoff": 60000, "jitter": 500})
    monkeypatch.setattr(sessions, "is_old", lambda: True)
    sessions.limit_waiting(SimpleNamespace(client=client))
    assert client._retry_policy == {"max_retries": 7, "max_backoff": 10_000, "jitter": 500}


def test_rows_of_spark_3_5_by_connect_are_a_table() -> None:
    """Its frames are no DataFrame of the classic kind, and have neither `toArrow` nor its private twin."""
    rows = pa.table({"n": pa.array([1, 2], pa.int32())})
    client = SimpleNamespace(to_table=lambda plan: (rows, None) if plan == "plan" else None)
    frame = SimpleNamespace(
        schema=T.StructType([T.StructField("n", T.LongType())]),
        sparkSession=SimpleNamespace(client=client),
        _plan=SimpleNamespace(to_proto=lambda client: "plan"),
        mapInArrow=None,
    )
    assert versions.is_frame(frame) and not versions.is_frame(rows)
    assert versions.collect_arrow(frame).equals(pa.table({"n": [1, 2]}))


def test_a_server_that_has_died_is_waited_for_once(monkeypatch) -> None:
    """The first request tries again for half a minute; later ones end at once, as a night's last steps."""
    pytest.importorskip("grpc")
    from pyspark.sql.connect.client import retries

    monkeypatch.setattr(retries.DefaultPolicy, "can_retry", lambda *_: True)
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(sessions, "time", clock)
    kept: list[Any] = []
    sessions.limit_waiting(SimpleNamespace(client=SimpleNamespace(set_retry_policies=kept.extend)))  # type: ignore[arg-type]
    answers = {}
    for now in (1000, 1010, 1029, 1031, 1032, 1060, 1095):
        answers[now] = kept[0].can_retry(OSError())
    assert answers == {1000: 1, 1010: 1, 1029: 1, 1031: 0, 1032: 0, 1060: 0, 1095: 1}


def test_a_server_that_has_died_ends_a_job_in_a_sentence() -> None:
    kind = type(
        "SparkConnectGrpcException", (Exception,), {"__module__": "pyspark.errors.exceptions.connect"}
    )
    gone = kind("<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE")
    assert is_java_gone(gone)
    assert is_java_gone(kind("[INVALID_HANDLE.SESSION_CHANGED] The handle is invalid."))
    assert not is_java_gone(kind("[PATH_NOT_FOUND] Path does not exist"))
    if not sessions.find_gateway():
        assert describe_error(gone) == SERVER_ENDED
