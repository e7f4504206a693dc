"""Speed of layers over graphs, beside the limit of this machine and other ways to do the same, in turns.

    python jobs/bench/graph.py --edges 1e6,3e6,1e7 --rounds 2 --output DIR/graph.jsonl
    python jobs/bench/graph.py --edges 1e6 --systems ours-mean,bag,sql,grouped,khop

Systems: ours-mean, ours-mean16 (float16 vectors), ours-convolve, ours-gather (plan G), ours-scatter (plan
S; of both, bytes as predicted and as Spark counts them: spark.shuffle.compress false), layout; bag, bag16,
bag-convolve (torch in one process with two threads, writing the same bytes: the limit); scipy; sql (the
fastest of 64 sums, Summarizer and vector_sum), grouped (Arrow, a call a node), khop (two-hop subgraphs a
node, as pipelines without layers compute them). The graph is Zipf in sources and uniform in destinations,
20 edges a node, drawn by hash. A row a measurement is appended to --output; slopes over sizes are printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark import cli
from recbench_spark.errors import OK, ConfigError, nearest
from recbench_spark.graph.features import lay_made
from recbench_spark.graph.folders import Graph, mapped, new_matrix
from recbench_spark.graph.layout import lay_out
from recbench_spark.graph.nodes import edges_into
from recbench_spark.graph.passes import Pass, Target
from recbench_spark.graph.runner import Model, run_pass
from recbench_spark.graph_config import GraphSource
from recbench_spark.kernels.graph.aggregate import partial as pooled_part
from recbench_spark.kernels.graph.costs import FRAME
from recbench_spark.kernels.graph.csr import Csr
from recbench_spark.kernels.graph.ids import hashed_numbers
from recbench_spark.kernels.graph.layers import Layer, LayerForm, make_layer, random_weights, shapes
from recbench_spark.schemas import GRAPH_VECTORS
from recbench_spark.session import get_session
from recbench_spark.store import Store

DIMS, DEGREE = 64, 20
OURS = ("ours-mean", "ours-mean16", "ours-convolve", "ours-gather", "ours-scatter", "layout")
LIMITS = {
    "ours-scatter": "bag",
    "ours-mean": "bag",
    "ours-mean16": "bag16",
    "ours-convolve": "bag-convolve",
    "ours-gather": "bag",
}
SYSTEMS = (*OURS, "bag", "bag16", "bag-convolve", "scipy", "sql", "grouped", "khop")
PIECE = 1 << 20
MEAN = Layer("mean", None, None, None, np.zeros(DIMS, np.float32), False, False)


def parser() -> cli.Parser:
    """The flags of this job."""
    found = cli.Parser(__doc__ or "")
    found.add_argument("--edges", default="1e5,3e5", help="numbers of edges, e.g. 1e6,1e7")
    found.add_argument("--systems", default="layout,ours-mean,bag", help="comma-separated")
    found.add_argument("--rounds", type=int, default=2, help="turns of all systems at a size")
    found.add_argument("--folder", default="warehouse/bench_graph", help="for graphs and results; reused")
    found.add_argument("--output", help="JSON lines, appended")
    return found


def main(args: argparse.Namespace) -> int:
    """Draw or reuse the graphs, measure in turns, tell."""
    sizes = [int(number) for number in cli.numbers(args.edges)]
    systems = args.systems.split(",")
    for name in systems:
        if name not in SYSTEMS:
            raise ConfigError(f"no system {name}", nearest(name, SYSTEMS))
    spark = get_session("recbench-spark bench graph")
    rows = []
    for size in sizes:
        bench = Bench(spark, Path(args.folder).absolute(), size)
        for turn in range(args.rounds + 1):  # the first one warms up, and is not told
            for name in systems:
                row = bench.measured(name)
                if turn:
                    rows.append({**row, "round": turn - 1})
                    print(json.dumps(rows[-1]), flush=True)
    if args.output:
        with Path(args.output).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    print(told(rows))
    return OK


def told(rows: list[dict[str, Any]]) -> str:
    """Medians by size, and the slope over sizes beside the limit's."""
    lines = []
    medians: dict[str, dict[int, float]] = {}
    for row in rows:
        medians.setdefault(row["system"], {})[row["edges"]] = float(
            np.median(
                [r["seconds"] for r in rows if (r["system"], r["edges"]) == (row["system"], row["edges"])]
            )
        )
    for name, found in medians.items():
        listed = ", ".join(f"{edges:.0e} {seconds:.3f} s" for edges, seconds in found.items())
        lines.append(f"{name:<14}{listed}")
    for name, limit in LIMITS.items():
        if name in medians and limit in medians and len(medians[name]) > 1:
            ours, theirs = (
                np.polyfit(list(m), list(m.values()), 1)[0] for m in (medians[name], medians[limit])
            )
            lines.append(f"{name}: {theirs / ours:.0%} of the speed of {limit} by slope")
    return "\n".join(lines)


