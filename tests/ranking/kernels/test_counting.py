"""Ranks by counting against a slow, obvious oracle: a Python loop and a sorted list."""

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recbench_spark.errors import DataError
from recbench_spark.ranking.kernels import cutoff as cutoff_kernel
from recbench_spark.ranking.kernels import devices, families, products
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.scorers import (
    NUMPY_TILES,
    DotScorer,
    UserBlock,
    count_listed,
    count_ranks,
)


def lists(rows):
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return ItemLists(offsets, np.array([i for row in rows for i in row], np.int64))


def oracle_score(user, item, bias=0.0, kind="dot"):
    """Index order, float64, one addition a dimension: the definition, in plain Python."""
    total, square = 0.0, 0.0
    for u, v in zip(user.tolist(), item.tolist(), strict=True):
        total += u * v
        square += v * v
    if kind == "cosine":
        total = total / math.sqrt(square) if square > 0 else 0.0
    return total + bias


def oracle_user(scores, truth, candidates, top_k):
    """above, tied, before of each truth item, and the list, from scores by item."""
    order = sorted(candidates, key=lambda i: (-scores[i], i))
    counts = []
    for p in truth:
        if p not in candidates:
            counts.append((-1, 0, 0))
            continue
        above = sum(scores[c] > scores[p] for c in candidates)
        tied = [c for c in candidates if scores[c] == scores[p] and c != p]
        counts.append((above, len(tied), sum(c < p for c in tied)))
    return counts, [(i, scores[i]) for i in order[:top_k]]


def check(world, counts, top_k):
    """Compare with the oracle, number by number, bit by bit."""
    vectors, items, bias, scored, kind, truth, candidates = world
    p = 0
    for u, row in enumerate(truth):
        ranked = {i for i in candidates[u] if i >= 0 and scored[i]}
        scores = {i: oracle_score(vectors[u], items[i], bias[i], kind) for i in ranked}
        expected, best = oracle_user(scores, row, ranked, top_k)
        for above, tied, before in expected:
            result = counts.above_p[p], counts.tied_p[p], counts.before_p[p]
            assert result == (above, tied, before), (u, row, p)
            p += 1
        assert counts.candidates_u[u] == len(ranked)
        listed = list(zip(counts.top_items_uk[u].tolist(), counts.top_scores_uk[u].tolist(), strict=True))
        assert listed[: len(best)] == best
        assert all(i == -1 and math.isnan(s) for i, s in listed[len(best) :])


def same(left, right):
    for field in fields(left):
        a, b = getattr(left, field.name), getattr(right, field.name)
        np.testing.assert_array_equal(a, b, err_msg=field.name)


def run(world, top_k=5, device="cpu", **options):
    vectors, items, bias, scored, kind, truth, candidates = world
    everything = set(range(len(items)))
    masked = [sorted(everything - set(row)) for row in candidates]
    scorer = DotScorer(items, bias if bias.any() else None, scored, kind)
    block = UserBlock(np.arange(len(vectors)), vectors)
    requests = CountingSettings(top_k=top_k, **options)
    return count_ranks(scorer, block, lists(truth), lists(masked), device=device, settings=requests)


def random_world(seed, users=7, items=90, dims=5, kind="dot", bias=False, scale=1.0, grid=None):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((users, dims))
    matrix = rng.standard_normal((items, dims))
    if grid:  # few distinct values: many exact ties
        vectors, matrix = np.round(vectors * grid) / grid, np.round(matrix * grid) / grid
    largest = np.finfo("f4").max  # scaled beyond it they would be infinite, which is refused
    vectors, matrix = (np.clip(x * scale, -largest, largest).astype("f4") for x in (vectors, matrix))
    biases = np.round(rng.standard_normal(items), 1) if bias else np.zeros(items)
    scored = rng.random(items) > (0.2 if bias else 0.0)
    truth = [rng.integers(-1, items, rng.integers(0, 6)).tolist() for _ in range(users)]
    candidates = [rng.permutation(items)[: items - rng.integers(0, 40)] for _ in range(users)]
    return vectors, matrix, biases, scored, kind, truth, [row.tolist() for row in candidates]


