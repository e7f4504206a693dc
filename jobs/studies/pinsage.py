"""Study PinSage's choices, one at a time.

    python jobs/studies/pinsage.py --data /path/to/ml-1m --folder study
    python jobs/studies/pinsage.py --data /path/to/ml-100k --folder study --table docs/pinsage_study.md
    python jobs/studies/pinsage.py --world 350000 --folder study --width 32 --epochs 5 --pairs 12800 \\
        --batch 256 --negatives 250 --judged 1000 --tested 10000 --variants base,mean,max --seeds 3
    python jobs/studies/pinsage.py --world 20000 --folder study --variants popularity,features,visits,groups

The choices are tested on item-to-item pairs. A fifth of each user's liked items (rating 4 or more) is
held out by hash. A test pair is a held-out item and one of the user's training items, drawn by hash: the
query. All items but the query are ranked by their vectors' dot product with it. `hit_rate` at K is the
share of pairs whose item is among the first K, `scaled_mrr` the mean of 1 / ceil(rank / 100) (Ying et al.
2018, section 4.1). MovieLens features: genres, title words hashed to 32 signed numbers, log degree in
training. `jobs/studies/planted_communities.py` describes the generated world's features. Every variant
differs from `base` in the choice it is named after. Each seed has its own walks, pairs, order and
weights, with the same split. Four references need no fit: `popularity`, `features` (dot product of raw
features), `visits` (by walks from the query) and `groups` (an oracle). Each fit has checkpoints, and each
result is a line in FOLDER/results.jsonl, never computed again. The study runs in one process, without
Spark.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.bench.harness import append_rows, format_markdown
from jobs.studies.item_graphs import build_bipartite, build_visit_graph, find_visited_items
from jobs.studies.layerwise import embed_by_layer
from jobs.studies.liked_movies import log_degree, read_movies
from jobs.studies.planted_communities import HELD_OUT, SPLIT_SEED, VERSION, PlantedWorld, generate_world
from recbench_spark import cli
from recbench_spark.analyses.comparisons.kernels.significance import student_half_width
from recbench_spark.errors import OK, ConfigError
from recbench_spark.graphs.kernels.forms import Aggregator, LayerForm
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.kernels.samples import Band, rank_bands
from recbench_spark.graphs.kernels.walks import MostVisited
from recbench_spark.models.networks import factors, tasks
from recbench_spark.models.networks.fitting import fit
from recbench_spark.models.networks.layers import GraphNetwork
from recbench_spark.models.networks.settings import TrainingPlan
from recbench_spark.models.networks.subgraphs import Adjacency
from recbench_spark.runtime.journal import Journal

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
CUT_OFFS = (10, 50, 500)


@dataclass(frozen=True)
class Setting:
    """The settings of all fits in a run.

    With variant and seed they are a result's key.

    Attributes:
        data: folder, or generated world with its version.
        epochs: epochs of a fit; the best one on the validation pairs counts.
        width: width of all vectors.
        layers: layers of the net.
        batch: pairs in a minibatch.
        negatives: shared negatives of a minibatch.
        pairs: approximate number of training pairs, from users drawn by hash; 0: from all users.
        judged: validation pairs to rank after each epoch, drawn by hash.
        tested: test pairs to rank, drawn by hash.
        rate: Adam's learning rate after the warm-up.
        warm_up: steps of the warm-up.
        walks: walks from each item.
        top: items in a neighbourhood, those visited most, unless the variant has its own.
        least: largest residual of personalised PageRank per unit of degree.
    """

    data: str
    epochs: int = 8
    width: int = 64
    layers: int = 2
    batch: int = 512
    negatives: int = 500
    pairs: int = 0
    judged: int = 20_000
    tested: int = 20_000
    rate: float = 3e-3
    warm_up: int = 100
    walks: int = 200
    top: int = 50
    least: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse empty neighbourhoods, which could be fitted all the same."""
        if self.top < 1:
            raise ConfigError(f"top: {self.top} is less than 1", "items of a neighbourhood, e.g. 50")


