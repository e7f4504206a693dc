"""Two nights of a graph: what is touched is computed, the rest taken over, to the bits of a full run."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recbench_spark import cli
from recbench_spark.commands import embed
from recbench_spark.graph.incremental import lists_differ
from recbench_spark.steps import refreshing
from tests.graph import oracle
from tests.graph.oracle import of_edges

DIMS = 5


def run(*flags: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(embed.main, embed.parser(), flags)
    return int(ended.value.code or 0)


def written(folder: Path, drawn: oracle.Drawn, h: np.ndarray) -> tuple[str, ...]:
    edges, nodes = drawn.write(folder)
    pq.write_table(pa.table({"id": drawn.ids, "vector": list(h)}), folder / "h.parquet")
    return ("--edges", edges, "--weighted", "--node-table", nodes, "--features", str(folder / "h.parquet"))


def vectors(place: Path, model_id: str) -> dict[str, bytes]:
    rows = DeltaTable(place / "embeddings").to_pandas(filters=[("model_id", "=", model_id)])
    return {i: np.array(v, np.float32).tobytes() for i, v in zip(rows["id"], rows["vector"], strict=True)}


def chain(n: int, seed: int = 2) -> oracle.Drawn:
    """Nodes that know their neighbours on a line, so that little touches little."""
    ids = random.Random(seed).sample(range(10**9), n)
    return oracle.Drawn(ids, [(v, v + 1, 1.0 + v % 3) for v in range(n - 1)])


def test_lists_differ_by_id_weight_or_number() -> None:
    hashes = np.array([10, 20, 30], np.uint64)
    one = of_edges(5, [(0, 0), (0, 1), (1, 2), (2, 0), (4, 1)], [1, 2, 3, 4, 5])
    other = of_edges(5, [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1), (4, 1)], [1, 2, 3, 4, 4, 6])
    assert lists_differ(one, hashes, other, hashes).tolist() == [False, True, True, False, True]
    # The same ids under other dense ids.
    moved = of_edges(5, [(0, 1), (0, 2), (1, 0), (2, 1), (4, 2)], [1, 2, 3, 4, 5])
    assert not lists_differ(one, hashes, moved, np.array([30, 10, 20], np.uint64)).any()


@pytest.mark.spark
def test_a_night_after_the_first_is_a_full_run_to_the_bit(spark, tmp_path, capsys, monkeypatch) -> None:
    place = ("--warehouse", str(tmp_path / "w"))
    model = ("--form", "convolve", "--aggregator", "importance", "--widths", "6,4", "--wire", "float16")
    drawn = chain(60)
    h = np.random.default_rng(1).standard_normal((62, DIMS)).astype(np.float32)
    assert run(*written(tmp_path / "one", drawn, h[:60]), *place, *model, "--blocks", "3") == 0
    first = capsys.readouterr().out.split("model ", 1)[1].split(maxsplit=1)[0]

    # One edge more, one weight changed, one feature changed, a node gone, two nodes new.
    now = oracle.Drawn([*drawn.ids, 5, 6], [*drawn.edges[:-1], (60, 10, 1.0), (3, 40, 2.0)])
    now.edges[20] = (20, 21, 9.0)
    gone = drawn.ids[59]
    changed = h.copy()
    changed[30] += 1
    kept = [i for i in range(62) if i != 59]
    renumbered = {v: n for n, v in enumerate(kept)}
    tonight = oracle.Drawn(
        [now.ids[v] for v in kept],
        [(renumbered[s], renumbered[d], w) for s, d, w in now.edges if 59 not in (s, d)],
    )
    flags = (*written(tmp_path / "two", tonight, changed[kept]), *model)

    monkeypatch.setattr(refreshing, "_seconds", lambda *_: (2.0, 1.0))
    assert run(*flags, *place, "--previous", first, "--blocks", "4", "--batch", "7") == 0
    told = capsys.readouterr()
    assert "these alone are computed" in told.out
    second = told.out.split("model ", 1)[1].split(maxsplit=1)[0]
    runs = DeltaTable(tmp_path / "w" / "graph_runs").to_pandas()
    computed = runs[runs["model_id"] == second].sort_values("layer")["nodes"].tolist()
    # Lists: 10, 40, 21; new: two; features: 30 and its follower; a layer later the followers of all.
    touched = {10, 40, 21, 60, 61, 30, 31}
    assert computed == [len(touched), len(touched | {v + 1 for v in touched if v < 59})]
    projected = runs[runs["model_id"] == second].sort_values("layer")["vectors_projected"].tolist()
    assert max(projected) < 61 and min(projected) > 0

    monkeypatch.undo()
    assert run(*flags, "--warehouse", str(tmp_path / "full"), "--blocks", "2") == 0
    assert second in capsys.readouterr().out
    found = vectors(tmp_path / "w", second)
    assert found == vectors(tmp_path / "full", second) and str(gone) not in found
    before = vectors(tmp_path / "w", first)
    same = {i for i, v in found.items() if before.get(i) == v}
    assert len(same) > 40

    facts = DeltaTable(tmp_path / "w" / "manifests").to_pandas()
    facts = facts[facts["split_id"] == second].set_index("fact")["value"]
    assert facts["drift_common"] == pytest.approx(59 / 61)
    assert facts["drift_cosine_p50"] == 1 and facts["drift_cosine_p01"] < 1
    assert 0.5 < facts["drift_neighbours_kept"] <= 1

    # Everything touched: a full run is cheaper, and it says so.
    other = chain(60)
    all_new = (*written(tmp_path / "three", other, h[:60] + 1), *model, *place, "--previous", first)
    assert run(*all_new, "--explain") == 0
    assert "touched are layer 1 60, layer 2 60; a full run is cheaper" in capsys.readouterr().out
    assert run(*all_new, "--explain", "--widths", "6,3") == 2
    assert "has other layers" in capsys.readouterr().err
    assert run(*all_new[:-1], "nothing", "--explain") == 2
    assert "no embedded model nothing" in capsys.readouterr().err
