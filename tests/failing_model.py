"""A model of another package that fails in a way and at a place that its settings name."""

from __future__ import annotations

import sys
from typing import ClassVar, Literal

from recbench_spark.errors import FallbackToSpark
from recbench_spark.models.adapters.model_adapter import Behaviour, SplitData, Trained
from recbench_spark.models.settings import ModelConfig
from tests.outside_model import Newest, NewestModel

ERRORS = {
    "disk": OSError(28, "No space left on device", "/mnt/some/file"),
    "network": ConnectionResetError(104, "Connection reset by peer"),
    "memory": MemoryError(),
    "odd": ZeroDivisionError("division by zero"),
    "long": ValueError("x" * 100_000),
    "spark": FallbackToSpark("only Spark reads its table"),
}


class FailingModel(ModelConfig):
    """`how`: one of `ERRORS`, or exit; `where`: in its fit, or while the driver asks what it is."""

    behaviour: ClassVar[str] = "tests.failing_model:Failing"
    kind: Literal["failing"]
    how: str
    where: Literal["fit", "told"] = "fit"


class Failing(Behaviour[FailingModel]):
    """Items by falling id, or an error."""

    def fit(self, data: SplitData) -> Trained:
        """Fail, or return one row an item."""
        if self.settings.where == "fit":
            self._fail()
        return Newest(NewestModel(name="newest", kind="newest")).fit(data)

    @property
    def lists(self) -> bool:  # type: ignore[override]
        """Fail where the driver puts together what was measured."""
        if self.settings.where == "told":
            self._fail()
        return False

    def _fail(self) -> None:
        if self.settings.how == "exit":
            sys.exit(3)
        raise ERRORS[self.settings.how]


class LeavingModel(ModelConfig):
    """Its behaviour lies in a module that ends Python."""

    behaviour: ClassVar[str] = "tests.leaving_module:Leaving"
    kind: Literal["leaving"]
