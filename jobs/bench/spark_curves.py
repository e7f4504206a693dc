"""Time learning curves on Spark, for `curves.py --spark`.

They run beside the ranking of as many ready vectors. The curve starts from rows of the table `splits`:
users and their rows cross one shuffle, and tasks fold in, rank and measure all prefixes and write rows of
`curve_values`. The ready vectors start from Parquet files with one row for each prefix, with its vector
and its item lists, so nothing is shuffled. Tasks rank up to the cut-off, measure, and write one value for
each row. Both leave out means and intervals.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from jobs.bench.harness import Seconds, find_largest_worker, measure_call, take_turns
from recbench_spark.analyses.curves import batched as curves
from recbench_spark.analyses.curves import curve_batches
from recbench_spark.analyses.curves.batched import HeldOutUsers
from recbench_spark.analyses.curves.learning_curves import CurveRequest, CurveUsers, fold_pairs
from recbench_spark.config import HeldOut
from recbench_spark.core.arrays import Floats32
from recbench_spark.core.streams import Batches
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.evaluation.task_devices import find_task_device
from recbench_spark.metrics.kernels.accuracy import measure
from recbench_spark.metrics.list_rows import make_lists
from recbench_spark.models.prefix_scorers import PrefixScorer
from recbench_spark.models.prefix_vectors import ConfidenceFoldIn, FoldInSettings, PairFoldIn, RidgeFoldIn
from recbench_spark.ranking.batches import read_item_lists
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.rankings import Rankings
from recbench_spark.ranking.kernels.scorers import WHOLE_ROWS, count_ranks
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.ranking.scored import is_little, user_block
from recbench_spark.ranking.sources import DotSource
from recbench_spark.runtime.session import get_session
from recbench_spark.splits.audit import deal_users
from recbench_spark.splits.kernels.prefixes import make_prefixes
from recbench_spark.storage.frame_blocks import FrameBlocks, FrameRows
from recbench_spark.storage.packed_blocks import Change
from recbench_spark.storage.shared_arrays import SharedRows, flatten_lists
from recbench_spark.storage.spark_types import spark_columns

FOLD_INS: dict[str, FoldInSettings] = {
    "als": ConfidenceFoldIn(0.1, 10.0),
    "als-explicit": RidgeFoldIn(0.1),
    "implicit_als": PairFoldIn(0.1, 0.003),
}
"""Fold-in by kind: Spark's ALS in both forms, and iALS."""

READY = "user_key BIGINT, items ARRAY<INT>, relevance ARRAY<DOUBLE>, masked ARRAY<INT>, vector ARRAY<FLOAT>"
VALUE = "user_key BIGINT, value DOUBLE"

MIB = 1 << 20


@dataclass(frozen=True)
class SparkWorld:
    """A split's stored rows, and a curve plan over them."""

    spark: SparkSession
    folder: Path
    source: DotSource
    plan: curve_batches.CurvePlan
    tasks: int

    def select_users(self) -> FrameBlocks:
        """Return rows of `CURVE_USERS` from the split's rows."""
        rows = FrameRows(self.spark.read.parquet(str(self.folder / "splits.parquet")))
        parts = HeldOutUsers(("test", "valid"), HeldOut(of="users", test=0.9, valid=0.05), 42)
        own = SharedRows(f"{self.source.rows.key}-ids", self.source.rows.files)  # their own arrays
        known = KnownItems(own, self.source.n_items)
        select = partial(curves.select_curve_users, known=known, held_out=parts, plan=self.plan)
        dealt = rows.deal(curves.LABELLED, partial(deal_users, tasks=self.tasks), self.tasks)
        return dealt.then(select, tuple(curve_batches.CURVE_USERS.names))


def run_spark(
    args: argparse.Namespace, vectors_id: Floats32, users: CurveUsers, request: CurveRequest
) -> None:
    """Time both ways for each kind of fold-in, and print.

    Printed are times, ratios and memory.
    """
    with TemporaryDirectory(dir=args.folder) as place:
        world = store_world(Path(place), vectors_id, users, request)
        print(f"Spark, {args.users:,} users, {args.points} points, {args.items:,} items, {args.dims} dims")
        print(f"libraries of a worker alone: {measure_libraries() / MIB:.0f} MiB of its own memory")
        for number, name in enumerate(args.kinds.split(",")):
            turns = time_kind(world, FOLD_INS[name], args.rounds, warm_ups=not number)
            print(describe_turns(name, *turns), flush=True)
        print(f"memory of the driver's JVM after the turns: {read_heap(world.spark) / MIB:.0f} MiB")


