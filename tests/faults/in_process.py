"""Jobs in this process: their mains under `cli.run`, with one small Spark session."""

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
"""Of a session whose workers find their libraries loaded, on a machine that may stop it for minutes."""


def job(name: str, argv: list[str]) -> tuple[Any, str]:
    """Exit code and what was said on stderr, of `jobs/NAME.py`."""
    code, _, err = job_and_output(name, argv)
    return code, err


def job_and_output(name: str, argv: list[str]) -> tuple[Any, str, str]:
    """Exit code and what was said on stdout and stderr."""
    small_session()
    module = import_module(f"recbench_spark.commands.{name}")
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            cli.run(module.main, module.parser(), argv)
        except SystemExit as ended:
            code = ended.code
    return code, out.getvalue(), err.getvalue()


def small_session() -> None:
    """What a session started from now on reads: the settings of the tests."""
    if PROPERTIES not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="recbench-faults-"))
        os.environ[PROPERTIES] = str(properties(folder / "spark.conf", **SETTINGS))
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
