"""The only place where a SparkSession is built.

Under spark-submit everything comes from its flags and its properties file. A bare `python jobs/x.py`
is given `conf/spark/local.conf`, just as `spark-submit --properties-file` would: no master, memory or
jar stands in code, since a value on the builder would beat spark-submit's flags.
"""

from __future__ import annotations

import gc
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from recbench_spark.errors import ConfigError
from recbench_spark.runtime import java

BYTES_PER_BATCH, UNLIMITED_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1)

TUNED_SETTINGS = {
    # Partitions that a task writes side by side: with 0 it sorts its rows by partition first, though a
    # split or a run is one partition. Beyond these 4 it sorts.
    "spark.sql.maxConcurrentOutputFileWriters": ("0", "4"),
    # With any other value Spark weighs the whole batch again for every row it adds: a fifth of a night's
    # ranking. Rows a batch (spark.sql.execution.arrow.maxRecordsPerBatch) bound the memory.
    BYTES_PER_BATCH: ("67108864b", UNLIMITED_BYTES),
    # VACUUM lists a table in so many tasks, however few its folders: half a minute for an empty one.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": ("10000", "64"),
}
"""Settings of a session, where they are Spark's defaults: (default, ours)."""

SMALL_JOB_SETTINGS = {
    # Compiling a query to Java takes longer than interpreting it for some ten thousand rows.
    "spark.sql.codegen.wholeStage": ("true", "false"),
    "spark.sql.codegen.factoryMode": ("FALLBACK", "NO_CODEGEN"),
    # Stages that are planned anew when the one before has ended cost a job each.
    "spark.sql.adaptive.enabled": ("true", "false"),
    # As many tasks as two cores take at once; each more is overhead. 8 is of conf/spark/local.conf.
    "spark.sql.shuffle.partitions": ("8", "2"),
}
"""The same for small work; never on a cluster."""

SMALL_JOB_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=256m")
"""Small work is over before Java's optimising compiler pays off, and it takes a core."""
JAVA_FLAGS = "spark.driver.extraJavaOptions"

PROPERTIES = "RECBENCH_SPARK_PROPERTIES"
"""Environment variable: another properties file for jobs started with bare python."""


def local_properties() -> Path:
    """The properties file for a session without spark-submit."""
    default = Path(__file__).resolve().parents[2] / "conf" / "spark" / "local.conf"
    path = Path(os.environ.get(PROPERTIES, default))
    if not path.is_file():
        raise ConfigError(
            f"no Spark properties file at {path}",
            f"start with spark-submit --properties-file FILE, or set {PROPERTIES}",
        )
    return path


LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""A session on one machine talks to itself, and listens to nobody else."""


def read_properties(properties: Path) -> dict[str, str]:
    """What a properties file sets of Spark."""
    text = properties.read_text(encoding="utf-8")
    return dict(re.findall(r"^\s*(spark\.\S+?)(?:\s*[=:]\s*|\s+)(.*?)\s*$", text, re.MULTILINE))


def is_local(settings: Mapping[str, str]) -> bool:
    """Whether driver and tasks are one process on this machine."""
    return settings.get("spark.master", "local").startswith("local")


def jar_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings that name the jars of packages, where they are known: Ivy takes seconds to find them."""
    jars = java.read_known_jars(settings)
    return {java.PACKAGES: "", "spark.driver.extraClassPath": os.pathsep.join(jars)} if jars else {}


def submit_arguments(properties: Path, small: bool = False) -> str:
    """What a bare `python jobs/x.py` hands to Java; where the master is local it keeps to itself."""
    set_there = read_properties(properties)
    ours: dict[str, str] = {}
    if is_local(set_there):
        ours = {**LOOPBACK, **jar_settings(set_there)}
        if small:
            ours[JAVA_FLAGS] = " ".join(SMALL_JOB_JAVA)
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK["spark.driver.bindAddress"])  # its page, if any
    free = {key: value for key, value in ours.items() if key not in set_there or key == java.PACKAGES}
    flags = "".join(f"--conf {shlex.quote(f'{key}={value}')} " for key, value in free.items())
    return f"--properties-file {shlex.quote(str(properties))} {flags}pyspark-shell"


@contextmanager
def _defer_signals() -> Iterator[None]:
    """A program that listens to Ctrl-C and SIGTERM itself goes on doing so, and hears them once Java is up.

    Spark's context takes Ctrl-C over; and a Java process whose start is cut off is never ended.
    """
    listens = signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, signal.SIG_IGN, None)
    if not listens or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def get_session(app_name: str = "recbench-spark", small: bool = False) -> SparkSession:
    """The session of spark-submit or of the notebook, else a local one from the properties file.

    Workers use this interpreter where the master is local: they would otherwise take `python3`
    from PATH, which need not have our packages. `small`: settings for work that is over in a minute,
    where the session is one of bare Python on this machine.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        spark = SparkSession.builder.appName(app_name).getOrCreate()
    else:
        spark = _bare_session(app_name, small)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    replace_defaults(spark, TUNED_SETTINGS)
    return spark


def replace_defaults(spark: SparkSession, settings: Mapping[str, tuple[str, str]]) -> None:
    """Settings of a session that nobody has changed are set to ours."""
    for key, (default, ours) in settings.items():
        if spark.conf.get(key) == default:
            spark.conf.set(key, ours)


def _bare_session(app_name: str, small: bool) -> SparkSession:
    """The session of a job that was started with bare Python."""
    asked = os.environ.setdefault("PYSPARK_SUBMIT_ARGS", submit_arguments(local_properties(), small))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with _defer_signals(), java.start_quietly():
        spark = SparkSession.builder.appName(app_name).getOrCreate()
    if small and str(spark.conf.get("spark.master")).startswith("local"):
        replace_defaults(spark, SMALL_JOB_SETTINGS)
    if shlex.quote(str(local_properties())) in asked:
        java.write_known_jars(
            read_properties(local_properties()), spark.sparkContext.getConf().get(java.JARS) or ""
        )
    return spark


NARROW_ROW_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(1 << 16),
    BYTES_PER_BATCH: UNLIMITED_BYTES,
}
"""Settings for rows of a few numbers; those of the session are for rows that hold a user each."""


@contextmanager
def narrow_rows(spark: SparkSession) -> Iterator[None]:
    """What is run inside hands narrow rows to Python in large batches, which are not weighed row by row."""
    before = {key: str(spark.conf.get(key)) for key in NARROW_ROW_SETTINGS}
    for key, value in NARROW_ROW_SETTINGS.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


# ------------------------------------------------------------------------- frames that a night keeps

_cached_frames: list[list[DataFrame]] = []


def cache_frame(frame: DataFrame) -> DataFrame:
    """The frame, cached; let go at the end of the `cache_scope` that it is made in."""
    found = frame.cache()
    if _cached_frames:
        _cached_frames[-1].append(found)
    return found


@contextmanager
def cache_scope() -> Iterator[None]:
    """Frames that are `cache_frame` within are let go at the end, and all others that nobody names any more.

    Spark holds a cached frame's plan, and with it the snapshots of all tables that it reads, until somebody
    lets it go: a driver of 2 GB that ran 175 small nights one after the other did little but collect
    garbage. A frame's twin in Java stays as long as the Python object does, and those in a cycle stay until
    Python looks for cycles among old objects: with large libraries loaded, hardly ever.
    """
    _cached_frames.append([])
    try:
        yield
    finally:
        for frame in reversed(
            _cached_frames.pop()
        ):  # first what was made of others: Spark would cache it anew
            with suppress(Exception):  # the session may have ended
                frame.unpersist()
        gc.collect()
