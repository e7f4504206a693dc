"""Graphs and models on a real S3 server: the bits of a folder, under every plan, and after a lost host.

Spark is a stand-in here (`tests.graphs.local`): what crosses from task to task is pickled, and objects come
from the server by way of this host's copies.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from recbench_spark.errors import DataError, StoreError
from recbench_spark.graphs import features, runner
from recbench_spark.graphs.build import build_graph, read_ids
from recbench_spark.graphs.edges import open_rows
from recbench_spark.graphs.folders import Graph, read_graph
from recbench_spark.graphs.incremental import (
    GraphNight,
    LayerFiles,
    list_reused_files,
    mark_changes,
    restore_vectors,
)
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.graphs.kernels.layers import make_layers, model_weight_shapes, random_weights
from recbench_spark.graphs.kernels.walks import Walks
from recbench_spark.graphs.local_walks import WalkTable, walk_locally
from recbench_spark.graphs.neighbourhoods import walk_distributed
from recbench_spark.graphs.nodes import embed_nodes
from recbench_spark.graphs.runner import Model, plan_passes, run_model
from recbench_spark.graphs.settings import GraphSource
from recbench_spark.storage.block_arrays import map_whole
from recbench_spark.storage.delta_tables import list_files, read_dataset
from recbench_spark.storage.object_access import delta_options, open_filesystem
from recbench_spark.storage.objects import list_objects, read_bytes, remove_object, write_bytes
from tests.graphs.local import Context, make_tables

SC: Any = Context()
DIMS = 6
FORMS = (LayerForm("convolve", "importance", 7, 5), LayerForm("sage", "lstm", 5, 4))
WALKS = Walks(12, 2, 0.3, 2, 4, 5)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Likes of boards for pins on two nights, and vectors of pins; one pin without a like."""
    folder, draw = tmp_path_factory.mktemp("inputs"), np.random.default_rng(3)
    pairs = np.unique(draw.integers([0, 0], [25, 30], (140, 2)), axis=0)
    vectors = draw.standard_normal((31, DIMS))
    nights = {"first": (pairs[:-8], vectors), "again": (pairs, vectors * (draw.random((31, 1)) < 0.9))}
    for name, (likes, h) in nights.items():
        ends = {"src": [f"b{b}" for b in likes[:, 0]], "dst": [f"p{p}" for p in likes[:, 1]]}
        pq.write_table(pa.table(ends), folder / f"{name}.parquet", row_group_size=50)
        table = pa.table({"id": [f"p{p}" for p in range(31)], "vector": list(h)})
        pq.write_table(table, folder / f"{name}-h.parquet", row_group_size=9)
    return folder


def build(root: str, inputs: Path, night: str, blocks: int = 4) -> Graph:
    pins = {"pin": str(inputs / f"{night}-h.parquet")}
    source = GraphSource(edges=str(inputs / f"{night}.parquet"), sides=("board", "pin"), nodes=pins)
    return build_graph(SC, source, night, f"{root}/{night}", blocks)


def make_model(root: str, inputs: Path, graph: Graph, name: str) -> Model:
    place = f"{root}/{name}-h"
    rows = features.open_features(str(inputs / f"{graph.graph_id}-h.parquet"), "id", "text")
    work = features.TableWork(graph, rows, 1, DIMS, place, np.dtype("float16"))
    features.read_table(SC, work, "error")
    weights = random_weights(model_weight_shapes(FORMS, (), DIMS), 1)
    layers, ends = make_layers(FORMS, (), weights, DIMS, 1)
    tables = (f"{root}/graph_vectors", f"{root}/embeddings")
    return Model(name, layers, ends, "projected", "float16", place, f"{root}/{name}", *tables, 7, 3)


def read_embeddings(root: str, name: str) -> dict[tuple[str, str], bytes]:
    table = read_dataset(f"{root}/embeddings").to_table(filter=pa.compute.field("model_id") == name)
    rows = zip(*(table.column(c).to_pylist() for c in ("side", "id", "vector")), strict=True)
    return {(side, i): np.array(vector, np.float32).tobytes() for side, i, vector in rows}


def forget_copies(monkeypatch: pytest.MonkeyPatch, disk: Path) -> None:
    """Go on as another host: it has no copies."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(disk))


@pytest.fixture
def roots(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A folder and a place on the server, with empty tables."""
    forget_copies(monkeypatch, tmp_path / "disk")
    return make_tables(str(tmp_path)), make_tables(f"{bucket}/w")


