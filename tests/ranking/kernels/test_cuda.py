"""Counts on a real GPU beside those of the CPU, bit for bit; all skipped where torch sees no GPU.

The kernels of `fused` have the same tests on a GPU as in the interpreter: see `test_fused.py`.
"""

import gc
import importlib.util
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from recbench_spark.ranking.kernels import devices, memory
from tests.ranking.kernels.test_counting import ODD_TILES, lists, random_world, run, same

ROOT = Path(__file__).resolve().parents[3]
MB = 2**20

pytestmark = pytest.mark.usefixtures("cuda")


def with_extremes(world):
    """Change some items and users of a world to huge and tiny ones, zeros and duplicates."""
    world[1][::7] *= np.float32(1e25)
    world[1][::5] *= np.float32(1e-25)
    world[1][40:60] = world[1][20:40]
    world[0][0] = 0
    world[1][70:75] = 0
    return world


WORLDS = {
    "random": lambda: random_world(1, users=30, items=300, dims=33),
    "ties": lambda: random_world(2, users=20, items=200, grid=1),
    "cosine": lambda: random_world(3, users=20, items=200, kind="cosine", bias=True, grid=2),
    "biases": lambda: random_world(4, users=20, items=200, bias=True),
    "extremes": lambda: with_extremes(random_world(5, users=20, items=200, dims=4, bias=True)),
    "denormal": lambda: random_world(6, scale=1e-45),
    "tiny": lambda: random_world(7, scale=1e-23),
    "large": lambda: random_world(8, scale=1e18),
    "huge": lambda: random_world(9, scale=1e38, bias=True),
    "no dimensions": lambda: random_world(10, dims=0, bias=True),
}


@pytest.mark.parametrize("name", WORLDS)
def test_torch_counts_and_lists_as_the_cpu_does(name):
    world = WORLDS[name]()
    expected = run(world)
    for tiles in ({}, *ODD_TILES[:2], {"user_tile": 2, "item_tile": 31}):
        same(expected, run(world, device="cuda", **tiles))
    for cutoff in (1, 4, 1000):
        options = {"cutoff": cutoff, "reduced": False}
        same(run(world, 0, **options), run(world, 0, device="cuda", **options))


def large_world(seed, users, items, dims, kind="dot", bias=False):
    """Make a world of several tiles and programs; the positives are near the top of a list."""
    draws = np.random.default_rng(seed)
    vectors, matrix = (draws.standard_normal((n, dims)).astype("f4") for n in (users, items))
    matrix *= draws.lognormal(0, 0.3, (items, 1)).astype("f4")
    matrix[100:200] = matrix[:100]
    truth = draws.integers(0, items, (users, 5))
    vectors += np.float32(0.3) * matrix[truth].sum(axis=1)
    biases = np.round(draws.standard_normal(items), 1) if bias else None
    masked = draws.integers(0, items, (users, 40))
    return vectors, matrix, biases, kind, lists(truth.tolist()), lists(masked.tolist())


def count(world, device, **options):
    from recbench_spark.ranking.kernels.counting import CountingSettings
    from recbench_spark.ranking.kernels.scorers import DotScorer, UserBlock, count_ranks

    vectors, matrix, biases, kind, truth, masked = world
    scorer, block = DotScorer(matrix, biases, None, kind), UserBlock(np.arange(len(vectors)), vectors)
    settings = CountingSettings(**options)
    return count_ranks(scorer, block, truth, masked, device=device, settings=settings)


@pytest.mark.parametrize(
    ("dims", "kind", "bias"),
    [(64, "dot", False), (64, "cosine", True), (128, "dot", True), (200, "dot", False)],
)
def test_many_tiles_and_programs(dims, kind, bias):
    """Sizes as they are in use; few ranks beyond the cut-off are open to the last tile."""
    world = large_world(dims, 1500, 40_000, dims, kind, bias)
    expected = count(world, "cpu", cutoff=100)
    assert np.mean(expected.above_p < 100) > 0.1
    for options in ({}, {"user_tile": 700}, {"item_tile": 5000}, {"reduced": False}):
        same(expected, count(world, "cuda", cutoff=100, **options))


