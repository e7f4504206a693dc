"""The page from a PyTorch Geometric model to a night, run block by block: its weights, its commands."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable

from recbench_spark import cli
from tests.test_docs import DOCS, FENCED

PAGE = DOCS / "how_to" / "embed_a_pyg_model.md"
BLOCKS = FENCED.findall(PAGE.read_text())
USERS, ITEMS = 40, 30


def blocks(kind: str) -> list[str]:
    return [body for language, body in BLOCKS if language == kind]


def run(line: str, **words: str) -> int:
    """Run a command of the page, with words in the place of others."""
    for old, new in words.items():
        line = line.replace(old, new)
    name, *flags = shlex.split(line.removeprefix("recbench "))
    job = import_module(f"recbench_spark.commands.{name}")
    with pytest.raises(SystemExit) as ended:
        cli.run(job.main, job.parser(), flags)
    return int(ended.value.code or 0)


def write_log(items: int) -> tuple[np.ndarray, np.ndarray]:
    """Write rows of training over some items, and held-out pairs; return users and items of training."""
    rng = np.random.default_rng(3)
    pairs = np.sort(rng.choice(USERS * items, 300, replace=False))
    users, chosen = pairs // items, pairs % items
    names = {"user_id": [f"u{u}" for u in users], "item_id": [f"i{i}" for i in chosen]}
    table = pa.table({**names, "event_time": pa.array(rng.permutation(300) + 10**9)})
    held = np.zeros(300, bool)
    held[::7] = True
    pq.write_table(table, "log.parquet")
    pq.write_table(table.filter(pa.array(~held)).select(["user_id", "item_id"]), "train.parquet")
    pq.write_table(table.filter(pa.array(held)).select(["user_id", "item_id"]), "test.parquet")
    return users[~held], chosen[~held]


def read_vectors(model_id: str) -> dict[str, np.ndarray]:
    rows = DeltaTable("warehouse/pyg/embeddings").to_pandas(filters=[("model_id", "=", model_id)])
    return {row.id: np.array(row.vector) for row in rows.itertuples()}


def export_weights() -> Any:
    """Run the page's block of Python, and return its model."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(blocks("python")[0], "page", "exec", dont_inherit=True), names)
    return names["model"]


def compute_by_pyg(model: Any, users: np.ndarray, items: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Return the model's vectors of all items and users over the whole graph, items first."""
    torch = pytest.importorskip("torch")
    features = torch.zeros(len(h) + USERS, h.shape[1])
    features[: len(h)] = torch.from_numpy(h)
    one, other = torch.from_numpy(items), torch.from_numpy(users + len(h))
    edges = torch.stack([torch.cat([one, other]), torch.cat([other, one])])
    with torch.no_grad():
        return model(features, edges).numpy()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.full
def test_the_page_leads_from_weights_to_a_night(spark, tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("torch_geometric.nn")
    monkeypatch.chdir(tmp_path)
    h = np.random.default_rng(1).standard_normal((ITEMS, 4)).astype(np.float32)
    pq.write_table(pa.table({"id": [f"i{i}" for i in range(ITEMS)], "vector": list(h)}), "items.parquet")
    users, items = write_log(ITEMS)
    model = export_weights()
    Path("model.yaml").write_text(blocks("yaml")[0])
    embed, again, evaluate = (body.strip() for body in blocks("bash"))

    assert run(embed) == 0
    first = re.search(r"model (\S+): table embeddings", capsys.readouterr().out)[1]
    want, vectors = compute_by_pyg(model, users, items, h), read_vectors(first)
    names = [*(f"i{i}" for i in range(ITEMS)), *(f"u{u}" for u in range(USERS))]
    seen = [(vectors[name], want[n]) for n, name in enumerate(names) if name in vectors]
    assert len(seen) == len(vectors) >= 60
    for one, other in seen:
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)

    # The next day has items without features: said before the graph is there, then they get zeros.
    write_log(ITEMS + 3)
    graphs = {path.name for path in Path("warehouse/pyg/graph_files").iterdir()}
    assert run(embed) == 1
    error = capsys.readouterr().err
    assert "nodes of side item have none: i3" in error and "(--missing zero)" in error
    assert {
        path.name for path in Path("warehouse/pyg/graph_files").iterdir() if path.name[0] != "."
    } == graphs
    assert run(again, MODEL_ID=first) == 0
    second = re.search(r"model (\S+): table embeddings", capsys.readouterr().out)[1]
    assert "drift_common" in set(DeltaTable("warehouse/pyg/manifests").to_pandas()["fact"])
    assert {"i30", "i31", "i32"} & read_vectors(second).keys()
    assert run(f"{again} --seed 7 --widths 16,4", MODEL_ID=first) == 2
    error = capsys.readouterr().err
    assert "layers[1].width is 4, and was 8" in error or "does not fit the layers" in error

    assert run(evaluate, MODEL_ID=second) == 0
    assert "recall" in capsys.readouterr().out

    # Both nights: the stored vectors, and the same weights over the night's own training rows.
    for n, block in enumerate(blocks("yaml")[1:]):
        night = yaml.safe_load(block.replace("3f9c2a517be04d86", second))
        document = {
            "name": f"night{n}",
            "dataset": {"name": "log", "reader": "parquet", "path": "log.parquet", "time_unit": "s"},
            "split": {"protocol": "TO_RS", "ratio": [0.8, 0.0, 0.2]},
            "evaluation": {"metrics": ["ndcg"], "k": [10]},
            **night,
        }
        Path("night.yaml").write_text(yaml.safe_dump(document))
        assert (
            run(
                f"recbench nightly --config night.yaml --warehouse warehouse/n{n} --logical-date 2026-01-01"
            )
            == 0
        )
        rows = DeltaTable(f"warehouse/n{n}/metrics").to_pandas()
        assert len(rows) and DeltaTable(f"warehouse/n{n}/runs").to_pandas()["model"].nunique() == 2
