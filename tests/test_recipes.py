"""Files under conf that no test runs as they are: reasons stand by settings, flags exist, YAML is YAML."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import urllib.request
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from recbench_spark.commands import maintain, nightly
from recbench_spark.commands import maintain as maintaining
from recbench_spark.config import load_benchmark, make_benchmark
from tests.environments import make_environment

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


def parse_night(words: list[str]) -> argparse.Namespace:
    """The flags of words that begin with the command `nightly`."""
    assert words[0] == "nightly"
    return PARSERS["nightly"].parse_args(words[1:])


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
        job, flags = re.findall(r"\.venv/bin/recbench (\w+) (.*?) >>", line)[0]
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
        assert ast.unparse(arguments["application"]).endswith("/jobs/recbench.py'")
        job, *flags = [
            node.value if isinstance(node, ast.Constant) else "warehouse"
            for group in arguments["application_args"].elts
            for node in (group.value.elts if isinstance(group, ast.Starred) else [group])
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
                f"Cannot execute: spark-submit jobs/recbench.py. Error code is: {context['code']}."
            )


class Place:
    """A stand-in for ObjectStoragePath: a file of this machine."""

    def __init__(self, path: str) -> None:
        self.exists, self.read_text = Path(path).exists, Path(path).read_text


class Sensor:
    """A stand-in for BaseSensorOperator."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.output = settings, "verdicts"

    def __rrshift__(self, other: Any) -> None:
        """Take the task before."""


@pytest.fixture
def airflow_example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of Airflow's example, run with stand-ins: Airflow itself is no requirement."""
    names: dict[str, dict[str, Any]] = {
        "pendulum": {"datetime": lambda *_, **__: None, "duration": lambda **_: None},
        "airflow": {"DAG": lambda *_, **settings: nullcontext(settings)},
        "airflow.decorators": {"task": lambda function: lambda verdicts: None},
        "airflow.io.path": {"ObjectStoragePath": Place},
        "airflow.models": {"Variable": SimpleNamespace(get=lambda name, default: default)},
        "airflow.sensors.base": {"BaseSensorOperator": Sensor, "PokeReturnValue": SimpleNamespace},
        "airflow.exceptions": {"AirflowException": AirflowError, "AirflowFailException": FinalError},
        "airflow.providers.apache.spark.operators.spark_submit": {"SparkSubmitOperator": Operator},
    }
    for name, values in names.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**values))
    return runpy.run_path(str(CONF / "schedulers" / "airflow_dag.py"))


@pytest.mark.parametrize(
    ("code", "retried"),
    [(1, True), (2, False), (3, False), (4, False), (6, False), (130, True), (143, True), (33, True)],
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


VERDICT = {
    "kind": "pair", "model": "ours", "other": "popular", "metric": "ndcg", "k": 10, "part": "test",
    "verdict": "worse", "reason": None, "value": 0.25, "other_value": 0.5,
}  # fmt: skip
NIGHT = {
    "suite": "demo", "logical_date": "2026-01-31", "state": "finished", "exit_code": 0, "failed": {},
    "regressions": [], "restated": [], "doubts": [], "verdicts": [VERDICT], "metrics": [],
    "tables": ["metrics"], "follows": "f",
}  # fmt: skip
FELL = {**NIGHT, "exit_code": 4, "regressions": ["ours: ndcg@10 of test, country DE is 0.1"]}
ENDED = {"state": "failed", "exit_code": 1, "error": "no log"}


def write_night(folder: Path, record: dict[str, Any]) -> str:
    place = folder / "results" / "night-demo-2026-01-31.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(record))
    return str(place)


def test_airflow_reads_a_night_by_its_file(airflow_example, tmp_path: Path, caplog) -> None:
    """In deploy mode `cluster` the file alone has the exit code."""
    sensor = airflow_example["NightSensor"](path=str(tmp_path / "none.json"), task_id="result")
    assert not sensor.poke({}).is_done
    sensor.path = write_night(tmp_path, {"state": "running", "exit_code": None})
    assert not sensor.poke({}).is_done
    sensor.path = write_night(tmp_path, NIGHT)
    answer = sensor.poke({})
    airflow_example["tell_verdicts"](answer.xcom_value)
    assert answer.is_done and "ours: worse, beside popular: ndcg@10 0.2500" in caplog.text
    for record, final, words in ((FELL, True, "country DE"), (ENDED, False, "no log")):
        sensor.path = write_night(tmp_path, record)
        with pytest.raises(AirflowError, match=words) as error:
            sensor.poke({})
        assert isinstance(error.value, FinalError) == final


def stand_in(monkeypatch: pytest.MonkeyPatch, names: dict[str, dict[str, Any]]) -> None:
    """Make modules importable, unless the package is here."""
    if importlib.util.find_spec(next(iter(names)).partition(".")[0]) is None:
        for name, values in names.items():
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(**values))


def keep(**settings: Any) -> Any:
    return SimpleNamespace(**settings)


