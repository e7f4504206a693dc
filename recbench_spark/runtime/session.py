"""Spark sessions; they are built nowhere else.

Under spark-submit all settings come from its flags and its properties file. A bare `recbench` uses
`conf/spark/local.conf`, just as `spark-submit --properties-file` would: the code sets no master, memory or
jar, since a value on the builder would override spark-submit's flags.
"""

from __future__ import annotations

import gc
import importlib.util
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

from recbench_spark.config.loading import CONF
from recbench_spark.core.own_modules import list_own_modules
from recbench_spark.engine import sessions
from recbench_spark.engine.platforms import DELTA_JARS, NEWEST, check_client, name_version, prepare_session
from recbench_spark.engine.versions import change_setting, read_setting
from recbench_spark.errors import ConfigError
from recbench_spark.runtime import java

BYTES_PER_BATCH, UNLIMITED_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1)

TUNED_SETTINGS = {
    # Partitions written side by side by a task: with 0 it first sorts its rows by partition, although a
    # split or a run is one partition. With more than 4 partitions it sorts.
    "spark.sql.maxConcurrentOutputFileWriters": ("0", "4"),
    # With any other value Spark computes the whole batch's size again for every row it adds: a fifth of a
    # night's ranking. The number of rows (arrow.maxRecordsPerBatch) bounds the memory instead.
    BYTES_PER_BATCH: ("67108864b", UNLIMITED_BYTES),
    # VACUUM lists a table in this number of tasks, however few folders it has: half a minute for none.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": ("10000", "64"),
}
"""Settings to replace in a session if they have Spark's default: (default, new value)."""

SMALL_JOB_SETTINGS = {
    # For some ten thousand rows, compiling a query to Java takes longer than interpreting it.
    "spark.sql.codegen.wholeStage": ("true", "false"),
    "spark.sql.codegen.factoryMode": ("FALLBACK", "NO_CODEGEN"),
    # To plan a stage again after the one before costs one job.
    "spark.sql.adaptive.enabled": ("true", "false"),
    # Two cores run two tasks at once; more tasks are overhead. The 8 comes from conf/spark/local.conf.
    "spark.sql.shuffle.partitions": ("8", "2"),
}
"""The same for small jobs; never used on a cluster."""

SMALL_JOB_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=256m")
"""A small job ends before Java's optimising compiler pays off, and the compiler takes a core."""
JAVA_FLAGS = "spark.driver.extraJavaOptions"

PROPERTIES = "RECBENCH_SPARK_PROPERTIES"
"""Environment variable with another properties file, for jobs under bare Python."""


def local_properties() -> Path:
    """Return the properties file for sessions without spark-submit.

    Raises:
        ConfigError: there is no such file.
    """
    default = CONF / "spark" / "local.conf"
    path = Path(os.environ.get(PROPERTIES, default))
    if not path.is_file():
        raise ConfigError(
            f"no Spark properties file at {path}",
            f"start with spark-submit --properties-file FILE, or set {PROPERTIES}",
        )
    return path


LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""A session on one machine connects only to itself."""


def read_properties(properties: Path) -> dict[str, str]:
    """Read Spark's settings from a properties file."""
    text = properties.read_text(encoding="utf-8")
    return dict(re.findall(r"^\s*(spark\.\S+?)(?:\s*[=:]\s*|\s+)(.*?)\s*$", text, re.MULTILINE))


def choose_delta(settings: Mapping[str, str], version: str = "") -> dict[str, str]:
    """Return the settings with the right Delta for a Spark.

    By default it is this Spark. conf/spark names another Delta.
    """
    own = DELTA_JARS[name_version(version) if version else name_version()]
    packages = settings.get(java.PACKAGES)
    changed = {} if packages is None else {java.PACKAGES: packages.replace(DELTA_JARS[NEWEST], own)}
    return {**settings, **changed}


def jar_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings for known jars of packages.

    Ivy would take seconds to find them.
    """
    jars = java.read_known_jars(settings)
    return {java.PACKAGES: "", "spark.driver.extraClassPath": os.pathsep.join(jars)} if jars else {}


def read_class_flags(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return Java's flags for these packages' class archive, if any."""
    return java.read_flags(java.read_known_jars(settings))


def submit_arguments(properties: Path, small: bool = False) -> str:
    """Return Java's arguments for a bare `recbench`.

    A local master uses this host only.
    """
    properties_set = read_properties(properties)
    chosen = choose_delta(properties_set)
    values: dict[str, str] = {}
    if properties_set.get("spark.master", "local").startswith("local"):
        packages = {java.PACKAGES: chosen[java.PACKAGES]} if chosen != properties_set else {}
        values = {**LOOPBACK, **packages, **jar_settings(chosen)}
        if options := (*(SMALL_JOB_JAVA if small else ()), *read_class_flags(chosen)):
            values[JAVA_FLAGS] = " ".join(options)
        # The address of its web page, if it has one.
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK["spark.driver.bindAddress"])
    unset = [
        f"{key}={value}"
        for key, value in values.items()
        if key not in properties_set or key == java.PACKAGES
    ]
    flags = "".join(f"--conf {shlex.quote(setting)} " for setting in unset)
    return f"--properties-file {shlex.quote(str(properties))} {flags}pyspark-shell"


