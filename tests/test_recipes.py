"""Files under conf that no test runs as they are: reasons stand by settings, flags exist, YAML is YAML."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import sys
import urllib.request
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from recbench_spark.commands import maintain, nightly
from recbench_spark.commands.actions import maintain as maintaining

CONF = Path(__file__).resolve().parents[1] / "conf"
SPARK = sorted((CONF / "spark").glob("*.conf"))
PARSERS = {"nightly": nightly.parser(), "maintain": maintain.parser()}


def settings(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return {key: value.strip() for key, value in (line.split(maxsplit=1) for line in lines)}


@pytest.mark.parametrize("path", SPARK, ids=lambda path: path.stem)
def test_every_setting_has_its_reason_above(path: Path) -> None:
    lines = path.read_text().splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        # Two settings may share a reason.
        assert not line.startswith("spark.") or before.startswith(("#", "spark.")), line
    assert all(key.startswith("spark.") for key in settings(path))


def test_all_files_speak_of_the_same_delta() -> None:
    local, cluster = (settings(CONF / "spark" / f"{name}.conf") for name in ("local", "cluster"))
    shared = [key for key in local if key.startswith(("spark.jars", "spark.sql.ext", "spark.sql.catalog"))]
    assert len(shared) == 4
    assert {key: cluster[key] for key in shared} == {key: local[key] for key in shared}
    # A master in the file would beat the one on the command line of a team's cluster.
    assert "spark.master" not in cluster


def test_gpus_change_only_what_they_must() -> None:
    cluster, gpu = (settings(CONF / "spark" / f"{name}.conf") for name in ("cluster", "gpu"))
    assert gpu["spark.task.cpus"] == gpu["spark.executor.cores"]
    assert set(gpu) & set(cluster) == {
        "spark.executor.cores",
        "spark.sql.execution.arrow.maxRecordsPerBatch",
    }


def check_flags(job: str, flags: list[str]) -> None:
    """The flags exist and mean something."""
    args = PARSERS[job].parse_args(flags)
    if job == "maintain":
        maintaining.check_flags(args)


def test_the_crontab_starts_jobs_by_flags_they_have() -> None:
    lines = [x for x in (CONF / "schedulers" / "crontab").read_text().splitlines() if re.match(r"\d", x)]
    assert len(lines) == 2
    for line in lines:
        # An unescaped percent sign ends cron's command.
        assert not re.search(r"(?<!\\)%", line)
        job, flags = re.findall(r"jobs/(\w+)\.py (.*?) >>", line)[0]
        day = re.sub(r"\$\(date.*?\)", "2026-01-31", flags)
        check_flags(job, shlex.split(day))
        assert "flock -" in line and " -E 75 $LOCK " in line


def test_the_airflow_tasks_start_jobs_by_flags_they_have() -> None:
    tree = ast.parse((CONF / "schedulers" / "airflow_dag.py").read_text())
    tasks = [
        n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "JobOperator"
    ]
    for task in tasks:
        arguments = {keyword.arg: keyword.value for keyword in task.keywords}
        job = re.findall(r"jobs/(\w+)\.py", ast.unparse(arguments["application"]))[0]
        flags = [
            node.value if isinstance(node, ast.Constant) else "warehouse"
            for group in ast.walk(arguments["application_args"])
            if isinstance(group, ast.Tuple)
            for node in group.elts
        ]
        check_flags(job, ["2026-01-31" if "{{ data" in str(flag) else str(flag) for flag in flags])
    assert len(tasks) == 2


class AirflowError(Exception):
    """A stand-in for AirflowException."""


class FinalError(AirflowError):
    """A stand-in for AirflowFailException, which no retry follows."""


class Operator:
    """A stand-in for SparkSubmitOperator: its error ends with the exit code, as the provider writes it."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def execute(self, context: dict[str, Any]) -> None:
        if context["code"]:
            raise AirflowError(
                f"Cannot execute: spark-submit jobs/nightly.py. Error code is: {context['code']}."
            )


@pytest.fixture
def airflow_example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of Airflow's example, run with stand-ins: Airflow itself is no requirement."""
    names: dict[str, dict[str, Any]] = {
        "pendulum": {"datetime": lambda *_, **__: None, "duration": lambda **_: None},
        "airflow": {"DAG": lambda *_, **settings: nullcontext(settings)},
        "airflow.exceptions": {"AirflowException": AirflowError, "AirflowFailException": FinalError},
        "airflow.providers.apache.spark.operators.spark_submit": {"SparkSubmitOperator": Operator},
    }
    for name, values in names.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**values))
    return runpy.run_path(str(CONF / "schedulers" / "airflow_dag.py"))


@pytest.mark.parametrize(
    ("code", "retried"),
    [(1, True), (2, False), (3, False), (4, False), (130, True), (143, True), (33, True)],
)
def test_airflow_tries_no_gate_and_no_regression_again(code, retried, airflow_example) -> None:
    job = airflow_example["JobOperator"](task_id="night")
    assert job.execute({"code": 0}) is None
    with pytest.raises(AirflowError, match=f"ode (is: )?{code}") as error:
        job.execute({"code": code})
    assert isinstance(error.value, FinalError) != retried


def test_airflow_sends_an_alert_for_every_task(airflow_example, monkeypatch) -> None:
    sent: list[Any] = []
    answer = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(urllib.request, "urlopen", lambda request, timeout: sent.append(request) or answer)
    assert airflow_example["COMMON"]["default_args"]["on_failure_callback"] is airflow_example["send_alert"]
    context = {
        "task_instance": SimpleNamespace(dag_id="recbench_nightly", task_id="night"),
        "exception": FinalError("exit code 3: a gate"),
        "data_interval_start": datetime(2026, 1, 31),
        "var": {"value": {}},
    }
    airflow_example["send_alert"](context)
    assert not sent, "without a variable the line is in the log alone"
    airflow_example["send_alert"]({**context, "var": {"value": {"recbench_alerts": "https://chat/x"}}})
    text = json.loads(sent[0].data)["text"]
    assert text == "recbench_nightly.night of 2026-01-31 failed: exit code 3: a gate"


def test_the_databricks_bundle_starts_the_job_by_flags_it_has() -> None:
    bundle = yaml.safe_load((CONF / "schedulers" / "databricks.yml").read_text())
    job = bundle["resources"]["jobs"]["recbench_nightly"]
    (task,) = job["tasks"]
    called = task["spark_python_task"]
    assert (CONF / "schedulers" / called["python_file"]).resolve() == CONF.parent / "jobs" / "nightly.py"
    (parameter,) = job["parameters"]
    day = parameter["default"].replace("{{job.trigger.time.iso_date}}", "2026-02-01")
    flags = [flag.replace("{{job.parameters.logical_date}}", day) for flag in called["parameters"]]
    assert str(PARSERS["nightly"].parse_args(flags).logical_date) == "2026-01-31"
    assert {key["job_cluster_key"] for key in job["job_clusters"]} == {task["job_cluster_key"]}
    used = set(re.findall(r"\$\{var\.(\w+)\}", yaml.safe_dump(bundle)))
    assert used == set(bundle["variables"])
