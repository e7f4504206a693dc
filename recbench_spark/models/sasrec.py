"""Define the settings of `kind: sasrec`: self-attention over a user's items in the order of time."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recbench_spark.models.networks.settings import SequenceModelConfig


class SasRecModel(SequenceModelConfig):
    """SasRecModel is SASRec (Kang and McAuley 2018): each item attends to the items before it.

    `blocks`: blocks of attention and of two dense layers. `heads`: heads of an attention; they divide
    `dims`. Items have one vector, which is read and answered with.
    """

    kind: Literal["sasrec"]
    blocks: Annotated[int, Field(ge=1, le=32)] = 2
    heads: Annotated[int, Field(ge=1, le=64)] = 1

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.dims % self.heads:
            raise ValueError(f"heads: {self.dims} dims are not divided by {self.heads}")
        return self
