"""Airflow: one night per day by SparkSubmitOperator, maintenance on Sundays. Copy into the DAGs folder.

Needs apache-airflow-providers-apache-spark and a connection `spark_default` to the cluster. Set the
Airflow variable `recbench_home` to this repository and `recbench_warehouse` to the tables, and
`recbench_alerts` to the URL of a chat that takes {"text": ...}; without it alerts are in the task's log.
"""

from __future__ import annotations

import json
import logging
import re
import urllib.request

import pendulum
from airflow import DAG
from airflow.exceptions import AirflowException, AirflowFailException
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

HOME, WAREHOUSE = "{{ var.value.recbench_home }}", "{{ var.value.recbench_warehouse }}"

SHIPPED = {
    "conn_id": "spark_default",
    "properties_file": f"{HOME}/conf/spark/cluster.conf",
    "py_files": f"{HOME}/dist/recbench_spark.zip",
    "archives": f"{HOME}/dist/env.tar.gz#env",
    "env_vars": {"PYSPARK_PYTHON": "./env/bin/python", "PYSPARK_DRIVER_PYTHON": f"{HOME}/.venv/bin/python"},
}

FINAL = {
    "2": "wrong flags or configuration",
    "3": "a gate blocks the night: its numbers are stored, and not published",
    "4": "a model is worse than before: its numbers are stored",
}
"""Exit codes that return at every start until somebody removes the cause, so they are not tried again."""


class JobOperator(SparkSubmitOperator):
    """Start a job, and try it again only where that can help.

    The operator's error ends with the exit code of spark-submit. In deploy mode `cluster` that is no code
    of the job: the file results/night-SUITE-DATE.json of the warehouse has it then.
    """

    def execute(self, context):
        """Run the job. Raises AirflowFailException, which no retry follows, for the codes of `FINAL`."""
        try:
            return super().execute(context)
        except AirflowException as error:
            code = re.search(r"Error code is: (\d+)", str(error))
            if code and code[1] in FINAL:
                raise AirflowFailException(f"exit code {code[1]}: {FINAL[code[1]]}") from error
            raise


def send_alert(context):
    """Send one line on a task that has failed for good: after its last retry, or at once without one."""
    task, reason = context["task_instance"], context.get("exception")
    text = f"{task.dag_id}.{task.task_id} of {context['data_interval_start']:%Y-%m-%d} failed: {reason}"
    logging.error("%s", text)
    url = context["var"]["value"].get("recbench_alerts", "")
    if url:
        body, kind = json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(url, body, kind), timeout=30).close()


COMMON = {
    "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"),
    # A failed night is run again by itself: what has succeeded is skipped, nothing is doubled.
    "default_args": {
        "retries": 2,
        "retry_delay": pendulum.duration(minutes=10),
        "on_failure_callback": send_alert,
    },
    # A catch-up of many days would only queue for the same cluster.
    "max_active_runs": 1,
    "tags": ["recbench-spark"],
}

with DAG("recbench_nightly", schedule="15 2 * * *", catchup=True, **COMMON) as nightly:
    JobOperator(
        task_id="night",
        application=f"{HOME}/jobs/recbench.py",
        application_args=[
            "nightly",
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
    JobOperator(
        task_id="maintain",
        application=f"{HOME}/jobs/recbench.py",
        application_args=[
            "maintain",
            *("--warehouse", WAREHOUSE, "--logical-date", "{{ data_interval_end | ds }}"),
            *("--keep-days", "90", "--optimize", "--vacuum-hours", "168"),
        ],
        pool="recbench",
        **SHIPPED,
    )
