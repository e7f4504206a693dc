"""Workers read the item vectors of a model from the table itself, where all have one length."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recbench_spark.errors import DataError
from recbench_spark.models.adapters.model_adapter import ModelAdapter
from recbench_spark.models.settings import ModelConfig
from recbench_spark.schemas import EMBEDDINGS, arrow_rows
from recbench_spark.storage import delta_files
from recbench_spark.storage.arrow_store import ArrowStore

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
    store = ArrowStore(root)
    store.create(EMBEDDINGS)
    dims: dict[str, int | None] = {}
    for model, vectors in VECTORS.items():
        append_vectors(store.location(EMBEDDINGS.name), model, "item", vectors)
        append_vectors(store.location(EMBEDDINGS.name), model, "user", [[1.0]])
    for model in (*VECTORS, "none"):
        data: Any = SimpleNamespace(store=store, n_items=2, known_items=None, key=lambda _, m=model: m)
        adapter: Any = Stored(SimpleNamespace(name=model))  # type: ignore[arg-type]
        try:
            dims[model] = adapter.share_vectors(adapter.load(data).items, data).dims
        except DataError as error:
            assert "several lengths" in error.message
            dims[model] = None
    assert dims == {"one length": 2, "two lengths": None, "none": None}


def test_vectors_of_one_length_are_read_from_a_folder(tmp_path: Path) -> None:
    check_lengths(str(tmp_path))


def test_vectors_of_one_length_are_read_from_object_storage(bucket: str) -> None:
    check_lengths(f"{bucket}/w")