def store_world(folder: Path, vectors_id: Floats32, users: CurveUsers, request: CurveRequest) -> SparkWorld:
    """Store items with vectors, and users' rows as a split's."""
    n_items, dims = vectors_id.shape
    index = np.arange(n_items, dtype=np.int32)
    items = {
        "item_id": pa.array(index).cast(pa.string()),
        "item_index": index,
        "n_train": np.ones(n_items, np.int64),
        "vector": make_lists(vectors_id),
        "bias": np.zeros(n_items),
    }
    pq.write_table(pa.table(items), folder / "items.parquet")
    lengths_u = np.diff(users.offsets)
    rows = {
        "user_id": pa.array(np.repeat(np.arange(len(lengths_u)), lengths_u)).cast(pa.string()),
        "item_id": pa.array(users.items_p).cast(pa.string()),
        "part": pa.repeat("given", len(users.items_p)),
        "rating": users.ratings_p,
        "event_time": np.arange(len(users.items_p)),
    }
    pq.write_table(pa.table(rows), folder / "splits.parquet", row_group_size=1 << 19)
    spark = get_session("recbench-spark bench curves")
    source = DotSource(SharedRows(uuid.uuid4().hex, (str(folder / "items.parquet"),)), n_items, dims)
    plan = curve_batches.CurvePlan(request, {"ndcg": "bench"})
    return SparkWorld(spark, folder, source, plan, SparkEngine(spark).count_tasks(len(users.items_p)))


# ------------------------------------------------------------------------------------------- turns


def time_kind(
    world: SparkWorld, fold_in: FoldInSettings, rounds: int, *, warm_ups: int
) -> tuple[dict[str, list[Seconds]], dict[str, int]]:
    """Time both ways in turns, and watch their workers' memory.

    The memory is each way's largest worker, in bytes. The first kind has a turn of each way to warm up:
    workers load libraries and the JVM compiles.
    """
    model = PrefixScorer(world.source, fold_in)
    ready = world.folder / "ready"
    write_ready(world, model, ready)
    peaks: dict[str, int] = {}
    works: dict[str, Callable[[], None]] = {
        "ready": lambda: rank_ready(world, ready),
        "curve": lambda: write_curve(world, model),
    }

    def run(name: str) -> Seconds:
        with watch_workers(peaks, name):
            return measure_call(works[name])

    turns = take_turns({name: partial(run, name) for name in works}, rounds, warm_ups)
    shutil.rmtree(ready)
    return turns, peaks


def write_ready(world: SparkWorld, model: PrefixScorer, ready: Path) -> None:
    """Write a row of `READY` for each prefix."""
    make = partial(make_ready_rows, world.plan, model)
    world.select_users().rows(spark_columns(curve_batches.CURVE_USERS)).mapInArrow(
        make, READY
    ).write.parquet(str(ready))


def write_curve(world: SparkWorld, model: PrefixScorer) -> None:
    """Write rows of `curve_values`, from the split's rows."""
    users, member = world.select_users(), curve_batches.CurveMember("run", model)
    work = partial(_measure_rows, change=users.change, plan=world.plan, member=member)
    values = users.then(work, tuple(curve_batches.CURVE_ROWS.names)).rows(
        spark_columns(curve_batches.CURVE_ROWS)
    )
    values.write.mode("overwrite").parquet(str(world.folder / "values"))


def _measure_rows(
    rows: pa.Table, change: Change, plan: curve_batches.CurvePlan, member: curve_batches.CurveMember
) -> pa.Table:
    work = partial(curve_batches.measure_users, plan)
    return curves.run_member(change(rows), work, member, find_task_device, curve_batches.CURVE_ROWS)


def rank_ready(world: SparkWorld, ready: Path) -> None:
    """Write each ready vector's value."""
    task = partial(measure_ready_rows, world.source, world.plan.request)
    rows = world.spark.read.parquet(str(ready)).mapInArrow(task, VALUE)
    rows.write.mode("overwrite").parquet(str(world.folder / "ready_values"))


