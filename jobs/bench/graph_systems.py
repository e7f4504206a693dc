"""Hold one graph, and the systems `jobs/bench/graph.py` measures over it.

The edge list is drawn by hash, so all systems and all runs read the same graph.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.bench.harness import time_call
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.graphs.build import build_graph, default_block_count
from recbench_spark.graphs.features import fill_generated
from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels.aggregate import sum_sources as pooled_part
from recbench_spark.graphs.kernels.costs import PassSize
from recbench_spark.graphs.kernels.csr import Csr
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.kernels.layers import Layer, make_layer, random_weights, weight_shapes
from recbench_spark.graphs.machine_speed import measure_read_throughput
from recbench_spark.graphs.message_passing import Pass, Target
from recbench_spark.graphs.nodes import collect_edges
from recbench_spark.graphs.runner import Model, run_pass
from recbench_spark.graphs.settings import GraphSource
from recbench_spark.schemas import GRAPH_VECTORS
from recbench_spark.storage.block_arrays import has_parts, map_whole
from recbench_spark.storage.store import Store

DIMS, DEGREE = 64, 20
PLAN_SYSTEMS = {"R": "ours-mean", "G": "ours-gather", "S": "ours-scatter"}
Work = Callable[[], dict[str, Any] | None]
"""A call to time; it may return facts, and its own seconds."""
System = Callable[["GraphBench"], Work]
VALUE_BYTES = {"float32": 4, "float16": 2}
PIECE = 1 << 20
MAX_EDGES_ALL_WAYS = 3_000_000
"""Edges from which on only the fastest way in Spark SQL runs."""

MEAN = Layer("mean", None, None, None, np.zeros(DIMS, np.float32), False, False)


class Probe:
    """An embedding_bag with a fixed size, to sense machine speed.

    A call takes a million means of four vectors with 64 dimensions, out of half a million.
    """

    def __init__(self) -> None:
        rows, edges = 500_000, 4_000_000
        sources = (hash_numbers(np.arange(edges), 7) % np.uint64(rows)).astype(np.int32)
        self.sources = torch.from_numpy(sources)
        self.offsets = torch.arange(0, edges, 4, dtype=torch.int32)
        self.vectors = torch.ones((rows, DIMS))

    def __call__(self) -> float:
        """Return the smallest of three times, in seconds."""
        torch.set_num_threads(2)
        bag = partial(
            torch.nn.functional.embedding_bag, self.sources, self.vectors, self.offsets, mode="mean"
        )
        return min(time_call(bag)[0] for _ in range(3))


class GraphBench:
    """One size's graph and features, and the systems over them."""

    def __init__(self, spark: SparkSession, folder: Path, edges: int) -> None:
        self.spark, self.folder, self.edges = spark, folder / f"{edges}", edges
        self.engine = SparkEngine(spark)
        self.nodes = max(edges // DEGREE, 10)
        self.path = self.folder / "edges"
        draw(self.path, edges, self.nodes, "dense")
        self.graph = self.open_graph(self.path, self.folder / "graph")
        blocks, d, item = default_block_count(edges, self.engine.cores), DIMS, VALUE_BYTES["float32"]
        needed, parts = (sum(getattr(one, n) for one in self.graph.blocks) for n in ("sources", "parts"))
        self.size = PassSize(
            self.graph.nodes, edges, edges // DEGREE, needed, parts, blocks, blocks, d, d, d, item,
            False, False, False,
        )  # fmt: skip
        for dtype in ("float32", "float16"):
            place = self.features(dtype)
            if not has_parts(place):
                fill_generated(self.engine, self.graph, "hashed", DIMS, 1, place=place, dtype=dtype)
        form = LayerForm("convolve", "importance", DIMS, DIMS)
        self.weights = random_weights(weight_shapes(form, DIMS), 1)
        self.convolve = make_layer(form, self.weights, DIMS)
        self.store = Store(spark, str(folder / "tables"))
        self.store.create(GRAPH_VECTORS)
        self.turn = time.time_ns()
        self.fastest: str | None = None

    def open_graph(self, edges: Path, folder: Path) -> Graph:
        """Build the graph, or open it if it is built."""
        return build_graph(self.engine, GraphSource(edges=str(edges)), f"bench{self.edges}", folder)

    def clean(self) -> None:
        """Remove earlier turns' files, and settle disk and memory.

        The function waits for the disk, and touches the memory the next turn needs.
        """
        for left in Path(self.store.location("graph_vectors")).glob("model_id=*"):
            shutil.rmtree(left)
        (self.folder / "limit.bin").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "again", ignore_errors=True)
        os.sync()
        taken, piece = self.folder / "taken.bin", bytes(1 << 20)
        with taken.open("wb") as file:
            for _ in range(2 * self.nodes * DIMS * 4 >> 20):
                file.write(piece)
        taken.unlink()

    def read_once(self) -> None:
        """Read features and adjacency, so the first run finds them.

        Later runs find them cached, too.
        """
        for path in [*self.folder.glob("features-*/*.npy"), *(self.folder / "graph").rglob("*.npy")]:
            with path.open("rb") as file:
                while file.read(1 << 24):
                    pass

    def layer_size(self, wire: str) -> PassSize:
        """Size a layer of means with the present reading speed.

        The time to read a vector is measured now.
        """
        pace = measure_read_throughput(self.engine, self.graph, self.features(wire))
        return replace(self.size, item=VALUE_BYTES[wire], pace=pace)

    def run_beside_probe(
        self, probe: Probe, plan: str, size: PassSize, convolve: bool = False, wire: str = "float32"
    ) -> dict[str, Any]:
        """Run a layer under a plan, between two probes.

        The probe's mean seconds are added.
        """
        before = probe()
        halves = "16" if wire == "float16" else ""
        row = self.measure("ours-convolve" if convolve else PLAN_SYSTEMS[plan] + halves)
        size = replace(size, projects=convolve, combines=convolve)
        more = {"pace": size.pace, "amounts": size.amounts(plan, VALUE_BYTES[wire])}
        return {**row, "plan": plan, "probe": (before + probe()) / 2, **more}

    def features(self, dtype: str) -> str:
        """Return the features' place."""
        return str(self.folder / f"features-{dtype}")

    @cached_property
    def whole(self) -> Csr:
        """The whole adjacency as one matrix, for one-process systems."""
        parts = [self.graph.csr(block) for block in self.graph.blocks]
        starts = np.cumsum([0, *(part.edges for part in parts)])
        indptr = np.concatenate(
            [p.indptr[:-1] + s for p, s in zip(parts, starts, strict=False)] + [starts[-1:]]
        )
        return Csr(indptr, np.concatenate([part.src[: part.edges] for part in parts]), None)

    def measure(self, name: str) -> dict[str, Any]:
        """Run one of `SYSTEMS` once.

        Returns its seconds, without preparation, and its own facts.
        """
        work = SYSTEMS[name](self)
        self.clean()
        seconds, more = time_call(work)
        row: dict[str, Any] = {"system": name, "edges": self.edges, "nodes": self.nodes, "dims": DIMS}
        row |= {"seconds": seconds, **(more or {})}
        return {**row, "edges_per_second": self.edges / row["seconds"]}

    def run_pass(self, layer: Layer, kind: str, dtype: str, plan: str) -> Work:
        """Prepare a pass over the graph, committed to Delta."""
        self.turn += 1
        name = f"bench-{self.turn}"
        folder, h = self.folder / "run", self.features(dtype)
        target = Target(self.store.location("graph_vectors"), {"model_id": name, "layer": "1"}, "vectors")
        z = str(folder / "z") if layer.project else h
        step = Pass(1, kind, None, None, layer, layer.project is not None, h, z, dtype, (), None, target)  # type: ignore[arg-type]
        model = Model(name, (layer,), (), "projected", dtype, h, str(folder), target.folder, None)

        def work() -> dict[str, Any]:
            before = count_shuffle_bytes(self.spark)
            _, projected = run_pass(self.engine, self.graph, step, self.graph.blocks, plan, model=model)  # type: ignore[arg-type]
            return {
                "projected": projected,
                "bytes_shuffled": count_shuffle_bytes(self.spark) - before,
                "predicted_bytes": int(self.size.amounts(plan, 4).moved),
            }

        return work

    def layout(self, ids: str) -> Work:
        """Prepare to build the graph from the edge list."""
        path, folder = self.folder / ids, self.folder / "again"
        draw(path, self.edges, self.nodes, ids)

        def work() -> None:
            self.open_graph(path, folder)

        return work

    def _load_tensors(self, dtype: str) -> list[torch.Tensor]:
        """Load features, sources and offsets for torch's two threads."""
        torch.set_num_threads(2)
        edges = (self.whole.src, self.whole.indptr[:-1])
        features = np.array(map_whole(self.features(dtype)))
        return [torch.from_numpy(array) for array in (features, *(one.astype(np.int32) for one in edges))]

    def bag(self, dtype: str) -> Work:
        """Prepare torch's embedding_bag, which also writes its output."""
        features, src, offsets = self._load_tensors(dtype)

        def work() -> None:
            out = torch.nn.functional.embedding_bag(src, features, offsets, mode="mean")
            out.numpy().tofile(self.folder / "limit.bin")

        return work

    def bag_convolve(self) -> Work:
        """Prepare the whole layer in torch."""
        h, src, offsets = self._load_tensors("float32")
        w = {name: torch.from_numpy(value) for name, value in self.weights.items()}

        def work() -> None:
            z = torch.relu(torch.addmm(w["Q.bias"], h, w["Q.weight"].T))
            n = torch.nn.functional.embedding_bag(src, z, offsets, mode="mean")
            out = torch.relu(torch.addmm(w["W.bias"], torch.cat([h, n], 1), w["W.weight"].T))
            torch.nn.functional.normalize(out).numpy().tofile(self.folder / "limit.bin")

        return work

    def scipy(self) -> Work:
        """Prepare a sparse times dense product in one thread."""
        from scipy.sparse import csr_matrix  # noqa: PLC0415

        csr = self.whole
        counts = np.maximum(np.diff(csr.indptr), 1)
        data = np.repeat(1 / counts, np.diff(csr.indptr)).astype(np.float32)
        shape = (self.graph.nodes, self.graph.nodes)
        matrix = csr_matrix((data, csr.src.astype(np.int64), csr.indptr), shape)
        h = map_whole(self.features("float32"))

        def work() -> None:
            (matrix @ h).tofile(self.folder / "limit.bin")

        return work

    def join_edges(self) -> DataFrame:
        """Join each edge with its source's vector, as Spark rows."""
        path = self.folder / "vectors.parquet"
        if not path.exists():
            h = map_whole(self.features("float32"))
            ids = pa.array(np.arange(len(h)))
            lists = pa.FixedSizeListArray.from_arrays(pa.array(h.reshape(-1)), DIMS)
            pq.write_table(pa.table({"src": ids, "vector": lists.cast(pa.list_(pa.float32()))}), path)
        edges = self.spark.read.parquet(str(self.path))
        return edges.join(self.spark.read.parquet(str(path)), "src")

    def sql(self) -> Work:
        """Prepare three ways in Spark SQL; the fastest counts."""
        rows = self.join_edges()
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
            known = self.edges >= MAX_EDGES_ALL_WAYS and self.fastest
            chosen = {known: ways[known]} if known else ways
            took = {way: time_frame(frame) for way, frame in chosen.items()}
            best = min(took, key=lambda way: took[way])
            return {"seconds": took[best], "way": best, "all": took}

        return work

    def run_grouped(self) -> Work:
        """Prepare one Python call for each node's Arrow rows."""

        # Spark's workers cannot import this file; a nested function is sent to them whole.
        def mean_group(table: pa.Table) -> pa.Table:
            vectors = table.column("vector").combine_chunks()
            mean = vectors.flatten().to_numpy().reshape(-1, DIMS).mean(axis=0, dtype=np.float32)
            vector = pa.array([mean], pa.list_(pa.float32()))
            return pa.table({"dst": table.column("dst")[:1], "vector": vector})

        frame = self.join_edges().groupBy("dst").applyInArrow(mean_group, "dst long, vector array<float>")
        return lambda: {"seconds": time_frame(frame)}

    def khop(self) -> Work:
        """Prepare two layers by two-hop subgraphs of nodes.

        The result compares the vectors read.
        """
        graph, h = self.graph, map_whole(self.features("float32"))
        degrees = np.concatenate([np.diff(graph.csr(block).indptr) for block in graph.blocks])

        def work() -> dict[str, Any]:
            read = 0
            for first in range(0, graph.nodes, 256):
                one = collect_edges(graph, np.arange(first, min(first + 256, graph.nodes)))
                two = collect_edges(graph, one.src[: one.edges].astype(np.int64))
                pooled_part("sum", two, h)
                read += two.edges
            once = int(degrees.sum())
            return {"vectors_read": read + once, "redundancy": (read + once) / (2 * once)}

        return work


