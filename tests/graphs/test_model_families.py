"""Settings that make two models of two nights are named with both values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from recbench_spark.core.strict_settings import parse
from recbench_spark.errors import ConfigError
from recbench_spark.graphs.kernels.layers import model_weight_shapes, random_weights
from recbench_spark.graphs.model_families import check_family, list_settings, model_family
from recbench_spark.graphs.model_inputs import read_layers
from recbench_spark.graphs.settings import GraphModel


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for dims in (3, 4):
        table = pa.table({"id": [1, 2], "vector": [[1.0] * dims, [2.0] * dims]})
        pq.write_table(table, tmp_path / f"h{dims}.parquet")
    for seed in (1, 2):
        shapes = model_weight_shapes(make(tmp_path).forms(), (), 3)
        save_file(random_weights(shapes, seed), tmp_path / f"w{seed}.safetensors")
    return tmp_path


def make(folder: Path, **keys: Any) -> GraphModel:
    features = {"kind": "table", "path": f"{folder}/h3.parquet", **keys.pop("features", {})}
    layers = [{"width": 4}, {"width": 2}]
    return parse(
        GraphModel, {"graph": {"edges": "e"}, "features": features, "layers": layers, **keys}, "test"
    )


def note(settings: GraphModel) -> dict[str, Any]:
    weighted = read_layers(settings)
    family = model_family(settings, weighted)
    return {"model_id": "m", "family": family, "settings": list_settings(settings, weighted)}


def test_what_nodes_without_features_get_is_no_difference(files) -> None:
    strict, zero = make(files), make(files, features={"missing": "zero"})
    for one, other in ((strict, zero), (zero, strict)):
        check_family(one, read_layers(one), note(other))
        older = {"model_id": "m", "family": model_family(other, read_layers(other), other.features.missing)}
        check_family(one, read_layers(one), older)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"seed": 7}, "seed is 7, and was 42"),
        ({"layers": [{"width": 4}, {"width": 5}]}, r"layers\[1\].width is 5, and was 2"),
        ({"layers": [{"width": 4}]}, r"layers\[1\].form is None, and was sage"),
        ({"wire": "float16"}, "wire is float16, and was float32"),
        ({"features": {"path": "h4.parquet"}}, "features.dims is 4, and was 3"),
        ({"features": {"kind": "degrees", "path": None}}, "features.kind is degrees, and was table"),
        ({"weights": "w1.safetensors"}, "weights is w1.safetensors of digest [0-9a-f]+, and was random"),
    ],
)
def test_another_setting_is_named_with_both_values(keys, told, files) -> None:
    placed = {**keys}
    if "weights" in keys:
        placed["weights"] = f"{files}/{keys['weights']}"
    if keys.get("features", {}).get("path"):
        placed["features"] = {"path": f"{files}/h4.parquet"}
    now = make(files, **placed)
    with pytest.raises(ConfigError, match=f"model m has other settings: .*{told}"):
        check_family(now, read_layers(now), note(make(files)))


def test_other_weights_are_named_by_file_and_digest(files) -> None:
    one, two = (make(files, weights=f"{files}/w{n}.safetensors") for n in (1, 2))
    with pytest.raises(ConfigError) as error:
        check_family(two, read_layers(two), note(one))
    assert "weights is w2.safetensors of digest" in str(error.value)
    assert "was w1.safetensors of digest" in str(error.value) and str(files) not in str(error.value)


def test_a_note_of_an_older_version_says_that_it_does_not_know(files) -> None:
    now, old = make(files, seed=7), note(make(files))
    del old["settings"]
    with pytest.raises(ConfigError, match="an older version has not noted which"):
        check_family(now, read_layers(now), old)
