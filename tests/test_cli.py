"""Flags, exit codes, and errors that end in one sentence: what all jobs share. No JVM."""

from __future__ import annotations

import argparse
import io
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import date
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkRuntimeError

from recbench_spark import __version__, cli
from recbench_spark.errors import ConfigError, DataError, GateError, Interrupted, StoreError
from recbench_spark.runtime.failures import describe_error
from recbench_spark.runtime.journal import Journal
from recbench_spark.runtime.session import read_properties, submit_arguments

ROOT = Path(__file__).resolve().parent.parent


def _run(main, capsys, *argv: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.run(main, cli.Parser("A job."), list(argv))
    return ended.value.code, *capsys.readouterr()


def _raising(error: BaseException):
    def main(args: argparse.Namespace) -> int:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("wrong", "try this"), 2), (DataError("wrong", "try this"), 1), (GateError("wrong"), 3)],
)
def test_errors_end_in_a_sentence(capsys, error, code):
    ended, out, err = _run(_raising(error), capsys)
    assert (ended, out) == (code, "")
    assert err.startswith(f"error: {error}\n") and "  hint: " in err.splitlines()[-1]


def test_spark_errors_lose_their_stack(capsys):
    message = "[TABLE_OR_VIEW_NOT_FOUND] no table t\n\tat org.apache.spark.Thing"
    code, _, err = _run(_raising(AnalysisException(message)), capsys)
    assert code == 1 and err.startswith("error: [TABLE_OR_VIEW_NOT_FOUND] no table t\n  hint: ")


def test_debug_shows_the_trace(capsys):
    _, _, err = _run(_raising(DataError("wrong")), capsys, "--debug")
    assert "Traceback" in err and err.endswith("error: wrong\n  hint: the trace is above\n")


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (PermissionError(13, "Permission denied", "/etc/shadow"), "/etc/shadow: Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError(), "out of memory"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
    ],
)
def test_what_the_machine_refuses_ends_in_one_line(capsys, error, word):
    code, _, err = _run(_raising(error), capsys)
    assert code == 1 and word in err.splitlines()[0]
    assert "Traceback" not in err and "internal error" not in err and len(err.splitlines()) == 2


def test_a_broken_connection_is_that_to_java_where_another_process_started_java(capsys, monkeypatch):
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=None))
    _, _, err = _run(_raising(ConnectionRefusedError(111, "Connection refused")), capsys)
    assert "Java process has ended" in err.splitlines()[0]


@pytest.mark.parametrize("kind", [DataError, ConfigError, StoreError])
def test_messages_and_hints_of_errors_are_cut_wherever_they_are_printed(kind):
    error = kind(f"metric '{'x' * 100_000}' is unknown", "y" * 100_000)
    assert len(str(error)) < 7000 and len(error.message) < 3100 > len(error.hint)
    assert str(error).startswith("metric 'xxx") and "x' is unknown\n  hint: yyy" in str(error)


def test_when_java_has_ended_that_is_said_whatever_fails_then(capsys, monkeypatch):
    java = subprocess.Popen([sys.executable, "-c", ""])
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=java))
    java.wait()

    def main(args):
        logging.exception("Exception while sending command.")
        raise Py4JError("SparkSession.getActiveSession does not exist in the JVM")

    code, _, err = _run(main, capsys)
    assert code == 1 and "Java process has ended" in err.splitlines()[0]
    assert "hint: the system may have killed it" in err and len(err.splitlines()) == 2


def test_a_java_that_does_not_start_is_said_in_a_sentence(capsys):
    error = PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
    code, _, err = _run(_raising(error), capsys)
    assert code == 1 and err.startswith("error: Spark's Java process ended before it was ready\n")
    assert "JAVA_HOME" in err and len(err.splitlines()) == 2


@pytest.mark.parametrize(
    "error", [ValueError("odd"), RecursionError("deep"), OverflowError("big"), KeyError("k")]
)
def test_what_nobody_foresaw_is_an_internal_error_whose_trace_is_kept(capsys, tmp_path, monkeypatch, error):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, _, err = _run(_raising(error), capsys)
    (trace,) = tmp_path.iterdir()
    assert code == 1 and "Traceback" not in err and len(err.splitlines()) == 2
    assert f"internal error: {type(error).__name__}" in err and str(trace) in err
    assert "in main" in trace.read_text() and trace.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted()])