def run_means(dtype: str, plan: str) -> System:
    """Return the system for a means pass under a plan."""
    return lambda bench: bench.run_pass(MEAN, "pool", dtype, plan)


SYSTEMS: dict[str, System] = {
    "ours-mean": run_means("float32", "R"),
    "ours-mean16": run_means("float16", "R"),
    "ours-convolve": lambda bench: bench.run_pass(bench.convolve, "layer", "float32", "R"),
    "ours-gather": run_means("float32", "G"),
    "ours-gather16": run_means("float16", "G"),
    "ours-scatter": run_means("float32", "S"),
    "ours-scatter16": run_means("float16", "S"),
    "layout": lambda bench: bench.layout("edges"),
    "layout-raw": lambda bench: bench.layout("raw"),
    "layout-text": lambda bench: bench.layout("text"),
    "bag": lambda bench: bench.bag("float32"),
    "bag16": lambda bench: bench.bag("float16"),
    "bag-convolve": GraphBench.bag_convolve,
    "scipy": GraphBench.scipy,
    "sql": GraphBench.sql,
    "grouped": GraphBench.run_grouped,
    "khop": GraphBench.khop,
}
"""The systems by name.

Each prepares its work and returns a call to time.
"""


def count_shuffle_bytes(spark: SparkSession) -> int:
    """Return the shuffled bytes of all stages, by Spark's count."""
    context: Any = spark.sparkContext
    none, java = context._gateway.new_array(context._jvm.double, 0), context._jvm.java.util
    stages = context._jsc.sc().statusStore().stageList(None, False, False, none, java.ArrayList())
    return sum(stages.apply(n).shuffleWriteBytes() for n in range(stages.size()))


