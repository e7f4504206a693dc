"""A classic session's handles, and their substitutes by Spark Connect."""

from __future__ import annotations

import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import getproxies

from pyspark.sql import DataFrame, SparkSession

from recbench_spark.engine.local import ROWS_PER_TASK
from recbench_spark.engine.tasks import FrameContext
from recbench_spark.engine.versions import count_shuffle_tasks, is_old, read_setting
from recbench_spark.errors import ConfigError

if TYPE_CHECKING:
    from pyspark import SparkContext

try:
    from py4j.protocol import Py4JError, Py4JJavaError
except ImportError:  # a client of Spark Connect has no Java

    class Py4JError(Exception):  # type: ignore[no-redef]
        """An error in Java's gateway, which this client lacks."""

    class Py4JJavaError(Py4JError):  # type: ignore[no-redef, misc]
        """An error raised by Java, which this client lacks."""


__all__ = ["Py4JError", "Py4JJavaError"]


Result = TypeVar("Result")


def is_connect(spark: SparkSession) -> bool:
    """Check whether a session speaks Spark Connect.

    Such a session has no JVM, no RDD and no context.
    """
    return ".connect." in type(spark).__module__


def require_server(address: str) -> None:
    """Check that a server of Spark Connect listens.

    pyspark would wait for one for ten minutes.

    Raises:
        ConfigError: nobody listens.
    """
    place = urlsplit(address)
    if place.scheme != "sc" or getproxies():  # a proxy may be the way to it
        return
    try:
        socket.create_connection((place.hostname or "", place.port or 15002), timeout=20).close()
    except OSError as error:
        raise ConfigError(
            f"no server of Spark Connect answers at {place.netloc}: {error.strerror or error}",
            "start it, or correct SPARK_REMOTE=sc://HOST:PORT",
        ) from None


def limit_waiting(spark: SparkSession) -> None:
    """Limit all waiting for a dead server.

    Requests end within half a minute in all; pyspark waits for ten minutes.
    """
    client: Any = spark.client
    few: dict[str, Any] = {"max_retries": 7, "max_backoff": 10_000}
    if is_old():
        client._retry_policy.update(few)
        return
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415

    class Patience(DefaultPolicy):
        """Retry rule: errors may last half a minute together."""

        first = last = 0.0

        def can_retry(self, e: BaseException) -> bool:
            if not super().can_retry(e):
                return False
            now = time.monotonic()
            if now - self.last > PATIENCE:
                self.first = now
            self.last = now
            return now - self.first < PATIENCE

    client.set_retry_policies([Patience(**few)])


PATIENCE = 30
"""Seconds; the second request to a dead server, and all later ones, end at once."""

SERVER_GONE = re.compile(
    r"StatusCode\.UNAVAILABLE|RETRIES_EXCEEDED|INVALID_HANDLE\.SESSION_(CHANGED|CLOSED|NOT_FOUND)"
)


def is_server_gone(error: BaseException) -> bool:
    """Check whether a Connect server ended or forgot the session."""
    by_connect = ".connect" in type(error).__module__ or type(error).__module__.startswith("grpc")
    return by_connect and SERVER_GONE.search(f"{type(error).__name__} {error}") is not None


def has_other_python(spark: SparkSession) -> bool:
    """Check whether a classic session's tasks may have another Python."""
    context: Any = spark.sparkContext
    return bool(context.pythonExec != sys.executable or not context.master.startswith("local"))


def open_tasks(spark: SparkSession) -> SparkContext:
    """Return Spark's context; by Connect `FrameContext` over frames."""
    return cast("SparkContext", FrameContext(spark)) if is_connect(spark) else spark.sparkContext