ODD_TILES = [{"user_tile": 1, "item_tile": 1}, {"user_tile": 3, "item_tile": 17}, {"threads": 3}]


def check_everywhere(world, top_k=5):
    """The oracle's numbers, under every cut of the work and on the torch path."""
    whole = run(world, top_k)
    check(world, whole, top_k)
    for options in ODD_TILES:
        same(whole, run(world, top_k, **options))
    same(whole, run(world, top_k, device=NUMPY_TILES))
    same(whole, run(world, top_k, device=NUMPY_TILES, user_tile=2, item_tile=31))
    same(whole, run(world, top_k, device="cpu:0"))
    same(whole, run(world, top_k, device="cpu:0", user_tile=2, item_tile=31))
    for cutoff in (1, 4, 10**6):
        check_cutoff(world, whole, cutoff)


def check_cutoff(world, whole, cutoff):
    """Within the cut-off the same counts, beyond it the cut-off; in 8 bits or not, however cut."""
    beyond = whole.above_p >= cutoff
    reduced = [{"reduced": True, **options} for options in ({}, *ODD_TILES, {"item_tile": 64})]
    for options in [{"reduced": False}, *reduced]:
        cut = run(world, top_k=0, cutoff=cutoff, **options)
        np.testing.assert_array_equal(cut.above_p, np.where(beyond, cutoff, whole.above_p))
        np.testing.assert_array_equal(cut.tied_p, np.where(beyond, 0, whole.tied_p))
        np.testing.assert_array_equal(cut.before_p, np.where(beyond, 0, whole.before_p))


@pytest.mark.parametrize("dims", [0, 1, 2, 5, 64, 65, 512])
def test_any_number_of_dimensions(dims):
    check_everywhere(random_world(dims, dims=dims, bias=dims == 0))


@pytest.mark.parametrize("kind", ["dot", "cosine"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("grid", [None, 1, 4])
def test_kinds_biases_and_ties(kind, bias, grid):
    for seed in range(2):
        check_everywhere(random_world(seed, kind=kind, bias=bias, grid=grid))


@pytest.mark.parametrize("kind", ["dot", "cosine"])
@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1e-19, 1e19, 1e38])
def test_tiny_and_huge_numbers(scale, kind):
    for grid in (None, 1):
        check_everywhere(random_world(3, scale=scale, grid=grid, kind=kind))


def test_huge_and_tiny_items_in_one_catalogue():
    world = random_world(5, dims=4, bias=True)
    world[1][::7] *= np.float32(1e25)
    world[1][::5] *= np.float32(1e-25)
    world[0][::2] *= np.float32(1e20)
    check_everywhere(world)


def test_huge_biases():
    world = random_world(6, bias=True)
    world[2][::3] *= 1e300
    check_everywhere(world)


@pytest.mark.parametrize("kind", ["dot", "cosine"])
def test_near_ties_in_the_last_bit(kind):
    rng = np.random.default_rng(8)
    vectors = rng.standard_normal((6, 16)).astype("f4")
    base = rng.standard_normal(16).astype("f4")
    items = np.tile(base, (120, 1))
    for i in range(0, 120, 2):  # one coordinate of each second item moves by one bit
        d = rng.integers(16)
        items[i, d] = np.nextafter(items[i, d], np.float32(rng.choice([-9, 9])))
    truth = [rng.permutation(120)[:5].tolist() for _ in range(6)]
    every = [list(range(120)) for _ in range(6)]
    world = vectors, items, np.zeros(120), np.ones(120, bool), kind, truth, every
    check_everywhere(world, top_k=50)


def test_float32_products_alone_would_be_wrong():
    """The adversary has teeth: float32 scores of these items order some pairs otherwise."""
    rng = np.random.default_rng(9)
    vectors = rng.standard_normal((4, 64)).astype("f4")
    items = (rng.standard_normal(64) + 1e-7 * rng.standard_normal((300, 64))).astype("f4")
    truth = [[10 * u + 1] for u in range(4)]
    every = [list(range(300)) for _ in range(4)]
    world = vectors, items, np.zeros(300), np.ones(300, bool), "dot", truth, every
    check_everywhere(world)
    x_ui = vectors @ items.T
    above = [int((x_ui[u] > x_ui[u, row[0]]).sum()) for u, row in enumerate(truth)]
    assert above != run(world).above_p.tolist()


