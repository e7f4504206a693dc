"""`kind: graph` in a night: graph of the training part, layers, rankings, leaderboard, in one command."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from deltalake import DeltaTable
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from recbench_spark import cli
from recbench_spark.commands import nightly
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.errors import ConfigError
from recbench_spark.graphs import incremental_run
from recbench_spark.graphs.build import read_ids
from recbench_spark.graphs.folders import read_graph
from recbench_spark.graphs.kernels.layers import LayerForm, model_weight_shapes, random_weights
from recbench_spark.graphs.model_inputs import read_weights
from tests.nights import models, run, small

DIMS = 6
FORMS = (LayerForm("sage", "mean", 5, 5), LayerForm("sage", "mean", 4, 4))
LAYERS = [{"width": 5}, {"width": 4}]


def write_log(path: Path, seed: int, users: int = 30, items: int = 20) -> str:
    """A log in which some item and some user have one row each."""
    draw = np.random.default_rng(seed)
    pairs = sorted(
        {
            (int(u), int(i))
            for u, i in zip(draw.integers(users, size=300), draw.integers(items, size=300), strict=True)
        }
    )
    rows = {
        "user_id": [f"u{u}" for u, _ in pairs],
        "item_id": [str(i) for _, i in pairs],
        "rating": [float(1 + (u + i) % 5) for u, i in pairs],
        "event_time": list(range(len(pairs))),
    }
    pq.write_table(pa.table(rows), path)
    return str(path)


def bench(log: str, *more: dict[str, Any], **changes: Any) -> Any:
    evaluation = {"metrics": ["ndcg"], "k": [5], "user_metrics": True, "bootstrap": {"replicates": 10}}
    dataset = {"name": "log", "reader": "parquet", "path": log}
    split = {"protocol": "RO_RS", "ratio": [0.8, 0.0, 0.2], "seed": 5}
    changes = {"dataset": dataset, "split": split, "evaluation": evaluation, **changes}
    return small(models=[*models("popular"), *more], **changes)


def graph_net(name: str = "net", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "graph",
        "features": {"kind": "hashed", "dims": DIMS},
        "layers": LAYERS,
        **more,
    }


# ------------------------------------------------------------------------------ before Spark starts


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"layer": LAYERS}, "did you mean 'layers'"),
        ({"layers": [{"aggregator": "meen"}]}, "did you mean 'mean'"),
        ({"layers": [{"aggregator": "gcn"}]}, "mode bipartite pools twice"),
        ({"features": {"kind": "table"}}, "path belongs to kind: table"),
        ({"features": {"kind": "hashed", "side": "itm"}}, "itm is none of user, item"),
    ],
)
def test_a_wrong_setting_is_named_with_the_nearest(more, message) -> None:
    with pytest.raises(ConfigError) as error:
        bench("x", graph_net(**more))
    assert message in str(error.value)


def dry(folder: Path, **more: Any) -> int:
    import yaml

    file = folder / "bench.yaml"
    pq.write_table(pa.table({"user_id": [1], "item_id": [1]}), folder / "log.parquet")
    document = bench(str(folder / "log.parquet"), graph_net(**more)).model_dump(
        mode="json", exclude_defaults=True
    )
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(SystemExit) as ended:
        flags = ["--config", str(file), "--warehouse", "w", "--logical-date", "2026-01-01", "--dry-run"]
        cli.run(nightly.main, nightly.parser(), flags)
    return int(ended.value.code or 0)


def test_a_dry_run_looks_at_features_and_weights(tmp_path, capsys) -> None:
    pq.write_table(pa.table({"id": ["1"], "vector": [[1.0] * DIMS]}), tmp_path / "h.parquet")
    table = {"kind": "table", "path": str(tmp_path / "h.parquet")}
    save_file(random_weights(model_weight_shapes(FORMS, (), DIMS), 1), tmp_path / "w.safetensors")
    assert dry(tmp_path, features=table, weights=str(tmp_path / "w.safetensors")) == 0
    assert "dimensions 6 -> 5 -> 4; 4 weights, of the right shapes" in capsys.readouterr().out
    assert dry(tmp_path, features={"kind": "degrees"}, weights=str(tmp_path / "w.safetensors")) == 2
    assert "model net: " in (report := capsys.readouterr().err) and "layers.0.W.weight" in report
    assert (
        dry(tmp_path, features={"kind": "table", "path": "nowhere.parquet"}) == 1
    )  # it may be there later
    assert "nowhere.parquet" in capsys.readouterr().err
    assert dry(tmp_path, weights="nowhere.safetensors") == 2
    assert "nowhere.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_weights_of_every_floating_type_are_read_exactly(kind, tmp_path) -> None:
    """All numbers of 16 bits: also the smallest ones, zeros of both signs and infinities."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    wanted = bits.view(kind) if kind.itemsize == 2 else bits.to(kind) / 7
    wanted = wanted[~wanted.isnan()].reshape(2, -1)
    save_torch({"W.weight": wanted, "W.bias": torch.zeros(0, dtype=kind)}, tmp_path / "w.safetensors")
    result, _ = read_weights(str(tmp_path / "w.safetensors"))
    assert result["W.bias"].shape == (0,) and result["W.weight"].shape == wanted.shape
    assert result["W.weight"].astype(np.float64).tobytes() == wanted.double().numpy().tobytes()


