"""Time a night with many models beside its bare arithmetic.

    python jobs/bench/night.py                                     5 models x 20,000 users x 5,000 items
    python jobs/bench/night.py --models 12 --users 50000 --items 20000 --systems bare,local
    python jobs/bench/night.py --all-ranks                         no cut-off, AUC too
    python jobs/bench/night.py --storage folder,s3,s3+30ms          the same night on several storages

Models are vectors. `night` is `run_night` on an existing split and models: from stored user blocks and
vectors to committed rankings, user values, metrics, checks and runs, and the report. `local` is the same
without Spark. `alone` is `night` with one model at a time (the setting `spark.recbench.models_at_once`).
`bare` sums ranking, metrics and bootstrap on arrays over models, by as many processes as Spark has
threads, without output. Its metrics must equal the committed ones bit for bit, else the job fails. Making
the world and compiling are not counted; each one's first turn is reported separately. At the end the job
prints the peak memory of Spark's largest worker, with mapped files, and each stage's time.

With `--storage` only `night` is run, in turns on each storage: a folder, an S3 server on this machine (as
in the tests; Go builds it), and this server behind a proxy that makes each request longer. The job prints
wall and CPU seconds, with server and proxy apart, and for a storage behind a proxy each stage's requests.
The metrics on all storages must be equal bit for bit, else the job fails.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import cached_property, partial
from itertools import count, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench import harness, night_world
from jobs.bench.harness import append_rows, list_rows, take_turns
from jobs.bench.storages import (
    BenchStorage,
    Turn,
    format_requests,
    measure_turn,
    open_storages,
    print_turns,
)
from recbench_spark import cli
from recbench_spark.config import Benchmark
from recbench_spark.core import resampling
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.errors import OK, DataError
from recbench_spark.metrics import accuracy
from recbench_spark.metrics.accuracy import MetricPlan, MetricTotals
from recbench_spark.metrics.kernels.accuracy import measure
from recbench_spark.metrics.questions import Owners
from recbench_spark.night.measure_checks import make_metric_plan
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.rankings import Rankings
from recbench_spark.ranking.kernels.scorers import DotScorer, UserBlock, count_ranks
from recbench_spark.runtime.session import get_session
from recbench_spark.storage import delta_files
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.store import Store

USERS_PER_BATCH = 4096


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    harness.add_counts(flags, models=5, users=20_000, items=5_000, dims=64)
    flags.add_argument(
        "--rounds", type=int, default=2, help="turns of all systems; 0: none after the first"
    )
    flags.add_argument("--systems", default="bare,local,night,alone")
    flags.add_argument("--storage", help="folder,s3,s3+30ms: nights on these storages, and no other system")
    flags.add_argument("--requests", action="store_true", help="list requests by table, too")
    flags.add_argument("--all-ranks", action="store_true", help="count ranks beyond the largest k")
    flags.add_argument(
        "--folder", type=Path, help="where world and warehouse lie; default: a temporary one"
    )
    harness.add_output_flag(flags)
    return flags


# ------------------------------------------------------------------------------------------- bare


def run_bare(
    world: night_world.NightWorld, keys_u: npt.NDArray[np.int64], plan: MetricPlan, pool: Any, threads: int
) -> Any:
    """Run all models without a night.

    Returns each model's rows of `metrics`.
    """
    results = []
    for folder in world.folders:
        bounds = np.linspace(0, len(keys_u), threads + 1).astype(int)
        arrays = (keys_u, world.known_un, world.truth_un)
        parts = [(folder, a, b, *(rows[a:b] for rows in arrays)) for a, b in pairwise(bounds)]
        first, *others = pool.map(partial(_run_bare_part, plan), parts)
        for other in others:
            first.add(other)
        value, _, n = resampling.mean_and_error(first.moments_c5)
        ends = resampling.interval(first.boot_bc, first.weights_bc, n, plan.bootstrap.level)
        results.append(np.stack([value, *ends]))
    return results


def _run_bare_part(plan: MetricPlan, part: tuple[Any, ...]) -> MetricTotals:
    """Sum some users' metrics for one model."""
    folder, start, stop, keys_u, known_un, truth_un = part
    users_ud = np.load(folder / "users.npy", mmap_mode="r")[start:stop]
    scorer = DotScorer(np.load(folder / "items.npy", mmap_mode="r"))
    total = None
    for first in range(0, len(keys_u), USERS_PER_BATCH):
        batch = slice(first, first + USERS_PER_BATCH)
        truth, known = _lists(truth_un[batch]), _lists(known_un[batch])
        block = UserBlock(keys_u[batch], np.ascontiguousarray(users_ud[batch]))
        counts = count_ranks(scorer, block, truth, known, settings=CountingSettings(cutoff=plan.cutoff))
        ranks = (counts.above_p, counts.tied_p, counts.before_p, counts.candidates_u)
        rankings = Rankings(truth.offsets_u, np.ones(len(truth.items_p)), *ranks)
        values = measure(rankings, plan.rank_metrics, plan.ks, plan.definition, plan.uncut)
        sums = accuracy.sum_users(values, Owners(keys_u[batch]), plan.bootstrap)
        if total is None:
            total = sums
        else:
            total.add(sums)
    assert total is not None
    return total


