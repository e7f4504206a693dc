"""Measure turns, calls and processes alike in all benches.

The module needs the standard library alone, and psutil for process trees: `time_*.py` runs in other
libraries' environments, and `ranking.py` on machines with torch and numpy alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parents[2]

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
"""Environment variables to give each numeric library one thread."""

Row = dict[str, Any]
System = TypeVar("System", bound=Hashable)
Result = TypeVar("Result")


class Seconds(NamedTuple):
    """Wall seconds of some work, and its processes' CPU seconds."""

    wall: float
    cpu: float


class ProcessRun(NamedTuple):
    """A finished process: output, time, and peak memory in bytes.

    Attributes:
        code, output, errors: exit code and texts.
        seconds: seconds of its tree; CPU seconds of a descendant nobody waits for end at its last sample.
        peak: bytes of the tree, or of its largest process.
        largest: by program, its largest process's bytes, where the tree is sampled.
    """

    code: int
    output: str
    errors: str
    seconds: Seconds
    peak: int
    largest: Mapping[str, int] = MappingProxyType({})


class Figure(NamedTuple):
    """A median, and half the turns' relative range."""

    median: float
    noise: float


# ------------------------------------------------------------------------------------ turns


def order_turns(systems: Iterable[System], rounds: int, warm_ups: int = 0) -> Iterator[tuple[int, System]]:
    """Yield (round, system) as A B C A B C.

    Warm-up rounds come first and are negative.
    """
    names = tuple(systems)
    for number in range(-warm_ups, rounds):
        for name in names:
            yield number, name


def take_turns(
    systems: Mapping[System, Callable[[], Result]], rounds: int, warm_ups: int = 0
) -> dict[System, list[Result]]:
    """Let systems take turns; return each one's results by round.

    Results of warm-ups are dropped.
    """
    results: dict[System, list[Result]] = {name: [] for name in systems}
    for number, name in order_turns(systems, rounds, warm_ups):
        result = systems[name]()
        if number >= 0:
            results[name].append(result)
    return results


