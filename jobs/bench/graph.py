"""Time graph layers beside this machine's limit and other systems.

    python jobs/bench/graph.py --edges 1e7,3e7,1e8 --rounds 3 --output DIR/graph.jsonl
    python jobs/bench/graph.py --edges 1e5,1e6,1e7 --systems ours-mean,bag,scipy,sql,grouped,khop
    python jobs/bench/graph.py --predict 1e8 [--plans R,G,S]
    python jobs/bench/graph.py --edges 1e7 --storage folder,s3,s3+30ms
    python jobs/bench/graph.py --extrapolate
    python jobs/bench/graph.py --draw DIR --edges 1e9 --nodes 5.01e7

All systems take turns. They are: ours-mean, ours-mean16 (float16 vectors), ours-convolve, ours-gather
(plan G) and ours-scatter (plan S), both with predicted bytes and Spark's count (spark.shuffle.compress
false); layout (ids from 0 on), layout-raw (the same graph, ids anywhere in 64 bits), layout-text; bag,
bag16, bag-convolve (torch in one process with two threads, writing the same bytes: the limit); scipy; sql
(the fastest among 64 means, Summarizer and vector_sum; from 3 million edges only the one that was fastest
before); grouped (Arrow, one call for each node); khop (a two-hop subgraph for each node, as pipelines
without layers compute it). The last three are slow: they warm up at the first size only and run once at
the others, grouped and khop up to 1 million edges.

The graph is Zipf in sources (rank r has density r^-1/2, so nodes with k outgoing edges become rarer as
k^-3) and uniform in destinations. It has 20 edges a node, drawn by hash. Before each turn the last one's
files are removed, the disk is synced, and twice a turn's bytes are written and removed: a virtual machine
that gives free memory back to its host would wait for memory in the turn. Each measurement is appended to
--output as a row; slopes over sizes are printed.

--predict fits the cost model to 1, 3, 10 and 30 million edges, predicts this many edges, and then
measures them. Before each prediction and run, a probe reads a small part of the edges
(`graphs/machine_speed.py`) and measures the current time to read a vector. An embedding_bag with a
fixed size before and after each run shows how the machine's speed changes. --extrapolate fits all rates
(means and CONVOLVE under R, means under G) at 1, 3 and 10 million edges and predicts two PinSage layers
at its size.
--storage builds a graph and computes two layers of means over 64 dimensions on each storage, in turns,
and prints wall and CPU seconds, with server and proxy apart, and the last turn's requests; the embeddings
must be equal bit for bit, else the job fails.
--draw only writes an edge list, in few bytes, without Spark.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench.graph_systems import DEGREE, DIMS, SYSTEMS, VALUE_BYTES, GraphBench, Probe, draw
from jobs.bench.harness import add_output_flag, append_rows, list_rows, order_turns, take_turns
from jobs.bench.storages import (
    BETWEEN,
    BenchStorage,
    Turn,
    format_requests,
    measure_turn,
    open_storages,
    print_turns,
)
from recbench_spark import cli
from recbench_spark.errors import OK, ConfigError, DataError, nearest
from recbench_spark.graphs.kernels.costs import PassSize, Rates, expected_copies, fit_rates
from recbench_spark.graphs.model_inputs import PreparedGraphModel, prepare_model
from recbench_spark.graphs.pipeline import embed, open_model_work
from recbench_spark.graphs.settings import GraphModel
from recbench_spark.runtime.journal import Journal
from recbench_spark.runtime.session import get_session
from recbench_spark.storage import delta_files
from recbench_spark.storage.objects import write_bytes
from recbench_spark.storage.store import Store
from recbench_spark.storage.uris import join_uri

LIMITS = dict.fromkeys(("ours-scatter", "ours-mean", "ours-gather"), "bag") | {
    "ours-mean16": "bag16",
    "ours-convolve": "bag-convolve",
}
SLOW = {"sql": 10_000_000, "grouped": 1_000_000, "khop": 1_000_000}
"""Slow systems run once a size, up to so many edges."""


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--edges", default="1e5,3e5", help="numbers of edges, e.g. 1e6,1e7")
    flags.add_argument("--systems", default="layout,ours-mean,bag", help="comma-separated")
    flags.add_argument("--rounds", type=int, default=2, help="turns of all systems at a size")
    flags.add_argument("--folder", default="warehouse/bench_graph", help="for graphs and results; reused")
    add_output_flag(flags)
    flags.add_argument(
        "--predict", type=float, help="edges: fit at 1, 3, 10, 30 million, predict, then run"
    )
    flags.add_argument("--plans", default="R", help="of --predict: R,G,S; G and S move bytes")
    flags.add_argument(
        "--wire", choices=VALUE_BYTES, default="float32", help="of --predict: what is moved and kept"
    )
    flags.add_argument("--storage", help="folder,s3,s3+30ms: embeddings on these storages, in turns")
    flags.add_argument("--extrapolate", action="store_true", help="to PinSage's size and dimensions")
    flags.add_argument("--draw", metavar="DIR", help="write an edge list of --edges there, and stop")
    flags.add_argument("--nodes", type=float, help="of --draw (default: an edge in 20)")
    return flags


def main(args: argparse.Namespace) -> int:
    """Draw or reuse the graphs, measure in turns, print."""
    sizes = [int(number) for number in cli.parse_numbers(args.edges)]
    if args.draw:
        draw(Path(args.draw), sizes[0], int(args.nodes or sizes[0] // DEGREE), "compact")
        return OK
    if args.storage:
        return compare_storages(args, sizes[0])
    systems = args.systems.split(",")
    for name in systems:
        if name not in SYSTEMS:
            raise ConfigError(f"no system {name}", nearest(name, SYSTEMS))
    spark = get_session("recbench-spark bench graph")
    if args.extrapolate:
        rows = extrapolate_pinsage(spark, Path(args.folder).absolute(), args.rounds)
    elif args.predict:
        folder, plans = Path(args.folder).absolute(), args.plans.split(",")
        rows = check_forecasts(spark, folder, int(args.predict), plans, args.rounds, wire=args.wire)
    else:
        rows = run_rounds(spark, Path(args.folder).absolute(), sizes, systems, args.rounds)
        print(summarise_runs(rows))
    append_rows(args.output, rows)
    return OK


def run_rounds(
    spark: SparkSession, folder: Path, sizes: list[int], systems: list[str], rounds: int
) -> list[dict[str, Any]]:
    """Run all systems in turns at each size.

    The first turn is a warm-up and is not reported.
    """
    rows: list[dict[str, Any]] = []
    for size in sizes:
        bench = GraphBench(spark, folder, size)
        bench.fastest = next((row["way"] for row in reversed(rows) if "way" in row), None)
        for turn, name in order_turns(systems, rounds, warm_ups=1):
            # Slow systems warm up at the first size, and run once a size up to their limit.
            is_first = turn == 0 or (turn < 0 and size == sizes[0])
            if name not in SLOW or (size <= SLOW[name] and is_first):
                row = bench.measure(name)
                if turn >= 0:
                    rows.append({**row, "round": turn})
                    print(json.dumps(rows[-1]), flush=True)
    return rows


FIT_SIZES = (1_000_000, 3_000_000, 10_000_000, 30_000_000)


def check_forecasts(
    spark: SparkSession, folder: Path, edges: int, plans: list[str], rounds: int, *, wire: str
) -> list[dict[str, Any]]:
    """Fit the cost model to small runs, and predict one.

    The predicted run is large, and is measured too.
    """
    probe, cores = Probe(), spark.sparkContext.defaultParallelism
    runs = []
    for size in FIT_SIZES:
        bench = GraphBench(spark, folder, size)
        for turn, plan in order_turns(plans, rounds, warm_ups=1):
            row = bench.run_beside_probe(probe, plan, bench.layer_size(wire), wire=wire)
            runs += [{**row, "round": turn}] if turn >= 0 else []
    usual = float(np.median([row["probe"] for row in runs]))
    rates = {
        plan: fit_rates([(row["amounts"], row["seconds"], cores) for row in runs if row["plan"] == plan])
        for plan in plans
    }
    bench = GraphBench(spark, folder, edges)
    bench.read_once()
    for plan in plans:
        runs += [run_forecast(bench, probe, plan, rates[plan], usual, wire=wire) for _ in range(rounds)]
    return [{name: value for name, value in row.items() if name != "amounts"} for row in runs]


PINS, BOARDS, LIKES, LISTED, TASKS = 2_000_000_000, 1_000_000_000, 18_000_000_000, 50, 40_000
"""Ying et al. 2018, section 4: nodes on both sides, edges, neighbours a pin; here also blocks a side."""


def make_pinsage_amounts() -> dict[str, tuple[PassSize, ...]]:
    """Size the passes of a PinSage layer, by mode.

    The layer has d 1024, m 2048 and float16 vectors.
    """

    def size(nodes: int, edges: int, sources: int, projects: bool, combines: bool) -> PassSize:
        needed = int(sources * expected_copies(TASKS, edges / sources))
        dims = (1024, 2048, 1024 if combines else 2048)
        return PassSize(
            nodes, edges, sources, needed, 0, TASKS, TASKS, *dims, 2, projects, False, combines
        )  # fmt: skip

    return {
        "projected": (size(PINS, PINS * LISTED, PINS, True, True),),
        "bipartite": (size(BOARDS, LIKES, PINS, True, False), size(PINS, LIKES, BOARDS, False, True)),
    }


def extrapolate_pinsage(spark: SparkSession, folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Fit rates to small runs, and predict two PinSage layers.

    The plan is G.
    """
    probe, cores = Probe(), spark.sparkContext.defaultParallelism
    runs, ways = [], (("R", False), ("R", True), ("G", False))
    for edges in FIT_SIZES[:3]:
        bench = GraphBench(spark, folder, edges)
        for turn in range(-1, rounds):
            size = bench.layer_size("float32")
            measured = [bench.run_beside_probe(probe, plan, size, convolve) for plan, convolve in ways]
            runs += measured if turn >= 0 else []
    rates = fit_rates([(row["amounts"], row["seconds"], cores) for row in runs])
    rows = []
    for mode, sizes in make_pinsage_amounts().items():
        amounts = [size.amounts("G", 2) for size in sizes]
        hours = 2 * sum(rates.predict(one, 1) for one in amounts) / 3600
        low, high = rates.interval(hours)
        moved, flops = (2 * sum(getattr(one, name) for one in amounts) for name in ("moved", "flops"))
        worker = max(size.worker_bytes("G", 4096) for size in sizes)
        rows.append({"mode": mode, "core_hours": hours, "from": low, "to": high, "bytes_moved": moved})
        print(
            f"PinSage, {mode}, 2 layers: {hours:,.0f} core-hours ({low:,.0f} to {high:,.0f}), "
            f"{moved / 1e12:,.0f} TB moved, {flops / 1e15:,.0f} PFLOP, {worker / 1e9:.0f} GB a worker; "
            f"published: under 378 machines x 36 threads x 24 h = 326,592 hours"
        )
    print(f"rates, seconds of a core: {rates.seconds}")
    return rows


