"""Settings of `kind: memn2n`: a memory network over ordered items."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recbench_spark.models.networks.settings import SequenceModelConfig


class MemN2NModel(SequenceModelConfig):
    """An End-to-End Memory Network over a user's past.

    Source: Sukhbaatar et al. 2015. The newest item is the query, and the `memory` items before it are the
    memories.

    `hops`: how often the memories are read. `tying`: an answer's vectors read the next hop's memories
    (adjacent), or all hops share their vectors, and a linear map leads from hop to hop (layer_wise).
    `linear_epochs`: first epochs without the softmax of the attention; none of them is the best epoch.
    `noise`: chance of an empty memory before each item in training: .1 leaves about .09 of the memories
    empty. `explain`: users whose attention goes to the table `explanations`.
    """

    kind: Literal["memn2n"]
    memory: Annotated[int, Field(ge=1, le=10_000)] = 50
    hops: Annotated[int, Field(ge=1, le=32)] = 3
    tying: Literal["adjacent", "layer_wise"] = "layer_wise"
    linear_epochs: Annotated[int, Field(ge=0, le=10**6)] = 0
    noise: Annotated[float, Field(ge=0, lt=1)] = 0.1
    explain: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_linear_epochs(self) -> Self:
        if self.linear_epochs >= self.epochs:
            raise ValueError(
                f"linear_epochs: {self.linear_epochs} of {self.epochs} epochs leave none with the softmax"
            )
        if 0 < self.patience <= self.linear_epochs:
            raise ValueError(
                f"patience: {self.patience} ends a fit in its {self.linear_epochs} linear epochs"
            )
        return self