def test_interrupted(capsys, error):
    code, _, err = _run(_raising(error), capsys)
    assert code == 130 and err.startswith("interrupted, nothing published, run again\n")


def test_jobs_of_spark_that_were_cancelled_are_an_interruption(capsys):
    error = AnalysisException("[SPARK_JOB_CANCELLED] Job 7 cancelled because killed via the Web UI")
    assert _run(_raising(error), capsys)[0] == 130


WAITING = """
import sys, time
from recbench_spark import cli
def main(args):
    try:
        print("begun", flush=True)
        time.sleep(60)
    finally:
        print("cleaned", flush=True)
        {last}
cli.run(main, cli.Parser("A job."), [])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("last", ["", "raise ValueError('Java is gone')"])
def test_a_signal_unwinds_the_job_and_says_so(number, code, last):
    """The cleaning still runs; an error on the way out, when Java is gone, does not hide the signal."""
    command = [sys.executable, "-c", WAITING.format(last=last)]
    job = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert job.stdout and job.stdout.readline() == "begun\n"
    job.send_signal(number)
    out, err = job.communicate(timeout=60)
    assert (job.returncode, out) == (code, "cleaned\n")
    assert err.splitlines()[0] == "interrupted, nothing published, run again" and "Traceback" not in err


READING = """
import atexit, sys
import numpy as np, pyarrow as pa
from recbench_spark import cli
from deltalake import DeltaTable, write_deltalake
held = []
def main(args):
    atexit.register(print, "left in order")
    for _ in range(8):
        write_deltalake(args.folder, pa.table({"a": np.zeros(100_000)}), mode="append")
    held.append(DeltaTable(args.folder).to_pyarrow_dataset().to_batches(batch_size=100))
    next(held[0])
    return 3
parser = cli.Parser("A job.")
parser.add_argument("folder")
cli.run(main, parser)
"""


def test_a_process_ends_with_its_code_while_arrow_still_reads(tmp_path):
    """Python's own end stood still for ever here, or was aborted by C++ (code -6)."""
    done = subprocess.run(
        [sys.executable, "-c", READING, str(tmp_path / "t")], cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (3, "left in order\n", "")


@pytest.mark.full
def test_a_full_device_under_the_output_is_reported():
    command = [
        sys.executable,
        "jobs/recbench.py",
        "nightly",
        "--config",
        "demo",
        "--warehouse",
        "w",
        "--dry-run",
    ]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "--logical-date", "2026-01-01"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE,
            text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == 1 and "No space left" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--path", ""], "--path is empty"),
        (["--path", "  "], "--path is empty"),
        (["--path", "a\udcffb"], "not UTF-8"),
        (["--path", "s3a://AKIA1:hush@bucket/x"], "--path holds a password"),
        (["--path", "https://hush@host/x"], "--path holds a password"),
        (["--path", "https://host/x?sv=1&sig=hush"], "--path holds a password"),
        (["--number", "nan"], "finite"),
        (["--number=-inf"], "finite"),
        (["--whole", "9" * 30], "between"),
        (["--count", "0"], "whole number from 1"),
        (["--count", "9" * 5000], "whole number from 1"),
        (["--day", "0001-01-01-1d"], "not a date"),
        (["--day", "2026-01-01-99999999999d"], "not a date"),
        (["--k", "1,2147483648"], "end at 2147483647"),
        (["--numbers", "0.1,nan"], "finite"),
    ],
)
def test_flags_that_mean_nothing_are_refused(capsys, flags, word):
    parser = cli.Parser("A job.")
    for name, kind in {"path": str, "number": float, "whole": int, "count": cli.parse_count,
                       "day": cli.parse_day, "k": cli.parse_cutoffs,
                       "numbers": cli.parse_numbers}.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=kind)
    with pytest.raises(SystemExit) as ended:
        cli.run(lambda args: 0, parser, flags)
    err = capsys.readouterr().err
    assert ended.value.code == 2 and word in err and "hint" in err and "hush" not in err


