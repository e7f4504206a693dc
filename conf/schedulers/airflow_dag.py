"""Airflow: one night per day by SparkSubmitOperator, a sensor that reads its result, a task that tells the
verdicts, and maintenance on Sundays. Copy into the DAGs folder.

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
from airflow.decorators import task
from airflow.exceptions import AirflowException, AirflowFailException
from airflow.io.path import ObjectStoragePath
from airflow.models import Variable
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sensors.base import BaseSensorOperator, PokeReturnValue

HOME, WAREHOUSE = "{{ var.value.recbench_home }}", "{{ var.value.recbench_warehouse }}"

SUITE = "demo"
"""Name in the benchmark file."""

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
    "5": "a model is too good: its numbers are stored",
    "6": "a check does not let a model be judged: its numbers are stored",
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


class NightSensor(BaseSensorOperator):
    """Wait for results/night-SUITE-DATE.json, and return its verdicts; it has the exit code, too."""

    template_fields = ("path",)

    def __init__(self, path, **settings):
        super().__init__(**settings)
        self.path = path

    def poke(self, context):
        """Read the file. Raises AirflowFailException for the codes of `FINAL`, else AirflowException."""
        place = ObjectStoragePath(self.path)
        record = json.loads(place.read_text()) if place.exists() else {}
        if record.get("state", "running") == "running":
            return PokeReturnValue(is_done=False)
        code = str(record["exit_code"])
        if code == "0":
            return PokeReturnValue(is_done=True, xcom_value=record["verdicts"])
        error = record.get("error") or f"failed models: {', '.join(record.get('failed', {}))}"
        texts = [f"exit code {code}: {FINAL.get(code, error)}"]
        texts += record.get("regressions", []) + record.get("restated", [])
        raise (AirflowFailException if code in FINAL else AirflowException)("; ".join(texts))


def tell_verdicts(verdicts):
    """Send one line for each model that is better, worse, too good, or cannot be told."""
    for one in verdicts or []:
        if one["verdict"] not in ("equivalent", "not told apart"):
            figure = one["metric"] + (f"@{one['k']}" if one["k"] else "")
            value = "no value" if one["value"] is None else f"{figure} {one['value']:.4f}"
            text = f"{one['model']}: {one['verdict']}, beside {one['other']}: {value}"
            post_line(text, Variable.get("recbench_alerts", ""))


def send_alert(context):
    """Send one line on a task that has failed for good: after its last retry, or at once without one."""
    task, reason = context["task_instance"], context.get("exception")
    text = f"{task.dag_id}.{task.task_id} of {context['data_interval_start']:%Y-%m-%d} failed: {reason}"
    post_line(text, context["var"]["value"].get("recbench_alerts", ""))


def post_line(text, url):
    """Write a line to the task's log, and send it to the chat, if there is one."""
    logging.warning("%s", text)
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
    night = JobOperator(
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

    result = NightSensor(
        task_id="result",
        path=f"{WAREHOUSE}/results/night-{SUITE}-{{{{ data_interval_start | ds }}}}.json",
        mode="reschedule",
        poke_interval=300,
        timeout=6 * 3600,
    )
    night >> result
    task(tell_verdicts)(result.output)

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
