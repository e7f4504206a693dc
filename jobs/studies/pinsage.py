"""PinSage's choices, one at a time, on item-to-item pairs: pooling, T, curriculum, negatives, joining.

    python jobs/studies/pinsage.py --data /path/to/ml-1m --folder study
    python jobs/studies/pinsage.py --world 1000000 --folder study --variants base,mean --seeds 1
    python jobs/studies/pinsage.py --data /path/to/ml-100k --folder study --table docs/pinsage_study.md

A fifth of each user's liked items (rating 4 or more) is held out by hash. A test pair is a held-out item
and one of the user's training items, drawn by hash: the query. All items but the query are ranked by the
dot product of vectors. `hit_rate` at K is the share of pairs whose item is among the first K,
`scaled_mrr` the mean of 1 / ceil(rank / 100) (Ying et al. 2018, section 4.1). Features: genres, title
words hashed to 32 signed numbers, log degree in training. Every variant differs from `base` in what its
name says. Each seed draws walks, pairs, order and weights anew; the split stays. Each fit is
checkpointed, each result a line of FOLDER/results.jsonl: what is there is not done again. One process,
no Spark.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from recbench_spark import cli
from recbench_spark.data.liked_movies import degree, read_movies
from recbench_spark.errors import OK
from recbench_spark.journal import Journal
from recbench_spark.kernels.graph.forms import Aggregator, LayerForm
from recbench_spark.kernels.graph.ids import hashed_numbers
from recbench_spark.kernels.graph.samples import Band, bands
from recbench_spark.models.networks.factors import Pairs, cut, pairs_of
from recbench_spark.models.networks.fitting import fit
from recbench_spark.models.networks.item_graphs import both_ways, connected
from recbench_spark.models.networks.layers import GraphNet
from recbench_spark.models.networks.plans import Plan
from recbench_spark.models.networks.tasks import (
    Input,
    Margin,
    PairTask,
    co_liked,
    embedded,
    item_ranks,
    scaled_mrr,
)

Floats = npt.NDArray[np.float32]
CUT_OFFS = (10, 50, 500)
MOST_PAIRS = 20_000
HELD_OUT = 0.2


@dataclass(frozen=True)
class Variant:
    """What is fitted; see `Margin` and `LayerForm`."""

    form: str = "convolve"
    aggregator: Aggregator = "importance"
    top: int = 50
    join: str = "concat"
    curriculum: bool = False
    per_pair: bool = False
    epochs: int = 8


BASE = Variant()
VARIANTS = {
    "base": BASE,
    "mean": replace(BASE, aggregator="mean"),
    "max": replace(BASE, aggregator="max"),
    "curriculum": replace(BASE, curriculum=True),
    "add": replace(BASE, join="add"),
    "per_pair": replace(BASE, per_pair=True),
    "top_10": replace(BASE, top=10),
    "top_20": replace(BASE, top=20),
    "sage_mean": replace(BASE, form="sage", aggregator="mean"),
    "sage_max": replace(BASE, form="sage", aggregator="max"),
}


class World(NamedTuple):
    """Liked pairs, cut, and what items are known by."""

    train: Pairs
    held: Pairs
    features: Floats


def parser() -> cli.Parser:
    """The flags of this study."""
    found = cli.Parser(__doc__ or "")
    of = found.add_mutually_exclusive_group(required=True)
    of.add_argument("--data", type=Path, help="a MovieLens folder: ml-100k, ml-1m or ml-latest-small")
    of.add_argument("--world", type=int, metavar="ITEMS", help="a generated world of so many items")
    found.add_argument("--folder", type=Path, required=True, help="of checkpoints and results")
    found.add_argument("--variants", default=",".join(VARIANTS), help="some of them, by comma")
    found.add_argument("--seeds", type=int, default=3)
    found.add_argument("--epochs", type=int, default=BASE.epochs)
    found.add_argument("--width", type=int, default=64, help="of all vectors")
    found.add_argument("--table", type=Path, help="write the means and intervals there")
    return found


def main(args: argparse.Namespace) -> int:
    """Fit what is not there yet, tell means and intervals."""
    names = cli.names(args.variants, "--variants", VARIANTS)
    journal = Journal()
    args.folder.mkdir(parents=True, exist_ok=True)
    results = args.folder / "results.jsonl"
    world = generated(args.world) if args.world else movielens(args.data)
    of = str(args.data or args.world)
    for seed in range(1, args.seeds + 1):
        for name in names:
            done = read_results(results)
            key = {"data": of, "variant": name, "seed": seed, "epochs": args.epochs, "width": args.width}
            if any(key.items() <= row.items() for row in done):
                continue
            variant = replace(VARIANTS[name], epochs=args.epochs)
            found = study(world, variant, seed, args, journal, name)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**key, **found, "settings": asdict(variant)}) + "\n")
    table = summary([row for row in read_results(results) if row["data"] == of])
    print(table)
    if args.table:
        args.table.write_text(table + "\n", encoding="utf-8")
    return OK


def read_results(path: Path) -> list[dict[str, Any]]:
    """Results that are there."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ------------------------------------------------------------------------------------------ data


def movielens(folder: Path) -> World:
    """Genres, titles and pairs of a MovieLens folder, cut."""
    found = read_movies(folder)
    train, held = cut(found.pairs, HELD_OUT, 7)
    return World(train, held, np.hstack([found.genres, found.words, degree(train)]))