def test_constant_scores_and_duplicates_of_items():
    vectors, items = np.ones((3, 8), "f4"), np.ones((700, 8), "f4")
    truth = [[0, 699, 350], [350, 350], [-1, 5]]
    every = [list(range(700)), list(range(1, 700)), list(range(0, 700, 2))]
    world = vectors, items, np.zeros(700), np.ones(700, bool), "dot", truth, every
    counts = run(world, top_k=20)
    check(world, counts, 20)
    assert counts.above_p.tolist() == [0, 0, 0, 0, 0, -1, -1]  # 5 is masked for the last user
    assert counts.before_p.tolist() == [0, 699, 350, 349, 349, 0, 0]
    check_everywhere(world, top_k=20)


def test_zero_vectors_tie_at_the_bias():
    world = random_world(11, bias=True)
    world[0][0] = 0
    world[1][:40] = 0
    check_everywhere(world)
    check_everywhere((*world[:4], "cosine", *world[5:]))


def test_lists_of_every_length():
    for top_k in (1, 2, 64, 100, 300):
        check_everywhere(random_world(12, items=230, users=3, grid=2), top_k)


def test_lists_longer_than_a_tile_and_rising_scores():
    """Each tile beats the one before: the worst order for a running threshold."""
    items = np.linspace(-1, 1, 5000, dtype="f4").repeat(2)[:, None]
    every = [list(range(10000))]
    scored = np.ones(10000, bool)
    world = np.ones((1, 1), "f4"), items, np.zeros(10000), scored, "dot", [[9999]], every
    counts = run(world, top_k=150)
    assert counts.top_items_uk[0, :4].tolist() == [9998, 9999, 9996, 9997]
    same(counts, run(world, top_k=150, item_tile=77))
    same(counts, run(world, top_k=150, device="cpu:0", item_tile=1000))


def test_without_users_items_truth_or_candidates():
    check_everywhere(random_world(1, users=0))
    vectors, items, *_ = random_world(1, users=2)
    nothing = (np.zeros(90), np.ones(90, bool), "dot", [[], [3]], [[], []])
    check_everywhere((vectors, items, *nothing))
    no_items = (np.zeros(0), np.ones(0, bool), "dot", [[-1], []], [[], []])
    check_everywhere((vectors, items[:0], *no_items))
    unscored = (np.zeros(90), np.zeros(90, bool), "dot", [[1], [2]], [[1, 2], [2]])
    check_everywhere((vectors, items, *unscored))


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    users=st.integers(1, 5),
    items=st.integers(1, 70),
    dims=st.integers(0, 9),
    kind=st.sampled_from(["dot", "cosine"]),
    bias=st.booleans(),
    exponent=st.integers(-45, 38),
    grid=st.sampled_from([None, 1, 3]),
)
@example(seed=0, users=1, items=33, dims=9, kind="dot", bias=False, exponent=38, grid=None)
def test_any_world(seed, users, items, dims, kind, bias, exponent, grid):
    world = random_world(seed, users, items, dims, kind, bias, 10.0**exponent, grid)
    check_everywhere(world, top_k=4)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(1, 6))
def test_a_split_of_the_users_changes_nothing(seed, cut):
    world = random_world(seed, grid=2)
    whole = run(world)
    parts = [
        run((world[0][a], *world[1:5], world[5][a], world[6][a])) for a in (slice(0, cut), slice(cut, None))
    ]
    for field in fields(whole):
        halves = np.concatenate([getattr(part, field.name) for part in parts])
        np.testing.assert_array_equal(getattr(whole, field.name), halves)


