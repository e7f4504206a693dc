"""PinSage's choices, one at a time, on item-to-item pairs: pooling, T, curriculum, negatives, joining.

    python jobs/studies/pinsage.py --data /path/to/ml-1m --folder study
    python jobs/studies/pinsage.py --data /path/to/ml-100k --folder study --table docs/pinsage_study.md
    python jobs/studies/pinsage.py --world 350000 --folder study --width 32 --epochs 5 --pairs 12800 \\
        --batch 256 --negatives 250 --judged 1000 --tested 10000 --variants base,mean,max --seeds 3
    python jobs/studies/pinsage.py --world 20000 --folder study --variants popularity,features,visits,groups

A fifth of each user's liked items (rating 4 or more) is held out by hash. A test pair is a held-out item
and one of the user's training items, drawn by hash: the query. All items but the query are ranked by the
dot product of vectors. `hit_rate` at K is the share of pairs whose item is among the first K,
`scaled_mrr` the mean of 1 / ceil(rank / 100) (Ying et al. 2018, section 4.1). Features of MovieLens:
genres, title words hashed to 32 signed numbers, log degree in training; of the generated world: see
`data/planted_communities.py`. Every variant differs from `base` in what its name says. Each seed draws
walks, pairs, order and weights anew; the split stays. Scores without a fit show what there is to gain:
`popularity`, `features` (dot product of raw ones), `visits` (of walks from the query) and `groups` (of an
oracle). Each fit is checkpointed, each result a line of FOLDER/results.jsonl: what is there is not done
again. One process, no Spark.
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

from recbench_spark import cli
from recbench_spark.data.liked_movies import log_degree, read_movies
from recbench_spark.data.planted_communities import (
    HELD_OUT,
    SPLIT_SEED,
    VERSION,
    PlantedWorld,
    generate_world,
)
from recbench_spark.errors import OK, ConfigError
from recbench_spark.kernels.comparison.significance import student_half_width
from recbench_spark.kernels.graph.forms import Aggregator, LayerForm
from recbench_spark.kernels.graph.ids import hash_numbers
from recbench_spark.kernels.graph.samples import Band, rank_bands
from recbench_spark.kernels.graph.walks import MostVisited
from recbench_spark.models.networks.factors import (
    UserItemPairs,
    order_users_by_hash,
    select_users,
    split_pairs,
)
from recbench_spark.models.networks.fitting import fit
from recbench_spark.models.networks.item_graphs import (
    build_bipartite,
    build_visit_graph,
    find_visited_items,
)
from recbench_spark.models.networks.layers import GraphNetwork
from recbench_spark.models.networks.layerwise import embed_by_layer
from recbench_spark.models.networks.plans import TrainingPlan
from recbench_spark.models.networks.subgraphs import Adjacency
from recbench_spark.models.networks.tasks import (
    GraphInput,
    PairObjective,
    PairTask,
    mean_scaled_rank,
    pair_liked_items,
    rank_items,
)
from recbench_spark.runtime.journal import Journal

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
CUT_OFFS = (10, 50, 500)


@dataclass(frozen=True)
class Setting:
    """What all fits of a run share; it is the key of each result, beside variant and seed.

    Attributes:
        data: the folder, or the world with its version.
        epochs: of each fit; the best one on the validation pairs is taken.
        width: of all vectors.
        layers: their number.
        batch: pairs of a minibatch.
        negatives: shared by it.
        pairs: that are fitted, about: those of users drawn by hash; 0: of all users.
        judged: validation pairs that are ranked after each epoch, drawn by hash.
        tested: test pairs that are ranked, drawn by hash.
        rate: of Adam, after the warm-up.
        warm_up: steps in which the rate grows to it.
        walks: from each item.
        top: items of each neighbourhood, those visited most, where a variant says nothing else.
        least: what pushes of personalised PageRank leave unspread a unit of degree.
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
        """ConfigError for neighbourhoods of nobody, which would be fitted all the same."""
        if self.top < 1:
            raise ConfigError(f"top: {self.top} is less than 1", "items of a neighbourhood, e.g. 50")


FLAGS = {field.name: field for field in fields(Setting) if field.name != "data"}