def run_forecast(
    bench: GraphBench, probe: Probe, plan: str, rates: Rates, usual: float, *, wire: str
) -> dict[str, Any]:
    """Print the prediction for a run, then run it."""
    cores, size = bench.engine.cores, bench.layer_size(wire)
    seconds = rates.predict(size.amounts(plan, VALUE_BYTES[wire]), cores)
    low, high = rates.interval(seconds)
    print(
        f"plan {plan}, {bench.edges:.0e} edges: {seconds:.2f} s ({low:.2f} to {high:.2f}) predicted, "
        f"{size.pace * DIMS * VALUE_BYTES[wire] * 1e9:.0f} ns of a core a vector; "
        f"{int(size.amounts(plan, VALUE_BYTES[wire]).moved):,} bytes moved",
        flush=True,
    )
    row = bench.run_beside_probe(probe, plan, size, wire=wire)
    took = row["seconds"] * usual / row["probe"]
    print(
        f"    took {row['seconds']:.2f} s: {row['seconds'] / seconds - 1:+.1%}; by the probe beside "
        f"it ({row['probe']:.3f} s, usually {usual:.3f}) {took:.2f} s: {took / seconds - 1:+.1%}; "
        f"{row['bytes_shuffled']:,} bytes",
        flush=True,
    )
    return {**row, "predicted_seconds": seconds, "normalised_seconds": took}