def time_frame(frame: DataFrame) -> float:
    """Time a frame's computation, without storing it."""
    return time_call(frame.write.format("noop").mode("overwrite").save)[0]


def draw(folder: Path, edges: int, nodes: int, ids: str) -> None:
    """Draw an edge list in pieces, reusing an earlier run's.

    Args:
        folder: for the files.
        edges: their number.
        nodes: ids that may be drawn.
        ids: `dense` (0 to nodes - 1), `compact` (the same, small files), `raw` (64 bits), `text`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [n for n in range(-(-edges // PIECE)) if not (folder / f"{n:05d}.parquet").exists()]
    piece = partial(draw_piece, edges=edges, nodes=nodes, folder=folder, ids=ids)
    if len(pieces) < 2:  # starting a process takes seconds
        list(map(piece, pieces))
        return
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        for _ in pool.imap_unordered(piece, pieces):
            pass


def draw_piece(piece: int, edges: int, nodes: int, folder: Path, ids: str) -> None:
    """Draw a piece of the edge list by hash.

    The edge's number is hashed.

    Sources follow Zipf (density r^-1/2).
    """
    numbers = np.arange(piece * PIECE, min((piece + 1) * PIECE, edges))
    u, v = (hash_numbers(numbers, seed) >> np.uint64(11) for seed in (1, 2))
    ends = ((u * 2.0**-53) ** 2 * nodes).astype(np.int64), (v * 2.0**-53 * nodes).astype(np.int64)
    rows = pa.table({name: name_nodes(end, ids) for name, end in zip(("src", "dst"), ends, strict=True)})
    path = folder / f"{piece:05d}.parquet"
    partial_path = path.with_name(f".{path.name}")
    small = {"compression": "zstd", "use_byte_stream_split": True} if ids == "compact" else {}
    pq.write_table(rows, partial_path, use_dictionary=False, write_statistics=False, **small)
    partial_path.replace(path)


def name_nodes(node_r: npt.NDArray[np.int64], ids: str) -> pa.Array:
    """Name nodes in an edge list's format."""
    if ids == "raw":
        return pa.array(hash_numbers(node_r, 3).view(np.int64))
    if ids == "text":
        return pc.binary_join_element_wise("node-", pa.array(node_r).cast(pa.string()), "")
    return pa.array(node_r.astype(np.int32) if ids == "compact" else node_r)
