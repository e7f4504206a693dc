"""Time ranking beside its limit and beside other systems.

    python jobs/bench/ranking.py    in one process, one thread: minutes, no Spark
    python jobs/bench/ranking.py --items 100000 --world planted
    python jobs/bench/ranking.py --factors FOLDER    trained factors: users.npy, items.npy, lists.npz
    python jobs/bench/ranking.py --systems spark,mllib,faiss    each in a process of its own
    python jobs/bench/ranking.py --device cuda    on a GPU, with torch and numpy alone
    python jobs/bench/ranking.py --record bench/ranks.jsonl --warehouse warehouse/bench

All run in turns on this machine. `product` is the bare blocked matrix product and nothing else, the limit
for anything that scores all pairs; `topk` is RecBole's fast full ranking (scores, training items to -inf,
torch.topk, look the held-out items up). This package counts ranks, for all held-out items (`ranks`) or up
to a cut-off, in float32 (`float32@k`) or with 8-bit products and bounds where they are faster
(`ranks@k`). `spark` is this package from stored user blocks to committed metrics, by user and overall,
`spark: ranks` to committed ranks. In the random world most held-out items are far down the ranking, which
is easy; in the `planted` world they are near the top. On a GPU there are also `topk-tf32`, the list from
TF32 products, and `kernel@k`, which is `ranks@k` without the preparation on the CPU. Compare ratios, not
absolute times.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench import harness
from recbench_spark import cli
from recbench_spark.errors import OK, ConfigError, DataError
from recbench_spark.ranking.kernels import devices
from recbench_spark.ranking.kernels.counting import (
    CountingSettings,
    PreparedBlock,
    plain_products,
    prepare_products,
)
from recbench_spark.ranking.kernels.positives import (
    ItemLists,
    RankCounts,
    Tally,
    count_candidates,
    gather_counts,
)
from recbench_spark.ranking.kernels.scorers import DotScorer, UserBlock, count_ranks

BLOCK, TILE = 256, 1000
"""Users and items in one product: the fastest sizes for the bare product."""

GPU_BLOCK, GPU_TILE = 4096, 16384
"""Users and items in one product on a GPU, where small products are slow."""

PLANTED_SHARE = 0.3
"""Share of held-out vectors in a user's own.

