"""`kind: pinsage | graphsage | lightgcn | mf_bpr` in a night: trained, embedded, ranked, one command."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recbench_spark.core import revisions
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.graphs.folders import SEPARATE, Graph, NodeBlock, publish_arrays
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.model_inputs import read_weights
from recbench_spark.models.adapters import trained_graphs
from recbench_spark.models.adapters.model_adapter import SplitData, make_adapter
from recbench_spark.models.networks.factors import make_pairs
from recbench_spark.models.networks.layers import GraphNetwork
from recbench_spark.models.networks.subgraphs import Adjacency
from recbench_spark.models.networks.tasks import GraphInput, PairObjective
from recbench_spark.models.settings import model_class
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import TABLES
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.block_arrays import write_part
from tests.graphs.oracle import build_csr
from tests.nights import models, run, small

FIT = {"epochs": 3, "batch": 64, "rate": 0.02, "validation": 0.2}
KINDS: dict[str, dict[str, Any]] = {
    "pinsage": {
        "features": {"kind": "hashed", "dims": 6}, "width": 5, "hidden": 5, "final": [4], "top": 5,
        "walks": 20, "negatives": 20, "curriculum": True, "hard_ranks": [3, 8],
    },
    "graphsage": {"features": {"kind": "hashed", "dims": 6}, "width": 5, "samples": [4, 3]},
    "lightgcn": {"dims": 4, "layers": 2},
    "mf_bpr": {"dims": 4},
}  # fmt: skip
KILLED = ("pinsage", "lightgcn")
"""Kinds whose fit is killed: one over examples of a graph, one over pairs; all fits have one loop."""


def write_log(path: Path, users: int = 40, items: int = 24) -> str:
    """Two tastes: users like items of their own parity."""
    draw = np.random.default_rng(1)
    pairs = {(int(u), int(2 * i + u % 2)) for u, i in zip(draw.integers(users, size=450),
             draw.integers(items // 2, size=450), strict=True)}  # fmt: skip
    rows = {
        "user_id": [f"u{u}" for u, _ in sorted(pairs)],
        "item_id": [str(i) for _, i in sorted(pairs)],
        "rating": [5.0] * len(pairs),
        "event_time": list(range(len(pairs))),
    }
    pq.write_table(pa.table(rows), path)
    return str(path)


def bench(log: str, fitted: list[dict[str, Any]] | None = None, **more: Any) -> Any:
    fitted = fitted or [{"name": kind, "kind": kind, **FIT, **KINDS[kind], **more} for kind in KINDS]
    evaluation = {"metrics": ["ndcg"], "k": [5], "bootstrap": {"replicates": 10}}
    return small(
        models=[*models("popular"), *fitted],
        dataset={"name": "log", "reader": "parquet", "path": log},
        split={"protocol": "RO_RS", "ratio": [0.8, 0.0, 0.2], "seed": 5},
        evaluation=evaluation,
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kind": "pinsage", "top": 0}, "top"),
        ({"kind": "pinsage", "margin": -0.5}, "margin"),
        ({"kind": "pinsage", "neighbour_dropout": 1.0}, "neighbour_dropout"),
        ({"kind": "graphsage", "neighbour_dropout": -0.1}, "neighbour_dropout"),
        ({"kind": "pinsage", "aggregator": "importence"}, "aggregator"),
        ({"kind": "pinsage", "hard_ranks": [6, 5]}, "not a band"),
        ({"kind": "graphsage", "aggregator": "median"}, "aggregator"),
        ({"kind": "graphsage", "samples": [3]}, "one per layer"),
        ({"kind": "pinsage", "features": {"kind": "hashed", "side": "user"}}, "items are the only nodes"),
        ({"kind": "graphsage", "features": {"kind": "hashed", "side": "itm"}}, "itm is none of user, item"),
        ({"kind": "lightgcn", "layers": 0}, "layers"),
        ({"kind": "mf_bpr", "penalty": -1}, "penalty"),
        ({"kind": "mf_bpr", "processes": 0}, "processes"),
        ({"kind": "lightgcn", "device": "gpu"}, "device"),
        ({"kind": "pinsage", "device": "cuda", "processes": 2}, "2 processes"),
    ],
)
def test_wrong_settings_are_refused_by_name_before_spark_starts(more, message) -> None:
    with pytest.raises(ConfigError, match=message):
        small(models=[*models("popular"), {"name": "m", **more}])


@pytest.mark.parametrize("kind", KINDS)
def test_settings_that_came_later_keep_the_names_of_older_models(kind) -> None:
    """More processes or a named device give a name of their own; what is only told gives none."""

    def key(**more: Any) -> str:
        settings = model_class(kind).model_validate({"name": "m", "kind": kind, **more})
        split: Any = SimpleNamespace(split_id="s", threshold=None)
        return SplitData.key(split, settings)

    plain = model_class(kind).model_validate({"name": "m", "kind": kind}).model_dump()
    assert not {"processes", "device", "watch"} & plain.keys()
    assert key() == key(processes=1, device="auto", watch=False) == key(watch=True)
    assert len({key(), key(processes=2), key(processes=3), key(device="cpu")}) == 4


@pytest.mark.parametrize(("kind", "usual"), [("pinsage", 0.02), ("graphsage", 0.0)])
def test_a_share_of_dropout_is_part_of_a_models_name(kind, usual, monkeypatch) -> None:
    """Its default too, by the revision that brought it; GraphSAGE has none, because of what it costs."""

    def key(**more: Any) -> str:
        settings = model_class(kind).model_validate({"name": "m", "kind": kind, **more})
        split: Any = SimpleNamespace(split_id="s", threshold=None)
        return SplitData.key(split, settings)

    assert model_class(kind).model_fields["neighbour_dropout"].default == usual
    assert key() == key(neighbour_dropout=usual)
    assert len({key(neighbour_dropout=share) for share in (0.0, 0.02, 0.05, 0.3)}) == 4
    now = key()
    monkeypatch.setitem(revisions.REVISIONS, kind, revisions.REVISIONS[kind] - 1)
    assert key() != now


def by_hand(folder: Path) -> Graph:
    """20 users and 30 items in three blocks, as a layout leaves them on disk."""
    draw = np.random.default_rng(2)
    ends = np.unique(draw.integers([0, 20], [20, 50], (150, 2)), axis=0)
    edges = [*map(tuple, ends.tolist()), *((b, a) for a, b in ends.tolist())]
    hashes = np.sort(hash_numbers(np.arange(50), 0))
    blocks, parts = [], []
    for number, (side, first, end) in enumerate([(0, 0, 20), (1, 20, 33), (1, 33, 50)]):
        csr = build_csr(end - first, [(d - first, s) for d, s in edges if first <= d < end])
        arrays = {"hashes": (hashes[first:end], first), "indptr": (csr.indptr, 0), "src": (csr.src, 0)}
        parts.append(
            {name: write_part(f"{folder}/{name}", number, *array) for name, array in arrays.items()}
        )
        blocks.append(NodeBlock(number, side, first, end - first, csr.edges))
    kinds = {"hashes": ((50,), np.uint64), "indptr": (SEPARATE, np.int64), "src": (SEPARATE, np.uint32)}
    publish_arrays(str(folder), parts, kinds)
    return Graph("g", str(folder), ("user", "item"), (True, True), tuple(blocks), False, 0, {})


def test_edges_are_fitted_over_a_laid_out_graph_and_weights_are_made_once(tmp_path) -> None:
    graph = by_hand(tmp_path / "graph")
    settings = model_class("graphsage").model_validate({"name": "m", "kind": "graphsage", **FIT})
    examples = trained_graphs.split_edges(graph, settings.validation, settings.seed)
    assert set(examples.query.tolist()) <= set(range(20)) and examples.side == (20, 50)
    assert len(examples.query) + len(examples.held_query) == graph.edges // 2
    assert 0 < len(examples.held_query) < graph.edges // 4
    blocks = [graph.csr(block) for block in graph.blocks]
    parts = Adjacency(np.array([0, 20, 33]), tuple(blocks), graph.hashes())
    forms = settings.over(None).forms()
    net = GraphNetwork(forms, (), 4)
    net.initialise(1)
    features = np.random.default_rng(1).standard_normal((50, 4)).astype(np.float32)
    laid = trained_graphs.TrainingGraph(graph, GraphInput(parts, features, (4, 3), 0), net)
    how = PairObjective("co_occurrence", 1.0, 20, first=20, end=50)
    data: Any = SimpleNamespace(journal=Journal(io.StringIO()), store=SimpleNamespace(engine=None))
    folder = tmp_path / "fit"
    path = trained_graphs.fit_weights(data, laid, examples, how, None, fit_of=(settings, folder))
    weights, _ = read_weights(str(path))
    assert set(weights) == set(net.shapes())
    before = path.stat().st_mtime_ns
    trained_graphs.fit_weights(data, laid, examples, how, None, fit_of=(settings, folder))
    assert path.stat().st_mtime_ns == before


def test_pinsages_pairs_and_users() -> None:
    draw = np.random.default_rng(3)
    pairs = make_pairs(draw.integers(0, 30, 300), draw.integers(0, 12, 300), 30, 12)
    dense = np.array([5, 3, 0, 1, 2, 4, 6, 7, 8, 9, 11, 10])
    settings = model_class("pinsage").model_validate({"name": "m", "kind": "pinsage", "validation": 0.3})
    result = trained_graphs.make_pair_examples(pairs, dense, 12, settings)
    own = [set(dense[pairs.item[a:b]]) for a, b in zip(pairs.indptr, pairs.indptr[1:], strict=False)]
    assert all(
        any({q, i} <= items for items in own) for q, i in zip(result.query, result.item, strict=True)
    )
    assert len(result.held_query) and result.side == (0, 12)
    vectors = draw.standard_normal((12, 3)).astype(np.float32)
    means = trained_graphs.mean_vectors(pairs, vectors[dense])
    assert np.allclose(means[4], vectors[sorted(own[4])].mean(axis=0), atol=1e-6)
    forms = settings.over("w.safetensors")
    assert forms.features.side is None and forms.layers[0].aggregator == "importance"


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> str:
    """A log whose split two warehouses share."""
    return write_log(tmp_path_factory.mktemp("log") / "log.parquet", items=60)


@pytest.mark.full
def test_a_night_trains_all_four_and_two_go_on_where_they_were_killed(
    splits, log, tmp_path, monkeypatch
) -> None:
    place = tmp_path / "w"
    splits.copy(bench(log), place)
    ran = run(ArrowStore(str(place)), bench(log))
    assert not ran.outcome.failed and ran.outcome.exit_code == 0
    assert set(KINDS) <= set(ran.outcome.leaderboard.split())
    for report in ("epoch 1: loss", "examples/s", "neighbourhoods", "hard negatives: ", "best epoch"):
        assert report in ran.remarks
    for name in TABLES:  # no folder of a fit's files stands where a table would be made
        assert ArrowStore(str(place)).exists(name) == (place / name / "_delta_log").is_dir()
    values = DeltaTable(place / "metrics").to_pandas()
    runs = DeltaTable(place / "runs").to_pandas().set_index("model")["run_id"]
    ndcg = {
        model: values[(values["run_id"] == runs[model]) & (values["metric"] == "ndcg") & (values["k"] == 5)]
        for model in runs.index
    }
    assert all(len(rows) for rows in ndcg.values())
    again = run(ArrowStore(str(place)), bench(log))
    assert set(KINDS) <= set(again.outcome.skipped)

    told_only = run(ArrowStore(str(place)), bench(log, watch=True))
    assert set(KINDS) <= set(told_only.outcome.skipped)  # it changes no number

    # Another warehouse: the fit is killed in its second epoch, and the night run again, test rows watched.
    from recbench_spark.models.networks import fitting

    plain = fitting._Fit._finish_epoch

    def kill(self: Any, report: Any) -> None:
        plain(self, report)
        raise DataError("killed")  # what nobody foresaw would end the whole night

    monkeypatch.setattr(fitting._Fit, "_finish_epoch", kill)
    other = tmp_path / "w2"
    killed = bench(
        log, [{"name": kind, "kind": kind, **FIT, **KINDS[kind], "watch": True} for kind in KILLED]
    )
    splits.copy(killed, other)
    first = run(ArrowStore(str(other)), killed)
    assert set(first.outcome.failed) == set(KILLED)
    monkeypatch.setattr(fitting._Fit, "_finish_epoch", plain)
    second = run(ArrowStore(str(other)), killed)
    assert second.remarks.count("resuming at epoch 2") == len(KILLED) and not second.outcome.failed
    report = re.findall(r"test (?:recall@20|scaled MRR) 0\.\d+ \(watched\)", second.remarks)
    assert len(report) == 2 * len(KILLED)
    assert second.remarks.count("no figure to report") == len(KILLED) and "watched" not in ran.remarks
    columns = ["model", "metric", "k", "value"]
    tables = []
    for folder in (place, other):
        metrics = DeltaTable(folder / "metrics").to_pandas()
        names = DeltaTable(folder / "runs").to_pandas()[["run_id", "model", "status"]]
        names = names[(names["status"] == "succeeded") & names["model"].isin(["popular", *KILLED])]
        merged = metrics.merge(names, on="run_id", suffixes=("", "_of"))
        tables.append(merged[columns].sort_values(columns).reset_index(drop=True))
    assert set(tables[0]["model"]) == {"popular", *KILLED}
    assert tables[0].equals(tables[1])  # to the last bit


def test_test_pairs_that_are_watched() -> None:
    """A pair beside an item of its user's training; an item that the graph has not is left out."""
    pairs = make_pairs(np.array([0, 0, 1, 2]), np.array([0, 1, 2, 3]), 3, 6)
    test = make_pairs(np.array([0, 1, 1, 2]), np.array([2, 4, 5, 3]), 3, 6)
    dense = np.array([10, 11, 12, 13, 14, -1])
    query, item = trained_graphs.pair_test_items(pairs, test, dense, 1)
    assert item.tolist() == [12, 14] and query[0] in (10, 11) and query[1] == 12  # 3 would be its own query


