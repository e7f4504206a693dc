"""The only place where a SparkSession is built.

Under spark-submit everything comes from its flags and its properties file. A bare `python jobs/x.py`
is given `conf/spark/local.conf`, just as `spark-submit --properties-file` would: no master, memory or
jar stands in code, since a value on the builder would beat spark-submit's flags.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from recbench_spark.errors import ConfigError

PROPERTIES = "RECBENCH_SPARK_PROPERTIES"
"""Environment variable: another properties file for jobs started with bare python."""


def local_properties() -> Path:
    """The properties file for a session without spark-submit."""
    default = Path(__file__).resolve().parent.parent / "conf" / "spark" / "local.conf"
    path = Path(os.environ.get(PROPERTIES, default))
    if not path.is_file():
        raise ConfigError(
            f"no Spark properties file at {path}",
            f"start with spark-submit --properties-file FILE, or set {PROPERTIES}",
        )
    return path


def get_session(app_name: str = "recbench-spark") -> SparkSession:
    """The session of spark-submit or of the notebook, else a local one from the properties file.

    Workers use this interpreter where the master is local: they would otherwise take `python3`
    from PATH, which need not have our packages.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault(
            "PYSPARK_SUBMIT_ARGS", f"--properties-file {local_properties()} pyspark-shell"
        )
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName(app_name).getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return spark
