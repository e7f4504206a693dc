"""Signed random projections: L bands with k bits, one token each.

Bit j of band b of a vector v is [p_bj . v >= 0] for a drawn direction p_bj (Charikar 2002, section 3). Two
vectors at angle a agree in one bit with probability 1 - a / pi, so in a band with (1 - a / pi)^k. All pairs
share one draw of directions, so pairs are not independent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.errors import ConfigError
from recbench_spark.ranking.kernels.products import error_bound, lengths

MOST_BITS = 63
"""A token is one signed 64-bit integer."""
ROWS = 4096
"""Vectors projected together: 4 bands bits bytes each."""


class Projections(NamedTuple):
    """Random directions which turn vectors into tokens.

    `directions_jd`: (bands * bits, dims) float32. `length_j`: their lengths.
    """

    directions_jd: Floats32
    length_j: Floats
    bits: int

    @property
    def bands(self) -> int:
        """Number of bands."""
        return len(self.directions_jd) // self.bits


def make_projections(dims: int, *, bands: int, bits: int, seed: int) -> Projections:
    """Draw bands * bits directions from the normal distribution.

    Raises:
        ConfigError: a band has no bit or more than 63, or there is no band.
    """
    if not 1 <= bits <= MOST_BITS:
        raise ConfigError(f"a band of {bits} bits", f"bits lies between 1 and {MOST_BITS}")
    if bands < 1:
        raise ConfigError(f"{bands} bands", "bands is 1 or more")
    draw = np.random.Generator(np.random.PCG64(seed))
    directions = draw.standard_normal((bands * bits, dims)).astype(np.float32)
    return restore_projections(directions, bits)


def restore_projections(directions_jd: Floats32, bits: int) -> Projections:
    """Return projections over stored directions."""
    return Projections(directions_jd, lengths(directions_jd), bits)


def make_tokens(vectors_nd: Floats32, projections: Projections) -> Ints:
    """Return each vector's token in each band, (n, bands).

    The float32 product decides a bit where its error bound allows it. Other bits come from the float64 sum
    in dimension order. So a token depends on the vector alone, not on the block.
    """
    tokens = np.empty((len(vectors_nd), projections.bands), np.int64)
    for start in range(0, len(vectors_nd), ROWS):
        rows = np.ascontiguousarray(vectors_nd[start : start + ROWS])
        products = rows @ projections.directions_jd.T
        _pack_bits(products, rows, lengths(rows), projections, tokens[start : start + ROWS])
    return tokens


@compile_kernel
def _pack_bits(
    products_nj: Floats32, vectors_nd: Floats32, length_n: Floats, projections: Projections, tokens_nb: Ints
) -> None:
    dims = vectors_nd.shape[1]
    for n in range(len(tokens_nb)):
        for b in range(tokens_nb.shape[1]):
            token = np.int64(0)
            for j in range(b * projections.bits, (b + 1) * projections.bits):
                x = float(products_nj[n, j])
                if not abs(x) > error_bound(length_n[n], projections.length_j[j], 0.0, dims):
                    x = 0.0
                    for d in range(dims):
                        x += np.float64(vectors_nd[n, d]) * np.float64(projections.directions_jd[j, d])
                token = (token << 1) | np.int64(x >= 0.0)
            tokens_nb[n, b] = token


def choose_longest(length_i: Floats, share: float) -> Bools:
    """Return a mask over the share of items with longest vectors.

    These items are candidates for every query: a sign does not see a vector's length, but a dot product
    does. Equal lengths go by smaller index.
    """
    always = np.zeros(len(length_i), np.bool_)
    always[np.argsort(-length_i, kind="stable")[: round(share * len(length_i))]] = True
    return always
