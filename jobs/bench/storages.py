"""Give a bench a folder, or an S3 server.

The server may be slow: it is then the same one behind a slow network. The server (versitygw) and the
proxy are the tests' own. Each runs in its own process, so its CPU seconds are not counted as the job's.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from pyspark.sql import SparkSession

from jobs.bench.harness import Seconds, measure_cpu, time_call
from recbench_spark.config.loading import CONF
from recbench_spark.errors import ConfigError
from recbench_spark.runtime.session import PROPERTIES
from recbench_spark.storage.spark_places import share_access
from recbench_spark.storage.uris import LOG, split_bucket
from tests.faulty_storage import Faults, Request, disturb
from tests.object_storage import S3Server, serve

NAME = re.compile(r"folder|s3(?:\+(?P<delay>\d+)ms)?")
"""Names of storages: `folder`, `s3`, `s3+30ms`.

The last one has 30 ms more a request.
"""


@dataclass(frozen=True)
class BenchStorage:
    """A storage as a bench sees it.

    Attributes:
        name: its name on the command line.
        root: place of a warehouse.
        environment: variables by which the libraries reach it.
        pids: processes of server and proxy.
        pipe: connection to the proxy, which counts requests; None: nobody counts.
    """

    name: str
    root: str
    environment: dict[str, str] = field(default_factory=dict)
    pids: tuple[int, ...] = ()
    pipe: Any = None

    def use(self, spark: SparkSession) -> None:
        """Let the session and its workers reach this storage."""
        os.environ.update(self.environment)
        if self.environment:
            hadoop = spark.sparkContext._jsc.hadoopConfiguration()
            bucket = split_bucket(self.root).root.removeprefix("s3://")
            hadoop.set(f"fs.s3a.bucket.{bucket}.endpoint", self.environment["AWS_ENDPOINT_URL"])
            share_access(spark, self.root)

    def take_requests(self) -> list[Request]:
        """Return the requests since the last call."""
        if self.pipe is None:
            return []
        self.pipe.send("requests")
        requests: list[Request] = self.pipe.recv()
        return requests


class Turn(NamedTuple):
    """One turn on a storage.

    The fields are the job's seconds, the CPU seconds of server and proxy, and the requests.
    """

    job: Seconds
    server_cpu: float
    requests: list[Request]


def measure_turn(storage: BenchStorage, spark: SparkSession, work: Any) -> Turn:
    """Run some work on a storage."""
    storage.use(spark)
    storage.take_requests()
    server, everything = sum(map(measure_cpu, storage.pids)), measure_cpu()
    wall, _ = time_call(work)
    server = sum(map(measure_cpu, storage.pids)) - server
    return Turn(Seconds(wall, measure_cpu() - everything - server), server, storage.take_requests())


@contextmanager
def open_storages(names: Sequence[str], folder: Path) -> Iterator[list[BenchStorage]]:
    """Start what the named storages need, below a folder.

    The storages end with the block. A Spark session started within the block reaches all of them.

    Raises:
        ConfigError: a name is unknown.
    """
    for name in names:
        if not NAME.fullmatch(name):
            raise ConfigError(f"unknown storage {name}", "folder, s3, s3+30ms (any number of milliseconds)")
    with ExitStack() as stack:
        server = None
        if set(names) - {"folder"}:
            server = stack.enter_context(serve(folder / "s3"))
        storages = [stack.enter_context(_open_storage(name, folder, server)) for name in names]
        # Java reads its keys once, from the environment at its start; the session reaches all storages.
        os.environ.update(storages[-1].environment)
        os.environ.setdefault(PROPERTIES, str(_write_properties(folder / "spark.conf")))
        yield storages


@contextmanager
def _open_storage(name: str, folder: Path, server: S3Server | None) -> Iterator[BenchStorage]:
    if name == "folder" or server is None:
        yield BenchStorage(name, str(folder / "warehouse"))
        return
    root = f"s3://{server.make_bucket()}/w"
    storage = BenchStorage(name, root, server.environment, (server.pid,))
    matched = NAME.fullmatch(name)
    if not matched or not matched["delay"]:
        yield storage
        return
    context = get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(
        target=_serve_proxy, args=(server, int(matched["delay"]) / 1000, other), daemon=True
    )
    process.start()
    try:
        behind = replace(server, endpoint=pipe.recv())
        pids = (server.pid, process.pid or 0)
        yield replace(storage, environment=behind.environment, pids=pids, pipe=pipe)
    finally:
        process.terminate()
        process.join()


def _serve_proxy(server: S3Server, delay: float, pipe: Any) -> None:
    """Serve a proxy in this process.

    Each message is answered by the requests since the last one.
    """
    with disturb(server, Faults(delay=delay)) as proxy:
        pipe.send(proxy.server.endpoint)
        while pipe.recv():
            pipe.send(proxy.take_requests())


def _write_properties(file: Path) -> Path:
    """Write Spark's settings for a local session with S3.

    The jars and settings for S3 are added.
    """
    local, s3 = ((CONF / "spark" / name).read_text() for name in ("local.conf", "s3.conf"))
    added = [line for line in s3.splitlines() if line.startswith(("spark.jars.", "spark.hadoop."))]
    file.write_text("\n".join([local, *added, ""]))
    return file


def print_turns(name: str, work: str, turns: list[Turn], base: list[Turn]) -> None:
    """Print a storage's turns beside the first one's."""
    for number, (turn, beside) in enumerate(zip(turns, base, strict=True)):
        ratio = f"{turn.job.wall / beside.job.wall:.2f} of the first storage"
        cpu = f"{turn.job.cpu:.1f} CPU s, server and proxy {turn.server_cpu:.1f}"
        waits = f", {len(turn.requests)} requests" if turn.requests else ""
        print(f"{name:>10} {work} {number}: {turn.job.wall:.1f} s ({ratio}), {cpu}{waits}")


# ------------------------------------------------------------------------------------ requests by stage


class Stage(NamedTuple):
    """A night's stage, in seconds since 1970."""

    name: str
    start: float
    end: float


