"""The platform under a job: Spark, Delta, session, limits."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark import __version__ as client_version
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from recbench_spark.core.extras import CORE, name_fault, read_version
from recbench_spark.engine import sessions
from recbench_spark.engine.versions import change_setting, read_setting
from recbench_spark.errors import ConfigError

DELTA_JARS = {
    "3.5": "io.delta:delta-spark_2.12:3.3.2",
    "4.0": "io.delta:delta-spark_2.13:4.0.1",
    "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
"""Versions of Spark, in order, each with its package of Delta."""

*_, NEWEST = DELTA_JARS

ANSI = "spark.sql.ansi.enabled"
PLATFORMS = "docs/how_to/platforms.md"
WORKER_PACKAGES = (
    *("pyarrow", "numpy", "pandas", "numba", "scipy"),
    *("pydantic", "xxhash", "deltalake", "obstore", "threadpoolctl"),
)
"""Packages for tasks to import; the package itself can be sent to them."""

NO_DELTA = re.compile(
    "DATA_SOURCE_NOT_FOUND|ClassNotFound|CLASS_NOT_FOUND|Failed to find (the )?data|CONFIGURE_SPARK_SESSION"
)
"""Words in an error where a session has no jar of Delta, or no settings for it."""


def name_version(version: str = client_version) -> str:
    """Return the first two numbers of a version, such as 4.2."""
    return ".".join(version.split(".")[:2])


def check_client() -> None:
    """Check this Python's Spark version, before a session starts.

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
    """Check a new session before any work.

    Returns:
        A sentence on what is unusual about it.

    Raises:
        ConfigError: client and server have different major versions, there is no Delta, ANSI cannot be
            switched on, or tasks have another Python or lack packages.
    """
    if sessions.is_connect(spark):
        sessions.limit_waiting(spark)
    server = spark.version
    if server.split(".")[0] != client_version.split(".")[0]:
        raise ConfigError(
            f"the server is Spark {server}, and the client here is {client_version}",
            f"pip install 'pyspark[connect]~={name_version(server)}.0'",
        )
    _require_ansi(spark)
    _require_delta(spark)
    if sessions.is_connect(spark) or sessions.has_other_python(spark):
        _prepare_workers(spark)
    return describe_platform(spark)


def describe_platform(spark: SparkSession) -> str:
    """Describe the platform and its limits in a sentence.

    The sentence is empty for the newest Spark, classic.
    """
    version = name_version(spark.version)
    limits = []
    if sessions.is_connect(spark):
        limits = ["no SQL of your own by Spark", "no Hadoop file systems", "no fits over several hosts"]
    elif version == "3.5":
        limits = ["mllib_als has other last bits of its vectors than with Spark 4"]
    if version == NEWEST and not limits:
        return ""
    kind = "by Spark Connect" if sessions.is_connect(spark) else "classic"
    words = f"; here: {', '.join(limits)} ({PLATFORMS})" if limits else ""
    return f"Spark {spark.version} {kind}{words}"


def _require_ansi(spark: SparkSession) -> None:
    """Switch ANSI on: numbers that do not fit are errors.

    From Spark 4.0 on, ANSI is on by default.
    """
    change_setting(spark, ANSI, "true")
    if str(read_setting(spark, ANSI)).lower() != "true":
        raise ConfigError(
            f"this cluster keeps {ANSI} off, so numbers that do not fit would become others in silence",
            f"set {ANSI} true in the settings of the cluster",
        )


def _require_delta(spark: SparkSession) -> None:
    """Check that Spark reads Delta tables.

    A Spark with Delta reports that a place has no table.
    """
    try:
        spark.read.format("delta").load("/recbench-no-such-table").schema  # noqa: B018 - it asks the server
    except (PySparkException, sessions.Py4JError) as error:
        if NO_DELTA.search(str(error)):
            raise ConfigError(
                f"this session of Spark {spark.version} has no Delta, or lacks its settings",
                f"spark-submit --properties-file conf/spark/cluster.conf, which has them, with --packages "
                f"{DELTA_JARS.get(name_version(spark.version), DELTA_JARS[NEWEST])}",
            ) from None


def _prepare_workers(spark: SparkSession) -> None:
    """Check the tasks' Python; send this package if missing."""
    facts = _ask_worker(spark)
    if facts["python"] != list(sys.version_info[:2]):
        raise _name_pythons(".".join(map(str, facts["python"])))
    faults = {name: name_fault(name, version) for name, version in facts["packages"].items()}
    if bad := {name: fault for name, fault in faults.items() if fault}:
        wanted = " ".join(f"'{name}>={CORE[name]}'" for name in bad)
        raise ConfigError(
            f"tasks of this cluster cannot run recbench-spark: {', '.join(bad.values())}",
            f"pip install {wanted} in the cluster's environment ({PLATFORMS})",
        )
    if not facts["ours"]:
        _send_package(spark)


def _name_pythons(there: str) -> ConfigError:
    here = ".".join(map(str, sys.version_info[:2]))
    return ConfigError(
        f"tasks of this cluster run Python {there}, and this job {here}",
        f"start the job with Python {there}, or the cluster with a PYSPARK_PYTHON of {here}",
    )


def _send_package(spark: SparkSession) -> None:
    """Send this package to tasks without it."""
    why = ""
    try:
        sessions.send_package(spark, Path(__file__).resolve().parents[1])
        if _ask_worker(spark)["ours"]:
            return
    except PySparkException as error:
        why = f": {' '.join(str(error).split())[:200]}"
    raise ConfigError(
        f"tasks of this cluster lack recbench_spark, and the server took no artifact{why}",
        f"install its wheel in the cluster's environment ({PLATFORMS})",
    )


def _ask_worker(spark: SparkSession) -> dict[str, Any]:
    """Ask a task for Python's version and its packages.

    The answer also tells whether the task has this package.
    """
    packages = WORKER_PACKAGES

    def answer(_: int) -> str:  # sent by value, and without Arrow: tasks may lack this module, and pyarrow
        versions: dict[str, str | None] = {}
        for name in packages:
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                versions[name] = None if find_spec(name) is None else ""
        ours = find_spec("recbench_spark") is not None
        return json.dumps({"python": list(sys.version_info[:2]), "ours": ours, "packages": versions})

    try:
        facts = F.udf(answer, "string", useArrow=False)
        rows = spark.range(0, 1, 1, 1).select(facts("id").alias("facts")).collect()
    except PySparkException as error:
        if there := re.search(r"different version:? ([\d.]+) than", str(error)):
            raise _name_pythons(there[1]) from None
        raise
    return dict(json.loads(rows[0]["facts"]))
