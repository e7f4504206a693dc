"""Study GraphSAGE on unseen nodes, by micro-F1.

    python jobs/studies/inductive.py --output inductive.jsonl
    python jobs/studies/inductive.py --aggregators mean,gcn --seeds 1 --nodes 300
    python jobs/studies/inductive.py --data /path/to/ml-1m --seeds 5 --output genres.jsonl
    python jobs/studies/inductive.py --data /path/to/ml-1m --neighbours cosine

Nodes are in generated graphs, or are held-out movies with genres. Without `--data`, graphs are generated:
20 for training, 2 to choose the epoch, 2 for testing. Each graph has its own nodes and edges. A node has
one of five classes, most of its edges lead to its own class, and its features are its class's centre with
noise. All graphs have the same centres, so the net learns from features and neighbours, not from nodes.
For exclusive classes micro-F1 is the share of right nodes.

`--data`: nodes are the liked movies (rating 4 or more) in a MovieLens folder, classes their genres,
several a movie; features are title words hashed to 32 signed numbers and log degree, never genres. A
fifth of the movies, drawn by hash, is held out whole, and a tenth chooses epoch and threshold. Neighbours
are the 20 movies visited most by walks over liked pairs, or those with the largest cosine. The training
graph has only the pairs of training movies. For the choosing tenth and the test fifth, the graph is made
again with their pairs too, and nothing is fitted again. A genre is predicted if its score reaches a
threshold, the same for all genres: the best one for the tenth. Two rows are not trained: `frequencies`
scores a genre by its share of training movies, `neighbours_genres` by its weighed share of a movie's
neighbours in training. The latter uses neighbours' genres, unseen by the nets, and so shows whether the
graph is related to genres at all.

`features` is the same net with all edges removed. Each seed has its own graphs or held-out movies, walks
and weights. Results are lines of the output file. Means over seeds, and differences to `features` within
a seed, have 95 % intervals by Student's t. The study runs in one process, without Spark.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from jobs.bench.harness import append_rows
from jobs.studies.item_graphs import build_cosine_graph, build_walk_graph
from jobs.studies.liked_movies import Movies, log_degree, read_movies
from recbench_spark import cli
from recbench_spark.analyses.comparisons.kernels.significance import student_half_width
from recbench_spark.errors import OK, DataError
from recbench_spark.graphs.kernels.csr import Csr, build_csr, edge_keys
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.models.networks.factors import UserItemPairs, make_pairs
from recbench_spark.models.networks.fitting import FitResult, fit
from recbench_spark.models.networks.layers import GraphNetwork
from recbench_spark.models.networks.settings import TrainingPlan
from recbench_spark.models.networks.subgraphs import Adjacency
from recbench_spark.models.networks.tasks import GraphInput, LabelTask, embed_by_minibatch
from recbench_spark.runtime.journal import Journal

TRAIN_GRAPHS, CHOICE_GRAPHS, UNSEEN_GRAPHS = 20, 2, 2
CLASSES, DIMS, DEGREE, WITHIN, NOISE = 5, 16, 12, 0.6, 2.5
AGGREGATORS = ("mean", "max", "gcn", "lstm", "features")
Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]

HELD_OUT, CHOICE, TOP = 0.2, 0.1, 20
"""Shares of test and choosing movies; neighbours of a movie."""

NEIGHBOURS = ("visits", "cosine")

TRAIN, CHOOSE, JUDGE, UNLIKED = range(4)
"""Parts of the movies."""


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--data", type=Path, help="a MovieLens folder: ml-100k, ml-1m or ml-latest-small")
    flags.add_argument("--neighbours", choices=NEIGHBOURS, default="visits", help="with --data")
    flags.add_argument("--output", type=Path, help="file to write, with one line per fit")
    flags.add_argument("--aggregators", default=",".join(AGGREGATORS), help="some of them, comma-separated")
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--nodes", type=int, default=200, help="nodes of a generated graph")
    flags.add_argument("--epochs", type=int, help="default 10, with --data 40")
    return flags


def main(args: argparse.Namespace) -> int:
    """Fit each aggregator under each seed, and print.

    Printed are means and intervals.
    """
    names = cli.parse_names(args.aggregators, "--aggregators", AGGREGATORS)
    journal = Journal()
    movies = read_movies(args.data) if args.data else None
    args.epochs = args.epochs or (40 if movies else 10)
    scores: dict[str, list[float]] = {}
    for seed in range(1, args.seeds + 1):
        for line in run_movies(movies, names, seed, args) if movies else run_graphs(names, seed, args):
            scores.setdefault(line["aggregator"], []).append(line["micro_f1"])
            journal.say(json.dumps(line))
            append_rows(args.output, [line])
    print(summary(scores))
    return OK


def summary(scores: dict[str, list[float]]) -> str:
    """Describe each method's mean, and differences to `features`.

    Differences are within seeds.
    """
    alone, lines = scores.get("features"), []
    width = max(10, *map(len, scores))
    for name, values in scores.items():
        line = f"{name:{width}} {format_interval(values, '.3f')}"
        if alone and name != "features":
            apart = np.subtract(values, alone).tolist()
            line += f"   to features {format_interval(apart, '+.3f')}"
        lines.append(line)
    return "\n".join(lines)


def format_interval(values: Sequence[float], form: str) -> str:
    """Format a mean with half its 95 % interval.

    The interval is by Student's t.
    """
    return f"{np.mean(values):{form}} ± {student_half_width(values):.3f}"


# ------------------------------------------------------------------------------ generated graphs


def run_graphs(names: Sequence[str], seed: int, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a line for each aggregator."""
    for name in names:
        score = micro_f1(name, seed, args)
        yield {"aggregator": name, "seed": seed, "nodes": args.nodes, "micro_f1": score}