def test_dagster_checks_say_what_a_night_says(monkeypatch, tmp_path: Path) -> None:
    plain = ("AssetCheckSpec", "DailyPartitionsDefinition", "Failure", "define_asset_job")
    stubs = dict.fromkeys((*plain, "build_schedule_from_partitioned_job", "Definitions"), SimpleNamespace)
    stubs = {name: lambda *_, **settings: keep(**settings) for name in stubs}
    kinds = {"AssetCheckResult": keep, "MaterializeResult": keep, "asset": lambda **_: lambda made: made}
    severity = {
        "AssetCheckSeverity": SimpleNamespace(ERROR="ERROR", WARN="WARN"),
        "AssetExecutionContext": Any,
    }
    stand_in(monkeypatch, {"dagster": {**stubs, **kinds, **severity}, "upath": {"UPath": Path}})
    (tmp_path / "demo.yaml").write_text("name: demo")
    monkeypatch.setenv("RECBENCH_CONFIG", str(tmp_path / "demo.yaml"))
    monkeypatch.setenv("RECBENCH_WAREHOUSE", str(tmp_path))
    example = runpy.run_path(str(CONF / "schedulers" / "dagster_checks.py"))
    for record, failed in ((NIGHT, []), (FELL, ["no_regression"])):
        write_night(tmp_path, record)
        checks = example["make_checks"](example["read_night"]("2026-01-31"))
        assert [one.check_name for one in checks if not one.passed] == failed and len(checks) == 4
    flags = ["--config", "demo.yaml", "--warehouse", "tables", "--logical-date", "2026-01-31"]
    check_flags(example["COMMAND"][-1], flags)


def test_openlineage_has_one_event_for_a_night(monkeypatch) -> None:
    def test(*texts: str, **fields: Any) -> Any:
        return keep(**dict(zip(("name", "status", "severity", "type"), texts, strict=False)), **fields)

    def name(*texts: Any) -> tuple[Any, ...]:
        return texts

    facets = {
        "nominal_time_run": keep(NominalTimeRunFacet=name),
        "test_run": keep(TestExecution=test, TestRunFacet=lambda tests: keep(tests=tests)),
    }
    events = dict.fromkeys(("InputDataset", "OutputDataset", "Job"), name)
    run = lambda run_id, facets: keep(runId=run_id, facets=facets)  # noqa: E731
    stand_in(
        monkeypatch,
        {
            "openlineage.client": {"OpenLineageClient": None},
            "openlineage.client.event_v2": {
                **events, "Run": run, "RunEvent": keep, "RunState": keep(COMPLETE="COMPLETE", FAIL="FAIL")
            },
            "openlineage.client.facet_v2": {**facets, "RunFacet": object},
            "attr": {"define": dataclass},
        },
    )  # fmt: skip
    example = runpy.run_path(str(CONF / "schedulers" / "openlineage_event.py"))
    document = {
        "name": "demo",
        "dataset": {"name": "shop", "reader": "parquet", "path": "s3://shop/log"},
        "models": [
            {"name": "lists", "kind": "lists", "path": "/lists/{logical_date}"},
            {"name": "vectors", "kind": "embeddings", "users": "/users", "items": "/items"},
            {"name": "als", "kind": "als", "items": "catalogue"},
        ],
        "evaluation": {"metrics": ["ndcg"], "k": [10]},
    }
    benchmark = make_benchmark(document, (), "test")
    event = example["make_event"](FELL, benchmark, "/tables")
    assert event.eventType == example["RunState"].FAIL
    lists, vectors = ("file", "/lists/2026-01-31"), [("file", "/users"), ("file", "/items")]
    assert event.inputs == [("s3://shop", "log"), lists, *vectors]
    assert event.outputs == [("file", "/tables/metrics")]
    tests = event.run.facets["test"].tests
    assert [(one.type, one.status) for one in tests] == [("verdict", "fail"), ("regression", "fail")]
    again = example["make_event"](NIGHT, benchmark, "/tables")
    assert again.eventType == example["RunState"].COMPLETE and again.run.runId == event.run.runId


def read_recipe(name: str) -> Any:
    return yaml.safe_load((CONF / "schedulers" / name).read_text())


@pytest.mark.parametrize("name", ["databricks.yml", "databricks_serverless.yml"])
def test_the_databricks_bundles_start_the_job_by_flags_it_has(name: str) -> None:
    bundle = read_recipe(name)
    job = bundle["resources"]["jobs"]["recbench_nightly"]
    (task,) = job["tasks"]
    called = task["spark_python_task"]
    assert (CONF / "schedulers" / called["python_file"]).resolve() == CONF.parent / "jobs" / "recbench.py"
    (parameter,) = job["parameters"]
    day = parameter["default"].replace("{{job.trigger.time.iso_date}}", "2026-02-01")
    flags = [flag.replace("{{job.parameters.logical_date}}", day) for flag in called["parameters"]]
    assert str(parse_night(flags).logical_date) == "2026-01-31"
    clusters = {key["job_cluster_key"] for key in job.get("job_clusters", [])}
    environments = {key["environment_key"] for key in job.get("environments", [])}
    assert (clusters, environments) in (
        ({task.get("job_cluster_key")}, set()),
        (set(), {task.get("environment_key")}),
    )
    used = set(re.findall(r"\$\{var\.(\w+)\}", yaml.safe_dump(bundle)))
    assert used == set(bundle["variables"])


