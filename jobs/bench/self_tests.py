"""Self-test benchmark files with the rules of `recbench init`: faults seen, and false alarms.

    python -m jobs.bench.self_tests --data ../shared/data --honest 100
    python -m jobs.bench.self_tests --files planted_shop --honest 10

A file gives its log, its split and its quick models; metrics, gates, comparisons and regressions are those
that `init` writes. An honest night has other users than the last one (2,000, at most four fifths) and is
compared with a night before of the same users, whose models have other seeds and whose log lacks the last
day. It alarms if anything rings that did not ring then. CPU seconds are those of a second night of the
sample, with its report, and of the self-test.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench import planted_shop
from recbench_spark import cli
from recbench_spark.commands.benchmark_files import REGRESSIONS, RULES, TIME_RULES, write_intervals
from recbench_spark.config import Benchmark, make_benchmark
from recbench_spark.config.loading import find_benchmark, read_yaml
from recbench_spark.core.documents import load_yaml
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.core.text_tables import align_cells
from recbench_spark.night.night import open_night
from recbench_spark.night.run_night import run_night
from recbench_spark.night.split import prepare_split
from recbench_spark.runtime.journal import Journal
from recbench_spark.self_tests.samples import LOG, Sample, draw_sample, point_at, write_tables
from recbench_spark.self_tests.self_test import USERS, probe_sample
from recbench_spark.storage.arrow_store import ArrowStore

DAY = date.fromisoformat(planted_shop.LAST_DAY)
QUICK = ("random", "popular", "item_knn", "als", "embeddings", "scores", "lists")
"""Kinds of models that take part."""

SHOP = "planted_shop"
FILES = {
    SHOP: ("", True),
    "movielens_100k_temporal": ("ml-100k", True),
    "movielens_latest_small_sequences": ("ml-latest-small", True),
    "movielens_1m": ("ml-1m", False),
    "gowalla_lightgcn": ("gowalla", False),
}
"""Benchmark files, each with the folder of its data, and whether its log has times."""


def make_file(name: str, data: str, folder: Path) -> Benchmark:
    """Return a benchmark file with the rules of `init`; a shop is written into the folder."""
    place, timed = FILES[name]
    if name == SHOP:
        planted_shop.write_shop(folder, 3000)
        document = planted_shop.describe_shop(folder)
    else:
        document = read_yaml(find_benchmark(name), "a benchmark file")
        document["dataset"]["path"] = str(Path(data, place))
    kept = ("name", "dataset", "split", "models", "evaluation")
    return add_rules({key: document[key] for key in kept if key in document}, timed)


def add_rules(document: dict[str, Any], timed: bool) -> Benchmark:
    """Make a benchmark with quick models, and with metrics and rules of `init`."""
    rules = RULES + (TIME_RULES if timed else "") + REGRESSIONS.format(part="")
    given = document.get("evaluation", {})
    kept = {key: given[key] for key in ("definition", "parts", "slices") if key in given}
    kept |= {"metrics": ["hit", "mrr", "ndcg", "recall"], "k": [5, 10, 20]}
    models = [model for model in document["models"] if model["kind"] in QUICK]
    evaluation = {**kept, **load_yaml(write_intervals(len(models)), "rules")}
    changes = {
        "models": models,
        "evaluation": evaluation,
        "headline": "ndcg@10",
        **load_yaml(rules, "rules"),
    }
    return make_benchmark({**document, **changes}, (), document["name"])


def open_split(benchmark: Benchmark, place: str) -> ArrowStore:
    """Split a file's log in a new warehouse."""
    store = ArrowStore(place)
    with pin_inputs():
        night = open_night(store, benchmark, DAY)
        prepare_split(store, night.benchmark, night.split_id, Journal(io.StringIO()), DAY)
    return store


def change_seeds(benchmark: Benchmark, seed: int) -> Benchmark:
    """Return a file whose models have another seed, where they have one."""
    seeds = [{"seed": seed} if hasattr(model, "seed") else {} for model in benchmark.models]
    models = (model.model_copy(update=one) for model, one in zip(benchmark.models, seeds, strict=True))
    return benchmark.model_copy(update={"models": tuple(models)})


def list_false_alarms(store: ArrowStore, benchmark: Benchmark, nights: int) -> Iterator[list[str]]:
    """Yield what rings in each of some honest nights."""
    users = draw_sample(store, benchmark, DAY, USERS * 10**6).users
    for seed in range(nights):
        sample = draw_sample(store, benchmark, DAY, min(USERS, users * 4 // 5), seed=seed)
        sample = replace(sample, before=change_seeds(sample.before, 1000 + seed))
        with tempfile.TemporaryDirectory() as folder:
            yield [alarm.sentence for alarm in probe_sample(sample, Path(folder), faults=()).honest]


def time_night(sample: Sample) -> float:
    """Return the CPU seconds of a second night of the sample, with its report."""
    with tempfile.TemporaryDirectory() as folder:
        store, journal = ArrowStore(f"{folder}/warehouse"), Journal(io.StringIO())
        another = {**sample.tables, LOG: sample.log.iloc[:-1]}  # a split of its own, so models are fitted
        places = write_tables(another, Path(folder))
        kept = {name: getattr(sample.benchmark, name) for name in ("evaluation", "comparisons")}
        begin, night = (
            point_at(sample, places, before=before).model_copy(update=kept) for before in (True, False)
        )
        run_night(store, begin, sample.day - timedelta(days=1), journal)
        started = time.process_time()
        run_night(store, night, sample.day, journal)
        return time.process_time() - started


def probe_file(name: str, data: str, honest: int) -> tuple[str, ...]:
    """Self-test one file; return its row, and print what was not seen and what rang."""
    with tempfile.TemporaryDirectory() as folder:
        benchmark = make_file(name, data, Path(folder))
        store = open_split(benchmark, f"{folder}/warehouse")
        sample = draw_sample(store, benchmark, DAY, USERS)
        night, started = time_night(sample), time.process_time()
        tested = probe_sample(sample, Path(folder) / "scratch")
        seconds = time.process_time() - started
        for miss in tested.misses:
            print(f"{name}: unseen: {miss.fault.name}: {miss.changed}; {miss.rule}", flush=True)
        alarms = list(list_false_alarms(store, benchmark, honest))
    for rang in filter(None, alarms):
        print(f"{name}: false alarm: {rang[0]}", flush=True)
    planted = sum(one.applies for one in tested.findings)
    counts = (sample.users, planted, planted - len(tested.misses), honest, sum(map(bool, alarms)))
    return (name, *map(str, counts), f"{night:.1f}", f"{seconds:.1f}")


def main() -> None:
    """Print a row for each file."""
    flags = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    flags.add_argument("--data", default="../shared/data", help="folder with the data of FILES")
    flags.add_argument("--files", default=",".join(FILES), help="names of benchmark files")
    flags.add_argument("--honest", type=cli.parse_count, default=100, help="honest nights of each file")
    args = flags.parse_args()
    head = ("file", "users", "faults", "seen", "honest", "alarmed", "night s", "self-test s")
    rows: list[tuple[str, ...]] = [head]
    for name in args.files.split(","):
        rows.append(probe_file(name, args.data, args.honest))
        print("\n".join(align_cells([head, rows[-1]])), flush=True)
    print("\n".join(align_cells(rows)))


if __name__ == "__main__":
    main()
