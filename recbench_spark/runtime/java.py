"""Start Java without noise, and without searching known jars.

This is only for jobs under bare Python on one machine: under spark-submit, or on a cluster, Spark does
everything itself. The user's cache folder knows the jars; if they are gone, Spark searches for them as
before.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from pyspark import __version__ as spark_version

from recbench_spark.storage.publish import replace_text

PACKAGES, EXCLUDES, JARS = "spark.jars.packages", "spark.jars.excludes", "spark.jars"
NOISE = (b"netlib-blas: JNI_OnLoad", b"netlib-lapack: JNI_OnLoad")
"""Lines of a library which searches the system for a faster one, and continues without it."""
OWN_JARS = (JARS, "spark.driver.extraClassPath", "spark.jars.ivy", "spark.jars.ivySettings")
"""Settings by which a properties file itself names the source of jars."""


@contextmanager
def start_quietly() -> Iterator[None]:
    """Start the Java process of the session built inside.

    Java's messages appear only if that fails.

    Raises:
        PySparkRuntimeError: it did not start.
    """
    from pyspark import SparkContext  # noqa: PLC0415

    if SparkContext._gateway is not None:
        yield
        return
    read_end, write_end = os.pipe()
    errors = JavaErrors(os.fdopen(read_end, "rb"))
    try:
        gateway = _launch(write_end)
        SparkContext._ensure_initialized(gateway=gateway)
        yield
    except BaseException:
        errors.print_all()
        raise
    errors.started.set()


def _launch(write_end: int) -> Any:
    """Return the gateway to a new Java process.

    The process has as standard error a pipe that only Java holds.
    """
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    try:
        return launch_gateway(popen_kwargs={"stderr": write_end})  # type: ignore[no-untyped-call]
    finally:
        os.close(write_end)


class JavaErrors:
    """Java's lines on standard error: kept at first, printed later.

    The lines are kept until Java has started.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.started = stream, threading.Event()
        self.lines: list[bytes] = []
        self.thread = threading.Thread(target=self._listen, name="java's errors", daemon=True)
        self.thread.start()

    def print_all(self) -> None:
        """Print all kept and later lines, after a failed start."""
        self.thread.join(timeout=1)  # up to the last line, if Java has ended
        self.started.set()
        _write_stderr(b"".join(self.lines))

    def _listen(self) -> None:
        for line in self.stream:
            if line.startswith(NOISE):
                continue
            if self.started.is_set():
                _write_stderr(line)
            else:
                self.lines.append(line)


def _write_stderr(text: bytes) -> None:
    # Not sys.stderr: in a notebook or a test it takes no bytes, and Java's messages bypass it anyway.
    with suppress(OSError):
        os.write(2, text)


# ------------------------------------------------------------------------------- jars


def read_known_jars(settings: Mapping[str, str]) -> list[str]:
    """Return known jars for these packages, if all still exist.

    An earlier session has stored them.
    """
    if PACKAGES not in settings or any(name in settings for name in OWN_JARS):
        return []
    try:
        jars = json.loads(_cache_file(settings).read_text(encoding="utf-8"))
        return [str(jar) for jar in jars] if all(Path(jar).is_file() for jar in jars) else []
    except (OSError, ValueError, TypeError):
        return []


def write_known_jars(settings: Mapping[str, str], jars: str) -> None:
    """Store Spark's jars for these settings.

    Args:
        settings: settings with the packages.
        jars: `spark.jars` of the session.
    """
    paths = [jar.removeprefix("file://") for jar in jars.split(",") if jar]
    if PACKAGES not in settings or any(name in settings for name in OWN_JARS) or not paths:
        return
    with suppress(OSError):  # a read-only home folder stores nothing
        replace_text(_cache_file(settings), json.dumps(paths))


def _cache_file(settings: Mapping[str, str]) -> Path:
    """Return the file with these packages' jars, for one Spark."""
    parts = [settings[PACKAGES], settings.get(EXCLUDES, ""), spark_version]
    name = sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return cache_folder() / f"jars-{name}.json"


def cache_folder() -> Path:
    """Return this package's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "recbench-spark")


# ------------------------------------------------------------------------------- an archive of classes

QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Without these Java prints to the job's output when an archive is not its own."""


def archive_file(jars: Sequence[str]) -> Path:
    """Return the archive's place for jars, Spark and Java."""
    home = os.environ.get("JAVA_HOME")
    java = Path(os.path.realpath(shutil.which("java", path=f"{home}/bin" if home else None) or "java"))
    changed = java.stat().st_mtime_ns if java.is_file() else 0
    parts = [spark_version, str(java), changed, *jars]
    return cache_folder() / f"classes-{sha256(json.dumps(parts).encode()).hexdigest()[:16]}.jsa"


def read_flags(jars: Sequence[str]) -> tuple[str, ...]:
    """Return Java's flags to read classes from their archive.

    Without an archive there are no flags.
    """
    file = archive_file(jars)
    if not jars or not file.is_file():
        return ()
    return (f"-XX:SharedArchiveFile={shlex.quote(str(file))}", "-Xshare:auto", *QUIET)


def write_flags(file: Path) -> tuple[str, ...]:
    """Return Java's flags to write its classes at the end."""
    return (f"-XX:ArchiveClassesAtExit={shlex.quote(str(file))}", *QUIET)
