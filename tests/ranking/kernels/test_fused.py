"""The GPU kernels, on a GPU if there is one and in Triton's interpreter: the same counts, bit for bit."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recbench_spark.ranking import kernels
from recbench_spark.ranking.kernels import counting, devices
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.scorers import DotScorer, UserBlock, count_ranks
from tests.ranking.kernels.test_counting import lists, random_world, run, same

FUSED = "recbench_spark.ranking.kernels.fused"
ROOT = Path(__file__).resolve().parents[3]
CUTOFFS = (0, 1, 3, 20, 1000)


SMALL = {
    "ROWS": 16,
    "ITEMS": 32,
    "FIRST_TILE": 32,
    "LAST_TILE": 64,
    "PAIRS_AT_ONCE": 500,
    "_WRITE_ROWS": 16,
}
"""Sizes that give small worlds several programs, tiles and portions."""


@pytest.fixture(scope="module", params=["cuda", "cuda-small", "interpreter"])
def backend(request):
    """Name what runs the kernels: a GPU, with their own sizes or small ones, or Triton's interpreter.

    The interpreter comes last, since Triton is loaded anew for it.
    """
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    if request.param != "interpreter":
        request.getfixturevalue("cuda")
    return request.param


@pytest.fixture(scope="module")
def device(backend):
    """Name the device of torch."""
    return "cpu:0" if backend == "interpreter" else "cuda"


@pytest.fixture(scope="module")
def fused(backend, device):
    """Load the kernels. Triton reads the variable when it is loaded, so the interpreter loads it anew."""
    importlib.import_module("triton")  # the one that stands there again at the end
    with pytest.MonkeyPatch.context() as patch:
        if backend == "interpreter":
            patch.setenv("TRITON_INTERPRET", "1")
            for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
                if not name.startswith("triton._C"):  # of C++, which registers its types once
                    patch.delitem(sys.modules, name)
        patch.setitem(
            sys.modules, FUSED, None
        )  # undone at the end, like the attribute that `devices` reads
        patch.setattr(kernels, "fused", None, raising=False)
        del sys.modules[FUSED]
        module = importlib.import_module(FUSED)
        for name, size in SMALL.items() if backend != "cuda" else ():
            patch.setattr(module, name, size)
        # Once and first: some tests replace functions that the trial calls.
        assert module.try_kernels(torch.device(device)) == ""
        yield module


@pytest.fixture(scope="module")
def check(fused, device):
    """Return a function that compares counts with the float32 path of the CPU, which has its own oracle."""

    def compare(world, cutoffs=CUTOFFS, **options):
        for cutoff in cutoffs:
            expected = run(world, 0, cutoff=cutoff, reduced=False)
            same(expected, run(world, 0, device=device, cutoff=cutoff, **options))

    return compare


@pytest.mark.full
@pytest.mark.parametrize("kind", ["dot", "cosine"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("grid", [None, 2])
def test_kinds_biases_and_ties(check, kind, bias, grid):
    check(random_world(3, users=20, items=130, kind=kind, bias=bias, grid=grid))


def test_the_kernels_are_what_counts(fused, device, monkeypatch):
    counted = []
    count_block = fused.count_block
    monkeypatch.setattr(
        fused,
        "count_block",
        lambda *args, **more: counted.append(len(args[0])) or count_block(*args, **more),
    )
    world = random_world(1, users=10)
    run(world, 0, device=device, cutoff=3, user_tile=4)
    assert counted == [4, 4, 2]
    for other in ({"cutoff": None}, {"cutoff": 3, "reduced": False}):
        run(world, 0, device=device, **other)
    run(world, 2, device=device, cutoff=3)
    assert counted == [4, 4, 2]


@pytest.mark.parametrize("dims", [1, 31, 33, 130, 300])
def test_any_number_of_dimensions(check, dims):
    check(random_world(dims, users=5, items=50, dims=dims), (3,))


def test_more_dimensions_than_the_kernel_can_subtract_go_to_torch(check, fused, monkeypatch):
    """Near the largest number the kernel is exact at the extremes; beyond it torch counts."""
    assert fused.MOST_DIMS * 127**2 + fused._MOST_BIAS + fused._BEYOND < 2**31
    world = random_world(4, users=2, items=20, dims=300, bias=True)
    monkeypatch.setattr(fused, "MOST_DIMS", 299)
    monkeypatch.setattr(fused, "count_block", None)
    check(world, (3,))


@pytest.mark.parametrize("sign", [-1, 1])
def test_extreme_products_beside_limits_that_nothing_reaches(fused, device, sign):
    """The largest products of the largest number of dimensions, and limits from one end to the other."""
    dims = fused.MOST_DIMS // 128 * 128
    users = np.full((4, dims), 127, "i1")
    items = np.full((fused.ITEMS, dims), sign * 127, "i1")
    items[1::2] = 0
    products = users[:1].astype(np.int64) @ items.T.astype(np.int64)
    limits = [-fused._BEYOND, 0, products[0, 0], fused._BEYOND]
    low, high = np.array(limits), np.array([*limits[1:], fused._BEYOND])
    order = np.minimum(low, high), np.maximum(low, high)
    above, reached, _ = count_whole_numbers(fused, device, users, items, *order)
    assert above.tolist() == (products >= order[1][:, None]).sum(1).tolist()
    assert reached.tolist() == (products >= order[0][:, None]).sum(1).tolist()


def test_popularity_alone(check):
    check(random_world(2, dims=0, bias=True), (3,))


@pytest.mark.parametrize("scale", [1e-45, 1e-23, 1e18, 1e38])
@pytest.mark.parametrize("bias", [False, True])
def test_tiny_and_huge_numbers(check, scale, bias):
    for grid in (None, 1):
        check(random_world(3, items=60, scale=scale, grid=grid, bias=bias), (3, 1000))


def test_huge_and_tiny_items_and_biases_in_one_catalogue(check):
    world = random_world(5, dims=4, bias=True)
    world[1][::7] *= np.float32(1e25)
    world[1][::5] *= np.float32(1e-25)
    world[0][::2] *= np.float32(1e20)
    check(world, (3, 1000))
    world[2][::3] *= 1e300
    check(world, (3, 1000))


def test_zero_vectors_tie_at_the_bias(check):
    world = random_world(11, bias=True)
    world[0][0] = 0
    world[1][:40] = 0
    check(world, (3, 1000))
    without = (*world[:2], np.zeros(90), *world[3:])
    check(without, (3, 1000))
    world[1][:] = 0
    check((*world[:4], "cosine", *world[5:]), (3, 1000))


def near_ties(kind="dot"):
    """One coordinate of each second item moves by one bit: 8-bit products see nothing of it."""
    rng = np.random.default_rng(8)
    vectors, base = rng.standard_normal((6, 16)).astype("f4"), rng.standard_normal(16).astype("f4")
    items = np.tile(base, (120, 1))
    for i in range(0, 120, 2):
        d = rng.integers(16)
        items[i, d] = np.nextafter(items[i, d], np.float32(rng.choice([-9, 9])))
    truth = [rng.permutation(120)[:5].tolist() for _ in range(6)]
    every = [list(range(120)) for _ in range(6)]
    return vectors, items, np.zeros(120), np.ones(120, bool), kind, truth, every


@pytest.mark.full
@pytest.mark.parametrize("kind", ["dot", "cosine"])
def test_near_ties_in_the_last_bit(check, kind):
    check(near_ties(kind), (1, 20, 1000))


def test_duplicated_items_are_ties_in_order(check, device):
    vectors, items = np.ones((3, 8), "f4"), np.ones((150, 8), "f4")
    truth = [[0, 149, 70], [70, 70], [-1, 5]]
    every = [list(range(150)), list(range(1, 150)), list(range(0, 150, 2))]
    world = vectors, items, np.zeros(150), np.ones(150, bool), "dot", truth, every
    counts = run(world, 0, device=device, cutoff=5)
    assert counts.above_p.tolist() == [0, 0, 0, 0, 0, -1, -1]
    assert counts.before_p.tolist() == [0, 149, 70, 69, 69, 0, 0]
    check(world)


@pytest.mark.full
def test_masks_of_everything_users_without_positives_and_many_of_them(check):
    vectors, items, bias, scored, kind, _, _ = random_world(4, users=6, items=80)
    truth = [[], [3], list(range(80)), [5, 6], [], [7] * 3]
    candidates = [[], [], list(range(80)), [5], list(range(80)), [*range(0, 80, 3), 7]]
    check((vectors, items, bias, scored, kind, truth, candidates))
    check((vectors, items, bias, np.zeros(80, bool), kind, truth, candidates), (3,))
    check((vectors[:0], items, bias, scored, kind, [], []), (3,))


def test_unscored_items_may_hold_anything(check):
    world = random_world(51, bias=True)
    world[1][~world[3]] = np.nan
    world[2][~world[3]] = np.inf
    check(world, (3, 1000))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.tuples(st.integers(1, 5), st.integers(1, 70), st.integers(1, 9)),
    form=st.tuples(st.sampled_from(["dot", "cosine"]), st.booleans()),
    exponent=st.integers(-45, 38),
    grid=st.sampled_from([None, 1, 3]),
    cutoff=st.integers(0, 80),
    tiles=st.tuples(st.integers(1, 5), st.sampled_from([None, 1, 40])),
)
def test_any_world(check, seed, size, form, exponent, grid, cutoff, tiles):
    world = random_world(seed, *size, *form, 10.0**exponent, grid)
    check(world, (cutoff,), user_tile=tiles[0], item_tile=tiles[1])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_many_larger_worlds(check, seed):
    """Factors as models have them: some items far longer than others, many undecided pairs."""
    rng = np.random.default_rng(seed)
    world = random_world(seed, users=60, items=600, dims=int(rng.integers(1, 70)), bias=seed % 2 == 1)
    world[1][:] *= rng.lognormal(0, 1, (600, 1)).astype("f4")
    world[1][100:200] = world[1][:100]
    check((*world[:4], ("dot", "cosine")[seed % 3 == 0], *world[5:]), (1, 20, 100))


def test_a_full_device_halves_the_block_and_goes_on(fused, check, monkeypatch):
    world, sizes, make_block = random_world(60, users=9), [], fused.make_block

    def small_device(users_u, **more):
        sizes.append(len(users_u))
        if len(users_u) > 2:
            raise torch.OutOfMemoryError("no room")
        return make_block(users_u, **more)

    monkeypatch.setattr(fused, "make_block", small_device)
    check(world, (3,))
    assert sizes == [9, 4, 4, 2, 2, 2, 2, 1]  # the block after a full one was on its way already


def test_a_device_too_small_for_one_user_says_so(fused, check, monkeypatch):
    def full(*_args, **_more):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(fused, "make_block", full)
    with pytest.raises(torch.OutOfMemoryError, match="no room for one user"):
        check(random_world(60), (3,))


def test_items_that_do_not_fit_go_tile_by_tile_and_are_tried_once(fused, device, monkeypatch):
    tried = []

    def full(*_args):
        tried.append(1)
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(fused, "_put_items", full)
    vectors, items, *_ = world = random_world(61)
    block, scorer = UserBlock(np.arange(7), vectors), DotScorer(items)
    for _ in range(2):
        with pytest.warns(devices.RecbenchWarning, match="items do not fit"):
            counts = count_ranks(
                scorer,
                block,
                lists(world[5]),
                lists([[]] * 7),
                device=device,
                settings=CountingSettings(cutoff=4),
            )
    same(
        count_ranks(scorer, block, lists(world[5]), lists([[]] * 7), settings=CountingSettings(cutoff=4)),
        counts,
    )
    assert len(tried) == 1


def test_bounds_hold_and_leave_little_undecided(fused, device):
    """|s - a c P| <= E on every pair, and what is undecided is a small part of all pairs."""
    rng = np.random.default_rng(5)
    scorer = DotScorer(rng.standard_normal((128, 64)).astype("f4"), rng.standard_normal(128))
    truth = lists([[int(i)] for i in rng.integers(0, 128, 30)])
    vectors = rng.standard_normal((30, 64)).astype("f4")
    prepared = counting.prepare_products(scorer.products, vectors, truth, lists([[]] * 30))
    items = fused._put_items(scorer.products, torch.device(device), 128)
    block = fused.make_block(np.arange(30), prepared, items)
    rows = fused._make_rows(torch.arange(30, device=device), block, items.tiles[0])
    order = scorer.products.order
    exact_rt = scorer.score_rows(UserBlock(np.arange(30), vectors), 0, 30)[:, order.items_t]
    product_rt = block.rows_ud.cpu().to(torch.int64) @ items.rows_td.cpu().to(torch.int64).T
    product_rt += (items.share_t[None, :] * rows.one_r[:, None]).to(torch.int64).cpu()
    above_rt, below_rt = (
        (product_rt >= rows.high_r.cpu()[:, None]).numpy(),
        (product_rt < rows.low_r.cpu()[:, None]).numpy(),
    )
    own_r = block.score_s.cpu().numpy()[:, None]
    assert np.all(exact_rt[above_rt] > np.broadcast_to(own_r, exact_rt.shape)[above_rt])
    assert np.all(exact_rt[below_rt] < np.broadcast_to(own_r, exact_rt.shape)[below_rt])
    assert 0 < np.count_nonzero(~above_rt & ~below_rt) < 0.15 * exact_rt.size


@pytest.mark.full
def test_kernels_that_fail_or_err_are_not_used(fused, check, device, monkeypatch):
    """An error of the compiler, or wrong counts, cost speed and nothing else."""
    count_tile, world = fused._count_tile, random_world(3)

    def wrong(*args):
        above_r, reached_r = count_tile(*args)
        return above_r + 1, reached_r + 1

    def fail(*_args):
        raise RuntimeError("no compiler\nand much else")

    for fault, report in ((wrong, "counts differ"), (fail, r"RuntimeError: no compiler\)")):
        fused.try_kernels.cache_clear()
        monkeypatch.setattr(fused, "_count_tile", fault)
        with pytest.warns(devices.RecbenchWarning, match=report):
            check(world, (3,))
    monkeypatch.undo()
    fused.try_kernels.cache_clear()
    assert fused.try_kernels(torch.device(device)) == ""


def test_tiles_grow_and_cover_everything(fused, monkeypatch):
    monkeypatch.setattr(fused, "FIRST_TILE", 128)
    monkeypatch.setattr(fused, "LAST_TILE", 512)
    assert list(fused._cuts(1500, None, 32)) == [
        (0, 128),
        (128, 384),
        (384, 896),
        (896, 1408),
        (1408, 1500),
    ]
    assert list(fused._cuts(70, 20, 32)) == [(0, 32), (32, 64), (64, 70)]
    assert list(fused._cuts(0, None, 32)) == []


def test_portions_hold_so_many_pairs_or_one_row(fused, monkeypatch):
    monkeypatch.setattr(fused, "PAIRS_AT_ONCE", 5)
    parts = list(fused._portions(torch.tensor([3, 2, 1, 9, 0, 5])))
    assert [(part.start, part.stop) for part in parts] == [(0, 2), (2, 3), (3, 4), (4, 6)]


def test_limits_that_products_meet_count_as_reached(fused, device):
    """Limits go outward by a whole unit, so that no world has one that a product meets: made here."""
    draws = np.random.default_rng(4)
    users, items = (draws.integers(-3, 4, (n, 32)).astype("i1") for n in (5, 64))
    products = users.astype(int) @ items.astype(int).T
    low, high = products[:, 7], products[:, 7] + 4
    above, reached, sides = count_whole_numbers(fused, device, users, items, low, high)
    assert above.tolist() == (products >= high[:, None]).sum(1).tolist()
    assert reached.tolist() == (products >= low[:, None]).sum(1).tolist()
    between = (products >= low[:, None]) & (products < high[:, None])
    rows, block, items, tile = sides
    result = fused._find_undecided(rows, reached - above, int(between.sum()), block, items, tile=tile)
    assert [sorted(some) for some in np.split(result.cpu().numpy(), between.sum(1).cumsum()[:-1])] == [
        np.flatnonzero(row).tolist() for row in between
    ]


def count_whole_numbers(fused, device, users_ud, items_td, low_u, high_u):
    """Return #{P >= high} and #{P >= low} of each user, and the other arguments of the kernels."""
    whole, empty = {"dtype": torch.int32, "device": device}, torch.empty(0, device=device)
    places, dims = items_td.shape
    block = fused._block_items(dims)
    rows_td = torch.zeros((-(-places // block) * block, dims), dtype=torch.int8, device=device)
    rows_td[:places] = torch.from_numpy(items_td)
    items = fused.DeviceItems(torch.empty((0, dims)), *[empty] * 4, rows_td, empty, [])
    block = fused.DeviceBlock(empty, torch.from_numpy(users_ud).to(device), *[empty] * 8)
    user = torch.arange(len(users_ud), device=device)
    limits = torch.tensor(low_u, **whole), torch.tensor(high_u, **whole)
    rows = fused._Rows(user, user, *limits, torch.zeros(len(user), device=device))
    sides = rows, block, items, fused.DeviceTile(0, places, 1.0, 0.0, 1.0, 0.0, 0.0)
    return *fused._count_tile(*sides), sides


CPU_ONLY = """
import sys
import numpy as np
from recbench_spark.ranking.kernels.counting import ItemLists, CountingSettings
from recbench_spark.ranking.kernels.scorers import DotScorer, UserBlock, count_ranks

rng = np.random.default_rng(0)
scorer = DotScorer(rng.standard_normal((50, 4)).astype("f4"))
truth = ItemLists(np.array([0, 1, 2]), np.array([3, 4]))
block = UserBlock(np.arange(2), rng.standard_normal((2, 4)).astype("f4"))
for device in ("cpu", "cpu:0"):
    settings = CountingSettings(cutoff=2)
    count_ranks(scorer, block, truth, ItemLists.empty(2), device=device, settings=settings)
print([name for name in ("triton", "pyspark") if name in sys.modules])
"""

BENCH_ALONE = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "pyspark", "py4j", "delta", "pyarrow", "pandas", "scipy"}:
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Absent())
sys.argv = "bench.py --users 8 --items 40 --dims 4 --k 3 --rounds 1 --device DEVICE --systems".split()
sys.argv += ["product,topk,SYSTEM"]
runpy.run_path("jobs/bench/ranking.py", run_name="__main__")
"""


COMPILED = """
import json, sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from recbench_spark.ranking.kernels import fused

KINDS = {"users": "*i8", "items": "*i8", "bias": "*fp32", "one": "*fp32", "low": "*i32", "high": "*i32"}
KINDS |= {"user": "*i64", "row": "*i64", "place": "*i64", "next": "*i64", "item": "*i64", "sum": "*fp64"}
KINDS |= {"above": "*i32", "reached": "*i32", "found": "*i32"}

def built(kernel, constants, capability, warps, stages, **other):
    kinds = {f"{name}_ptr": kind for name, kind in (KINDS | other).items()}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in names}
    aligned = {(n,): [["tt.divisibility", 16]] for n, name in enumerate(names) if signature[name][0] == "*"}
    values = {(names.index(name),): value for name, value in constants.items()}
    options = {"num_warps": warps, "num_stages": stages}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    return compile(source, target=GPUTarget("cuda", capability, 32), options=options)

