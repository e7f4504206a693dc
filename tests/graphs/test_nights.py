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
from recbench_spark.graphs import incremental_run
from recbench_spark.graphs.incremental import compare_lists
from tests.graphs import oracle
from tests.graphs.oracle import build_csr

DIMS = 5


def run(*flags: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(embed.main, embed.parser(), flags)
    return int(ended.value.code or 0)


def write_inputs(folder: Path, drawn: oracle.Drawn, h: np.ndarray) -> tuple[str, ...]:
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
    one = build_csr(5, [(0, 0), (0, 1), (1, 2), (2, 0), (4, 1)], [1, 2, 3, 4, 5])
    other = build_csr(5, [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1), (4, 1)], [1, 2, 3, 4, 4, 6])
    assert compare_lists(one, hashes, other, hashes).tolist() == [False, True, True, False, True]
    # The same ids under other dense ids.
    moved = build_csr(5, [(0, 1), (0, 2), (1, 0), (2, 1), (4, 2)], [1, 2, 3, 4, 5])
    assert not compare_lists(one, hashes, moved, np.array([30, 10, 20], np.uint64)).any()


@pytest.mark.full
def test_a_night_after_the_first_is_a_full_run_to_the_bit(  # noqa: PLR0915
    tmp_path, capsys, monkeypatch
) -> None:
    place = ("--warehouse", str(tmp_path / "w"))
    model = ("--form", "convolve", "--aggregator", "importance", "--widths", "6,4", "--wire", "float16")
    drawn = chain(60)
    h = np.random.default_rng(1).standard_normal((62, DIMS)).astype(np.float32)
    assert run(*write_inputs(tmp_path / "one", drawn, h[:60]), *place, *model, "--blocks", "3") == 0
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
    flags = (*write_inputs(tmp_path / "two", tonight, changed[kept]), *model)

    monkeypatch.setattr(incremental_run, "_predict_seconds", lambda *_: (2.0, 1.0))
    assert run(*flags, *place, "--previous", first, "--blocks", "4", "--batch", "7") == 0
    output = capsys.readouterr()
    assert "only these are computed" in output.out
    second = output.out.split("model ", 1)[1].split(maxsplit=1)[0]
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
    result = vectors(tmp_path / "w", second)
    assert result == vectors(tmp_path / "full", second) and str(gone) not in result
    before = vectors(tmp_path / "w", first)
    same = {i for i, v in result.items() if before.get(i) == v}
    assert len(same) > 40

    facts = DeltaTable(tmp_path / "w" / "manifests").to_pandas()
    facts = facts[facts["split_id"] == second].set_index("fact")["value"]
    assert facts["drift_common"] == pytest.approx(59 / 61)
    assert facts["drift_cosine_p50"] == 1 and facts["drift_cosine_p01"] < 1
    assert 0.5 < facts["drift_neighbours_kept"] <= 1

    # The drift is held by a gate: made before, told again.
    gated = (*flags, *place, "--previous", first, "--gate")
    assert run(*gated, "drift_cosine_p01:below=1") == 3
    assert "node: drift_cosine_p01 is " in capsys.readouterr().err
    assert run(*gated, "node:drift_neighbours_kept:below=0.5") == 0
    capsys.readouterr()

    # Everything touched: a full run is cheaper, and it says so.
    other = chain(60)
    all_new = (*write_inputs(tmp_path / "three", other, h[:60] + 1), *model, *place, "--previous", first)
    assert run(*all_new, "--explain") == 0
    assert "affected are layer 1 60, layer 2 60; a full run is cheaper" in capsys.readouterr().out
    assert run(*all_new, "--explain", "--widths", "6,3") == 2
    assert "layers[1].width is 3, and was 4" in capsys.readouterr().err
    assert run(*all_new, "--explain", "--missing", "zero") == 0, "a setting without effect is no difference"
    assert "builds the graph and its features unless they exist" in capsys.readouterr().err
    assert run(*all_new[:-1], "nothing", "--explain") == 2
    assert "no such model in" in capsys.readouterr().err


