"""Families of processors, and what a kernel for one must do.

A kernel multiplies users by items as 8-bit numbers and compares the products where they arise. Each family
has its own (`amx`, `avx`); all do what `count_reached` does. Products are whole numbers below 2^31, exact
in any order, so ranks do not depend on the family.

A process takes the first family in `FAMILIES` whose instructions the processor has, for the compiler and
for the operating system, and whose kernel finds what the plain loop finds in a small world with the largest
numbers. The variable `RECBENCH_KERNEL` forces one of them, or `none`. Machine code is cached by numba under
the processor's name and features, so a cache on a shared home never runs instructions that are missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats32, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel, numba
from recbench_spark.errors import ConfigError
from recbench_spark.ranking.kernels import amx, avx, instructions
from recbench_spark.ranking.kernels.instructions import (
    CODE,
    COUNTS,
    GROUPS,
    ITEMS,
    LANES,
    LOWS,
    ONES,
    PLACES,
    ROOM,
    SHARES,
    STEPS,
    USERS,
    VALUES,
)

Bytes = npt.NDArray[np.int8]
Packed = npt.NDArray[np.uint8]

VARIABLE = "RECBENCH_KERNEL"
LEVELS = 127
"""The largest rounded number, of items and, where nothing saturates, of users."""

DEPTH = 4
"""Dimensions in one step of a product."""

UNSIGNED = 128
"""Added to items' numbers, so a product is too large by this times the sum of the user's numbers."""


class Reached(NamedTuple):
    """Products that reached their user's limit.

    `places`, `values` int32 (rows, room): items by place within the tile, ascending, and products; `counts`
    int64 (rows,): how many. A row has room for all items and `LANES` more.
    """

    places: Ints32
    values: Ints32
    counts: Ints


class Batch(NamedTuple):
    """Users to multiply, row by row, with limits.

    `rows` int8 (rows, 4 steps), from -levels to levels, padded with zeros; `ones` float32 (rows,): the
    tile's largest bias in units of products; `lows` int32 (rows,).
    """

    rows: Bytes
    ones: Floats32
    lows: Ints32


def count_reached(packed: Packed, shares: Floats32, batch: Batch, reached: Reached) -> None:
    """Append each user's products that reach the limit.

    Families do the same with vectors: this is the plain loop.

    Args:
        packed: uint8 (groups, steps, 64): for each group of 16 items and four dimensions, item by item,
            its four numbers plus 128; GROUPS or a multiple.
        shares: float32 (16 groups,): items' biases over the tile's largest; (0,) without biases.
        batch: users' numbers, and limits.
        reached: appended to; counts begin at 0.
    """
    for group, step_g in enumerate(packed.astype(np.int64)):
        for row, user_d in enumerate(batch.rows.astype(np.int64)):
            for lane in range(LANES):
                place = LANES * group + lane
                product = int(step_g[:, DEPTH * lane : DEPTH * (lane + 1)].ravel() @ user_d)
                if len(shares):
                    product += int(np.rint(shares[place] * batch.ones[row]))
                if product >= batch.lows[row]:
                    at = reached.counts[row]
                    reached.places[row, at], reached.values[row, at] = place, product
                    reached.counts[row] += 1


class KernelFamily(NamedTuple):
    """A family of processors.

    `features`: instructions, by LLVM's names; `rows`: a batch has a multiple of so many; `compile`:
    compiles the kernel, and returns its address; `allow`: asks the operating system, and returns whether it
    may run; `levels`: the largest rounded number of users; `pays`: item coordinates per positive from which
    it is faster than 16-bit products, if more than for others.
    """

    name: str
    features: frozenset[str]
    rows: int
    compile: Callable[[], int]
    allow: Callable[[], bool] = lambda: True
    levels: int = LEVELS
    pays: int = 0


_AVX512 = frozenset({"avx512f", "avx512bw", "avx512vl"})
_AVX2_PAYS = 2**19  # measured with 5 positives and 64 dimensions: 20,000 items no, 100,000 yes

FAMILIES = (
    KernelFamily(
        "amx", _AVX512 | {"amx-tile", "amx-int8"}, amx.TOGETHER, amx.count_reached, amx.ask_permission
    ),
    KernelFamily("vnni", _AVX512 | {"avx512vnni"}, avx.VNNI_USERS, avx.count_vnni),
    KernelFamily("avxvnni", frozenset({"avx2", "avxvnni"}), avx.NARROW_USERS, avx.count_narrow),
    KernelFamily(
        "avx2", frozenset({"avx2"}), avx.AVX2_USERS, avx.count_avx2, levels=avx.LEVELS, pays=_AVX2_PAYS
    ),
)
"""All families, the fastest first."""


@cache
def choose_family() -> KernelFamily | None:
    """Return this process's family; None: none works.

    Raises:
        ConfigError: the forced one does not exist, or not work here.
    """
    forced = os.environ.get(VARIABLE, "")
    if forced == "none":
        return None
    for family in FAMILIES:
        if forced in ("", family.name) and works(family):
            return family
    if forced:
        here = [family.name for family in FAMILIES if works(family)]
        raise ConfigError(
            f"{VARIABLE}: no kernel '{forced}' on this machine", f"here work: {', '.join([*here, 'none'])}"
        )
    return None


@cache
def works(family: KernelFamily) -> bool:
    """Tell whether a family's kernel runs here and is right."""
    if not family.features <= list_features() or not family.allow():
        return False
    try:
        return check_family(family)
    except Exception:  # compilers raise anything
        return False