@dataclass(frozen=True)
class SparkEngine:
    """Runner of tasks by a Spark session."""

    spark: SparkSession

    @property
    def cores(self) -> int:
        """Number of tasks at once."""
        return int(open_tasks(self.spark).defaultParallelism)

    def count_tasks(self, n: int) -> int:
        """Return a number of tasks for n rows.

        On average, a task has at most ROWS_PER_TASK rows.
        """
        return max(count_shuffle_tasks(self.spark) or self.cores, -(-n // ROWS_PER_TASK))

    @property
    def is_here(self) -> bool:
        """True if this machine runs the tasks."""
        return (self.read_setting("spark.master") or "").startswith("local")

    def count_hosts(self) -> int:
        """Return the number of started or planned executors.

        A local master counts as 1.
        """
        if self.is_here:
            return 1
        planned, context = self.read_setting("spark.executor.instances") or "", open_tasks(self.spark)
        java: Any = None if isinstance(context, FrameContext) else context._jsc
        started = java.sc().getExecutorMemoryStatus().size() - 1 if java else 0  # the driver is among them
        return max(1, int(started), int(planned) if planned.isdigit() else 0)

    def read_setting(self, name: str) -> str | None:
        """Return a session's setting; None: it is not set."""
        return read_setting(self.spark, name)

    def parallelize(self, items: Iterable[Any], parts: int | None = None) -> Any:
        """Return tasks over a list's parts, with Spark's RDD words."""
        return open_tasks(self.spark).parallelize(items, parts)

    def run_alone(self, work: Callable[[Any], Result], argument: Any) -> Result:
        """Run a task in its own job; others go on."""
        result: Result = self.parallelize([argument], 1).map(work).collect()[0]
        return result


def require_classic(spark: SparkSession, what: str, hint: str) -> None:
    """Refuse work that no session of Spark Connect can do.

    Raises:
        ConfigError: the session has no JVM of its own.
    """
    if is_connect(spark):
        raise ConfigError(f"{what} needs a classic session of Spark, and this one is Spark Connect", hint)


def open_java(spark: SparkSession) -> Any:
    """Return the gateway to Java's classes.

    Raises:
        ConfigError: the session speaks Spark Connect.
    """
    require_classic(spark, "a step that calls Java", "docs/how_to/platforms.md says what Connect can do")
    return spark.sparkContext._jvm


def find_gateway() -> Any:
    """Return this process's connection to Java; None: none.

    By Connect there is none.
    """
    try:
        from pyspark import SparkContext  # noqa: PLC0415
    except ImportError:
        return None
    return SparkContext._gateway


def parse_sql(spark: SparkSession, sql: str) -> Any:
    """Return a statement's plan from Spark's parser, in Java."""
    session: Any = spark
    return session._jsparkSession.sessionState().sqlParser().parsePlan(sql)


def is_java(value: Any) -> bool:
    """Check whether a value is a Java object.

    A list or map of Java is one.
    """
    from py4j.java_gateway import JavaObject  # noqa: PLC0415

    return isinstance(value, JavaObject)


def is_java_class(gateway: Any, value: Any, name: str) -> bool:
    """Check whether a Java object belongs to a class."""
    from py4j.java_gateway import is_instance_of  # noqa: PLC0415

    return bool(is_instance_of(gateway, value, name))


class SharedSettings(NamedTuple):
    """Hadoop's settings on a server of Spark Connect.

    The settings belong to the server's cluster, and no job sets them.
    """

    spark: SparkSession

    def get(self, key: str) -> str | None:
        """Return a setting; None: it is not set."""
        return read_setting(self.spark, f"spark.hadoop.{key}")

    def set(self, key: str, value: str) -> None:
        """Leave the cluster's setting as it is."""


def read_hadoop(spark: SparkSession) -> Any:
    """Return the session's Hadoop configuration, a Java object.

    By Connect it is whatever the server tells.
    """
    if is_connect(spark):
        return SharedSettings(spark)
    context: Any = spark.sparkContext
    return context._jsc.hadoopConfiguration()


def open_hadoop(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return a path's Hadoop file system and its Java path.

    Raises:
        ConfigError: the session speaks Spark Connect.
    """
    require_classic(spark, "a place that Hadoop reads", "use a folder that the job and its tasks see")
    hadoop, place = read_hadoop(spark), open_java(spark).org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(hadoop), place


def open_task_environment(spark: SparkSession) -> dict[str, str]:
    """Return the environment of later tasks, open to changes.

    By Connect changes reach no task.
    """
    return {} if is_connect(spark) else spark.sparkContext.environment


def read_delta_snapshot(frame: DataFrame) -> tuple[Any, DataFrame]:
    """Return a frame's Delta snapshot and its files.

    The snapshot is a Java object, the files are a frame.

    Raises:
        ConfigError: the session speaks Spark Connect.
    """
    from pyspark.sql import DataFrame as Frame  # noqa: PLC0415

    require_classic(
        frame.sparkSession,
        "a Delta table with column mapping, deletion vectors, or a version chosen by its time",
        "give versionAsOf, or a copy of the table without these features",
    )
    classic: Any = frame
    plan: Any = classic._jdf.queryExecution().analyzed()
    snapshot = plan.collectLeaves().head().relation().location().getSnapshot()
    return snapshot, Frame(snapshot.allFiles().toDF(), frame.sparkSession)


CHECKPOINTS = "spark.checkpoint.dir"
"""Spark's setting for the folder of checkpoints; by Connect the cluster sets it."""


def set_checkpoints(spark: SparkSession, folder: str, what: str) -> None:
    """Choose the checkpoint folder.

    Without one, MLlib's ALS overflows a server's stack.

    Raises:
        ConfigError: the session speaks Spark Connect, and its cluster has no such folder.
    """
    if not is_connect(spark):
        spark.sparkContext.setCheckpointDir(folder)
    elif not read_setting(spark, CHECKPOINTS):
        raise ConfigError(
            f"{what} by Spark Connect needs {CHECKPOINTS} in the settings of the cluster",
            "set it, or use kind: als",
        )


def list_sent_files(spark: SparkSession) -> set[str]:
    """Return the names of files sent to tasks.

    By Connect only files sent by this process count.
    """
    if is_connect(spark):
        return set(_sent)
    return {name.rpartition("/")[2] for name in spark.sparkContext.listFiles}


_sent: set[str] = set()


def send_module(spark: SparkSession, file: str) -> None:
    """Send a module or a package's archive to all tasks."""
    if is_connect(spark):
        spark.addArtifacts(file, pyfile=True)
        _sent.add(Path(file).name)
    else:
        spark.sparkContext.addPyFile(file)


def send_package(spark: SparkSession, folder: Path) -> None:
    """Send a package's folder to all tasks, as an archive.

    The archive has the folder's name.
    """
    base = Path(tempfile.mkdtemp(prefix="recbench-modules-")) / folder.name
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, Path(copy, folder.name), ignore=shutil.ignore_patterns("__pycache__"))
        archive = shutil.make_archive(str(base), "zip", copy)
    send_module(spark, archive)


def cancel_jobs() -> None:
    """Cancel the active session's jobs, if any."""
    if "pyspark" not in sys.modules:
        return
    with suppress(ImportError):
        from pyspark import SparkContext  # noqa: PLC0415

        if SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.cancelAllJobs()
            return
    active = SparkSession.getActiveSession()
    if active is not None and is_connect(active):
        active.interruptAll()


def find_update_server(spark: SparkSession) -> Any:
    """Return PySpark's server of accumulators; by Connect None."""
    context: Any = None if is_connect(spark) else spark.sparkContext
    return context and context._accumulatorServer


def hide_broken_updates(server: Any) -> None:
    """Let an accumulator server print no trace after Java's end.

    The job itself says so in a sentence.
    """
    report = server.handle_error

    def handle_error(*request: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            report(*request)

    server.handle_error = handle_error
