"""The members of an adapter have a plain name and an older one; a model may define either."""

from __future__ import annotations

from typing import Any

import pytest

from recbench_spark.config.models import ModelConfig
from recbench_spark.training.model_adapter import Behaviour, ModelAdapter


class Older(Behaviour[ModelConfig]):
    def saved(self, data: Any) -> bool:
        return data == "saved"

    def told(self) -> str:
        return "a model"

    def ranked(self, users: Any, data: Any) -> Any:
        return users, [data]


class Plain(ModelAdapter[ModelConfig]):
    def is_saved(self, data: Any) -> bool:
        return data == "saved"

    def describe(self) -> str:
        return "a model"

    def prepare_ranking(self, users: Any, data: Any) -> Any:
        return users, [data]


@pytest.mark.parametrize("kind", [Older, Plain])
def test_a_model_defines_the_plain_or_the_older_names(kind: Any) -> None:
    adapter = kind(None)
    assert adapter.describe() == "a model"
    assert adapter.is_saved("saved") and not adapter.is_saved("other")
    assert adapter.prepare_ranking("users", "data") == ("users", ["data"])


def test_a_model_without_description_has_none() -> None:
    assert ModelAdapter(None).describe() is None  # type: ignore[arg-type]
