"""Handles of classic sessions, without a JVM."""

from __future__ import annotations

from py4j.java_collections import JavaList, JavaMap
from py4j.java_gateway import JavaObject

from recbench_spark.engine.sessions import is_java


def test_lists_and_maps_of_java_are_objects_of_java() -> None:
    """The guard of queries looks into every one of them."""
    for kind in (JavaObject, JavaList, JavaMap):
        assert is_java(kind.__new__(kind)), kind
    assert not any(map(is_java, ("JavaObject", 1, None, [], {})))
