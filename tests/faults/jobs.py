"""Every job of the campaign with its flags, and what its warehouse holds before it starts."""

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
from tests.faults.starting import begun, finished


@dataclass(frozen=True)
class Job:
    """A job to kill. `argv`: its flags, for a folder of inputs and a warehouse. `before`: what this
    warehouse holds when it starts. `again`: whether a second run adds rows, each time the same ones.
    `rule`: what is wrong with a warehouse that it completed, whatever an undisturbed one shows."""

    name: str
    argv: Callable[[Path, Path], list[str]]
    before: Callable[[Path, Path], None] = lambda inputs, warehouse: None
    again: bool = False
    engine: str = ""
    label: str = ""
    rule: Callable[[Path, Path], list[str]] = lambda inputs, warehouse: []

    @property
    def told(self) -> str:
        """Its name, with the engine or what it works on where there are two."""
        return "-".join(filter(None, (self.name, self.engine, self.label)))

    def begun(self, inputs: Path, warehouse: Path) -> AbstractContextManager[Process]:
        return begun(self.name, self.flags(inputs, warehouse), inputs)

    def flags(self, inputs: Path, warehouse: Path) -> list[str]:
        more = ["--engine", self.engine] if self.engine else []
        return [*self.argv(inputs, warehouse), *more]


def nights(inputs: Path, warehouse: Path) -> None:
    """Three nights, two of them old, as the job made them once, and what two killed runs left."""
    kept = inputs / "three_nights"
    if not (kept / "done").exists():
        shutil.rmtree(kept, ignore_errors=True)
        for day in ("2026-01-01", "2026-01-02", LATE):
            finished("nightly", night(inputs, kept / "w", day))
        for name in RESULTS:
            add_orphans(kept / "w" / name)
        (kept / "done").touch()
    shutil.copytree(kept / "w", warehouse)


LATE, ORPHANS = "2026-03-01", ("20200101T000000-killed", "29991231T000000-at-work")
"""The night that is kept; runs that are not in `runs`: one of long ago, one that has only begun."""
GRAPH = "0a1b2c3d4e5f6071"
"""No run: `checks` has rows of graphs too."""
RESULTS, LARGE = ("metrics", "checks", "rankings", "user_metrics"), ("rankings", "user_metrics")


def add_orphans(folder: Path) -> None:
    """The rows of a run once more, under the names of runs that were never published."""
    rows = DeltaTable(folder).to_pyarrow_table()
    mine = rows.filter(pc.equal(rows["run_id"], rows["run_id"][0]))
    at = rows.schema.get_field_index("run_id")
    for name in (*ORPHANS, GRAPH) if folder.name == "checks" else ORPHANS:
        names = pa.array([name] * mine.num_rows, rows.schema.field(at).type)
        write_deltalake(folder, mine.set_column(at, rows.schema.field(at), names), mode="append")


def retained(inputs: Path, warehouse: Path) -> list[str]:
    """What retention promises, read from the tables: rows per user of old nights are gone, and those of
    runs that were killed long ago; all others are there, each as often as before."""
    before = inputs / "three_nights" / "w"
    old = {row["run_id"] for row in table(before, "runs") if str(row["logical_date"]) < LATE}

    def kept(name: str, row: dict[str, Any]) -> bool:
        run = row.get("run_id")
        return run != ORPHANS[0] and not (name in LARGE and run in old)

    names = [name for name in (*RESULTS, "runs", "splits", "comparisons") if (before / name).exists()]
    wanted = {name: Counter(repr(row) for row in table(before, name) if kept(name, row)) for name in names}
    found = {name: Counter(map(repr, table(warehouse, name))) for name in names}
    return warehouses.differences(wanted, found)


def night(inputs: Path, warehouse: Path, day: str = "2026-01-01") -> list[str]:
    return ["--config", str(inputs / "tiny.yaml"), "--warehouse", str(warehouse), "--logical-date", day]


def split(inputs: Path, warehouse: Path) -> list[str]:
    return ["--config", str(inputs / "tiny.yaml"), "--warehouse", str(warehouse), "--set", "split.seed=8"]


