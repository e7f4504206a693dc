"""What a pass over a graph costs, before it runs: bytes by counting, seconds by a line fitted to runs.

Seconds are a sum of amounts times rates, all rates at least 0 (non-negative least squares, Lawson and
Hanson 1974), each run weighed by 1 / its seconds, so that the error that is made small is relative. One
amount is no count: a vector read at random takes longer the less of its file the caches hold, so bytes
that are read weigh what a probe (`graph/read_throughput.py`) found them to take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recbench_spark.errors import ConfigError

FRAME_BYTES = 120
"""Bytes that Spark and pickle add to a value of a shuffle, about."""


class Amounts(NamedTuple):
    """What a pass has to do.

    Attributes:
        read: bytes of messages taken in, an edge at a time, as many as take as long at the pace PACE.
        flops: multiplications and additions of dense products.
        written: bytes that come out, in files and table.
        moved: bytes that go through a shuffle.
        tasks: their number.
        passes: 1.
    """

    read: float
    flops: float
    written: float
    moved: float
    tasks: float
    passes: float


DEFAULT_SECONDS = Amounts(1 / 6e9, 1 / 35e9, 1 / 0.7e9, 1 / 0.25e9, 0.03, 0.4)
"""Of one core of a 2.5 GHz machine, where no runs were measured: passes whole, the rest shared by cores."""

DEFAULT_READ_SECONDS = DEFAULT_SECONDS.read
"""Seconds a byte of a core that takes vectors in, where no probe was made."""

UNKNOWN_FACTOR = 2.0
"""Factor either side of a prediction that rests on no runs."""

FEWEST_RUNS = len(DEFAULT_SECONDS)

LEAST_SPREAD = 0.1
"""The interval is at least this share either side."""


@dataclass(frozen=True)
class Rates:
    """Seconds of each amount, and by what factor predictions were off."""

    seconds: Amounts
    factor: float
    runs: int

    def predict(self, amounts: Amounts, cores: int) -> float:
        """Seconds of wall time."""
        *shared, passes = amounts
        work = sum(a * s for a, s in zip(shared, self.seconds[:-1], strict=True))
        return float(work / cores + passes * self.seconds.passes)

    def interval(self, seconds: float) -> tuple[float, float]:
        """Where the truth lies 19 times in 20, as the runs fitted to have it."""
        return seconds / self.factor, seconds * self.factor


DEFAULT_RATES = Rates(DEFAULT_SECONDS, UNKNOWN_FACTOR, 0)


def fit_rates(runs: Sequence[tuple[Amounts, float, int]]) -> Rates:
    """Rates from runs: amounts, seconds, cores; DEFAULT where there are too few.

    The factor is exp(2 s) of the residuals' spread s in logarithms, a degree of freedom for each rate.
    """
    if len(runs) < FEWEST_RUNS:
        return DEFAULT_RATES
    rows = np.array([[*(a / cores for a in amounts[:-1]), amounts.passes] for amounts, _, cores in runs])
    took = np.array([seconds for _, seconds, _ in runs])
    scaled = rows / took[:, None]
    sizes = np.where(scaled.max(axis=0) > 0, scaled.max(axis=0), 1)
    from scipy.optimize import nnls  # noqa: PLC0415 (half a second that few need)

    rates, _ = nnls(scaled / sizes, np.ones(len(runs)))
    rates = rates / sizes
    ratios = np.log(np.maximum(rows @ rates, 1e-9) / took)
    free = max(1, len(runs) - int(np.count_nonzero(rates)))
    spread = math.sqrt(float((ratios**2).sum()) / free)
    return Rates(
        Amounts(*map(float, rates)), math.exp(max(2 * spread, math.log1p(LEAST_SPREAD))), len(runs)
    )


def expected_copies(blocks: int, degree: float) -> float:
    """Blocks that need a vector of so many edges, dealt to blocks by hash: P (1 - (1 - 1/P)^degree)."""
    return float(blocks * (1 - (1 - 1 / blocks) ** degree))


@dataclass(frozen=True)
class PassSize:
    """A pass as its cost sees it.

    Attributes:
        nodes: destinations.
        edges: into them.
        sources: nodes that may send.
        needed: distinct sources, summed over blocks of destinations.
        parts: pairs of a destination and a block of sources.
        blocks: of destinations; `source_blocks` of sources.
        d: dimensions of a node's own vector.
        m: of a message.
        o: of what comes out.
        item: bytes of a stored number.
        projects: whether messages are projected.
        own: whether a node's own message is needed (GCN).
        combines: whether there are dense products at the destination.
        pace: seconds of a core to take in a byte of messages, by a probe.
    """

    nodes: int
    edges: int
    sources: int
    needed: int
    parts: int
    blocks: int
    source_blocks: int
    d: int
    m: int
    o: int
    item: int
    projects: bool
    own: bool
    combines: bool
    pace: float = DEFAULT_READ_SECONDS

    def bytes_moved(self, plan: str) -> int:
        """Payload of the shuffle: vectors (G), float32 sums with their places (S), nothing (R)."""
        own = self.nodes * self.m * self.item if self.own and plan != "R" else 0
        if plan == "G":
            return self.needed * self.m * self.item + own
        return self.parts * (4 * self.m + 4) + own if plan == "S" else 0

    def flops(self) -> float:
        """Of all dense products."""
        projected = 2.0 * self.sources * self.d * self.m if self.projects else 0.0
        return projected + (2.0 * self.nodes * (self.d + self.m) * self.o if self.combines else 0.0)

    def amounts(self, plan: str, item_out: int) -> Amounts:
        """What it has to do under a plan."""
        messages = self.sources * self.m * self.item if self.projects and plan == "R" else 0
        framed = self.blocks * self.source_blocks * FRAME_BYTES if plan != "R" else 0
        tasks = self.blocks + (self.source_blocks if plan != "R" or self.projects else 0)
        return Amounts(
            float(self.edges) * self.m * self.item * self.pace / DEFAULT_READ_SECONDS,
            self.flops(),
            float(self.nodes) * self.o * item_out + messages,
            float(self.bytes_moved(plan) + framed),
            float(tasks),
            1.0 + (plan != "R" or self.projects),
        )

    def worker_bytes(self, plan: str, batch: int) -> int:
        """Memory of a task, mapped files apart: what it gathers or sums, and its batch."""
        batches = batch * (self.d + 2 * self.m + 2 * self.o) * 4
        rows = -(-self.nodes // max(self.blocks, 1))
        if plan == "G":
            sent = -(-self.sources // max(self.source_blocks, 1)) * self.m * self.item
            return batches + max(2 * -(-self.needed // self.blocks) * self.m * self.item, 2 * sent)
        return batches + (2 * rows * 4 * self.m if plan == "S" else 0)


def choose_plan(
    size: PassSize, rates: Rates, cores: int, item_out: int, scattered: bool, mapped_bytes: int
) -> str:
    """The plan of least predicted seconds.

    Args:
        size: of the pass.
        rates: fitted.
        cores: tasks at once.
        item_out: bytes of a number that comes out.
        scattered: whether the aggregator can be taken apart.
        mapped_bytes: that a host can map at once; R needs the messages within.
    """
    plans = ["R"] if size.sources * size.m * size.item <= mapped_bytes else []
    plans += ["G", "S"] if scattered else ["G"]
    return min(plans, key=lambda plan: rates.predict(size.amounts(plan, item_out), cores))


def check_plan(plan: str, aggregator: str, scattered: bool) -> None:
    """ConfigError where a plan cannot do an aggregator."""
    if plan == "S" and not scattered:
        raise ConfigError(f"plan S cannot take {aggregator} apart", "plan: G or R (--plan)")
