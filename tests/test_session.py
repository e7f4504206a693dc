"""The state that a session of many nights keeps."""

from __future__ import annotations

import gc
import socketserver
import weakref

import pytest

from recbench_spark.engine.sessions import hide_broken_updates
from recbench_spark.runtime.session import cache_frame, cache_scope


@pytest.fixture
def no_collector():
    """Python looks for cycles on request, and not meanwhile."""
    gc.disable()
    yield
    gc.enable()


def test_what_is_kept_is_let_go_and_so_is_what_nobody_names(spark, no_collector) -> None:
    with cache_scope():
        cached = cache_frame(spark.range(3))
        assert cached.count() == 3 and cached.storageLevel.useMemory
        circle: list[object] = [spark.range(2)]
        circle.append(circle)
        frame = weakref.ref(circle[0])
        del circle
        assert frame() is not None
    assert not cached.storageLevel.useMemory and frame() is None


@pytest.mark.parametrize(("error", "is_shown"), [(EOFError(), False), (ValueError("wrong"), True)])
def test_a_broken_connection_of_accumulators_prints_no_trace(
    error: Exception, is_shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Java is gone: PySpark's server reads nothing from it. The job itself says so."""
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        hide_broken_updates(server)
        try:
            raise error
        except type(error):
            server.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) == is_shown
