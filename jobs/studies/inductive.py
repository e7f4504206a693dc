"""GraphSAGE on graphs that it has never seen: 20 generated ones to learn from, 2 to be judged on, micro-F1.

    python jobs/studies/inductive.py --output inductive.jsonl
    python jobs/studies/inductive.py --aggregators mean,gcn --seeds 1 --nodes 300

Each graph has its own nodes and edges; a node has one of five classes, most of its edges lead to its own
class, and its features are its class's centre in noise. Centres are the same in all graphs: what is
learnt is a function of features and neighbours, and no node. Two more graphs choose the epoch.
`features` is the same net without neighbours (logistic regression through the same layers, all edges
taken away). For classes that exclude one another micro-F1 is the share of nodes that are right. Results
are lines of the output file; means over seeds come with 95 % intervals of Student's t. One process, no
Spark.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from recbench_spark import cli
from recbench_spark.errors import OK
from recbench_spark.journal import Journal
from recbench_spark.kernels.graph.csr import Csr, built, edge_keys
from recbench_spark.kernels.graph.forms import LayerForm
from recbench_spark.kernels.graph.ids import hashed_numbers
from recbench_spark.models.networks.fitting import fit
from recbench_spark.models.networks.layers import GraphNet
from recbench_spark.models.networks.plans import Plan
from recbench_spark.models.networks.subgraphs import Adjacency
from recbench_spark.models.networks.tasks import Input, LabelTask, embedded

TRAINED, CHOOSING, UNSEEN = 20, 2, 2
CLASSES, DIMS, DEGREE, WITHIN, NOISE = 5, 16, 12, 0.6, 2.5
AGGREGATORS = ("mean", "max", "gcn", "lstm", "features")
Labels = npt.NDArray[np.int64]


def parser() -> cli.Parser:
    """The flags of this study."""
    found = cli.Parser(__doc__ or "")
    found.add_argument("--output", type=Path, help="a line a fit")
    found.add_argument("--aggregators", default=",".join(AGGREGATORS), help="some of them, by comma")
    found.add_argument("--seeds", type=int, default=3)
    found.add_argument("--nodes", type=int, default=200, help="of a graph")
    found.add_argument("--epochs", type=int, default=10)
    return found


def main(args: argparse.Namespace) -> int:
    """Fit each aggregator under each seed, tell means and intervals."""
    names = cli.names(args.aggregators, "--aggregators", AGGREGATORS)
    journal = Journal()
    scores: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(1, args.seeds + 1):
        for name in names:
            scores[name].append(micro_f1(name, seed, args))
            line = {"aggregator": name, "seed": seed, "nodes": args.nodes, "micro_f1": scores[name][-1]}
            journal.say(json.dumps(line))
            if args.output:
                with args.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    for name, found in scores.items():
        x = np.array(found)
        half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)) if len(x) > 1 else np.nan
        print(f"{name:10} {x.mean():.3f} ± {half:.3f}")
    return OK


def micro_f1(name: str, seed: int, args: argparse.Namespace) -> float:
    """Of the unseen graphs, by the epoch that is best on the choosing ones."""
    alone = name == "features"
    centre = np.random.default_rng(seed).standard_normal((CLASSES, DIMS))
    parts = [graphs(count, number, seed, args.nodes, centre, alone)
             for number, count in enumerate((TRAINED, CHOOSING, UNSEEN))]  # fmt: skip
    form = LayerForm("sage", "mean" if alone else name, 32, 32, most=10)  # type: ignore[arg-type]
    net = GraphNet((form, form), (CLASSES,), DIMS)
    net.initialise(seed)
    (given, label), choosing, unseen = parts
    task = LabelTask(net, given, np.arange(len(label)), label, lambda n: right(n, *choosing))
    fit(task, Plan(args.epochs, 128, 0.01, seed=seed), None, _silent)
    return right(net, *unseen)


def _silent(_: str) -> None:
    """One line a fit is told, not one an epoch."""


def right(net: GraphNet, given: Input, label: Labels) -> float:
    """Share of nodes whose class is found."""
    return float((embedded(net, given, np.arange(len(label))).argmax(axis=1) == label).mean())


def graphs(
    count: int, number: int, seed: int, nodes: int, centre: npt.NDArray[Any], alone: bool
) -> tuple[Input, Labels]:
    """Some graphs side by side, no edge between them."""
    draw = np.random.default_rng([seed, number])
    n = count * nodes
    label = draw.integers(0, CLASSES, n)
    x = centre[label] + NOISE * draw.standard_normal((n, DIMS))
    ends = [np.empty((0, 2), np.int64)]
    for graph in range(0 if alone else count):
        own = np.arange(graph * nodes, (graph + 1) * nodes)
        pairs = draw.choice(own, (nodes * DEGREE, 2))
        kept = (label[pairs[:, 0]] == label[pairs[:, 1]]) | (draw.random(len(pairs)) > WITHIN)
        ends.append(pairs[kept])
    both = np.concatenate(ends)
    both = np.concatenate([both, both[:, ::-1]])
    keys = edge_keys(both[:, 0].astype(np.uint32), both[:, 1].astype(np.uint32))
    csr: Csr = built(n, keys, None)[0]
    adjacency = Adjacency(np.zeros(1, np.int64), (csr,), hashed_numbers(np.arange(n), 0))
    return Input(adjacency, x.astype(np.float32), (10, 5)), label


if __name__ == "__main__":
    cli.run(main, parser())
