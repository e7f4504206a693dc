"""Workers read the item vectors of a model from the table itself, where all have one length."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recbench_spark.config.models import ModelConfig
from recbench_spark.schemas import EMBEDDINGS, arrow_rows
from recbench_spark.storage import delta_files
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.delta_tables import list_files
from recbench_spark.training.model_adapter import ModelAdapter

VECTORS = {"one length": [[1.0, 2.0], [3.0, 4.0]], "two lengths": [[1.0, 2.0], [3.0]]}


class Stored(ModelAdapter[ModelConfig]):
    """A model whose key is its name."""

    def key(self, data: Any) -> str:
        return str(data.key(None))


def append_vectors(place: str, model: str, side: str, vectors: list[Any]) -> None:
    """Append vectors of one side of a model."""
    rows = [
        {"model_id": model, "side": side, "id": str(n), "vector": v, "bias": 0.0}
        for n, v in enumerate(vectors)
    ]
    delta_files.append_rows(place, arrow_rows(rows, EMBEDDINGS), f"{model}/{side}")


def check_lengths(root: str) -> None:
    """Check for each model of VECTORS whether its vectors can be read from the table."""
    ArrowStore(root).create(EMBEDDINGS)
    place = f"{root}/{EMBEDDINGS.name}"
    store = SimpleNamespace(
        root=root,
        location=lambda name: f"{root}/{name}",
        list_partition_files=lambda _, partition: list_files(place, partition),
    )
    dims = {}
    for model, vectors in VECTORS.items():
        append_vectors(place, model, "item", vectors)
        append_vectors(place, model, "user", [[1.0]])
    for model in (*VECTORS, "none"):
        data: Any = SimpleNamespace(
            store=store, n_items=2, known_items=None, key=lambda _, model=model: model
        )
        source = Stored(None)._source_from_table(data)  # type: ignore[arg-type]
        dims[model] = source and source.dims
    assert dims == {"one length": 2, "two lengths": None, "none": None}


def test_vectors_of_one_length_are_read_from_a_folder(tmp_path: Path) -> None:
    check_lengths(str(tmp_path))


def test_vectors_of_one_length_are_read_from_object_storage(bucket: str) -> None:
    check_lengths(f"{bucket}/w")
