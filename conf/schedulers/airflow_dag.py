"""Airflow: one night per day by SparkSubmitOperator, maintenance on Sundays. Copy into the DAGs folder.

Needs apache-airflow-providers-apache-spark and a connection `spark_default` to the cluster. Set the
Airflow variable `recbench_home` to this repository and `recbench_warehouse` to the tables.
"""

from __future__ import annotations

import pendulum
from airflow import DAG
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

HOME, WAREHOUSE = "{{ var.value.recbench_home }}", "{{ var.value.recbench_warehouse }}"

SHIPPED = {
    "conn_id": "spark_default",
    "properties_file": f"{HOME}/conf/spark/cluster.conf",
    "py_files": f"{HOME}/dist/recbench_spark.zip",
    "archives": f"{HOME}/dist/env.tar.gz#env",
    "env_vars": {"PYSPARK_PYTHON": "./env/bin/python", "PYSPARK_DRIVER_PYTHON": f"{HOME}/.venv/bin/python"},
}

COMMON = {
    "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"),
    # A failed night is run again by itself: what has succeeded is skipped, nothing is doubled.
    "default_args": {"retries": 2, "retry_delay": pendulum.duration(minutes=10)},
    # A catch-up of many days would only queue for the same cluster.
    "max_active_runs": 1,
    "tags": ["recbench-spark"],
}

with DAG("recbench_nightly", schedule="15 2 * * *", catchup=True, **COMMON) as nightly:
    SparkSubmitOperator(
        task_id="night",
        application=f"{HOME}/jobs/nightly.py",
        application_args=[
            *("--config", f"{HOME}/conf/benchmarks/demo.yaml"),
            *("--warehouse", WAREHOUSE),
            # The start of the interval, the day that has just ended: never the day of the computation.
            *("--logical-date", "{{ data_interval_start | ds }}"),
        ],
        # One slot: maintenance takes it too, so that the two never meet.
        pool="recbench",
        **SHIPPED,
    )

with DAG("recbench_maintain", schedule="15 6 * * 0", catchup=False, **COMMON) as maintain:
    SparkSubmitOperator(
        task_id="maintain",
        application=f"{HOME}/jobs/maintain.py",
        application_args=[
            *("--warehouse", WAREHOUSE, "--logical-date", "{{ data_interval_end | ds }}"),
            *("--keep-days", "90", "--optimize", "--vacuum-hours", "168"),
        ],
        pool="recbench",
        **SHIPPED,
    )
