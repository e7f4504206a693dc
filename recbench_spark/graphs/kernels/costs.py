"""Predict bytes and seconds of a pass before it runs.

Bytes are counted; seconds come from a line fitted to earlier runs: amounts times rates, all rates at
least 0 (non-negative least squares, Lawson and Hanson 1974). Each run is weighted by 1 / its seconds, to
minimise the relative error.

One amount is more than a count: a random read of a vector takes longer when the caches hold less of its
file. So the bytes read are scaled by the measured seconds per byte (`graphs/machine_speed.py`).

On object storage a host also fetches what its tasks read, at the speed of its network. This speed is
measured before the runs, so it is not fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recbench_spark.core.transfer_sizes import CHUNK_BYTES, FETCHES_AT_ONCE, PART_BYTES, PARTS_AT_ONCE
from recbench_spark.errors import ConfigError

UPLOAD_BYTES = PART_BYTES * (PARTS_AT_ONCE + 1)
"""Most bytes a writer holds for a new object."""

FRAME_BYTES = 120
"""Bytes that Spark and pickle add to a shuffled value, approximately."""


class Amounts(NamedTuple):
    """The work of a pass, which decides its seconds.

    Attributes:
        read: message bytes read edge by edge, scaled to DEFAULT_READ_SECONDS for each.
        flops: multiplications and additions in dense products.
        written: result bytes, in files and table.
        moved: bytes through a shuffle.
        tasks: number of tasks.
        passes: 1.
        fetched: bytes a host fetches from object storage, scaled to DEFAULT_FETCH_SECONDS for each; 0 on
            a folder.
    """

    read: float
    flops: float
    written: float
    moved: float
    tasks: float
    passes: float
    fetched: float = 0.0


DEFAULT_SECONDS = Amounts(1 / 6e9, 1 / 35e9, 1 / 0.7e9, 1 / 0.25e9, 0.03, 0.4, 1 / 0.2e9)
"""Seconds per amount on one 2.5 GHz core, without earlier runs.

The cores share all but `passes` and `fetched`.
"""

DEFAULT_FETCH_SECONDS = DEFAULT_SECONDS.fetched
"""Seconds a host needs to fetch a byte, where nothing was measured."""

DEFAULT_READ_SECONDS = DEFAULT_SECONDS.read
"""Seconds a core needs to read a byte, where nothing was measured."""

UNKNOWN_FACTOR = 2.0
"""Factor of the interval on either side when there are no runs."""

FEWEST_RUNS = len(DEFAULT_SECONDS) - 1
"""Fewest runs to fit rates to: one for each rate."""

LEAST_SHARE = 0.1
"""Least share of a run's seconds left after fetching.