@dataclass(frozen=True)
class Variant:
    """What is fitted; see `Margin` and `LayerForm`.

    Attributes:
        top: 0 is what all fits share.
        each: whether each pair has `negatives` of its own; else a minibatch has as many.
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
    """The flags of this study."""
    found = cli.Parser(__doc__ or "")
    of = found.add_mutually_exclusive_group(required=True)
    of.add_argument("--data", type=Path, help="a MovieLens folder: ml-100k, ml-1m or ml-latest-small")
    of.add_argument("--world", type=int, metavar="ITEMS", help="a generated world of so many items")
    found.add_argument("--folder", type=Path, required=True, help="of checkpoints and results")
    known = ", ".join([*VARIANTS, *REFERENCES])
    found.add_argument("--variants", default=",".join(VARIANTS), help=f"some, by comma: {known}")
    found.add_argument("--seeds", type=int, default=3)
    for name, field in FLAGS.items():
        flag = f"--{name.replace('_', '-')}"
        found.add_argument(flag, type=type(field.default), default=field.default, help="see Setting")
    found.add_argument("--table", type=Path, help="write means, intervals and differences to base there")
    return found


def main(args: argparse.Namespace) -> int:
    """Fit what is not there yet, tell means, differences and intervals."""
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
    """What is not there yet of a seed, a line of results each."""
    results = folder / "results.jsonl"
    for name in names:
        key = {"variant": name, "seed": drawn.seed, **asdict(drawn.how)}
        if any(key.items() <= row.items() for row in read_results(results)):
            continue
        found = measure_reference(drawn, name) if name in REFERENCES else run_fit(drawn, name, folder)
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**key, **found}) + "\n")


def read_results(path: Path) -> list[dict[str, Any]]:
    """Results that are there."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ------------------------------------------------------------------------------------------ data


def read_world(folder: Path) -> PlantedWorld:
    """Genres, titles and pairs of a MovieLens folder, cut."""
    found = read_movies(folder)
    train, held = split_pairs(found.pairs, HELD_OUT, SPLIT_SEED)
    return PlantedWorld(train, held, np.hstack([found.genres, found.words, log_degree(train)]))


# ------------------------------------------------------------------------------------------ fits


class SeedDraws:
    """What a seed draws, made when it is first asked for and shared by all variants."""

    def __init__(self, world: PlantedWorld, how: Setting, seed: int, journal: Journal) -> None:
        self.world, self.how, self.seed, self.say = world, how, seed, journal.say
        self.train, self.inner = split_pairs(world.train, 0.05, 100 + seed)
        self.graphs: dict[int, Adjacency] = {}

    @cached_property
    def most(self) -> MostVisited:
        """The items that walks from each item visit most, dense ids after those of users."""
        top = max(self.how.top, *(v.top for v in VARIANTS.values()))
        return find_visited_items(self.train, top, self.seed, self.how.walks)

    @cached_property
    def pairs(self) -> tuple[Rows, Rows]:
        """Query and item of the pairs that are fitted."""
        train = draw_users(self.train, self.how.pairs, self.seed) if self.how.pairs else self.train
        _, query, item = pair_liked_items(train.indptr, train.item.astype(np.int64), 2, self.seed)
        return query, item

    @cached_property
    def band(self) -> Band:
        """Hard negatives of the queries that are fitted."""
        queries = np.unique(self.pairs[0])
        found = find_hard_negatives(self.train, queries, self.how.least)
        short = int(found.fallback.sum())
        self.say(
            f"seed {self.seed}: bands of {len(queries):,} queries, {short:,} of them reach fewer than 5,000"
        )
        return found

    def graph(self, top: int) -> Adjacency:
        """The items that walks from each item visit most, weighed by visits."""
        if top not in self.graphs:
            self.graphs = {
                top: build_visit_graph(keep_most_visited(self.most, top), self.train)
            }  # one is held
        return self.graphs[top]


def draw_users(train: UserItemPairs, pairs: int, seed: int) -> UserItemPairs:
    """Training pairs of users drawn by hash, enough of them for about so many pairs of items."""
    order = order_users_by_hash(train.users, seed)
    enough = np.searchsorted(np.cumsum(2 * np.diff(train.indptr)[order]), pairs) + 1
    kept = np.zeros(train.users, np.bool_)
    kept[order[:enough]] = True
    return select_users(train, kept)