@pytest.mark.parametrize(
    "path", ["s3a://bucket/a@b/c", "hdfs://host:8020/a@b", "abfss://c@acc.dfs.core.windows.net/x"]
)
def test_paths_without_a_secret_are_taken(path):
    cli.check_value("--path", path)


def test_a_journal_on_a_folder_is_refused_and_on_a_full_device_does_not_stop_a_night(tmp_path):
    with pytest.raises(StoreError, match="cannot write the log"):
        Journal(io.StringIO()).write_to(tmp_path)
    stream = io.StringIO()
    journal = Journal(stream)
    journal.write_to("/dev/full")
    for _ in range(2):
        journal.record("train", seconds=1)
    assert stream.getvalue().count("warning: no more lines in the log /dev/full: No space left") == 1


def test_own_code_and_closed_pipe(capsys):
    assert _run(lambda args: 4, capsys)[0] == 4
    assert _run(_raising(BrokenPipeError()), capsys)[0] == 1


def test_unknown_flag(capsys):
    code, _, err = _run(lambda args: 0, capsys, "--nope")
    assert code == 2 and "--nope" in err and "--help" in err


def test_version(capsys):
    code, out, _ = _run(lambda args: 1, capsys, "--version")
    assert code == 0 and out == f"recbench-spark {__version__}\n"


def test_cutoffs():
    assert cli.parse_cutoffs("10,1,3,3") == (1, 3, 10)
    for wrong in ("0", "-1,2", "ten", "1.5", "", "1,,2"):
        with pytest.raises(argparse.ArgumentTypeError):
            cli.parse_cutoffs(wrong)


def test_day():
    assert cli.parse_day("2026-01-31") == date(2026, 1, 31)
    for wrong in ("31.1.2026", "2026-02-30", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="not a date"):
            cli.parse_day(wrong)


def test_axes():
    pairs = ["definition.gain=linear", "definition.threshold=4", "definition.threshold=none"]
    assert cli.parse_axes(pairs[:2]) == {"gain": "linear", "threshold": 4.0}
    assert cli.parse_axes(pairs) == {"gain": "linear", "threshold": None}
    for wrong in ("gain=linear", "definition.gain", "evaluation.k=3"):
        with pytest.raises(ConfigError, match=wrong):
            cli.parse_axes([wrong])


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_evaluate_answers_without_a_jvm(tmp_path, flag):
    """With no Java to be found the two flags still answer: no session is made for them."""
    command = [sys.executable, str(ROOT / "jobs" / "recbench.py"), "evaluate", flag]
    bare = {"PATH": "", "JAVA_HOME": str(tmp_path / "no-java")}
    done = subprocess.run(
        command, cwd=tmp_path, env=bare, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--warehouse" in done.stdout if flag == "--help" else __version__ in done.stdout


@pytest.mark.parametrize(
    ("text", "day"),
    [("2026-03-01", "2026-03-01"), ("2026-03-01-1d", "2026-02-28"), ("2026-01-31-0d", "2026-01-31")],
)
def test_a_day_may_be_counted_back(text: str, day: str) -> None:
    assert str(cli.parse_day(text)) == day


@pytest.mark.parametrize("text", ["2026-03-01-d", "-1d", "today-1d", "2026-03-01-1"])
def test_other_days_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a date"):
        cli.parse_day(text)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ("spark.master local[*]\n", True),
        ("spark.master=local[2]\n", True),
        ("# no master: local[*]\n", True),
        ("spark.master spark://host:7077\n", False),
    ],
)
def test_a_bare_session_on_one_machine_listens_to_itself(tmp_path, monkeypatch, properties, expected):
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    monkeypatch.setenv("SPARK_LOCAL_IP", "")  # restored afterwards, whatever is set meanwhile
    (tmp_path / "a b.conf").write_text(properties)
    words = shlex.split(submit_arguments(tmp_path / "a b.conf"))
    ours = {"spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"}
    assert words[:2] == ["--properties-file", str(tmp_path / "a b.conf")] and words[-1] == "pyspark-shell"
    assert (ours <= set(words)) == expected