class Bench:
    """A size: its graph, laid out, its features, and what is measured over them."""

    def __init__(self, spark: SparkSession, folder: Path, edges: int) -> None:
        self.spark, self.folder, self.edges = spark, folder / f"{edges}", edges
        self.context = spark.sparkContext
        self.nodes = max(edges // DEGREE, 10)
        self.path = self.folder / "edges"
        if not (self.path / "_SUCCESS").exists():
            self.path.mkdir(parents=True, exist_ok=True)
            pieces = range(-(-edges // PIECE))
            draw = partial(drawn, edges=edges, nodes=self.nodes, folder=self.path)
            self.context.parallelize(pieces, len(pieces)).foreach(draw)
            (self.path / "_SUCCESS").touch()
        self.graph = self.laid(self.folder / "graph")
        for dtype in ("float32", "float16"):
            path = self.features(dtype)
            if not path.exists():
                new_matrix(path, (self.graph.nodes, DIMS), dtype)
                lay_made(self.context, self.graph, "hashed", DIMS, 1, path)
        form = LayerForm("convolve", "importance", DIMS, DIMS)
        self.weights = random_weights(shapes(form, DIMS), 1)
        self.convolve = make_layer(form, self.weights, DIMS)
        self.store = Store(spark, str(folder / "tables"))
        self.store.create(GRAPH_VECTORS)
        self.turn = time.time_ns()

    def laid(self, folder: Path) -> Graph:
        """The graph, laid out."""
        return lay_out(self.context, GraphSource(edges=str(self.path)), f"bench{self.edges}", folder)

    def features(self, dtype: str) -> Path:
        """File of the features."""
        return self.folder / f"features-{dtype}.npy"

    def whole(self) -> Csr:
        """The adjacency as one, for systems in one process."""
        parts = [self.graph.csr(block) for block in self.graph.blocks]
        starts = np.cumsum([0, *(part.edges for part in parts)])
        indptr = np.concatenate(
            [p.indptr[:-1] + s for p, s in zip(parts, starts, strict=False)] + [starts[-1:]]
        )
        return Csr(indptr, np.concatenate([part.src[: part.edges] for part in parts]), None)

    def measured(self, name: str) -> dict[str, Any]:
        """One run of a system: seconds of its work alone, and what it says of it."""
        ways: dict[str, Callable[[], Callable[[], dict[str, Any]]]] = {
            "ours-mean": partial(self.ours, MEAN, "pool", "float32", "R"),
            "ours-mean16": partial(self.ours, MEAN, "pool", "float16", "R"),
            "ours-gather": partial(self.ours, MEAN, "pool", "float32", "G"),
            "ours-scatter": partial(self.ours, MEAN, "pool", "float32", "S"),
            "ours-convolve": partial(self.ours, self.convolve, "layer", "float32", "R"),
            "layout": self.layout,
            "bag": partial(self.bag, "float32"),
            "bag16": partial(self.bag, "float16"),
            "bag-convolve": self.bag_convolve,
            "scipy": self.scipy,
            "sql": self.sql,
            "grouped": self.grouped,
            "khop": self.khop,
        }
        work = ways[name]()
        started = time.perf_counter()
        more = work() or {}
        seconds = more.pop("seconds", time.perf_counter() - started)
        common = {
            "system": name,
            "edges": self.edges,
            "nodes": self.nodes,
            "dims": DIMS,
            "seconds": seconds,
        }
        return {**common, "edges_per_second": self.edges / seconds, **more}

    def ours(self, layer: Layer, kind: str, dtype: str, plan: str) -> Callable[[], dict[str, Any]]:
        """A pass over the laid-out graph, committed to Delta."""
        self.turn += 1
        name = f"bench-{self.turn}"
        folder, h = self.folder / "run", str(self.features(dtype))
        target = Target(self.store.location("graph_vectors"), {"model_id": name, "layer": "1"}, "vectors")
        z = str(folder / "z.npy") if layer.project else h
        step = Pass(1, kind, None, None, layer, layer.project is not None, h, z, dtype, (), None, target)  # type: ignore[arg-type]
        model = Model(name, (layer,), (), "projected", dtype, h, str(folder), target.folder, None)

        def work() -> dict[str, Any]:
            before = shuffled(self.spark)
            _, projected = run_pass(self.context, self.graph, step, self.graph.blocks, plan, model)  # type: ignore[arg-type]
            return {
                "projected": projected,
                "bytes_shuffled": shuffled(self.spark) - before,
                "predicted_bytes": self.predicted(plan),
            }

        return work

    def predicted(self, plan: str) -> int:
        """Bytes of a shuffle of means, by counting; with what Spark adds to each value."""
        blocks, moved = self.graph.blocks, 0
        if plan == "G":
            moved = sum(block.sources for block in blocks) * DIMS * 4
        elif plan == "S":
            moved = sum(block.parts for block in blocks) * (DIMS * 4 + 4)
        return moved + len(blocks) ** 2 * FRAME if moved else 0

    def layout(self) -> Callable[[], dict[str, Any]]:
        """From the edge list to blocks."""
        folder = self.folder / "again"
        shutil.rmtree(folder, ignore_errors=True)

        def work() -> dict[str, Any]:
            self.laid(folder)
            return {}

        return work

    def bag(self, dtype: str) -> Callable[[], dict[str, Any]]:
        """torch's embedding_bag and its output written."""
        csr = self.whole()
        src, offsets = (
            torch.from_numpy(csr.src.astype(np.int32)),
            torch.from_numpy(csr.indptr[:-1].astype(np.int32)),
        )
        features = torch.from_numpy(np.load(self.features(dtype)))
        torch.set_num_threads(2)

        def work() -> dict[str, Any]:
            out = torch.nn.functional.embedding_bag(src, features, offsets, mode="mean")
            out.numpy().tofile(self.folder / "limit.bin")
            return {}

        return work

    def bag_convolve(self) -> Callable[[], dict[str, Any]]:
        """The whole layer in torch."""
        csr = self.whole()
        src, offsets = (
            torch.from_numpy(csr.src.astype(np.int32)),
            torch.from_numpy(csr.indptr[:-1].astype(np.int32)),
        )
        h = torch.from_numpy(np.load(self.features("float32")))
        w = {name: torch.from_numpy(value) for name, value in self.weights.items()}
        torch.set_num_threads(2)

        def work() -> dict[str, Any]:
            z = torch.relu(torch.addmm(w["Q.bias"], h, w["Q.weight"].T))
            n = torch.nn.functional.embedding_bag(src, z, offsets, mode="mean")
            out = torch.relu(torch.addmm(w["W.bias"], torch.cat([h, n], 1), w["W.weight"].T))
            torch.nn.functional.normalize(out).numpy().tofile(self.folder / "limit.bin")
            return {}

        return work

    def scipy(self) -> Callable[[], dict[str, Any]]:
        """Sparse times dense, one thread."""
        from scipy.sparse import csr_matrix  # noqa: PLC0415

        csr = self.whole()
        counts = np.maximum(np.diff(csr.indptr), 1)
        data = np.repeat(1 / counts, np.diff(csr.indptr)).astype(np.float32)
        shape = (self.graph.nodes, self.graph.nodes)
        matrix = csr_matrix((data, csr.src.astype(np.int64), csr.indptr), shape)
        h = np.load(self.features("float32"))

        def work() -> dict[str, Any]:
            (matrix @ h).tofile(self.folder / "limit.bin")
            return {}

        return work

    def joined(self) -> DataFrame:
        """Edges with the vector of their source, as rows of Spark."""
        path = self.folder / "vectors.parquet"
        if not path.exists():
            h = np.load(self.features("float32"))
            ids = pa.array(np.arange(len(h)))
            lists = pa.FixedSizeListArray.from_arrays(pa.array(h.reshape(-1)), DIMS).cast(
                pa.list_(pa.float32())
            )
            pq.write_table(pa.table({"src": ids, "vector": lists}), path)
        edges = self.spark.read.parquet(str(self.path))
        return edges.join(self.spark.read.parquet(str(path)), "src")

    def sql(self) -> Callable[[], dict[str, Any]]:
        """The fastest of three ways in Spark SQL."""
        rows = self.joined()
        sums = [F.avg(F.col("vector")[j]).alias(f"v{j}") for j in range(DIMS)]
        from pyspark.ml.functions import array_to_vector  # noqa: PLC0415
        from pyspark.ml.stat import Summarizer  # noqa: PLC0415

        summarised = rows.withColumn("v", array_to_vector(F.col("vector")))
        ways = {
            "64 sums": rows.groupBy("dst").agg(*sums),
            "Summarizer": summarised.groupBy("dst").agg(Summarizer.mean(F.col("v")).alias("v")),
            "vector_sum": rows.groupBy("dst").agg(F.expr("vector_sum(vector)").alias("v")),
        }

        def work() -> dict[str, Any]:
            took = {way: seconds_of(frame) for way, frame in ways.items()}
            best = min(took, key=lambda way: took[way])
            return {"seconds": took[best], "way": best, "all": took}

        return work

    def grouped(self) -> Callable[[], dict[str, Any]]:
        """One call of Python a node, on an Arrow table of its rows."""
        frame = self.joined().groupBy("dst").applyInArrow(mean_of_group, "dst long, vector array<float>")
        return lambda: {"seconds": seconds_of(frame)}

    def khop(self) -> Callable[[], dict[str, Any]]:
        """Two layers by a subgraph of two hops a node: vectors read, against those that layers read."""
        graph, h = self.graph, mapped(self.features("float32"))
        degrees = np.concatenate([np.diff(graph.csr(block).indptr) for block in graph.blocks])

        def work() -> dict[str, Any]:
            read = 0
            for first in range(0, graph.nodes, 256):
                one = edges_into(graph, np.arange(first, min(first + 256, graph.nodes)))
                two = edges_into(graph, one.src[: one.edges].astype(np.int64))
                pooled_part("sum", two, h)
                read += two.edges
            layers = 2 * int(degrees.sum())
            return {
                "vectors_read": read + int(degrees.sum()),
                "redundancy": (read + degrees.sum()) / layers,
            }

        return work


def shuffled(spark: SparkSession) -> int:
    """Bytes that all stages so far have written to shuffles, as Spark counts them."""
    context: Any = spark.sparkContext
    none, java = context._gateway.new_array(context._jvm.double, 0), context._jvm.java.util
    stages = context._jsc.sc().statusStore().stageList(None, False, False, none, java.ArrayList())
    return sum(stages.apply(n).shuffleWriteBytes() for n in range(stages.size()))


def seconds_of(frame: DataFrame) -> float:
    """Of a frame worked out and thrown away."""
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def mean_of_group(table: pa.Table) -> pa.Table:
    """Mean of the vectors of one node."""
    vectors = table.column("vector").combine_chunks()
    mean = vectors.flatten().to_numpy().reshape(-1, DIMS).mean(axis=0, dtype=np.float32)
    return pa.table({"dst": table.column("dst")[:1], "vector": pa.array([mean], pa.list_(pa.float32()))})


def drawn(piece: int, edges: int, nodes: int, folder: Path) -> None:
    """A piece of the edge list, by hash of the edge's number: Zipf sources (density r^-1/2)."""
    numbers = np.arange(piece * PIECE, min((piece + 1) * PIECE, edges))
    u, v = (hashed_numbers(numbers, seed) >> np.uint64(11) for seed in (1, 2))
    src = ((u * 2.0**-53) ** 2 * nodes).astype(np.int64)
    dst = (v * 2.0**-53 * nodes).astype(np.int64)
    pq.write_table(
        pa.table({"src": src, "dst": dst}), folder / f"{piece:05d}.parquet", use_dictionary=False
    )


if __name__ == "__main__":
    cli.run(main, parser())