def test_graphs_features_and_models_have_the_bits_of_a_folder(roots, inputs, tmp_path, monkeypatch) -> None:
    results: dict[str, list[Any]] = {}
    for root in roots:
        graph = build(root, inputs, "first")
        assert read_graph(graph.folder) == graph
        forget_copies(monkeypatch, tmp_path / "other")
        made = results.setdefault(root, [graph.hashes().tobytes()])
        made += [read_ids(graph, block).to_pylist() for block in graph.blocks]
        made += [[a.tobytes() for a in graph.csr(block)[:2]] for block in graph.blocks]
        for plan in ("R", "G"):
            model = make_model(root, inputs, graph, plan)
            runs = run_model(SC, graph, model, lambda _, plan=plan: plan)
            made += [[run[:9] for run in runs if plan == run.plan], map_whole(model.features).tobytes()]
            made.append(read_embeddings(root, plan))
            made.append(embed_nodes(graph, model, np.arange(graph.nodes)).tobytes())
        assert made[-2] == made[-6] != {} and made[-1] == made[-5]
    assert results[roots[0]] == results[roots[1]]


@pytest.mark.parametrize("damage", ["cut", "changed", "exchanged", "removed"])
def test_a_damaged_file_of_a_model_is_refused_by_its_name(roots, inputs, damage: str) -> None:
    graph = build(roots[1], inputs, "first")
    model = make_model(roots[1], inputs, graph, "m")
    run_model(SC, graph, model, lambda _: "R")
    assert run_model(SC, graph, model, lambda _: "R") == []
    files = [file for file in list_files(str(model.embeddings), {"side": "pin"}) if "part-b" in file]
    contents = [read_bytes(file) or b"" for file in files[:2]]
    middle = contents[0].index(np.float32(read_numbers(contents[0])).tobytes())
    new = {
        "cut": contents[0][:-20],
        "changed": contents[0][:middle] + bytes([contents[0][middle] ^ 1]) + contents[0][middle + 1 :],
        "exchanged": contents[1],
    }
    remove_object(files[0])
    if damage in new:
        write_bytes(files[0], new[damage])
    with pytest.raises(StoreError, match=rf"{Path(files[0]).name}.* (damaged|vectors|names it)"):
        run_model(SC, graph, model, lambda _: "R")


def read_numbers(content: bytes) -> float:
    """The first number of the first vector of a file."""
    return float(pq.read_table(pa.BufferReader(content)).column("vector")[0].as_py()[0])


def test_edges_and_nodes_are_read_from_parquet_files_on_the_server(roots, inputs, bucket) -> None:
    for name in ("likes/_hidden.csv", "likes/part.parquet", "h.parquet"):
        night = "first-h" if name == "h.parquet" else "first"
        write_bytes(f"{bucket}/in/{name}", (inputs / f"{night}.parquet").read_bytes())
    graphs = []
    for edges, pins in ((inputs / "first.parquet", inputs / "first-h.parquet"), ("likes/", "h.parquet/")):
        place = "" if isinstance(edges, Path) else f"{bucket}/in/"
        source = GraphSource(
            edges=f"{place}{edges}", sides=("board", "pin"), nodes={"pin": f"{place}{pins}"}
        )
        graph = build_graph(SC, source, "first", f"{roots[0]}/{len(graphs)}", 4)
        rows = [[a.tobytes() for a in graph.csr(block)[:2]] for block in graph.blocks]
        graphs.append([graph.hashes().tobytes(), *rows])
    assert graphs[0] == graphs[1]


@pytest.mark.parametrize(
    ("name", "fmt", "message"),
    [
        ("e/a.csv.gz", None, "cannot be read"),
        ("e/a", "parquet", "is not a Parquet file"),
        ("e/day/a.parquet", None, "edges .*/e holds a folder, day"),
        ("e/_a.parquet", None, "it has no files"),
        ("e/day/_a.parquet", None, "it has no files"),
    ],
)
def test_other_files_on_the_server_are_refused(
    bucket: str, name: str, fmt: str | None, message: str
) -> None:
    write_bytes(f"{bucket}/{name}", b"src,dst\n1,2\n")
    with pytest.raises(DataError, match=message):
        open_rows(f"{bucket}/e", ["src", "dst"], "edges", fmt=fmt)


@pytest.mark.parametrize(
    ("name", "fmt"), [("e/a.CSV", None), ("e/day=1/a.csv.gz", None), ("e/a.csv.zst", None), ("e/a", "csv")]
)
def test_text_on_the_server_is_read(bucket: str, name: str, fmt: str | None) -> None:
    text = b"src,dst\n1,2\n3,4\n"
    codec = pa.Codec.detect(name).name if name.endswith((".gz", ".zst")) else None
    write_bytes(f"{bucket}/{name}", bytes(pa.Codec(codec).compress(text)) if codec else text)
    rows = open_rows(f"{bucket}/e", ["src", "dst"], "edges", fmt=fmt, ids={"src": "auto", "dst": "auto"})
    (chunk,) = rows.chunks(rows.pieces)
    assert [rows.ids(chunk, name).to_pylist() for name in ("src", "dst")] == [[1, 3], [2, 4]]


