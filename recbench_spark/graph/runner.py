"""Layer after layer over a laid-out graph: a pass a layer, committed by groups of blocks, begun again where
it stopped.

The driver holds a few numbers a block. A task holds the messages that its block needs (G), a block of
partial sums (S), or nothing but its batch (R); vectors and adjacency are mapped files.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pyspark import RDD, SparkContext

from recbench_spark.errors import ConfigError, StoreError
from recbench_spark.graph.folders import Graph, NodeBlock, create_matrix, map_array, map_writable
from recbench_spark.graph.message_passing import (
    BlockResult,
    Pass,
    PassPlan,
    PassWork,
    ReusedFiles,
    Target,
    aggregate_messages,
    aggregate_replicated,
    aggregate_sums,
    project_messages,
    send_messages,
    send_sums,
)
from recbench_spark.graph.vectors import group_blocks, list_committed, read_vectors
from recbench_spark.kernels.graph.dense import Dense
from recbench_spark.kernels.graph.forms import SCATTERABLE
from recbench_spark.kernels.graph.layers import Layer
from recbench_spark.storage import delta_files

MOST_COMMIT_TRIES = 5
"""Times that a commit is tried when another writer was faster."""


@dataclass(frozen=True)
class Model:
    """A model with its weights, over a laid-out graph.

    Attributes:
        model_id: its name.
        layers: with their weights.
        ends: dense layers after the last one.
        mode: `projected` or `bipartite`.
        dtype: of stored vectors and of those on the wire.
        features: file of the nodes' first vectors.
        folder: for its files while it runs.
        vectors: folder of the table of layers' vectors.
        embeddings: folder of the table of embeddings; None: the last layer's vectors are `vectors` too.
        batch: destinations worked on at once.
        group: blocks committed together; None: by the number of cores.
        kept: by layer and kind of pass, what is taken over from the night before, under plan R; empty: all
            is computed.
    """

    model_id: str
    layers: tuple[Layer, ...]
    ends: tuple[Dense, ...]
    mode: str
    dtype: str
    features: str
    folder: str
    vectors: str
    embeddings: str | None
    batch: int = 4096
    group: int | None = None
    kept: Mapping[tuple[int, str], ReusedFiles] = field(default_factory=dict)


class LayerRun(NamedTuple):
    """What a pass did.

    Attributes:
        layer: its number.
        kind: layer or pool.
        aggregator: of the layer.
        plan: of the pass.
        nodes: destinations computed now; those committed before are not.
        edges: aggregated over.
        width: of a message.
        projected: vectors that went through a projection.
        shuffled: bytes of vectors or sums that tasks received.
        seconds: wall time.
        started: when it began, seconds since 1970.
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
    """The passes of a model, in order; files of the layers between are named by number."""
    found: list[Pass] = []
    h, last = model.features, len(model.layers)
    for k, layer in enumerate(model.layers, 1):
        width = layer.message_width(map_array(Path(h)).shape[1] if k == 1 else model.layers[k - 2].width)
        projects = layer.project is not None
        z = f"{model.folder}/messages-{k}-{width}.npy" if projects else h
        bipartite = model.mode == "bipartite"
        ends = model.ends if k == last else ()
        out = f"{model.folder}/layer-{k}.npy" if k < last or bipartite else None
        target = _choose_target(model, k)
        base = Pass(k, "layer", None, None, layer, projects, h, z, model.dtype, ends, out, target)
        if bipartite:
            boards = f"{model.folder}/pools-{k}-{width}.npy"
            pool = replace(base, kind="pool", side=0, sources=1, ends=(), out=boards, target=None)
            found += [pool, replace(base, side=1, sources=0, projects=False, z=boards)]
        else:
            found.append(base)
        h = out or h
    if model.mode == "bipartite":
        last_width = len(model.ends[-1].bias) if model.ends else model.layers[-1].width
        assert last_width
        target = _choose_target(model, last + (model.embeddings is None))
        found.append(
            Pass(
                last + 1,
                "pool",
                0,
                1,
                _make_pooling_layer(model),
                False,
                h,
                h,
                model.dtype,
                (),
                None,
                target,
            )
        )
    return found


def _make_pooling_layer(model: Model) -> Layer:
    """How nodes of the first side get their vectors: as pools of those of the second one."""
    return replace(model.layers[-1], project=None)


def _choose_target(model: Model, layer: int) -> Target:
    if layer >= len(model.layers) and model.embeddings is not None:
        return Target(model.embeddings, {"model_id": model.model_id}, "embeddings")
    return Target(model.vectors, {"model_id": model.model_id, "layer": str(layer)}, "vectors")


