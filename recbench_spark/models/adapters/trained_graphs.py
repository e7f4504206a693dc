"""PinSage and GraphSAGE in a night: graph, fit, embeddings.

Their kinds are `pinsage` and `graphsage`. The fit runs in the driver's process, or in `processes` on its
host or under Spark tasks. Each process maps graph and features, and holds the pairs, 16 bytes each. Weights
are written to a safetensors file; tasks then compute every node's vector once per layer
(`graphs.pipeline`).
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from recbench_spark.config import digest
from recbench_spark.core.arrays import Bools, Floats32, Ints
from recbench_spark.graphs import model_inputs
from recbench_spark.graphs.build import NodeFinder
from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels.ids import hash_node_ids, hash_numbers
from recbench_spark.graphs.kernels.samples import Band, rank_bands
from recbench_spark.graphs.local_walks import map_adjacency, write_adjacency
from recbench_spark.graphs.neighbourhoods import ensure_neighbourhoods, neighbourhood_source
from recbench_spark.graphs.pipeline import embed, open_model_work
from recbench_spark.graphs.settings import GraphLayers, GraphSource, NeighbourhoodSettings
from recbench_spark.graphs.stored_graphs import ensure_graph, split_source
from recbench_spark.models.adapters import factor_models
from recbench_spark.models.adapters.fit_files import WEIGHTS_FILE, has_weights, keep_weights
from recbench_spark.models.adapters.graph_models import make_graph_model, read_side_rows
from recbench_spark.models.adapters.model_adapter import SimilarityAdapter, SplitData, Trained
from recbench_spark.models.adapters.multiprocess_fit import fit_as_configured
from recbench_spark.models.adapters.split_data import HistoryRule, read_histories
from recbench_spark.models.fits.logs import as_text
from recbench_spark.models.graph import SIDES, GraphSageModel, PinSageModel
from recbench_spark.models.networks import tasks
from recbench_spark.models.networks.factors import UserItemPairs
from recbench_spark.models.networks.fitting import Task, Watch
from recbench_spark.models.networks.layers import GraphNetwork
from recbench_spark.models.networks.subgraphs import Adjacency
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.sources.opened_logs import choose_identity
from recbench_spark.storage.block_arrays import map_file, map_whole
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.publish import remove_tree
from recbench_spark.storage.shared_arrays import flatten_lists, replace_array
from recbench_spark.storage.uris import absolute_place

EXAMPLES_FOLDER = "examples"
"""Subfolder in a fit's folder, read by all its processes."""

JUDGED, CANDIDATES = 1000, 20_000
"""Most validation pairs, and most nodes each is ranked among; a hash draws both."""


class Examples(NamedTuple):
    """Training and validation pairs by dense id, with the negatives' side.

    The test pairs, if any, are measured beside the fit.
    """

    query: Ints
    item: Ints
    held_query: Ints
    held_item: Ints
    side: tuple[int, int]
    test_query: Ints | None = None
    test_item: Ints | None = None


class TrainingGraph(NamedTuple):
    """A graph with features, ready for a fit.

    `arguments` are those `map_graph_files` made it from.
    """

    graph: Graph
    inputs: tasks.GraphInput
    net: GraphNetwork
    arguments: tuple[Any, ...] = ()


class Sampling(NamedTuple):
    """The neighbours minibatches see, as in `GraphInput`.

    Attributes:
        samples: neighbours drawn in each layer; empty: all.
        dropout: probability of a node without neighbours in a minibatch.
        side: number of the graph side whose nodes may lose their neighbours: the items. A user without
            neighbours is no node, so no fit has to learn about one.
    """

    samples: tuple[int, ...]
    dropout: float
    side: int


def open_training_graph(
    data: SplitData, source: GraphSource, layers: GraphLayers, sampling: Sampling, name: str
) -> TrainingGraph:
    """Build graph and features unless they exist, and a random net."""
    journal, model = factor_models.find_journal(data), make_graph_model(name, source, layers)
    graph = model_inputs.ensure_checked_graph(data.store, model, None, journal)
    place = model_inputs.build_features(data.store, model, graph, journal)[0]
    return map_graph_files(graph, place, layers, sampling)


def map_graph_files(graph: Graph, place: str, layers: GraphLayers, sampling: Sampling) -> TrainingGraph:
    """Map graph and features; make a net with random weights.

    The net is the same in all processes.
    """
    features = map_whole(place)
    net = GraphNetwork(layers.forms(), layers.final, features.shape[1])
    net.initialise(layers.seed)
    blocks = [block for block in graph.blocks if block.rows]
    block_csrs = tuple(graph.csr(block) for block in blocks)
    parts = Adjacency(np.array([block.first for block in blocks]), block_csrs, graph.hashes())
    nodes = graph.side_range(sampling.side)
    inputs = tasks.GraphInput(parts, features, sampling.samples, layers.seed, sampling.dropout, nodes)
    return TrainingGraph(graph, inputs, net, (graph, place, layers, sampling))


