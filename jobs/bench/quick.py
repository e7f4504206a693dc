"""Compare kernels' seconds and memory with the kept figures.

    make bench-quick                        some minutes; exit code 4 where something got worse
    python jobs/bench/quick.py --keep       keep what is measured now: docs/bench_quick.json
    python jobs/bench/quick.py --only lists --rounds 3

The repository keeps the figures. Every run is a process of its own, in turns. Times are multiples of a
fixed piece of work (a product and a sort) that runs just before in the same process, so a busy or slower
machine changes both. A figure's noise is the spread of its turns. A figure is worse if it is above the
kept one by more than both noises. Figures from another processor are shown and not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench import harness
from recbench_spark import cli
from recbench_spark.errors import OK, REGRESSION, ConfigError, DataError

FIGURES_FILE = harness.ROOT / "docs" / "bench_quick.json"

MIN_NOISE = 0.05
"""Smallest noise of a figure, however close its turns are."""

Work = Callable[[], object]


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--rounds", type=cli.parse_count, default=5, help="turns of all kernels (default 5)")
    flags.add_argument("--only", help="some of the kernels, by name")
    flags.add_argument(
        "--kept", type=Path, default=FIGURES_FILE, help="file of the figures to compare with"
    )
    flags.add_argument("--keep", action="store_true", help="write what is measured to that file")
    flags.add_argument("--one", help=argparse.SUPPRESS)
    return flags


def main(args: argparse.Namespace) -> int:
    """Run kernels in turns, then compare or keep the figures."""
    if args.one:
        print(json.dumps(measure_kernel(KERNELS[args.one]())))
        return OK
    names = cli.parse_names(args.only, "--only", KERNELS) if args.only else tuple(KERNELS)
    turns = harness.take_turns({name: partial(run_one, name) for name in names}, args.rounds)
    figures = {name: summarise_turns(runs) for name, runs in turns.items()}
    if args.keep:
        write_figures(args.kept, figures)
        return OK
    earlier, here = read_figures(args.kept), describe_processor()
    lines, worse = compare_figures(figures, earlier.get(here) or next(iter(earlier.values())))
    print("\n".join(lines))
    if here not in earlier:
        print(f"not judged: the kept figures are of {', '.join(earlier)}, this is {here}")
        return OK
    if worse:
        print(f"worse by more than noise: {', '.join(worse)}", file=sys.stderr)
    return REGRESSION if worse else OK


# ------------------------------------------------------------------------------------ kernels


def ranks(cutoff: int | None = None) -> Work:
    """Prepare ranks of all held-out items, or up to `cutoff`.

    The data are 4,000 users x 20,000 items.
    """
    from jobs.bench import ranking  # noqa: PLC0415

    flags = ["--users", "4000", "--world", "planted"]
    world = ranking.generate(ranking.parser().parse_args(flags))
    return lambda: ranking.ranks(world, "cpu", cutoff=cutoff)


def lists() -> Work:
    """Prepare a list evaluation with `evaluate_frames`.

    The data are 10,000 users with 100 rows each.
    """
    from jobs.bench import lists as rows  # noqa: PLC0415

    truth, ranked_lists = rows.generate(10_000)
    return lambda: rows.compute_expected(truth, ranked_lists, "replay")


def bootstrap() -> Work:
    """Prepare a bootstrap.

    The bootstrap has 1,000 replicates of 30 sums over 20,000 users.
    """
    from recbench_spark.core.resampling import bootstrap_sums  # noqa: PLC0415

    values = np.random.default_rng(42).random((20_000, 30))
    keys = np.arange(len(values))
    return lambda: bootstrap_sums(keys, values, replicates=1000, seed=1)


def _log(n: int) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    draws = np.random.default_rng(42)
    columns = {"user_id": draws.integers(0, n // 50, n), "item_id": draws.integers(0, 50_000, n)}
    return pa.table({**columns, "rating": draws.random(n), "event_time": draws.integers(0, 1 << 40, n)})


def labels() -> Work:
    """Prepare a million rows' labels by a random split."""
    from recbench_spark.config import Split  # noqa: PLC0415
    from recbench_spark.splits.labels import label_rows  # noqa: PLC0415
    from recbench_spark.splits.rules import make_rule  # noqa: PLC0415

    rows, rule = _log(1_000_000), make_rule(Split(protocol="RO_RS"), "keep_last")
    return lambda: label_rows(rows, rule)


