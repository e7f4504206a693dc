"""Arrays of graphs: ids that come back, adjacency, aggregates and products of fixed bits."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recbench_spark.core.transfer_sizes import CHUNK_BYTES, FETCHES_AT_ONCE, PART_BYTES, PARTS_AT_ONCE
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.graphs.kernels import aggregate, costs, csr, dense, ids, layers, simd
from recbench_spark.graphs.kernels.forms import LayerForm
from tests.core.draws import stream
from tests.graphs.oracle import build_csr

NUMBERS = st.integers(-(2**63), 2**63 - 1)


# ------------------------------------------------------------------------------------- ids


@given(st.lists(NUMBERS, max_size=20), st.integers(0, 2**31 - 1))
@settings(max_examples=30)
def test_whole_numbers_come_back_from_their_hashes(numbers, seed) -> None:
    hashes = ids.hash_numbers(np.array(numbers, np.int64), seed)
    assert ids.unhash_numbers(hashes, seed).tolist() == numbers
    assert len(set(hashes.tolist())) == len(set(numbers))


def test_every_node_is_found_and_no_other() -> None:
    hashes = np.sort(ids.hash_numbers(np.arange(5000), 1))
    index = ids.build_index(hashes)
    assert (ids.look_up_hashes(hashes, hashes, index) == np.arange(5000)).all()
    others = ids.hash_numbers(np.arange(5000, 9000), 1)
    assert (ids.look_up_hashes(others, hashes, index) == ids.NOT_THERE).all()
    ends = np.array([0, 2**64 - 1], np.uint64)
    assert (
        ids.look_up_hashes(ends, np.array([2**64 - 1], np.uint64), ids.build_index(ends[1:]))
        == [ids.NOT_THERE, 0]
    ).all()


@pytest.mark.parametrize("blocks", [1, 3, 17, 1000])
def test_blocks_are_ranges_of_hashes(blocks) -> None:
    hashes = np.sort(ids.hash_numbers(np.arange(20_000), 1))
    result = ids.assign_blocks(hashes, blocks)
    assert (np.diff(result) >= 0).all() and result[0] == 0 and result[-1] == blocks - 1
    assert np.bincount(result, minlength=blocks).std() < 4 * math.sqrt(20_000 / blocks)


@given(st.lists(st.lists(NUMBERS | st.integers(-300, 300), max_size=30), max_size=4))
@settings(max_examples=60)
def test_numbers_met_as_bits_are_those_that_fitted(chunks) -> None:
    seen, met = ids.NumberSet(), set()
    for chunk in chunks:
        if seen.add(np.array(chunk, np.int64)):
            met |= set(chunk)
        else:
            assert max(chunk) - min(chunk) > 1 << 20 or met
    result = [number for part in seen.numbers() for number in part.tolist()]
    assert result == sorted(met)


def test_a_growing_range_of_numbers_keeps_what_was_met() -> None:
    seen = ids.NumberSet()
    chunks = [np.arange(low, low + 5000, 3) for low in (20_000, -70_001, 300_000, 20_001)]
    assert all(seen.add(chunk) for chunk in chunks)
    assert np.array_equal(np.concatenate(list(seen.numbers())), np.unique(np.concatenate(chunks)))
    assert not seen.add(np.array([0, 1 << 40]))


def test_bits_of_millions_of_numbers_are_read_in_pieces() -> None:
    wanted = np.arange(7, 6_000_000, 50)
    seen = ids.NumberSet()
    assert seen.add(wanted)
    pieces = list(seen.numbers())
    assert len(pieces) == 3 and np.concatenate(pieces).tolist() == wanted.tolist()


def test_places_by_number_are_those_of_the_table_and_nothing_else() -> None:
    table = np.array([3, 0, 1], np.uint32)
    requests = np.array([-5, -4, -3, -2, -6, 2**63 - 1, -(2**63)], np.int64)
    none = int(ids.NOT_THERE)
    assert ids.look_up_numbers(requests, -5, table).tolist() == [2, none, 0, none, none, none, none]


@pytest.mark.parametrize("rows", [[5], [0, 7, 0, 1, 1000, 0], [100] * 40, [0, 0, 3]])
def test_the_block_of_each_dense_id(rows) -> None:
    ends = np.cumsum(np.array(rows, np.int64))
    nodes = np.arange(ends[-1], dtype=np.uint32)
    assert csr.find_blocks(nodes, ends).tolist() == np.repeat(np.arange(len(rows)), rows).tolist()


def test_texts_are_hashed_as_such_wherever_they_stand() -> None:
    texts = pa.array(["a", "\u00f8", "", "a long one of more than thirty-two bytes", "a"])
    result = ids.hash_node_ids(texts, 3)
    assert result[0] == result[4] and len(set(result.tolist())) == 4
    assert ids.hash_node_ids(texts[1:3], 3).tolist() == result[1:3].tolist()
    assert ids.hash_node_ids(texts.dictionary_encode(), 3).tolist() == result.tolist()
    assert ids.hash_node_ids(texts, 4)[0] != result[0]


# ------------------------------------------------------------------------------------- adjacency


def test_edges_sorted_by_destination_source_and_weight() -> None:
    edges, weight = [(2, 5), (0, 9), (2, 5), (2, 1), (0, 9)], [3.0, 2.0, 1.0, 4.0, 7.0]
    result = build_csr(4, edges, weight)
    assert result.indptr.tolist() == [0, 2, 2, 5, 5]
    assert result.src.tolist() == [9, 9, 1, 5, 5] + [0] * 16
    assert result.weight.tolist() == [2.0, 7.0, 4.0, 1.0, 3.0]
    keys = csr.edge_keys(*(np.array([e[n] for e in edges], np.uint32) for n in (0, 1)))
    kept, doubles = csr.build_csr(4, keys.copy(), np.array(weight, np.float32), drop_duplicates=True)
    assert doubles == 2 and kept.src[:3].tolist() == [9, 1, 5] and kept.weight.tolist() == [7.0, 4.0, 3.0]
    assert csr.build_halo(result).need.tolist() == [1, 5, 9]
    assert csr.build_halo(result).place[:5].tolist() == [2, 2, 0, 1, 1]
    assert csr.count_sources(result, 10, np.array([3, 6, 10])) == (3, 3)
    rows, part = csr.tile(result, 3, 10)
    assert rows.tolist() == [0, 2] and part.src[:4].tolist() == [6, 6, 2, 2]
    assert part.weight.tolist() == [2.0, 7.0, 1.0, 3.0]
    few = csr.select_rows(result, np.array([2, 1, 0]))
    assert few.indptr.tolist() == [0, 3, 3, 5] and few.src[:5].tolist() == [1, 5, 5, 9, 9]
    assert csr.window(result, 1, 3).indptr.tolist() == [0, 0, 3]


def test_edges_are_assigned_to_blocks_in_their_order() -> None:
    block = np.array([2, 0, 2, 0], np.int32)
    keys, weight = np.arange(4, dtype=np.uint64), np.arange(4, dtype=np.float32) * 2
    result = csr.group_edges(block, keys, weight, 4)
    assert result.ends.tolist() == [2, 2, 4, 4]
    assert result.keys.tolist() == [1, 3, 0, 2] and result.weight.tolist() == [2, 6, 0, 4]


# ------------------------------------------------------------------------------------- aggregation


def test_aggregates_by_hand() -> None:
    z = np.array([[1, -2], [3, 4], [-5, 6]], np.float32)
    graph = build_csr(3, [(0, 0), (0, 1), (0, 1), (2, 2)], [1, 3, 0, 0])
    own = np.array([[1, 1], [2, 2], [8, 8]], np.float32)
    third = float(np.float32(Fraction(7, 3)))
    assert aggregate.pool_neighbours("sum", graph, z).tolist() == [[7, 6], [0, 0], [-5, 6]]
    assert aggregate.pool_neighbours("mean", graph, z).tolist() == [[third, 2], [0, 0], [-5, 6]]
    assert aggregate.pool_neighbours("importance", graph, z).tolist() == [[10 / 4, 10 / 4], [0, 0], [0, 0]]
    assert aggregate.pool_neighbours("max", graph, z).tolist() == [[3, 4], [0, 0], [-5, 6]]
    assert aggregate.pool_neighbours("gcn", graph, z, own).tolist() == [[2, 7 / 4], [2, 2], [3 / 2, 7]]


@pytest.mark.parametrize("dims", [1, 15, 16, 17, 64, 80, 128, 208])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_sum_is_added_edge_after_edge_in_float32(dims, dtype) -> None:
    """A loop over edges; of fused multiply-adds, float64 holds the product."""
    rng = np.random.default_rng(1)
    z = rng.standard_normal((40, dims)).astype(dtype)
    edges = [(int(r), int(s)) for r, s in rng.integers(0, 40, (300, 2)) if r != 5]
    weight = rng.random(len(edges)).astype(np.float32).tolist()
    graph = build_csr(40, edges, weight)
    plain, fused = np.zeros((2, 40, dims), np.float32)
    for r in range(40):
        for e in range(graph.indptr[r], graph.indptr[r + 1]):
            row = z[graph.src[e]].astype(np.float32)
            plain[r] += row
            fused[r] = (np.float64(graph.weight[e]) * row.astype(np.float64) + fused[r]).astype(np.float32)
    assert aggregate.sum_sources("sum", graph, z).tobytes() == plain.tobytes()
    np.testing.assert_allclose(aggregate.sum_sources("importance", graph, z), fused, rtol=2e-7, atol=1e-9)


def test_a_hub_of_a_hundred_thousand_edges() -> None:
    rng = np.random.default_rng(1)
    z = rng.standard_normal((1000, 64)).astype(np.float32)
    sources = rng.integers(0, 1000, 100_000)
    graph = build_csr(2, [(0, int(s)) for s in sources])
    result = aggregate.pool_neighbours("mean", graph, z)
    np.testing.assert_allclose(result[0], z[sources].astype(float).mean(axis=0), atol=1e-6)
    bag = torch.nn.functional.embedding_bag(
        torch.from_numpy(graph.src[:100_000].astype(np.int64)),
        torch.from_numpy(z),
        torch.tensor([0]),
        mode="mean",
    )
    np.testing.assert_allclose(result[0], bag[0].numpy(), atol=2e-5)


def test_partial_sums_of_cut_sources_go_on_where_the_last_ended() -> None:
    z = np.random.default_rng(2).integers(-8, 8, (30, 5)).astype(np.float32)
    edges = [(r, s) for r in range(4) for s in range(r, 30, r + 1)]
    graph = build_csr(5, edges)
    acc = np.zeros((5, 5), np.float32)
    for low, high in ((0, 7), (7, 7), (7, 30)):
        rows, part = csr.tile(graph, low, high)
        acc[rows] += aggregate.sum_sources("sum", part, z[low:high])
    assert (acc == aggregate.sum_sources("sum", graph, z)).all()


# ------------------------------------------------------------------------------------- products


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**31 - 1))
@settings(max_examples=25)
def test_a_row_of_a_product_does_not_know_its_batch(inner, width, rows, seed) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, inner)).astype(np.float32)
    layer = dense.make_dense(rng.standard_normal((width, inner)), rng.standard_normal(width))
    whole = layer.apply(x)
    for cut in range(rows + 1):
        parts = [layer.apply(part) for part in (x[:cut], x[cut:]) if len(part)]
        assert np.vstack(parts).tobytes() == whole.tobytes()
    want = x.astype(float) @ layer.weight_t.astype(float) + layer.bias
    np.testing.assert_allclose(whole, want, atol=1e-4)


def test_a_product_is_a_chain_of_fused_multiply_adds() -> None:
    """Each step rounded once, which exact fractions can say."""
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((5, 9)).astype(np.float32), rng.standard_normal((3, 9)).astype(np.float32)
    result = dense.make_dense(w, None).apply(x)
    for r in range(5):
        for j in range(3):
            acc = np.float32(0)
            for k in range(9):
                exact = Fraction(float(x[r, k])) * Fraction(float(w[j, k])) + Fraction(float(acc))
                acc = round_exactly(exact)
            assert acc == result[r, j]


def round_exactly(exact: Fraction) -> np.float32:
    """The nearest float32, ties to even, without rounding to float64 on the way."""
    near = np.float32(float(exact))
    around = [np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf)] + [near]
    even = lambda x: int(np.float32(x).view(np.uint32)) & 1  # noqa: E731
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), even(x)))


def test_halves_are_rounded_to_the_nearest_and_too_large_ones_refused() -> None:
    x = np.array([[1.0, 0.1, 65504.0, -(2.0**-24), 1 + 2.0**-11]], np.float32)
    out = np.empty((1, 5), np.float16)
    dense.store(x, out, "here")
    assert out.tobytes() == x.astype(np.float16).tobytes()
    for wrong in (70000.0, float("nan"), float("inf")):
        with pytest.raises(DataError, match="1 numbers are beyond 65504"):
            dense.store(np.array([[0, wrong]], np.float32), np.empty((1, 2), np.float16), "here")
    result = dense.normalise(np.array([[3, 4], [0, 0]], np.float32))
    assert result.tolist() == [[float(np.float32(0.6)), float(np.float32(0.8))], [0, 0]]


# ------------------------------------------------------------------------------------- layers


def test_weights_are_checked_by_name_and_shape() -> None:
    forms = (LayerForm("convolve", "importance", 4, 3),)
    wanted = layers.model_weight_shapes(forms, (2,), 5)
    assert wanted["layers.0.Q.weight"] == (3, 5) and wanted["layers.0.W.weight"] == (4, 8)
    weights = layers.random_weights(wanted, 1)
    assert layers.check_weights(weights, wanted, "f").keys() == wanted.keys()
    no_bias = {name: w for name, w in weights.items() if "bias" not in name}
    assert not layers.check_weights(no_bias, wanted, "f")["final.0.bias"].any()
    with pytest.raises(ConfigError, match=r"did you mean 'layers\.0\.Q\.weight'"):
        layers.check_weights({**weights, "layers.0.Q.wight": weights["layers.0.Q.weight"]}, wanted, "f")
    with pytest.raises(ConfigError, match=r"final.0.weight is of shape \(2, 5\), and \(2, 4\) is needed"):
        layers.check_weights({**weights, "final.0.weight": np.zeros((2, 5))}, wanted, "f")
    with pytest.raises(ConfigError, match=r"no weight layers.0.W.weight of shape \(4, 8\)"):
        layers.check_weights({k: w for k, w in weights.items() if k != "layers.0.W.weight"}, wanted, "f")
    with pytest.raises(ConfigError, match="join: add"):
        layers.model_weight_shapes((LayerForm("sage", "max", 4, 3, join="add"),), (), 5)


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"layers.1.W.weight": (4, 8)}, "it has weights of 2 layers, and the settings name 1", "layers: 2"),
        ({"final.1.weight": (2, 2)}, "2 dense layers at the end, and the settings name 1", "final: 2"),
        ({"layers.0.W.weight": (8, 4)}, r"W.weight is of shape \(8, 4\), and \(4, 8\)", "it is transposed"),
        (
            {"layers.0.W.weight": (6, 8)},
            r"W.weight is of shape \(6, 8\)",
            "6 output dimensions: set the layer",
        ),
        ({"layers.0.Q.weight": (3, 9)}, r"Q.weight is of shape \(3, 9\)", "gives 5 numbers .* take 9"),
        ({"layers.0.W.weight": float("nan")}, "2 of 32 numbers of layers.0.W.weight are NaN", "diverged"),
        ({"layers.0.W.bias": float("inf")}, "2 of 4 numbers of layers.0.W.bias are NaN or inf", "diverged"),
        ({"layers.0.W.bias": 1e300}, "2 of 4 numbers of layers.0.W.bias are beyond float32", "diverged"),
    ],
)
def test_weights_that_do_not_fit_say_what_the_layers_need(change, message, hint) -> None:
    wanted = layers.model_weight_shapes((LayerForm("convolve", "importance", 4, 3),), (2,), 5)
    weights = {name: w.astype(np.float64) for name, w in layers.random_weights(wanted, 1).items()}
    for name, value in change.items():
        if isinstance(value, tuple):
            weights[name] = np.zeros(value)
        else:
            weights[name].reshape(-1)[:2] = value
    with pytest.raises(ConfigError, match=f"^w.safetensors.*{message}") as error:
        layers.check_weights(weights, wanted, "w.safetensors")
    assert re.search(hint, str(error.value.hint))


def test_weights_of_another_library_are_refused_by_their_names() -> None:
    wanted = layers.model_weight_shapes((LayerForm("sage", "mean", 4, 4),), (), 5)
    with pytest.raises(
        ConfigError, match=r"no weight layers.0.W.weight .* called convs.0.lin_l.weight"
    ) as error:
        layers.check_weights({"convs.0.lin_l.weight": np.zeros((4, 5))}, wanted, "w")
    assert "embed_a_pyg_model.md" in str(error.value.hint)


def test_random_weights_are_the_same_tomorrow() -> None:
    wanted = {"layers.0.W.weight": (30, 40), "layers.0.W.bias": (30,)}
    result = layers.random_weights(wanted, 7)
    bound = math.sqrt(6 / 70)
    assert (
        np.abs(result["layers.0.W.weight"]).max() < bound and abs(result["layers.0.W.weight"].mean()) < 0.02
    )
    assert result["layers.0.W.weight"].std() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert (layers.random_weights(wanted, 7)["layers.0.W.weight"] == result["layers.0.W.weight"]).all()
    assert (layers.random_weights(wanted, 8)["layers.0.W.weight"] != result["layers.0.W.weight"]).any()


def test_the_aggregate_is_taken_of_the_smaller_vectors() -> None:
    for width, before in ((3, True), (9, False)):
        form = LayerForm("sage", "mean", width, 9)
        made = layers.make_layer(form, layers.random_weights(layers.weight_shapes(form, 5), 1), 5)
        assert (made.project is not None) == before and made.message_width(5) == min(width, 5)


# ------------------------------------------------------------------------------------- costs


def test_copies_of_a_vector_distributed_by_hash() -> None:
    assert costs.expected_copies(25, 20) == pytest.approx(13.95, abs=0.01)
    assert costs.expected_copies(1000, 50) == pytest.approx(48.8, abs=0.05)
    assert costs.expected_copies(7, 10**6) == pytest.approx(7)


def test_rates_come_back_from_runs_that_obey_them() -> None:
    true = costs.Amounts(2e-10, 1e-11, 2e-9, 5e-9, 0.02, 0.5)
    rng = np.random.default_rng(1)
    runs = []
    for _ in range(40):
        amounts = costs.Amounts(*(10 ** rng.uniform(6, 11) for _ in range(4)), rng.integers(2, 60), 1.0)
        exact = costs.Rates(true, 1, 1).predict(amounts, 2)
        runs.append((amounts, exact * math.exp(rng.normal(0, 0.02)), 2))
    result = costs.fit_rates(runs)
    for amounts, seconds, cores in runs:
        low, high = result.interval(result.predict(amounts, cores))
        assert low * 0.95 < seconds < high * 1.05
    assert result.factor < 1.2
    assert costs.fit_rates(runs[:3]) is costs.DEFAULT_RATES


def test_a_pace_weighs_what_is_read_and_nothing_else() -> None:
    size = costs.PassSize(100, 1000, 80, 300, 400, 4, 4, 16, 8, 8, 2, True, False, True)
    usual, slow = size.amounts("G", 4), replace(size, pace=3 * costs.DEFAULT_READ_SECONDS).amounts("G", 4)
    assert slow.read == pytest.approx(3 * usual.read)
    assert slow._replace(read=usual.read) == usual


def test_bytes_on_the_wire_by_hand() -> None:
    size = costs.PassSize(100, 1000, 80, 300, 400, 4, 4, 16, 8, 8, 2, True, False, True)
    assert size.bytes_moved("R") == 0
    assert size.bytes_moved("G") == 300 * 8 * 2
    assert size.bytes_moved("S") == 400 * (4 * 8 + 4)
    assert size.flops() == 2 * 80 * 16 * 8 + 2 * 100 * 24 * 8
    assert costs.choose_plan(size, costs.DEFAULT_RATES, 2, 4, True, mapped_bytes=0) in ("G", "S")
    assert costs.choose_plan(size, costs.DEFAULT_RATES, 2, 4, True, mapped_bytes=10**9) == "R"
    with pytest.raises(ConfigError, match="plan S does not support lstm"):
        costs.check_plan("S", "lstm", False)


SMALL_PASS = costs.PassSize(100, 1000, 80, 300, 400, 4, 4, 16, 8, 8, 2, True, False, True)
"""100 destinations of 1,000 edges, 80 sources; vectors of 16 to messages of 8 numbers of 2 bytes."""


def test_bytes_from_object_storage_by_hand() -> None:
    two = replace(SMALL_PASS, hosts=2)
    graph, own, sent, hashes = 1000 * 4 + 100 * 8, 100 * 16 * 2, 80 * 16 * 2, 100 * 8
    messages, out = 80 * 8 * 2, 100 * 8 * 2
    assert two.bytes_fetched("R") == messages // 2 + (graph + own + sent + hashes) // 2
    assert two.bytes_fetched("G") == 300 * 4 + (graph + own + sent + hashes + 1000 * 4) // 2
    assert two.bytes_fetched("S") == graph + (own + sent + hashes) // 2
    for plan, more in (("R", messages - messages // 2), ("G", 0), ("S", 0)):
        assert two.bytes_held(plan) == two.bytes_fetched(plan) + more + out // 2
    plain = replace(two, projects=False)
    assert plain.bytes_fetched("R") == messages + (graph + own + hashes) // 2, "nobody made them now"
    assert replace(two, weighted=True).bytes_fetched("R") - two.bytes_fetched("R") == 1000 * 4 // 2
    assert replace(two, ordered=True).bytes_fetched("R") - two.bytes_fetched("R") == 80 * 8
    assert replace(two, hosts=1).bytes_fetched("R") == graph + own + sent + hashes, "its own messages"


def test_memory_of_a_worker_by_hand() -> None:
    batches, vectors, sums = 10 * (16 + 2 * 8 + 2 * 8) * 4, 300 * 8 * 2, 400 * (4 * 8 + 4)
    assert SMALL_PASS.worker_bytes("R", 10) == batches
    assert SMALL_PASS.worker_bytes("G", 10) == batches + 2 * vectors // 4, "packets, and one array"
    received = sums // 4 + 25 * 8 * 4 + 2 * sums // 16
    assert SMALL_PASS.worker_bytes("S", 10) == batches + received, "all packets, sums, and one packet more"
    one_sender = replace(SMALL_PASS, source_blocks=1)
    made = 80 * 8 * 2 + vectors + 2 * vectors // 4
    assert one_sender.worker_bytes("G", 10) == batches + made, "it holds packets for all blocks"
    gcn = replace(SMALL_PASS, own=True)
    for plan in ("G", "S"):
        assert gcn.worker_bytes(plan, 10) - SMALL_PASS.worker_bytes(plan, 10) == 2 * 25 * 8 * 2
    gcn_sender = replace(one_sender, own=True)
    assert gcn_sender.worker_bytes("G", 10) == batches + made + 80 * 8 * 2, "its messages, made and sent"
    remote = replace(SMALL_PASS, hosts=2)
    assert remote.worker_bytes("R", 10) == batches + 4 * 20 * 8 * 2 + 25 * 8 * 4, "it fetches four parts"
    assert remote.worker_bytes("G", 10) - SMALL_PASS.worker_bytes("G", 10) == 20 * 8 * 2 + 25 * 8 * 4
    assert replace(remote, nodes=101).worker_bytes("R", 10) == remote.worker_bytes("R", 10) + 8 * 4
    empty = replace(remote, nodes=0, blocks=0, sources=0, source_blocks=0, needed=0)
    assert empty.worker_bytes("G", 10) == batches
    large = replace(remote, nodes=10**9, sources=10**9, source_blocks=20)
    fetched = FETCHES_AT_ONCE * CHUNK_BYTES
    assert large.worker_bytes("R", 10) == batches + fetched + PART_BYTES * (PARTS_AT_ONCE + 1)


def test_folders_cost_what_they_did_before_the_network_was_counted() -> None:
    plans = ("R", "G", "S")
    assert [SMALL_PASS.bytes_fetched(plan) + SMALL_PASS.bytes_held(plan) for plan in plans] == [0, 0, 0]
    for plan in plans:
        *work, passes, fetched = SMALL_PASS.amounts(plan, 4)
        seconds = sum(a * s for a, s in zip(work, costs.DEFAULT_SECONDS[:5], strict=True)) / 2
        wanted = seconds + passes * costs.DEFAULT_SECONDS.passes
        assert fetched == 0 and costs.DEFAULT_RATES.predict(SMALL_PASS.amounts(plan, 4), 2) == wanted


def test_a_slow_network_and_many_hosts_turn_the_choice() -> None:
    """The messages of all nodes are fetched by every host, those that a block needs are sent once."""
    sizes = {"nodes": 10**6, "edges": 10**6, "sources": 10**6, "needed": 2 * 10**6, "d": 64, "m": 64}
    large = replace(SMALL_PASS, **sizes, hosts=20)

    def choose(size: costs.PassSize, disk: float = math.inf) -> str:
        more: dict[str, Any] = {"mapped_bytes": 10**12, "disk_bytes": disk}
        return costs.choose_plan(size, costs.DEFAULT_RATES, 40, 4, False, **more)

    assert choose(replace(large, hosts=0)) == "R"
    assert choose(replace(large, network=1 / 5e6)) == "G"
    assert choose(replace(large, network=1 / 5e12)) == "R"
    assert choose(replace(large, network=1 / 5e12), large.bytes_held("R") - 1) == "G"


def test_rates_of_runs_leave_the_time_of_the_network_out() -> None:
    rng, true, runs, far = np.random.default_rng(1), costs.DEFAULT_SECONDS, [], []
    for _ in range(40):
        work = costs.Amounts(*(10 ** rng.uniform(6, 11) for _ in range(4)), rng.integers(2, 60), 1.0)
        fetched = work._replace(fetched=10 ** rng.uniform(6, 8))
        runs.append((work, costs.Rates(true, 1, 1).predict(work, 2), 2))
        far.append((fetched, costs.Rates(true, 1, 1).predict(fetched, 2), 2))
    near, remote = costs.fit_rates(runs), costs.fit_rates(far)
    assert remote.seconds == pytest.approx(near.seconds, rel=1e-4)


@pytest.mark.parametrize("most", [1, 3, 9])
def test_an_lstm_reads_sources_by_the_hash_of_both_ids(most: int) -> None:
    rng = np.random.default_rng(7)
    own, of_source = (rng.integers(0, 2**63, n, dtype=np.uint64) for n in (3, 8))
    sources: list[list[int]] = [[], [4, 5], [0, 1, 2, 3, 6, 7]]
    indptr = np.array([0, 0, 2, 8])
    src = np.array([s for some in sources for s in some] + [0] * simd.PREFETCH_EDGES, np.uint32)
    result = aggregate.order_for_lstm(csr.Csr(indptr, src, None), own, of_source, most, seed=11)
    wanted = [
        sorted(some, key=lambda s: stream(stream(11, int(own[r])), int(of_source[s])))[:most]
        for r, some in enumerate(sources)
    ]
    assert [result.src[a:b].tolist() for a, b in pairwise(result.indptr)] == wanted
    assert wanted[2] != sorted(wanted[2]) or most < 9  # this draw is in no order of the ids


def test_an_lstm_is_torchs_over_the_sources_it_reads() -> None:
    rng = np.random.default_rng(3)
    graph = build_csr(4, [(0, 1), (0, 2), (0, 5), (2, 3), (3, 0), (3, 4), (3, 5), (3, 1)])
    h = rng.standard_normal((6, 5)).astype(np.float32)
    form = LayerForm("sage", "lstm", 2, hidden=3, most=3)
    weights = layers.random_weights(layers.weight_shapes(form, 5), 1)
    weights["lstm.bias_hh_l0"] = rng.standard_normal(12).astype(np.float32)
    layer = layers.make_layer(form, weights, 5, seed=2)
    own, of_source = (rng.integers(0, 2**63, n, dtype=np.uint64) for n in (4, 6))
    result = layer.aggregate(graph, layer.messages(h), None, own, of_source)
    read = aggregate.order_for_lstm(graph, own, of_source, 3, seed=2)
    net = torch.nn.LSTM(5, 3)
    net.load_state_dict({name[5:]: torch.from_numpy(weights[name]) for name in weights if "lstm" in name})
    for r, (a, b) in enumerate(pairwise(read.indptr)):
        states = net(torch.from_numpy(h[read.src[a:b]]))[0].detach().numpy() if b > a else np.zeros((1, 3))
        np.testing.assert_allclose(result[r], states[-1], rtol=1e-5, atol=1e-6)


def test_an_lstm_writes_no_row_beyond_the_last() -> None:
    """Rows of a longer table: what lies behind stays as it is."""
    indptr, out = np.array([0, 2, 3, 9]), np.zeros((3, 2), np.float32)
    gates = np.ones((10, 8), np.float32).ravel()
    order = np.arange(10, dtype=np.uint32)
    aggregate._lstm(indptr[:3], order, 9, gates, np.ones((2, 8), np.float32), out[:2])
    assert (out[:2] != 0).all() and (out[2] == 0).all()


def test_a_layer_makes_new_vectors_of_own_and_pooled_ones() -> None:
    """Two nodes by hand, whole numbers: bias + own W + aggregate V, what is negative 0, then length 1."""
    own_t = np.array([[1, 0, 2], [0, 1, 1]], np.float32)
    pooled_t = np.array([[1, -1, 0]], np.float32)
    bias = np.array([1, 0, -4], np.float32)
    plain = layers.Layer("mean", None, own_t, pooled_t, bias, relu=False, normalise=False)
    h, n = np.array([[1, 2], [3, 4]], np.float32), np.array([[5], [7]], np.float32)
    assert plain.combine(h, n).tolist() == [[7, -3, 0], [11, -3, 6]]
    assert replace(plain, relu=True).combine(h, n).tolist() == [[7, 0, 0], [11, 0, 6]]
    as_it_is = replace(plain, pooled_t=None, bias=np.zeros(3, np.float32))
    three = np.array([[1, 1, 1], [2, 2, 2]], np.float32)
    assert as_it_is.combine(h, three).tolist() == [[2, 3, 5], [5, 6, 12]]
    assert replace(plain, own_t=None).combine(h, n).tolist() == [[6, -5, -4], [8, -7, -4]]
    ends = replace(plain, relu=True, normalise=True).combine(h[:1], n[:1])
    assert ends.tolist() == [[1, 0, 0]]


OF_TWO = {"hidden": 2, "relu": False, "normalise": False}


@pytest.mark.parametrize("width", [1, 4], ids=["multiplied first", "multiplied last"])
@pytest.mark.parametrize(
    "form",
    [
        LayerForm("sage", "mean", 1, **OF_TWO),
        LayerForm("sage", "sum", 1, join="add", **OF_TWO),
        LayerForm("sage", "gcn", 1, **OF_TWO),
        LayerForm("sage", "max", 1, **OF_TWO),
        LayerForm("convolve", "importance", 1, **OF_TWO),
        LayerForm("convolve", "mean", 1, join="add", **OF_TWO),
    ],
    ids=lambda form: f"{form.form}-{form.aggregator}-{form.join}",
)
def test_a_layer_of_named_weights_is_its_equation_node_by_node(form: LayerForm, width: int) -> None:
    """Whole numbers, a loop; the matrix goes before neighbours are added up where that is less work.

    Equations: Hamilton et al. 2017, algorithm 1 and section 3.3; Ying et al. 2018, algorithm 1.
    """
    form = replace(form, width=width)
    h = np.array([[1, 2], [4, -8], [-4, 8], [8, 4]], np.float32)
    heard, weight = [[1, 2, 2, 3], [0, 3], [], [1]], [[2.0, 1.0, 1.0, 4.0], [4.0, 4.0], [], [8.0]]
    edges = [(r, s) for r, some in enumerate(heard) for s in some]
    graph = build_csr(4, edges, [w for some in weight for w in some])
    draws = np.random.default_rng(width)
    weights = {
        name: draws.choice([-2, -1, 1, 2], shape).astype(np.float32)
        for name, shape in layers.weight_shapes(form, 2).items()
    }
    layer = layers.make_layer(form, weights, 2)
    z = h if layer.project is None else layer.messages(h)
    hashes = np.arange(4, dtype=np.uint64)
    result = layer.combine(h, layer.aggregate(graph, z, z, hashes, hashes))
    wanted = [by_its_equation(form, weights, h, r, heard[r], weight[r]) for r in range(4)]
    assert result.tolist() == np.array(wanted).tolist()


def by_its_equation(form, weights, h, r, heard, weight) -> np.ndarray:
    """New vector of node r, which hears `heard` with `weight`."""

    def sent(v: int) -> np.ndarray:
        inner = "Q" if form.form == "convolve" else "pool"
        if f"{inner}.weight" not in weights:
            return h[v]
        return np.maximum(weights[f"{inner}.weight"] @ h[v] + weights[f"{inner}.bias"], 0)

    of = [sent(v) for v in heard] + ([h[r]] if form.aggregator == "gcn" else [])
    n = np.zeros(2)
    if of and form.aggregator == "max":
        n = np.max(of, axis=0)
    elif of and form.aggregator == "importance":
        n = sum(w * one for w, one in zip(weight, of, strict=True)) / sum(weight)
    elif of:
        n = np.sum(of, axis=0) / (1 if form.aggregator == "sum" else len(of))
    if form.aggregator != "gcn":
        n = h[r] + n if form.join == "add" else np.concatenate([h[r], n])
    return weights["W.weight"] @ n + weights["W.bias"]
