"""Study items without edges, with and without dropout.

    python jobs/studies/edgeless.py --seeds 3 --output edgeless.jsonl
    python jobs/studies/edgeless.py --kinds pinsage --dropouts 0,0.1 --seeds 1 --items 600
    python jobs/studies/edgeless.py --kinds graphsage --epochs 24 --decay 0.9

PinSage and GraphSAGE embed the items. The world is generated: items belong to 6 blocks, each with ten
groups. A user likes 10 items in one group, 3 in its block and 1 among all. Features are the centres of
block and group with noise. A sixth of the items has features and no likes: nodes without edges, like new
items. Two likes by each user are held out.

For each kind, dropout share (`neighbour_dropout`) and seed, a net is fitted and all items are embedded by
their edges. The study prints
    edgeless   of items without edges: share of their 10 nearest items (by cosine) in their own block; by
               chance it is a sixth
    with_edges the same for all other items
    raw        the same for items without edges by their features, without any net
    hit_rate   share of the held-out likes among the first 20 of all items
    gain       mean of 1 / log2(1 + rank) over the held-out likes
    in_first   share of the users' first 20 places taken by items without edges
PinSage: the 20 items walks visit most, importance pooling, a user is the mean of its items. GraphSAGE:
samples with 10 and 10 neighbours, mean pooling, a user is a node without features. Each seed has its own
world, walks and weights. Differences are to no dropout within a seed, with 95 % intervals by Student's t.
Each of `--processes` runs one seed at a time, without Spark.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from jobs.bench.harness import append_rows, format_markdown
from jobs.studies.item_graphs import build_bipartite, build_walk_graph
from recbench_spark import cli
from recbench_spark.analyses.comparisons.kernels.significance import student_half_width
from recbench_spark.errors import OK, ConfigError
from recbench_spark.graphs.kernels.csr import Csr
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.kernels.simd import PREFETCH_EDGES
from recbench_spark.models.networks import tasks
from recbench_spark.models.networks.factors import UserItemPairs, make_pairs
from recbench_spark.models.networks.fitting import fit
from recbench_spark.models.networks.layers import GraphNetwork
from recbench_spark.models.networks.settings import TrainingPlan
from recbench_spark.models.networks.subgraphs import Adjacency
from recbench_spark.runtime.journal import Journal

BLOCKS, GROUPS, DIMS, NOISE = 6, 10, 16, 3.3
EDGELESS = 1 / 6
LIKES = (10, 3, 1)
"""A user's likes: in one group, in its block, among all items."""

HELD_LIKES, NEAREST, FIRST, TOP, WIDTH = 2, 10, 20, 20, 32
KINDS = ("pinsage", "graphsage")
DIFFERENCE_COLUMNS = ("hit_rate", "gain")
REPORT_COLUMNS = ("edgeless", "with_edges", "raw", "hit_rate", "gain", "in_first")
Floats = npt.NDArray[np.floating[Any]]
Rows = npt.NDArray[np.int64]


class EdgelessWorld(NamedTuple):
    """A generated world with items, likes and features.

    Attributes:
        block: (items,) each item's block.
        features: (items, d).
        alone: (items,) items without likes.
        train: training likes.
        held: user and item of the held-out likes.
    """

    block: Rows
    features: npt.NDArray[np.float32]
    alone: npt.NDArray[np.bool_]
    train: UserItemPairs
    held: tuple[Rows, Rows]


class NetTask(NamedTuple):
    """A task to fit, and its embeddings' input.

    Items have dense ids from `first` on.
    """

    task: tasks.PairTask
    given: tasks.GraphInput
    first: int


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--kinds", default=",".join(KINDS), help="some of them, comma-separated")
    flags.add_argument("--dropouts", default="0,0.02,0.05,0.1", help="shares, comma-separated")
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--items", type=int, default=1200)
    flags.add_argument("--epochs", type=int, default=8)
    flags.add_argument("--decay", type=float, default=0.8, help="factor of the rate after each epoch")
    flags.add_argument("--rate", type=float, default=0.005)
    flags.add_argument("--processes", type=int, default=1, help="how many share the seeds")
    flags.add_argument("--output", type=Path, help="file to write, with one line per fit")
    return flags


