"""`kind: pinsage` and `kind: graphsage`: graphs laid out, layers fitted, all nodes embedded layer by layer.

The driver's process fits, or `processes` of its host or of Spark's tasks: each maps graph and features, and
holds the pairs, 16 bytes each.
Weights go into a safetensors file; tasks then compute every node's vector once a layer (`graph.pipeline`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import digest
from recbench_spark.config.graph import GraphLayers, GraphModel, GraphSource, NeighbourhoodSettings
from recbench_spark.data.identity import identity
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.graph.build import Finder
from recbench_spark.graph.folders import Graph, mapped
from recbench_spark.graph.folders import save as save_array
from recbench_spark.graph.local_walks import adjacency, lay_adjacency
from recbench_spark.graph.neighbourhoods import lists_source, neighbourhoods_of
from recbench_spark.graph.pipeline import (
    embed,
    graph_of,
    lay_features,
    open_model_work,
    prepare,
    split_source,
    told_of_files,
)
from recbench_spark.kernels.graph.ids import hashed_numbers, hashes_of
from recbench_spark.kernels.graph.samples import Band, bands
from recbench_spark.models.graphsage import GraphSageModel
from recbench_spark.models.networks.factors import Pairs
from recbench_spark.models.networks.fitting import Task, Watched
from recbench_spark.models.networks.layers import GraphNet
from recbench_spark.models.networks.subgraphs import Adjacency
from recbench_spark.models.networks.tasks import (
    Input,
    Margin,
    PairTask,
    co_liked,
    embedded,
    item_ranks,
    scaled_mrr,
)
from recbench_spark.models.pinsage import PinSageModel
from recbench_spark.schemas import EMBEDDINGS
from recbench_spark.storage.publish import remove_tree
from recbench_spark.training.factor_models import (
    fit_folder,
    journal_of,
    read_pairs,
    rows_of,
    watched_pairs,
    with_vectors,
)
from recbench_spark.training.model_adapter import Behaviour, SplitData, Trained
from recbench_spark.training.multiprocess_fit import fit_as_set
from recbench_spark.training.relevance import relevant

WEIGHTS = "weights.safetensors"
"""Of a fit, for `jobs/embed.py --weights`."""

EXAMPLES = "examples"
"""Of a fit's folder: what several processes read."""

JUDGED, CANDIDATES = 1000, 20_000
"""Validation pairs, and nodes that each is ranked among, at most: drawn by hash."""


Nodes = npt.NDArray[np.int64]


class Examples(NamedTuple):
    """Pairs by dense id, those held out for validation, the side that negatives are of; test pairs that are
    watched, if any."""

    query: Nodes
    item: Nodes
    held_query: Nodes
    held_item: Nodes
    side: tuple[int, int]
    test_query: Nodes | None = None
    test_item: Nodes | None = None


class Laid(NamedTuple):
    """A graph with features, ready for a fit; what `over_files` made it of, for other processes."""

    graph: Graph
    given: Input
    net: GraphNet
    made_of: tuple[Any, ...] = ()


class Sampling(NamedTuple):
    """The neighbours that minibatches see: see `samples` and `dropout` of `Input`.

    Attributes:
        side: number of the side of the graph whose nodes may lose their neighbours: that of the items.
            A user without neighbours is no node, so no fit has to learn of one.
    """

    samples: tuple[int, ...]
    dropout: float
    side: int


def laid(data: SplitData, source: GraphSource, layers: GraphLayers, sampling: Sampling, name: str) -> Laid:
    """Graph and features, each made once; a net with random weights."""
    journal = journal_of(data)
    model = GraphModel(name=name, graph=source, **{k: getattr(layers, k) for k in GraphLayers.model_fields})
    graph = graph_of(data.store, source, None, journal)
    path = lay_features(data.store, model, graph, journal)[0]
    return over_files(graph, path, layers, sampling)


def over_files(graph: Graph, path: Path, layers: GraphLayers, sampling: Sampling) -> Laid:
    """What lies in files, mapped, beneath a net with random weights: the same in all processes."""
    features = mapped(path)
    net = GraphNet(layers.forms(), layers.final, features.shape[1])
    net.initialise(layers.seed)
    blocks = [block for block in graph.blocks if block.rows]
    of_blocks = tuple(graph.csr(block) for block in blocks)
    parts = Adjacency(np.array([block.first for block in blocks]), of_blocks, graph.hashes())
    nodes = graph.side_range(sampling.side)
    given = Input(parts, features, sampling.samples, layers.seed, sampling.dropout, nodes)
    return Laid(graph, given, net, (graph, path, layers, sampling))


