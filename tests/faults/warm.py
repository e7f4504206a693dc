"""Processes with a warm Spark session, in which a job starts within milliseconds: for jobs side by side.

    python -m tests.faults.warm FOLDER

takes requests from FOLDER: `N.ask` (a job and its flags, as JSON) is answered by `N.end` (exit code,
output, seconds). Two of them are two processes with two JVMs, like two jobs that a scheduler started.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.processes import Process, start_process
from tests.faults.campaign import ROOT
from tests.faults.in_process import job

PATIENCE = 400
"""Seconds after which a job counts as hanging."""


@dataclass(frozen=True)
class End:
    """The end of a job: exit code, output, and duration."""

    code: int
    remarks: str
    seconds: float


class Warm:
    """A process that runs one job after another; a process that ended is started again."""

    def __init__(self, inputs: Path, name: str) -> None:
        self.inputs, self.folder = inputs, inputs / f"warm-{name}"
        self.numbers, self.stack = itertools.count(), ExitStack()
        self.process: Process | None = None
        atexit.register(self.stack.close)

    def start(self) -> None:
        """Start the process if needed, and wait until its session is ready."""
        if self.process is not None and self.process.popen.poll() is None:
            return
        self.stack.close()
        self.numbers = itertools.count()
        self.folder.mkdir(exist_ok=True)
        for left in self.folder.iterdir():
            left.unlink()
        env = {"RECBENCH_SPARK_PROPERTIES": str(self.inputs / "spark.conf"), "PYTHONPATH": str(ROOT)}
        env |= {"PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, "-m", "tests.faults.warm", str(self.folder)]
        log = self.folder.with_suffix(".log")
        self.process = self.stack.enter_context(start_process(command, log, self.inputs, **env))
        self.process.wait_for((self.folder / "ready").exists)

    def begin(self, name: str, argv: list[str]) -> int:
        """Start a job and return its number."""
        self.start()
        number = next(self.numbers)
        write_whole(self.folder / f"{number}.ask", json.dumps([name, argv]))
        return number

    def wait(self, number: int, patience: float = PATIENCE) -> End:
        """Return the end of a job; -9 where the process died or the job hung, and then the process is
        killed.
        """
        assert self.process is not None
        answer, until = self.folder / f"{number}.end", time.monotonic() + patience
        while not answer.exists():
            if self.process.popen.poll() is not None or time.monotonic() > until:
                output = self.process.remarks[-1500:]
                self.process.kill()
                return End(-9, f"no answer: {output}", patience)
            time.sleep(0.01)
        return End(*json.loads(answer.read_text()))

    def run(self, name: str, argv: list[str]) -> End:
        return self.wait(self.begin(name, argv))

    def kill(self) -> None:
        """Send SIGKILL, as to a job."""
        if self.process is not None:
            self.process.kill()


def write_whole(file: Path, text: str) -> None:
    """Write a file under another name first, so that readers only see a complete file."""
    file.with_suffix(".part").write_text(text)
    file.with_suffix(".part").rename(file)


def serve(folder: Path) -> None:
    """Run the requested jobs until the campaign has ended."""
    from recbench_spark.runtime.session import get_session

    parent = os.getppid()
    get_session("recbench-spark faults")
    (folder / "ready").touch()
    for number in itertools.count():
        while not (request := folder / f"{number}.ask").exists():
            if os.getppid() != parent:
                return
            time.sleep(0.005)
        name, argv = json.loads(request.read_text())
        start = time.monotonic()
        try:
            code, output = job(name, argv)
        except BaseException as error:  # a job that breaks its process out of all order
            code, output = 99, f"{type(error).__name__}: {error}"
        write_whole(folder / f"{number}.end", json.dumps([code or 0, output, time.monotonic() - start]))


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
