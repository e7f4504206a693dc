"""Processes that a test starts and always ends: a standalone cluster on loopback, jobs, their children."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark

from tests.cluster.hosts import Host

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
PATIENCE = 480
"""Seconds after which what is waited for will not come."""


class Process:
    """A command in a session of its own, so that all its children can be found and ended."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str], cwd: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            self.popen = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=cwd, start_new_session=True
            )

    @property
    def remarks(self) -> str:
        return self.log.read_text(errors="replace")

    def children(self, word: str = "") -> list[int]:
        """Processes of this session whose command line holds a word."""
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _session(entry) == self.popen.pid and word in _command(entry):
                pids.append(int(entry.name))
        return pids

    def wait_for(self, what: str | Callable[[], bool]) -> None:
        """Until it says so (a regular expression), or so it is; it must not end before."""
        until = time.monotonic() + PATIENCE
        while not (re.search(what, self.remarks) if isinstance(what, str) else what()):
            assert self.popen.poll() is None, f"ended with {self.popen.returncode}:\n{self.remarks[-4000:]}"
            assert time.monotonic() < until, f"waited in vain for {what}:\n{self.remarks[-4000:]}"
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9 of the whole session; Python workers leave their group, not their session."""
        while pids := self.children():
            for pid in pids:
                _kill(pid)
            time.sleep(0.05)
        self.popen.wait()


def _session(entry: Path) -> int:
    try:
        # pid (command) state parent group session ...; the command may hold blanks and brackets.
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        return -1 if fields[0] == "Z" else int(fields[3])
    except OSError:
        return -1


def _command(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def start_process(command: list[str], log: Path, cwd: Path, **env: str) -> Iterator[Process]:
    """A process that is gone afterwards, whatever happened."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_", "PYTHONPATH"))}
    process = Process(command, log, {**clean, "SPARK_HOME": str(SPARK_HOME), **env}, cwd)
    try:
        yield process
    finally:
        process.kill()


class Cluster:
    """A master and workers on loopback, each a process."""

    def __init__(self, master: Process, url: str, workers: list[Process], folder: Path) -> None:
        self.master, self.url, self.workers, self.folder = master, url, workers, folder

    def executors(self) -> list[int]:
        return [pid for worker in self.workers for pid in worker.children("CoarseGrainedExecutorBackend")]

    def executor_logs(self) -> list[str]:
        return [log.read_text(errors="replace") for log in sorted(self.folder.glob("work*/app-*/*/stderr"))]


@contextmanager
def cluster(
    folder: Path, workers: int, settings: dict[str, str], apart: bool = False, hosts: Sequence[Host] = ()
) -> Iterator[Cluster]:
    """One master, some workers of one core each; apart: on addresses of their own, like so many hosts.

    `hosts`: one for each worker, which sees no folder of the others.
    """
    properties = folder / "cluster.properties"
    # The master would otherwise open a port on which anybody can start a driver.
    settings = {"spark.master.rest.enabled": "false", **settings}
    properties.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    command = [str(SPARK_HOME / "bin" / "spark-class")]
    shared = ["--webui-port", "0", "--properties-file", str(properties)]
    quiet = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
    with ExitStack() as stack:
        name = "org.apache.spark.deploy.master.Master"
        master = stack.enter_context(
            start_process(
                [*command, name, "--host", "127.0.0.1", "--port", "0", *shared],
                folder / "master.log",
                folder,
                **quiet,
            )
        )
        master.wait_for("Starting Spark master at spark://")
        url = re.findall(r"Starting Spark master at (spark://\S+)", master.remarks)[0]
        processes = []
        for n in range(workers):
            name = "org.apache.spark.deploy.worker.Worker"
            host = f"127.0.0.{n + 1}" if apart else "127.0.0.1"
            own = ["--host", host, "--cores", "1", "--memory", "1g"]
            log = folder / f"worker{n}.log"
            enter, more, work = [], shared, str(folder / f"work{n}")
            if hosts:  # it sees no file of settings
                enter, more, work = hosts[n].prefix, ["--webui-port", "0"], "/tmp/work"
            own = [*enter, *command, name, *more, *own, "--work-dir", work, url]
            processes.append(stack.enter_context(start_process(own, log, folder, **quiet)))
        for worker in processes:
            worker.wait_for("Successfully registered with master")
        yield Cluster(master, url, processes, folder)


def package_zip(folder: Path) -> Path:
    """The package as `make package` ships it."""
    path = folder / "recbench_spark.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted((ROOT / "recbench_spark").rglob("*")):
            if file.suffix in (".py", ".sql", ".html", ".typed"):
                archive.write(file, file.relative_to(ROOT))
    return path


def bare_python(folder: Path) -> Path:
    """An interpreter with all our requirements, and without our package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    places = [Path(pyspark.__file__).parents[1], *(path for path in sys.path if "hdfs" in Path(path).name)]
    (site / "theirs.pth").write_text("".join(f"{place}\n" for place in places))
    return folder / "bin" / "python"


def properties(path: Path, **changes: Any) -> Path:
    """The settings of the tests as a properties file, some of them changed (dots as underscores)."""
    from tests.conftest import SETTINGS

    settings = {**SETTINGS, **{key.replace("_", "."): str(value) for key, value in changes.items()}}
    path.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return path