FLAGS = {field.name: field for field in fields(Setting) if field.name != "data"}


@dataclass(frozen=True)
class Variant:
    """The choices of a fit; see `PairObjective` and `LayerForm`.

    Attributes:
        top: items in a neighbourhood; 0: as in the settings.
        each: each pair has its own `negatives`; else a minibatch shares them.
    """

    form: str = "convolve"
    aggregator: Aggregator = "importance"
    top: int = 0
    join: str = "concat"
    curriculum: bool = False
    per_pair: bool = False
    each: bool = False


BASE = Variant()
VARIANTS = {
    "base": BASE,
    "mean": replace(BASE, aggregator="mean"),
    "max": replace(BASE, aggregator="max"),
    "curriculum": replace(BASE, curriculum=True),
    "add": replace(BASE, join="add"),
    "top_10": replace(BASE, top=10),
    "top_20": replace(BASE, top=20),
    "sage_mean": replace(BASE, form="sage", aggregator="mean"),
    "sage_max": replace(BASE, form="sage", aggregator="max"),
    "per_pair": replace(BASE, per_pair=True),
    "per_pair_each": replace(BASE, per_pair=True, each=True),
}
REFERENCES = ("popularity", "features", "visits", "groups")


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    of = flags.add_mutually_exclusive_group(required=True)
    of.add_argument("--data", type=Path, help="a MovieLens folder: ml-100k, ml-1m or ml-latest-small")
    of.add_argument("--world", type=int, metavar="ITEMS", help="a generated world of so many items")
    flags.add_argument("--folder", type=Path, required=True, help="folder of checkpoints and results")
    known = ", ".join([*VARIANTS, *REFERENCES])
    flags.add_argument(
        "--variants", default=",".join(VARIANTS), help=f"some of them, comma-separated: {known}"
    )
    flags.add_argument("--seeds", type=int, default=3)
    for name, field in FLAGS.items():
        flag = f"--{name.replace('_', '-')}"
        flags.add_argument(flag, type=type(field.default), default=field.default, help="see Setting")
    flags.add_argument("--table", type=Path, help="write means, intervals and differences to base there")
    return flags


def main(args: argparse.Namespace) -> int:
    """Fit missing variants; print means, differences and intervals."""
    names = cli.parse_names(args.variants, "--variants", [*VARIANTS, *REFERENCES])
    args.folder.mkdir(parents=True, exist_ok=True)
    data = f"generated {VERSION}, {args.world} items" if args.world else str(args.data)
    how = Setting(data, **{name: getattr(args, name) for name in FLAGS})
    world = generate_world(args.world) if args.world else read_world(args.data)
    if "groups" in names and world.group is None:
        raise ConfigError("--variants groups: only a generated world has them", "leave it out")
    for seed in range(1, args.seeds + 1):
        run_seed(SeedDraws(world, how, seed, Journal()), names, args.folder)
    rows = [
        row for row in read_results(args.folder / "results.jsonl") if asdict(how).items() <= row.items()
    ]
    table = f"{format_summary(rows)}\n\n{format_differences(rows)}"
    print(table)
    if args.table:
        args.table.write_text(table + "\n", encoding="utf-8")
    return OK


def run_seed(drawn: SeedDraws, names: tuple[str, ...], folder: Path) -> None:
    """Run a seed's missing fits, a result line for each."""
    results = folder / "results.jsonl"
    for name in names:
        key = {"variant": name, "seed": drawn.seed, **asdict(drawn.how)}
        if any(key.items() <= row.items() for row in read_results(results)):
            continue
        result = measure_reference(drawn, name) if name in REFERENCES else run_fit(drawn, name, folder)
        append_rows(results, [{**key, **result}])


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read earlier runs' results."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ------------------------------------------------------------------------------------------ data


