"""Run a model's layers over a graph, pass by pass.

A run that stopped is continued. Blocks are committed in groups. The driver holds a few numbers for each
block. A task holds the messages its block needs (plan G), a block of partial sums (S), or only its batch
(R). Vectors and adjacency are mapped, one object for each block: a lost executor costs the blocks it was
computing, and no others.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from recbench_spark.engine.pipes import collect_some
from recbench_spark.errors import ConfigError, StoreError
from recbench_spark.graphs.folders import HALO, SEPARATE, Graph, NodeBlock, Parts, publish_arrays
from recbench_spark.graphs.kernels.csr import build_halo
from recbench_spark.graphs.kernels.dense import Dense
from recbench_spark.graphs.kernels.forms import SCATTERABLE
from recbench_spark.graphs.kernels.layers import Layer
from recbench_spark.graphs.message_passing import (
    BlockResult,
    Pass,
    PassPlan,
    PassWork,
    ReusedFiles,
    Target,
    aggregate_messages,
    aggregate_replicated,
    aggregate_sums,
    message_width,
    output_width,
    project_messages,
    send_messages,
    send_sums,
)
from recbench_spark.graphs.vectors import (
    check_file,
    group_blocks,
    list_committed,
    number_files,
    read_vectors,
)
from recbench_spark.storage import block_arrays, delta_files
from recbench_spark.storage.block_arrays import ArrayPart
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.retries import commit_files


@dataclass(frozen=True)
class Model:
    """Layers with weights, and where a run reads and writes.

    Attributes:
        model_id: the model's name.
        layers: layers with their weights.
        output_layers: dense layers after the last one.
        mode: `projected` or `bipartite`.
        dtype: number type of stored and shuffled vectors.
        features: where the nodes' first vectors are (`block_arrays`).
        folder: folder for its files while it runs, a path or a URI.
        vectors: folder of the table with layer vectors.
        embeddings: folder of the embeddings table; None: the last layer's vectors are `vectors` too.
        batch: destinations computed together.
        group: blocks committed together; None: by the cores.
        reused: by layer and pass kind, arrays from the night before, under plan R; empty: all nodes
            are computed.
    """

    model_id: str
    layers: tuple[Layer, ...]
    output_layers: tuple[Dense, ...]
    mode: str
    dtype: str
    features: str
    folder: str
    vectors: str
    embeddings: str | None
    batch: int = 4096
    group: int | None = None
    reused: Mapping[tuple[int, str], ReusedFiles] = field(default_factory=dict)


class LayerRun(NamedTuple):
    """A finished pass: its work, its time.

    Attributes:
        layer: layer number.
        kind: layer or pool.
        aggregator: the layer's aggregator.
        plan: the pass's plan.
        nodes: destinations computed now, without those committed before.
        edges: aggregated edges.
        width: dimensions in a message.
        projected: vectors that went through a projection.
        shuffled: bytes received by tasks, in vectors or sums.
        seconds: wall time.
        started: start, in seconds since 1970.
    """

    layer: int
    kind: str
    aggregator: str
    plan: str
    nodes: int
    edges: int
    width: int
    projected: int
    shuffled: int
    seconds: float
    started: float


def plan_passes(model: Model, graph: Graph) -> list[Pass]:
    """Plan a model's passes; arrays between layers have numbers."""
    passes: list[Pass] = []
    h, last = model.features, len(model.layers)
    for k, layer in enumerate(model.layers, 1):
        width = layer.message_width(
            block_arrays.read_parts(h).shape[1] if k == 1 else model.layers[k - 2].width
        )
        projects = layer.project is not None
        z = f"{model.folder}/messages-{k}-{width}" if projects else h
        bipartite = model.mode == "bipartite"
        output_layers = model.output_layers if k == last else ()
        out = f"{model.folder}/layer-{k}" if k < last or bipartite else None
        target = _choose_target(model, k)
        base = Pass(k, "layer", None, None, layer, projects, h, z, model.dtype, output_layers, out, target)
        if bipartite:
            pools = f"{model.folder}/pools-{k}-{width}"
            pool = replace(base, kind="pool", side=0, sources=1, output_layers=(), out=pools, target=None)
            passes += [pool, replace(base, side=1, sources=0, projects=False, z=pools)]
        else:
            passes.append(base)
        h = out or h
    if model.mode == "bipartite":
        target = _choose_target(model, last + (model.embeddings is None))
        pooling = replace(model.layers[-1], project=None)  # second-side vectors into first-side ones
        passes.append(Pass(last + 1, "pool", 0, 1, pooling, False, h, h, model.dtype, target=target))
    return passes


