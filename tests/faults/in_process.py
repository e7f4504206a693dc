"""Run jobs in this process: their mains under `cli.run`, with one small Spark session."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from recbench_spark import cli
from recbench_spark.runtime.session import PROPERTIES
from tests.cluster.processes import properties
from tests.faults.campaign import ROOT

SETTINGS = {"spark_python_daemon_module": "tests.faults.preloaded", "spark_network_timeout": "1h"}
"""Settings of a session whose workers have their libraries loaded, on a machine that may pause it for
minutes."""


def job(name: str, argv: list[str]) -> tuple[Any, str]:
    """Return exit code and stderr of `recbench NAME`."""
    code, _, err = job_and_output(name, argv)
    return code, err


def job_and_output(name: str, argv: list[str]) -> tuple[Any, str, str]:
    """Return exit code, stdout and stderr."""
    set_small_session()
    module = import_module(f"recbench_spark.commands.{name}")
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            cli.run(module.main, module.parser(), argv)
        except SystemExit as exit_:
            code = exit_.code
    return code, out.getvalue(), err.getvalue()


def set_small_session() -> None:
    """Set the settings of the tests for sessions that start from now on."""
    if PROPERTIES not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="recbench-faults-"))
        os.environ[PROPERTIES] = str(properties(folder / "spark.conf", **SETTINGS))
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