def test_our_own_local_session_listens_to_itself():
    text = (ROOT / "conf" / "spark" / "local.conf").read_text()
    for key in ("spark.driver.host", "spark.driver.bindAddress"):
        assert re.search(rf"^{re.escape(key)} +127\.0\.0\.1$", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["local", "cluster", "s3"])
def test_no_file_of_settings_excludes_the_jar_of_s3(name):
    """Spark leaves out what `spark.jars.excludes` names, even if `spark.jars.packages` names it too."""
    settings = read_properties(ROOT / "conf" / "spark" / f"{name}.conf")
    patterns = settings["spark.jars.excludes"].split(",")
    assert "org.apache.hadoop:hadoop-client-api" in patterns, "an older twin of Spark's own jar"
    assert not [pattern for pattern in patterns if fnmatch("org.apache.hadoop:hadoop-aws", pattern)]


def test_settings_for_s3_are_those_of_a_cluster_and_its_jars():
    cluster, s3 = (read_properties(ROOT / "conf" / "spark" / f"{name}.conf") for name in ("cluster", "s3"))
    more = {key for key in s3 if s3[key] != cluster.get(key)}
    assert cluster.keys() <= s3.keys()
    own = {"spark.jars.packages", "spark.jars.excludes"}
    assert {key for key in more if not key.startswith("spark.hadoop.fs.s3")} == own
    of_s3, of_cluster = ({name: set(conf[name].split(",")) for name in own} for conf in (s3, cluster))
    added = of_s3["spark.jars.packages"] - of_cluster["spark.jars.packages"]
    versions = {jar.split(":")[0]: jar.split(":")[2] for jar in added}
    assert len(added) == 3 and set(versions) == {"org.apache.hadoop", "software.amazon.awssdk"}
    jars = Path(pyspark.__file__).parent / "jars"
    hadoop = jars / f"hadoop-client-api-{versions['org.apache.hadoop']}.jar"
    assert hadoop.is_file(), "another Hadoop than Spark's"
    left_out = of_s3["spark.jars.excludes"] - of_cluster["spark.jars.excludes"]
    assert of_cluster["spark.jars.excludes"] <= of_s3["spark.jars.excludes"]
    shipped = {
        "software.amazon.awssdk:bundle": None,  # its modules are named one by one
        "io.netty:*": "netty-common-*", "commons-codec:*": "commons-codec-*",
        "commons-logging:*": "jcl-over-slf4j-*", "org.apache.httpcomponents:*": "httpclient-4*",
    }  # fmt: skip
    assert left_out == shipped.keys()
    assert all(any(jars.glob(f"{name}.jar")) for name in shipped.values() if name)


def test_make_sql_hands_the_question_on_as_it_is(tmp_path):
    """Backticks, dollars and quotes reach the job, and neither make nor the shell."""
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    query = f"SELECT `a`, 'b' FROM \"c\" -- $(touch {tmp_path}/one) `touch {tmp_path}/two` $HOME"
    command = ["make", "-s", "sql", f"PY={python}", "CORE=", f"Q={query} $(shell touch {tmp_path}/three)"]
    done = subprocess.run([*command, "WAREHOUSE="], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == f"{query} $(shell touch {tmp_path}/three)", done.stderr
    assert done.stdout.splitlines()[2:5] == ["query", "--warehouse", ""]
    assert [path.name for path in tmp_path.iterdir()] == ["python"]


def test_a_process_of_a_pool_that_the_system_kills_is_said_in_words() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, pytest.raises(BrokenProcessPool) as broken:
        pool.submit(os._exit, 9).result()
    message, _, hint = describe_error(broken.value).partition("\n  hint: ")
    assert message == "a process that worked beside others was ended from outside, without a message"
    assert "lack of memory" in hint and "--processes" in hint


def test_what_a_library_of_rust_is_refused_by_the_machine_is_said_in_words() -> None:
    """It raises OSError without a number: the number stands in its text alone."""
    text = "Generic LocalFileSystem error \x1b[31m\u21b3\x1b[0m No space left on device (os error 28)"
    assert describe_error(OSError(text)) == (
        "No space left on device\n  hint: check the path, its permissions, and the space on its disk"
    )
