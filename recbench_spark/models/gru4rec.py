"""Settings of `kind: gru4rec`: a recurrent network over ordered items."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from recbench_spark.models.networks.settings import SequenceModelConfig


class Gru4RecModel(SequenceModelConfig):
    """GRU4Rec (Hidasi et al. 2016): gated recurrent units, output layer.

    `layers`: recurrent layers. An item has one vector for reading, and another one with a bias for scoring.
    """

    kind: Literal["gru4rec"]
    layers: Annotated[int, Field(ge=1, le=8)] = 1