def main(args: argparse.Namespace) -> int:
    """Fit each kind under each seed and dropout, and print.

    Printed are means and differences.
    """
    cli.parse_names(args.kinds, "--kinds", KINDS)
    parse_shares(args.dropouts)
    if args.items < 2 * BLOCKS * GROUPS:
        raise ConfigError(f"--items {args.items}: too few for {BLOCKS * GROUPS} groups", "hundreds")
    if min(args.seeds, args.processes) < 1:
        raise ConfigError(f"--seeds {args.seeds}, --processes {args.processes}: both are 1 or more")
    seeds = range(1, args.seeds + 1)
    if args.processes == 1:
        lines = [line for seed in seeds for line in fit_all(args, seed)]
    else:
        with ProcessPoolExecutor(args.processes, get_context("spawn")) as pool:
            lines = [line for seed_lines in pool.map(partial(fit_all, args), seeds) for line in seed_lines]
    print(format_summary(lines))
    return OK


def fit_all(args: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Fit each kind under each dropout in a seed's world.

    Each line is written at once.
    """
    journal, world, lines = Journal(), draw_world(args.items, seed), []
    for kind in cli.parse_names(args.kinds, "--kinds", KINDS):
        for share in parse_shares(args.dropouts):
            line = {"kind": kind, "dropout": share, "seed": seed}
            lines.append(line | measure_fit(world, kind, share, seed, args))
            journal.say(json.dumps(lines[-1]))
            append_rows(args.output, lines[-1:])
    return lines


def parse_shares(text: str) -> tuple[float, ...]:
    """Parse shares separated by commas.

    Raises:
        ConfigError: one is not from 0 to below 1.
    """
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--dropouts {text}: no numbers", "e.g. 0,0.1") from None
    if not all(0 <= share < 1 for share in shares):
        raise ConfigError(f"--dropouts {text}: shares are from 0 to below 1", "e.g. 0,0.1")
    return shares


def draw_world(items: int, seed: int) -> EdgelessWorld:
    """Draw a seed's world."""
    draw = np.random.default_rng(seed)
    group = np.arange(items) % (BLOCKS * GROUPS)
    block, alone = group % BLOCKS, draw.permutation(items) < items * EDGELESS
    centres = (draw.standard_normal((size, DIMS)) for size in (BLOCKS, BLOCKS * GROUPS))
    known = next(centres)[block] + next(centres)[group] + NOISE * draw.standard_normal((items, DIMS))
    users, likes, held = 2 * items, [], []
    for user in range(users):
        own = draw.integers(0, BLOCKS * GROUPS)
        among = (group == own, block == own % BLOCKS, np.ones(items, np.bool_))
        item = np.unique(
            [i for some, n in zip(among, LIKES, strict=True)
             for i in draw.permutation(np.flatnonzero(some & ~alone))[:n]]
        )  # fmt: skip
        item = draw.permutation(item)
        held += [(user, int(i)) for i in item[:HELD_LIKES]]
        likes += [(user, int(i)) for i in item[HELD_LIKES:]]
    u, i = np.array(likes).T
    return EdgelessWorld(block, known.astype(np.float32), alone, make_pairs(u, i, users, items),
                 (*np.array(held).T,))  # fmt: skip


def measure_fit(
    world: EdgelessWorld, kind: str, share: float, seed: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Fit once, and measure the vectors."""
    net = pinsage(world, share, seed) if kind == "pinsage" else graphsage(world, share, seed)
    plan = TrainingPlan(args.epochs, 512, args.rate, decay=args.decay, patience=0, seed=seed)
    fit(net.task, plan, None, lambda _: None)
    every = np.arange(net.first + len(world.block))
    vectors = tasks.embed_by_minibatch(net.task.module, net.given, every)
    items = vectors[net.first :]
    users: Floats = vectors[: net.first]
    if not net.first:  # a user is the mean of its items
        sums = np.zeros((world.train.users, items.shape[1]))
        np.add.at(sums, world.train.user, items[world.train.item])
        users = sums / np.maximum(np.diff(world.train.indptr), 1)[:, None]
    return {
        "edgeless": same_block_share(items, world.block, world.alone),
        "with_edges": same_block_share(items, world.block, ~world.alone),
        "raw": same_block_share(world.features, world.block, world.alone),
        **rank_likes(users, items, world),
    }


def pinsage(world: EdgelessWorld, share: float, seed: int) -> NetTask:
    """Return items over the items walks visit most.

    Pairs are items of one user.
    """
    net = make_net(LayerForm("convolve", "importance", WIDTH, WIDTH), seed)
    graph_input = tasks.GraphInput(
        build_walk_graph(world.train, TOP, seed), world.features, (), seed, share
    )
    _, query, item = tasks.pair_liked_items(world.train.indptr, world.train.item.astype(np.int64), 2, seed)
    how = tasks.PairObjective("max_margin", 0.1, 200, end=len(world.block))
    return NetTask(tasks.PairTask(net, graph_input, (query, item), how), graph_input, 0)


def graphsage(world: EdgelessWorld, share: float, seed: int) -> NetTask:
    """Return one graph of users and items; pairs are edges."""
    train, users, items = world.train, world.train.users, len(world.block)
    indptr, src = build_bipartite(train)
    csr = Csr(indptr, np.append(src, np.zeros(PREFETCH_EDGES, np.uint32)), None)
    graph = Adjacency(np.zeros(1, np.int64), (csr,), hash_numbers(np.arange(users + items), 0))
    features = np.vstack([np.zeros((users, DIMS), np.float32), world.features])
    graph_input = tasks.GraphInput(graph, features, (10, 10), seed, share, (users, users + items))
    pairs = train.user.astype(np.int64), train.item.astype(np.int64) + users
    how = tasks.PairObjective("co_occurrence", 1.0, 200, first=users, end=users + items)
    net = make_net(LayerForm("sage", "mean", WIDTH, WIDTH), seed)
    return NetTask(tasks.PairTask(net, graph_input, pairs, how), graph_input, users)


def make_net(form: LayerForm, seed: int) -> GraphNetwork:
    """Make two graph layers and a dense one, randomly weighted."""
    net = GraphNetwork((form, form), (WIDTH,), DIMS)
    net.initialise(seed)
    return net


def same_block_share(vectors: Floats, block: Rows, chosen: npt.NDArray[np.bool_]) -> float:
    """Return how many nearest items are in the same block.

    The number is a share, for some items.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths == 0, 1, lengths)
    scores = unit[chosen] @ unit.T
    scores[np.arange(len(scores)), np.flatnonzero(chosen)] = -np.inf
    near = np.argsort(-scores, axis=1, kind="stable")[:, :NEAREST]
    return float((block[near] == block[chosen][:, None]).mean())


def rank_likes(users: Floats, items: Floats, world: EdgelessWorld) -> dict[str, float]:
    """Return hit_rate, gain and in_first.

    Rankings hold all items outside training.
    """
    user, item = world.held
    scores = users @ items.T
    scores[world.train.user, world.train.item] = -np.inf
    own = scores[user, item]
    rank = 1 + (scores[user] > own[:, None]).sum(axis=1)
    first = np.argsort(-scores, axis=1, kind="stable")[:, :FIRST]
    return {
        "hit_rate": float((rank <= FIRST).mean()),
        "gain": float((1 / np.log2(1 + rank)).mean()),
        "in_first": float(world.alone[first].mean()),
    }


def format_summary(lines: list[dict[str, Any]]) -> str:
    """Tabulate means over seeds, and differences to no dropout.

    The table is Markdown; differences are within a seed.
    """
    head = ["kind", "dropout", *REPORT_COLUMNS, *(f"{name}, to no dropout" for name in DIFFERENCE_COLUMNS)]
    rows = []
    for kind, share in dict.fromkeys((line["kind"], line["dropout"]) for line in lines):
        own = [line for line in lines if (line["kind"], line["dropout"]) == (kind, share)]
        cells = [f"{np.mean([line[name] for line in own]):.3f}" for name in REPORT_COLUMNS]
        differences = (relative_difference(lines, own, name) for name in DIFFERENCE_COLUMNS)
        rows.append([kind, f"{share:g}", *cells, *differences])
    return format_markdown(head, rows)


def relative_difference(lines: list[dict[str, Any]], own: list[dict[str, Any]], name: str) -> str:
    """Return a number's relative differences to no dropout.

    The differences are within the same seed.
    """
    plain = {(line["kind"], line["seed"]): line[name] for line in lines if not line["dropout"]}
    differences = [
        line[name] / plain[line["kind"], line["seed"]] - 1
        for line in own
        if line["dropout"] and (line["kind"], line["seed"]) in plain
    ]
    return f"{np.mean(differences):+.2%} ± {student_half_width(differences):.2%}" if differences else ""


if __name__ == "__main__":
    cli.run(main, parser())
