"""Name the kinds of layers and their settings.

Settings import this module without a compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Aggregator = Literal["sum", "mean", "importance", "max", "gcn", "lstm"]
AGGREGATORS: tuple[str, ...] = get_args(Aggregator)

LINEAR = ("sum", "mean", "importance", "gcn")
"""Aggregators where a matrix before or after gives the same result."""

SCATTERABLE = (*LINEAR, "max")
"""Aggregators whose partial results can be combined."""


@dataclass(frozen=True)
class LayerForm:
    """The settings of one layer.

    Attributes:
        form: `convolve` or `sage`.
        aggregator: `convolve` supports sum, mean, importance and max.
        width: dimensions in a new vector.
        hidden: dimensions in z (convolve, max) or in the LSTM's state.
        join: own vector and aggregate are concatenated, or added (then both have one length).
        relu: true if negative numbers become 0.
        normalise: true if vectors get length 1.
        most: neighbours the LSTM reads.
    """

    form: Literal["convolve", "sage"]
    aggregator: Aggregator
    width: int
    hidden: int
    join: Literal["concat", "add"] = "concat"
    relu: bool = True
    normalise: bool = True
    most: int = 25