def _lists(rows_un: npt.NDArray[np.int32]) -> ItemLists:
    offsets = np.arange(len(rows_un) + 1, dtype=np.int64) * rows_un.shape[1]
    return ItemLists(offsets, rows_un.ravel().astype(np.int64))


def _one_thread() -> None:
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)


def check_results(store: FileTables, runs: dict[str, str], plan: MetricPlan, expected: list[Any]) -> None:
    """Check that committed metrics equal the bare arithmetic's.

    Raises:
        DataError: one does not.
    """
    table = delta_files.read_rows(store.location("metrics"), [("run_id", "in", list(runs.values()))])
    rows = {(row["run_id"], row["metric"], row["k"]): row for row in table.to_pylist()}
    columns = plan.table(plan.rank_metrics)
    for n, wanted in enumerate(expected):
        for c, column in enumerate(columns):
            row = rows[runs[f"model{n}"], column.metric, column.k]
            if [row["value"], row["ci_low"], row["ci_high"]] != wanted[:, c].tolist():
                raise DataError(f"model{n}: {column.metric}@{column.k} differs", "report this")


def main(args: argparse.Namespace) -> int:
    """Compare systems in turns, or storages for one night."""
    return compare_storages(args) if args.storage else compare_systems(args)


def compare_systems(args: argparse.Namespace) -> int:
    """Make the world, warm each system up, then take turns.

    A warm-up is a night.
    """
    systems = args.systems.split(",")
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        folder, threads = Path(place), len(os.sched_getaffinity(0))
        world = night_world.generate(args, folder)
        request = night_world.make_benchmark(args, world)
        plan = make_metric_plan(request.evaluation, request.evaluation.resolve())
        nights = {name: StoredNights(name, request, folder) for name in systems if name != "bare"}
        first = {name: one.run_first(world) for name, one in nights.items()}
        # It is measured here because Spark ends workers idle for a minute, as during `bare`.
        most = harness.find_largest_worker("VmHWM")
        keys_u = hash_ids(pa.array(map(str, range(args.users)), pa.string())).view(np.int64)
        with ProcessPoolExecutor(threads, get_context("spawn"), _one_thread) as pool:
            bare = partial(run_bare, world, keys_u, plan, pool, threads)
            first["bare"], bare_rows = harness.time_call(bare)
            for one in nights.values():
                check_results(one.store, one.runs, plan, bare_rows)
            turns: dict[str, Callable[[], float]] = {name: one.run for name, one in nights.items()}
            turns["bare"] = lambda: harness.time_call(bare)[0]
            seconds = harness.take_turns({name: turns[name] for name in systems}, args.rounds)
        most = max(most, harness.find_largest_worker("VmHWM"))
        by_stage = [line for one in nights.values() for line in one.list_stages()]
    print(
        f"{args.models} models x {args.users:,} users x {args.items:,} items, {threads} threads, same bits"
    )
    print("first turns, all cold:", ", ".join(f"{name} {spent:.1f} s" for name, spent in first.items()))
    print_seconds(seconds)
    facts = {"benchmark": "night", "models": args.models, "users": args.users, "items": args.items}
    harness.append_rows(args.output, harness.list_rows(facts, seconds))
    print(f"largest worker of Spark: {most / 2**30:.2f} GiB at most")
    print(*by_stage, sep="\n")
    return OK


