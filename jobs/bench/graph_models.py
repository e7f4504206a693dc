"""Time a graph training step beside torch-geometric.

    python jobs/bench/graph_models.py --nodes 20000 --degree 30 --rounds 7

A minibatch with pairs and shared negatives has its subgraph drawn once (GraphSAGE samples with 25 and 10
neighbours). Then both systems take turns on it, in pairs a second: two layers of means, the max-margin
loss, gradients. Each has one thread; seconds are the process's CPU time, which other work on the machine
does not lengthen. Both must give the same loss. Last comes a whole fit with a simulated device, which
sleeps over each minibatch for 1.5 times the time to make one: the job prints the share of time it waits.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench import harness
from recbench_spark import cli
from recbench_spark.core.arrays import Ints
from recbench_spark.errors import OK, ConfigError, DataError
from recbench_spark.graphs.kernels.csr import Csr
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.kernels.simd import PREFETCH_EDGES
from recbench_spark.models.networks.fitting import Step, fit
from recbench_spark.models.networks.layers import GraphNetwork, unit_rows
from recbench_spark.models.networks.settings import TrainingPlan
from recbench_spark.models.networks.subgraphs import Adjacency
from recbench_spark.models.networks.tasks import GraphInput, PairBatch, PairObjective, PairTask, max_margin

LOSS_AGREES = 1e-4


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--nodes", type=int, default=20_000)
    flags.add_argument("--degree", type=int, default=30, help="edges into each node")
    flags.add_argument("--width", type=int, default=64)
    flags.add_argument("--batch", type=int, default=512)
    flags.add_argument("--rounds", type=int, default=7)
    harness.add_output_flag(flags)
    return flags


def main(args: argparse.Namespace) -> int:
    """Make a minibatch, measure both systems in turns, print medians."""
    torch.set_num_threads(1)
    task, batch = make_task(args)
    own_step, reference_step = run_own_step(task, batch), run_reference_step(task, batch, args.width)
    losses = own_step(), reference_step()
    if abs(losses[0] - losses[1]) > LOSS_AGREES * abs(losses[0]):
        raise DataError(f"losses {losses[0]} and {losses[1]} differ", "the two do not compute the same")
    steps = {"ours": own_step, "torch-geometric": reference_step}
    seconds = harness.take_turns(
        {name: partial(harness.measure_own_cpu, step) for name, step in steps.items()}, args.rounds
    )
    edges = sum(len(hop.place) for hop in batch.graph.hops)
    print(f"{args.batch} pairs, {len(batch.graph.inputs):,} nodes, {edges:,} edges a minibatch")
    for name, each in seconds.items():
        print(f"{name:16} {args.batch / statistics.median(each):10,.0f} pairs/s (median of {args.rounds})")
    harness.append_rows(
        args.output, harness.list_rows({"benchmark": "graph_models", "pairs": args.batch}, seconds)
    )
    ratio = statistics.median(harness.divide_rounds(seconds["torch-geometric"], seconds["ours"]))
    print(f"ours is {ratio:.2f} times as fast")
    print_overlap(task, args.batch, args.rounds)
    return OK


def make_task(args: argparse.Namespace) -> tuple[PairTask, PairBatch]:
    """Make a task over a random graph, and a minibatch."""
    draw = np.random.default_rng(1)
    src = np.sort(draw.integers(0, args.nodes, (args.nodes, args.degree)), axis=1).reshape(-1)
    indptr = np.arange(0, len(src) + 1, args.degree, dtype=np.int64)
    csr = Csr(indptr, np.append(src, np.zeros(PREFETCH_EDGES, np.int64)).astype(np.uint32), None)
    graph = Adjacency(np.zeros(1, np.int64), (csr,), hash_numbers(np.arange(args.nodes), 0))
    x = draw.standard_normal((args.nodes, args.width)).astype(np.float32)
    form = LayerForm("sage", "mean", args.width, args.width)
    net = GraphNetwork((form, form), (), args.width)
    net.initialise(1)
    pairs = (draw.integers(0, args.nodes, args.batch), draw.integers(0, args.nodes, args.batch))
    task = PairTask(net, GraphInput(graph, x, (25, 10)), pairs, PairObjective(margin=0.5, end=args.nodes))
    return task, task.batch(Step(1, 0), np.arange(args.batch), 1)


class SimulatedTask:
    """Wraps a task with a device that sleeps.

    The device sleeps over each minibatch.
    """

    def __init__(self, task: PairTask, seconds: float, minibatches: int) -> None:
        self.task, self.seconds, self.module = task, seconds, task.module
        self.examples = minibatches * task.examples

    def batch(self, at: Step, row_b: Ints, seed: int) -> Any:
        """Make the wrapped task's minibatch, with all its sampling."""
        return self.task.batch(at, row_b % self.task.examples, seed)

    def loss(self, _: Any) -> torch.Tensor:
        """Sleep, then return a loss of 0."""
        time.sleep(self.seconds)
        return 0.0 * next(self.module.parameters()).sum()

    def worth(self) -> float:
        """Return NaN: no epoch is chosen."""
        return float("nan")


def print_overlap(task: PairTask, size: int, rounds: int) -> None:
    """Print how long a simulated device waits for minibatches.

    The wait is a share of the time.
    """
    batches = [partial(task.batch, Step(1, step), np.arange(size), step) for step in range(rounds)]
    making = statistics.median(harness.time_call(batch)[0] for batch in batches)
    device = SimulatedTask(task, 1.5 * making, 10 * rounds)
    waited = fit(device, TrainingPlan(epochs=1, batch=size), None, lambda _: None).epochs[0].waited
    print(
        f"a device that takes {1.5e3 * making:.1f} ms over minibatches made in {1e3 * making:.1f} ms "
        f"waits {waited:.1%} of the time for them"
    )


def run_own_step(task: PairTask, batch: PairBatch) -> Callable[[], float]:
    """Return this package's step: loss and gradients."""

    def step() -> float:
        task.module.zero_grad()
        loss = task.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return step


def run_reference_step(task: PairTask, batch: PairBatch, width: int) -> Callable[[], float]:
    """Return torch-geometric's step: loss and gradients.

    The step takes SAGEConv with the same weights.
    """
    try:
        from torch_geometric.nn import SAGEConv  # noqa: PLC0415
    except ImportError:
        raise ConfigError("torch-geometric is not installed", "pip install torch-geometric") from None
    convs: Any = torch.nn.ModuleList(SAGEConv((width, width), width) for _ in range(2))
    edges = []
    layers: list[Any] = list(task.module.layers)
    for conv, layer, hop in zip(convs, layers, batch.graph.hops, strict=True):
        w = layer.W
        with torch.no_grad():
            conv.lin_l.weight.copy_(w.weight[:, width:])
            conv.lin_l.bias.copy_(w.bias)
            conv.lin_r.weight.copy_(w.weight[:, :width])
        edges.append(torch.stack([hop.place, torch.repeat_interleave(hop.counts)]))

    def step() -> float:
        convs.zero_grad()
        h = batch.features
        for conv, hop, edge in zip(convs, batch.graph.hops, edges, strict=True):
            h = unit_rows(torch.relu(conv((h, h[hop.own]), edge)))
        assert batch.shared is not None
        loss = max_margin(h[batch.query], h[batch.item], h[batch.shared], None, task.how.margin)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return step


if __name__ == "__main__":
    cli.run(main, parser())