def test_the_kernels_of_this_gpu_are_in_use(monkeypatch, recwarn):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("Triton has no 8-bit products on this GPU")
    from recbench_spark.ranking.kernels import fused

    fused.try_kernels.cache_clear()
    assert fused.try_kernels(torch.device("cuda")) == ""
    counted, count_block = [], fused.count_block
    monkeypatch.setattr(
        fused, "count_block", lambda *args, **more: counted.append(count_block(*args, **more))
    )
    run(random_world(1), 0, device="cuda", cutoff=3)
    assert counted == [None]
    assert not [one for one in recwarn if issubclass(one.category, devices.RecbenchWarning)]


@contextmanager
def room(megabytes):
    """Let this process allocate so much more on the GPU, and no more."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + megabytes * MB) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


@pytest.mark.parametrize(
    ("megabytes", "options"),
    [(48, {"cutoff": 100}), (160, {"cutoff": 100, "reduced": False}), (160, {"top_k": 10})],
    ids=["kernels", "torch", "lists"],
)
def test_blocks_are_halved_where_memory_really_runs_out(megabytes, options, monkeypatch):
    """The limit is torch's own, which the estimate of the block does not know of."""
    world = large_world(3, 6000, 20_000, 32)
    expected = count(world, "cpu", **options)
    count(world, "cuda", **options)  # what stays in memory: cuBLAS, compiled kernels
    halved, halve = [], devices._halve

    def halve_and_note(step, device):
        halved.append(step)
        return halve(step, device)

    monkeypatch.setattr(devices, "_halve", halve_and_note)
    with room(megabytes):
        same(expected, count(world, "cuda", **options))
    assert halved


def test_a_task_stays_within_its_part(monkeypatch):
    device, total = torch.device("cuda", 0), torch.cuda.mem_get_info()[1]
    monkeypatch.setattr(memory, "_SHARES", {})
    try:
        memory.limit_memory(device, 0.25)
        assert 0 < memory.device_room(device) <= 0.25 * total
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(int(0.25 * total), dtype=torch.int8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_copy_to_the_cpu_waits_for_the_work_before_it():
    work = torch.full((2048, 2048), 2.0, device="cuda")
    for _ in range(20):
        work = work @ work / 4096
    assert np.all(memory.to_host(work) == 2.0)


def test_copies_ahead_are_whole_while_the_gpu_is_busy():
    """Each block is used late, when the copies of the next ones are long done or still to come."""
    device = torch.device("cuda")
    work = torch.ones((2048, 2048), device=device)

    def make(n):
        return (memory.to_device(np.full(2**20, n, np.int32), device),)

    for n, (block,) in memory.prefetch(make, range(30), device):
        for _ in range(5):
            work = work @ work / 2048
        assert int((block != n).sum()) == 0


SHARED = """
import numpy as np, torch
from recbench_spark.ranking.kernels import memory
from tests.ranking.kernels.test_cuda import count, large_world
memory.limit_memory(torch.device("cuda", 0), 0.25)
counts = count(large_world(1, 3000, 30_000, 64), "cuda:0", cutoff=100)
print(counts.above_p.sum(), counts.before_p.sum(), counts.tied_p.sum())
"""


@pytest.mark.slow
def test_tasks_that_share_a_gpu_count_the_same():
    expected = count(large_world(1, 3000, 30_000, 64), "cpu", cutoff=100)
    command = [sys.executable, "-W", "ignore", "-c", SHARED]
    tasks = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    sums = [expected.above_p.sum(), expected.before_p.sum(), expected.tied_p.sum()]
    assert [task.communicate()[0].split() for task in tasks] == [[str(one) for one in sums]] * 4