def keep_most_visited(most: MostVisited, top: int) -> MostVisited:
    """The `top` most visited of those that are known."""
    sizes = np.diff(most.indptr)
    kept = np.arange(len(most.node)) - np.repeat(most.indptr[:-1], sizes) < top
    indptr = np.concatenate([[0], np.cumsum(np.minimum(sizes, top))])
    return most._replace(indptr=indptr, node=most.node[kept], visits=most.visits[kept])


def find_hard_negatives(train: UserItemPairs, queries: Rows, least: float) -> Band:
    """Of some queries (ascending): items ranked 2,000 to 5,000 by personalised PageRank, or the same share
    of what is reached; a row an item, empty for those that are no query."""
    first, counts = train.users, np.zeros(train.items, np.int64)
    side = (first, first + train.items)
    found = rank_bands(build_bipartite(train), first + queries, side, (2000, 5000), least=least)
    counts[queries] = np.diff(found.indptr)
    fallback = np.zeros(train.items, np.bool_)
    fallback[queries] = found.fallback
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return Band(indptr, found.node - np.uint32(first), fallback)


def make_net(variant: Variant, dims: int, how: Setting, seed: int) -> GraphNetwork:
    """A net with random weights; vectors that are added are as long as the features."""
    width = dims if variant.join == "add" else how.width
    form = LayerForm(variant.form, variant.aggregator, width, width, variant.join)  # type: ignore[arg-type]
    net = GraphNetwork((form,) * how.layers, (how.width,), dims)
    net.initialise(seed)
    return net


def run_fit(drawn: SeedDraws, name: str, folder: Path) -> dict[str, Any]:
    """One fit and what it is worth on the test pairs; the best-on-validation epoch is taken."""
    how, seed, train, variant = drawn.how, drawn.seed, drawn.train, VARIANTS[name]
    given = GraphInput(drawn.graph(variant.top or how.top), drawn.world.features)
    net = make_net(variant, given.features.shape[1], how, seed)
    negatives = how.negatives * (how.batch if variant.each else 1)
    margin = PairObjective(
        "max_margin", 0.1, negatives, variant.per_pair, variant.curriculum, end=train.items
    )
    band = drawn.band if variant.curriculum else None
    judged = test_pairs(train, drawn.inner, seed, how.judged)

    def worth(fitted: GraphNetwork) -> float:
        return mean_scaled_rank(rank_pairs(fitted, given, judged), 10)

    task = PairTask(net, given, drawn.pairs, margin, band, worth)
    drawn.say(f"{name}, seed {seed}: {task.examples:,} pairs")
    plan = TrainingPlan(how.epochs, how.batch, how.rate, how.warm_up, decay=0.8, seed=seed)
    found = fit(task, plan, folder / checkpoint_name(name, seed, how), drawn.say)
    told: dict[str, Any] = rank_metrics(
        rank_pairs(net, given, test_pairs(train, drawn.world.held, seed, how.tested))
    )
    told |= {"best_epoch": found.best, "worths": [e.worth for e in found.epochs]}
    told["pairs_a_second"] = float(np.mean([e.examples_a_second for e in found.epochs]))
    drawn.say(f"{name}, seed {seed}: {told}")
    return told


def checkpoint_name(name: str, seed: int, how: Setting) -> str:
    """A folder's name that says what a fit is of: no other fit goes on from it."""
    whole = hashlib.sha256(json.dumps(asdict(how), sort_keys=True).encode()).hexdigest()
    return f"{name}-{seed}-{whole[:12]}"


def rank_metrics(ranks: Rows) -> dict[str, float]:
    """Hit rates and scaled MRR."""
    return {f"hit_rate@{k}": float((ranks <= k).mean()) for k in CUT_OFFS} | {
        "scaled_mrr": mean_scaled_rank(ranks)
    }


def test_pairs(train: UserItemPairs, held: UserItemPairs, seed: int, most: int) -> tuple[Rows, Rows]:
    """A held-out item and one of its user's training items, drawn by hash; at most so many, by hash."""
    user, item = held.user.astype(np.int64), held.item.astype(np.int64)
    keys = hash_numbers(user * train.items + item, seed)
    sizes = np.diff(train.indptr)[user]
    rows = np.flatnonzero(sizes > 0)
    rows = rows[np.argsort(keys[rows], kind="stable")][:most]
    place = (hash_numbers(keys[rows].view(np.int64), seed) >> np.uint64(11)).astype(np.int64) % sizes[rows]
    return train.item[train.indptr[user[rows]] + place].astype(np.int64), item[rows]