def test_the_serverless_bundle_asks_for_no_model_that_needs_a_classic_session() -> None:
    (task,) = read_recipe("databricks_serverless.yml")["resources"]["jobs"]["recbench_nightly"]["tasks"]
    args = parse_night(
        [
            flag.replace("{{job.parameters.logical_date}}", "2026-01-31")
            for flag in task["spark_python_task"]["parameters"]
        ]
    )
    models = load_benchmark("demo", args.set).models
    assert {model.kind for model in models} == {"random", "popular", "item_knn", "als", "truth"}


def run_with_stand_in(script: str, command: str, folder: Path, **variables: str) -> list[str]:
    """Run a shell recipe with a stand-in for the platform's command, and return the words that it got."""
    stand_in = folder / command
    stand_in.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"json.dump(sys.argv[1:], open({str(folder / 'words')!r}, 'w'))\n"
    )
    stand_in.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", **variables}
    done = subprocess.run(
        ["bash", CONF / "schedulers" / script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    words: list[str] = json.loads((folder / "words").read_text())
    return words


def check_night(words: list[str]) -> None:
    """The words after jobs/recbench.py are a command and flags that it has, for the day before."""
    script = next(place for place, word in enumerate(words) if word.endswith("/jobs/recbench.py"))
    args = parse_night(words[script + 1 :])
    assert abs((datetime.now(UTC).date() - args.logical_date).days - 1) <= 1  # midnight may pass
    assert args.warehouse.startswith("s3://b/r")


def test_the_scripts_of_emr_start_the_job_by_flags_it_has(tmp_path: Path) -> None:
    words = run_with_stand_in("emr.sh", "aws", tmp_path, BUCKET="s3://b/r", ROLE="role", SUBNET="subnet-1")
    (step,) = json.loads(words[words.index("--steps") + 1])
    check_night(step["Args"])
    settings = {
        group["Classification"]: group["Properties"]
        for group in json.loads(words[words.index("--configurations") + 1])
    }
    assert settings["spark-defaults"]["spark.pyspark.python"].endswith("python3.11")
    words = run_with_stand_in(
        "emr_serverless.sh", "aws", tmp_path, BUCKET="s3://b/r", APPLICATION="a", ROLE="r"
    )
    job = json.loads(words[words.index("--job-driver") + 1])["sparkSubmit"]
    check_night([job["entryPoint"], *job["entryPointArguments"]])
    given = shlex.split(job["sparkSubmitParameters"])
    assert all(
        word.startswith("--") or before.startswith("--") for before, word in pairwise(["--", *given])
    )


def test_the_template_of_dataproc_gives_its_date_to_the_job() -> None:
    template = read_recipe("dataproc.yaml")
    (job,) = template["jobs"]
    words = [word.replace("gs://BUCKET/", "s3://b/r/") for word in job["pysparkJob"]["args"]]
    assert parse_night(words).config == "my.yaml"
    (parameter,) = template["parameters"]
    assert parameter["fields"] == [f"jobs['night'].pysparkJob.args[{words.index('2026-01-31')}]"]


def test_the_application_of_kubernetes_starts_the_job_by_flags_it_has() -> None:
    spec = read_recipe("spark_application.yaml")["spec"]
    assert parse_night(spec["arguments"]).warehouse == "s3://BUCKET/recbench"
    # What sed puts another day into stands there once.
    text = (CONF / "schedulers" / "spark_application.yaml").read_text().split("apiVersion", 1)[1]
    assert text.count("2026-01-31") == 1
    assert spec["restartPolicy"] == {"type": "Never"}


@pytest.mark.parametrize("path", sorted((CONF / "schedulers").glob("*.sh")), ids=lambda path: path.stem)
def test_scripts_have_the_syntax_of_bash_and_can_be_started(path: Path) -> None:
    assert os.access(path, os.X_OK)
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


@pytest.mark.slow
def test_the_packages_of_the_platforms_take_the_recipes(tmp_path: Path) -> None:
    """Models of Kubernetes' operator, Dataproc's and Databricks' client, and Amazon's command."""
    packages = [
        "kubeflow-spark-api==2.4.0",
        "google-cloud-dataproc==5.32.0",
        "databricks-sdk==0.162.0",
        "awscli==1.46.3",
    ]
    python = make_environment(tmp_path / "env", "3.11", [*packages, "pyyaml"])
    done = subprocess.run(
        [python, CONF.parent / "tests" / "platform_models.py"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["kubernetes", "dataproc", "databricks", "emr"]), (
        done.stderr
    )
