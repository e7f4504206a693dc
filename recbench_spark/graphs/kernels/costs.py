"""Predict the cost of a pass before it runs: bytes by counting, seconds by a line fitted to runs.

Seconds are a sum of amounts times rates, all rates at least 0 (non-negative least squares, Lawson and
Hanson 1974). Each run is weighted by 1 / its seconds, so that the relative error is minimised. One amount
is not only a count: a random read of a vector takes longer if the caches hold less of its file. So the
bytes that are read are scaled by the measured time to read a byte (`graphs/read_throughput.py`).

On object storage a host also fetches what its tasks read, at the speed of its network. That speed is known
before the runs (`graphs/network.py`), so its seconds are not fitted.
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
"""Most bytes of a new object that its writer holds."""

FRAME_BYTES = 120
"""Approximate bytes that Spark and pickle add to a value of a shuffle."""


class Amounts(NamedTuple):
    """Amounts are the work of a pass.

    Attributes:
        read: bytes of messages that are read edge by edge, scaled to DEFAULT_READ_SECONDS for each.
        flops: multiplications and additions of dense products.
        written: bytes of results, in files and table.
        moved: bytes that go through a shuffle.
        tasks: number of tasks.
        passes: 1.
        fetched: bytes that a host fetches from object storage, scaled to DEFAULT_FETCH_SECONDS for each; 0
            on a folder.
    """

    read: float
    flops: float
    written: float
    moved: float
    tasks: float
    passes: float
    fetched: float = 0.0


DEFAULT_SECONDS = Amounts(1 / 6e9, 1 / 35e9, 1 / 0.7e9, 1 / 0.25e9, 0.03, 0.4, 1 / 0.2e9)
"""Seconds of each amount on one core of a 2.5 GHz machine, used where no runs exist.

The cores share all but `passes` and `fetched`.
"""

DEFAULT_FETCH_SECONDS = DEFAULT_SECONDS.fetched
"""Seconds of a host to fetch a byte from object storage, assumed where nothing was measured."""

DEFAULT_READ_SECONDS = DEFAULT_SECONDS.read
"""Seconds of a core to read a byte of vectors, used where nothing was measured."""

UNKNOWN_FACTOR = 2.0
"""Factor of the interval on either side of a prediction without runs."""

FEWEST_RUNS = len(DEFAULT_SECONDS) - 1
"""Runs from which on rates are fitted: one for each rate that is fitted."""

LEAST_SHARE = 0.1
"""Least share of a run's seconds that must be left for its work when its bytes are taken off."""

LEAST_SPREAD = 0.1
"""Smallest relative half width of the interval."""


@dataclass(frozen=True)
class Rates:
    """Rates are the seconds of each amount, and the factor by which predictions were wrong."""

    seconds: Amounts
    factor: float
    runs: int

    def predict(self, amounts: Amounts, cores: int) -> float:
        """Return the predicted seconds of wall time."""
        *shared, passes, fetched = amounts
        work = sum(a * s for a, s in zip(shared, self.seconds[:-2], strict=True))
        return float(work / cores + passes * self.seconds.passes + fetched * self.seconds.fetched)

    def interval(self, seconds: float) -> tuple[float, float]:
        """Return the interval that holds the true seconds 19 times in 20, judging by the fitted runs."""
        return seconds / self.factor, seconds * self.factor


DEFAULT_RATES = Rates(DEFAULT_SECONDS, UNKNOWN_FACTOR, 0)


def fit_rates(runs: Sequence[tuple[Amounts, float, int]]) -> Rates:
    """Fit rates to runs: amounts, seconds, cores. With too few runs return DEFAULT_RATES.

    The factor is exp(2 s), with s the spread of the residuals in logarithms. Each rate takes a degree of
    freedom. The seconds of the network are taken off before; runs of which they leave little say nothing of
    the work, and are left out.
    """
    known = [
        (amounts, work, cores)
        for amounts, seconds, cores in runs
        if (work := seconds - amounts.fetched * DEFAULT_FETCH_SECONDS) > seconds * LEAST_SHARE
    ]
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
    """Return the blocks that need a vector of some degree: P (1 - (1 - 1/P)^degree).

    Edges go to blocks by hash.
    """
    return float(blocks * (1 - (1 - 1 / blocks) ** degree))


