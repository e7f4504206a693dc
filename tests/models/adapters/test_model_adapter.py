"""The members of an adapter have a plain name and an older one; a model may define either."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recbench_spark.models.adapters.model_adapter import Behaviour, ModelAdapter
from recbench_spark.models.settings import ModelConfig
from recbench_spark.night.model_fits import hold_fit
from recbench_spark.storage.arrow_store import ArrowStore


class Older(Behaviour[ModelConfig]):
    runs_local = True

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


def test_a_fit_under_a_lease_asks_for_the_plain_name(tmp_path: Path) -> None:
    """A saved fit is not fitted again, by a model that defines `is_saved` alone."""

    class Leased(Plain):
        leased = True

        def key(self, data: Any) -> str:
            return "fit-1"

        def is_saved(self, data: Any) -> bool:
            return True

    data: Any = SimpleNamespace(store=ArrowStore(str(tmp_path)), journal=None)
    with hold_fit(Leased(ModelConfig(name="m", kind="m")), data) as fit:
        assert fit is None
