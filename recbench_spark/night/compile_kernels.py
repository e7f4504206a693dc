"""Compile every kernel once, into the cache beside the sources.

The command is `python -m recbench_spark.night.compile_kernels`. Without it the first night waits half a
minute for the compiler, once on every host.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.auctions.kernels.auction_parts import AuctionPart, AuctionRows
from recbench_spark.auctions.kernels.click_estimates import ClickModel, EstimateRules
from recbench_spark.auctions.kernels.mechanism import OperatingPoint, SlotCounts
from recbench_spark.core.extras import MissingPackageError
from recbench_spark.core.hashing import hash_bytes, hash_longs, start
from recbench_spark.core.ratios import exact_moments
from recbench_spark.core.resampling import bootstrap_sums
from recbench_spark.graphs.kernels.csr import Csr, build_csr, build_halo, edge_keys, group_edges
from recbench_spark.graphs.kernels.dense import store
from recbench_spark.graphs.kernels.forms import AGGREGATORS, LayerForm
from recbench_spark.graphs.kernels.ids import (
    assign_blocks,
    build_index,
    hash_numbers,
    look_up_hashes,
    unhash_numbers,
)
from recbench_spark.graphs.kernels.layers import make_layer, random_weights, weight_shapes
from recbench_spark.metrics.kernels.predictions import user_sums
from recbench_spark.models.rating import registry
from recbench_spark.models.rating.interface import check_ratings
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.scorers import (
    DotScorer,
    HashScorer,
    NeighbourScorer,
    Scorer,
    UserBlock,
    count_listed,
    count_ranks,
)

SETTINGS = (
    CountingSettings(),
    CountingSettings(top_k=2),
    CountingSettings(cutoff=2),
    CountingSettings(cutoff=2, reduced=True),
)
"""Ways to count, each with kernels of its own."""


def warm() -> None:
    """Rank two users with each kind of scorer.

    The users are ranked with lists and without, on arrays as workers map them.
    """
    truth = ItemLists(np.array([0, 1, 3]), np.array([0, 1, 2]))
    masked = ItemLists(np.array([0, 1, 2]), np.array([3, 3]))
    vectors_ud = np.ones((2, 3), np.float32)
    users = UserBlock(np.arange(2), vectors_ud, masked)
    scorers: list[Scorer] = [
        DotScorer(_as_mapped(np.eye(4, 3, dtype=np.float32)), _as_mapped(np.zeros(4))),
        DotScorer(_as_mapped(np.eye(4, 3, dtype=np.float32)), None, None, "cosine"),
        NeighbourScorer(_as_mapped(np.arange(5)), _as_mapped(np.arange(4)), _as_mapped(np.ones(4))),
        HashScorer(np.arange(4), seed=1),
    ]
    for scorer in scorers:
        for settings in SETTINGS:
            count_ranks(scorer, users, truth, masked, settings=settings)
        count_listed(scorer, users, truth, truth, top_k=1)
    hash_longs(np.arange(2), hash_bytes(b"any", start(2)))
    bootstrap_sums(np.arange(2), np.ones((2, 1)), replicates=2, seed=1)
    user_sums(np.array([0, 2]), np.ones(2), np.ones(2))
    exact_moments(np.ones((2, 1)), np.ones((2, 1)))
    _warm_auctions()
    _warm_learners()


def _warm_auctions() -> None:
    """Replay two auctions with two ads each."""
    numbers, halves = np.array([0, 0, 1, 1]), np.full(4, 0.5)
    slots, clicks = np.array([0, 1, 1, 0], np.int32), np.array([1, 0, 1, 0], np.int32)
    rows = AuctionRows(
        np.zeros(4, np.int64), numbers, np.array([0, 1, 0, 1]), halves, halves, slots, clicks
    )
    part = AuctionPart.from_rows(rows, np.array([1]), 2)
    set_s = np.zeros(2, np.int64)
    model = ClickModel(np.ones(2), set_s, 2, EstimateRules())
    point = OperatingPoint(main_slots=2)
    part.replay(part.rank(halves, 1.0), halves, point, model, SlotCounts(2, 0))
    part.log_columns(set_s, np.zeros(2))


FEATURES = ("u,i", "u,i,t,iu,ii")
"""Features for Bayesian models, without and with implicit features and days."""


def _warm_learners() -> None:
    """Fit six ratings with every learner, one step each.

    Learners that need torch are left out where it is missing.
    """
    users_r, items_r = np.repeat(np.arange(3), 2), np.tile(np.arange(2), 3)
    ratings = check_ratings(users_r, items_r, np.arange(1.0, 7.0), (1, 6), 86_400 * np.arange(6))
    few = {"dims": 2, "epochs": 1, "sweeps": 1, "samples": 2, "burn_in": 0}
    for kind, family in registry.ALL_FAMILIES.items():
        supported = {name: value for name, value in few.items() if name in family.settings.model_fields}
        for features in FEATURES if "features" in family.settings.model_fields else (None,):
            more = {"features": features} if features else {}
            settings = registry.make_settings({"kind": kind, **supported, **more})
            with suppress(MissingPackageError):
                fitted = registry.fit(ratings, settings, 1, ratings)
                if kind in registry.FAMILIES and kind != "bayesian_mf":
                    fitted.model.predict(users_r, items_r, ratings.times_r)


def warm_graphs() -> None:
    """Run each kind of layer over a small graph.

    The graph has four nodes.

    The graph is built first; numbers are in single and half precision.
    """
    hashes = np.sort(hash_numbers(np.arange(4), seed=1))
    unhash_numbers(hashes, seed=1)
    node_r = look_up_hashes(hashes, _as_mapped(hashes), _as_mapped(build_index(hashes)))
    for weight in (None, np.ones(4, np.float32)):
        edges = group_edges(assign_blocks(hashes, 1), edge_keys(node_r, node_r[::-1]), weight, 1)
        csr, _ = build_csr(4, edges.keys, edges.weight)
        build_halo(csr)
        mapped = Csr(
            _as_mapped(csr.indptr), _as_mapped(csr.src), weight if weight is None else _as_mapped(weight)
        )
        for dtype in (np.float32, np.float16):
            for kind in AGGREGATORS:
                _warm_layer(kind, mapped, _as_mapped(np.ones((4, 3), dtype)), _as_mapped(hashes))


def _warm_layer(kind: Any, csr: Csr, h: npt.NDArray[Any], hashes: npt.NDArray[Any]) -> None:
    form = LayerForm("sage", kind, width=5, hidden=3)
    layer = make_layer(form, random_weights(weight_shapes(form, 3), seed=1), 3)
    z = h
    if layer.project is not None:
        z = np.empty((4, layer.message_width(3)), h.dtype)
        store(layer.messages(h), z, "messages")
    layer.combine(h, layer.aggregate(csr, z, z, hashes, hashes))


def _as_mapped(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make an array read-only, like `np.load(mmap_mode="r")`.

    For numba this is a type of its own.
    """
    array.flags.writeable = False
    return array


if __name__ == "__main__":
    warm()
    warm_graphs()