@dataclass(frozen=True)
class PassSize:
    """PassSize describes a pass for the prediction of its cost.

    Attributes:
        nodes: destinations.
        edges: edges into them.
        sources: nodes that may send.
        needed: distinct sources, summed over blocks of destinations.
        parts: pairs of a destination and a block of sources.
        blocks: blocks of destinations.
        source_blocks: blocks of sources.
        d: dimensions of a node's own vector.
        m: dimensions of a message.
        o: dimensions of a new vector.
        item: bytes of a stored number.
        projects: true if messages are projected.
        own: true if a node's own message is needed (GCN).
        combines: true if there are dense products at the destination.
        pace: seconds of a core to read a byte of messages, as measured.
        weighted: true if edges have weights.
        ordered: true if the hashes of all sources are read (LSTM).
        hosts: hosts that fetch what their tasks read from object storage; 0: files are on a folder.
        network: seconds of a host to fetch a byte, as measured or set.
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
        """Return the bytes of the shuffle: vectors (G), float32 sums with their places (S), nothing (R)."""
        own = self.nodes * self.m * self.item if self.own and plan != "R" else 0
        if plan == "G":
            return self.needed * self.m * self.item + own
        return self.parts * (4 * self.m + 4) + own if plan == "S" else 0

    def flops(self) -> float:
        """Return the multiplications and additions of all dense products."""
        projected = 2.0 * self.sources * self.d * self.m if self.projects else 0.0
        return projected + (2.0 * self.nodes * (self.d + self.m) * self.o if self.combines else 0.0)

    def bytes_fetched(self, plan: str) -> int:
        """Return the bytes that each host fetches from object storage; 0 on a folder.

        Under R this is the whole of the messages, without the share that the host made itself where they
        are projected. Adjacency, features and vectors of the layer before count whole: they may be older
        than the hosts.
        """
        if not self.hosts:
            return 0
        messages = self._message_bytes() if plan == "R" else 0
        own = messages // self.hosts if self.projects else 0
        return messages - own + self._block_bytes(plan)

    def bytes_held(self, plan: str) -> int:
        """Return the bytes of local disk that each host needs at once; 0 on a folder.

        They are the copies that its tasks map, and the new vectors, which stay as copies too.
        """
        if not self.hosts:
            return 0
        messages = self._message_bytes() if plan == "R" else 0
        return messages + self._block_bytes(plan) + self.nodes * self.o * self.item // self.hosts

    def _message_bytes(self) -> int:
        """Return the bytes of the messages of all sources."""
        return self.sources * self.m * self.item

    def _block_bytes(self, plan: str) -> int:
        """Return the bytes that tasks of a host read of blocks, apart from messages under R.

        Vectors are those of a host's own blocks. Tasks that send read of all destinations the sources
        that these need (G), or the edges (S).
        """
        graph = self.edges * (4 + 4 * self.weighted) + 8 * self.nodes
        hashes = 8 * (self.sources * self.hosts * self.ordered + self.nodes)
        sent = self.sources * self.d * self.item if self.projects else self._message_bytes()
        before = 0 if plan == "R" and not self.projects else sent
        own = self.nodes * self.d * self.item if self.combines else 0
        halo = 4 * self.edges if plan == "G" else 0
        whole = {"G": 4 * self.needed, "S": graph}.get(plan, 0)
        shared = (0 if plan == "S" else graph) + hashes + before + own + halo
        return whole + -(-shared // self.hosts)

    def amounts(self, plan: str, item_out: int) -> Amounts:
        """Return the work of the pass under a plan."""
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
            self.bytes_fetched(plan) * self.network / DEFAULT_FETCH_SECONDS,
        )

    def worker_bytes(self, plan: str, batch: int) -> int:
        """Return the bytes of memory of a task without mapped files.

        These are its batch, what it sends or has received, and on object storage what is on its way.
        """
        kept = batch * (self.d + 2 * self.m + 2 * self.o) * 4 + self._bytes_on_the_way(plan)
        if plan == "R":
            return kept
        return kept + max(self._bytes_to_send(plan), self._bytes_to_receive(plan))

    def _bytes_on_the_way(self, plan: str) -> int:
        """Return the bytes that a task holds of objects that it fetches, and of the file that it writes.

        Under R it fetches the messages of several blocks at once. It has fetched before it writes, but
        Arrow keeps for later what it has freed.
        """
        if not self.hosts:
            return 0
        piece = min(_share(self.sources, self.source_blocks) * self.m * self.item, CHUNK_BYTES)
        at_once = min(self.source_blocks, FETCHES_AT_ONCE) if plan == "R" else 1
        return piece * at_once + min(_share(self.nodes, self.blocks) * self.o * 4, UPLOAD_BYTES)

    def _bytes_to_send(self, plan: str) -> int:
        """Return the bytes of a task that sends: its messages, and packets until all of them are made.

        Spark pickles one packet after the other, so one is there as an array, as bytes and pickled.
        """
        block = _share(self.sources, self.source_blocks) * self.m * self.item
        packets = _share(self._packet_bytes(plan), self.source_blocks)
        return block * (self.projects + self.own) + packets + 2 * _share(packets, self.blocks)

    def _bytes_to_receive(self, plan: str) -> int:
        """Return the bytes of a task that receives.

        Under G the vectors are there as packets and as one array. Under S there are all packets, the sums,
        and what one packet adds to them.
        """
        rows, packets = _share(self.nodes, self.blocks), _share(self._packet_bytes(plan), self.blocks)
        own = 2 * rows * self.m * self.item if self.own else 0
        if plan == "G":
            return 2 * packets + own
        return packets + own + rows * self.m * 4 + 2 * _share(packets, self.source_blocks)

    def _packet_bytes(self, plan: str) -> int:
        """Return the bytes of all packets of a shuffle, without the destinations' own messages."""
        return self.needed * self.m * self.item if plan == "G" else self.parts * (4 * self.m + 4)


def _share(total: int, blocks: int) -> int:
    """Return the part of a block, rounded up."""
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
    """Return the plan with the least predicted seconds.

    Args:
        size: size of the pass.
        rates: fitted rates.
        cores: tasks that run at once.
        item_out: bytes of a new number.
        scattered: true if partial aggregates can be combined.
        mapped_bytes: bytes that a host can map at once; under R the messages must fit.
        disk_bytes: bytes of copies that a host can hold; under R all that it maps must fit.
    """
    fits = size.sources * size.m * size.item <= mapped_bytes and size.bytes_held("R") <= disk_bytes
    plans = ["R"] if fits else []
    plans += ["G", "S"] if scattered else ["G"]
    return min(plans, key=lambda plan: rates.predict(size.amounts(plan, item_out), cores))


def check_plan(plan: str, aggregator: str, scattered: bool) -> None:
    """Raise ConfigError if a plan does not support an aggregator."""
    if plan == "S" and not scattered:
        raise ConfigError(f"plan S does not support {aggregator}", "plan: G or R (--plan)")