def judged(laid: Laid, examples: Examples) -> Any:
    """What a net is worth: scaled MRR of validation pairs among nodes of the side (scale: a 200th of
    them)."""
    order = np.argsort(hashed_numbers(np.arange(len(examples.held_query)), 1), kind="stable")[:JUDGED]
    query, item = examples.held_query[order], examples.held_item[order]
    first, end = examples.side
    others = first + np.argsort(hashed_numbers(np.arange(end - first), 2), kind="stable")[:CANDIDATES]
    nodes = np.unique(np.concatenate([others, item]))
    both = np.unique(np.concatenate([nodes, query]))

    def worth(net: GraphNet) -> float:
        if not len(query):
            return math.nan
        z = embedded(net, laid.given, both)
        places = np.searchsorted(both, query), np.searchsorted(both, item)
        known = np.isin(both, nodes)
        ranks = item_ranks(z, *places, known)
        return scaled_mrr(ranks, max(1, len(nodes) // 200))

    return worth


def fitted_weights(
    data: SplitData,
    laid: Laid,
    examples: Examples,
    how: Margin,
    band: Band | None,
    fit_of: tuple[Any, Path],
) -> Path:
    """The weights' file, by settings and folder; fitted where it is not there yet."""
    settings, folder = fit_of
    path, say = folder / WEIGHTS, journal_of(data).say
    if not path.exists():
        task = pair_task(laid, examples, how, band)
        say(f"model {settings.name}: {task.examples:,} pairs, {len(examples.held_query):,} for validation")
        if settings.processes > 1:
            save_examples(folder / EXAMPLES, examples, band)
        make = partial(saved_task, laid.made_of, str(folder.absolute()), how)
        found = fit_as_set(settings, task, make, folder / "checkpoints", lambda text: say(f"  {text}"))
        say(f"  best epoch {found.best}, validation {found.worth:.5f}; ended: {found.stopped}")
        laid.net.save(path)
    return path


def pair_task(laid: Laid, examples: Examples, how: Margin, band: Band | None) -> Task:
    """What is fitted."""
    pairs = (examples.query, examples.item)
    task = PairTask(laid.net, laid.given, pairs, how, band, judged(laid, examples))
    if examples.test_query is None or examples.test_item is None:
        return task
    test = judged(laid, examples._replace(held_query=examples.test_query, held_item=examples.test_item))
    return Watched(task, "scaled MRR", partial(test, laid.net))


def saved_task(made_of: tuple[Any, ...], folder: str, how: Margin) -> Task:
    """The same task in another process, from files."""
    examples, band = saved_examples(Path(folder, EXAMPLES))
    return pair_task(over_files(*made_of), examples, how, band)


def save_examples(folder: Path, examples: Examples, band: Band | None) -> None:
    """Examples and hard negatives as `.npy` files, for other processes."""
    remove_tree(folder)
    for name, array in {**examples._asdict(), **({} if band is None else band._asdict())}.items():
        if array is not None:
            save_array(folder / f"{name}.npy", np.asarray(array))


def saved_examples(folder: Path) -> tuple[Examples, Band | None]:
    """What `save_examples` wrote, mapped."""
    arrays: dict[str, Any] = {path.stem: mapped(path) for path in folder.glob("*.npy")}
    parts: dict[str, Any] = {name: arrays.get(name) for name in Examples._fields}
    examples = Examples(**{**parts, "side": tuple(arrays["side"].tolist())})
    return examples, Band(*(arrays[name] for name in Band._fields)) if "node" in arrays else None


class OverGraphs(Behaviour[Any]):
    """What both kinds share."""

    def source(self, trained: Trained, data: SplitData) -> DotSource:
        """The vectors of the items, with the similarity that the settings name."""
        found = super().source(trained, data)
        assert isinstance(found, DotSource)
        return replace(found, kind=self.settings.similarity)

    def key(self, data: SplitData) -> str:
        """With the identity of the features' table: another one is another model."""
        path = self.settings.features.path
        more = "" if path is None else "-" + digest(identity(data.spark, str(Path(path).absolute())))
        return data.key(self.settings) + more

    def told(self) -> str:
        """The layers in words, the table of features looked at, before Spark starts."""
        return told_of_files(self.settings.over(None))

    def save(self, trained: Trained, data: SplitData) -> None:
        """Append to `embeddings`; of the fit's files the weights are published."""
        super().save(trained, data)
        assert data.lease is not None
        for entry in data.lease.work.iterdir():
            if entry.name != WEIGHTS:
                remove_tree(entry)
        data.lease.publish()

    def embedded(self, data: SplitData, source: GraphSource, weights: Path) -> str:
        """The name under which all nodes' vectors lie in `embeddings`."""
        layers = self.settings.over(str(weights))
        keys = {name: getattr(layers, name) for name in GraphLayers.model_fields}
        model = GraphModel(name=self.settings.name, graph=source, **keys)
        journal = journal_of(data)
        prepared = prepare(data.store, model, journal)
        with open_model_work(data.store, prepared, journal) as working:
            embed(data.store, working, journal)
        return prepared.model.model_id

    def graph_source(self, data: SplitData) -> GraphSource:
        """The split's graph; items that stand in a table of features belong to it."""
        features, more = self.settings.features, {}
        if features.path is not None:
            more = {"nodes": {"item": features.path}, "node_column": features.id_column}
        return split_source(data.store, data.split_id, **more)


def side_rows(data: SplitData, model_id: str, side: str, name: str) -> DataFrame:
    """`NAME_id`, vector, bias of one side."""
    rows = data.store.read(EMBEDDINGS).where((F.col("model_id") == model_id) & (F.col("side") == side))
    return rows.select(F.col("id").alias(f"{name}_id"), "vector", F.lit(0.0).alias("bias"))


class GraphSages(OverGraphs):
    """Users and items as nodes of one graph; pairs are its edges."""

    def fit(self, data: SplitData) -> Trained:
        """See the module."""
        settings: GraphSageModel = self.settings
        folder = fit_folder(data, settings.processes)  # a folder that is no good ends it before any work
        source = self.graph_source(data)
        sampling = Sampling(settings.samples, settings.neighbour_dropout, side=1)
        found = laid(data, source, settings.over(None), sampling, settings.name)
        examples = edges_of(found.graph, settings.validation, settings.seed)
        if settings.watch:
            query, item = watched_edges(data, found.graph, folder)
            examples = examples._replace(test_query=query, test_item=item)
        how = Margin(
            "co_occurrence",
            settings.weight,
            settings.negatives,
            first=examples.side[0],
            end=examples.side[1],
        )
        weights = fitted_weights(data, found, examples, how, None, (settings, folder))
        name = self.embedded(data, source, weights)
        return Trained(side_rows(data, name, "user", "user"), side_rows(data, name, "item", "item"))


def edges_of(graph: Graph, share: float, seed: int) -> Examples:
    """Edges into users, from items; a share of them by hash for validation."""
    queries, items = [], []
    for block in graph.blocks_of(0):
        csr = graph.csr(block)
        queries.append(np.repeat(np.arange(block.first, block.end), np.diff(csr.indptr)))
        items.append(np.asarray(csr.src[: csr.edges], np.int64))
    query, item = np.concatenate(queries), np.concatenate(items)
    held = held_rows(query * graph.nodes + item, share, seed)
    return Examples(query[~held], item[~held], query[held], item[held], graph.side_range(1))


def watched_edges(data: SplitData, graph: Graph, folder: Path) -> tuple[Nodes, Nodes]:
    """Users and relevant items of the test part that are nodes of the graph, for `watch` alone."""
    place = str(folder / "test")
    rows = relevant(data.test_rows, data.threshold).select("user_id", "item_id").distinct()
    rows.write.mode("overwrite").parquet(place)
    table = rows_of(data, place)
    query, item = dense_of(graph, table.column("user_id"), 0), dense_of(graph, table.column("item_id"), 1)
    known = (query >= 0) & (item >= 0)
    return query[known], item[known]


def held_rows(key_e: Nodes, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """(e,) whether the hash of each key is among the lowest share."""
    hashes = hashed_numbers(key_e, seed)
    return np.asarray((hashes >> np.uint64(11)).astype(np.float64) < share * 2.0**53)


class PinSages(OverGraphs):
    """Items over items that walks connect; users are means of their items."""

    def fit(self, data: SplitData) -> Trained:
        """See the module."""
        settings: PinSageModel = self.settings
        folder = fit_folder(data, settings.processes)  # a folder that is no good ends it before any work
        journal, over_split = journal_of(data), self.graph_source(data)
        asked = NeighbourhoodSettings(
            graph=over_split,
            side="item",
            walks=settings.walks,
            hops=settings.hops,
            restart=settings.restart,
            top=settings.top,
            seed=settings.seed,
        )
        source = lists_source(data.store, neighbourhoods_of(data.store, asked, journal))
        sampling = Sampling((), settings.neighbour_dropout, side=0)
        found = laid(data, source, settings.over(None), sampling, settings.name)
        pairs, users = read_pairs(data, folder)
        dense = dense_items(data, found.graph, folder)
        examples = liked_together(pairs, dense, found.graph.nodes, settings)
        if settings.watch:
            query, item = beside_test(
                pairs, watched_pairs(data, users, pairs, folder), dense, settings.seed
            )
            examples = examples._replace(test_query=query, test_item=item)
        band = self.band(data, over_split, found.graph) if settings.curriculum else None
        how = Margin(
            "max_margin", settings.margin, settings.negatives, settings.per_pair, settings.curriculum,
            end=found.graph.nodes,
        )  # fmt: skip
        weights = fitted_weights(data, found, examples, how, band, (settings, folder))
        items = side_rows(data, self.embedded(data, source, weights), "node", "item")
        vectors = matrix_of(data, items, dense, found.graph.nodes, folder)
        return Trained(with_vectors(data, "user", users, means(pairs, vectors[dense]), folder), items)

    def band(self, data: SplitData, source: GraphSource, lists: Graph) -> Band:
        """Hard negatives of each item. Both graphs have the items in the order of the same hashes."""
        journal = journal_of(data)
        graph = graph_of(data.store, source, None, journal)
        lay_adjacency(data.spark.sparkContext, graph)
        first, end = graph.side_range(1)
        assert end - first == lists.nodes
        found = bands(adjacency(graph), np.arange(first, end), (first, end), self.settings.hard_ranks)
        journal.say(
            f"hard negatives: {int(found.fallback.sum()):,} of {end - first:,} items reach fewer than "
            f"{self.settings.hard_ranks[1]:,} others and take the same share of what they reach"
        )
        return found._replace(node=found.node - np.uint32(first))


def dense_items(data: SplitData, graph: Graph, folder: Path) -> Nodes:
    """(items,) dense id in the graph of each item of the catalogue; -1 where the graph has it not."""
    place = str(folder / "items")
    data.items.select("item_index", "item_id").write.mode("overwrite").parquet(place)
    table = rows_of(data, place)
    out = np.full(data.n_items, -1, np.int64)
    out[table.column("item_index").to_numpy()] = dense_of(graph, table.column("item_id"), 0)
    return out


def dense_of(graph: Graph, ids: pa.ChunkedArray, side: int) -> Nodes:
    """Dense id in the graph of each id of a side; -1 where the graph has it not."""
    found = Finder(graph)(hashes_of(ids.cast(pa.string()), graph.seed), side).astype(np.int64)
    return np.where(found < graph.nodes, found, -1)


def liked_together(pairs: Pairs, dense: Nodes, nodes: int, settings: PinSageModel) -> Examples:
    """Pairs of items of one user; those of a share of users by hash are for validation."""
    user, query, item = co_liked(pairs.indptr, dense[pairs.item], settings.pairs, settings.seed)
    held = held_rows(user, settings.validation, settings.seed)
    return Examples(query[~held], item[~held], query[held], item[held], (0, nodes))


def beside_test(pairs: Pairs, test: Pairs, dense: Nodes, seed: int) -> tuple[Nodes, Nodes]:
    """Of each test pair an item of its user's training, drawn by hash, and its own item, by dense id."""
    user = test.user.astype(np.int64)
    size = np.diff(pairs.indptr)[user]
    drawn = hashed_numbers(user * pairs.items + test.item, seed) >> np.uint64(11)
    place = pairs.indptr[user] + drawn.astype(np.int64) % np.maximum(size, 1)
    query, item = dense[pairs.item[np.minimum(place, len(pairs.item) - 1)]], dense[test.item]
    known = (size > 0) & (query >= 0) & (item >= 0) & (query != item)
    return query[known], item[known]


def matrix_of(
    data: SplitData, items: DataFrame, dense: Nodes, nodes: int, folder: Path
) -> npt.NDArray[np.float32]:
    """(nodes, d) vectors by dense id; zeros for those that are not in the catalogue."""
    place = str(folder / "item_vectors")
    known = items.join(data.items.select("item_id", "item_index"), "item_id")
    known.select("item_index", "vector").write.mode("overwrite").parquet(place)
    table = rows_of(data, place)
    values = table.column("vector").combine_chunks().flatten().to_numpy()
    rows = values.reshape(table.num_rows, -1)
    out = np.zeros((nodes, rows.shape[1]), np.float32)
    out[dense[table.column("item_index").to_numpy()]] = rows
    return out


def means(pairs: Pairs, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """(users, d) the mean of each user's items' vectors."""
    out = np.empty((pairs.users, vectors.shape[1]), np.float32)
    for user in range(pairs.users):
        out[user] = vectors[pairs.item[pairs.indptr[user] : pairs.indptr[user + 1]]].mean(axis=0)
    return out
