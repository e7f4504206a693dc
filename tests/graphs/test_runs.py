"""Runs of a model: two at once commit each block once; tasks open what they need.

Spark is a stand-in here (`tests.graphs.local`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from recbench_spark.errors import StoreError
from recbench_spark.graphs import features, folders, pipeline
from recbench_spark.graphs.build import build_graph
from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.graphs.kernels.layers import make_layers, model_weight_shapes, random_weights
from recbench_spark.graphs.message_passing import PassWork, send_messages
from recbench_spark.graphs.runner import Model, make_halos, plan_passes, run_model
from recbench_spark.graphs.settings import GraphSource
from recbench_spark.storage import delta_files
from recbench_spark.storage.block_arrays import map_part, write_part
from recbench_spark.storage.delta_tables import read_dataset
from tests.graphs.local import Context, make_tables

SC: Any = Context()
FORMS = (LayerForm("sage", "mean", 3, 3), LayerForm("sage", "mean", 3, 2))
BLOCKS = 7


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """A ring of 60 nodes in seven blocks."""
    lines = [f"{n},{(n + 1) % 60}" for n in range(60)]
    (tmp_path / "edges.csv").write_text("\n".join(["src,dst", *lines]) + "\n")
    source = GraphSource(edges=str(tmp_path / "edges.csv"))
    return build_graph(SC, source, "ring", tmp_path / "graph", BLOCKS)


@pytest.fixture
def model(graph: Graph, tmp_path: Path) -> Model:
    root, place = make_tables(str(tmp_path)), str(tmp_path / "h")
    features.fill_generated(SC, graph, "hashed", 4, 1, place=place, dtype="float16")
    layers, ends = make_layers(FORMS, (), random_weights(model_weight_shapes(FORMS, (), 4), 1), 4, 1)
    tables = (f"{root}/graph_vectors", f"{root}/embeddings")
    return Model("m", layers, ends, "projected", "float16", place, f"{root}/one", *tables, 7, 3)


def read_rows(model: Model) -> tuple[list[tuple[str, bytes]], list[int]]:
    """Vectors of all ids in order, and the blocks of the first layer."""
    table = read_dataset(str(model.embeddings)).to_table()
    pairs = zip(table.column("id").to_pylist(), table.column("vector").to_pylist(), strict=True)
    layer = read_dataset(model.vectors).to_table(columns=["block", "first"]).to_pylist()
    return sorted((i, np.array(v, np.float32).tobytes()) for i, v in pairs), [row["first"] for row in layer]


@pytest.fixture
def other_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Calls that are made, one each, between the moment a commit opens its table and its write."""
    calls: list[Any] = []
    append = delta_files.append

    def append_after(*given: Any) -> None:
        if calls:
            calls.pop()()
        append(*given)

    monkeypatch.setattr(delta_files, "append", append_after)
    yield calls
    assert not calls


@pytest.mark.parametrize("group", [1, 3, BLOCKS])
def test_two_runs_with_other_groups_commit_each_block_once(group, graph, model, other_run) -> None:
    other = replace(model, folder=f"{model.folder}-other", group=group)
    other_run.append(lambda: run_model(SC, graph, other, lambda _: "R"))
    run_model(SC, graph, model, lambda _: "R")
    rows, firsts = read_rows(model)
    assert [i for i, _ in rows] == sorted(map(str, range(60)))
    assert len(firsts) == len(set(firsts))
    alone = replace(model, model_id="alone", folder=f"{model.folder}-alone")
    run_model(SC, graph, alone, lambda _: "R")
    assert len(read_rows(model)[0]) == 120 and len(set(read_rows(model)[0])) == 60, "the same bits"


def test_a_run_that_began_later_sees_the_blocks_of_the_first(graph, model, other_run) -> None:
    """The other run commits between this run's look at the table and its first commit."""
    done = []

    def run_other() -> None:
        done.extend(
            run_model(SC, graph, replace(model, folder=f"{model.folder}-2", group=2), lambda _: "G")
        )

    def choose(_: Any) -> Any:
        if not done:
            run_other()
        return "R"

    run_model(SC, graph, model, choose)
    rows, firsts = read_rows(model)
    assert len(done) == 2 and len(rows) == len(set(rows)) == 60 and len(firsts) == len(set(firsts))


