"""The platform that a job finds: its Spark, its Delta, its kind of session, and what it cannot do."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import __version__ as client_version
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from recbench_spark.engine.sessions import is_connect, limit_waiting, send_package
from recbench_spark.errors import ConfigError
from recbench_spark.extras import read_version

DELTA_JARS = {
    "3.5": "io.delta:delta-spark_2.12:3.3.2",
    "4.0": "io.delta:delta-spark_2.13:4.0.1",
    "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
"""Versions of Spark, in order, and the package of Delta for each."""

*_, NEWEST = DELTA_JARS

ANSI = "spark.sql.ansi.enabled"
PLATFORMS = "docs/how_to/platforms.md"
WORKER_PACKAGES = (
    "pyarrow",
    "numpy",
    "pandas",
    "numba",
    "scipy",
    "pydantic",
    "xxhash",
    "deltalake",
    "obstore",
)
"""Packages that tasks import; the package itself can be sent to them."""


def name_version(version: str = client_version) -> str:
    """Return the first two numbers of a version, such as 4.2."""
    return ".".join(version.split(".")[:2])


def check_client() -> None:
    """Check the version of this Python's Spark, before a session starts.

    Raises:
        ConfigError: it is too old, or no Delta is known for it.
    """
    if name_version() in DELTA_JARS:
        return
    is_newer = read_version(client_version) > read_version(NEWEST)
    why = "no Delta for it is on Maven Central" if is_newer else "it is too old"
    raise ConfigError(
        f"Spark {client_version} cannot be used: {why}",
        f"pip install 'pyspark~={NEWEST}.0'; {', '.join(DELTA_JARS)} work ({PLATFORMS})",
    )


def prepare_session(spark: SparkSession) -> str:
    """Check a new session before any work; return a sentence that names what is unusual about it.

    Raises:
        ConfigError: client and server are of different major versions, there is no Delta, ANSI cannot be
            switched on, or tasks have another Python or lack packages.
    """
    server = spark.version
    if server.split(".")[0] != client_version.split(".")[0]:
        raise ConfigError(
            f"the server is Spark {server}, and the client here is {client_version}",
            f"pip install 'pyspark[connect]~={name_version(server)}.0'",
        )
    _require_ansi(spark)
    _require_delta(spark)
    if is_connect(spark):
        limit_waiting(spark)
        _prepare_workers(spark)
    return describe_platform(spark)


def describe_platform(spark: SparkSession) -> str:
    """Return a sentence on the platform and what it cannot do; empty for the newest Spark, classic."""
    version = name_version(spark.version)
    limits = []
    if is_connect(spark):
        limits = ["no SQL of your own by Spark", "no Hadoop file systems", "no fits over several hosts"]
    elif version == "3.5":
        limits = ["als has other last bits of its vectors than with Spark 4"]
    if version == NEWEST and not limits:
        return ""
    kind = "by Spark Connect" if is_connect(spark) else "classic"
    words = f"; here: {', '.join(limits)} ({PLATFORMS})" if limits else ""
    return f"Spark {spark.version} {kind}{words}"


def _require_ansi(spark: SparkSession) -> None:
    """Switch ANSI on, with which a number that does not fit is an error: the default from Spark 4.0 on."""
    with suppress(PySparkException):  # some clusters take no setting of a session
        spark.conf.set(ANSI, "true")
    if str(spark.conf.get(ANSI, None)).lower() != "true":
        raise ConfigError(
            f"this cluster keeps {ANSI} off, so numbers that do not fit would become others in silence",
            f"set {ANSI} true in the settings of the cluster",
        )


def _require_delta(spark: SparkSession) -> None:
    """Check that Spark reads Delta tables."""
    names = ("spark.sql.extensions", "spark.sql.catalog.spark_catalog")
    if any("delta" in (spark.conf.get(name, None) or "").lower() for name in names):
        return
    try:
        spark.sql("DESCRIBE DETAIL delta.`/recbench-no-such-table`").collect()
    except Exception as error:
        said = str(error)
        if (
            "DATA_SOURCE_NOT_FOUND" in said
            or "ClassNotFoundException" in said
            or "Failed to find data" in said
        ):
            raise ConfigError(
                f"this session of Spark {spark.version} has no Delta",
                f"spark-submit --properties-file conf/spark/cluster.conf, or --packages "
                f"{DELTA_JARS.get(name_version(spark.version), DELTA_JARS[NEWEST])}",
            ) from None


def _prepare_workers(spark: SparkSession) -> None:
    """Check the Python of tasks, and send them this package where they lack it."""
    facts = _ask_worker(spark)
    own = list(sys.version_info[:2])
    if facts["python"] != own:
        there, here = (".".join(map(str, version)) for version in (facts["python"], own))
        raise ConfigError(
            f"tasks of this cluster run Python {there}, and this job {here}",
            f"start the job with Python {there}",
        )
    if facts["missing"]:
        raise ConfigError(
            f"tasks of this cluster lack {', '.join(facts['missing'])}",
            f"install them in the cluster's environment ({PLATFORMS})",
        )
    if not facts["ours"]:
        send_package(spark, Path(__file__).resolve().parents[1])
        if not _ask_worker(spark)["ours"]:
            raise ConfigError(
                "tasks of this cluster lack recbench_spark, and the server took no artifact",
                f"install its wheel in the cluster's environment ({PLATFORMS})",
            )


def _ask_worker(spark: SparkSession) -> dict[str, Any]:
    """Return Python's version in a task, whether it has this package, and which packages it lacks."""
    packages = WORKER_PACKAGES

    def answer(batches: Iterator[Any]) -> Iterator[Any]:  # sent by value: tasks may lack this module
        for _ in batches:
            pass
        facts = {
            "python": list(sys.version_info[:2]),
            "ours": find_spec("recbench_spark") is not None,
            "missing": [name for name in packages if find_spec(name) is None],
        }
        yield pa.RecordBatch.from_pydict({"facts": [json.dumps(facts)]})

    try:
        rows = spark.range(0, 1, 1, 1).mapInArrow(answer, "facts STRING").collect()
    except PySparkException as error:
        if "PYTHON_VERSION_MISMATCH" in str(error) or "different version" in str(error):
            first = str(error).splitlines()[0]
            raise ConfigError(
                f"tasks of this cluster run another Python than this job: {first[:200]}",
                "start the job with the cluster's version of Python",
            ) from None
        raise
    return dict(json.loads(rows[0]["facts"]))