def evaluate(inputs: Path, warehouse: Path) -> list[str]:
    found = ["--warehouse", str(warehouse), "--model", "m", "--lists", str(inputs / "lists.parquet")]
    return [
        *found,
        "--truth",
        str(inputs / "truth.parquet"),
        "--bootstrap",
        "10",
        "--logical-date",
        LATE,
    ]


def maintain(inputs: Path, warehouse: Path) -> list[str]:
    found = ["--warehouse", str(warehouse), "--keep-days", "20", "--logical-date", "2026-03-02"]
    return [*found, "--optimize", "--vacuum-hours", "24"]


def embed(inputs: Path, warehouse: Path) -> list[str]:
    found = ["--warehouse", str(warehouse), "--edges", str(inputs / "edges.csv"), "--features", "hashed:6"]
    return [*found, "--form", "sage", "--widths", "5,4", "--blocks", "3", "--name", "g", "--undirected"]


def embed_other(inputs: Path, warehouse: Path) -> list[str]:
    """Another model over the same graph and features."""
    flags = embed(inputs, warehouse)
    return [*flags[:-3], "--name", "h", "--undirected", "--aggregator", "max", "--seed", "5"]


def neighbourhoods(inputs: Path, warehouse: Path) -> list[str]:
    flags = ["--warehouse", str(warehouse), "--edges", str(inputs / "edges.csv")]
    return [*flags, "--undirected", "--top", "5", "--walks", "20"]


def graph_night(inputs: Path, warehouse: Path, day: str = "2026-01-01") -> list[str]:
    """Models over graphs, trained within the night."""
    flags = ["--config", str(inputs / "graphs.yaml"), "--warehouse", str(warehouse)]
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


def fitted(inputs: Path, warehouse: Path) -> None:
    """A warehouse in which the benchmark of ratings has been run, there and nowhere else."""
    finished("benchmark", benchmark(inputs, warehouse))


def pack(inputs: Path, warehouse: Path) -> list[str]:
    flags = ["pack", "--config", str(inputs / "stars.yaml"), "--warehouse", str(warehouse)]
    return [*flags, "--model", "sgd", "--output", str(warehouse.with_name(f"{warehouse.name}-bundle"))]


def board(inputs: Path, warehouse: Path) -> list[str]:
    return ["--config", str(inputs / "stars.yaml"), "--warehouse", str(warehouse)]


def report(inputs: Path, warehouse: Path) -> list[str]:
    return night(inputs, warehouse)


def query(inputs: Path, warehouse: Path) -> list[str]:
    return ["--warehouse", str(warehouse), "SELECT count(*) FROM current_metrics"]


def old_graphs(inputs: Path, warehouse: Path) -> None:
    """A night of models over graphs, whose files nothing has used for a long time."""
    kept = inputs / "graph_night"
    if not (kept / "done").exists():
        shutil.rmtree(kept, ignore_errors=True)
        finished("nightly", graph_night(inputs, kept / "w"))
        long_ago = time.time() - 90 * 86_400
        for place in (kept / "w").rglob("*"):
            if place.relative_to(kept / "w").parts[0] in ("graph_files", "fit_files"):
                os.utime(place, (long_ago, long_ago))
        (kept / "done").touch()
    shutil.copytree(kept / "w", warehouse)


GRAPH_NIGHT = Job("nightly", graph_night, label="graphs")
JOBS = (
    Job("nightly", night),
    Job("split", split),
    Job("evaluate", evaluate, again=True, engine="spark"),
    Job("maintain", maintain, nights, rule=retained),
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
    Job("maintain", maintain, old_graphs, label="graphs"),
)
"""Jobs that write tables, and are run again as they were."""
BUNDLE = Job("bundle", pack, fitted)
"""It refuses a folder in which a bundle lies already."""
NAMED = {job.told: job for job in (*JOBS, BUNDLE)}
READERS = (Job("query", query, nights), Job("report", report, nights), Job("board", board, fitted))
"""Jobs that read tables, on a warehouse that has some."""
