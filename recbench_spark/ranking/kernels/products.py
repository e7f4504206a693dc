"""Vectors to multiply: exact float64 scores, and float32 error bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.errors import DataError
from recbench_spark.ranking.kernels.instructions import SIDES
from recbench_spark.ranking.kernels.word_loops import add_in_order

_UNIT = 2.0**-24  # unit roundoff of float32
_TINY = 2.0**-126  # smallest normal float32: the largest loss by flushing to zero
_HUGE = 2.0**126  # above this a float32 product may overflow
_SLACK = 1.0 + 2.0**-20  # covers float64 roundings in norms, bound and score itself


class Order(NamedTuple):
    """Scored items by falling length; places t.

    `items_t`, `length_t`; `bias_t`: the largest bias from this place on; `place_i` maps an item to its
    place, -1 if it is not scored.
    """

    items_t: Ints
    length_t: Floats
    bias_t: Floats
    place_i: Ints


@dataclass(frozen=True)
class Products:
    """Item side of vector products; `counting` has the equation.

    `vectors_id` float32, may be memory-mapped; `divisor_i`, `bias_i` float64; `scored_i` bool; `length_i`
    float64, the multiplied row's length (0 if not scored).
    """

    vectors_id: Floats32
    divisor_i: Floats
    bias_i: Floats
    scored_i: Bools
    length_i: Floats
    widened: bool
    """True if the bias is one more dimension in the product; NaN in it excludes an item."""

    share: Callable[[Callable[[], dict[str, Any]]], dict[str, Any]] | None = None
    """Returns what its argument makes; on each host only the first process makes these arrays."""

    @property
    def dims(self) -> int:
        """Stored vectors' length."""
        return int(self.vectors_id.shape[1])

    @cached_property
    def order(self) -> Order:
        """Items by falling length, sorted once.

        The sort is stable: items with equal lengths stay in order.
        """
        items_t = np.flatnonzero(self.scored_i)
        items_t = items_t[np.argsort(-self.length_i[items_t], kind="stable")]
        bias_t = np.maximum.accumulate(self.bias_i[items_t][::-1])[::-1]
        place_i = np.full(len(self.scored_i), -1, np.int64)
        place_i[items_t] = np.arange(len(items_t))
        return Order(items_t, self.length_i[items_t], bias_t, place_i)

    @cached_property
    def has_biases(self) -> bool:
        """True if a bias is not 0."""
        return bool(self.bias_i.any())

    @cached_property
    def words(self) -> dict[int, list[Any]]:
        """Items rounded by `ranking.kernels.words`, by tile size."""
        return {}

    @cached_property
    def on_devices(self) -> dict[str, Any]:
        """Items moved to devices by `ranking.kernels.fused`, by device."""
        return {}

    @cached_property
    def item_tiles(self) -> dict[str, Any]:
        """Items rounded by `ranking.kernels.rounding`, by tiles."""
        return {}

    @cached_property
    def changes(self) -> dict[bytes, tuple[Any, Any]]:
        """Items' changes dealt by `ranking.kernels.moments`, by tiles, with all times."""
        return {}

    def item_operand(self, start: int, stop: int) -> Floats32:
        """Return rows for the float32 product, (items, dims or dims + 1)."""
        cut = slice(start, stop)
        operand = np.empty((stop - start, self.dims + self.widened), np.float32)
        operand[:, : self.dims] = self.vectors_id[cut]
        divided = np.flatnonzero(self.divisor_i[cut] != 1.0)
        rows = self.vectors_id[start + divided].astype(np.float64)
        operand[divided, : self.dims] = rows / self.divisor_i[start + divided, None]
        if self.widened:
            with np.errstate(over="ignore"):  # an infinite bias makes the bound infinite
                operand[:, -1] = np.where(self.scored_i[cut], self.bias_i[cut], np.nan)
        return operand

    def user_operand(self, vectors_ud: Floats32) -> Floats32:
        """Return the users' vectors, widened by 1 for the bias.

        The vectors are widened only if the product is.
        """
        if not self.widened:
            return vectors_ud
        return np.hstack([vectors_ud, np.ones((len(vectors_ud), 1), np.float32)])

    def size(self, start: int, stop: int) -> tuple[float, float]:
        """Return the largest length and largest |bias| among these items."""
        if start == stop:
            return 0.0, 0.0
        return float(self.length_i[start:stop].max()), float(np.abs(self.bias_i[start:stop]).max())


def make_products(
    vectors_id: Floats32,
    bias_i: Floats | None = None,
    scored_i: Bools | None = None,
    kind: Literal["dot", "cosine"] = "dot",
) -> Products:
    """Measure the item vectors in one pass.

    Raises:
        DataError: numbers are not finite.
    """
    items, dims = vectors_id.shape
    vectors_id = readonly(np.ascontiguousarray(vectors_id, np.float32))
    scored = np.ones(items, np.bool_) if scored_i is None else np.array(scored_i, np.bool_)
    bias = np.zeros(items) if bias_i is None else np.where(scored, bias_i, 0.0)
    length_i = np.where(scored, lengths(vectors_id), 0.0)
    check_finite(length_i, "item vectors", "train again, or mark these items as not scored")
    check_finite(bias, "item biases", "train again, or mark these items as not scored")
    cosine = kind == "cosine"
    divisor_i = np.where(length_i > 0.0, length_i, 1.0) if cosine else np.ones(items)
    lengths_i = np.where(length_i > 0.0, 1.0, 0.0) if cosine else length_i
    widened = bias_i is not None or dims == 0 or not bool(scored.all())
    return Products(vectors_id, divisor_i, bias, scored, lengths_i, widened)