def divide_rounds(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Divide two systems' values in each round both have run."""
    return [value / beside for value, beside in zip(values, base, strict=False)]


def make_figure(values: Sequence[float]) -> Figure:
    """Return the turns' median and noise."""
    median = statistics.median(values)
    return Figure(median, (max(values) - min(values)) / 2 / median)


# ------------------------------------------------------------------------------------ calls


def measure_own_cpu(work: Callable[[], object]) -> float:
    """Return a call's CPU seconds in this process alone."""
    before = time.process_time()
    work()
    return time.process_time() - before


def time_call(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return a call's wall seconds and result."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def measure_call(work: Callable[[], object]) -> Seconds:
    """Return a call's seconds.

    CPU seconds are those of this process and all its descendants.
    """
    before = measure_cpu()
    wall, _ = time_call(work)
    return Seconds(wall, measure_cpu() - before)


# ------------------------------------------------------------------------------------ processes


def list_tree(pid: int | None = None) -> list[Any]:
    """List a process and its descendants, as `psutil.Process`.

    None stands for this process. The list is empty if it has ended.
    """
    import psutil  # noqa: PLC0415

    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def measure_tree(measure: Callable[[Any], float], pid: int | None = None) -> float:
    """Sum a measure over a process tree.

    Processes that end meanwhile are left out.
    """
    import psutil  # noqa: PLC0415

    total = 0.0
    for process in list_tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            total += measure(process)
    return total


def measure_cpu(pid: int | None = None) -> float:
    """Return a process tree's user and system seconds.

    The seconds include children the tree has waited for.
    """
    return measure_tree(lambda process: sum(process.cpu_times()[:4]), pid)


def find_largest_worker(field: str) -> int:
    """Return the most bytes of a Spark worker, by a field of its `status` (Linux)."""
    sizes = [0]
    for process in list_tree():
        place = Path(f"/proc/{process.pid}")
        with suppress(OSError):
            if b"pyspark.daemon" in (place / "cmdline").read_bytes():
                lines = (place / "status").read_text().splitlines()
                sizes += [int(line.split()[1]) << 10 for line in lines if line.startswith(field)]
    return max(sizes)


def run_process(
    command: Sequence[str],
    *,
    given: str = "",
    environment: Mapping[str, str] | None = None,
    sample_every: float | None = None,
) -> ProcessRun:
    """Run a command to its end.

    Args:
        command: program and arguments.
        given: text for its standard input.
        environment: variables beside this process's own; this project is on its PYTHONPATH.
        sample_every: seconds between memory samples of the whole tree, which also is the wall seconds'
            precision. None: the peak is the largest process's resident set.
    """
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    new_file = tempfile.TemporaryFile
    with new_file() as stdin, new_file() as out, new_file() as err:
        stdin.write(given.encode())
        stdin.seek(0)
        started = time.perf_counter()
        process = subprocess.Popen(list(command), stdin=stdin, stdout=out, stderr=err, env=variables)
        samples = TreeSamples()
        status, used = _wait(process, sample_every, samples)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = Seconds(wall, max(used.ru_utime + used.ru_stime, samples.cpu))
        peak = samples.peak or used.ru_maxrss << 10
        return ProcessRun(process.returncode, _read(out), _read(err), seconds, peak, samples.largest)


@dataclass
class TreeSamples:
    """Memory and CPU samples of a process tree.

    Attributes:
        peak: largest sum of its processes' bytes (PSS).
        largest: by program, its largest process's bytes.
        spent: CPU seconds of each process seen, by its last sample, without its children.
    """

    peak: int = 0
    largest: dict[str, int] = field(default_factory=dict)
    spent: dict[int, float] = field(default_factory=dict)

    @property
    def cpu(self) -> float:
        """CPU seconds of all processes seen."""
        return sum(self.spent.values())

    def take(self, pid: int) -> None:
        """Sample a process and all its descendants."""

        def measure(process: Any) -> int:
            size, name = int(process.memory_full_info().pss), process.name()
            self.spent[process.pid] = sum(process.cpu_times()[:2])
            self.largest[name] = max(self.largest.get(name, 0), size)
            return size

        self.peak = max(self.peak, int(measure_tree(measure, pid)))


def _wait(
    process: subprocess.Popen[bytes], sample_every: float | None, samples: TreeSamples
) -> tuple[int, Any]:
    """Wait for a process; return its status and usage.

    The process's tree is sampled meanwhile.
    """
    try:
        while sample_every:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                return status, used
            samples.take(process.pid)
            time.sleep(sample_every)
        return os.wait4(process.pid, 0)[1:]
    except BaseException:  # an interrupt must not leave the process behind
        process.send_signal(signal.SIGKILL)
        process.wait()
        raise


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def parse_rows(run: ProcessRun) -> list[Row]:
    """Return the JSON objects among a process's output lines."""
    return [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]


PEER_SETTINGS = ("spark.master", "spark.driver.memory", "spark.sql.shuffle.partitions", "spark.ui.enabled")


def start_peer_session() -> Any:
    """Start another library's Spark session with this package's settings.

    They are lines of its properties file; each environment has its own Spark.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415

    properties = (ROOT / "conf" / "spark" / "local.conf").read_text()
    builder = SparkSession.builder.config("spark.log.level", "ERROR")
    for key, value in (line.split() for line in properties.splitlines() if line.startswith("spark.")):
        if key in PEER_SETTINGS:
            builder = builder.config(key, value)
    return builder.getOrCreate()


# ------------------------------------------------------------------------------------ rows


def add_counts(flags: argparse.ArgumentParser, **defaults: int) -> None:
    """Add flags for whole numbers from 1 on, with their defaults."""
    from recbench_spark import cli  # noqa: PLC0415

    for name, default in defaults.items():
        flags.add_argument(f"--{name}", type=cli.parse_count, default=default)


def add_output_flag(flags: argparse.ArgumentParser) -> None:
    """Add `--output`."""
    flags.add_argument("--output", type=Path, help="measurements as lines of JSON are appended here")


def format_markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *lines))


def list_rows(facts: Row, seconds: Mapping[str, Sequence[float]]) -> list[Row]:
    """Make a row for each round of each system.

    A row has the facts, system, round and seconds.
    """
    return [
        {**facts, "system": system, "round": turn, "seconds": spent}
        for system, turns in seconds.items()
        for turn, spent in enumerate(turns)
    ]


def append_rows(output: Path | None, rows: Iterable[Row]) -> None:
    """Append rows as lines of JSON; without a file nothing."""
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in rows)


def stamp_time() -> str:
    """Return the present time (UTC) for a row."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def record_rows(files: Iterable[Path], warehouse: str) -> int:
    """Append rows from such files to a warehouse's table `speed`.

    Returns their number.
    """
    # Imported here, so a machine without Spark can measure.
    from recbench_spark.runtime.session import get_session  # noqa: PLC0415
    from recbench_spark.schemas import SPEED  # noqa: PLC0415
    from recbench_spark.storage.spark_types import spark_schema  # noqa: PLC0415
    from recbench_spark.storage.store import Store  # noqa: PLC0415

    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    for row in rows:
        row["measured_at"] = datetime.fromisoformat(row.get("measured_at") or stamp_time())
    spark = get_session()
    store = Store(spark, warehouse)
    store.create(SPEED)
    values = [tuple(row.get(column.name) for column in SPEED.columns) for row in rows]
    store.append(spark.createDataFrame(values, spark_schema(SPEED)), SPEED)
    return len(rows)