class StoredNights:
    """One system's nights, in its own warehouse."""

    def __init__(self, name: str, request: Benchmark, folder: Path) -> None:
        self.name, self.request, self.root = name, request, str(folder / name)
        self.at_once = "0" if name == "alone" else "64"
        self.days, self.runs = count(), dict[str, str]()

    @cached_property
    def store(self) -> FileTables:
        """The warehouse; the first one to need Spark starts it."""
        if self.name == "local":
            return ArrowStore(self.root, workers=len(os.sched_getaffinity(0)))
        return Store(get_session("recbench-spark bench night"), self.root)

    def run_first(self, world: night_world.NightWorld) -> float:
        """Store the split and time the first night."""
        night_world.store_split(self.store, self.request, world)
        seconds, self.runs = night_world.run_nights(self.store, self.request, self.days, self.at_once)
        return seconds

    def run(self) -> float:
        """Time the next night."""
        return night_world.run_nights(self.store, self.request, self.days, self.at_once)[0]

    def list_stages(self) -> list[str]:
        """Describe each finished night's stages in a line."""
        nights = range(next(self.days))
        stages = [
            night_world.read_stages(self.store, night_world.FIRST_NIGHT + timedelta(days=n)) for n in nights
        ]
        return [f"{self.name} {n} by stage: {line}" for n, line in zip(nights, stages, strict=True)]


def print_seconds(seconds: dict[str, list[float]]) -> None:
    """Print a line for each system."""
    for name, spent in seconds.items():
        if not spent:
            continue
        ratios = [f"{ratio:.2f}" for ratio in harness.divide_rounds(spent, seconds.get("bare", []))]
        shares = f"   of bare: {', '.join(ratios)}" if ratios else ""
        each = ", ".join(f"{s:.1f}" for s in spent)
        print(f"{name:>8} {statistics.median(spent):8.1f} s  ({each}){shares}")


# --------------------------------------------------------------------------------- storages


def compare_storages(args: argparse.Namespace) -> int:
    """Make the world, and run its nights on each storage.

    Each storage gets the split; nights take turns.
    """
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        folder = Path(place)
        with open_storages(args.storage.split(","), folder) as storages:
            nights = StorageNights(args, folder)
            turns = take_turns({one.name: partial(nights.run, one) for one in storages}, args.rounds + 1)
    print(f"{args.models} models x {args.users:,} users x {args.items:,} items: the same metrics on all")
    facts = {"benchmark": "night_storage", "models": args.models, "users": args.users, "items": args.items}
    for name, taken in turns.items():
        append_rows(args.output, list_rows(facts, {name: [turn.job.wall for turn in taken]}))
        print_turns(name, "night", taken, turns[storages[0].name])
    for name in turns:
        for number, lines in enumerate(nights.requests[name]):
            print(f"requests of night {number} on {name}:", *lines, sep="\n")
    return OK


class StorageNights:
    """Runs one world's nights on several storages.

    A storage gets the split before its first night.
    """

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.kinds = args.requests
        self.world = night_world.generate(args, folder)
        self.request = night_world.make_benchmark(args, self.world)
        self.spark = get_session("recbench-spark bench night")
        self.days: dict[str, Iterator[int]] = {}
        self.stores: dict[str, Store] = {}
        self.requests: dict[str, list[list[str]]] = {}
        self.metrics: dict[int, list[Any]] = {}

    def run(self, storage: BenchStorage) -> Turn:
        """Run the next night on a storage.

        Raises:
            DataError: its metrics are not those of others.
        """
        if storage.name not in self.stores:
            storage.use(self.spark)
            store = self.stores[storage.name] = Store(self.spark, storage.root)
            night_world.store_split(store, self.request, self.world)
            self.days[storage.name], self.requests[storage.name] = count(), []
        store, day = self.stores[storage.name], next(self.days[storage.name])
        runs: dict[str, str] = {}
        turn = measure_turn(
            storage,
            self.spark,
            lambda: runs.update(night_world.run_nights(store, self.request, iter([day]), "64")[1]),
        )
        if self.metrics.setdefault(day, wanted := night_world.read_metrics(store, runs)) != wanted:
            raise DataError(f"metrics on {storage.name} differ from those of other storages", "report this")
        stages = night_world.list_stages(store, night_world.FIRST_NIGHT + timedelta(days=day))
        lines = list(format_requests(stages, turn.requests, self.kinds))
        print(f"night {day} on {storage.name}: {turn.job.wall:.1f} s", file=sys.stderr, flush=True)
        self.requests[storage.name].append(lines)
        return turn


if __name__ == "__main__":
    cli.run(main, parser())