def check_finite(values: Floats | Floats32, name: str, hint: str) -> None:
    """Refuse rows that are not finite.

    Raises:
        DataError: with the number of such rows.
    """
    wrong = int(np.count_nonzero(~np.isfinite(values)))
    if wrong:
        raise DataError(f"{wrong} {name} hold NaN or infinite numbers", hint)


@compile_kernel
def lengths(vectors_nd: Floats32) -> Floats:
    """Return each row's Euclidean length, float64, summed in index order."""
    out = np.empty(vectors_nd.shape[0])
    for n in range(vectors_nd.shape[0]):
        total = 0.0
        for d in range(vectors_nd.shape[1]):
            total += np.float64(vectors_nd[n, d]) * np.float64(vectors_nd[n, d])
        out[n] = math.sqrt(total)
    return out


class Pairing(NamedTuple):
    """The exact score's two sides, as arrays."""

    vectors_ud: Floats32
    length_u: Floats
    vectors_id: Floats32
    length_i: Floats
    divisor_i: Floats
    bias_i: Floats
    scored_i: Bools


def make_pairing(products: Products, vectors_ud: Floats32) -> Pairing:
    """Check the users' vectors and combine them with the items'."""
    if vectors_ud.ndim != 2 or vectors_ud.shape[1] != products.dims:
        raise DataError(
            f"user vectors of shape {vectors_ud.shape}, item vectors of {products.dims} dimensions",
            "take both from the same model",
        )
    vectors_ud = readonly(np.ascontiguousarray(vectors_ud, np.float32))
    length_u = lengths(vectors_ud)
    check_finite(length_u, "user vectors", "train again, or leave these users out")
    p = products
    return Pairing(vectors_ud, length_u, p.vectors_id, p.length_i, p.divisor_i, p.bias_i, p.scored_i)


@compile_kernel
def exact_score(pairing: Pairing, u: int, i: int) -> float:
    """Return s_ui, the score by its definition in `counting`."""
    total = 0.0
    if pairing.length_u[u] > 0.0 and pairing.length_i[i] > 0.0:  # else the sum is 0
        for d in range(pairing.vectors_ud.shape[1]):
            total += np.float64(pairing.vectors_ud[u, d]) * np.float64(pairing.vectors_id[i, d])
    return float(total / pairing.divisor_i[i] + pairing.bias_i[i])


@compile_kernel
def exact_scores(pairing: Pairing, users_c: Ints, items_c: Ints) -> Floats:
    """Return s_ui for pairs, float64 (c,).

    NaN for an unknown (-1) or unscored item.
    """
    out, first = np.full(len(items_c), np.nan), 0
    for c in range(len(items_c)):
        if c + 1 == len(items_c) or users_c[c + 1] != users_c[first]:
            out[first : c + 1] = score_items(pairing, users_c[first], items_c[first : c + 1])
            first = c + 1
    return out


@compile_kernel
def score_items(pairing: Pairing, u: int, items_c: Ints | Ints32) -> Floats:
    """Return s_ui for a user's items, as `exact_scores` does."""
    places = np.zeros(-(-len(items_c) // SIDES) * SIDES, np.int32)
    for c in range(len(items_c)):
        places[c] = max(items_c[c], 0)
    scores = np.empty(len(places))
    if len(pairing.scored_i):
        add_in_order(pairing.vectors_ud[u].astype(np.float64), pairing.vectors_id, places, scores)
    for c in range(len(items_c)):
        i = items_c[c]
        known = i >= 0 and pairing.scored_i[i]
        scores[c] = scores[c] / pairing.divisor_i[i] + pairing.bias_i[i] if known else np.nan
    return scores[: len(items_c)]


@compile_kernel
def error_bound(length_u: float, length: float, bias: float, dims: int) -> float:
    """Return the bound E on a float32 product's error.

    Source: N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., eq. 3.5: |fl(x'y) - x'y| <=
    gamma_n |x|'|y| with gamma_n = n u / (1 - n u), in any order of summation.

    For the product x, |x - s| <= E holds in any order and with flushing to zero. n = dims + 2: the bias is
    one more term, and rounding operands to float32 (unit vectors of the cosine, bias) costs at most one
    more factor 1 + u. E is infinite if x may overflow.
    """
    n = dims + 2
    size = length_u * length + bias
    if not size < _HUGE:
        return np.inf
    gamma = n * _UNIT / (1.0 - n * _UNIT)
    lost = _TINY * (2.0 * n + math.sqrt(n) * (length_u + length + 1.0))
    return (gamma * size + lost) * _SLACK


@compile_kernel
def error_bounds(length_u: Floats, length: float, bias: float, dims: int) -> Floats:
    """Return `error_bound` for each user."""
    out = np.empty(len(length_u))
    for u in range(len(length_u)):
        out[u] = error_bound(length_u[u], length, bias, dims)
    return out


@compile_kernel
def uncertainty_range(score: float, bound: float) -> tuple[np.float32, np.float32]:
    """Return the smallest and largest float32 product possible for `score`.

    The two ends are rounded outward. One step beyond the nearest float32 also covers the float64 rounding
    of score -+ bound.
    """
    low = np.nextafter(np.float32(score - bound), np.float32(-np.inf))
    high = np.nextafter(np.float32(score + bound), np.float32(np.inf))
    return low, high


@compile_kernel
def uncertainty_limits(scores_s: Floats, bound_s: Floats) -> tuple[Floats32, Floats32]:
    """Return `uncertainty_range` for each score."""
    low, high = np.empty(len(scores_s), np.float32), np.empty(len(scores_s), np.float32)
    for s in range(len(scores_s)):
        low[s], high[s] = uncertainty_range(scores_s[s], bound_s[s])
    return low, high
