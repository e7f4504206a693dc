"""Nights with all families of metrics: the values of slow oracles, in any number of tasks."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.config import Benchmark, parse
from recbench_spark.errors import ConfigError, ProtocolError
from recbench_spark.schemas import CHECKS, ITEMS, METRICS, RANKINGS, RUNS, SLICE_COMPARISONS, SPLITS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.metrics.families import KS, ORACLES, World
from tests.metrics.test_families import check_values, read_values
from tests.night import test_successive as successive
from tests.night.test_moments import read_numbers
from tests.nights import DATE, TINY, Ran, read_rows, run, run_in_pieces

SEEDS = (0, 1, 2)
FAMILIES = [
    "recall",
    *({"family": name} for name in ("popularity", "groups", "calibration", "serendipity")),
]
DIVERSE = ["category_diversity", "subtopic_recall"]


def ask(folder: Path, seed: int, store: Any = None) -> Ran:
    """A night of a drawn log; every second one asks for each row alone."""
    folder.mkdir(parents=True)
    pq.write_table(successive.draw_log(seed), folder / "log.parquet")
    labels = {
        "item_id": [f"i{n}" for n in range(20)],
        "genre": [["a", "b", "c"][: n % 4] for n in range(20)],
    }
    pq.write_table(pa.table(labels), folder / "genres.parquet")
    scored = {
        "user_id": [f"u{n % 15}" for n in range(200)],
        "item_id": [f"i{n * 7 % 20}" for n in range(200)],
    }
    pq.write_table(
        pa.table({**scored, "score": [n * 31 % 97 / 7 for n in range(200)]}), folder / "lists.parquet"
    )
    split = {"holdout": "period", "start": "1970-01-01T00:01:00Z", "length": "30s", "valid": False}
    split |= {"targets": "successive"} if seed % 2 else {}
    models = [*successive.MODELS, {"name": "given", "kind": "lists", "path": str(folder / "lists.parquet")}]
    base = successive.make_benchmark(folder / "log.parquet", seed, split, models[: 2 if seed % 2 else 3])
    evaluation = base.evaluation.model_dump(exclude_unset=True) | {
        "metrics": [*FAMILIES, *DIVERSE],
        "k": KS,
    }
    evaluation |= {"item_groups": {"path": str(folder / "genres.parquet"), "column": "genre"}}
    file = base.model_dump(exclude_unset=True) | {"evaluation": evaluation}
    return run(store or ArrowStore(str(folder / "warehouse")), parse(Benchmark, file, "families"))


@pytest.mark.parametrize("seed", SEEDS)
def test_nights_have_the_numbers_of_slow_oracles(seed: int, tmp_path: Path) -> None:
    try:
        made = run_in_pieces(tmp_path, lambda folder: ask(folder, seed), read_numbers)
    except ProtocolError as error:
        pytest.skip(error.message)
    assert {row.status for row in read_rows(made.store, RUNS)} == {"succeeded"}
    assert {"items without a group"} <= {row.check for row in read_rows(made.store, CHECKS)}
    if seed % 2:
        return
    for run_id in {row.run_id for row in read_rows(made.store, RUNS)}:
        rows = [vars(row) for row in read_rows(made.store, METRICS, run_id=run_id)]
        rows = [row for row in rows if row["metric"] in ORACLES and row["slice_key"] in (None, "genre")]
        values = read_values(rows)
        assert len(values) == len(ORACLES) * len(KS)
        check_values(read_world(made, run_id), values)


def read_world(made: Ran, run_id: str) -> World:
    """The world that the oracles measure: a rating below the threshold makes no history."""
    threshold = made.benchmark.definition.threshold or 0.5
    items = sorted(row.item_id for row in read_rows(made.store, ITEMS))
    train: dict[str, dict[str, float]] = {}
    for row in read_rows(made.store, SPLITS, part="train"):
        train.setdefault(row.user_id, {})[row.item_id] = row.rating
    world = World(items, [[*own] for own in train.values()])
    for n in range(20):
        own = ["a", "b", "c"][: n % 4]
        name = f"i{n}" if f"i{n}" in items else f"outside {n}"  # lists may hold it, without a group
        world.labels[name] = dict.fromkeys(own, Fraction(1, len(own) or 1))
    for row in read_rows(made.store, RANKINGS, run_id=run_id, part="test"):
        own = train.get(row.user_id, {})
        truth = {i: g if g >= threshold else 0.0 for i, g in zip(row.item_ids, row.relevance, strict=True)}
        world.users[row.user_id] = {
            "list": row.top_items or [], "truth": truth, "closed": [*own], "offered": None,
            "history": [item for item, rating in own.items() if rating >= threshold],
        }  # fmt: skip
    return world


def test_a_rule_watches_the_exposure_of_groups_of_items(tmp_path: Path) -> None:
    """The most popular list becomes a random one: the groups of its items lose."""
    labels = {"item_id": [f"i{n:05d}" for n in range(30)], "genre": [f"g{n % 5}" for n in range(30)]}
    pq.write_table(pa.table(labels), tmp_path / "genres.parquet")
    world = TINY["dataset"]["world"] | {"users": 400, "interactions": 4000}
    rule = {"metric": "exposure_share", "k": 5, "drop": 0.05, "slice": "genre"}

    def make(kind: str, slices: tuple[dict[str, str], ...] = ()) -> Benchmark:
        evaluation = TINY["evaluation"] | {"metrics": ["ndcg", "exposure_share"], "slices": slices}
        evaluation |= {"item_groups": {"path": str(tmp_path / "genres.parquet"), "column": "genre"}}
        file = {**TINY, "dataset": {**TINY["dataset"], "world": world}, "regressions": [rule]}
        models = [{"name": "shown", "kind": kind}]
        return parse(Benchmark, {**file, "evaluation": evaluation, "models": models}, "groups")

    store = ArrowStore(str(tmp_path / "warehouse"))
    assert not run(store, make("popular")).outcome.regressions
    second = run(store, make("random"), DATE + timedelta(days=1)).outcome
    assert second.regressions and "genre" in str(second.regressions[0])
    share: dict[Any, dict[str, float]] = {}
    for row in read_rows(store, METRICS, metric="exposure_share", k=5):
        share.setdefault(row.run_id, {})[row.slice_value] = row.value
    before, after = (
        share[row.run_id] for row in sorted(read_rows(store, RUNS), key=lambda r: r.logical_date)
    )
    rows = read_rows(store, SLICE_COMPARISONS)
    assert {row.slice_value for row in rows if row.regressed} <= {
        g for g in before if before[g] - after[g] > 0.05
    }
    with pytest.raises(ConfigError, match="'genre' is the key of a slice of users"):
        make("popular", ({"key": "genre", "of": "users", "path": "users.parquet"},))