A run with less says too little about its other work.
"""

LEAST_SPREAD = 0.1
"""Smallest relative half width of the interval."""


@dataclass(frozen=True)
class Rates:
    """Seconds per amount, and how far predictions were wrong."""

    seconds: Amounts
    factor: float
    runs: int

    def predict(self, amounts: Amounts, cores: int) -> float:
        """Predict seconds of wall time."""
        *shared, passes, fetched = amounts
        work = sum(a * s for a, s in zip(shared, self.seconds[:-2], strict=True))
        return float(work / cores + passes * self.seconds.passes + fetched * self.seconds.fetched)

    def interval(self, seconds: float) -> tuple[float, float]:
        """Return the interval around a prediction.

        The interval holds the true seconds 19 times in 20, judging by the fitted runs.
        """
        return seconds / self.factor, seconds * self.factor


DEFAULT_RATES = Rates(DEFAULT_SECONDS, UNKNOWN_FACTOR, 0)


def fit_rates(runs: Sequence[tuple[Amounts, float, int]]) -> Rates:
    """Fit rates to runs (amounts, seconds, cores).

    With too few runs the result is DEFAULT_RATES. The factor is exp(2 s), where s is the spread of the
    residuals in logarithms; each rate takes a degree of freedom. Network seconds are taken off before. A
    run with little left says nothing about the work and is left out.
    """
    worked = ((run, seconds - run.fetched * DEFAULT_FETCH_SECONDS, seconds, n) for run, seconds, n in runs)
    known = [(run, work, n) for run, work, seconds, n in worked if work > seconds * LEAST_SHARE]
    if len(known) < FEWEST_RUNS:
        return DEFAULT_RATES
    rows = np.array([[*(a / cores for a in amounts[:-2]), amounts.passes] for amounts, _, cores in known])
    took = np.array([work for _, work, _ in known])
    scaled = rows / took[:, None]
    sizes = np.where(scaled.max(axis=0) > 0, scaled.max(axis=0), 1)
    from scipy.optimize import nnls  # noqa: PLC0415 (takes half a second, and few runs need it)

    rates, _ = nnls(scaled / sizes, np.ones(len(known)))
    rates = rates / sizes
    ratios = np.log(np.maximum(rows @ rates, 1e-9) / took)
    free = max(1, len(known) - int(np.count_nonzero(rates)))
    spread = math.sqrt(float((ratios**2).sum()) / free)
    factor = math.exp(max(2 * spread, math.log1p(LEAST_SPREAD)))
    fitted = Amounts(*map(float, rates))._replace(fetched=DEFAULT_FETCH_SECONDS)
    return Rates(fitted, factor, len(known))


def expected_copies(blocks: int, degree: float) -> float:
    """Return the expected number of blocks that need a vector.

    The number is P (1 - (1 - 1/P)^degree), since edges go to blocks by hash.
    """
    return float(blocks * (1 - (1 - 1 / blocks) ** degree))


@dataclass(frozen=True)
class PassSize:
    """The counts that predict the cost of a pass.

    Attributes:
        nodes: destinations.
        edges: edges into them.
        sources: nodes that may send.
        needed: distinct sources, summed over destination blocks.
        parts: pairs (destination, source block).
        blocks: destination blocks.
        source_blocks: source blocks.
        d: dimensions in a node's own vector.
        m: dimensions in a message.
        o: dimensions in a new vector.
        item: bytes per stored number.
        projects: true if messages are projected.
        own: true if a node's own message is needed (GCN).
        combines: true if destinations compute dense products.
        pace: seconds a core needs per message byte, as measured.
        weighted: true if edges have weights.
        ordered: true if the hashes of all sources are read (LSTM).
        hosts: hosts that fetch their tasks' input from object storage; 0: files are in a folder.
        network: seconds a host needs to fetch a byte, as measured or set.
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
    weighted: bool = False
    ordered: bool = False
    hosts: int = 0
    network: float = DEFAULT_FETCH_SECONDS

    def bytes_moved(self, plan: str) -> int:
        """Count the shuffled bytes under a plan.

        G sends vectors, S float32 sums with their places, R nothing.
        """
        own = self.nodes * self.m * self.item if self.own else 0
        return 0 if plan == "R" else self._packet_bytes(plan) + own

    def flops(self) -> float:
        """Count multiplications and additions in all dense products."""
        projected = 2.0 * self.sources * self.d * self.m if self.projects else 0.0
        return projected + (2.0 * self.nodes * (self.d + self.m) * self.o if self.combines else 0.0)

    def bytes_fetched(self, plan: str) -> int:
        """Count the bytes each host fetches from object storage.

        The result is 0 on a folder. Under R a host fetches all messages, except the share it made itself
        where messages are projected. Adjacency, features and vectors of the layer before count whole:
        they may be older than the hosts.
        """
        if not self.hosts:
            return 0
        messages = self.message_bytes if plan == "R" else 0
        own = messages // self.hosts if self.projects else 0
        return messages - own + self._block_bytes(plan)

    def bytes_held(self, plan: str) -> int:
        """Count the local disk bytes each host needs at once.

        The result is 0 on a folder. Counted are the copies its tasks map, and the new vectors, which stay
        as copies too.
        """
        if not self.hosts:
            return 0
        messages = self.message_bytes if plan == "R" else 0
        return messages + self._block_bytes(plan) + self.nodes * self.o * self.item // self.hosts

    @property
    def message_bytes(self) -> int:
        """Bytes of all sources' messages."""
        return self.sources * self.m * self.item

    def _block_bytes(self, plan: str) -> int:
        """Count the block bytes a host's tasks read.

        Messages under R are not counted. Vectors are those of a host's own blocks. Tasks that send also
        read, for all destinations, the needed sources (G) or the edges (S).
        """
        graph = self.edges * (4 + 4 * self.weighted) + 8 * self.nodes
        hashes = 8 * (self.sources * self.hosts * self.ordered + self.nodes)
        sent = self.sources * self.d * self.item if self.projects else self.message_bytes
        before = 0 if plan == "R" and not self.projects else sent
        own = self.nodes * self.d * self.item if self.combines else 0
        halo = 4 * self.edges if plan == "G" else 0
        whole = {"G": 4 * self.needed, "S": graph}.get(plan, 0)
        shared = (0 if plan == "S" else graph) + hashes + before + own + halo
        return whole + -(-shared // self.hosts)

    def amounts(self, plan: str, item_out: int) -> Amounts:
        """Return the pass's amounts under a plan."""
        messages = self.message_bytes if self.projects and plan == "R" else 0
        framed = self.blocks * self.source_blocks * FRAME_BYTES if plan != "R" else 0
        tasks = self.blocks + (self.source_blocks if plan != "R" or self.projects else 0)
        return Amounts(
            float(self.edges) * self.m * self.item * self.pace / DEFAULT_READ_SECONDS,
            self.flops(),
            float(self.nodes) * self.o * item_out + messages,
            float(self.bytes_moved(plan) + framed),
            float(tasks),
            1.0 + (plan != "R" or self.projects),
            self.bytes_fetched(plan) * self.network / DEFAULT_FETCH_SECONDS,
        )

    def worker_bytes(self, plan: str, batch: int) -> int:
        """Count a task's memory bytes, without mapped files.

        Counted are its batch, the packets it sends or has received, and on object storage the bytes on
        their way.
        """
        kept = batch * (self.d + 2 * self.m + 2 * self.o) * 4 + self._bytes_on_the_way(plan)
        if plan == "R":
            return kept
        return kept + max(self._bytes_to_send(plan), self._bytes_to_receive(plan))

    def _bytes_on_the_way(self, plan: str) -> int:
        """Count bytes in transit: objects to fetch, file to write.

        Under R a task fetches the messages of several blocks at once. It has fetched before it writes,
        but Arrow keeps freed memory for later.
        """
        if not self.hosts:
            return 0
        piece = min(_share(self.sources, self.source_blocks) * self.m * self.item, CHUNK_BYTES)
        at_once = min(self.source_blocks, FETCHES_AT_ONCE) if plan == "R" else 1
        return piece * at_once + min(_share(self.nodes, self.blocks) * self.o * 4, UPLOAD_BYTES)

    def _bytes_to_send(self, plan: str) -> int:
        """Count a sending task's bytes: messages, and packets.

        The task holds all packets until the last one is made. Spark pickles one packet after the other, so
        one of them exists as an array, as bytes and pickled.
        """
        block = _share(self.sources, self.source_blocks) * self.m * self.item
        packets = _share(self._packet_bytes(plan), self.source_blocks)
        return block * (self.projects + self.own) + packets + 2 * _share(packets, self.blocks)

    def _bytes_to_receive(self, plan: str) -> int:
        """Count a receiving task's bytes.

        Under G the vectors exist as packets and as one array. Under S there are all packets, the sums,
        and what one packet adds to them.
        """
        rows, packets = _share(self.nodes, self.blocks), _share(self._packet_bytes(plan), self.blocks)
        own = 2 * rows * self.m * self.item if self.own else 0
        if plan == "G":
            return 2 * packets + own
        return packets + own + rows * self.m * 4 + 2 * _share(packets, self.source_blocks)

    def _packet_bytes(self, plan: str) -> int:
        """Count the bytes of all shuffled packets.

        The destinations' own messages are not counted.
        """
        return self.needed * self.m * self.item if plan == "G" else self.parts * (4 * self.m + 4)


def _share(total: int, blocks: int) -> int:
    """Return one block's share, rounded up."""
    return -(-total // max(blocks, 1))


def choose_plan(
    size: PassSize,
    rates: Rates,
    cores: int,
    item_out: int,
    scattered: bool,
    *,
    mapped_bytes: int,
    disk_bytes: float = math.inf,
) -> str:
    """Choose the plan with the least predicted seconds.

    Args:
        size: size of the pass.
        rates: fitted rates.
        cores: tasks at once.
        item_out: bytes per new number.
        scattered: true if partial aggregates can be combined.
        mapped_bytes: bytes a host can map at once; under R the messages must fit.
        disk_bytes: bytes a host can hold as copies; under R all mapped files must fit.
    """
    fits = size.message_bytes <= mapped_bytes and size.bytes_held("R") <= disk_bytes
    plans = ["R"] if fits else []
    plans += ["G", "S"] if scattered else ["G"]
    return min(plans, key=lambda plan: rates.predict(size.amounts(plan, item_out), cores))


def check_plan(plan: str, aggregator: str, scattered: bool) -> None:
    """Raise ConfigError if a plan does not support an aggregator."""
    if plan == "S" and not scattered:
        raise ConfigError(f"plan S does not support {aggregator}", "plan: G or R (--plan)")
