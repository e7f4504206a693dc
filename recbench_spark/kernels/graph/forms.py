"""What layers there are, by name: settings know them without a compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Aggregator = Literal["sum", "mean", "importance", "max", "gcn", "lstm"]
AGGREGATORS: tuple[str, ...] = get_args(Aggregator)

LINEAR = ("sum", "mean", "importance", "gcn")
"""Aggregators that a matrix may be applied before or after."""

SCATTERABLE = (*LINEAR, "max")
"""Aggregators whose parts can be put together."""


@dataclass(frozen=True)
class LayerForm:
    """A layer as it is asked for.

    Attributes:
        form: `convolve` or `sage`.
        aggregator: `convolve` knows sum, mean, importance and max.
        width: dimensions that come out.
        hidden: dimensions of z (convolve, max) or of the LSTM's state.
        join: own vector and aggregate one after the other, or added (of one length).
        relu: whether negative numbers become 0.
        normalise: whether vectors get length 1.
        most: neighbours that the LSTM reads.
    """

    form: Literal["convolve", "sage"]
    aggregator: Aggregator
    width: int
    hidden: int
    join: Literal["concat", "add"] = "concat"
    relu: bool = True
    normalise: bool = True
    most: int = 25
