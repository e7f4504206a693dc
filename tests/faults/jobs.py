"""Every job of the campaign with its flags, and the state of its warehouse before it starts."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from tests.cluster.processes import Process
from tests.faults import warehouses
from tests.faults.nights import table
from tests.faults.starting import run_job, start_job


@dataclass(frozen=True)
class Job:
    """A job of the campaign.

    Attributes:
        name: the command.
        argv: its flags, for a folder of inputs and a warehouse.
        before: a function that prepares the warehouse.
        again: whether a second run adds rows, the same ones each time.
        engine: the value of `--engine`; empty where the job has no such flag.
        label: a distinction between jobs of one name.
        rule: a function that returns the problems of a completed warehouse.
    """

    name: str
    argv: Callable[[Path, Path], list[str]]
    before: Callable[[Path, Path], None] = lambda inputs, warehouse: None
    again: bool = False
    engine: str = ""
    label: str = ""
    rule: Callable[[Path, Path], list[str]] = lambda inputs, warehouse: []

    @property
    def title(self) -> str:
        """The job's name, with its engine or label where there are several."""
        return "-".join(filter(None, (self.name, self.engine, self.label)))

    def start(self, inputs: Path, warehouse: Path) -> AbstractContextManager[Process]:
        return start_job(self.name, self.flags(inputs, warehouse), inputs)

    def flags(self, inputs: Path, warehouse: Path) -> list[str]:
        more = ["--engine", self.engine] if self.engine else []
        return [*self.argv(inputs, warehouse), *more]


def prepare_nights(inputs: Path, warehouse: Path) -> None:
    """Copy a warehouse with three nights, two of them old, and with rows that two killed runs left."""
    original = inputs / "three_nights"
    if not (original / "done").exists():
        shutil.rmtree(original, ignore_errors=True)
        for day in ("2026-01-01", "2026-01-02", LATE):
            run_job("nightly", night(inputs, original / "w", day))
        for name in RESULTS:
            add_orphans(original / "w" / name)
        (original / "done").touch()
    shutil.copytree(original / "w", warehouse)


LATE, ORPHANS = "2026-03-01", ("20200101T000000-killed", "29991231T000000-at-work")
"""The night that is kept, and runs that are not in `runs`: an old one, and one that has just begun."""
GRAPH = "0a1b2c3d4e5f6071"
"""Name of a graph, which is no run: `checks` has rows of graphs, too."""
RESULTS, LARGE = ("metrics", "checks", "rankings", "user_metrics"), ("rankings", "user_metrics")


def add_orphans(folder: Path) -> None:
    """Add the rows of a run again, under the names of runs that were never published."""
    rows = DeltaTable(folder).to_pyarrow_table()
    mine = rows.filter(pc.equal(rows["run_id"], rows["run_id"][0]))
    at = rows.schema.get_field_index("run_id")
    for name in (*ORPHANS, GRAPH) if folder.name == "checks" else ORPHANS:
        names = pa.array([name] * mine.num_rows, rows.schema.field(at).type)
        write_deltalake(folder, mine.set_column(at, rows.schema.field(at), names), mode="append")


def check_retention(inputs: Path, warehouse: Path) -> list[str]:
    """Check the promises of retention by the tables.

    Rows per user of old nights are gone, and rows of runs that were killed long ago. All others are
    there, each as often as before.
    """
    before = inputs / "three_nights" / "w"
    old = {row["run_id"] for row in table(before, "runs") if str(row["logical_date"]) < LATE}

    def is_retained(name: str, row: dict[str, Any]) -> bool:
        run = row.get("run_id")
        return run != ORPHANS[0] and not (name in LARGE and run in old)

    names = [name for name in (*RESULTS, "runs", "splits", "comparisons") if (before / name).exists()]
    wanted = {
        name: Counter(repr(row) for row in table(before, name) if is_retained(name, row)) for name in names
    }
    rows = {name: Counter(map(repr, table(warehouse, name))) for name in names}
    return warehouses.find_differences(wanted, rows)


def night(inputs: Path, warehouse: Path, day: str = "2026-01-01") -> list[str]:
    return ["--config", str(inputs / "tiny.yaml"), "--warehouse", str(warehouse), "--logical-date", day]


def split(inputs: Path, warehouse: Path) -> list[str]:
    return ["--config", str(inputs / "tiny.yaml"), "--warehouse", str(warehouse), "--set", "split.seed=8"]


def evaluate(inputs: Path, warehouse: Path) -> list[str]:
    flags = ["--warehouse", str(warehouse), "--model", "m", "--lists", str(inputs / "lists.parquet")]
    return [
        *flags,
        "--truth",
        str(inputs / "truth.parquet"),
        "--bootstrap",
        "10",
        "--logical-date",
        LATE,
    ]


def maintain(inputs: Path, warehouse: Path) -> list[str]:
    flags = ["--warehouse", str(warehouse), "--keep-days", "20", "--logical-date", "2026-03-02"]
    return [*flags, "--optimize", "--vacuum-hours", "24"]


def embed(inputs: Path, warehouse: Path) -> list[str]:
    flags = ["--engine", "spark", "--warehouse", str(warehouse), "--edges", str(inputs / "edges.csv")]
    flags += ["--features", "hashed:6"]
    return [*flags, "--form", "sage", "--widths", "5,4", "--blocks", "3", "--name", "g", "--undirected"]