def read_world(folder: Path) -> PlantedWorld:
    """Read a MovieLens folder's genres, titles and pairs, split."""
    movies = read_movies(folder)
    train, held = factors.split_pairs(movies.pairs, HELD_OUT, SPLIT_SEED)
    return PlantedWorld(train, held, np.hstack([movies.genres, movies.words, log_degree(train)]))


# ------------------------------------------------------------------------------------------ fits


class SeedDraws:
    """A seed's draws, made when first used, shared by variants."""

    def __init__(self, world: PlantedWorld, how: Setting, seed: int, journal: Journal) -> None:
        self.world, self.how, self.seed, self.say = world, how, seed, journal.say
        self.train, self.inner = factors.split_pairs(world.train, 0.05, 100 + seed)
        self.graphs: dict[int, Adjacency] = {}

    @cached_property
    def most(self) -> MostVisited:
        """Items visited most from each item, numbered after the users."""
        top = max(self.how.top, *(v.top for v in VARIANTS.values()))
        return find_visited_items(self.train, top, self.seed, self.how.walks)

    @cached_property
    def pairs(self) -> tuple[Rows, Rows]:
        """Query and item of the training pairs."""
        train = draw_users(self.train, self.how.pairs, self.seed) if self.how.pairs else self.train
        _, query, item = tasks.pair_liked_items(train.indptr, train.item.astype(np.int64), 2, self.seed)
        return query, item

    @cached_property
    def band(self) -> Band:
        """Hard negatives for the training queries."""
        queries = np.unique(self.pairs[0])
        band = find_hard_negatives(self.train, queries, self.how.least)
        short = int(band.fallback.sum())
        self.say(
            f"seed {self.seed}: bands of {len(queries):,} queries, {short:,} of them reach fewer than 5,000"
        )
        return band

    def graph(self, top: int) -> Adjacency:
        """Return each item's most visited items, weighed by visits."""
        if top not in self.graphs:  # one is held
            self.graphs = {top: build_visit_graph(keep_most_visited(self.most, top), self.train)}
        return self.graphs[top]


def draw_users(train: factors.UserItemPairs, pairs: int, seed: int) -> factors.UserItemPairs:
    """Draw users by hash, and return their training pairs.

    The users suffice for about this number of item pairs.
    """
    order = factors.order_users_by_hash(train.users, seed)
    enough = np.searchsorted(np.cumsum(2 * np.diff(train.indptr)[order]), pairs) + 1
    is_kept = np.zeros(train.users, np.bool_)
    is_kept[order[:enough]] = True
    return factors.select_users(train, is_kept)


def keep_most_visited(most: MostVisited, top: int) -> MostVisited:
    """Keep the `top` most visited items."""
    sizes = np.diff(most.indptr)
    is_kept = np.arange(len(most.node)) - np.repeat(most.indptr[:-1], sizes) < top
    indptr = np.concatenate([[0], np.cumsum(np.minimum(sizes, top))])
    return most._replace(indptr=indptr, node=most.node[is_kept], visits=most.visits[is_kept])


def find_hard_negatives(train: factors.UserItemPairs, queries: Rows, least: float) -> Band:
    """Return each query's hard negatives by personalised PageRank.

    Such items are ranked 2,000 to 5,000, or the same share of the reached items. There is a row for each
    item, empty unless it is a query.
    """
    first, counts = train.users, np.zeros(train.items, np.int64)
    side = (first, first + train.items)
    reached = rank_bands(build_bipartite(train), first + queries, side, (2000, 5000), least=least)
    counts[queries] = np.diff(reached.indptr)
    fallback = np.zeros(train.items, np.bool_)
    fallback[queries] = reached.fallback
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return Band(indptr, reached.node - np.uint32(first), fallback)


def make_net(variant: Variant, dims: int, how: Setting, seed: int) -> GraphNetwork:
    """Make a random net; added vectors have the features' width."""
    width = dims if variant.join == "add" else how.width
    form = LayerForm(variant.form, variant.aggregator, width, width, variant.join)  # type: ignore[arg-type]
    net = GraphNetwork((form,) * how.layers, (how.width,), dims)
    net.initialise(seed)
    return net