def likes(folder: Path, pairs: list[tuple[int, int]], h: dict[int, np.ndarray]) -> tuple[str, ...]:
    """A log of boards and pins, and the pins' features."""
    folder.mkdir()
    log = {"board": [100 + b for b, _ in pairs], "pin": [p for _, p in pairs]}
    pq.write_table(pa.table(log), folder / "likes.parquet")
    features = pa.table({"id": list(h), "vector": list(h.values())})
    pq.write_table(features, folder / "h.parquet")
    graph = ("--edges", str(folder / "likes.parquet"), "--columns", "src=board,dst=pin")
    nodes = ("--node-table", f"pin={folder / 'h.parquet'}")
    return (*graph, "--sides", "board,pin", *nodes, "--features", str(folder / "h.parquet"))


@pytest.mark.full
@pytest.mark.parametrize("wire", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_bipartite_night_after_the_first_is_a_full_run_to_the_bit(
    tmp_path, capsys, monkeypatch, wire
) -> None:
    """Pins on a line of boards: what changes at one end leaves the other as it was.

    Both wires, modes and tables are in test_incremental.py, without Spark.
    """
    place = ("--warehouse", str(tmp_path / "w"))
    model = ("--mode", "bipartite", "--form", "convolve", "--widths", "6,4", "--wire", wire)
    pairs = [(b, p) for b in range(40) for p in (b, b + 1)]
    draw = np.random.default_rng(3).standard_normal((60, DIMS)).astype(np.float32)
    h = {p: draw[p] for p in range(41)}
    assert run(*likes(tmp_path / "one", pairs, h), *place, *model, "--blocks", "3") == 0
    first = capsys.readouterr().out.split("model ", 1)[1].split(maxsplit=1)[0]

    # A pin with other features, a new pin on a new board, a pin more on an old one, one that nobody likes.
    tonight = {**h, 0: h[0] + 1, 50: draw[50], 51: draw[51]}
    more = [*pairs, (45, 50), (45, 5), (20, 30)]
    flags = (*likes(tmp_path / "two", more, tonight), *model)
    monkeypatch.setattr(incremental_run, "_predict_seconds", lambda *_: (2.0, 1.0))
    assert run(*flags, *place, "--previous", first, "--blocks", "4", "--batch", "7") == 0
    output = capsys.readouterr()
    assert "only these are computed" in output.out
    second = output.out.split("model ", 1)[1].split(maxsplit=1)[0]
    runs = DeltaTable(tmp_path / "w" / "graph_runs").to_pandas()
    runs = runs[runs["model_id"] == second].sort_values("started_at")
    assert runs["layer"].tolist() == [1, 1, 2, 2, 3]
    # By hand: boards that have a touched pin or another list; pins of these, the changed and the new.
    likes_of: dict[int, set[int]] = {}
    for b, p in more:
        likes_of.setdefault(b, set()).add(p)
    lists = {5, 30, 50, 51}
    touched, want = {0, 50, 51}, []
    for _ in range(2):
        boards = {b for b, pins in likes_of.items() if pins & touched} | {20, 45}
        after = {p for p in tonight if any(p in likes_of[b] for b in boards)} | touched | lists
        want += [sum(1 for pins in likes_of.values() if pins & after), len(after)]
        touched = after
    want.append(len({b for b, pins in likes_of.items() if pins & touched} | {20, 45}))
    assert runs["nodes"].tolist() == want and max(want) < 41

    monkeypatch.undo()
    assert run(*flags, "--warehouse", str(tmp_path / "full"), "--blocks", "2") == 0
    result = vectors(tmp_path / "w", second)
    assert len(result) == 43 + 41
    assert vectors(tmp_path / "full", second) == result
    facts = DeltaTable(tmp_path / "w" / "manifests").to_pandas()
    facts = facts[facts["split_id"] == second].set_index(["part", "fact"])["value"]
    assert facts["pin", "drift_common"] == pytest.approx(41 / 43)
    assert facts["board", "drift_common"] == pytest.approx(40 / 41)
    assert facts["board", "drift_cosine_p50"] == 1
