"""16-bit products: loops against plain Python, bounds against exact sums, ranks against a full count."""

import os
import platform
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from recbench_spark.ranking.kernels import word_loops, words
from recbench_spark.ranking.kernels.counting import CountingSettings, count_products, prepare_products
from recbench_spark.ranking.kernels.instructions import LANES, SIDES
from recbench_spark.ranking.kernels.products import lengths, make_products
from recbench_spark.ranking.kernels.scorers import DotScorer
from tests.ranking.kernels import hard_worlds

KINDS = [np.int16, np.int32]


def draw_rows(draws, rows, dims, extreme):
    """Rows whose parts of 64 dimensions have lengths up to 2^15; extreme ones reach it."""
    if extreme:
        extremes = np.zeros((rows, dims), np.int16)
        extremes[np.arange(rows), draws.integers(0, dims, rows)] = draws.choice([-(2**15), 2**15 - 1], rows)
        extremes[::3] = draws.choice([-4096, 4095], (len(extremes[::3]), dims))
        return extremes
    return draws.integers(-4096, 4096, (rows, dims)).astype(np.int16)


def pack_rows(items_td, kind):
    packed = np.zeros((len(items_td) // 16, items_td.shape[1] // 2, 32), np.int16)
    for t, row in enumerate(items_td):
        word_loops.pack(row, t, kind == np.int16, packed)
    return packed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("dims", [2, 62, 64, 66, 130, 2048])
def test_the_product_is_the_loop_in_plain_python(dims, extreme, kind):
    draws = np.random.default_rng(dims)
    users_rd, items_td = (draw_rows(draws, n, dims, extreme) for n in (12, 128))
    packed, shift = pack_rows(items_td, kind), words.part_bits(dims)
    np.testing.assert_array_equal(word_loops.unpack(packed, kind == np.int16), items_td)
    compiled, plain = (np.full((12, 128), 77, kind) for _ in range(2))
    word_loops.multiply(packed, users_rd, shift, compiled)
    word_loops.multiply_plain(packed, users_rd, shift, plain)
    np.testing.assert_array_equal(compiled, plain)
    exact = users_rd.astype(np.int64) @ items_td.T.astype(np.int64)
    off = exact - (compiled.astype(np.int64) << (shift + (16 if kind == np.int16 else 0)))
    assert off.min() >= 0
    assert off.max() < (65536 if kind == np.int16 else 1) * 2**shift + dims * 2**shift


@pytest.mark.parametrize("kind", KINDS)
def test_the_search_is_the_loop_in_plain_python(kind):
    draws, most = np.random.default_rng(3), np.iinfo(kind).max
    rows = draws.integers(-9, 9, (4, 192)).astype(kind)
    rows[0, :5] = [-most - 1, -most, most - 1, most, 0]
    rows[1] = draws.integers(-most - 1, most, 192)
    limits = [-most, -3, 0, 4, most - 1, most]
    for r in range(4):
        for low in limits:
            for high in limits[limits.index(low) :]:
                places, expected = (np.full(300, -1, np.int32) for _ in range(2))
                counts = word_loops.scan(rows, r, low, high, places, 7)
                assert counts == word_loops.scan_plain(rows, r, low, high, expected, 7)
                np.testing.assert_array_equal(places[: counts[1]], expected[: counts[1]])
                assert np.all(places[counts[1] + LANES :] == -1)


def exact_product(user, item):
    return sum(Fraction(float(u)) * Fraction(float(v)) for u, v in zip(user, item, strict=True))


@pytest.mark.parametrize("dims", [1, 3, 64, 65, 200])
@pytest.mark.parametrize("scale", [1e-45, 1e-20, 1.0, 1e30])
@pytest.mark.parametrize("bias", [0.0, 1e-3, 1e4, 1e300])
def test_the_bound_holds_for_exact_scores_and_is_not_idle(dims, scale, bias):
    draws = np.random.default_rng(dims)
    vectors_ud, vectors_id = ((scale * draws.standard_normal((n, dims))).astype("f4") for n in (6, 30))
    vectors_id[3], vectors_ud[2] = 0, 0
    bias_i = bias * np.round(draws.standard_normal(30), 1) if bias else None
    products = make_products(vectors_id, bias_i)
    (tile,) = words.word_tiles(products, 64)
    halves, length_u = not products.has_biases, lengths(vectors_ud)
    sides = words.round_users(vectors_ud, np.arange(6), 6, words.even_dims(dims))
    found_rt = np.empty((6, 64), np.int16 if halves else np.int32)
    word_loops.multiply(tile.packed, sides.rows, words.part_bits(dims), found_rt)
    fits = words.fit_rows(found_rt, np.arange(6), length_u, sides, tile.size, tile.bias_t)
    for r in range(6):
        unit, bound, slack = map(Fraction, fits[r, :3].tolist())
        if bias == 0.0 and length_u[r]:
            assert float(bound / unit) < 4 + dims / 32  # of 2^14
        for t, item in enumerate(tile.items_t):
            score = exact_product(vectors_ud[r], vectors_id[item]) + Fraction(float(products.bias_i[item]))
            low = unit * int(found_rt[r, t])
            assert low - bound <= score < low + unit * slack + bound


@pytest.mark.parametrize("dims", [0, 1, 7, 8, 9, 64, 100, 2048])
def test_sums_side_by_side_are_the_loop_in_plain_python(dims):
    draws = np.random.default_rng(dims)
    user_d, rows_nd = draws.standard_normal(dims), draws.standard_normal((50, dims)).astype("f4")
    user_d = user_d.astype("f4").astype(np.float64)
    items = draws.integers(0, 50, 3 * SIDES).astype(np.int32)
    sums, expected = np.full((2, len(items)), np.nan)
    word_loops.add_in_order(user_d, rows_nd, items, sums)
    word_loops.add_plain(user_d, rows_nd, items, expected)
    np.testing.assert_array_equal(sums, expected)


@pytest.mark.parametrize("part", range(4))
def test_hard_worlds_have_the_ranks_and_lists_of_a_full_count(part):
    for seed in range(50 * part, 50 * part + 50):
        hard_worlds.check_world(seed)


@pytest.mark.slow
def test_very_many_hard_worlds():
    for seed in range(1000, 3000):
        hard_worlds.check_world(seed)


def test_the_full_count_finds_a_bound_that_is_left_out(monkeypatch):
    """The worlds have teeth."""
    real = words.make_tile

    def boast(*cut):
        tile = real(*cut)
        return tile._replace(size=tile.size._replace(error=0.0, length=0.0))

    monkeypatch.setattr(words, "make_tile", boast)
    with pytest.raises(AssertionError):
        for seed in range(30):
            hard_worlds.check_world(seed)


def test_items_are_rounded_once_and_large_catalogues_anew(monkeypatch):
    made, real = [], words.make_tile
    monkeypatch.setattr(words, "make_tile", lambda *a: (made.append(a[1]), real(*a))[1])
    world = hard_worlds.World(6)
    vectors, scorer = world.vectors, DotScorer(world.items, None, world.scored)
    world = scorer.products, vectors, world.truth, world.masked
    settings = CountingSettings(item_tile=64)
    for _ in range(2):
        count_products(prepare_products(*world), settings)
    starts = list(range(0, len(world[0].order.items_t), 64))
    assert made == starts
    monkeypatch.setattr(words, "KEPT", 0)
    for _ in range(2):
        count_products(prepare_products(*world), settings)
    assert made == 3 * starts


SCRIPT = """
import sys
sys.modules["torch"] = None
if sys.argv[1] == "plain":
    sys.modules["numba"] = sys.modules["llvmlite"] = None
sys.path.insert(0, sys.argv[2])
from recbench_spark.ranking.kernels import word_loops
from tests.ranking.kernels import hard_worlds
assert (word_loops.scan is word_loops.scan_plain) == (sys.argv[1] == "plain")
for seed in (0, 6, 11, 16, 24):
    hard_worlds.check_world(seed)
"""


@pytest.mark.parametrize("how", ["plain", "compiled"])
def test_without_torch_and_without_numba_the_bits_are_the_same(how):
    here = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", SCRIPT, how, str(here)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("features", ["+avx2,+fma", "+avx2,+avxvnni", "+sse4.2", "+avx2,+neon"])
def test_narrower_registers_have_the_same_bits(features, tmp_path):
    """The code that LLVM makes for an older processor runs on this one as well.

    With +neon, which LLVM ignores here, the products are those written for ARM.
    """
    if platform.machine() != "x86_64":
        pytest.skip("features of x86")
    name = "haswell" if "avx2" in features else "nehalem"
    env = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    here = Path(__file__).parents[3]
    subprocess.run(
        [sys.executable, "-c", SCRIPT, "compiled", str(here)], check=True, env={**os.environ, **env}
    )