def output_width(step: Pass) -> int:
    """Dimensions of the vectors that a pass makes."""
    if step.kind == "layer":
        return step.width
    stored = int(map_array(Path(step.h)).shape[1])
    return step.module.message_width(stored) if step.projects else stored


class Pending(NamedTuple):
    """A pass and the blocks that it has still to do."""

    step: Pass
    blocks: tuple[NodeBlock, ...]
    files: dict[int, str]


def find_pending(graph: Graph, step: Pass) -> Pending:
    """What of a pass is not committed; all blocks of a pass without a table."""
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
    context: SparkContext,
    graph: Graph,
    model: Model,
    choose: Callable[[Pass], PassPlan],
    tell: Callable[[LayerRun], None] = lambda _: None,
    keep: Callable[[LayerRun], None] = lambda _: None,
) -> list[LayerRun]:
    """All passes of a model that are not done; a second run does nothing.

    Args:
        context: Spark's.
        graph: laid out.
        model: with its weights.
        choose: plan of a pass.
        tell: called after each pass.
        keep: called before the last vectors of a pass are committed, again where that run was killed then:
            what is told of a pass is there before all of it is.
    """
    done: list[LayerRun] = []
    if has_result(graph, model):  # retention may have removed the layers before the result
        return done
    steps = [find_pending(graph, step) for step in plan_passes(model, graph)]
    for number, todo in enumerate(steps):
        needed = any(_has_work(later) for later in steps[number:])
        if not needed:
            break
        _prepare_output(graph, todo)
        if todo.step.target is None and not _is_needed(steps, number):
            continue
        if todo.blocks:
            plan = "R" if model.kept else choose(todo.step)
            done.append(_run_recorded_pass(context, graph, model, todo, plan, keep))
            tell(done[-1])
    return done


def has_result(graph: Graph, model: Model) -> bool:
    """Return whether the table holds all vectors of a model's result."""
    last = [step for step in plan_passes(model, graph) if step.layer >= len(model.layers)]
    return not any(_has_work(find_pending(graph, step)) for step in last)


def _has_work(todo: Pending) -> bool:
    return bool(todo.blocks) and todo.step.target is not None


def _is_needed(steps: Sequence[Pending], number: int) -> bool:
    """Whether what a pass without a table makes is read by a pass that has work to do."""
    return any(later.step.z == steps[number].step.out and later.blocks for later in steps[number + 1 :])


def _prepare_output(graph: Graph, todo: Pending) -> None:
    """The file that a pass writes, with what is committed already."""
    step = todo.step
    if step.out is None:
        return
    create_matrix(Path(step.out), (graph.nodes, output_width(step)), step.dtype)
    by_number = {block.number: block for block in graph.blocks}
    out = map_writable(Path(step.out))
    for number, file in todo.files.items():
        for first, vectors in read_vectors(file, by_number[number]):
            out[first : first + len(vectors)] = vectors.astype(step.dtype)


def _run_recorded_pass(
    context: SparkContext,
    graph: Graph,
    model: Model,
    todo: Pending,
    plan: PassPlan,
    keep: Callable[[LayerRun], None],
) -> LayerRun:
    """A pass run; kept before the last of it is committed."""
    told = partial(_summarise_pass, todo.step, plan, time.time(), time.monotonic())

    def almost(results: list[BlockResult], projected: int) -> None:
        keep(told(results, projected))

    return told(*run_pass(context, graph, todo.step, todo.blocks, plan, model, almost))


def _summarise_pass(
    step: Pass, plan: str, started: float, begun: float, results: list[BlockResult], projected: int
) -> LayerRun:
    """What a pass did; started, begun: by the wall's clock, and by one that only goes forward."""
    width = map_array(Path(step.h if step.projects else step.z)).shape[1]
    return LayerRun(
        step.layer,
        step.kind,
        step.module.aggregator,
        plan,
        sum(result.nodes for result in results),
        sum(result.edges for result in results),
        step.module.message_width(width) if step.projects else int(width),
        projected,
        sum(result.received for result in results),
        time.monotonic() - begun,
        started,
    )


