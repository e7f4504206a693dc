"""Measure the ranking kernel beside its limit and the usual procedure, in turns, on this machine.

    python jobs/bench.py                       a few minutes, one thread, no Spark
    python jobs/bench.py --users 50000 --rounds 3
    python jobs/bench.py --device cuda         on a GPU

Systems: `product` is the bare blocked matrix product and nothing else, the limit of anything that scores
all pairs; `topk` is the fast full ranking of RecBole (scores, training items to -inf, torch.topk, look
the held-out items up); ours counts ranks, of all held-out items (`ranks`) or up to a cut-off (`ranks@k`).
Absolute times mean nothing: the same code varies by half from minute to minute. Compare the ratios.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from recbench_spark import cli
from recbench_spark.errors import OK
from recbench_spark.kernels.counting import Counts, ItemLists, Settings, plain_products
from recbench_spark.kernels.scorers import DotScorer, UserBlock, count_ranks

BLOCK, TILE = 256, 1000
"""Users and items of one product: the fastest of those tried for the bare product."""


def parser() -> cli.Parser:
    """The flags of this job."""
    found = cli.Parser(__doc__ or "")
    found.add_argument("--users", type=int, default=6400)
    found.add_argument("--items", type=int, default=20_000)
    found.add_argument("--dims", type=int, default=64)
    found.add_argument("--k", type=int, default=100)
    found.add_argument("--rounds", type=int, default=3, help="turns of all systems")
    found.add_argument("--device", default="cpu", help="cpu, or cuda")
    return found


class World:
    """Random factors, about 47 training and 5 held-out items a user."""

    def __init__(self, users: int, items: int, dims: int) -> None:
        draws = np.random.default_rng(42)
        self.users_ud = draws.standard_normal((users, dims), np.float32)
        self.items_id = draws.standard_normal((items, dims), np.float32)
        self.masked = _lists(draws, users, items, 47)
        self.truth = _lists(draws, users, items, 5)
        self.scorer = DotScorer(self.items_id)
        self.block = UserBlock(np.arange(users), self.users_ud)


def _lists(draws: np.random.Generator, users: int, items: int, n: int) -> ItemLists:
    rows = np.sort(draws.integers(0, items, (users, n)), axis=1)
    return ItemLists(np.arange(users + 1) * n, rows.ravel())


def product(world: World, device: str) -> None:
    """The bare blocked product, nothing kept."""
    users, items = _on(device, world.users_ud, world.items_id)
    out = torch.empty((BLOCK, TILE), device=device)
    for start in range(0, len(users), BLOCK):
        block = users[start : start + BLOCK]
        for first in range(0, len(items), TILE):
            tile = items[first : first + TILE]
            torch.mm(block, tile.T, out=out[: len(block), : len(tile)])


def topk(world: World, device: str, k: int) -> npt.NDArray[np.bool_]:
    """Scores, training items to -inf, torch.topk; which held-out items stand in the list."""
    users, items = _on(device, world.users_ud, world.items_id)
    hits = []
    for start in range(0, len(users), BLOCK):
        stop = min(start + BLOCK, len(users))
        scores = users[start:stop] @ items.T
        rows, known = _pairs(world.masked, start, stop)
        scores[rows, known] = -torch.inf
        listed = torch.topk(scores, k, dim=1).indices.cpu()
        rows, wanted = _pairs(world.truth, start, stop)
        hits.append((listed[rows] == wanted[:, None]).any(dim=1).numpy())
    return np.concatenate(hits)


def _pairs(lists: ItemLists, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
    offsets = lists.offsets_u[start : stop + 1]
    rows = np.repeat(np.arange(stop - start), np.diff(offsets))
    return torch.from_numpy(rows), torch.from_numpy(lists.items_p[offsets[0] : offsets[-1]])


def _on(device: str, *arrays: npt.NDArray[np.float32]) -> list[torch.Tensor]:
    return [torch.from_numpy(array).to(device) for array in arrays]


def ranks(world: World, device: str, cutoff: int | None = None) -> Counts:
    """Ours: counts of what stands above each held-out item."""
    settings = Settings(cutoff=cutoff)
    return count_ranks(
        world.scorer, world.block, world.truth, world.masked, device=device, settings=settings
    )


def agree(world: World, device: str, k: int) -> float:
    """Share of held-out items on which the list and the ranks agree that they are among the first k."""
    found = ranks(world, device)
    listed = found.above_p + found.before_p < k
    unmasked = found.above_p >= 0
    return float(np.mean((listed == topk(world, device, k))[unmasked]))


def main(args: argparse.Namespace) -> int:
    """Warm up, check that values agree, take turns, print ratios."""
    torch.set_num_threads(1)
    world = World(args.users, args.items, args.dims)
    systems: dict[str, Callable[[], object]] = {
        "product": lambda: product(world, args.device),
        "topk": lambda: topk(world, args.device, args.k),
        "ranks": lambda: ranks(world, args.device),
        f"ranks@{args.k}": lambda: ranks(world, args.device, args.k),
    }
    with plain_products():
        print(
            f"top-{args.k} membership agrees on {agree(world, args.device, args.k):.6f} of held-out items"
        )
        seconds = take_turns(systems, args.rounds, args.device)
    print(f"{args.users} users x {args.items} items x {args.dims} dims, {args.device}, one thread")
    for name, spent in seconds.items():
        ratios = [100 * bare / own for bare, own in zip(seconds["product"], spent, strict=True)]
        shown = ", ".join(f"{ratio:.0f} %" for ratio in ratios)
        print(f"{name:>10}  {args.users / np.median(spent):>9,.0f} users/s   of the bare product: {shown}")
    return OK


def take_turns(
    systems: dict[str, Callable[[], object]], rounds: int, device: str
) -> dict[str, list[float]]:
    """Seconds of each system in each round, A B C A B C, after one warm-up of each."""
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(rounds + 1):
        for name, system in systems.items():
            started = time.perf_counter()
            system()
            if device != "cpu":
                torch.cuda.synchronize()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    cli.run(main, parser())