def run_fit(drawn: SeedDraws, name: str, folder: Path) -> dict[str, Any]:
    """Fit once, and measure the test pairs.

    The epoch is the best one on validation pairs.
    """
    how, seed, train, variant = drawn.how, drawn.seed, drawn.train, VARIANTS[name]
    graph_input = tasks.GraphInput(drawn.graph(variant.top or how.top), drawn.world.features)
    net = make_net(variant, graph_input.features.shape[1], how, seed)
    negatives = how.negatives * (how.batch if variant.each else 1)
    margin = tasks.PairObjective(
        "max_margin", 0.1, negatives, variant.per_pair, variant.curriculum, end=train.items
    )
    band = drawn.band if variant.curriculum else None
    judged = test_pairs(train, drawn.inner, seed, how.judged)

    def worth(fitted: GraphNetwork) -> float:
        return tasks.mean_scaled_rank(rank_pairs(fitted, graph_input, judged), 10)

    task = tasks.PairTask(net, graph_input, drawn.pairs, margin, band, score=worth)
    drawn.say(f"{name}, seed {seed}: {task.examples:,} pairs")
    plan = TrainingPlan(how.epochs, how.batch, how.rate, how.warm_up, decay=0.8, seed=seed)
    # Its folder is named by all settings, so no other fit resumes it.
    whole = hashlib.sha256(json.dumps(asdict(how), sort_keys=True).encode()).hexdigest()
    result = fit(task, plan, folder / f"{name}-{seed}-{whole[:12]}", drawn.say)
    measures: dict[str, Any] = rank_metrics(
        rank_pairs(net, graph_input, test_pairs(train, drawn.world.held, seed, how.tested))
    )
    measures |= {"best_epoch": result.best, "worths": [e.worth for e in result.epochs]}
    measures["pairs_a_second"] = float(np.mean([e.examples_a_second for e in result.epochs]))
    drawn.say(f"{name}, seed {seed}: {measures}")
    return measures


def rank_metrics(ranks: Rows) -> dict[str, float]:
    """Return hit rates and scaled MRR."""
    return {f"hit_rate@{k}": float((ranks <= k).mean()) for k in CUT_OFFS} | {
        "scaled_mrr": tasks.mean_scaled_rank(ranks)
    }


def test_pairs(
    train: factors.UserItemPairs, held: factors.UserItemPairs, seed: int, most: int
) -> tuple[Rows, Rows]:
    """Return held-out items with queries, at most `most`.

    A query is one of the user's training items, drawn by hash.
    """
    user, item = held.user.astype(np.int64), held.item.astype(np.int64)
    keys = hash_numbers(user * train.items + item, seed)
    sizes = np.diff(train.indptr)[user]
    rows = np.flatnonzero(sizes > 0)
    rows = rows[np.argsort(keys[rows], kind="stable")][:most]
    place = (hash_numbers(keys[rows].view(np.int64), seed) >> np.uint64(11)).astype(np.int64) % sizes[rows]
    return train.item[train.indptr[user[rows]] + place].astype(np.int64), item[rows]


def rank_pairs(net: GraphNetwork, graph_input: tasks.GraphInput, pairs: tuple[Rows, Rows]) -> Rows:
    """Rank test pairs among all items but the query."""
    z = embed_by_layer(net, graph_input, np.arange(len(graph_input.features)))
    return tasks.rank_items(z, *pairs)


# ------------------------------------------------------------------------------------- references


def measure_reference(drawn: SeedDraws, name: str) -> dict[str, Any]:
    """Measure an unfitted reference on the test pairs."""
    world, train = drawn.world, drawn.train
    pairs = test_pairs(train, world.held, drawn.seed, drawn.how.tested)
    if name == "features":
        ranks = tasks.rank_items(world.features, *pairs)
    else:
        ranks = rank_by_visits(make_scorer(drawn, name), popularity(train), pairs)
    measures = rank_metrics(ranks)
    drawn.say(f"{name}, seed {drawn.seed}: {measures}")
    return measures