@contextmanager
def _defer_signals() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM until Java has started.

    A program's own handlers are called then. Spark's context replaces the handler of Ctrl-C; and a Java
    process whose start is interrupted never ends.
    """
    has_handler = signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, signal.SIG_IGN, None)
    if not has_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    old_handlers = {number: signal.signal(number, lambda n, _: received.append(n)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def get_session(app_name: str = "recbench-spark", small: bool = False) -> SparkSession:
    """Return spark-submit's or the notebook's session, else a local one.

    The local one follows the properties file. With a local master, workers use this Python interpreter:
    otherwise they would take `python3` from PATH, which may lack this package. `small`: use settings for
    work of less than a minute, if the session is one of bare Python on this machine, or of a Connect server
    with a local master.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        share_own_modules(active)
        return active
    check_client()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if submitted or REMOTE in os.environ:
        spark = _open_session(app_name)
    else:
        _require_java()
        spark = _bare_session(app_name, small)
    if sentence := prepare_session(spark):
        print(sentence, file=sys.stderr)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    replace_defaults(spark, TUNED_SETTINGS)
    if small and not submitted and (read_setting(spark, "spark.master") or "").startswith("local"):
        replace_defaults(spark, SMALL_JOB_SETTINGS)
    share_own_modules(spark)
    if server := sessions.find_update_server(spark):
        sessions.hide_broken_updates(server)
    return spark


REMOTE = "SPARK_REMOTE"
"""Spark's environment variable with a Connect server's address: sc://HOST:PORT."""


def _open_session(app_name: str) -> SparkSession:
    """Return the session of spark-submit or a Connect server."""
    sessions.require_server(os.environ.get(REMOTE, ""))
    try:
        return SparkSession.builder.appName(app_name).getOrCreate()
    except ImportError as error:  # pyspark leaves its client's packages to the user
        why = str(error).partition("] ")[2] or str(error)
        raise ConfigError(
            f"no client of Spark Connect here: {why}", f"pip install 'pyspark[connect]~={name_version()}.0'"
        ) from None


def _require_java() -> None:
    """Raise ConfigError for a mere Connect client without a server."""
    if importlib.util.find_spec("py4j") is None:
        raise ConfigError(
            "the pyspark here is a client of Spark Connect, and no server is named",
            f"{REMOTE}=sc://HOST:PORT before the command, or install pyspark",
        )


def share_own_modules(spark: SparkSession) -> None:
    """Send users' own modules to tasks, once a session.

    Such modules lie beside a YAML file or in the working folder.
    """
    sent = sessions.list_sent_files(spark)
    for place in list_own_modules():
        if place.is_dir() and f"{place.name}.zip" not in sent:
            sessions.send_package(spark, place)
        elif place.is_file() and place.name not in sent:
            sessions.send_module(spark, str(place))


def replace_defaults(spark: SparkSession, settings: Mapping[str, tuple[str, str]]) -> None:
    """Set new values where a session has the default."""
    for key, (default, value) in settings.items():
        if read_setting(spark, key) == default:
            change_setting(spark, key, value)


def _bare_session(app_name: str, small: bool) -> SparkSession:
    """Return the session for a job under bare Python."""
    arguments = os.environ.setdefault("PYSPARK_SUBMIT_ARGS", submit_arguments(local_properties(), small))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with _defer_signals(), java.start_quietly():
        spark = SparkSession.builder.appName(app_name).getOrCreate()
    if shlex.quote(str(local_properties())) in arguments:
        settings = choose_delta(read_properties(local_properties()))
        java.write_known_jars(settings, read_setting(spark, java.JARS) or "")
    return spark


# ------------------------------------------------------------------------- frames that a night keeps

_cached_frames: list[list[DataFrame]] = []


def cache_frame(frame: DataFrame) -> DataFrame:
    """Return the frame, cached until `cache_scope` ends."""
    cached = frame.cache()
    if _cached_frames:
        _cached_frames[-1].append(cached)
    return cached


@contextmanager
def collect_cached() -> Iterator[list[DataFrame]]:
    """Yield the list of frames cached inside this context.

    `cache_frame` fills it; the caller releases the frames.
    """
    frames: list[DataFrame] = []
    _cached_frames.append(frames)
    try:
        yield frames
    finally:
        _cached_frames.pop()


@contextmanager
def cache_scope() -> Iterator[None]:
    """Release cached frames at the end, and all unused ones.

    Spark reads a cached frame wherever an equal plan comes again, and takes two plans for equal if they
    read one Delta folder at different versions. So a frame left in the session can answer for other rows.
    Until a frame is released, Spark holds its plan, and with it the snapshots of all tables it reads: a
    driver of 2 GB after 175 small nights, one after the other, spent its time on garbage collection. A
    frame's Java object stays as long as the Python object does, and one in a reference cycle stays until
    Python collects old objects: with large libraries loaded, hardly ever.
    """
    with collect_cached() as frames:
        try:
            yield
        finally:
            for frame in reversed(frames):  # derived frames first: else Spark caches them again
                with suppress(Exception):  # the session may have ended
                    frame.unpersist()
            gc.collect()