A quarter of held-out items rank among the first 100.
"""

SEPARATE_SYSTEMS = ("spark", "mllib", "faiss")
"""Systems with a process of their own."""


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    harness.add_counts(flags, users=6400, items=20_000, dims=64)
    flags.add_argument("--world", choices=["random", "planted"], default="random")
    flags.add_argument("--factors", type=Path, help="a folder with users.npy, items.npy and lists.npz")
    flags.add_argument("--k", type=cli.parse_count, default=100)
    flags.add_argument("--rounds", type=cli.parse_count, default=3, help="turns of all systems")
    flags.add_argument("--systems", default="product,topk,ranks,float32@k,ranks@k")
    flags.add_argument("--threads", type=cli.parse_count, default=1, help="of ours; the others take one")
    flags.add_argument("--device", default="cpu", help="cpu, or cuda")
    flags.add_argument("--environments", type=Path, default=harness.ROOT / ".venv-libraries")
    harness.add_output_flag(flags)
    flags.add_argument("--record", type=Path, nargs="+", help="write such files to the table `speed`")
    flags.add_argument("--warehouse", default="warehouse/bench", help="where that table is")
    return flags


# ------------------------------------------------------------------------------------------- worlds


class RankingTask:
    """Factors of users and items, with masked and held-out items.

    A user has about 47 items to leave out, and about 5 held-out ones.
    """

    def __init__(
        self,
        users_ud: npt.NDArray[np.float32],
        items_id: npt.NDArray[np.float32],
        masked: ItemLists,
        truth: ItemLists,
    ) -> None:
        self.users_ud, self.items_id = users_ud, items_id
        self.masked, self.truth = masked, truth
        self.scorer = DotScorer(items_id)
        self.block = UserBlock(np.arange(len(users_ud)), users_ud)

    @cached_property
    def prepare(self) -> PreparedBlock:
        """Sorted lists and scored held-out items, where kernels start."""
        return prepare_products(self.scorer.products, self.users_ud, self.truth, self.masked)

    def save(self, folder: Path) -> None:
        """Write the files for `time_ranks.py` and `--factors`."""
        np.save(folder / "users.npy", self.users_ud)
        np.save(folder / "items.npy", self.items_id)
        lists = {"masked": self.masked, "truth": self.truth}
        arrays: dict[str, Any] = {name: one.items_p for name, one in lists.items()}
        arrays |= {f"{name}_offsets": one.offsets_u for name, one in lists.items()}
        np.savez(folder / "lists.npz", **arrays)


def generate(args: argparse.Namespace) -> RankingTask:
    """Draw random factors; `planted` moves users to held-out items."""
    draws = np.random.default_rng(42)
    users_ud = draws.standard_normal((args.users, args.dims), np.float32)
    items_id = draws.standard_normal((args.items, args.dims), np.float32)
    masked, truth = (_lists(draws, args.users, args.items, n) for n in (47, 5))
    if args.world == "planted":
        wanted_upd = items_id[truth.items_p].reshape(args.users, 5, args.dims)
        users_ud += np.float32(PLANTED_SHARE) * wanted_upd.sum(axis=1)
    return RankingTask(users_ud, items_id, masked, truth)


def _lists(draws: np.random.Generator, users: int, items: int, n: int) -> ItemLists:
    rows = np.sort(draws.integers(0, items, (users, n)), axis=1)
    return ItemLists(np.arange(users + 1) * n, rows.ravel())


def load_task(folder: Path) -> RankingTask:
    """Read factors trained elsewhere."""
    names = ("users.npy", "items.npy", "lists.npz")
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise ConfigError(f"{folder} has no {missing[0]}", f"it must have {', '.join(names)}")
    users_ud, items_id = (np.load(folder / name, mmap_mode="r") for name in names[:2])
    lists = np.load(folder / names[2])
    masked, truth = (ItemLists(lists[f"{name}_offsets"], lists[name]) for name in ("masked", "truth"))
    return RankingTask(users_ud, items_id, masked, truth)


# ------------------------------------------------------------------------------------------- systems


def product(world: RankingTask, device: str) -> None:
    """Compute the bare blocked product, and drop it."""
    users, items = _factors(world, device)
    step, width = _cut(device)
    out = torch.empty((step, width), device=device)
    for start in range(0, len(users), step):
        block = users[start : start + step]
        for first in range(0, len(items), width):
            tile = items[first : first + width]
            torch.mm(block, tile.T, out=out[: len(block), : len(tile)])


def topk(world: RankingTask, device: str, k: int) -> npt.NDArray[np.bool_]:
    """Return hits in the top k, by scores and torch.topk.

    Training items are set to -inf.
    """
    users, items = _factors(world, device)
    step, hits = _cut(device)[0], []
    for start in range(0, len(users), step):
        stop = min(start + step, len(users))
        scores = users[start:stop] @ items.T
        rows, known = _pairs(world.masked, start, stop)
        scores[rows, known] = -torch.inf
        listed = torch.topk(scores, min(k, len(items)), dim=1).indices.cpu()
        rows, wanted = _pairs(world.truth, start, stop)
        hits.append((listed[rows] == wanted[:, None]).any(dim=1).numpy())
    return np.concatenate(hits)


def _pairs(lists: ItemLists, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
    offsets = lists.offsets_u[start : stop + 1]
    rows = np.repeat(np.arange(stop - start), np.diff(offsets))
    return torch.from_numpy(rows), torch.from_numpy(lists.items_p[offsets[0] : offsets[-1]])


def _cut(device: str) -> tuple[int, int]:
    return (BLOCK, TILE) if device == "cpu" else (GPU_BLOCK, GPU_TILE)


@cache
def _factors(world: RankingTask, device: str) -> list[torch.Tensor]:
    """Copy users and items to the device, before timing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about read-only arrays, which are never written to
        return [torch.from_numpy(array).to(device) for array in (world.users_ud, world.items_id)]


