"""Predict a model's cost pass by pass, and choose plans."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from recbench_spark.graphs.kernels import costs
from recbench_spark.graphs.kernels.forms import SCATTERABLE
from recbench_spark.graphs.machine_speed import NetworkCosts, free_memory
from recbench_spark.graphs.message_passing import Pass, PassPlan
from recbench_spark.graphs.model_inputs import PreparedGraphModel
from recbench_spark.graphs.runner import plan_passes
from recbench_spark.schemas import GRAPH_RUNS
from recbench_spark.storage.block_arrays import read_parts
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.host_files import LIMIT_VARIABLE

MAPPED_SHARE = 0.4
"""Memory share plan R may map on a host."""

MOST_RUNS = 200
"""Newest passes, to which rates are fitted."""

FREE_SHARE = 0.8
"""Share of free memory plan R may map.

Pages that do not fit are read from the disk again for each edge.
"""


@dataclass(frozen=True)
class PassEstimate:
    """The predicted cost of a pass under a plan.

    Attributes:
        step: the pass.
        plan: plan from the settings, or the chosen one.
        size: the pass's size.
        seconds: predicted wall time in seconds.
        low: lower end of the interval around `seconds`.
        high: upper end of the interval.
        tasks: tasks to run.
        moved: shuffled bytes, of vectors or sums.
        memory: bytes a worker holds, without its mapped files.
        fetched: bytes each host fetches from object storage; 0 on a folder.
        disk: local disk bytes each host needs at once for copies; 0 on a folder.
    """

    step: Pass
    plan: PassPlan
    size: costs.PassSize
    seconds: float
    low: float
    high: float
    tasks: int
    moved: int
    memory: int
    fetched: int = 0
    disk: int = 0


def pass_size(prepared: PreparedGraphModel, step: Pass, widths: tuple[int, int]) -> costs.PassSize:
    """Return a pass's size, for its cost estimate.

    Args:
        prepared: the model over its graph.
        step: the pass.
        widths: width before and after the pass.
    """
    graph, network, kind = prepared.graph, prepared.network, step.module.aggregator
    into, sources = graph.side_blocks(step.side), graph.side_blocks(step.sources)
    nodes, edges = sum(block.rows for block in into), sum(block.edges for block in into)
    needed, parts = sum(block.sources for block in into), sum(block.parts for block in into)
    counts = (nodes, edges, sum(block.rows for block in sources), needed, parts, len(into), len(sources))
    d, o = widths
    dims = (d, step.module.message_width(d), o, np.dtype(step.dtype).itemsize)
    kinds = (step.projects, kind == "gcn", step.kind == "layer")
    where = (network.hosts, network.seconds) if network else (0, costs.DEFAULT_FETCH_SECONDS)
    return costs.PassSize(*counts, *dims, *kinds, prepared.pace, graph.weighted, kind == "lstm", *where)


def estimate_passes(
    prepared: PreparedGraphModel, rates: costs.Rates, cores: int, plan: str
) -> list[PassEstimate]:
    """Predict each pass's cost and choose its plan.

    Nothing has run by then.
    """
    estimates = []
    d = read_parts(prepared.model.features).shape[1]
    for step in plan_passes(prepared.model, prepared.graph):
        o = step.width if step.kind == "layer" else step.module.message_width(d)
        size = pass_size(prepared, step, (d, o))
        estimates.append(_estimate_pass(step, size, rates, cores, plan, prepared=prepared))
        d = o if step.kind == "layer" else d
    return estimates


def _estimate_pass(
    step: Pass,
    size: costs.PassSize,
    rates: costs.Rates,
    cores: int,
    plan: str,
    *,
    prepared: PreparedGraphModel,
) -> PassEstimate:
    scattered = step.module.aggregator in SCATTERABLE
    item = 4 if step.target is not None and step.target.kind == "embeddings" else size.item
    copies = (step.out is not None) + (step.target is not None)
    costs.check_plan(plan, step.module.aggregator, scattered)
    if plan == "auto":
        limit = prepared.network.disk_bytes if prepared.network else None
        disk_bytes, mapped_bytes = math.inf if limit is None else limit, _mappable_bytes()
        most: dict[str, Any] = {"mapped_bytes": mapped_bytes, "disk_bytes": disk_bytes}
        plan = costs.choose_plan(size, rates, cores, item * copies, scattered, **most)
    amounts = size.amounts(plan, item * copies)
    seconds = rates.predict(amounts, cores)
    low, high = rates.interval(seconds)
    memory = size.worker_bytes(plan, prepared.model.batch)
    counted = size.bytes_moved(plan), memory, size.bytes_fetched(plan), size.bytes_held(plan)
    return PassEstimate(step, cast(PassPlan, plan), size, seconds, low, high, int(amounts.tasks), *counted)


def _mappable_bytes() -> int:
    """Return the message bytes this host can keep in memory."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min(pages * MAPPED_SHARE, free_memory(pages) * FREE_SHARE))


