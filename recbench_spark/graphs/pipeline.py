"""Run a model over a graph and commit its layers.

A note is left for the next night. The tables are `graph_vectors`, `embeddings`, `graph_runs` and
`checks`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from recbench_spark.graphs.estimates import PassEstimate, estimate_passes, fit_rates, format_bytes
from recbench_spark.graphs.folders import MANIFEST, NIGHT_NOTE, Graph, read_note
from recbench_spark.graphs.incremental import LayerFiles
from recbench_spark.graphs.message_passing import Pass, PassPlan
from recbench_spark.graphs.model_families import list_layers, list_settings, model_family
from recbench_spark.graphs.model_inputs import PreparedGraphModel
from recbench_spark.graphs.runner import LayerRun, has_result, run_model
from recbench_spark.graphs.stored_graphs import files_folder, write_graph_checks
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import GRAPH_RUNS
from recbench_spark.storage import objects
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.made_folders import make_folder
from recbench_spark.storage.uris import is_remote, join_uri, relative_place


@contextmanager
def open_model_work(
    store: FileTables, prepared: PreparedGraphModel, journal: Journal
) -> Iterator[PreparedGraphModel]:
    """Give a model a private folder, then publish its note.

    A killed run is continued: its committed blocks count and its files are used again. If another run
    computes the model, this one waits for it.
    """
    target, graph = prepared.model.folder, prepared.graph

    def is_done() -> bool:
        return read_note(target) is not None and has_result(graph, prepared.model)

    with make_folder(target, is_done, journal.say, [graph.place(MANIFEST)]) as work:
        if work is None:
            yield prepared
            return
        yield replace(prepared, model=replace(prepared.model, folder=work.work))
        if objects.measure_files([join_uri(work.work, NIGHT_NOTE)]) != [None]:
            work.publish()


def embed(store: FileTables, prepared: PreparedGraphModel, journal: Journal) -> list[LayerRun]:
    """Compute all layers and commit them one by one.

    Rows go to `graph_runs` and `checks`. Existing blocks stay.
    """
    engine = store.engine
    cores, rates = engine.cores, fit_rates(store)
    every = estimate_passes(prepared, rates, cores, prepared.settings.plan)
    planned: PassEstimates = {(one.step.layer, one.step.kind): one for one in every}
    write_graph_checks(store, prepared.model.model_id, prepared.checks)

    def choose(step: Pass) -> PassPlan:
        return planned[step.layer, step.kind].plan

    report = partial(_report_pass, journal, planned)
    record = partial(_record_pass, store, prepared, planned, cores)
    runs = run_model(engine, prepared.graph, prepared.model, choose, report, record=record)
    folder = prepared.model.folder
    if not is_remote(folder) or read_note(folder) is None:  # what is published on object storage stays
        _write_note(store, prepared)
    else:
        objects.refresh_time(join_uri(folder, NIGHT_NOTE))
    if not runs:
        journal.say(f"model {prepared.model.model_id}: already made")
    return runs


PassEstimates = Mapping[tuple[int, str], PassEstimate]


def _record_pass(
    store: FileTables, prepared: PreparedGraphModel, planned: PassEstimates, cores: int, run: LayerRun
) -> None:
    """Write a pass's row in `graph_runs`, once.

    The row also has the number of projected vectors.
    """
    name, step = prepared.model.model_id, planned[run.layer, run.kind].step
    once = f"/{run.layer}/{run.kind}/{len(prepared.graph.blocks)}"
    store.append([_run_row(prepared, run, planned, cores)], GRAPH_RUNS, once=f"{name}{once}")
    if step.projects or (run.kind == "layer" and step.module.project is None):
        counts = {f"vectors_projected_in_layer_{run.layer}": run.projected}
        write_graph_checks(store, name, counts, once)


def _write_note(store: FileTables, prepared: PreparedGraphModel) -> None:
    """Note where a complete model's tables are.

    The arrays of the model's layers are removed first.
    """
    folder, root = prepared.model.folder, files_folder(store)
    _remove_layers(folder)
    weighted = list_layers(prepared)
    note = {
        "model_id": prepared.model.model_id,
        "graph": relative_place(prepared.graph.folder, root),
        "features": relative_place(prepared.model.features, root),
        "family": model_family(prepared.settings, weighted),
        "layers": len(prepared.model.layers),
        "mode": prepared.model.mode,
        "output": prepared.settings.output,
        "settings": list_settings(prepared.settings, weighted),
    }
    objects.write_text(join_uri(folder, NIGHT_NOTE), json.dumps(note))


def _remove_layers(folder: str) -> None:
    """Remove the arrays in a model's folder.

    Older versions left a file for each; these are removed too.
    """
    for name in objects.list_folders(folder):
        objects.remove_objects(join_uri(folder, name))
    for name in [
        name for name in objects.list_objects(folder) if name.endswith(".npy") and "/" not in name
    ]:
        objects.remove_object(join_uri(folder, name))


def layer_places(store: FileTables, graph: Graph, note: Mapping[str, Any]) -> tuple[LayerFiles, ...]:
    """Return where a stored model's layer vectors are.

    Mode bipartite ends with pools.
    """
    name, last = {"model_id": str(note["model_id"])}, int(note["layers"])
    bipartite = note.get("mode") == "bipartite"
    every = tuple(range(len(graph.sides)))
    places = []
    for k in range(1, last + 1 + bipartite):
        sides = every if not bipartite else (0,) if k > last else (1,)
        if k >= last and note["output"] == "embeddings":
            places.append(LayerFiles(store.location("embeddings"), name, sides, True))
        else:
            partition = {**name, "layer": str(k)}
            places.append(LayerFiles(store.location("graph_vectors"), partition, sides, False))
    return tuple(places)


def _report_pass(journal: Journal, planned: PassEstimates, run: LayerRun) -> None:
    one = planned[run.layer, run.kind]
    expected = one.seconds * run.nodes / max(one.size.nodes, 1)  # only for this run's nodes
    journal.say(
        f"layer {run.layer} {run.kind} ({run.aggregator}, plan {run.plan}): {run.nodes:,} nodes, "
        f"{run.edges / max(run.seconds, 1e-9):,.0f} edges/s, {format_bytes(run.shuffled)} shuffled, "
        f"{run.seconds:.1f} s, {run.seconds / max(expected, 1e-9):.1f} times the predicted time"
    )
    journal.record("graph_layer", **run._asdict(), predicted=expected)


def _run_row(
    prepared: PreparedGraphModel, run: LayerRun, planned: PassEstimates, cores: int
) -> dict[str, Any]:
    one = planned[run.layer, run.kind]
    share = run.nodes / max(one.size.nodes, 1)
    item = 4 if one.step.target is not None and one.step.target.kind == "embeddings" else one.size.item
    copies = (one.step.out is not None) + (one.step.target is not None)
    amounts = one.size.amounts(run.plan, item * copies)
    counted = [*(amount * share for amount in amounts[:-2]), amounts.passes]
    if one.size.hosts:
        counted.append(amounts.fetched * share)
    names = ("layer", "aggregator", "plan", "nodes", "edges", "width", "seconds")
    return {name: getattr(run, name) for name in names} | {
        "model_id": prepared.model.model_id,
        "graph_id": prepared.graph.graph_id,
        "model": prepared.settings.name,
        "vectors_projected": run.projected,
        "bytes_shuffled": run.shuffled,
        "predicted_bytes": int(one.moved * share),
        "predicted_seconds": one.seconds * share,
        "amounts_json": json.dumps(counted),
        "cores": cores,
        "started_at": datetime.fromtimestamp(run.started, UTC),
    }