def test_rows_that_somebody_deleted_are_not_taken_for_committed(graph, model) -> None:
    run_model(SC, graph, model, lambda _: "R")
    delta_files.delete_rows(str(model.embeddings), "model_id", [model.model_id])
    again = replace(model, folder=f"{model.folder}-again")
    with pytest.raises(StoreError, match="were committed before and have been deleted since"):
        run_model(SC, graph, again, lambda _: "R")


def test_a_sender_opens_no_places_of_other_blocks(graph, model, monkeypatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(
        folders, "map_part", lambda place, *given: (opened.append(place), map_part(place, *given))[1]
    )
    make_halos(SC, graph)
    opened.clear()
    step = plan_passes(model, graph)[0]
    sent = list(send_messages(iter(graph.blocks[:1]), PassWork(graph, step, 7, graph.blocks)))
    assert sent and {place.rsplit("/", 1)[1] for place in opened} == {"need"}


def test_no_layer_stays_in_a_complete_model(tmp_path) -> None:
    write_part(str(tmp_path / "layer-1"), 0, np.ones(10))
    for name in ("layer-2.npy", "night.json"):  # an older version wrote a file for each layer
        (tmp_path / name).write_bytes(b"1")
    pipeline._remove_layers(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["night.json"]


# ------------------------------------------------------------------- committed files that are damaged


def stop_after_layer(graph: Graph, model: Model, layer: int) -> list[Path]:
    """Run a model until a layer is committed; return the files of the first one."""

    def stop(run: Any) -> None:
        if run.layer > layer:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run_model(SC, graph, model, lambda _: "R", record=stop)
    return sorted(Path(model.vectors).rglob("part-b*.parquet"))


def cut(file: Path, _: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def flip_bit(file: Path, _: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"float16") + 20] ^= 1  # within the numbers of the first row
    file.write_bytes(raw)


def exchange(file: Path, other: Path) -> None:
    one, two = file.read_bytes(), other.read_bytes()
    file.write_bytes(two)
    other.write_bytes(one)


def remove(file: Path, _: Path) -> None:
    file.unlink()


REASON = "(damaged|vectors|names it)"
DAMAGES = [cut, flip_bit, exchange, remove]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_layer_is_refused_by_its_name_when_a_run_goes_on(damage, graph, model) -> None:
    files = stop_after_layer(graph, model, 1)
    damage(files[0], files[1])
    with pytest.raises(
        StoreError, match=rf"({files[0].name}|{files[1].name}).* (damaged|vectors|names it)"
    ):
        run_model(SC, graph, model, lambda _: "R")


@pytest.mark.parametrize("damage", [cut, exchange, remove])
def test_a_damaged_result_is_refused_where_it_is_already_made(damage, graph, model) -> None:
    run_model(SC, graph, model, lambda _: "R")
    assert run_model(SC, graph, model, lambda _: "R") == []
    files = sorted(Path(str(model.embeddings)).rglob("part-b*.parquet"))
    damage(files[0], files[1])
    with pytest.raises(
        StoreError, match=rf"({files[0].name}|{files[1].name}).* (damaged|vectors|names it)"
    ):
        run_model(SC, graph, model, lambda _: "R")


def test_layers_go_on_with_the_bits_of_a_run_that_nobody_stopped(graph, model) -> None:
    stop_after_layer(graph, model, 1)
    run_model(SC, graph, model, lambda _: "R")
    alone = replace(model, model_id="alone", folder=f"{model.folder}-alone")
    run_model(SC, graph, alone, lambda _: "R")
    assert len(read_rows(model)[0]) == 120 and len(set(read_rows(model)[0])) == 60


def test_files_of_older_versions_have_no_digest_and_are_read(graph, model) -> None:
    files = stop_after_layer(graph, model, 1)
    for file in files:
        with pq.ParquetFile(file) as opened:
            rows = opened.read()
        pq.write_table(rows.replace_schema_metadata(None), file, store_schema=False)
    run_model(SC, graph, model, lambda _: "R")
    assert read_dataset(str(model.embeddings)).count_rows() == 60


def test_damaged_sources_of_blocks_are_made_again(graph) -> None:
    make_halos(SC, graph)
    before = [graph.map_sources(block).tobytes() for block in graph.blocks]
    part = sorted(Path(graph.place("need")).glob("*.npy"))[0]
    raw = bytearray(part.read_bytes())
    raw[-1] ^= 1
    part.write_bytes(raw)
    assert [graph.map_sources(block).tobytes() for block in graph.blocks] != before
    make_halos(SC, graph)
    assert [graph.map_sources(block).tobytes() for block in graph.blocks] == before
