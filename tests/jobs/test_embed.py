"""`recbench embed` as a new user meets it: a list of edges in, embeddings out; mistakes told in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from safetensors.numpy import save_file

from recbench_spark import cli
from recbench_spark.commands import embed
from recbench_spark.graphs import pipeline, runner, stored_graphs
from recbench_spark.graphs.build_inputs import open_inputs
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.graphs.kernels.layers import model_weight_shapes, random_weights
from recbench_spark.graphs.settings import GraphSource
from recbench_spark.graphs.stored_graphs import warn_unread_weights
from tests.graphs import oracle


def run(*flags: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(embed.main, embed.parser(), flags)
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "no graph is given"),
        (("--edges", "x", "--columns", "src"), "NAME=COLUMN"),
        (("--edges", "x", "--columns", "sorce=a"), "no column sorce\n  hint: did you mean 'src'?"),
        (("--edges", "x", "--mode", "bipartite"), "graph.sides must name two sides"),
        (("--edges", "x", "--form", "convolve", "--aggregator", "lstm"), "gcn and lstm are sage's"),
        (("--edges", "x", "--widths", "8,0"), "argument --widths: '0' is not a whole number from 1"),
        (("--edges", "x", "--features", "hashed:many"), "'many' is not a number"),
        (("--edges", "x", "--sides", "a,b", "--node-table", "t"), "--node-table SIDE=t"),
        (("--edges", "x", "--model", "nowhere.yaml"), "nowhere.yaml"),
        (("--edges", "x", "--features", "degree"), "did you mean 'degrees'"),
        (("--edges", "x", "--columns", "src=a,dst=a"), "a cannot be two of src, dst, weight"),
        (("--edges", "x", "--gate", "drift_cosine_p10:below=0.9"), "--previous MODEL_ID"),
        (("--edges", "x", "--gate", "drift_cosin_p10:below=1"), "did you mean 'drift_cosine_p10'"),
        (("--edges", "x", "--gate", "drift_common:beneath=1"), "is not like drift_cosine_p10:below=0.9"),
    ],
)
def test_mistakes_are_told_before_spark_starts(flags, message, capsys) -> None:
    assert run(*flags, "--warehouse", "w", "--dry-run") == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "more", "report"),
    [
        ("src,dst,weight\n1,2,9\n", {}, "column weight"),
        ("a,b,stars\n1,2,9\n", {"columns": {"src": "a", "dst": "b", "weight": "stars"}}, "column stars"),
        ("1,2,9\n", {}, "the third column"),
        ("1,2,9\n", {"weighted": True}, None),
        ("src,dst,at\n1,2,9\n", {}, None),
        ("1,2\n", {}, None),
    ],
)
def test_weights_that_are_not_read_are_told(text, more, report, tmp_path) -> None:
    (tmp_path / "edges.csv").write_text(text)
    source = GraphSource(edges=str(tmp_path / "edges.csv"), **more)
    warning = warn_unread_weights(source, open_inputs(source).edges)
    assert warning is None if report is None else f"{report} of {source.edges} is not read" in str(warning)


def test_a_dry_run_looks_at_features_and_weights(tmp_path, capsys) -> None:
    (tmp_path / "edges.csv").write_text("src,dst\n1,2\n")
    edges = str(tmp_path / "edges.csv")
    flags = ("--edges", edges, "--warehouse", "w", "--dry-run", "--widths", "5,4")
    assert run(*flags, "--features", "nowhere.parquet") == 1  # it may be there later
    assert f"no such file or folder: {Path('nowhere.parquet').absolute()}\n" in capsys.readouterr().err
    pq.write_table(pa.table({"id": [1], "vector": [[1.0] * 6]}), tmp_path / "h.parquet")
    save_file(random_weights(model_weight_shapes(FORMS, (), 5), 1), tmp_path / "w.safetensors")
    given = ("--features", str(tmp_path / "h.parquet"), "--weights", str(tmp_path / "w.safetensors"))
    assert run(*flags, *given) == 2
    assert "layers.0.W.weight" in capsys.readouterr().err
    assert run(*flags, *given[:2]) == 0
    assert "dimensions 6 -> 5 -> 4; 4 weights, random" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["viewfs://host/w", "main.graphs"])
def test_a_warehouse_where_tasks_write_no_files_is_told_before_spark_starts(place, capsys) -> None:
    assert run("--edges", "x", "--warehouse", place) == 2
    assert "and tasks write the files of a graph themselves" in capsys.readouterr().err


def table(place: Path, name: str, model_id: str) -> dict[str, np.ndarray]:
    """Vectors by id, of all sides."""
    rows = DeltaTable(place / name).to_pandas(filters=[("model_id", "=", model_id)])
    return dict(zip(rows["id"], map(np.array, rows["vector"]), strict=True))


def parse_model(printed: str) -> str:
    return printed.split("model ", 1)[1].split(maxsplit=1)[0].rstrip(":")


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> tuple[oracle.Drawn, Path]:
    drawn, folder = oracle.multigraph(), tmp_path_factory.mktemp("embed")
    drawn.write(folder)
    h = np.random.default_rng(3).standard_normal((len(drawn.ids), 6)).astype(np.float32)
    pq.write_table(pa.table({"id": drawn.ids, "vector": list(h)}), folder / "h.parquet", row_group_size=9)
    np.save(folder / "h.npy", h)
    return drawn, folder


FORMS = (LayerForm("sage", "mean", 5, 5), LayerForm("sage", "mean", 4, 4))


def test_a_graph_is_embedded_with_given_weights_and_again_after_a_kill(  # noqa: PLR0915
    world, capsys, monkeypatch, tmp_path
) -> None:
    drawn, folder = world
    weights = random_weights(model_weight_shapes(FORMS, (), 6), seed=2)
    save_file(weights, folder / "w.safetensors")
    files = ("--edges", str(folder / "edges.parquet"), "--node-table", str(folder / "nodes.parquet"))
    model = ("--features", str(folder / "h.parquet"), "--widths", "5,4")
    given = (*files, *model, "--weights", str(folder / "w.safetensors"), "--blocks", "5")

    # The driver is killed after two commits of the second layer.
    commits = []
    commit = runner.commit_files

    def dying(*args: object) -> bool:
        if len(commits) == 4:
            raise KeyboardInterrupt
        commits.append(args)
        return commit(*args)

    one = tmp_path / "one"
    monkeypatch.setattr(runner, "commit_files", dying)
    monkeypatch.setattr(runner, "group_blocks", lambda blocks, size: [(block,) for block in blocks])
    assert run(*given, "--warehouse", str(one), "--plan", "R") == 130
    monkeypatch.setattr(runner, "commit_files", commit)
    output = capsys.readouterr()
    assert "interrupted" in output.err and "layer 1" not in output.err
    name = parse_model(output.out)
    assert run(*given, "--warehouse", str(one), "--plan", "G") == 0
    output = capsys.readouterr()
    assert "layer 1 layer (mean, plan G)" in output.err and "times the predicted time" in output.err
    assert "already built" in output.err
    result = table(one, "embeddings", name)

    h = np.load(folder / "h.npy").astype(float)
    for k, form in enumerate(FORMS):
        own = {key.split(".", 2)[2]: w for key, w in weights.items() if key.startswith(f"layers.{k}.")}
        h = oracle.layer(form, own, drawn, h)
    np.testing.assert_allclose([result[str(i)] for i in drawn.ids], h, atol=1e-6)

    # Another warehouse, other blocks, undisturbed: the same bits. A third run does nothing.
    two = tmp_path / "two"
    plain = (*given[:-2], "--warehouse", str(two), "--plan", "R", "--batch", "3")
    assert run(*plain, "--explain") == 0
    output = capsys.readouterr()
    assert "core-hours" in output.out and "built in" in output.out and "layer 1" not in output.err
    assert not DeltaTable(two / "embeddings").file_uris()
    assert run(*plain) == 0
    capsys.readouterr()
    other = table(two, "embeddings", name)
    assert {i: v.tobytes() for i, v in other.items()} == {i: v.tobytes() for i, v in result.items()}
    assert run(*plain) == 0
    assert "already made" in capsys.readouterr().err

    # A few nodes on demand have the night's bits.
    assert run(*plain, "--nodes", ",".join(str(i) for i in drawn.ids[:7])) == 0
    lines = [line.split(",") for line in capsys.readouterr().out.strip().splitlines()]
    assert [line[1] for line in lines] == [str(i) for i in drawn.ids[:7]]
    for line in lines:
        assert np.array(line[2:], np.float32).tobytes() == result[line[1]].tobytes()
    assert run(*plain, "--nodes", "5,6") == 1
    assert "2 of 2 nodes are not of side node: 5, 6" in capsys.readouterr().err

    runs = DeltaTable(two / "graph_runs").to_pandas().sort_values("layer")
    assert list(runs["nodes"]) == [60, 60] and list(runs["vectors_projected"]) == [60, 60]
    assert list(runs["edges"]) == [573, 573]
    checks = DeltaTable(two / "checks").to_pandas().set_index("check")["observed"]
    assert checks["graph: isolated nodes"] == 5 and checks["graph: self loops"] == 12
    assert checks["graph: vectors projected in layer 2"] == 60
    nodes = DeltaTable(two / "graph_nodes").to_pandas().sort_values("node_index")
    assert set(nodes["id"]) == {str(i) for i in drawn.ids} and nodes["edges"].sum() == 573


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory) -> tuple[tuple[str, ...], Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "edges.csv").write_text("src,dst\n1,2\n2,3\n3,1\n4,1\n")
    flags = ("--edges", str(folder / "edges.csv"), "--features", "hashed:3", "--widths", "3,2")
    assert run(*flags, "--warehouse", str(folder / "w")) == 0
    return flags, folder / "w"


def read_tables(place: Path) -> dict[str, list[tuple[object, ...]]]:
    """Read the rows of graph and layers, without times."""
    columns = {"graphs": ["nodes", "edges"], "graph_nodes": ["id", "edges"],
               "graph_runs": ["layer", "nodes", "vectors_projected"],
               "checks": ["check", "observed"]}  # fmt: skip
    frames = {name: DeltaTable(place / name).to_pandas()[these] for name, these in columns.items()}
    return {name: sorted(frame.itertuples(index=False, name=None)) for name, frame in frames.items()}


@pytest.mark.full
@pytest.mark.parametrize(
    ("module", "name", "nth"),
    [
        (stored_graphs, "write_node_table", 0),
        (stored_graphs, "_append_graph", 0),
        (runner, "_commit_group", 0),
        (runner, "_commit_group", 1),
        (pipeline, "_write_note", 0),
    ],
)
def test_what_is_told_of_a_graph_is_there_after_a_kill(
    module, name, nth, plain_run, monkeypatch, tmp_path
) -> None:
    flags, place = plain_run
    calls, whole = iter(range(9)), getattr(module, name)

    def dying(*args: object) -> object:
        if next(calls) == nth:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(module, name, dying)
    assert run(*flags, "--warehouse", str(tmp_path)) == 130
    monkeypatch.setattr(module, name, whole)
    for _ in range(2):
        assert run(*flags, "--warehouse", str(tmp_path)) == 0
        assert read_tables(tmp_path) == read_tables(place)


@pytest.mark.full
def test_what_is_wrong_is_told_with_its_number(world, capsys, tmp_path) -> None:
    drawn, folder = world
    place = ("--warehouse", str(tmp_path / "w"))
    files = ("--edges", str(folder / "edges.parquet"), "--node-table", str(folder / "nodes.parquet"))

    h = np.load(folder / "h.npy")
    pq.write_table(pa.table({"id": drawn.ids[3:], "vector": list(h[3:])}), tmp_path / "few.parquet")
    assert run(*files, *place, "--features", str(tmp_path / "few.parquet")) == 1
    output = capsys.readouterr().err
    assert "3 of 60 nodes of side node have none: " in output and "--missing zero" in output
    assert all(str(i) in output for i in drawn.ids[:3])

    uneven = [list(map(float, row)) for row in h]
    uneven[7] = uneven[7][:4]
    pq.write_table(pa.table({"id": drawn.ids, "vector": uneven}), tmp_path / "uneven.parquet")
    assert run(*files, *place, "--features", str(tmp_path / "uneven.parquet")) == 1
    output = capsys.readouterr().err
    assert f"1 of 60 vectors are not as long as the first (6), e.g. id {drawn.ids[7]} of 4" in output

    twice = {"id": [*drawn.ids, drawn.ids[9]], "vector": list(h[[*range(60), 9]])}
    pq.write_table(pa.table(twice), tmp_path / "twice.parquet")
    assert run(*files, *place, "--features", str(tmp_path / "twice.parquet")) == 1
    assert f"1 ids occur more than once, e.g. {drawn.ids[9]}" in capsys.readouterr().err
    pq.write_table(pa.table({"id": ["u1"], "vector": [[1.0]]}), tmp_path / "others.parquet")
    assert run(*files, *place, "--features", str(tmp_path / "others.parquet")) == 1
    output = capsys.readouterr().err  # of a worker, with its hint
    assert (
        "error: features: column id: 1 ids are not whole numbers, e.g. 'u1'" in output
        and "--ids text" in output
    )

    weights = random_weights(model_weight_shapes(FORMS, (), 7), seed=2)
    save_file(weights, tmp_path / "w.safetensors")
    wrong = (
        "--features",
        str(folder / "h.parquet"),
        "--widths",
        "5,4",
        "--weights",
        str(tmp_path / "w.safetensors"),
    )
    assert run(*files, *place, *wrong) == 2
    assert "layers.0.W.weight is of shape (5, 14), and (5, 12) is needed" in capsys.readouterr().err

    # One side of a bipartite graph, NULL ids and bad weights, refused with their number, then left out.
    rows = {"user": [1, 2, None, 4, 5], "item": ["a", "b", "c", None, "a"], "w": [1.0, -1.0, 1.0, 1.0, 2.0]}
    write_deltalake(tmp_path / "log", pa.table(rows))
    log = (
        "--edges",
        str(tmp_path / "log"),
        "--columns",
        "src=user,dst=item,weight=w",
        "--sides",
        "user,item",
    )
    assert run(*log, *place) == 1
    assert "2 of 5 edges with an id that is NULL" in capsys.readouterr().err
    pq.write_table(pa.table({"id": ["a"], "vector": [[1.0, 2.0]]}), tmp_path / "items.parquet")
    ours = ("--features", str(tmp_path / "items.parquet"), "--mode", "bipartite", "--widths", "2")
    assert (
        run(*log, *place, *ours, "--form", "convolve", "--aggregator", "importance", "--drop-bad-rows") == 0
    )
    name = parse_model(capsys.readouterr().out)
    result = table(tmp_path / "w", "embeddings", name)
    assert result.keys() == {"1", "5", "a"}
    np.testing.assert_allclose(result["1"], result["a"], rtol=1e-6)


@pytest.mark.full
def test_two_lines_of_csv(capsys, tmp_path) -> None:
    (tmp_path / "edges.csv").write_text("1,2\n2,3\n")
    assert (
        run("--edges", str(tmp_path / "edges.csv"), "--warehouse", str(tmp_path / "w"), "--widths", "3")
        == 0
    )
    result = table(tmp_path / "w", "embeddings", parse_model(capsys.readouterr().out))
    assert result.keys() == {"1", "2", "3"} and all(len(vector) == 3 for vector in result.values())