def popularity(train: factors.UserItemPairs) -> npt.NDArray[np.float64]:
    """Return popularity in training from 0 to 1, (items,).

    Ties are broken by hash.
    """
    counts = np.bincount(train.item, minlength=train.items)
    order = np.lexsort((hash_numbers(np.arange(train.items), 5), counts))
    popularity_i = np.empty(train.items)
    popularity_i[order] = np.arange(train.items) / train.items
    return popularity_i


def make_scorer(drawn: SeedDraws, name: str) -> Callable[[int], tuple[Rows, Any]]:
    """Map a query to leading items and scores; others follow."""
    world, most = drawn.world, drawn.most if name == "visits" else None
    if most is not None:
        nodes = most.node.astype(np.int64) - drawn.train.users
        rows = [slice(a, b) for a, b in zip(most.indptr[:-1], most.indptr[1:], strict=True)]
        return lambda q: (nodes[rows[q]], most.visits[rows[q]])
    if name == "popularity" or world.group is None or world.taste is None:
        return lambda _: (np.empty(0, np.int64), 0)
    group, taste = world.group, world.taste

    def score_groups(q: int) -> tuple[Rows, Any]:
        near = np.flatnonzero(taste == taste[q])
        return near, 1 + (group[near] == group[q])

    return score_groups


def rank_by_visits(
    near: Callable[[int], tuple[Rows, Any]], popular: npt.NDArray[np.float64], pairs: tuple[Rows, Rows]
) -> Rows:
    """Rank by whole numbers from the query, then by popularity."""
    ranks = np.empty(len(pairs[0]), np.int64)
    for row, (q, i) in enumerate(zip(*(column.tolist() for column in pairs), strict=True)):
        scores = popular.copy()
        nodes, more = near(q)
        scores[nodes] += more
        scores[q] = -1.0
        ranks[row] = 1 + np.count_nonzero(scores > scores[i])
    return ranks


# ----------------------------------------------------------------------------------------- tables


def format_interval(values: list[float], form: str = ".4g") -> str:
    """Format seeds' mean and 95 % interval by Student's t."""
    if len(values) < 2:
        return "".join(f"{v:{form}}" for v in values)
    return f"{np.mean(values):{form}} ± {student_half_width(values):.2g}"


def group_by_variant(rows: list[dict[str, Any]]) -> dict[str, dict[int, dict[str, Any]]]:
    """Group results by variant and seed."""
    results: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        results.setdefault(row["variant"], {})[row["seed"]] = row
    return results


def format_summary(rows: list[dict[str, Any]]) -> str:
    """Tabulate means over seeds with their intervals."""
    names = [*(f"hit_rate@{k}" for k in CUT_OFFS), "scaled_mrr", "best_epoch", "pairs_a_second"]
    lines = []
    for variant, seeds in group_by_variant(rows).items():
        own = list(seeds.values())
        cells = [format_interval([row[column] for row in own if column in row]) for column in names]
        lines.append([variant, str(len(own)), *cells])
    return format_markdown(["variant", "seeds", *names], lines)


def format_differences(rows: list[dict[str, Any]]) -> str:
    """Tabulate differences to base within each seed.

    The differences have intervals; walks, pairs and split are the same.
    """
    names = [*(f"hit_rate@{k}" for k in CUT_OFFS), "scaled_mrr", "best_epoch"]
    results = group_by_variant(rows)
    base = results.get("base", {})
    lines = []
    for variant, seeds in results.items():
        both = sorted(base.keys() & seeds.keys())
        if variant == "base" or not both:
            continue
        cells = [
            format_interval([seeds[s][c] - base[s][c] for s in both if c in seeds[s]], "+.4f")
            for c in names
        ]
        lines.append([variant, str(len(both)), *cells])
    return format_markdown(["to base", "seeds", *names], lines)


if __name__ == "__main__":
    cli.run(main, parser())