def run_pass(
    context: SparkContext,
    graph: Graph,
    step: Pass,
    blocks: Sequence[NodeBlock],
    plan: PassPlan,
    model: Model,
    almost: Callable[[list[BlockResult], int], None] = lambda *_: None,
) -> tuple[list[BlockResult], int]:
    """One pass over some blocks, committed group by group; what tasks did, and vectors projected.

    `almost` is told the same before the last group is committed.

    Raises:
        ConfigError: plan S of an aggregator whose parts cannot be put together.
    """
    if plan == "S" and step.module.aggregator not in SCATTERABLE:
        raise ConfigError(f"plan S cannot take {step.module.aggregator} apart", "plan: G or R")
    kept = model.kept.get((step.layer, step.kind))
    work = PassWork(graph, step, model.batch, tuple(blocks), kept)
    start, projected = _prepare_tasks(context, work, plan)
    results: list[BlockResult] = []
    size = model.group or 8 * context.defaultParallelism
    for group in group_blocks(blocks, size):
        found = start(group)
        results += found
        if group[-1] == blocks[-1]:
            almost(results, projected)
        if step.target is not None:
            _commit_group(graph, step.target, group, found)
    return results, projected


def _prepare_tasks(
    context: SparkContext, work: PassWork, plan: PassPlan
) -> tuple[Callable[[tuple[NodeBlock, ...]], list[BlockResult]], int]:
    """What runs a group of blocks under a plan, once each vector is projected."""
    graph, step = work.graph, work.step
    from_blocks = graph.side_blocks(step.sources)
    projected = sum(block.rows for block in from_blocks) if step.projects else 0
    if plan == "R":
        if step.projects:
            z = Path(step.z)
            width = step.module.message_width(map_array(Path(step.h)).shape[1])
            create_matrix(z, (graph.nodes, width), step.dtype)
            run_project = partial(project_messages, work=replace(work, destinations=()))
            projected = sum(context.parallelize(from_blocks, len(from_blocks)).map(run_project).collect())
        task = partial(aggregate_replicated, work=replace(work, destinations=()))
        return lambda group: context.parallelize(group, len(group)).map(task).collect(), projected
    if plan == "G":
        halos = context.parallelize(work.destinations, len(work.destinations))
        halos.foreach(partial(_make_halo, graph=graph))
    send, receive = (send_messages, aggregate_messages) if plan == "G" else (send_sums, aggregate_sums)
    sent = context.parallelize(from_blocks, len(from_blocks)).mapPartitions(partial(send, work=work))
    moved = sent.partitionBy(len(work.destinations), int)
    return partial(_run_group, context, moved, partial(receive, work=work), work.destinations), projected


def _make_halo(block: NodeBlock, graph: Graph) -> None:
    graph.halo(block)


def _run_group(
    context: SparkContext,
    moved: RDD[Any],
    receive: Callable[[int, Iterable[Any]], Iterable[BlockResult]],
    destinations: tuple[NodeBlock, ...],
    group: tuple[NodeBlock, ...],
) -> list[BlockResult]:
    """The shuffle's first half is done once: Spark keeps what it sent for the groups that follow."""
    places = [destinations.index(block) for block in group]
    taken = moved.mapPartitionsWithIndex(receive)
    return context.runJob(taken, _return_unchanged, places)


def _return_unchanged(done: Iterable[BlockResult]) -> Iterable[BlockResult]:
    return done


def _commit_group(
    graph: Graph, target: Target, group: tuple[NodeBlock, ...], done: Sequence[BlockResult]
) -> None:
    """Files of a group into the table, all or none, once."""
    files = [result.file for result in done if result.file is not None]
    partition = target.block_partition(graph, group[0])
    delta_files.require_visible(target.folder, files)
    numbers = ",".join(str(block.number) for block in group)
    named = hashlib.sha256(f"{len(graph.blocks)}:{numbers}".encode()).hexdigest()[:16]
    name = "/".join([*partition.values(), named])
    for attempt in range(1, MOST_COMMIT_TRIES + 1):
        try:
            if not delta_files.commit(target.folder, files, partition, name):
                _check_committed(graph, target, group, partition)
            return
        except delta_files.ConflictError:
            if attempt == MOST_COMMIT_TRIES:
                raise
            time.sleep(0.1 * 2**attempt)


def _check_committed(
    graph: Graph, target: Target, group: tuple[NodeBlock, ...], partition: Mapping[str, str]
) -> None:
    """Another run was faster with the same group; or its rows were deleted since."""
    there = list_committed(target.folder, partition, len(graph.blocks))
    if not {block.number for block in group} <= there.keys():
        raise StoreError(
            f"blocks of {dict(partition)} were committed before and have been deleted since",
            "Delta would take them for a repetition: use another seed of the model, or another warehouse",
        )
