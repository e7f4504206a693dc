"""Time a sequence model's fit beside a plain torch loop.

    python jobs/bench/sequences.py                     MovieLens 1M's size: 6,040 users, 3,706 items
    python jobs/bench/sequences.py --kind gru4rec

Histories are drawn. Both ways fit the same model in turns, with the same steps: the plain loop cuts
padded windows out of one array and has no checkpoints, no epochs, and nothing made ahead. It prints this
process's CPU seconds, because other processes may share the machine, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench.harness import add_counts, measure_own_cpu, take_turns
from recbench_spark import cli
from recbench_spark.errors import OK
from recbench_spark.models.networks.fitting import fit
from recbench_spark.models.networks.sequence_networks import (
    Sequences,
    TokenWindows,
    cut_newest,
    make_network,
)
from recbench_spark.models.networks.sequence_tasks import SequenceTask
from recbench_spark.models.settings import make_model


def draw_sequences(users: int, items: int, rows: int) -> Sequences:
    """Draw histories around a mean length, popular items more often."""
    draw = np.random.default_rng(1)
    sizes = np.minimum(20 + draw.exponential(max(rows - 20, 1), users), items // 2).astype(np.int64)
    lists = [(items * draw.random(size) ** 2).astype(np.int32) for size in sizes]
    return Sequences(items, np.concatenate([[0], np.cumsum(sizes)]), np.concatenate(lists))


def fit_plainly(sequences: Sequences, settings: Any) -> None:
    """Fit with a plain loop.

    The loop takes each user's newest items, softmax over all items, and Adam.
    """
    module: Any = make_network(settings, sequences.items)
    token, length = cut_newest(sequences, np.arange(sequences.users), settings.memory + 1)
    optimiser = torch.optim.Adam(module.parameters(), lr=settings.rate, fused=True)
    order = torch.randperm(sequences.users)[: settings.examples]
    for rows in torch.split(order, settings.batch):
        optimiser.zero_grad()
        longest = int(length[rows].max()) - 1
        state = module.read_all(TokenWindows(token[rows, :longest], length[rows] - 1))
        target = token[rows, 1 : longest + 1] - 1
        has_target = target >= 0
        score = state[has_target] @ module.item_vectors().T
        functional.cross_entropy(score, target[has_target]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--kind", choices=("sasrec", "gru4rec"), default="sasrec")
    add_counts(flags, users=6040, items=3706)
    flags.add_argument("--rows", type=cli.parse_count, default=165, help="mean rows of a user")
    flags.add_argument("--examples", type=cli.parse_count, default=6040, help="users of an epoch")
    flags.add_argument("--rounds", type=cli.parse_count, default=3)
    return flags


def main(args: argparse.Namespace) -> int:
    """Time both ways in turns, and print the ratio."""
    torch.set_num_threads(1)
    sequences = draw_sequences(args.users, args.items, args.rows)
    own = {"epochs": 1, "examples": args.examples, "memory": 200, "validation_users": 1}
    settings: Any = make_model({"name": "m", "kind": args.kind, **own}, "bench")
    plan = settings.plan()
    ways: dict[str, Callable[[], object]] = {
        "here": lambda: fit(SequenceTask(sequences, settings), plan, None, lambda _: None),
        "plain": partial(fit_plainly, sequences, settings),
    }
    timed = {name: partial(measure_own_cpu, way) for name, way in ways.items()}
    seconds = take_turns(timed, args.rounds)
    medians = {name: statistics.median(own) for name, own in seconds.items()}
    for name, turns in seconds.items():
        print(f"{name}: {medians[name]:.1f} CPU seconds ({', '.join(f'{one:.1f}' for one in turns)})")
    print(f"{args.kind}: here / plain = {medians['here'] / medians['plain']:.3f}")
    return OK


if __name__ == "__main__":
    cli.run(main, parser())
