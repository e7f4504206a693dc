"""Define training tasks for graph layers: node pairs or labels.

PinSage and unsupervised GraphSAGE train on pairs. Each loss is a sum over its examples, so processes can
add theirs. Divided by the examples of all processes, it gives the gradient one process would compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from recbench_spark.core.arrays import Bools, Floats32, Ints
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.kernels.samples import Band
from recbench_spark.models.networks import subgraphs
from recbench_spark.models.networks.devices import move_batch
from recbench_spark.models.networks.fitting import Step, Watch
from recbench_spark.models.networks.layers import GraphNetwork, take_rows
from recbench_spark.models.networks.sampling import draw_hard_negatives, draw_shared_negatives

SCORES = 1 << 25
"""Scores which `rank_items` holds at a time."""


@dataclass(frozen=True)
class GraphInput:
    """A graph with features, and how to cut minibatches from it.

    Arrays are mapped or in memory.

    Attributes:
        adjacency: the graph.
        features: (nodes, d).
        samples: neighbours drawn in each layer, a fresh sample for each layer and minibatch; empty: all
            neighbours, which suits neighbourhoods of T nodes.
        seed: seed of the LSTM's order.
        dropout: probability that a minibatch node has no neighbours in any layer, so training includes
            nodes without edges.
        dropped: first dense id of the nodes which may lose neighbours, and the id after the last; None:
            all.
    """

    adjacency: subgraphs.Adjacency
    features: npt.NDArray[Any]
    samples: tuple[int, ...] = ()
    seed: int = 0
    dropout: float = 0.0
    dropped: tuple[int, int] | None = None

    def neighbours(self, net: GraphNetwork, seed: int) -> subgraphs.Neighbours:
        """Return each layer's edges for a minibatch with this seed."""
        graph = self.adjacency
        if self.dropout:
            nodes = self.dropped or (0, len(self.features))
            graph = subgraphs.ThinnedAdjacency(
                graph.firsts, graph.blocks, graph.hashes, self.dropout, nodes, seed
            )
        if self.samples:
            return subgraphs.draw_neighbours(graph, net.forms, self.samples, seed)
        return subgraphs.all_neighbours(graph, net.forms, self.seed)

    def build_minibatch(
        self, net: GraphNetwork, node_r: Ints, seed: int
    ) -> tuple[subgraphs.Subgraph, torch.Tensor]:
        """Return the small graph around some nodes, with its input features."""
        small = subgraphs.build_subgraph(node_r, len(net.forms), self.neighbours(net, seed))
        rows = np.ascontiguousarray(self.features[small.inputs])
        if rows.dtype == np.float16:
            rows = rows.astype(np.float32)
        return small, torch.from_numpy(rows)