def generated(items: int) -> World:
    """Users of one of 50 tastes; of 20 likes each 15 are of items of their taste, popular ones more often.

    An item's features are its taste in noise as large, and its log degree. Twice as many items as users.
    """
    draw = np.random.default_rng(11)
    users, tastes, likes = items // 2, 50, 20
    taste_u = draw.integers(0, tastes, users)
    user = np.repeat(np.arange(users), likes)
    place = ((items // tastes) * draw.random(len(user)) ** 3).astype(np.int64)
    taste = np.where(draw.random(len(user)) < 0.75, taste_u[user], draw.integers(0, tastes, len(user)))
    pairs = pairs_of(user, place * tastes + taste, users, items)
    train, held = cut(pairs, HELD_OUT, 7)
    centre = draw.standard_normal((tastes, 16)).astype(np.float32)
    noise = draw.standard_normal((items, 16), np.float32)
    return World(train, held, np.hstack([centre[np.arange(items) % tastes] + noise, degree(train)]))


# ------------------------------------------------------------------------------------------ fits


def hard(train: Pairs) -> Band:
    """Items ranked 2,000 to 5,000 by personalised PageRank, or the same share of what is reached."""
    first = train.users
    found = bands(
        both_ways(train), np.arange(first, first + train.items), (first, first + train.items), (2000, 5000),
        least=1e-5,
    )  # fmt: skip
    return found._replace(node=found.node - np.uint32(first))


def study(
    world: World, variant: Variant, seed: int, args: argparse.Namespace, journal: Journal, name: str
) -> dict[str, float]:
    """One fit and what it is worth on the test pairs; the best-on-validation epoch is taken."""
    train, inner = cut(world.train, 0.05, 100 + seed)
    graph, dims = connected(train, variant.top, seed), world.features.shape[1]
    given = Input(graph, world.features)
    hidden = dims if variant.join == "add" else args.width
    forms = tuple(
        LayerForm(variant.form, variant.aggregator, width, hidden, variant.join)  # type: ignore[arg-type]
        for width in ((dims, dims) if variant.join == "add" else (args.width, args.width))
    )
    net = GraphNet(forms, (args.width,), dims)
    net.initialise(seed)
    _, query, item = co_liked(train.indptr, train.item.astype(np.int64), 2, seed)
    how = Margin("max_margin", 0.1, 500, variant.per_pair, variant.curriculum, end=train.items)
    band = hard(train) if variant.curriculum else None
    test = test_pairs(train, inner, seed)
    task = PairTask(
        net, given, (query, item), how, band, lambda n: scaled_mrr(ranks_of(n, given, test), 10)
    )
    journal.say(f"{name}, seed {seed}: {task.examples:,} pairs")
    plan = Plan(variant.epochs, 512, 3e-3, warm_up=100, decay=0.8, seed=seed)
    found = fit(task, plan, args.folder / f"{name}-{seed}-{variant.epochs}-{args.width}", journal.say)
    ranks = ranks_of(net, given, test_pairs(train, world.held, seed))
    told = {f"hit_rate@{k}": float((ranks <= k).mean()) for k in CUT_OFFS}
    best = {"scaled_mrr": scaled_mrr(ranks), "best_epoch": found.best}
    best["pairs_a_second"] = float(np.mean([e.examples_a_second for e in found.epochs]))
    journal.say(f"{name}, seed {seed}: {told | best}")
    return told | best


def test_pairs(train: Pairs, held: Pairs, seed: int) -> tuple[Any, Any]:
    """A held-out item and one of its user's training items, drawn by hash; at most MOST_PAIRS, by hash."""
    user, item = held.user.astype(np.int64), held.item.astype(np.int64)
    keys = hashed_numbers(user * train.items + item, seed)
    sizes = np.diff(train.indptr)[user]
    rows = np.flatnonzero(sizes > 0)
    rows = rows[np.argsort(keys[rows], kind="stable")][:MOST_PAIRS]
    place = (hashed_numbers(keys[rows].view(np.int64), seed) >> np.uint64(11)).astype(np.int64) % sizes[
        rows
    ]
    return train.item[train.indptr[user[rows]] + place].astype(np.int64), item[rows]


def ranks_of(net: GraphNet, given: Input, pairs: tuple[Any, Any]) -> npt.NDArray[np.int64]:
    """Ranks of test pairs among all items but the query."""
    z = embedded(net, given, np.arange(len(given.features)))
    return item_ranks(z, *pairs)


def summary(rows: list[dict[str, Any]]) -> str:
    """Means over seeds with 95 % intervals of Student's t, as a table of Markdown."""
    names = [*(f"hit_rate@{k}" for k in CUT_OFFS), "scaled_mrr", "best_epoch", "pairs_a_second"]
    lines = ["| variant | seeds | " + " | ".join(names) + " |", "|---" * (2 + len(names)) + "|"]
    for name in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == name]
        cells = []
        for column in names:
            x = np.array([row[column] for row in own], float)
            half = (
                stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)) if len(x) > 1 else np.nan
            )
            cells.append(f"{x.mean():.4g} ± {half:.2g}" if len(x) > 1 else f"{x.mean():.4g}")
        lines.append(f"| {name} | {len(own)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(main, parser())