@pytest.mark.parametrize("cutoff", [0, 1, 3, 20, 1000])
def test_a_cutoff_is_exact_within_and_only_within(cutoff):
    world = random_world(21, items=500, users=40, grid=3)
    check_cutoff(world, run(world, top_k=0), cutoff)
    cut = run(world, top_k=0, cutoff=cutoff)
    same(cut, run(world, top_k=0, cutoff=cutoff, device="cpu:0", item_tile=64))
    same(run(world, cutoff=cutoff), run(world, cutoff=cutoff, item_tile=64))


def test_users_and_items_without_length_and_biases_of_any_size():
    for seed, size in enumerate([0.0, 1e-310, 1e-30, 1e6, 1e300]):
        world = random_world(40 + seed, items=300, users=12, bias=True)
        world[0][:3], world[1][:100] = 0, 0
        biased = (*world[:2], world[2] * size, *world[3:])
        for cutoff in (1, 5, 50):
            check_cutoff(biased, run(biased, top_k=0), cutoff)


def test_more_undecided_items_than_there_is_room_for():
    vectors, items, *_ = random_world(50, users=3, items=3000)
    near = (items[:1] * (1 + 1e-6 * np.arange(3000)[:, None])).astype("f4")  # distinct in float64 alone
    truth, everything = [[0, 1500, 2999]] * 3, [list(range(3000))] * 3
    world = (vectors, near, np.zeros(3000), np.ones(3000, bool), "dot", truth, everything)
    for cutoff in (1, 700, 10**6):
        check_cutoff(world, run(world, top_k=0), cutoff)


def test_whole_number_products_are_exact_here_and_the_reduced_path_is_taken(monkeypatch):
    if families.choose_family() is None:
        pytest.skip("this processor has no instructions for 8-bit products")
    taken = []
    real = cutoff_kernel.count_products
    monkeypatch.setattr(cutoff_kernel, "count_products", lambda *a: (taken.append(1), real(*a)))
    world = random_world(51)
    run(world, top_k=0, cutoff=3, reduced=True)
    run(world, top_k=0, cutoff=3, reduced=False)
    run(world, top_k=2, cutoff=3, reduced=True)
    run(world, top_k=0, reduced=True)
    assert taken == [1]
    run(world, top_k=0, cutoff=3)  # a few items: does not pay
    assert taken == [1]
    large = random_world(52, users=2, items=30_000, dims=16)
    run((*large[:5], [[1], [2]], large[6]), top_k=0, cutoff=3)
    assert taken == [1, 1]


def test_a_mapped_file_of_item_vectors(tmp_path):
    world = random_world(30, kind="cosine")
    np.save(tmp_path / "items.npy", world[1])
    mapped = np.load(tmp_path / "items.npy", mmap_mode="r")
    same(run(world), run((world[0], mapped, *world[2:])))


def test_duplicates_in_masks_are_one():
    vectors, items, *_ = random_world(31, users=1)
    block, scorer = UserBlock(np.arange(1), vectors), DotScorer(items)
    once = count_ranks(scorer, block, lists([[3, 8]]), lists([[8, 5, 1]]))
    again = count_ranks(scorer, block, lists([[3, 8]]), lists([[1, 5, 5, -1, 8, 8, 1]]))
    same(once, again)
    assert once.candidates_u.tolist() == [87]


def test_the_error_bound_holds_and_is_not_idle():
    rng = np.random.default_rng(40)
    vectors, items = rng.standard_normal((20, 64)), rng.standard_normal((50, 64))
    vectors, items = vectors.astype("f4"), items.astype("f4")
    length_u, length_i = products.lengths(vectors), products.lengths(items)
    for u in range(20):
        for i in range(50):
            x = np.float32(0)
            for d in range(64):
                x += vectors[u, d] * items[i, d]
            error = abs(float(x) - oracle_score(vectors[u], items[i]))
            bound = products.error_bound(length_u[u], length_i[i], 0.0, 64)
            assert error <= bound
            assert bound < 1e-4 * length_u[u] * length_i[i]