def summarise_runs(rows: list[dict[str, Any]]) -> str:
    """Summarise medians by size, and slopes relative to the limit."""
    lines = []
    runs: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        runs.setdefault(row["system"], {}).setdefault(row["edges"], []).append(row["seconds"])
    medians = {name: {n: float(np.median(s)) for n, s in sizes.items()} for name, sizes in runs.items()}
    for name, seconds_by_size in medians.items():
        listed = ", ".join(f"{edges:.0e} {seconds:.3f} s" for edges, seconds in seconds_by_size.items())
        lines.append(f"{name:<14}{listed}")
    for name, limit in LIMITS.items():
        if name in medians and limit in medians and len(medians[name]) > 1:
            own_slope, limit_slope = (
                np.polyfit(list(m), list(m.values()), 1)[0] for m in (medians[name], medians[limit])
            )
            lines.append(f"{name}: {limit_slope / own_slope:.0%} of the speed of {limit} by slope")
    return "\n".join(lines)


# --------------------------------------------------------------------------------- storages

LAYERS = [{"form": "sage", "aggregator": "mean", "width": DIMS}] * 2
WORKS = ("build", "embed")
"""A turn's works: building the graph with features, then two layers."""


def compare_storages(args: argparse.Namespace, edges: int) -> int:
    """Draw one graph, and embed it on each storage.

    Storages take turns.

    Raises:
        DataError: the embeddings on two storages differ.
    """
    folder = Path(args.folder).absolute()
    path = folder / f"{edges}" / "edges"
    draw(path, edges, max(edges // DEGREE, 10), "dense")
    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        open_storages(args.storage.split(","), Path(place)) as storages,
    ):
        bench = StorageEmbeddings(get_session("recbench-spark bench graph"), path)
        turns = take_turns({one.name: partial(bench.run, one) for one in storages}, args.rounds + 1)
    print(f"{edges:,} edges x {DIMS}: the same embeddings on all; turn 0 is a warm-up")
    base = turns[storages[0].name]
    for name, taken in turns.items():
        for work in WORKS:
            print_turns(name, work, *([turn[work] for turn in some] for some in (taken, base)))
            facts = {"benchmark": f"graph_storage_{work}", "edges": edges}
            walls = [turn[work].job.wall for turn in taken[1:]]
            append_rows(args.output, list_rows(facts, {name: walls}))
            for line in format_requests((), taken[-1][work].requests, kinds=True):
                print(line.replace(BETWEEN, f"last {work}"))
    return OK


class StorageEmbeddings:
    """Embeds one edge list in turns on several storages.

    Each storage gets the list first.

    Each turn has its own warehouse.
    """

    def __init__(self, spark: SparkSession, edges: Path) -> None:
        self.spark, self.edges, self.turn = spark, edges, 0
        self.settings: dict[str, GraphModel] = {}
        self.digest: str | None = None

    def copy_edges(self, storage: BenchStorage) -> GraphModel:
        """Copy the edge list to a storage, and describe it.

        Returns the model over it.
        """
        place = join_uri(storage.root, "edges")
        for file in sorted(self.edges.glob("*.parquet")):
            write_bytes(join_uri(place, file.name), file.read_bytes())
        keys = {"graph": {"edges": place}, "features": {"kind": "hashed", "dims": DIMS}, "layers": LAYERS}
        return GraphModel.model_validate({"name": "bench", "output": "embeddings", **keys})

    def run(self, storage: BenchStorage) -> dict[str, Turn]:
        """Build and embed the graph in a new warehouse."""
        storage.use(self.spark)
        if storage.name not in self.settings:
            self.settings[storage.name] = self.copy_edges(storage)
        self.turn += 1
        store, journal = Store(self.spark, join_uri(storage.root, f"{self.turn}")), Journal(io.StringIO())
        made: dict[str, PreparedGraphModel] = {}
        settings = self.settings[storage.name]
        build = measure_turn(
            storage, self.spark, lambda: made.update(model=prepare_model(store, settings, journal))
        )
        layers = measure_turn(storage, self.spark, lambda: run_layers(store, made["model"], journal))
        self.check(store, storage.name)
        print(
            f"{storage.name}: build {build.job.wall:.1f} s, layers {layers.job.wall:.1f} s", file=sys.stderr
        )
        return dict(zip(WORKS, (build, layers), strict=True))

    def check(self, store: Store, name: str) -> None:
        """Compare the last turn's embeddings with earlier ones."""
        table: Any = delta_files.read_rows(store.location("embeddings"), columns=["id", "vector"])
        vectors = table.sort_by("id").column("vector").combine_chunks().flatten()
        digest = hashlib.sha256(vectors.to_numpy()).hexdigest()
        self.digest = self.digest or digest
        if digest != self.digest:
            raise DataError(f"embeddings on {name} differ from those of other storages", "report this")


def run_layers(store: Store, prepared: PreparedGraphModel, journal: Journal) -> None:
    """Compute and commit all layers."""
    with open_model_work(store, prepared, journal) as working:
        embed(store, working, journal)


if __name__ == "__main__":
    cli.run(main, parser())