def _choose_target(model: Model, layer: int) -> Target:
    if layer >= len(model.layers) and model.embeddings is not None:
        return Target(model.embeddings, {"model_id": model.model_id}, "embeddings")
    return Target(model.vectors, {"model_id": model.model_id, "layer": str(layer)}, "vectors")


class Pending(NamedTuple):
    """A pass, its blocks to compute, and other blocks' files."""

    step: Pass
    blocks: tuple[NodeBlock, ...]
    files: dict[int, str]


def find_pending(graph: Graph, step: Pass) -> Pending:
    """Find a pass's uncommitted blocks: all, without a table."""
    blocks = graph.side_blocks(step.side)
    if step.target is None:
        return Pending(step, blocks, {})
    files: dict[int, str] = {}
    for side in dict.fromkeys(block.side for block in blocks):
        first = next(block for block in blocks if block.side == side)
        partition = step.target.block_partition(graph, first)
        files |= list_committed(step.target.folder, partition, len(graph.blocks))
    return Pending(step, tuple(block for block in blocks if block.number not in files), files)


def run_model(
    engine: Engine,
    graph: Graph,
    model: Model,
    choose: Callable[[Pass], PassPlan],
    report: Callable[[LayerRun], None] = lambda _: None,
    *,
    record: Callable[[LayerRun], None] = lambda _: None,
) -> list[LayerRun]:
    """Run all passes of a model that are not done.

    A second run does nothing.

    Args:
        engine: the runner.
        graph: the graph on disk.
        model: the model with its weights.
        choose: returns the plan of a pass.
        report: called after each pass.
        record: called before the last vectors of a pass are committed, and again if that run was killed.
            So a complete pass always has its record.
    """
    done: list[LayerRun] = []
    if has_result(graph, model):  # retention may have removed the layers before the result
        check_result(engine, graph, model)
        return done
    steps = [find_pending(graph, step) for step in plan_passes(model, graph)]
    for number, todo in enumerate(steps):
        later = steps[number + 1 :]
        if not any(map(_has_work, (todo, *later))):
            break
        is_read = any(one.step.z == todo.step.out and one.blocks for one in later)
        if todo.step.target is None and not is_read:
            continue
        if not todo.blocks:
            _publish_output(graph, todo.step, _restore_blocks(engine, graph, todo))
            continue
        plan = "R" if model.reused else choose(todo.step)
        done.append(_run_recorded_pass(engine, graph, model, todo, plan, record=record))
        report(done[-1])
    return done


def has_result(graph: Graph, model: Model) -> bool:
    """Tell whether the table holds a model's whole result."""
    return not any(map(_has_work, _find_results(graph, model)))


def _find_results(graph: Graph, model: Model) -> Iterator[Pending]:
    last = (step for step in plan_passes(model, graph) if step.layer >= len(model.layers))
    return (find_pending(graph, step) for step in last)


def check_result(engine: Engine, graph: Graph, model: Model) -> None:
    """Compare the files of a model's result with their digests.

    Tasks read each file once.

    Raises:
        StoreError: a file is missing or damaged; the message names it.
    """
    files = {number: file for todo in _find_results(graph, model) for number, file in todo.files.items()}
    stored = [(block, files[block.number]) for block in graph.blocks if block.number in files]
    engine.parallelize(stored, max(1, len(stored))).foreach(check_file)


def _has_work(todo: Pending) -> bool:
    return bool(todo.blocks) and todo.step.target is not None