def test_given_candidates_against_the_oracle():
    for seed in range(5):
        world = random_world(seed, kind="cosine", bias=True, grid=1)
        vectors, items, bias, scored, kind, truth, candidates = world
        doubled = lists([row[:30] + row[:9] + [-1] for row in candidates])
        scorer, block = DotScorer(items, bias, scored, kind), UserBlock(np.arange(7), vectors)
        counts = count_listed(scorer, block, lists(truth), doubled, top_k=12)
        check((*world[:6], [row[:30] for row in candidates]), counts, 12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_and_counted(bad):
    vectors, items, *_ = random_world(50)
    items[[3, 4], 2] = bad
    with pytest.raises(DataError, match=r"2 item vectors hold NaN or infinite.*\n.*hint"):
        DotScorer(items)
    scored = np.ones(90, bool)
    scored[[3, 4]] = False
    scorer = DotScorer(items, None, scored)  # what is not scored may hold anything
    vectors[1, 0] = bad
    none = ItemLists.empty(7)
    with pytest.raises(DataError, match="1 user vectors"):
        count_ranks(scorer, UserBlock(np.arange(7), vectors), none, none)
    with pytest.raises(DataError, match="1 item biases"):
        DotScorer(items, np.where(np.arange(90) == 7, bad, 0.0), scored)


def test_unscored_items_may_hold_anything():
    world = random_world(51, bias=True)
    world[1][~world[3]] = np.nan
    world[2][~world[3]] = np.inf
    check_everywhere(world)


def test_lists_that_do_not_fit_are_refused():
    vectors, items, *_ = random_world(52)
    scorer, block = DotScorer(items), UserBlock(np.arange(7), vectors)
    none = ItemLists.empty(7)
    with pytest.raises(DataError, match="1 item indices outside the catalogue of 90"):
        count_ranks(scorer, block, lists([[90], *[[]] * 6]), none)
    with pytest.raises(DataError, match="truth of 7 users, masked items of 6"):
        count_ranks(scorer, block, none, ItemLists.empty(6))
    with pytest.raises(DataError, match="7 user vectors, truth of 6"):
        count_ranks(scorer, block, ItemLists.empty(6), ItemLists.empty(6))
    with pytest.raises(DataError, match="offsets do not describe 1 entries"):
        count_ranks(scorer, block, ItemLists(np.arange(8), np.zeros(1, np.int64)), none)
    with pytest.raises(DataError, match="truth of 7 users, candidates of 6"):
        count_listed(scorer, block, none, ItemLists.empty(6))
    with pytest.raises(DataError, match="item vectors of 5 dimensions"):
        count_ranks(scorer, UserBlock(np.arange(7), vectors[:, :4]), none, none)


def test_a_block_too_large_for_the_device_is_halved(monkeypatch):
    world = random_world(60, users=9)
    multiply, sizes = devices._multiply, []

    def small_device(block, *rest):
        sizes.append(len(block.users_r))
        if len(block.users_r) > 2:
            raise torch.OutOfMemoryError("no room")
        return multiply(block, *rest)

    import torch

    monkeypatch.setattr(devices, "_multiply", small_device)
    same(run(world), run(world, device="cpu:0"))
    assert sizes[:3] == [9, 4, 2] or sizes[0] == 9


def test_products_are_float32_whatever_torch_is_set_to():
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        check_everywhere(random_world(61, dims=64, items=300))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


class TestDevice:
    def test_without_an_address_the_cpu(self):
        assert devices.choose_device([]).type == "cpu"

    def test_an_address_without_cuda_warns(self, monkeypatch):
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.warns(devices.RecbenchWarning, match="GPU 3"):
            assert devices.choose_device(["3"]).type == "cpu"

    @pytest.mark.parametrize(
        ("visible", "address", "place"), [("", "1", 1), ("2,3", "3", 1), ("GPU-a,GPU-b", "0", 0)]
    )
    def test_visible_devices_renumber(self, monkeypatch, visible, address, place):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert devices._place(address, 2) == place

    @pytest.mark.parametrize("address", ["2", "gpu"])
    def test_an_address_torch_does_not_see(self, monkeypatch, address):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        with pytest.raises(devices.ConfigError, match="none of the 2 GPUs"):
            devices._place(address, 2)