@pytest.mark.full
def test_walks_that_find_nobody_are_told_and_fit_nothing(tmp_path) -> None:
    """Each user has one item in training."""
    rows = [(f"u{user}", str(user % 6), "train") for user in range(18)]
    rows += [(f"u{user}", str((user + 1) % 6), "test") for user in range(18)]
    columns = dict(zip(("user_id", "item_id", "part"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table({**columns, "rating": [5.0] * len(rows)}), tmp_path / "log.parquet")
    dataset = {
        "name": "log", "reader": "parquet", "path": str(tmp_path / "log.parquet"),
        "columns": {name: name for name in (*columns, "rating")},
    }  # fmt: skip
    evaluation = {"metrics": ["ndcg"], "k": [5], "bootstrap": {"replicates": 10}}
    fitted = {"name": "pinsage", "kind": "pinsage", **FIT, **KINDS["pinsage"]}
    requests = small(
        models=[*models("popular"), fitted], dataset=dataset, split={"protocol": "given"},
        evaluation=evaluation,
    )  # fmt: skip
    ran = run(ArrowStore(str(tmp_path / "w")), requests)
    assert set(ran.outcome.failed) == {"pinsage"} and ran.outcome.exit_code == 1
    assert "none of the 6 nodes has a neighbour" in ran.outcome.failed["pinsage"]
    assert "epoch 1: loss" not in ran.remarks


def read_vectors(items: Any) -> Any:
    """The vectors of a trained model by item."""
    rows = pa.concat_tables(items.each(("item_id", "vector"), pa.concat_tables))
    return rows.to_pandas().set_index("item_id")["vector"]


@pytest.mark.full
def test_a_night_fits_on_two_processes_what_it_fits_in_one(tmp_path) -> None:
    one = {"kind": "pinsage", **FIT, **KINDS["pinsage"], "epochs": 2, "watch": True}
    fitted = [{**one, "name": f"pinsage_{n}", "processes": n} for n in (1, 2)]
    endless = {"name": "endless", "kind": "mf_bpr", **FIT, "dims": 4, "spread": 1e30, "processes": 2}
    benchmark = bench(write_log(tmp_path / "log.parquet"), [*fitted, endless])
    ran = run(ArrowStore(str(tmp_path / "w")), benchmark)
    assert set(ran.outcome.failed) == {"endless"}
    assert re.match(
        "the loss is nan in epoch 1, step 0; .*\n  hint: use a smaller", ran.outcome.failed["endless"]
    )
    watched = re.findall(r"\(test .*?\); best on test would have been epoch \d \(.*?\)", ran.remarks)
    assert len(watched) == 2 and watched[0][:20] == watched[1][:20]
    assert ran.remarks.count("  epoch 2: loss") == 2 and ran.remarks.count("; ended: ") == 2
    alone, two = (
        read_vectors(make_adapter(model).load(ran.night.data).items)
        for model in benchmark.models
        if model.name in ("pinsage_1", "pinsage_2")
    )
    assert len(alone) == len(two) > 10
    assert np.allclose(np.stack(alone), np.stack(two[alone.index]), atol=1e-3)
    assert not np.array_equal(np.stack(alone), np.stack(two[alone.index]))  # fits of their own
