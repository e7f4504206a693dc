"""Run one world's nights on several storages, for `night.py --storage`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from jobs.bench import night_world
from jobs.bench.harness import append_rows, list_rows, take_turns
from jobs.bench.storages import (
    BenchStorage,
    Turn,
    format_requests,
    measure_turn,
    open_storages,
    print_turns,
)
from recbench_spark.errors import OK, DataError
from recbench_spark.runtime.session import get_session
from recbench_spark.storage.store import Store


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