@dataclass(frozen=True)
class PairObjective:
    """Settings of the loss over pairs.

    Attributes:
        loss: `max_margin` (PinSage), or `co_occurrence` (GraphSAGE without labels).
        margin: margin of max_margin; for co_occurrence Q, the weight of negatives.
        negatives: negatives shared by a minibatch.
        per_pair: true if each pair has its own negatives instead: as many, over the pairs of a minibatch.
        curriculum: true if epoch n has n - 1 hard negatives for each pair.
        hard: hard negatives for each pair in every epoch, where there is no curriculum.
        first: first dense id to draw negatives from.
        end: the dense id after the last one.
    """

    loss: Literal["max_margin", "co_occurrence"] = "max_margin"
    margin: float = 0.1
    negatives: int = 500
    per_pair: bool = False
    curriculum: bool = False
    hard: int = 0
    first: int = 0
    end: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers out of range."""
        if self.margin < 0:
            raise ConfigError(f"margin: {self.margin} is negative", "give a margin of 0 or more, e.g. 0.1")
        if self.negatives < 1 or self.hard < 0 or self.end <= self.first:
            raise ConfigError(
                f"negatives: {self.negatives}, hard: {self.hard}, nodes: {self.end - self.first}"
            )

    def count_hard(self, epoch: int) -> int:
        """Return an epoch's number of hard negatives per pair.

        Epochs count from 1.
        """
        return epoch - 1 if self.curriculum else self.hard


class PairBatch(NamedTuple):
    """A minibatch of pairs: its small graph, and output rows."""

    graph: subgraphs.Subgraph
    features: torch.Tensor
    query: torch.Tensor
    item: torch.Tensor
    shared: torch.Tensor | None
    hard: torch.Tensor | None


class PairTask:
    """Trains on pairs, a query and its item; a `fitting.Task`.

    The validation score is, for example, the mean of 1 / ceil(rank / 100) over validation pairs, among all
    candidates but the query (the scaled MRR in Ying et al.), or the hit rate.
    """

    def __init__(
        self,
        net: GraphNetwork,
        graph_input: GraphInput,
        pair_e: tuple[Ints, Ints],
        objective: PairObjective,
        band: Band | None = None,
        *,
        score: Callable[[GraphNetwork], float] | None = None,
    ) -> None:
        if (objective.curriculum or objective.hard) and band is None:
            raise ConfigError(
                "hard negatives, and no band to draw them from", "see kernels.graph.samples.rank_bands"
            )
        if net.dims != graph_input.features.shape[1]:
            raise DataError(
                f"features of {graph_input.features.shape[1]} and a model of {net.dims} dimensions"
            )
        self.module, self.graph_input, self.how, self.band = net, graph_input, objective, band
        self.query, self.item = pair_e
        self.examples, self.score = len(self.query), score
        self.watch: Watch | None = None

    def batch(self, at: Step, row_b: Ints, seed: int) -> PairBatch:
        """Make a `PairBatch`.

        Each process draws the same negatives, for the whole minibatch.
        """
        objective = self.how
        query, item = self.query[row_b], self.item[row_b]
        shared = hard = None
        ends = np.array([objective.first, objective.end])
        if objective.per_pair:
            each = max(1, objective.negatives // max(at.size or len(row_b), 1))
            nothing = Band(np.zeros(2, np.int64), np.empty(0, np.uint32), np.zeros(1, np.bool_))
            alike = np.zeros(len(row_b), np.int64)
            hard = draw_hard_negatives(nothing, alike, row_b, each, ends, seed=seed)
        else:
            shared = draw_shared_negatives(objective.first, objective.end, objective.negatives, seed)
        most = objective.count_hard(at.epoch)
        if most and self.band is not None:
            place = query - objective.first  # the band's rows count from there
            more = draw_hard_negatives(self.band, place, row_b, most, ends, seed=seed + 1)
            hard = more if hard is None else np.hstack([hard, more])
        nodes = [ids.reshape(-1) for ids in (query, item, shared, hard) if ids is not None]
        graph, features = self.graph_input.build_minibatch(self.module, np.concatenate(nodes), seed)
        rows = (
            None if ids is None else subgraphs.find_places(graph.outputs, ids) for ids in (shared, hard)
        )
        own = (subgraphs.find_places(graph.outputs, ids) for ids in (query, item))
        return PairBatch(graph, features, *own, *rows)

    def loss(self, batch: PairBatch) -> torch.Tensor:
        """Return the summed loss over the pairs; see `PairObjective`."""
        like = next(self.module.parameters()).dtype
        z = self.module(batch.features.to(like), batch.graph)
        query, item = take_rows(z, batch.query), take_rows(z, batch.item)
        shared = None if batch.shared is None else take_rows(z, batch.shared)
        if self.how.loss == "co_occurrence":
            assert shared is not None
            return co_occurrence(query, item, shared, self.how.margin)
        return max_margin(
            query, item, shared, None if batch.hard is None else take_rows(z, batch.hard), self.how.margin
        )

    def worth(self) -> float:
        """Return the validation score; NaN without a validation part."""
        return math.nan if self.score is None else self.score(self.module)


class LabelTask:
    """Trains on nodes and their classes; a `fitting.Task`.

    The loss is cross-entropy over a last dense layer.
    """

    def __init__(
        self, net: GraphNetwork, graph_input: GraphInput, node_e: Ints, label_e: npt.NDArray[Any],
        score: Callable[[GraphNetwork], float] | None = None,
    ) -> None:  # fmt: skip
        self.module, self.graph_input, self.node, self.label = net, graph_input, node_e, label_e
        self.examples, self.score = len(node_e), score

    def batch(
        self, at: Step, row_b: Ints, seed: int
    ) -> tuple[subgraphs.Subgraph, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Make a minibatch: small graph, features, node rows, labels."""
        nodes = self.node[row_b]
        graph, features = self.graph_input.build_minibatch(self.module, nodes, seed)
        return (
            graph,
            features,
            subgraphs.find_places(graph.outputs, nodes),
            torch.from_numpy(self.label[row_b]),
        )

    def loss(
        self, batch: tuple[subgraphs.Subgraph, torch.Tensor, torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Return the summed loss over the nodes."""
        graph, features, rows, label = batch
        like = next(self.module.parameters()).dtype
        return cross_entropy(take_rows(self.module(features.to(like), graph), rows), label)

    def worth(self) -> float:
        """Return the validation score; NaN without a validation part."""
        return math.nan if self.score is None else self.score(self.module)


def embed_by_minibatch(
    net: GraphNetwork, graph_input: GraphInput, node_r: Ints, at_once: int = 4096
) -> Floats32:
    """Return some nodes' vectors, (r, o), with all their neighbours.

    The nodes may be new to the model.
    """
    parts = []
    whole_input = GraphInput(graph_input.adjacency, graph_input.features, (), graph_input.seed)
    like = next(net.parameters())
    with torch.no_grad():
        for begin in range(0, len(node_r), at_once):
            nodes = node_r[begin : begin + at_once]
            graph, features = move_batch(whole_input.build_minibatch(net, nodes, 0), like.device)
            rows = net(features.to(like.dtype), graph).to("cpu", torch.float32)
            parts.append(rows[subgraphs.find_places(graph.outputs, nodes)])
    return torch.cat(parts).numpy() if parts else np.empty((0, 0), np.float32)


def rank_items(vectors: Floats32, query_e: Ints, item_e: Ints, known: Bools | None = None) -> Ints:
    """Return the rank of each pair's item by dot product, (e,).

    Ranks start at 1. Items with a higher score rank before it.

    Args:
        vectors: (n, d).
        query_e: rows of queries; never a candidate of their own.
        item_e: rows of items.
        known: (n,) the candidates; None: all.
    """
    ranks = np.empty(len(query_e), np.int64)
    at_once = min(max(SCORES // max(len(vectors), 1), 1), 256)
    for begin in range(0, len(query_e), at_once):
        rows = slice(begin, begin + at_once)
        scores = vectors[query_e[rows]] @ vectors.T
        places = np.arange(len(scores))
        own = scores[places, item_e[rows]]
        scores[places, query_e[rows]] = -np.inf
        higher = scores > own[:, None]
        ranks[rows] = 1 + (higher if known is None else higher & known[None, :]).sum(axis=1)
    return ranks


def mean_scaled_rank(ranks: Ints, scale: int = 100) -> float:
    """Return the mean of 1 / ceil(rank / scale).

    Source: Ying et al. 2018, section 4.1.
    """
    return float((1 / np.ceil(ranks / scale)).mean()) if len(ranks) else 0.0


def pair_liked_items(indptr: Ints, item_e: Ints, most: int, seed: int) -> tuple[Ints, Ints, Ints]:
    """Pair each user's items, each with the next ones.

    Items go round in an order by hash.

    Args:
        indptr: (users + 1,) place where each user's items begin.
        item_e: (e,) items; those below 0 are left out.
        most: most pairs which begin at an item.
        seed: seed of the order.

    Returns:
        User, query and item of each pair.
    """
    user = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    user, item = user[item_e >= 0], item_e[item_e >= 0]
    order = np.lexsort((hash_numbers(item + (user << 32), seed), user))
    user, item = user[order], item[order]
    counts = np.bincount(user, minlength=len(indptr) - 1)
    begins = np.cumsum(counts) - counts
    place, size = np.arange(len(user)) - begins[user], counts[user]
    pairs = []
    for step in range(1, most + 1):
        rows = np.flatnonzero(size > step)
        other = begins[user[rows]] + (place[rows] + step) % size[rows]
        pairs.append((user[rows], item[rows], item[other]))
    users, queries, items = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return users, queries, items


def max_margin(
    query: torch.Tensor,
    item: torch.Tensor,
    shared: torch.Tensor | None,
    hard: torch.Tensor | None,
    margin: float,
) -> torch.Tensor:
    """Return max-margin losses, averaged over negatives, summed over pairs.

    A negative n costs max(0, q . n - q . i + margin) (Ying et al. 2018, equation 1). `shared` are the
    minibatch's negatives, `hard` those of each pair.

    Args:
        query: (b, d).
        item: (b, d) positives.
        shared: (m, d), the same for all pairs; None: none.
        hard: (b, k, d); None: none.
        margin: at least 0.

    Raises:
        ConfigError: the margin is negative, or there are no negatives.
    """
    if margin < 0:
        raise ConfigError(f"margin: {margin} is negative", "give a margin of 0 or more, e.g. 0.1")
    positive = (query * item).sum(dim=1, keepdim=True)
    scores = [] if shared is None else [query @ shared.T]
    if hard is not None and hard.shape[1]:
        scores.append((hard @ query[:, :, None]).squeeze(2))
    if not scores:
        raise ConfigError("no negatives", "negatives: 500, or hard ones")
    return torch.relu(torch.cat(scores, dim=1) - positive + margin).mean(dim=1).sum()


def co_occurrence(
    one: torch.Tensor, other: torch.Tensor, negatives: torch.Tensor, times: float
) -> torch.Tensor:
    """Return GraphSAGE's unsupervised loss over pairs met on walks.

    The loss is the sum of -log sigma(u . v) - Q mean over n of log sigma(-u . n) (Hamilton et al. 2017,
    equation 1).

    Args:
        one: (b, d) u.
        other: (b, d) v.
        negatives: (m, d), the same for all pairs.
        times: Q.
    """
    near = functional.softplus(-(one * other).sum(dim=1))
    far = functional.softplus(one @ negatives.T).mean(dim=1)
    return (near + times * far).sum()


def cross_entropy(scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return the sum of -log softmax(scores)[label].

    Scores are (b, classes) and labels (b,). Labels (b, classes) with 0 and 1 use the sigmoid instead, with
    the mean over classes.
    """
    if label.dim() == 2:
        total = functional.binary_cross_entropy_with_logits(scores, label.to(scores.dtype), reduction="sum")
        return total / scores.shape[1]
    return functional.cross_entropy(scores, label, reduction="sum")
