"""`kind: graph`: embed a night's model over its training graph.

`graphs.pipeline` builds graphs and applies layers; `recbench embed` uses it as well.
"""

from __future__ import annotations

from typing import Any

from recbench_spark.errors import ConfigError
from recbench_spark.graphs import model_inputs
from recbench_spark.graphs.estimates import fit_rates
from recbench_spark.graphs.incremental_run import find_earlier_model, plan_refresh, report_drift
from recbench_spark.graphs.model_inputs import PreparedGraphModel
from recbench_spark.graphs.pipeline import embed, open_model_work
from recbench_spark.graphs.settings import GraphLayers, GraphModel, GraphSource
from recbench_spark.graphs.stored_graphs import split_source
from recbench_spark.models.adapters.model_adapter import SimilarityAdapter, SplitData, Trained
from recbench_spark.models.graph import SIDES
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import EMBEDDINGS, MANIFESTS
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.file_tables import FileTables


class GraphNetAdapter(SimilarityAdapter[Any]):
    """Embeds graph models layer by layer; commits each block once."""

    runs_local = True
    needs_files = True
    leased = False

    def saved(self, data: SplitData) -> bool:
        """Return False: `embed` reads from the tables which blocks exist."""
        return False

    def fit(self, data: SplitData) -> Trained | None:
        """Build the graph, reuse unchanged vectors, compute the rest.

        Unchanged vectors come from an earlier night; the drift since then is reported. Returns None if the
        embeddings already exist. No vector passes through the driver in any case.
        """
        journal, store = data.journal or Journal(), data.store
        prepared = model_inputs.prepare_model(store, self.over(store, data.split_id), journal)
        record_edges(store, prepared, data.split_id)
        done = store.has(EMBEDDINGS, "model_id", prepared.model.model_id)
        before = find_earlier_model(store, prepared, data.earlier_splits(self.settings.name))
        with open_model_work(store, prepared, journal) as working:
            start = take_over_vectors(store, working, before, journal) if before and not done else working
            runs = embed(store, start, journal)
        if before:
            record_drift(store, prepared, before, journal)
        return Trained() if runs else None

    def save(self, trained: Trained, data: SplitData) -> None:
        """Do nothing: tasks have written the tables."""

    def over(self, store: FileTables, split_id: str) -> GraphModel:
        """Return the model over a split's graph."""
        settings = self.settings
        features = settings.features
        more: dict[str, Any] = {"weighted": settings.weighted}
        if features.path is not None:
            more |= {"nodes": {features.side or SIDES[-1]: features.path}}
            more |= {"node_column": features.id_column}
        return make_graph_model(settings.name, split_source(store, split_id, **more), settings)

    def load(self, data: SplitData) -> Trained:
        """Read the embeddings from their table."""
        name = model_inputs.compute_model_id(data.store, self.over(data.store, data.split_id))
        return Trained(*(read_side_rows(data, name, side, side) for side in SIDES))

    def facts(self, data: SplitData) -> list[dict[str, Any]]:
        """Return the drift since the newest compared night.

        The list is empty on the model's first night.
        """
        name = model_inputs.compute_model_id(data.store, self.over(data.store, data.split_id))
        rows = data.store.rows(MANIFESTS, [("split_id", "=", name)])
        for split_id in data.earlier_splits(self.settings.name):
            if split_id == data.split_id:
                break
            facts = [row for row in rows if f"since {split_id}-" in row["detail"]]
            if facts:
                return facts
        return []

    def told(self) -> str:
        """Describe the graph stage and check its files, before Spark."""
        settings = self.settings
        kinds = ", ".join(f"{one.form} {one.aggregator}" for one in settings.layers)
        rest = f"mode {settings.mode}, {settings.similarity}, wire {settings.wire}"
        return f"graph of part train ({kinds}; {rest}): {model_inputs.describe_files(settings)}"


def make_graph_model(name: str, source: GraphSource, layers: GraphLayers) -> GraphModel:
    """Return the model with these layers over a graph."""
    keys = {key: getattr(layers, key) for key in GraphLayers.model_fields}
    return GraphModel(name=name, graph=source, **keys)


def read_side_rows(data: SplitData, model_id: str, side: str, name: str) -> PieceRows:
    """Return `NAME_id`, vector, bias of one side."""
    rows = data.store.open_rows(EMBEDDINGS, "model_id", [model_id], side=side)
    assert isinstance(rows, PieceRows)
    return rows.rename({f"{name}_id": "id"})


def record_edges(store: FileTables, prepared: PreparedGraphModel, split_id: str) -> None:
    """Write the edge count to the split's manifest, once per graph.

    The row also says which part the edges come from.
    """
    graph = prepared.graph
    detail = f"of graph {graph.graph_id}: rows of part train alone, no held-out row was read"
    row = {"split_id": split_id, "part": "train", "fact": "graph_edges", "detail": detail}
    rows = [{**row, "value": float(graph.checks["edges"])}]
    store.append(rows, MANIFESTS, once=f"edges/{graph.graph_id}")


def take_over_vectors(
    store: FileTables, prepared: PreparedGraphModel, before: str, journal: Journal
) -> PreparedGraphModel:
    """Return the model with a plan to reuse an earlier night.

    One line reports the plan.
    """
    try:
        plan, sentence = plan_refresh(store, prepared, before, fit_rates(store), journal)
    except ConfigError as error:
        plan, sentence = prepared, f"previous {before}: {error.message}, so all nodes are computed"
    journal.say(sentence)
    return plan


def record_drift(store: FileTables, prepared: PreparedGraphModel, before: str, journal: Journal) -> None:
    """Record the drift since an earlier night, once.

    A line says so if that night's files are gone.
    """
    if store.rows(
        MANIFESTS, [("split_id", "=", prepared.model.model_id), ("detail", "=", f"since {before}")]
    ):
        return
    try:
        report_drift(store, prepared, before, journal)
    except ConfigError as error:
        journal.say(f"no drift since {before}: {error.message}")