def micro_f1(name: str, seed: int, args: argparse.Namespace) -> float:
    """Measure micro-F1 on the unseen graphs.

    The epoch is the best one on the choosing graphs.
    """
    alone = name == "features"
    centre = np.random.default_rng(seed).standard_normal((CLASSES, DIMS))
    parts = [make_graphs(count, number, seed, args.nodes, centre, alone=alone)
             for number, count in enumerate((TRAIN_GRAPHS, CHOICE_GRAPHS, UNSEEN_GRAPHS))]  # fmt: skip
    form = LayerForm("sage", "mean" if alone else name, 32, 32, most=10)  # type: ignore[arg-type]
    net = GraphNetwork((form, form), (CLASSES,), DIMS)
    net.initialise(seed)
    (training, label), choosing, unseen = parts
    task = LabelTask(net, training, np.arange(len(label)), label, lambda n: correct_share(n, *choosing))
    fit(task, TrainingPlan(args.epochs, 128, 0.01, seed=seed), None, lambda _: None)
    return correct_share(net, *unseen)


def correct_share(net: GraphNetwork, graph_input: GraphInput, label: Labels) -> float:
    """Return the share of nodes with the right class."""
    scores = embed_by_minibatch(net, graph_input, np.arange(len(label)))
    return float((scores.argmax(axis=1) == label).mean())


def make_graphs(
    count: int, number: int, seed: int, nodes: int, centre: npt.NDArray[Any], *, alone: bool
) -> tuple[GraphInput, Labels]:
    """Make some graphs side by side, without edges between them."""
    draw = np.random.default_rng([seed, number])
    n = count * nodes
    label = draw.integers(0, CLASSES, n)
    x = centre[label] + NOISE * draw.standard_normal((n, DIMS))
    ends = [np.empty((0, 2), np.int64)]
    for graph in range(0 if alone else count):
        own = np.arange(graph * nodes, (graph + 1) * nodes)
        pairs = draw.choice(own, (nodes * DEGREE, 2))
        is_kept = (label[pairs[:, 0]] == label[pairs[:, 1]]) | (draw.random(len(pairs)) > WITHIN)
        ends.append(pairs[is_kept])
    both = np.concatenate(ends)
    both = np.concatenate([both, both[:, ::-1]])
    keys = edge_keys(both[:, 0].astype(np.uint32), both[:, 1].astype(np.uint32))
    csr: Csr = build_csr(n, keys, None)[0]
    adjacency = Adjacency(np.zeros(1, np.int64), (csr,), hash_numbers(np.arange(n), 0))
    return GraphInput(adjacency, x.astype(np.float32), (10, 5)), label