def make_validation_score(training: TrainingGraph, examples: Examples) -> Any:
    """Return the function which scores a net on validation pairs.

    The score is their scaled MRR among the side's nodes (scale: a 200th of them).
    """
    order = np.argsort(hash_numbers(np.arange(len(examples.held_query)), 1), kind="stable")[:JUDGED]
    query, item = examples.held_query[order], examples.held_item[order]
    first, end = examples.side
    others = first + np.argsort(hash_numbers(np.arange(end - first), 2), kind="stable")[:CANDIDATES]
    nodes = np.unique(np.concatenate([others, item]))
    both = np.unique(np.concatenate([nodes, query]))

    def score_net(net: GraphNetwork) -> float:
        if not len(query):
            return math.nan
        z = tasks.embed_by_minibatch(net, training.inputs, both)
        places = np.searchsorted(both, query), np.searchsorted(both, item)
        known = np.isin(both, nodes)
        ranks = tasks.rank_items(z, *places, known)
        return tasks.mean_scaled_rank(ranks, max(1, len(nodes) // 200))

    return score_net


def fit_weights(
    data: SplitData,
    training: TrainingGraph,
    examples: Examples,
    how: tasks.PairObjective,
    band: Band | None,
    *,
    fit_of: tuple[Any, Path],
) -> Path:
    """Return the weights' file for settings and folder; fit if missing."""
    settings, folder = fit_of
    path, say = folder / WEIGHTS_FILE, factor_models.find_journal(data).say
    if not path.exists():
        task = make_pair_task(training, examples, how, band)
        say(f"model {settings.name}: {task.examples:,} pairs, {len(examples.held_query):,} for validation")
        if settings.processes > 1:
            save_examples(folder / EXAMPLES_FOLDER, examples, band)
        make = partial(load_pair_task, training.arguments, str(folder.absolute()), how)
        result = fit_as_configured(
            settings, task, make, folder / "checkpoints", lambda text: say(f"  {text}"),
            engine=data.store.engine,
        )  # fmt: skip
        say(f"  best epoch {result.best}, validation {result.worth:.5f}; ended: {result.stopped}")
        training.net.save(path)
    return path


def make_pair_task(
    training: TrainingGraph, examples: Examples, how: tasks.PairObjective, band: Band | None
) -> Task:
    """Return the task to fit."""
    pairs = (examples.query, examples.item)
    task = tasks.PairTask(
        training.net, training.inputs, pairs, how, band, score=make_validation_score(training, examples)
    )
    if examples.test_query is None or examples.test_item is None:
        return task
    test = make_validation_score(
        training, examples._replace(held_query=examples.test_query, held_item=examples.test_item)
    )
    task.watch = Watch("scaled MRR", partial(test, training.net))
    return task


def load_pair_task(arguments: tuple[Any, ...], folder: str, how: tasks.PairObjective) -> Task:
    """Return the same task in another process, from files."""
    examples, band = load_examples(Path(folder, EXAMPLES_FOLDER))
    return make_pair_task(map_graph_files(*arguments), examples, how, band)


def save_examples(folder: Path, examples: Examples, band: Band | None) -> None:
    """Write examples and hard negatives as `.npy` files for other processes."""
    remove_tree(folder)
    for name, array in {**examples._asdict(), **({} if band is None else band._asdict())}.items():
        if array is not None:
            replace_array(folder / f"{name}.npy", np.asarray(array))


def load_examples(folder: Path) -> tuple[Examples, Band | None]:
    """Map the example files from `save_examples`."""
    arrays: dict[str, Any] = {path.stem: map_file(path) for path in folder.glob("*.npy")}
    parts: dict[str, Any] = {name: arrays.get(name) for name in Examples._fields}
    examples = Examples(**{**parts, "side": tuple(arrays["side"].tolist())})
    return examples, Band(*(arrays[name] for name in Band._fields)) if "node" in arrays else None


class TrainedGraphModels(SimilarityAdapter[Any]):
    """Base for the adapters of PinSage and GraphSAGE."""

    runs_local = True
    needs_files = True
    keeps_checkpoints = True

    def key(self, data: SplitData) -> str:
        """Return the key with the feature table's content hash.

        Another table gives another model.
        """
        path = self.settings.features.path
        more = "" if path is None else "-" + digest(choose_identity(data.store)(absolute_place(path)))
        return data.key(self.settings) + more

    def told(self) -> str:
        """Describe the layers and check the feature table, before Spark."""
        return model_inputs.describe_files(self.settings.over(None))

    def saved(self, data: SplitData) -> bool:
        """Return true if vectors and undamaged weights are saved."""
        return super().saved(data) and has_weights(data, self.key(data))

    def save(self, trained: Trained, data: SplitData) -> None:
        """Append to `embeddings`, and publish the weights."""
        keep_weights(data, self.key(data), partial(super().save, trained, data))

    def embed_nodes(self, data: SplitData, source: GraphSource, weights: Path) -> str:
        """Embed all nodes; return the model's name in `embeddings`."""
        model = make_graph_model(self.settings.name, source, self.settings.over(str(weights)))
        journal = factor_models.find_journal(data)
        prepared = model_inputs.prepare_model(data.store, model, journal)
        with open_model_work(data.store, prepared, journal) as working:
            embed(data.store, working, journal)
        return prepared.model.model_id

    def graph_source(self, data: SplitData) -> GraphSource:
        """Return the source for the split's graph, with featured items.

        Featured items come from the feature table.
        """
        features, more = self.settings.features, {}
        if features.path is not None:
            more = {"nodes": {"item": features.path}, "node_column": features.id_column}
        return split_source(data.store, data.split_id, **more)


class GraphSageAdapter(TrainedGraphModels):
    """Fits GraphSAGE on one graph over users and items.

    The edges are the pairs.
    """

    def fit(self, data: SplitData) -> Trained:
        """Fit on the split's graph edges and embed all nodes."""
        settings: GraphSageModel = self.settings
        # An unusable folder ends the fit before any work.
        folder = factor_models.fit_folder(data, settings.processes)
        source = self.graph_source(data)
        sampling = Sampling(settings.samples, settings.neighbour_dropout, side=1)
        training = open_training_graph(data, source, settings.over(None), sampling, settings.name)
        examples = split_edges(training.graph, settings.validation, settings.seed)
        if settings.watch:
            query, item = read_test_edges(data, training.graph)
            examples = examples._replace(test_query=query, test_item=item)
        first, end = examples.side
        how = tasks.PairObjective(
            "co_occurrence", settings.weight, settings.negatives, first=first, end=end
        )
        weights = fit_weights(data, training, examples, how, None, fit_of=(settings, folder))
        name = self.embed_nodes(data, source, weights)
        return Trained(*(read_side_rows(data, name, side, side) for side in SIDES))


def split_edges(graph: Graph, share: float, seed: int) -> Examples:
    """Split user-item edges by hash into training and validation pairs."""
    queries, items = [], []
    for block in graph.side_blocks(0):
        csr = graph.csr(block)
        queries.append(np.repeat(np.arange(block.first, block.end), np.diff(csr.indptr)))
        items.append(np.asarray(csr.src[: csr.edges], np.int64))
    query, item = np.concatenate(queries), np.concatenate(items)
    held = draw_held_out(query * graph.nodes + item, share, seed)
    return Examples(query[~held], item[~held], query[held], item[held], graph.side_range(1))


def read_test_edges(data: SplitData, graph: Graph) -> tuple[Ints, Ints]:
    """Return users and relevant test items in the graph, for `watch`."""
    tested = read_histories(data, HistoryRule(data.known_items, data.threshold, ("test",)))
    offsets, item_e = flatten_lists(tested.column("items").combine_chunks())
    user_e = np.repeat(np.arange(len(tested)), np.diff(offsets))
    user_p, item_p = np.unique(np.stack([user_e, item_e]), axis=1)
    query = find_dense_ids(graph, tested.column("user_id"), 0)[user_p]
    item = find_dense_ids(graph, as_text(data.known_items.ids()), 1)[item_p]
    known = (query >= 0) & (item >= 0)
    return query[known], item[known]


def draw_held_out(key_e: Ints, share: float, seed: int) -> Bools:
    """Return (e,) true for keys with hashes below `share`."""
    hashes = hash_numbers(key_e, seed)
    return np.asarray((hashes >> np.uint64(11)).astype(np.float64) < share * 2.0**53)


class PinSageAdapter(TrainedGraphModels):
    """Fits PinSage on items linked by walks.

    Users are means of their items.
    """

    def fit(self, data: SplitData) -> Trained:
        """Fit on item pairs, embed items, and average per user."""
        settings: PinSageModel = self.settings
        # An unusable folder ends the fit before any work.
        folder = factor_models.fit_folder(data, settings.processes)
        journal, over_split = factor_models.find_journal(data), self.graph_source(data)
        walks = {name: getattr(settings, name) for name in ("walks", "hops", "restart", "top", "seed")}
        neighbourhoods = NeighbourhoodSettings(graph=over_split, side="item", **walks)
        name = ensure_neighbourhoods(data.store, neighbourhoods, journal)
        source = neighbourhood_source(data.store, name)
        sampling = Sampling((), settings.neighbour_dropout, side=0)
        training = open_training_graph(data, source, settings.over(None), sampling, settings.name)
        known = data.training_catalogue
        pairs, users = factor_models.read_pairs(data, known)
        dense = find_dense_ids(training.graph, as_text(known.ids()), 0)
        examples = make_pair_examples(pairs, dense, training.graph.nodes, settings)
        if settings.watch:
            query, item = pair_test_items(
                pairs, factor_models.read_test_pairs(data, known, users, pairs), dense, settings.seed
            )
            examples = examples._replace(test_query=query, test_item=item)
        band = self.band(data, over_split, training.graph) if settings.curriculum else None
        how = tasks.PairObjective(
            "max_margin", settings.margin, settings.negatives, settings.per_pair, settings.curriculum,
            end=training.graph.nodes,
        )  # fmt: skip
        weights = fit_weights(data, training, examples, how, band, fit_of=(settings, folder))
        items = read_side_rows(data, self.embed_nodes(data, source, weights), "node", "item")
        vectors = read_item_matrix(items, known, dense, training.graph.nodes)
        return Trained(
            factor_models.share_vectors(data, "user", users, mean_vectors(pairs, vectors[dense])), items
        )

    def band(self, data: SplitData, source: GraphSource, lists: Graph) -> Band:
        """Return each item's hard negatives.

        Both graphs sort the items by the same hashes, so their order is the same.
        """
        journal = factor_models.find_journal(data)
        graph = ensure_graph(data.store, source, None, journal)
        write_adjacency(data.store.engine, graph)
        first, end = graph.side_range(1)
        assert end - first == lists.nodes
        bands = rank_bands(
            map_adjacency(graph), np.arange(first, end), (first, end), self.settings.hard_ranks
        )
        journal.say(
            f"hard negatives: {int(bands.fallback.sum()):,} of {end - first:,} items reach fewer than "
            f"{self.settings.hard_ranks[1]:,} others and take the same share of what they reach"
        )
        return bands._replace(node=bands.node - np.uint32(first))


def find_dense_ids(graph: Graph, ids: pa.Array | pa.ChunkedArray, side: int) -> Ints:
    """Return dense ids for a side's ids; -1 outside the graph."""
    nodes = NodeFinder(graph)(hash_node_ids(ids.cast(pa.string()), graph.seed), side).astype(np.int64)
    return np.where(nodes < graph.nodes, nodes, -1)


def make_pair_examples(pairs: UserItemPairs, dense: Ints, nodes: int, settings: PinSageModel) -> Examples:
    """Pair items of one user, split into training and validation.

    A hash picks the share of users whose pairs are for validation.
    """
    user, query, item = tasks.pair_liked_items(
        pairs.indptr, dense[pairs.item], settings.pairs, settings.seed
    )
    held = draw_held_out(user, settings.validation, settings.seed)
    return Examples(query[~held], item[~held], query[held], item[held], (0, nodes))


def pair_test_items(pairs: UserItemPairs, test: UserItemPairs, dense: Ints, seed: int) -> tuple[Ints, Ints]:
    """Return, by dense id, a training item for each test item.

    A hash draws it from the user's training items.
    """
    user = test.user.astype(np.int64)
    size = np.diff(pairs.indptr)[user]
    drawn = hash_numbers(user * pairs.items + test.item, seed) >> np.uint64(11)
    place = pairs.indptr[user] + drawn.astype(np.int64) % np.maximum(size, 1)
    query, item = dense[pairs.item[np.minimum(place, len(pairs.item) - 1)]], dense[test.item]
    known = (size > 0) & (query >= 0) & (item >= 0) & (query != item)
    return query[known], item[known]


def read_item_matrix(items: PieceRows, known: KnownItems, dense: Ints, nodes: int) -> Floats32:
    """Return (nodes, d) item vectors by dense id; zeros elsewhere.

    `items`: item_id, vector.
    """
    rows = pa.concat_tables(items.each(("item_id", "vector"), pa.concat_tables))
    index_n = known.find(rows.column("item_id").combine_chunks())[0]
    vectors = rows.column("vector").combine_chunks().flatten().to_numpy().reshape(len(rows), -1)
    out = np.zeros((nodes, vectors.shape[1]), np.float32)
    out[dense[index_n[index_n >= 0]]] = vectors[index_n >= 0]
    return out


def mean_vectors(pairs: UserItemPairs, vectors: Floats32) -> Floats32:
    """Return (users, d) means over the vectors of each user's items."""
    out = np.empty((pairs.users, vectors.shape[1]), np.float32)
    for user in range(pairs.users):
        out[user] = vectors[pairs.item[pairs.indptr[user] : pairs.indptr[user + 1]]].mean(axis=0)
    return out
