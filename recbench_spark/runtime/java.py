"""Starting Java without noise, and without asking where its jars lie when that is known.

Only for jobs that are started with bare Python on one machine: under spark-submit, or on a cluster, all is
left to Spark. What is remembered lies in the user's cache folder, and where it does not hold any more
Spark looks for the jars as before.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from pyspark import SparkContext
from pyspark import __version__ as spark_version
from pyspark.java_gateway import launch_gateway

from recbench_spark.storage.publish import replace_text

PACKAGES, EXCLUDES, JARS = "spark.jars.packages", "spark.jars.excludes", "spark.jars"
NOISE = (b"netlib-blas: JNI_OnLoad", b"netlib-lapack: JNI_OnLoad")
"""Lines of a library that looks for a faster one of the system, and goes on without it."""
OWN_JARS = (JARS, "spark.driver.extraClassPath", "spark.jars.ivy", "spark.jars.ivySettings")
"""Settings by which a properties file says itself where jars come from."""


@contextmanager
def start_quietly() -> Iterator[None]:
    """Start the Java process of the session that is built inside; what it says meanwhile is shown only if
    that fails.

    Raises:
        PySparkRuntimeError: it did not start.
    """
    if SparkContext._gateway is not None:
        yield
        return
    ours, javas = os.pipe()
    said = JavaErrors(os.fdopen(ours, "rb"))
    try:
        gateway = _launch(javas)
        SparkContext._ensure_initialized(gateway=gateway)
        yield
    except BaseException:
        said.tell()
        raise
    said.started.set()


def _launch(javas: int) -> Any:
    """The way to a new Java process, whose standard error is a pipe that only it holds."""
    try:
        return launch_gateway(popen_kwargs={"stderr": javas})  # type: ignore[no-untyped-call]
    finally:
        os.close(javas)


class JavaErrors:
    """What Java writes to its standard error: kept until it has started, handed on from then."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.started = stream, threading.Event()
        self.kept: list[bytes] = []
        self.thread = threading.Thread(target=self._listen, name="java's errors", daemon=True)
        self.thread.start()

    def tell(self) -> None:
        """All that was kept, and what comes: Java or its session did not start."""
        self.thread.join(timeout=1)  # where Java has ended, to its last line
        self.started.set()
        _write_stderr(b"".join(self.kept))

    def _listen(self) -> None:
        for line in self.stream:
            if line.startswith(NOISE):
                continue
            if self.started.is_set():
                _write_stderr(line)
            else:
                self.kept.append(line)


def _write_stderr(text: bytes) -> None:
    # Not sys.stderr: a notebook's or a test's has no bytes, and what Java says went past it before.
    with suppress(OSError):
        os.write(2, text)


# ------------------------------------------------------------------------------- jars


def read_known_jars(settings: Mapping[str, str]) -> list[str]:
    """The jars of these settings' packages, where a session before has found them and they are there."""
    if PACKAGES not in settings or any(name in settings for name in OWN_JARS):
        return []
    try:
        jars = json.loads(_cache_file(settings).read_text(encoding="utf-8"))
        return [str(jar) for jar in jars] if all(Path(jar).is_file() for jar in jars) else []
    except (OSError, ValueError, TypeError):
        return []


def write_known_jars(settings: Mapping[str, str], jars: str) -> None:
    """Keep what Spark found for these settings: `spark.jars` of the session."""
    found = [jar.removeprefix("file://") for jar in jars.split(",") if jar]
    if PACKAGES not in settings or any(name in settings for name in OWN_JARS) or not found:
        return
    with suppress(OSError):  # a home that is read-only remembers nothing
        replace_text(_cache_file(settings), json.dumps(found))


def _cache_file(settings: Mapping[str, str]) -> Path:
    """The file of what was found for packages, of one Spark."""
    asked = [settings[PACKAGES], settings.get(EXCLUDES, ""), spark_version]
    name = sha256(json.dumps(asked).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "recbench-spark", f"jars-{name}.json")