def fit_rates(store: FileTables) -> costs.Rates:
    """Fit rates to this warehouse's runs.

    With few runs the default rates are returned.
    """
    rows = store.rows(GRAPH_RUNS, columns=["amounts_json", "seconds", "cores", "started_at"])
    newest = sorted(rows, key=lambda row: row["started_at"], reverse=True)[:MOST_RUNS]
    amounts = (costs.Amounts(*json.loads(row["amounts_json"])) for row in newest)
    return costs.fit_rates(
        [(a, row["seconds"], row["cores"]) for a, row in zip(amounts, newest, strict=True)]
    )


def explain_costs(
    estimates: list[PassEstimate], prepared: PreparedGraphModel, rates: costs.Rates, cores: int
) -> str:
    """Format the predicted costs, one line for each pass.

    A line has plan, tasks, bytes, memory, seconds and core-hours.
    """
    graph = prepared.graph
    more = f"{'fetched':>12}{'disk':>12}" if prepared.network else ""
    lines = [
        f"model {prepared.model.model_id} over graph {graph.graph_id}: {graph.nodes:,} nodes, "
        f"{graph.edges:,} edges, {len(graph.blocks)} blocks, wire {prepared.model.dtype}",
        f"{'pass':<22}{'plan':<6}{'tasks':>6}{'moved':>12}{'a worker':>12}{more}"
        f"{'seconds':>10}{'from':>9}{'to':>9}",
    ]
    for one in estimates:
        name = f"{one.step.layer} {one.step.kind} {one.step.module.aggregator}"
        more = f"{format_bytes(one.fetched):>12}{format_bytes(one.disk):>12}" if prepared.network else ""
        lines.append(
            f"{name:<22}{one.plan:<6}{one.tasks:>6}{format_bytes(one.moved):>12}{format_bytes(one.memory):>12}"
            f"{more}{one.seconds:>10.2f}{one.low:>9.2f}{one.high:>9.2f}"
        )
    seconds, low, high = (sum(getattr(one, n) for one in estimates) for n in ("seconds", "low", "high"))
    hours = " to ".join(f"{value * cores / 3600:.4f}" for value in (low, high))
    lines.append(f"all: {seconds:.2f} s ({low:.2f} to {high:.2f}), {hours} core-hours on {cores} cores")
    basis = f"fitted to {rates.runs} runs of this warehouse" if rates.runs else "built in: no runs here yet"
    lines.append(f"rates: {basis}; intervals hold 19 times in 20{_describe_throughput(prepared)}")
    if prepared.network:
        lines.append(_describe_network(estimates, prepared.network))
    return "\n".join(lines)


def _describe_network(estimates: list[PassEstimate], network: NetworkCosts) -> str:
    """Describe what each host fetches from object storage.

    The local disk it needs is described too.
    """
    fetched, all_copies = (sum(getattr(one, what) for one in estimates) for what in ("fetched", "disk"))
    least = max((one.disk for one in estimates), default=0)
    limit = network.disk_bytes
    set_limit = f", of {format_bytes(limit)} that {LIMIT_VARIABLE} allows" if limit is not None else ""
    warning = "" if limit is None or least <= limit else "; it is too little, and objects are fetched again"
    return (
        f"object storage: each of {network.hosts} hosts fetches {format_bytes(fetched)} at "
        f"{format_bytes(round(1 / network.seconds))}/s ({network.source}); its local disk needs "
        f"{format_bytes(least)} at once and {format_bytes(all_copies)} if no copy is removed"
        f"{set_limit}{warning}"
    )


def _describe_throughput(prepared: PreparedGraphModel) -> str:
    """Describe the measured time to read a feature vector."""
    if prepared.pace == costs.DEFAULT_READ_SECONDS:
        return ""
    features = read_parts(prepared.model.features)
    seconds = prepared.pace * features.shape[1] * np.dtype(features.dtype).itemsize
    return f"; probe: {seconds * 1e9:.0f} ns of a core to take in a vector of features"


def format_bytes(n: int) -> str:
    """Format a byte count with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n = n / 1000  # type: ignore[assignment]
    return f"{n:.1f} TB"
