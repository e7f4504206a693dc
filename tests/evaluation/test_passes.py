"""One pass over all models by each runner: the same rankings, values of users and measures."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.config import CandidateDraw
from recbench_spark.evaluation import shuffle
from recbench_spark.evaluation.run_measures import make_measures, map_user_values
from recbench_spark.evaluation.task import BatchedWork
from recbench_spark.metrics.beyond_accuracy import Facts
from recbench_spark.metrics.listed import ListedCatalogue
from recbench_spark.night.measure_checks import make_metric_plan
from recbench_spark.night.split import identify_split, prepare_split
from recbench_spark.ranking.candidates import CandidateRule, Candidates
from recbench_spark.ranking.inputs import GivenRows, ScoredModel
from recbench_spark.ranking.known_items import KnownItems, share_items
from recbench_spark.ranking.negatives import draw_candidates
from recbench_spark.ranking.part_users import PART_USERS, map_user_blocks, select_part_users
from recbench_spark.ranking.sources import DotSource, HashSource
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import ITEMS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.packed_blocks import read_partition_files
from recbench_spark.storage.shared_arrays import SharedRows
from tests.night.test_local_splits import make, write_log

DIMS = 3
PARTS = ("test", "valid")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    """A split in a folder, with files of vectors and lists; some users have neither."""
    folder = tmp_path_factory.mktemp("passes")
    store = ArrowStore(str(folder / "w"))
    benchmark = make(write_log(folder / "log", 3), {"protocol": "RO_RS", "ratio": [0.6, 0.2, 0.2]})
    split_id, _ = identify_split(store, benchmark)
    prepare_split(store, benchmark, split_id, Journal(io.StringIO()))
    items = store.read_rows(ITEMS, [("split_id", "=", split_id)])
    draw = np.random.default_rng(3)
    vectors = draw.integers(-2, 3, (len(items), DIMS)).astype(np.float32).tolist()
    users = [str(n) for n in range(3, 40)]
    tables = {
        "items": pa.table(
            {
                "item_id": items.column("item_id"), "item_index": items.column("item_index"),
                "vector": pa.array([*vectors[:-1], None], pa.list_(pa.float32())),
                "bias": [0.5] * len(items),
            }
        ),
        "users": pa.table(
            {"user_id": users, "vector": draw.integers(-2, 3, (37, DIMS)).astype(np.float32).tolist()}
        ),
        "lists": pa.table(
            {
                "user_id": np.repeat(users[:30], 9),
                "item_id": [str(i) for i in draw.choice([*items.column("item_id").to_pylist(), "z"], 270)],
                "score": draw.integers(0, 5, 270).astype(float),
            }
        ),
    }  # fmt: skip
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return folder, split_id, {"benchmark": benchmark, "n": len(items)}


def run_pass(store: Any, split: Any, drawn: bool, open_rows: Callable[[PieceRows], Any]) -> dict[str, Any]:
    """Rank by a hash, by vectors and by lists, and measure all; results as texts."""
    folder, split_id, facts = split
    evaluation = facts["benchmark"].evaluation
    evaluation = evaluation.model_copy(update={"metrics": ("ndcg", "auc", "coverage"), "multiverse": drawn})
    known = KnownItems(share_items(store, split_id), facts["n"])
    definition = evaluation.resolve()
    plan = make_metric_plan(evaluation, definition)

    def read(name: str) -> Any:
        return open_rows(
            PieceRows(store.engine, [(str(folder / f"{name}.parquet"), {})], read_partition_files)
        )

    shared = SharedRows(f"{split_id}-vectors", (str(folder / "items.parquet"),))
    ranked = [
        ScoredModel(HashSource(SharedRows(f"{split_id}-hash", shared.files), facts["n"], 7)),
        ScoredModel(DotSource(shared, facts["n"], DIMS), read("users")),
        GivenRows(read("lists"), ("score",), known, mask=True),
    ]
    select = partial(select_part_users, parts=PARTS, threshold=definition.threshold, keep_empty=False)
    users = map_user_blocks(store, split_id, select, PART_USERS.names)
    candidates = None
    if drawn:
        rows = draw_candidates(users, known.rows, facts["n"], "uniform", CandidateDraw(n=4))
        candidates = Candidates(rows, CandidateRule(drawn="uniform", n_items=facts["n"]))
        ranked = ranked[:2]
        definition = definition.model_copy(update={"candidates": "uniform"})
        plan = make_metric_plan(evaluation, definition)
    catalogue = ListedCatalogue(known, facts["n"], Facts(40, None))
    request = plan.request(lists=False)
    members = tuple(shuffle.to_member(f"run{n}", one, request) for n, one in enumerate(ranked))
    place = folder / f"{type(store).__name__}-{store.engine.cores}-{drawn}-{open_rows.__name__}"
    work = BatchedWork(
        members, request, make_measures(plan, catalogue, evaluation),
        partial(map_user_values, plan, catalogue), (str(place / "rankings"), str(place / "values")),
        candidates=candidates and candidates.rule,
    )  # fmt: skip
    results = shuffle.evaluate(store.engine, shuffle.PassInputs(users, ranked, 200, candidates), work)
    assert [result.error for result in results] == [None] * len(ranked)
    texts: dict[str, Any] = {}
    for number, result in enumerate(results):
        for name, rows in result.measured.items():
            texts[f"{number} {name}"] = sorted(map(repr, rows.to_pylist()))
        for name, files in (("rankings", result.rankings), ("values", result.values)):
            tables = [pq.ParquetFile(place / name / file.path).read() for file in files]
            texts[f"{number} {name}"] = sorted(repr(row) for table in tables for row in table.to_pylist())
    return texts


def as_pieces(rows: PieceRows) -> PieceRows:
    return rows


@pytest.mark.parametrize("drawn", [False, True])
def test_processes_of_this_machine_change_no_bit(split: Any, drawn: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(shuffle, "PAIRS_PER_TASK", 30)
    one, two = (
        run_pass(ArrowStore(str(split[0] / "w"), workers=workers), split, drawn, as_pieces)
        for workers in (1, 2)
    )
    assert one == two
    assert len(one["0 rankings"]) > 60 and len(one["1 values"]) > 100
    assert not drawn or len(one["0 multiverse"]) > 10


@pytest.mark.parametrize("drawn", [False, True])
def test_spark_has_the_bits_of_this_process(spark: Any, split: Any, drawn: bool, monkeypatch: Any) -> None:
    """Files that tasks open, and frames beside them, as for catalogs."""
    from recbench_spark.storage.frame_blocks import FrameRows
    from recbench_spark.storage.store import Store

    def as_frames(rows: PieceRows) -> FrameRows:
        return FrameRows(spark.read.parquet(rows.pieces[0][0]).repartition(3))

    monkeypatch.setattr(shuffle, "PAIRS_PER_TASK", 30)
    root = str(split[0] / "w")
    here = run_pass(ArrowStore(root), split, drawn, as_pieces)
    for open_rows in (as_pieces, as_frames):
        assert run_pass(Store(spark, root), split, drawn, open_rows) == here
