"""The registry of models: found by kind, by the name of a module, or by `module:Class`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar, Literal

import pytest

from recbench_spark.config import Benchmark, make_benchmark
from recbench_spark.errors import ConfigError
from recbench_spark.models.settings import MODELS, ModelConfig, list_kinds, model_class

DATASET = {"name": "d", "reader": "world"}


def benchmark(**model: Any) -> Benchmark:
    return make_benchmark(
        {"name": "b", "dataset": DATASET, "models": [{"name": "m", **model}]}, [], "b.yaml"
    )


def test_a_model_of_another_package_is_found_by_its_path() -> None:
    (model,) = benchmark(kind="tests.outside_model:NewestModel", step=2).models
    assert type(model).__name__ == "NewestModel" and model.model_dump()["step"] == 2
    assert (model.kind, MODELS["newest"]) == ("newest", type(model))
    with pytest.raises(ConfigError, match=r"b\.yaml: models\.0\.newest\.setp: .*") as error:
        benchmark(kind="tests.outside_model:NewestModel", setp=2)
    assert "step" in error.value.hint


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("meens", r"b\.yaml: models\.0\.kind: no model of kind 'meens'"),
        ("no_module:Model", r"models\.0\.kind: kind 'no_module:Model': No module"),
        ("tests.outside_model:Newest", r"is not a class of models"),
        ("tests.outside_model:Nothing", r"has no attribute 'Nothing'"),
        ("tests.leaving_module:Model", r"importing tests\.leaving_module ends Python: sys\.exit\(3\)"),
        (7, r"models\.0: expected keys and values with a 'kind'"),
        (".models:AlsModel", r"kind '\.models:AlsModel': TypeError: "),
        ("recbench_spark.models.settings:ModelConfig", r"is not a class of models"),
    ],
)
def test_a_kind_that_nobody_knows_is_reported_with_the_nearest(kind: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        benchmark(kind=kind)
    assert kind != "meens" or "means" in error.value.hint


def test_a_misspelt_kind_stands_in_the_message() -> None:
    with pytest.raises(ConfigError, match=r"models\.0: .* a 'kind'; given: name, knid"):
        benchmark(knid="als")


def test_a_module_of_models_is_found_by_its_name() -> None:
    assert model_class("means").__module__ == "recbench_spark.models.rating.means"
    assert {"means", "als", "published"} <= set(list_kinds())


def test_one_kind_is_of_one_class() -> None:
    with pytest.raises(TypeError, match=r"kind 'popular' is taken by recbench_spark\.models\.settings"):

        class Second(ModelConfig):
            behaviour: ClassVar[str] = "nowhere:Nothing"
            kind: Literal["popular"]


def test_settings_load_without_spark_and_torch() -> None:
    load = "load_benchmark('movielens_10m_rating', ['dataset.path=x'])"
    code = (
        f"import sys; from recbench_spark.config import load_benchmark; {load}; "
        "print(sorted({'pyspark', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_later_setting_at_its_default_is_not_stored() -> None:
    stored = benchmark(kind="popular").evaluation.model_dump()
    assert "task" not in stored
    rated = make_benchmark(
        {
            "name": "b",
            "dataset": DATASET,
            "models": [{"name": "m", "kind": "means"}],
            "evaluation": {"task": "rating"},
        },
        [],
        "b",
    )
    assert rated.evaluation.model_dump()["task"] == "rating"
    assert (rated.headline, rated.evaluation.metrics, rated.evaluation.slices) == (
        "rmse",
        ("rmse", "mse", "mae"),
        (),
    )


def test_settings_of_rankings_do_not_go_with_ratings() -> None:
    with pytest.raises(ConfigError, match=r"multiverse: not for task 'rating'"):
        make_benchmark(
            {"name": "b", "dataset": DATASET, "models": [{"name": "m", "kind": "means"}],
             "evaluation": {"task": "rating", "multiverse": True}}, [], "b",
        )  # fmt: skip
