"""Settings of `kind: sasrec`: self-attention over ordered items."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recbench_spark.models.networks.settings import SequenceModelConfig


class SasRecModel(SequenceModelConfig):
    """SASRec (Kang and McAuley 2018): items attend to earlier items.

    `blocks`: blocks with attention and two dense layers. `heads`: attention heads; they divide `dims`.
    Items have one vector, for reading and for scoring.
    """

    kind: Literal["sasrec"]
    blocks: Annotated[int, Field(ge=1, le=32)] = 2
    heads: Annotated[int, Field(ge=1, le=64)] = 1

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.dims % self.heads:
            raise ValueError(f"heads: {self.dims} dims are not divided by {self.heads}")
        return self