for capability in (80, 86, 89, 90, 100):
    for dims in (64, 256, 1024):
        shape = {"dims": dims, "depth": fused._depth(dims), "biased": dims > 64}
        count = shape | {"rows": fused.ROWS, "items": fused._block_items(dims)}
        write = shape | {"rows": fused._WRITE_ROWS, "items": fused._WRITE_ITEMS}
        pairs = shape | {"pairs": fused._PAIRS}
        for kernel, constants, warps, stages in (
            (fused._count_kernel, count, 8, 3),
            (fused._write_kernel, write, 4, 2),
            (fused._subtract_hidden_kernel, pairs, 4, 3),
        ):
            made = built(kernel, constants, capability, warps, stages)
            print(json.dumps([kernel.__name__, capability, made.metadata.shared, made.asm["ptx"]]))
    summed = {"pairs": fused._PAIRS}
    made = built(fused._sum_kernel, summed, capability, 4, 3, users="*fp32", items="*fp32")
    print(json.dumps([fused._sum_kernel.__name__, capability, made.metadata.shared, made.asm["ptx"]]))
"""


SHARED_KB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227}
"""Shared memory of a program by compute capability: CUDA C++ Programming Guide, specifications."""


@pytest.mark.slow
def test_kernels_compile_for_gpus_that_are_not_here(tmp_path):
    """To 8-bit tensor-core instructions, within the shared memory of each; sums lose nothing."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    said = in_a_process(COMPILED, TRITON_CACHE_DIR=str(tmp_path))
    built = [json.loads(line) for line in said.splitlines()]
    assert len(built) == 5 * 10
    for name, capability, shared, ptx in built:
        assert shared <= SHARED_KB[capability] * 1024
        if name in ("_count_kernel", "_write_kernel"):
            wanted = {90: "wgmma.mma_async.sync.aligned.m64n", 100: "tcgen05.mma.cta_group::1.kind::i8"}
            assert wanted.get(capability, "mma.sync.aligned.m16n8k32.row.col") in ptx
        if name == "_sum_kernel":
            assert "cvt.f64.f32" in ptx and "fma.rn.f64" in ptx
            assert ".ftz" not in ptx


def in_a_process(code, **variables):
    command = [sys.executable, "-W", "ignore", "-c", code]
    alone = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        command, cwd=ROOT, env=alone | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_a_run_on_the_cpu_loads_neither_triton_nor_spark():
    assert in_a_process(CPU_ONLY).strip() == "[]"


@pytest.mark.full
@pytest.mark.parametrize(
    ("device", "system", "interpret"), [("cpu", "ranks", "0"), ("cpu:0", "kernel@k", "1")]
)
def test_the_bench_needs_torch_and_numpy_alone(device, system, interpret):
    code = BENCH_ALONE.replace("DEVICE", device).replace("SYSTEM", system)
    said = in_a_process(code, TRITON_INTERPRET=interpret)
    assert "agrees on 1.000000" in said
    assert system in said