def test_the_files_of_a_table_on_the_server_are_no_rows_by_themselves(bucket: str) -> None:
    for n in (1, 2):
        rows = pa.table({"src": [n] * n, "dst": [0] * n})
        write_deltalake(f"{bucket}/e", rows, mode="overwrite", storage_options=delta_options(bucket))
    read = {fmt: open_rows(f"{bucket}/e", ["src"], "edges", fmt=fmt).n for fmt in (None, "delta")}
    assert read == {None: 2, "delta": 2}
    with pytest.raises(DataError, match="it is a table of Delta"):
        open_rows(f"{bucket}/e", ["src"], "edges", fmt="parquet")


def stop_after(patch: pytest.MonkeyPatch, commits: int) -> None:
    """End the run after some commits of groups of blocks."""
    commit, done = runner._commit_group, list[Any]()

    def commit_or_end(*group: Any) -> None:
        if len(done) == commits:
            raise OSError("this host is gone")
        done.append(commit(*group))

    patch.setattr(runner, "_commit_group", commit_or_end)


def test_a_run_that_lost_its_host_goes_on_from_the_table(roots, inputs, tmp_path, monkeypatch) -> None:
    wanted = {}
    for root in roots:
        graph = build(root, inputs, "first")
        whole = make_model(root, inputs, graph, "whole")
        run_model(SC, graph, whole, lambda _: "R")
        wanted[root] = read_embeddings(root, "whole")
        model = make_model(root, inputs, graph, "lost")
        with monkeypatch.context() as patch, pytest.raises(OSError, match="gone"):
            stop_after(patch, 5)
            run_model(SC, graph, model, lambda _: "R")
        forget_copies(monkeypatch, tmp_path / "successor")
        again = replace(model, folder=f"{root}/successor")  # on object storage each run has its own folder
        runs = run_model(SC, graph, again, lambda _: "R")
        assert [run.layer for run in runs] == [2] and 0 < runs[0].nodes < graph.nodes
        assert read_embeddings(root, "lost") == wanted[root]
    assert wanted[roots[0]] == wanted[roots[1]]


def test_the_next_night_computes_what_changed_to_the_bits_of_a_full_run(roots, inputs) -> None:
    nodes = []
    for root in roots:
        first, again = build(root, inputs, "first"), build(root, inputs, "again", 3)
        one, two, full = (
            make_model(root, inputs, graph, name)
            for graph, name in ((first, "one"), (again, "two"), (again, "full"))
        )
        for graph, model in ((first, one), (again, full)):
            run_model(SC, graph, model, lambda _: "R")
        layer, end = {"model_id": "one", "layer": "1"}, {"model_id": "one"}
        places = (
            LayerFiles(one.vectors, layer, (0, 1), False),
            LayerFiles(str(one.embeddings), end, (0, 1), True),
        )
        before, steps = GraphNight(first, one.features, places), plan_passes(two, again)
        mark_changes(SC, again, steps, before, two.folder)
        for k, place in enumerate(places, 1):
            dtype = "float32" if place.by_side else "float16"
            restore_vectors(SC, before, [place], f"{two.folder}/before-{k}", dtype)
        reused = {(s.layer, s.kind): list_reused_files(two.folder, p, s) for p, s in enumerate(steps, 1)}
        runs = run_model(SC, again, replace(two, reused=reused), lambda _: "R")
        nodes.append([run.nodes for run in runs])
        assert 0 < nodes[-1][0] < again.nodes
        assert read_embeddings(root, "two") == read_embeddings(root, "full")
    assert nodes[0] == nodes[1]


def test_walks_have_the_rows_of_a_folder(roots, inputs, bucket) -> None:
    rows = []
    for root in roots:
        graph = build(root, inputs, "first")
        for walk in (walk_locally, walk_distributed):
            table = f"{root}/neighbourhoods-{walk.__name__}"
            files = walk(SC, graph, 1, WALKS, WalkTable(table, {"neighbourhood_id": "n"}))
            read = [read_file(f"{table}/{file.file.path}") for file in files]
            rows.append(sorted((row for table in read for row in table), key=lambda row: row["node"]))
    assert len(rows[0]) == 31 and all(other == rows[0] for other in rows)
    assert not [name for name in list_objects(bucket) if "positions" in name]


def read_file(place: str) -> list[dict[str, Any]]:
    system, path = open_filesystem(place)
    return pq.read_table(path, filesystem=system, partitioning=None).to_pylist()