BETWEEN = "between stages"


def find_stage(stages: Sequence[Stage], moment: float) -> str:
    """Find the shortest stage around a moment."""
    around = [stage for stage in stages if stage.start <= moment <= stage.end]
    return min(around, key=lambda stage: stage.end - stage.start).name if around else BETWEEN


def describe_request(request: Request) -> str:
    """Describe a request without names.

    The text has method and table, and whether it belongs to the table's log.

    >>> describe_request(Request("GET", "/bucket/w/runs/_delta_log/00.json", 0.0, 0.1))
    'GET runs/_delta_log'
    >>> describe_request(Request("GET", "/bucket?list-type=2&prefix=w%2Fruns%2F", 0.0, 0.1))
    'LIST runs'
    """
    address = urlsplit(request.path)
    query = parse_qs(address.query)
    method = "LIST" if "list-type" in query else request.method
    name = query.get("prefix", [""])[0] if method == "LIST" else address.path.lstrip("/").partition("/")[2]
    parts = name.split("/")[1:]
    return f"{method} {parts[0] if parts else ''}{f'/{LOG}' if LOG in parts[1:2] else ''}"


def measure_waits(stages: Sequence[Stage], requests: Sequence[Request]) -> dict[str, float]:
    """Return each stage's seconds with an unanswered request."""
    waits: dict[str, float] = defaultdict(float)
    covered = 0.0
    for request in sorted(requests, key=lambda request: request.start):
        waits[find_stage(stages, request.start)] += max(0.0, request.end - max(covered, request.start))
        covered = max(covered, request.end)
    return waits


def format_requests(stages: Sequence[Stage], requests: Sequence[Request], kinds: bool) -> Iterator[str]:
    """Yield a line for each stage.

    A line has requests by method and seconds of waiting; with `kinds` by table too.
    """
    waits, by_stage = measure_waits(stages, requests), defaultdict[str, Counter[str]](Counter)
    for request in requests:
        by_stage[find_stage(stages, request.start)][describe_request(request)] += 1
    for stage, counts in by_stage.items():
        methods: Counter[str] = Counter()
        for kind, number in counts.items():
            methods[kind.split(" ")[0]] += number
        by_method = ", ".join(f"{number} {method}" for method, number in methods.most_common())
        yield f"  {stage}: {counts.total()} requests ({by_method}), {waits[stage]:.1f} s waiting"
        if kinds:
            yield from (f"    {number:4} {kind}" for kind, number in counts.most_common())