def rank_pairs(net: GraphNetwork, given: GraphInput, pairs: tuple[Rows, Rows]) -> Rows:
    """Ranks of test pairs among all items but the query."""
    z = embed_by_layer(net, given, np.arange(len(given.features)))
    return rank_items(z, *pairs)


# ------------------------------------------------------------------------------------- references


def measure_reference(drawn: SeedDraws, name: str) -> dict[str, Any]:
    """What the test pairs are worth by something that is not fitted."""
    world, train = drawn.world, drawn.train
    pairs = test_pairs(train, world.held, drawn.seed, drawn.how.tested)
    if name == "features":
        ranks = rank_items(world.features, *pairs)
    else:
        ranks = rank_by_visits(make_scorer(drawn, name), popularity(train), pairs)
    told = rank_metrics(ranks)
    drawn.say(f"{name}, seed {drawn.seed}: {told}")
    return told


def popularity(train: UserItemPairs) -> npt.NDArray[np.float64]:
    """(items,) from 0 to 1 by training pairs of each; among as many by hash, so that none are tied."""
    counts = np.bincount(train.item, minlength=train.items)
    order = np.lexsort((hash_numbers(np.arange(train.items), 5), counts))
    found = np.empty(train.items)
    found[order] = np.arange(train.items) / train.items
    return found


def make_scorer(drawn: SeedDraws, name: str) -> Callable[[int], tuple[Rows, Any]]:
    """Of a query: the items that stand before the others, and by how much; the rest is popularity."""
    world, most = drawn.world, drawn.most if name == "visits" else None
    if most is not None:
        nodes = most.node.astype(np.int64) - drawn.train.users
        rows = [slice(a, b) for a, b in zip(most.indptr[:-1], most.indptr[1:], strict=True)]
        return lambda q: (nodes[rows[q]], most.visits[rows[q]])
    if name == "popularity" or world.group is None or world.taste is None:
        return lambda _: (np.empty(0, np.int64), 0)
    group, taste = world.group, world.taste

    def of_groups(q: int) -> tuple[Rows, Any]:
        near = np.flatnonzero(taste == taste[q])
        return near, 1 + (group[near] == group[q])

    return of_groups


def rank_by_visits(
    near: Callable[[int], tuple[Rows, Any]], popular: npt.NDArray[np.float64], pairs: tuple[Rows, Rows]
) -> Rows:
    """Ranks of pairs' items by whole numbers of their query, then by popularity."""
    found = np.empty(len(pairs[0]), np.int64)
    for row, (q, i) in enumerate(zip(*(column.tolist() for column in pairs), strict=True)):
        scores = popular.copy()
        nodes, more = near(q)
        scores[nodes] += more
        scores[q] = -1.0
        found[row] = 1 + np.count_nonzero(scores > scores[i])
    return found


# ----------------------------------------------------------------------------------------- tables


def format_interval(values: list[float], form: str = ".4g") -> str:
    """Mean and 95 % interval of Student's t of what seeds gave."""
    if len(values) < 2:
        return "".join(f"{v:{form}}" for v in values)
    return f"{np.mean(values):{form}} ± {student_half_width(values):.2g}"


def format_markdown(head: list[str], lines: list[list[str]]) -> str:
    """A table of Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def group_by_variant(rows: list[dict[str, Any]]) -> dict[str, dict[int, dict[str, Any]]]:
    """Results by variant and seed."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["variant"], {})[row["seed"]] = row
    return found


def format_summary(rows: list[dict[str, Any]]) -> str:
    """Means over seeds with their intervals."""
    names = [*(f"hit_rate@{k}" for k in CUT_OFFS), "scaled_mrr", "best_epoch", "pairs_a_second"]
    lines = []
    for variant, seeds in group_by_variant(rows).items():
        own = list(seeds.values())
        cells = [format_interval([row[column] for row in own if column in row]) for column in names]
        lines.append([variant, str(len(own)), *cells])
    return format_markdown(["variant", "seeds", *names], lines)


def format_differences(rows: list[dict[str, Any]]) -> str:
    """Differences to base within each seed, with their intervals: walks, pairs and split are the same."""
    names = [*(f"hit_rate@{k}" for k in CUT_OFFS), "scaled_mrr", "best_epoch"]
    found = group_by_variant(rows)
    base = found.get("base", {})
    lines = []
    for variant, seeds in found.items():
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