def embed_other(inputs: Path, warehouse: Path) -> list[str]:
    """Another model over the same graph and features."""
    flags = embed(inputs, warehouse)
    return [*flags[:-3], "--name", "h", "--undirected", "--aggregator", "max", "--seed", "5"]


def neighbourhoods(inputs: Path, warehouse: Path) -> list[str]:
    flags = ["--engine", "spark", "--warehouse", str(warehouse), "--edges", str(inputs / "edges.csv")]
    return [*flags, "--undirected", "--top", "5", "--walks", "20"]


def graph_night(inputs: Path, warehouse: Path, day: str = "2026-01-01") -> list[str]:
    """A night with models over graphs, which are trained within it."""
    flags = ["--engine", "spark", "--config", str(inputs / "graphs.yaml"), "--warehouse", str(warehouse)]
    return [*flags, "--logical-date", day]


def benchmark(inputs: Path, warehouse: Path) -> list[str]:
    return ["--config", str(inputs / "stars.yaml"), "--warehouse", str(warehouse)]


def tune_nights(inputs: Path, warehouse: Path) -> list[str]:
    """A search over settings of models that rank."""
    flags = ["--config", str(inputs / "search.yaml"), "--warehouse", str(warehouse)]
    return [*flags, "--logical-date", "2026-01-01"]


def propensity(inputs: Path, warehouse: Path) -> list[str]:
    flags = ["--log", str(inputs / "stars.csv"), "--warehouse", str(warehouse)]
    return [*flags, "--method", "relative_frequency"]


def estimate(inputs: Path, warehouse: Path) -> list[str]:
    flags = ["--warehouse", str(warehouse), "--model", "m", "--matrix", str(inputs / "matrix.csv")]
    flags += ["--propensities", str(inputs / "chances.csv"), "--bootstrap", "10"]
    return [*flags, "--logical-date", LATE]


def multiverse(inputs: Path, warehouse: Path) -> list[str]:
    flags = ["--config", str(inputs / "tiny.yaml"), "--warehouse", str(warehouse)]
    flags += ["--logical-date", "2026-01-01", "--protocols", "RO_RS,TO_LS", "--candidates", "unseen"]
    return [*flags, "--set", "paradoxes=null", "--set", "comparisons=null"]


def fit_models(inputs: Path, warehouse: Path) -> None:
    """Run the benchmark of ratings in a warehouse."""
    run_job("benchmark", benchmark(inputs, warehouse))


def pack(inputs: Path, warehouse: Path) -> list[str]:
    flags = ["pack", "--config", str(inputs / "stars.yaml"), "--warehouse", str(warehouse)]
    return [*flags, "--model", "sgd", "--output", str(warehouse.with_name(f"{warehouse.name}-bundle"))]


def board(inputs: Path, warehouse: Path) -> list[str]:
    return ["--config", str(inputs / "stars.yaml"), "--warehouse", str(warehouse)]


def report(inputs: Path, warehouse: Path) -> list[str]:
    return night(inputs, warehouse)


def query(inputs: Path, warehouse: Path) -> list[str]:
    return ["--warehouse", str(warehouse), "SELECT count(*) FROM current_metrics"]


def prepare_old_graphs(inputs: Path, warehouse: Path) -> None:
    """Copy a warehouse with a night of models over graphs, whose files have not been used for a long
    time.
    """
    original = inputs / "graph_night"
    if not (original / "done").exists():
        shutil.rmtree(original, ignore_errors=True)
        run_job("nightly", graph_night(inputs, original / "w"))
        long_ago = time.time() - 90 * 86_400
        for place in (original / "w").rglob("*"):
            if place.relative_to(original / "w").parts[0] in ("graph_files", "fit_files"):
                os.utime(place, (long_ago, long_ago))
        (original / "done").touch()
    shutil.copytree(original / "w", warehouse)


GRAPH_NIGHT = Job("nightly", graph_night, label="graphs")
JOBS = (
    Job("nightly", night),
    Job("split", split),
    Job("evaluate", evaluate, again=True, engine="spark"),
    Job("maintain", maintain, prepare_nights, rule=check_retention),
    Job("evaluate", evaluate, again=True, engine="local"),
    Job("embed", embed),
    GRAPH_NIGHT,
    Job("benchmark", benchmark),
    Job("tune", benchmark),
    Job("neighbourhoods", neighbourhoods),
    Job("tune", tune_nights, label="nights"),
    Job("propensity", propensity),
    Job("estimate", estimate, again=True),
    Job("multiverse", multiverse),
    Job("embed", embed_other, label="other"),
    Job("maintain", maintain, prepare_old_graphs, label="graphs"),
)
"""Jobs that write tables, and can be run again with the same flags."""
BUNDLE = Job("bundle", pack, fit_models)
"""The bundle job; it packs beside the warehouse."""
NAMED = {job.title: job for job in (*JOBS, BUNDLE)}
READERS = (
    Job("query", query, prepare_nights),
    Job("report", report, prepare_nights),
    Job("board", board, fit_models),
)
"""Jobs that only read tables, on a warehouse that has some."""