def make_ready_rows(plan: curve_batches.CurvePlan, model: PrefixScorer, batches: Batches) -> Batches:
    """Fold all prefixes in, a row of `READY` for each.

    The prefixes come from rows of `CURVE_USERS`.
    """
    _, folder = model.open()
    for batch in batches:
        for start in range(0, batch.num_rows, 1 << 10):
            ((users, _),) = curve_batches.list_orders(batch.slice(start, 1 << 10), plan)
            prefixes = make_prefixes(users.offsets, plan.request.rule)
            block, _ = fold_pairs(folder, users, prefixes, plan.request.definition)
            assert block.vectors_ud is not None
            width = block.vectors_ud.shape[1]
            vector_bounds = np.arange(len(block.vectors_ud) + 1) * width
            columns = {
                "user_key": pa.array(block.keys_u),
                "items": _nest(prefixes.truth_offsets, users.items_p[prefixes.truth_p].astype(np.int32)),
                "relevance": _nest(prefixes.truth_offsets, users.ratings_p[prefixes.truth_p]),
                "masked": _nest(prefixes.masked_offsets, users.items_p[prefixes.masked_p].astype(np.int32)),
                "vector": _nest(vector_bounds, block.vectors_ud.reshape(-1)),
            }
            yield pa.RecordBatch.from_pydict(columns)


def _nest(offsets: Any, values: Any) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def measure_ready_rows(source: DotSource, request: CurveRequest, batches: Batches) -> Batches:
    """Rank and measure ready vectors, one value per `READY` row."""
    scorer = source.scorer()
    k = max(request.ks)
    for batch in batches:
        block = user_block(batch, source)
        truth, masked = read_item_lists(batch, "items"), read_item_lists(batch, "masked")
        device = WHOLE_ROWS if is_little(scorer, batch.num_rows) else "cpu"
        counts = count_ranks(
            scorer, block, truth, masked, device=device, settings=CountingSettings(cutoff=k)
        )
        relevance = flatten_lists(batch.column("relevance"))[1]
        ranks = (counts.above_p, counts.tied_p, counts.before_p, counts.candidates_u)
        rankings = Rankings(truth.offsets_u, relevance, *ranks)
        values = measure(rankings, request.metrics, request.ks, request.definition, uncut=False)["ndcg"]
        columns = [batch.column("user_key"), pa.array(values[:, 0])]
        yield pa.RecordBatch.from_arrays(columns, ["user_key", "value"])


# ------------------------------------------------------------------------------------------- memory


@contextmanager
def watch_workers(peaks: dict[str, int], name: str) -> Iterator[None]:
    """Keep the largest own memory among Spark's Python workers.

    Own memory is `RssAnon` of /proc (Linux).
    """
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.1):
            peaks[name] = max(peaks.get(name, 0), find_largest_worker("RssAnon"))

    watcher = threading.Thread(target=sample, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def measure_libraries() -> int:
    """Return a process's own memory with a task's libraries.

    The memory is in bytes, and holds no data. A GPU build of torch alone takes some 270 MiB here: its
    function tables are written at load.
    """
    script = (
        "import numba, pandas, pyarrow, torch, pyspark.sql, recbench_spark.analyses.curves.batched\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('RssAnon')).split()[1])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout) * 1024


def read_heap(spark: SparkSession) -> int:
    """Return the driver JVM's used bytes after garbage collection."""
    assert spark._jvm is not None
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    return int(runtime.totalMemory() - runtime.freeMemory())


def describe_turns(name: str, turns: dict[str, list[Seconds]], peaks: dict[str, int]) -> str:
    """Describe one kind: medians, ratios and workers' memory.

    Medians are of wall and CPU seconds.
    """
    wall, cpu = (
        {way: statistics.median(getattr(one, unit) for one in seconds) for way, seconds in turns.items()}
        for unit in ("wall", "cpu")
    )
    memory = ", ".join(f"{way} {peak / MIB:.0f}" for way, peak in peaks.items())
    return (
        f"{name:14} wall: ready {wall['ready']:6.1f} s, curve {wall['curve']:6.1f} s, "
        f"ratio {wall['curve'] / wall['ready']:.2f}; cpu: {cpu['ready']:6.1f} s, {cpu['curve']:6.1f} s, "
        f"{cpu['curve'] / cpu['ready']:.2f}; largest worker, MiB: {memory}"
    )
