"""Kernels of each family of processors beside the plain loop, and how a process chooses one."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recbench_spark.errors import ConfigError
from recbench_spark.ranking.kernels import families, rounding
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.families import DEPTH, FAMILIES, GROUPS, LANES, Batch, KernelFamily
from recbench_spark.ranking.kernels.products import make_pairing, make_products
from recbench_spark.ranking.kernels.scorers import DotScorer, UserBlock, count_ranks
from tests.ranking.kernels.test_counting import check_cutoff, lists, random_world, run, same

HERE = [family for family in FAMILIES if families.works(family)]
"""Families whose instructions this machine has."""


@pytest.fixture(params=HERE, ids=[family.name for family in HERE])
def family(request):
    return request.param


@pytest.fixture
def forget(monkeypatch):
    """Choose anew in this test and after it."""
    families.choose_family.cache_clear()
    yield monkeypatch
    families.choose_family.cache_clear()


def draw_job(family, seed, steps, blocks, batches, levels, biased):
    """Numbers of any size up to the limits, and limits that some products reach."""
    rng, most = np.random.default_rng(seed), min(levels, family.levels)
    packed = rng.integers(128 - levels, 129 + levels, (GROUPS * blocks, steps, DEPTH * LANES))
    rows = rng.integers(-most, most + 1, (family.rows * batches, DEPTH * steps))
    shares = rng.uniform(-1, 1, GROUPS * blocks * LANES * biased).astype(np.float32)
    ones = (10.0 ** rng.uniform(-3, 9, len(rows))).astype(np.float32)
    spread = levels**2 * np.sqrt(DEPTH * steps)
    lows = rng.normal(128 * rows.sum(axis=1), spread).astype(np.int32)
    lows[rng.random(len(lows)) < 0.1] = rng.choice([-(2**31) + 1, 2**31 - 1])
    return packed.astype(np.uint8), shares, Batch(rows.astype(np.int8), ones, lows)


def check_job(family, job):
    items = len(job[0]) * LANES
    expected, reached = (families.make_reached(len(job[2].rows), items) for _ in range(2))
    families.count_reached(*job, expected)
    families.run_family(family.compile(), *job, reached)
    np.testing.assert_array_equal(reached.counts, expected.counts)
    for row, count in enumerate(expected.counts):
        np.testing.assert_array_equal(reached.places[row, :count], expected.places[row, :count])
        np.testing.assert_array_equal(reached.values[row, :count], expected.values[row, :count])


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 40),
    blocks=st.integers(1, 3),
    batches=st.integers(1, 2),
    levels=st.sampled_from([1, 20, 127]),
    biased=st.booleans(),
)
@pytest.mark.parametrize("family", HERE, ids=[family.name for family in HERE])
def test_a_family_finds_what_the_plain_loop_finds(family, seed, steps, blocks, batches, levels, biased):
    check_job(family, draw_job(family, seed, steps, blocks, batches, levels, biased))


@pytest.mark.parametrize("steps", [1, 15, 16, 17, 63, 64, 65, 512, 8192])
def test_the_largest_numbers_do_not_saturate(family, steps):
    packed, shares, batch = draw_job(family, steps, steps, 1, 1, 127, True)
    packed[:2], packed[2:] = 255, 1
    batch.rows[::2], batch.rows[1::2] = family.levels, -family.levels
    batch.ones[:] = 2**30
    check_job(family, (packed, shares, batch._replace(lows=np.full(family.rows, -(2**31) + 1, np.int32))))


@pytest.mark.parametrize("dims", [1, 3, 64, 65, 100, 130, 2048])
@pytest.mark.parametrize("bias", [False, True])
def test_whole_worlds_have_the_same_counts(forget, family, dims, bias):
    forget.setenv(families.VARIABLE, family.name)
    for kind in ("dot", "cosine"):
        world = random_world(dims, users=9, items=400, dims=dims, kind=kind, bias=bias, grid=2)
        whole = run(world, top_k=0)
        for cutoff in (1, 20, 10**6):
            check_cutoff(world, whole, cutoff)


def test_many_positives_and_users_without_any(forget, family):
    forget.setenv(families.VARIABLE, family.name)
    world = random_world(3, users=150, items=3000, dims=20)
    truth = [list(range(0, 3000, 1 + u % 7)) if u % 3 else [] for u in range(150)]
    world = (*world[:5], truth, world[6])
    check_cutoff(world, run(world, top_k=0), 50)


def test_a_sample_of_rounding_errors_is_within_the_bound():
    world = random_world(7, users=20, items=300, dims=30, kind="cosine")
    products = make_products(world[1], kind="cosine")
    pairing = make_pairing(products, world[0])
    users = rounding.round_users(pairing.vectors_ud, pairing.length_u, np.arange(20), 32, families.LEVELS)
    largest = 0.0
    for tile in rounding.round_items(products, None):
        numbers = tile.packed.reshape(len(tile.packed), -1, LANES, DEPTH).astype(np.int64) - 128
        items_td = numbers.transpose(0, 2, 1, 3).reshape(-1, 32)[: len(tile.items_t)]
        rows_td = world[1][tile.items_t] / products.divisor_i[tile.items_t, None]
        for u in range(20):
            score_t = rows_td @ world[0][u].astype(np.float64)
            error_t = np.abs(score_t - users.scale[u] * tile.scale * (items_td @ users.rows[u].astype(int)))
            own, error = users.length[u], users.error[u]
            bound = error * tile.length + (own + error) * tile.error
            largest = max(largest, float((error_t / bound).max()))
    assert 0.1 < largest <= 1.0 + 1e-9


@pytest.mark.parametrize("bias", [False, True])
def test_processes_share_what_the_first_one_rounds(forget, tmp_path, bias):
    """Mapped tiles hold what a process rounds for itself, biases included."""
    if not HERE:
        pytest.skip("this processor has no instructions for 8-bit products")
    made = []

    def share(make):
        if not made:
            for name, array in make().items():
                np.save(tmp_path / f"{name}.npy", array)
            made.append(1)
        return {file.stem: np.load(file, mmap_mode="r") for file in tmp_path.glob("*.npy")}

    forget.setattr(rounding, "_SHARED", 1)
    vectors, items, biases, scored, kind, truth, candidates = random_world(9, items=900, bias=bias)
    alone, *sharing = (
        replace(make_products(items, biases if bias else None, scored, kind), share=one)
        for one in (None, share, share)
    )
    for products in sharing:
        pairs = zip(rounding.round_items(alone, None), rounding.round_items(products, None), strict=True)
        for left, right in pairs:
            for one, other in zip(left, right, strict=True):
                np.testing.assert_array_equal(one, other)
    assert made == [1]
    scorer, block = DotScorer(items, biases, scored, kind, share), UserBlock(np.arange(7), vectors)
    masked = lists([sorted(set(range(900)) - set(row)) for row in candidates])
    options = CountingSettings(cutoff=20, reduced=True), CountingSettings(cutoff=20, reduced=False)
    same(*(count_ranks(scorer, block, lists(truth), masked, settings=one) for one in options))


class TestChoice:
    def test_the_first_that_works(self, forget):
        forget.delenv(families.VARIABLE, raising=False)
        assert families.choose_family() == (HERE[0] if HERE else None)

    def test_one_is_forced_and_none_is_a_choice(self, forget, family):
        forget.setenv(families.VARIABLE, family.name)
        assert families.choose_family() is family
        families.choose_family.cache_clear()
        forget.setenv(families.VARIABLE, "none")
        assert families.choose_family() is None
        world = random_world(4, items=300)
        check_cutoff(world, run(world, top_k=0), 5)

    def test_a_kernel_that_does_not_exist_is_refused(self, forget):
        forget.setenv(families.VARIABLE, "sse9")
        with pytest.raises(ConfigError, match=r"no kernel 'sse9'(.|\n)*here work: .*none"):
            families.choose_family()

    @pytest.mark.parametrize(
        "bad",
        [
            {"features": frozenset({"avx9000"})},
            {"allow": lambda: False},
            {"compile": lambda: 1 / 0},
        ],
    )
    def test_missing_instructions_and_a_refusal_leave_a_family_out(self, forget, bad):
        ran = []
        liar = KernelFamily("liar", frozenset(), 1, lambda: ran.append(1))._replace(**bad)
        assert not families.works(liar)
        assert ran == []

    def test_a_kernel_that_counts_wrongly_is_left_out(self, forget, family):
        forget.setattr(families, "run_family", lambda *job: job[-1].counts.fill(1))
        assert not families.check_family(family)

    def test_an_operating_system_that_hides_instructions(self, forget):
        shown = families.list_features()
        forget.setattr(Path, "read_text", lambda self: "flags : sse2 fpu\n")
        assert families.list_features() == shown & {"sse2", "fpu"}

    def test_features_are_in_the_key_of_the_cache(self):
        from numba.core.registry import cpu_target

        codegen = cpu_target.target_context.codegen()
        key = families.run_family._cache._index_key((), codegen)
        assert codegen.magic_tuple() in key


ALONE = """
import sys
for name in ("torch", {blocked!r}):
    sys.modules[name] = None
import numpy as np
from recbench_spark.core import extras
extras.has_module.cache_clear() if hasattr(extras.has_module, "cache_clear") else None
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.scorers import DotScorer, UserBlock, count_ranks
rng = np.random.default_rng(0)
items, users = rng.standard_normal((300, 10), np.float32), rng.standard_normal((5, 10), np.float32)
truth = ItemLists(np.arange(6) * 4, rng.integers(0, 300, 20))
none = ItemLists.empty(5)
for reduced in (True, False):
    settings = CountingSettings(cutoff=60, reduced=reduced)
    counts = count_ranks(DotScorer(items), UserBlock(np.arange(5), users), truth, none, settings=settings)
    print(counts.above_p.tolist(), counts.tied_p.tolist())
from recbench_spark.ranking.kernels.families import choose_family
print(choose_family() is not None)
"""


@pytest.mark.parametrize("blocked", ["torch", "numba"])
def test_without_torch_and_without_numba(blocked):
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(blocked=blocked)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    reduced, whole, chosen = done.stdout.splitlines()
    assert reduced == whole
    assert chosen == str(blocked == "torch" and bool(HERE))
