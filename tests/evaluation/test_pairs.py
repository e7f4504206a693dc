"""Items near an item: hit rates and scaled MRR of labelled pairs, by hand and by a slow loop."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recbench_spark import cli
from recbench_spark.commands import evaluate as job
from recbench_spark.errors import DataError
from recbench_spark.evaluation.pairs import evaluate_pairs


def drawn() -> tuple[np.ndarray, list[tuple[int, int]]]:
    """250 items, ties among them, and 40 pairs of 13 queries; item 0 has no vector."""
    rng = np.random.default_rng(5)
    vectors = rng.integers(-2, 3, (250, 4)).astype(np.float32)
    pairs = {
        (int(q), int(i)) for q, i in zip(rng.integers(0, 13, 60), rng.integers(0, 250, 60), strict=True)
    }
    return vectors, sorted(pair for pair in pairs if pair[0] != pair[1])


def compute_expected(vectors: np.ndarray, pairs: list[tuple[int, int]], k: int) -> tuple[float, float]:
    """Every item but the query sorted by score, then by id; item 0 is in no list."""
    hits, scaled = [], []
    for q, i in pairs:
        others = sorted((-float(vectors[q] @ vectors[v]), v) for v in range(1, 250) if v != q)
        order = [v for _, v in others]
        rank = order.index(i) + 1 if q and i else math.inf
        hits.append(rank <= k)
        scaled.append(0 if rank == math.inf else 1 / math.ceil(rank / 100))
    return float(np.mean(hits)), float(np.mean(scaled))


def test_pairs_by_a_slow_loop_through_the_job(spark, tmp_path: Path, capsys) -> None:
    vectors, pairs = drawn()
    items = {"item_id": list(range(1, 250)), "vector": [row.tolist() for row in vectors[1:]]}
    pq.write_table(pa.table(items), tmp_path / "items.parquet")
    pq.write_table(
        pa.table({"query_id": [q for q, _ in pairs], "item_id": [i for _, i in pairs]}),
        tmp_path / "pairs.parquet",
    )
    flags = ["--warehouse", str(tmp_path / "w"), "--model", "m", "--k", "5,50"]
    flags += ["--embeddings", str(tmp_path / "items.parquet"), "--pairs", str(tmp_path / "pairs.parquet")]
    with pytest.raises(SystemExit) as ended:
        cli.run(job.main, job.parser(), flags)
    output = capsys.readouterr()
    assert ended.value.code in (0, None), output.err
    rows = DeltaTable(tmp_path / "w" / "metrics").to_pandas()
    values = {(row.metric, None if np.isnan(row.k) else int(row.k)): row for row in rows.itertuples()}
    for k in (5, 50):
        hit, scaled = compute_expected(vectors, pairs, k)
        assert 0 < hit < 1 and values["hit_rate", k].value == pytest.approx(hit)
    assert values["scaled_mrr", None].value == pytest.approx(scaled)
    assert {row.n for row in values.values()} == {len(pairs)}
    assert any(q == 0 for q, _ in pairs) and "queries without a vector" in output.out


def test_a_query_is_no_answer_to_itself(spark) -> None:
    items = spark.createDataFrame([("a", [1.0]), ("b", [2.0])], "item_id string, vector array<float>")
    pairs = spark.createDataFrame([("a", "b"), ("b", "b")], "query_id string, item_id string")
    with pytest.raises(DataError, match="1 queries are paired with themselves"):
        evaluate_pairs(items, pairs)