def _restore_blocks(engine: Engine, graph: Graph, todo: Pending) -> list[ArrayPart]:
    """Let tasks rewrite a pass's committed vectors to its output."""
    step, by_number = todo.step, {block.number: block for block in graph.blocks}
    files = [(by_number[number], file) for number, file in sorted(todo.files.items())]
    if step.out is None or not files:
        return []
    restore = partial(restore_block, place=step.out, width=output_width(step), dtype=step.dtype)
    return list(engine.parallelize(files, len(files)).map(restore).collect())


def restore_block(stored: tuple[NodeBlock, str], place: str, width: int, dtype: Any) -> ArrayPart:
    """Write a block's vectors from a table to an array.

    Args:
        stored: the block and its file.
        place: the array's path or URI.
        width: dimensions in a vector.
        dtype: number type.
    """
    block, file = stored
    with block_arrays.make_part(place, block.number, (block.rows, width), dtype, block.first) as maker:
        for _, vectors in read_vectors(file, block):
            maker.append(vectors.astype(dtype, copy=False))
    return maker.entry


def _publish_output(graph: Graph, step: Pass, parts: Iterable[ArrayPart]) -> None:
    if step.out is not None:
        block_arrays.publish_parts(step.out, parts, (graph.nodes, output_width(step)), step.dtype)


def _run_recorded_pass(
    engine: Engine,
    graph: Graph,
    model: Model,
    todo: Pending,
    plan: PassPlan,
    *,
    record: Callable[[LayerRun], None],
) -> LayerRun:
    """Run a pass, recorded before its last group is committed."""
    restored = _restore_blocks(engine, graph, todo)
    step, started, begun = todo.step, time.time(), time.monotonic()

    def summarise(results: list[BlockResult], projected: int) -> LayerRun:
        nodes, edges, received = (
            sum(getattr(one, name) for one in results) for name in ("nodes", "edges", "received")
        )
        counts = (nodes, edges, message_width(step), projected, received)
        seconds = time.monotonic() - begun
        return LayerRun(step.layer, step.kind, step.module.aggregator, plan, *counts, seconds, started)

    def record_early(results: list[BlockResult], projected: int) -> None:
        record(summarise(results, projected))

    more: dict[str, Any] = {"model": model, "restored": restored, "before_last": record_early}
    return summarise(*run_pass(engine, graph, step, todo.blocks, plan, **more))


def run_pass(
    engine: Engine,
    graph: Graph,
    step: Pass,
    blocks: Sequence[NodeBlock],
    plan: PassPlan,
    *,
    model: Model,
    restored: Sequence[ArrayPart] = (),
    before_last: Callable[[list[BlockResult], int], None] = lambda *_: None,
) -> tuple[list[BlockResult], int]:
    """Run one pass over some blocks, committed group by group.

    `restored` are the objects of blocks already committed. `before_last` is called with the returned
    values before the last group is committed.

    Returns:
        Block results, and the number of projected vectors.

    Raises:
        ConfigError: plan S with an aggregator whose sums cannot be combined.
    """
    if plan == "S" and step.module.aggregator not in SCATTERABLE:
        raise ConfigError(f"plan S does not support {step.module.aggregator}", "plan: G or R")
    reused = model.reused.get((step.layer, step.kind))
    work = PassWork(graph, step, model.batch, tuple(blocks), reused)
    results: list[BlockResult] = []
    size = model.group or 8 * engine.cores
    with ExitStack() as stack:
        start, projected = _prepare_tasks(engine, work, plan, stack)
        for group in group_blocks(blocks, size):
            group_results = start(group)
            results += group_results
            if group[-1] == blocks[-1]:
                before_last(results, projected)
            if step.target is not None:
                _commit_group(graph, step.target, group, group_results)
    parts = [result.part for result in results if result.part is not None]
    _publish_output(graph, step, [*restored, *parts])
    return results, projected


