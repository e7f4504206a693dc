"""Give the recipes of conf/schedulers to the platforms' own packages; tests/test_recipes.py starts it.

Prints the name of each platform that takes its recipe. Models that drop a key they do not know are compared
with what they were given.
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import yaml
from databricks.sdk.service.jobs import JobSettings
from google.cloud import dataproc_v1
from google.protobuf import json_format
from kubeflow_spark_api.models import SparkV1beta2SparkApplication

RECIPES = Path(__file__).resolve().parents[1] / "conf" / "schedulers"


def find_dropped(given: Any, kept: Any, path: str = "") -> list[str]:
    """Return the keys of a recipe that a model dropped or changed."""
    if isinstance(given, dict):
        pairs = [(f"{path}.{key}", value, (kept or {}).get(key)) for key, value in given.items()]
    elif isinstance(given, list):
        others = kept or [None] * len(given)
        pairs = [(f"{path}[{n}]", *pair) for n, pair in enumerate(zip(given, others, strict=True))]
    else:
        return [] if str(given) == str(kept) else [path]
    return [dropped for place, one, other in pairs for dropped in find_dropped(one, other, place)]


def check_models() -> None:
    """Read the recipes of Kubernetes, Dataproc and Databricks."""
    application = yaml.safe_load((RECIPES / "spark_application.yaml").read_text())
    assert find_dropped(application, SparkV1beta2SparkApplication.from_dict(application).to_dict()) == []
    assert find_dropped({"a": [{"b": 1}]}, {"a": [{}]}) == [".a[0].b"]
    print("kubernetes")
    template = yaml.safe_load((RECIPES / "dataproc.yaml").read_text())
    json_format.ParseDict(template, dataproc_v1.WorkflowTemplate()._pb)  # refuses unknown keys
    print("dataproc")
    for name in ("databricks.yml", "databricks_serverless.yml"):
        job = yaml.safe_load((RECIPES / name).read_text())["resources"]["jobs"]["recbench_nightly"]
        assert find_dropped(job, JobSettings.from_dict(job).as_dict()) == []
    print("databricks")


class Answer(http.server.BaseHTTPRequestHandler):
    """Keeps each request, and answers that a job began."""

    requests: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = json.dumps({"JobFlowId": "j-1", "applicationId": "a", "jobRunId": "r", "arn": "x"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def check_emr() -> None:
    """Run the scripts of EMR with Amazon's command, which checks every key before it asks the server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_DEFAULT_REGION": "eu-central-1",
    }
    settings |= {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "BUCKET": "s3://b/r",
        "APPLICATION": "00a",
    }
    settings |= {"ROLE": "arn:aws:iam::123456789012:role/r", "SUBNET": "subnet-1"}
    settings["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for name in ("emr.sh", "emr_serverless.sh"):
        subprocess.run(
            ["bash", RECIPES / name, "2026-01-31"], env=settings, check=True, stdout=subprocess.DEVNULL
        )
    (step,) = Answer.requests[0]["Steps"]
    assert step["HadoopJarStep"]["Args"][-1] == "2026-01-31" and Answer.requests[0]["BootstrapActions"]
    assert Answer.requests[1]["jobDriver"]["sparkSubmit"]["entryPointArguments"][-1] == "2026-01-31"
    print("emr")


if __name__ == "__main__":
    check_models()
    check_emr()