# --------------------------------------------------------------------- genres of held-out movies


class MovieDraw(NamedTuple):
    """One draw of held-out movies.

    Dense ids cover all movies in the folder.

    Attributes:
        part: (n,) TRAIN, CHOOSE, JUDGE, or UNLIKED, which is no node.
        graphs: by part, neighbours among the movies in this part and those before it.
        features: (n, d).
        label: (n, genres) 0 or 1.
    """

    part: npt.NDArray[np.int64]
    graphs: tuple[Adjacency, ...]
    features: npt.NDArray[np.float32]
    label: npt.NDArray[np.float32]

    def nodes(self, part: int) -> Labels:
        """Return a part's movies as dense ids."""
        return np.flatnonzero(self.part == part)


def run_movies(
    movies: Movies, names: Sequence[str], seed: int, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a line for each aggregator and each untrained rule.

    Raises:
        DataError: too few movies for three parts.
    """
    draw = draw_movies(movies, args.neighbours, seed)
    for name, rule in (("frequencies", frequencies), ("neighbours_genres", neighbours_genres)):
        yield judge_method(draw, name, seed, args, rule(draw, CHOOSE), unseen=rule(draw, JUDGE))
    nobody = select_pairs(movies.pairs, np.zeros(movies.pairs.items, np.bool_))
    bare = draw._replace(graphs=(make_neighbour_graph(nobody, args.neighbours, seed),) * 3)
    for name in names:
        own = bare if name == "features" else draw
        net, fitted = fit_genre_net(name, own, seed, args.epochs)
        chosen, unseen = (predict_genres(net, own, part) for part in (CHOOSE, JUDGE))
        line = judge_method(draw, name, seed, args, chosen, unseen=unseen)
        yield line | {"best_epoch": fitted.best}


def draw_movies(movies: Movies, neighbours: str, seed: int) -> MovieDraw:
    """Hold movies out by hash, and make the three graphs.

    Raises:
        DataError: too few movies for three parts.
    """
    pairs, part = movies.pairs, assign_parts(movies.pairs, seed)
    if len(np.unique(part[part < UNLIKED])) < UNLIKED:
        raise DataError("too few liked movies to hold some out", "tens of movies at least")
    graphs = tuple(
        make_neighbour_graph(select_pairs(pairs, part <= last), neighbours, seed) for last in range(UNLIKED)
    )
    return MovieDraw(part, graphs, np.hstack([movies.words, log_degree(pairs)]), movies.genres)


def make_neighbour_graph(pairs: UserItemPairs, neighbours: str, seed: int) -> Adjacency:
    """Find TOP neighbours for each movie with pairs."""
    return build_cosine_graph(pairs, TOP) if neighbours == "cosine" else build_walk_graph(pairs, TOP, seed)


def assign_parts(pairs: UserItemPairs, seed: int) -> Labels:
    """Assign each movie to a part, (movies,).

    The part is a hash of the movie alone, not of its users.
    """
    share = hash_numbers(np.arange(pairs.items), 1000 + seed) / 2.0**64
    part_of_movie = np.where(share < HELD_OUT, JUDGE, np.where(share < HELD_OUT + CHOICE, CHOOSE, TRAIN))
    part_of_movie[np.bincount(pairs.item, minlength=pairs.items) == 0] = UNLIKED
    return part_of_movie


def select_pairs(pairs: UserItemPairs, is_kept: npt.NDArray[np.bool_]) -> UserItemPairs:
    """Select some movies' pairs; dense ids do not change."""
    rows = is_kept[pairs.item]
    return make_pairs(pairs.user[rows], pairs.item[rows], pairs.users, pairs.items)


def fit_genre_net(name: str, draw: MovieDraw, seed: int, epochs: int) -> tuple[GraphNetwork, FitResult]:
    """Fit on training movies over their own graph.

    The choosing movies choose the epoch.
    """
    aggregator = "mean" if name == "features" else name
    form = LayerForm("sage", aggregator, 32, 32, most=TOP)  # type: ignore[arg-type]
    net = GraphNetwork((form, form), (draw.label.shape[1],), draw.features.shape[1])
    net.initialise(seed)
    own, choosing = draw.nodes(TRAIN), draw.label[draw.nodes(CHOOSE)]
    graph_input = GraphInput(draw.graphs[TRAIN], draw.features)

    def worth(fitted: GraphNetwork) -> float:
        return best_f1(predict_genres(fitted, draw, CHOOSE), choosing)[1]

    task = LabelTask(net, graph_input, own, draw.label[own], worth)
    return net, fit(task, TrainingPlan(epochs, 128, 0.01, seed=seed), None, lambda _: None)


def predict_genres(net: GraphNetwork, draw: MovieDraw, part: int) -> Floats:
    """Predict a part's genres, (r, genres).

    The genres are chances, over the graph the movies are attached to.
    """
    logits = embed_by_minibatch(net, GraphInput(draw.graphs[part], draw.features), draw.nodes(part))
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def frequencies(draw: MovieDraw, part: int) -> Floats:
    """Return genre shares of training movies, (r, genres).

    The shares are the same for all movies in a part.
    """
    share = draw.label[draw.nodes(TRAIN)].mean(axis=0, dtype=np.float64)
    return np.tile(share, (len(draw.nodes(part)), 1))


def neighbours_genres(draw: MovieDraw, part: int) -> Floats:
    """Return weighed genre shares of training neighbours, (r, genres).

    A movie without neighbours gets `frequencies`.
    """
    csr = draw.graphs[part].edges_into(draw.nodes(part))
    assert csr.weight is not None
    source = csr.src[: csr.edges].astype(np.int64)
    row = np.repeat(np.arange(len(csr.indptr) - 1), np.diff(csr.indptr))
    weight = np.where(draw.part[source] == TRAIN, csr.weight, 0).astype(np.float64)
    shares = frequencies(draw, part)
    total = np.bincount(row, weight, len(shares))[:, None]
    share = np.zeros_like(shares)
    np.add.at(share, row, weight[:, None] * draw.label[source])
    return np.where(total > 0, share / np.where(total > 0, total, 1), shares)


def judge_method(
    draw: MovieDraw, name: str, seed: int, args: argparse.Namespace, choosing: Floats, *, unseen: Floats
) -> dict[str, Any]:
    """Make a line with the held-out movies' micro-F1.

    The threshold is the choosing movies' best.
    """
    threshold, _ = best_f1(choosing, draw.label[draw.nodes(CHOOSE)])
    value = f1(unseen >= threshold, draw.label[draw.nodes(JUDGE)])
    line = {"data": args.data.resolve().name, "neighbours": args.neighbours, "aggregator": name}
    return line | {"seed": seed, "movies": len(unseen), "threshold": threshold, "micro_f1": value}


def best_f1(score: Floats, label: Floats) -> tuple[float, float]:
    """Return the threshold with the largest micro-F1, and this.

    Ties are predicted together.
    """
    order = np.argsort(-score, axis=None, kind="stable")
    sorted_score, right = score.ravel()[order], np.cumsum(label.ravel()[order], dtype=np.float64)
    value = 2 * right / (np.arange(1, len(right) + 1) + right[-1])
    value[:-1][sorted_score[:-1] == sorted_score[1:]] = -1
    best = int(value.argmax())
    return float(sorted_score[best]), float(value[best])


def f1(predicted: npt.NDArray[np.bool_], label: Floats) -> float:
    """Compute micro-F1 over all pairs (movie, genre)."""
    both = float(predicted.sum() + label.sum())
    return 2 * float(label[predicted].sum()) / both if both else 0.0


if __name__ == "__main__":
    cli.run(main, parser())
