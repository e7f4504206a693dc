"""Define the settings of `kind: gru4rec`: a recurrent network over a user's items in the order of time."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from recbench_spark.models.networks.settings import SequenceModelConfig


class Gru4RecModel(SequenceModelConfig):
    """Gru4RecModel is GRU4Rec (Hidasi et al. 2016): gated recurrent units, with an output layer.

    `layers`: recurrent layers. An item has one vector that is read, and one with a bias that answers.
    """

    kind: Literal["gru4rec"]
    layers: Annotated[int, Field(ge=1, le=8)] = 1