def audit() -> Work:
    """Prepare a manifest's counts over a million labelled rows."""
    import pyarrow as pa  # noqa: PLC0415

    from recbench_spark.splits import audit as counts  # noqa: PLC0415

    rows = _log(1_000_000)
    part = pa.array(np.where(np.arange(len(rows)) % 5, "train", "test"))
    rows = rows.append_column("part", part)

    def count() -> None:
        parts = counts.merge_parts([counts.summarise_parts([rows])])
        sizes = {name: one.rows for name, one in parts.items()}
        counts.count_piece(rows, counts.AuditRequest(sizes, parts["test"].earliest))

    return count


KERNELS: dict[str, Callable[[], Work]] = {
    "ranks": ranks,
    "ranks@100": lambda: ranks(100),
    "lists": lists,
    "bootstrap": bootstrap,
    "labels": labels,
    "audit": audit,
}


# ------------------------------------------------------------------------------------ measuring


def measure_unit() -> float:
    """Time a fixed piece of work.

    The work is a product (arithmetic) and a sort (memory).
    """
    draws = np.random.default_rng(1)
    left, values = draws.random((700, 700)), draws.random(1_500_000)

    def work() -> None:
        for _ in range(4):
            left @ left
        np.sort(values)

    return harness.time_call(work)[0]


def measure_kernel(work: Work) -> dict[str, float]:
    """Measure one kernel in this process, in units and MiB.

    The fastest of three warm runs counts.
    """
    work()
    spent, units = [], []
    for _ in range(3):
        units.append(measure_unit())
        spent.append(harness.time_call(work)[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"units": min(spent) / min(units), "seconds": min(spent), "mib": peak}


def run_one(name: str) -> dict[str, float]:
    """Run one kernel in its own process.

    Libraries have one thread.
    """
    run = harness.run_process(
        [sys.executable, str(Path(__file__)), "--one", name], environment=harness.ONE_THREAD
    )
    if run.code:
        raise DataError(f"kernel {name} failed", run.errors[-800:])
    return harness.parse_rows(run)[-1]


def summarise_turns(runs: list[dict[str, float]]) -> dict[str, harness.Figure]:
    """Make a figure for each of a kernel's measures."""
    return {name: harness.make_figure([run[name] for run in runs]) for name in runs[0]}


# ------------------------------------------------------------------------------------ comparing

COMPARED_MEASURES = {"units": "time", "mib": "memory"}
"""Compared measures; seconds are only printed."""


def compare_figures(
    figures: dict[str, dict[str, harness.Figure]], earlier: dict[str, dict[str, list[float]]]
) -> tuple[list[str], list[str]]:
    """Describe each kernel's measures, and list the worse ones.

    A worse one exceeds the noise.
    """
    lines, worse = [], []
    for name, measured in figures.items():
        for measure, word in COMPARED_MEASURES.items():
            now = measured[measure]
            if measure not in earlier.get(name, {}):
                lines.append(f"{name:>10} {word:>7} {now.median:9.2f}  not kept yet")
                continue
            before = harness.Figure(*earlier[name][measure])
            allowed = max(now.noise + before.noise, MIN_NOISE)
            change = now.median / before.median - 1
            verdict = "worse" if change > allowed else "better" if change < -allowed else "as before"
            lines.append(
                f"{name:>10} {word:>7} {now.median:9.2f}  kept {before.median:9.2f}  {change:+6.1%}"
                f"  noise {allowed:5.1%}  {verdict}"
            )
            worse += [f"{word} of {name} ({change:+.0%})"] * (verdict == "worse")
    return lines, worse


def read_figures(path: Path) -> dict[str, Any]:
    """Read the kept figures, by processor and kernel.

    An older file has one processor's.
    """
    if not path.exists():
        raise ConfigError(f"no figures in {path}", "--keep writes them")
    document = json.loads(path.read_text())
    if "processor" in document:
        return {document["processor"]: document["figures"]}
    figures: dict[str, Any] = document["processors"]
    return figures


def write_figures(path: Path, figures: dict[str, dict[str, harness.Figure]]) -> None:
    """Write this processor's figures.

    Kernels that were not run and other processors keep theirs.
    """
    before, here = read_figures(path) if path.exists() else {}, describe_processor()
    rounded = {
        name: {measure: [round(x, 4) for x in one] for measure, one in measured.items()}
        for name, measured in figures.items()
    }
    processors = {**before, here: {**before.get(here, {}), **rounded}}
    path.write_text(json.dumps({"processors": processors}, indent=1) + "\n")
    print(f"kept in {path}: {', '.join(figures)}")


def describe_processor() -> str:
    """Name the processor and its number of threads."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else platform.processor() or platform.machine()}"


if __name__ == "__main__":
    cli.run(main, parser())