def list_features() -> set[str]:
    """Return instructions known to compiler and operating system.

    A virtual machine or a setting of the kernel can hide some from either.
    """
    if numba is None:
        return set()
    from numba.core.registry import cpu_target  # noqa: PLC0415

    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    compiled = {one[1:] for one in features.split(",") if one.startswith("+")}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # no Linux
        return compiled
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    known = {flag.replace("_", "") for flag in flags.split()}
    return {one for one in compiled if not known or one.replace("-", "").replace("_", "") in known}


def check_family(family: KernelFamily) -> bool:
    """Compare a kernel with the plain loop, in a small world.

    The world has the largest numbers, limits and biases.
    """
    draws = np.random.default_rng(0)
    for steps, biased in ((1, True), (17, False), (64, True)):
        packed = draws.choice([1, 128, 255], (GROUPS, steps, DEPTH * LANES)).astype(np.uint8)
        packed[0] = 255
        shares = draws.uniform(-1, 1, GROUPS * LANES * biased).astype(np.float32)
        most = family.levels
        rows = draws.choice([-most, 0, 5, most], (family.rows, DEPTH * steps)).astype(np.int8)
        rows[0], rows[1] = most, -most
        ones = draws.choice([0, 1, 1e4, 2**30], family.rows).astype(np.float32)
        lows = draws.choice([-(2**31), -(10**5), 0, 10**5, 2**31 - 1], family.rows).astype(np.int32)
        batch = Batch(rows, ones, lows)
        expected, reached = (make_reached(family.rows, GROUPS * LANES) for _ in range(2))
        count_reached(packed, shares, batch, expected)
        run_family(family.compile(), packed, shares, batch, reached)
        for row, count in enumerate(expected.counts):
            same = count == reached.counts[row] and all(
                np.array_equal(one[row, :count], other[row, :count])
                for one, other in zip(expected[:2], reached[:2], strict=True)
            )
            if not same:
                return False
    return True


def make_reached(rows: int, items: int) -> Reached:
    """Make room for all products."""
    room = items + LANES
    places, values = np.empty((rows, room), np.int32), np.empty((rows, room), np.int32)
    return Reached(places, values, np.zeros(rows, np.int64))


@compile_kernel
def run_family(code: int, packed: Packed, shares: Floats32, batch: Batch, reached: Reached) -> None:
    """Run a family's machine code like `count_reached`."""
    job = np.empty(ROOM + 1, np.int64)
    job[CODE], job[ITEMS], job[STEPS] = code, packed.ctypes.data, packed.shape[1]
    job[SHARES] = shares.ctypes.data if len(shares) else 0
    job[USERS], job[ONES], job[LOWS] = (
        batch.rows.ctypes.data,
        batch.ones.ctypes.data,
        batch.lows.ctypes.data,
    )
    job[PLACES], job[VALUES] = reached.places.ctypes.data, reached.values.ctypes.data
    job[COUNTS], job[ROOM] = reached.counts.ctypes.data, reached.places.shape[1]
    instructions.run_code(job.ctypes.data, packed.shape[0], len(batch.rows))