def topk_tf32(world: RankingTask, device: str, k: int) -> npt.NDArray[np.bool_]:
    """Return hits like `topk`, from factors rounded to 10 bits.

    The product is faster and not exact.
    """
    torch.set_float32_matmul_precision("high")
    try:
        return topk(world, device, k)
    finally:
        torch.set_float32_matmul_precision("highest")


def kernel(world: RankingTask, device: str, cutoff: int | None = None) -> RankCounts:
    """Count ranks from prepared lists.

    Copies to the device and back are included.
    """
    plan, tally = world.prepare.plan, Tally(*(one.copy() for one in world.prepare.tally))
    devices.count_products(world.prepare._replace(tally=tally), CountingSettings(cutoff=cutoff), device)
    return gather_counts(plan, tally, count_candidates(world.scorer.scored_i, plan), cutoff, None)


def ranks(world: RankingTask, device: str, **settings: Any) -> RankCounts:
    """Count the items above each held-out item."""
    counting = CountingSettings(**settings)
    lists = (world.truth, world.masked)
    return count_ranks(world.scorer, world.block, *lists, device=device, settings=counting)


def local_systems(world: RankingTask, args: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Return this process's systems.

    The product is always among them, for the ratios.
    """
    device, k = args.device, args.k
    every: dict[str, Callable[[], object]] = {
        "product": lambda: product(world, device),
        "topk": lambda: topk(world, device, k),
        "ranks": lambda: ranks(world, device, threads=args.threads),
        "float32@k": lambda: ranks(world, device, threads=args.threads, cutoff=k, reduced=False),
        "ranks@k": lambda: ranks(world, device, threads=args.threads, cutoff=k),
    }
    if device != "cpu":
        every["topk-tf32"] = lambda: topk_tf32(world, device, k)
        every["kernel@k"] = lambda: kernel(world, device, k)
    wanted = [name for name in args.systems.split(",") if name not in SEPARATE_SYSTEMS]
    unknown = [name for name in wanted if name not in every]
    if unknown:
        raise ConfigError(f"unknown system '{unknown[0]}'", f"{', '.join((*every, *SEPARATE_SYSTEMS))}")
    return {name: every[name] for name in every if name in wanted} if wanted else {}


def check_ranks(world: RankingTask, args: argparse.Namespace) -> None:
    """Check ranks up to the cut-off against a full count.

    The agreement of `topk` is reported.

    Raises:
        DataError: they differ.
    """
    count = ranks if args.device == "cpu" else kernel  # `kernel` sorts the lists once
    full, cut = count(world, args.device), count(world, args.device, cutoff=args.k)
    inside = full.above_p < args.k
    for name in ("above_p", "tied_p", "before_p"):
        if not np.array_equal(getattr(full, name)[inside], getattr(cut, name)[inside]):
            raise DataError(f"ranks up to the cut-off differ in {name}", "report this: it must not be")
    listed = (full.above_p + full.before_p < args.k)[full.above_p >= 0]
    same = listed == topk(world, args.device, args.k)[full.above_p >= 0]
    print(
        f"cut ranks are the full ones; {np.mean(listed):.3f} of held-out items are among the first {args.k}"
    )
    print(f"torch.topk agrees on {np.mean(same):.6f} of them")


# ------------------------------------------------------------------------------------------- turns


def measure_turns(
    systems: dict[str, Callable[[], object]], rounds: int, device: str
) -> dict[str, list[float]]:
    """Time each system by round, in turns, after a warm-up."""
    timed_systems = {name: partial(measure_seconds, system, device) for name, system in systems.items()}
    return harness.take_turns(timed_systems, rounds, warm_ups=1)


def measure_seconds(system: Callable[[], object], device: str) -> float:
    """Time a system, until the device has finished."""

    def work() -> None:
        system()
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    return harness.time_call(work)[0]


def measure_in_process(world: RankingTask, args: argparse.Namespace) -> list[harness.Row]:
    """Run all systems in this process, in turns."""
    systems = local_systems(world, args)
    if not systems:
        return []
    with plain_products():
        if "topk" in systems and systems.keys() & {"ranks", "kernel@k"}:
            check_ranks(world, args)
        seconds = measure_turns(systems, args.rounds, args.device)
    users = len(world.users_ud)
    bare = seconds.get("product")
    limits = [users / bare[turn] if bare else None for turn in range(args.rounds)]
    return [
        make_record(args, world, name, users, spent, turn=turn, limit=limits[turn])
        for name, every in seconds.items()
        for turn, spent in enumerate(every)
    ]


def measure_separately(world: RankingTask, args: argparse.Namespace) -> list[harness.Row]:
    """Run systems in their own processes, beside the bare product.

    Each system takes turns with the product.
    """
    records: list[harness.Row] = []
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        world.save(Path(folder))
        for system in filter(args.systems.split(",").__contains__, SEPARATE_SYSTEMS):
            for turn, timing in enumerate(time_system(system, Path(folder), args)):
                limit = timing["product"] or product_speed(world, args)
                for name, spent in ((system, timing["seconds"]), (f"{system}: ranks", timing["ranked"])):
                    if spent:
                        row = make_record(args, world, name, timing["users"], spent, turn=turn, limit=limit)
                        records.append(row)
    return records


def product_speed(world: RankingTask, args: argparse.Namespace) -> float:
    """Return the bare product's users a second.

    Environments without torch need it.
    """
    spent = measure_turns({"product": lambda: product(world, args.device)}, 1, args.device)
    return len(world.users_ud) / spent["product"][0]


def time_system(system: str, folder: Path, args: argparse.Namespace) -> list[harness.Row]:
    """Return `time_ranks.py`'s lines for a system, one a round."""
    python = find_interpreter(system, args.environments)
    script, numbers = (
        str(harness.ROOT / "jobs" / "bench" / "time_ranks.py"),
        (str(args.k), str(args.rounds)),
    )
    run = harness.run_process([python, script, system, str(folder), *numbers])
    if run.code:
        raise ConfigError(f"{system} failed", run.errors[-800:])
    return harness.parse_rows(run)


def find_interpreter(system: str, environments: Path) -> str:
    """Return the Python of a system's environment."""
    return cli.find_library_python("faiss", environments) if system == "faiss" else sys.executable


def make_record(
    args: argparse.Namespace,
    world: RankingTask,
    system: str,
    users: int,
    seconds: float,
    *,
    turn: int,
    limit: Any,
) -> harness.Row:
    """Make one line for `--output`, and for the table `speed`."""
    items, dims = world.items_id.shape
    speed = users / seconds
    return {
        "benchmark": str(args.factors.name if args.factors else args.world),
        "system": system,
        "users": users,
        "items": items,
        "dims": dims,
        "k": args.k,
        "round": turn,
        "seconds": seconds,
        "users_per_second": speed,
        "of_product": speed / limit if limit else None,
        "device": args.device,
        "measured_at": harness.stamp_time(),
    }


# ------------------------------------------------------------------------------------------- results


def format_table(records: list[harness.Row]) -> list[str]:
    """Describe each system's median speed, and its share.

    The share is of the bare product, by round.
    """
    lines = []
    for system in dict.fromkeys(row["system"] for row in records):
        rows = [row for row in records if row["system"] == system]
        speed = statistics.median(row["users_per_second"] for row in rows)
        shares = [f"{100 * row['of_product']:.0f} %" for row in rows if row["of_product"]]
        suffix = f"   of the bare product: {', '.join(shares)}" if shares else ""
        lines.append(f"{system:>12} {speed:10,.0f} users/s{suffix}")
    return lines


def main(args: argparse.Namespace) -> int:
    """Warm up, check values, take turns and print ratios.

    With `--record` earlier measurements are recorded instead.
    """
    if args.record:
        rows, place = harness.record_rows(args.record, args.warehouse), args.warehouse
        print(f"{rows} measurements in {place}: recbench query --warehouse {place} 'FROM speed'")
        return OK
    torch.set_num_threads(1)
    world = load_task(args.factors) if args.factors else generate(args)
    records = measure_in_process(world, args) + measure_separately(world, args)
    users, (items, dims) = len(world.users_ud), world.items_id.shape
    print(
        f"{users:,} users x {items:,} items x {dims} dims, {args.device}", *format_table(records), sep="\n"
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"this process held {peak:.1f} GiB at most, mapped files included")
    harness.append_rows(args.output, records)
    return OK


if __name__ == "__main__":
    cli.run(main, parser())