@pytest.mark.parametrize(
    ("kind", "name"),
    [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8"), (torch.complex64, "C64"), (torch.bool, "BOOL")],
)
def test_weights_of_another_type_are_refused_by_name(kind, name, tmp_path) -> None:
    save_torch({"W.weight": torch.ones(2, 3).to(kind)}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=rf"w.safetensors: W.weight holds numbers of type {name}"):
        read_weights(str(tmp_path / "w.safetensors"))


def test_a_dry_run_takes_a_checkpoint_in_bfloat16(tmp_path, capsys) -> None:
    shapes = model_weight_shapes(FORMS, (), DIMS)
    given = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_torch(given, tmp_path / "w.safetensors")
    features = {"kind": "hashed", "dims": DIMS}
    assert dry(tmp_path, features=features, weights=str(tmp_path / "w.safetensors")) == 0
    assert "4 weights, of the right shapes" in capsys.readouterr().out


def test_a_gate_on_drift_needs_a_model_that_has_it(tmp_path, capsys) -> None:
    from recbench_spark.night.benchmark_checks import check_benchmark

    gates = [{"fact": "drift_cosin_p10", "below": 0.5}]
    with pytest.raises(ConfigError, match="no model reports the fact 'drift_cosin_p10'") as error:
        check_benchmark(bench("x", graph_net(), gates=gates))
    assert "did you mean 'drift_cosine_p10'" in str(error.value)
    with pytest.raises(ConfigError, match="drift_common"):
        check_benchmark(bench("x", gates=[{"fact": "drift_common", "below": 0.5}]))


# ------------------------------------------------------------------------------ a night


def read_pairs(folder: Path) -> list[tuple[str, str]]:
    """(user, item) of every edge into the items of a graph."""
    graph = read_graph(str(folder))
    names = [str(i) for b in graph.blocks for i in read_ids(graph, b).to_pylist()]
    result = []
    for block in graph.side_blocks(1):
        csr = graph.csr(block)
        for r in range(block.rows):
            result += [
                (names[s], names[block.first + r]) for s in csr.src[csr.indptr[r] : csr.indptr[r + 1]]
            ]
    return sorted(result)


def frame(place: Path, table: str, **partition: str) -> Any:
    filters = [(name, "=", value) for name, value in partition.items()] or None
    return DeltaTable(place / table).to_pandas(partitions=filters)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> str:
    """A log whose split two nights share."""
    return write_log(tmp_path_factory.mktemp("log") / "log.parquet", 1)


@pytest.mark.full
def test_a_night_ranks_what_it_embeds_and_a_failed_model_fails_alone(splits, log, tmp_path) -> None:
    place = tmp_path / "w"
    few = pa.table({"id": ["1", "2"], "vector": [[1.0] * DIMS] * 2})
    pq.write_table(few, tmp_path / "few.parquet")
    lacking = graph_net("lacking", features={"kind": "table", "path": str(tmp_path / "few.parquet")})
    # All items have features, and one that nobody has seen.
    vectors = np.random.default_rng(2).standard_normal((21, DIMS)).astype(np.float32)
    table = pa.table({"id": [str(i) for i in [*range(20), 99]], "vector": list(vectors)})
    pq.write_table(table, tmp_path / "h.parquet")
    save_file(random_weights(model_weight_shapes(FORMS, (), DIMS), 1), tmp_path / "w.safetensors")
    given = graph_net(
        "given",
        features={"kind": "table", "path": str(tmp_path / "h.parquet")},
        weights=str(tmp_path / "w.safetensors"),
        wire="float16",
    )
    requests = bench(log, graph_net(), lacking, given)
    store = splits.copy(requests, place)
    ran = run(store, requests)
    assert list(ran.outcome.failed) == ["lacking"] and ran.outcome.exit_code == 1
    report = ran.outcome.failed["lacking"]
    assert "nodes of side item have none: " in report
    assert {"popular", "net", "given"} <= set(ran.outcome.leaderboard.split())
    assert "layer 1 pool (mean, plan" in ran.remarks and "times the predicted time" in ran.remarks

    split_id = ran.night.split_id
    splits = frame(place, "splits", split_id=split_id)
    train, test = (
        sorted(zip(part["user_id"], part["item_id"], strict=True))
        for part in (splits[splits["part"] == name] for name in ("train", "test"))
    )
    folders = sorted(file.parent for file in (place / "graph_files").glob("*/graph.json"))
    assert len(folders) == 2  # of the net; with the item that has features and no row
    for folder in folders:
        assert folder.name.startswith(f"{split_id}-")
        assert read_pairs(folder) == train and not set(read_pairs(folder)) & set(test)
    manifest = frame(place, "manifests")
    edges = manifest[(manifest["split_id"] == split_id) & (manifest["fact"] == "graph_edges")]
    assert edges["value"].tolist() == [len(train)] * 2  # what lacks features is not told of
    assert edges["detail"].str.contains("part train alone").all()

    # The ranks are those of the dot products of the embeddings as they lie.
    layers = frame(place, "graph_runs")
    name = layers[layers["model"] == "net"]["model_id"].iloc[0]
    rows = frame(place, "embeddings", model_id=name)
    user, item = (
        {r.id: np.array(r.vector, np.float64) for r in rows[rows["side"] == side].itertuples()}
        for side in ("user", "item")
    )
    runs = frame(place, "runs").set_index("model")
    rankings = frame(place, "rankings")
    rankings = rankings[rankings["run_id"] == runs.loc["net", "run_id"]]
    seen = {u: {i for v, i in train if v == u} for u, _ in train}
    for row in rankings.itertuples():
        scores = {i: user[row.user_id] @ v for i, v in item.items() if i not in seen[row.user_id]}
        wanted = [sum(s > scores[t] for s in scores.values()) if t in scores else -1 for t in row.item_ids]
        assert list(row.above) == wanted
        assert set(row.item_ids) == {i for u, i in test if u == row.user_id}

    # A second run does nothing but the failed; the mended one alone is computed.
    assert sorted(layers["model"]) == ["given"] * 5 + ["net"] * 5
    again = run(store, requests)
    assert again.outcome.skipped == ("popular", "net", "given")
    assert len(frame(place, "graph_runs")) == len(layers)


@pytest.mark.full
def test_drift_of_a_night_is_held_by_a_gate(splits, log, tmp_path, monkeypatch) -> None:
    place, net = tmp_path / "w", graph_net(mode="projected")
    before = bench(log, net, gates=[{"fact": "drift_common", "below": 0.5}])
    store = splits.copy(before, place)
    first = run(store, before)
    assert first.outcome.exit_code == 0  # nothing has moved: there is no night before

    monkeypatch.setattr(incremental_run, "_predict_seconds", lambda *_: (2.0, 1.0))
    later_log = write_log(tmp_path / "two.parquet", 2)
    held = [{"fact": "drift_cosine_p01", "part": "item", "below": 0.9999, "action": "fail"}]
    tomorrow = date(2026, 1, 2)
    second = run(store, bench(later_log, net, gates=held), tomorrow)
    assert "only these are computed" in second.remarks and "drift cosine p01" in second.remarks
    assert second.outcome.exit_code == 3 and list(second.outcome.failed) == ["net"]
    assert "item: drift_cosine_p01 is" in second.outcome.failed["net"]
    assert set(second.outcome.run_ids) == {"popular"}
    # The same night again, the gate a warning: made before, told by the check.
    mild = [{**held[0], "action": "warn"}]
    third = run(store, bench(later_log, net, gates=mild), tomorrow)
    assert third.outcome.exit_code == 0 and set(third.outcome.run_ids) == {"net"}
    checks = frame(place, "checks")
    result = checks[checks["check"] == "item: drift_cosine_p01"]
    assert result["severity"].tolist() == ["warning"] and not result["passed"].any()
    assert result["run_id"].tolist() == [third.outcome.run_ids["net"]]
    # The log unchanged since: nothing moved, nothing is computed.
    later = run(store, bench(later_log, net, gates=held), date(2026, 1, 3))
    assert later.outcome.exit_code == 0 and "already made" in later.remarks


def test_the_nights_date_is_filled_into_paths_of_a_section() -> None:
    net = graph_net(features={"kind": "table", "path": "h-{logical_date}"}, weights="w-{logical_date:%Y}")
    filled = fill_placeholders(bench("x", net), date(2026, 1, 2)).models[1]
    assert (filled.features.path, filled.weights) == ("h-2026-01-02", "w-2026")
