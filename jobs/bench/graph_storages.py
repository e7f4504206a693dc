"""Embed one graph on several storages, for `graph.py --storage`."""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from jobs.bench.graph_systems import DEGREE, DIMS, draw
from jobs.bench.harness import append_rows, list_rows, take_turns
from jobs.bench.storages import (
    BETWEEN,
    BenchStorage,
    Turn,
    format_requests,
    measure_turn,
    open_storages,
    print_turns,
)
from recbench_spark.errors import OK, DataError
from recbench_spark.graphs.model_inputs import PreparedGraphModel, prepare_model
from recbench_spark.graphs.pipeline import embed, open_model_work
from recbench_spark.graphs.settings import GraphModel
from recbench_spark.runtime.journal import Journal
from recbench_spark.runtime.session import get_session
from recbench_spark.storage import delta_files
from recbench_spark.storage.objects import write_bytes
from recbench_spark.storage.store import Store
from recbench_spark.storage.uris import join_uri

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