def _prepare_tasks(
    engine: Engine, work: PassWork, plan: PassPlan, stack: ExitStack
) -> tuple[Callable[[tuple[NodeBlock, ...]], list[BlockResult]], int]:
    """Project each vector once.

    Returns:
        A function that runs a group of blocks while `stack` is open, and the number of projected vectors.
    """
    graph, step = work.graph, work.step
    from_blocks = graph.side_blocks(step.sources)
    projected = sum(block.rows for block in from_blocks) if step.projects else 0
    if plan == "R":
        if step.projects:
            run_project = partial(project_messages, work=replace(work, destinations=()))
            blocks = engine.parallelize(from_blocks, len(from_blocks)).map(run_project).collect()
            projected = sum(block.nodes for block in blocks)
            shape = (graph.nodes, message_width(step))
            block_arrays.publish_parts(step.z, (block.part for block in blocks), shape, step.dtype)
        task = partial(aggregate_replicated, work=replace(work, destinations=()))
        return lambda group: engine.parallelize(group, len(group)).map(task).collect(), projected
    if plan == "G":
        make_halos(engine, graph)
    send, receive = (send_messages, aggregate_messages) if plan == "G" else (send_sums, aggregate_sums)
    sent = engine.parallelize(from_blocks, len(from_blocks)).mapPartitions(partial(send, work=work))
    shuffled = sent.partitionBy(len(work.destinations), int)
    if hasattr(shuffled, "hold"):  # Spark keeps RDDs' files itself
        shuffled = stack.enter_context(shuffled.hold())

    def run_group(group: tuple[NodeBlock, ...]) -> list[BlockResult]:
        """Aggregate a block group; the runner keeps what was sent."""
        places = [work.destinations.index(block) for block in group]
        return collect_some(shuffled.mapPartitionsWithIndex(partial(receive, work=work)), places)

    return run_group, projected


def make_halos(engine: Engine, graph: Graph) -> None:
    """Write the sources each block needs from others, once.

    Two runs at the same time write the same objects. Files from an earlier run are compared with their
    digests, and written again where they are damaged.
    """
    blocks = engine.parallelize(graph.blocks, len(graph.blocks))
    there = all(block_arrays.has_parts(graph.place(name)) for name in HALO)
    if there and all(blocks.map(partial(_has_whole_halo, graph=graph)).collect()):
        return
    written = blocks.map(partial(_make_halo, graph=graph)).collect()
    publish_arrays(graph.folder, written, dict.fromkeys(HALO, (SEPARATE, np.uint32)))


def _has_whole_halo(block: NodeBlock, graph: Graph) -> bool:
    return all(block_arrays.is_whole(graph.place(name), block.number) for name in HALO)


def _make_halo(block: NodeBlock, graph: Graph) -> Parts:
    halo = build_halo(graph.csr(block))._asdict()
    return {name: block_arrays.write_part(graph.place(name), block.number, halo[name]) for name in HALO}


def _commit_group(
    graph: Graph, target: Target, group: tuple[NodeBlock, ...], done: Sequence[BlockResult]
) -> None:
    """Commit a group's files once, all or none.

    Blocks that another run has committed, in groups of any size, are left out. Two runs that commit to
    one partition at the same time cannot both succeed: the slower one looks again.

    Raises:
        StoreError: another run's commit of these blocks was deleted since.
    """
    files = [result.file for result in done if result.file is not None]
    partition = target.block_partition(graph, group[0])
    delta_files.require_visible(target.folder, files)
    numbers = ",".join(str(block.number) for block in group)
    digest = hashlib.sha256(f"{len(graph.blocks)}:{numbers}".encode()).hexdigest()[:16]
    name = "/".join([*partition.values(), digest])
    select = partial(_leave_out_committed, partition=partition, blocks=len(graph.blocks))
    if commit_files(target.folder, files, partition, name, select):
        return
    there = list_committed(target.folder, partition, len(graph.blocks))
    if not {block.number for block in group} <= there.keys():
        raise StoreError(
            f"blocks of {dict(partition)} were committed before and have been deleted since",
            "Delta would take them for a repetition: use another seed of the model, or another warehouse",
        )


def _leave_out_committed(
    files: Sequence[delta_files.File], there: Sequence[str], partition: Mapping[str, str], blocks: int
) -> list[delta_files.File]:
    """Return the files of blocks that the table lacks."""
    present = number_files(there, partition, blocks)
    new = number_files([file.path for file in files], partition, blocks)
    wanted = {path for number, path in new.items() if number not in present}
    return [file for file in files if file.path in wanted]
