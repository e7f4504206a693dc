"""`kind: graph`: a night's model that is embedded over the graph of its split's training part.

Here and not in `training`: laying graphs out and running layers over them are steps of their own, which
`jobs/embed.py` takes as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import functions as F

from recbench_spark.config.graph import GraphLayers, GraphModel
from recbench_spark.errors import ConfigError
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.graph.estimates import fit_rates
from recbench_spark.graph.incremental_run import find_earlier_model, plan_refresh, report_drift
from recbench_spark.graph.model_inputs import (
    PreparedGraphModel,
    compute_model_id,
    describe_files,
    prepare_model,
)
from recbench_spark.graph.pipeline import embed, open_model_work
from recbench_spark.graph.stored_graphs import split_source
from recbench_spark.models.graph import SIDES, GraphNet
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import EMBEDDINGS, MANIFESTS
from recbench_spark.storage.store import Store
from recbench_spark.training.model_adapter import Behaviour, SplitData, Trained


class GraphNets(Behaviour[GraphNet]):
    """Vectors of users and items, computed layer by layer; what is committed is not computed again."""

    leased = False

    def saved(self, data: SplitData) -> bool:
        """False: which blocks of which layer are there, `embed` reads from the tables."""
        return False

    def fit(self, data: SplitData) -> Trained | None:
        """Lay the graph out, take over what last night has, compute the rest, tell the drift.

        None where the embeddings were made before; nothing of them passes the driver in any case.
        """
        journal, store = data.journal or Journal(), data.store
        prepared = prepare_model(store, self.over(store, data.split_id), journal)
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
        """Nothing: tasks have written the tables."""

    def over(self, store: Store, split_id: str) -> GraphModel:
        """The model over the graph of a split."""
        asked = self.settings
        features = asked.features
        more: dict[str, Any] = {"weighted": asked.weighted}
        if features.path is not None:
            more |= {"nodes": {features.side or SIDES[-1]: features.path}}
            more |= {"node_column": features.id_column}
        layers = {name: getattr(asked, name) for name in GraphLayers.model_fields}
        return GraphModel(name=asked.name, graph=split_source(store, split_id, **more), **layers)

    def load(self, data: SplitData) -> Trained:
        """The embeddings as they lie."""
        name = compute_model_id(data.store, self.over(data.store, data.split_id))
        rows = data.store.read(EMBEDDINGS).where(F.col("model_id") == name)
        users, items = (
            rows.where(F.col("side") == side).select(F.col("id").alias(f"{side}_id"), "vector", "bias")
            for side in SIDES
        )
        return Trained(users, items)

    def source(self, trained: Trained, data: SplitData) -> DotSource:
        """The vectors of the items, with the similarity that the settings name."""
        found = super().source(trained, data)
        assert isinstance(found, DotSource)
        return replace(found, kind=self.settings.similarity)

    def facts(self, data: SplitData) -> list[dict[str, Any]]:
        """The drift since the newest night that the model is compared with; none on its first night."""
        name = compute_model_id(data.store, self.over(data.store, data.split_id))
        rows = data.store.read(MANIFESTS).where(F.col("split_id") == name).collect()
        for split_id in data.earlier_splits(self.settings.name):
            if split_id == data.split_id:
                break
            found = [row.asDict() for row in rows if f"since {split_id}-" in row.detail]
            if found:
                return found
        return []

    def told(self) -> str:
        """The graph stage in words, its files looked at, before Spark starts."""
        asked = self.settings
        kinds = ", ".join(f"{one.form} {one.aggregator}" for one in asked.layers)
        rest = f"mode {asked.mode}, {asked.similarity}, wire {asked.wire}"
        return f"graph of part train ({kinds}; {rest}): {describe_files(asked)}"


def record_edges(store: Store, prepared: PreparedGraphModel, split_id: str) -> None:
    """Into the split's manifest: how many edges its graph has, and of which part they are; once a graph."""
    graph = prepared.graph
    detail = f"of graph {graph.graph_id}: rows of part train alone, no held-out row was read"
    row = (split_id, "train", "graph_edges", float(graph.checks["edges"]), detail)
    frame = store.spark.createDataFrame([row], MANIFESTS.schema)
    store.append(frame, MANIFESTS, once=f"edges/{graph.graph_id}")


def take_over_vectors(
    store: Store, prepared: PreparedGraphModel, before: str, journal: Journal
) -> PreparedGraphModel:
    """The model, told what to take over from an earlier night, and a line that says so."""
    try:
        found, sentence = plan_refresh(store, prepared, before, fit_rates(store), journal)
    except ConfigError as error:
        found, sentence = prepared, f"previous {before}: {error.message}, so all is computed"
    journal.say(sentence)
    return found


def record_drift(store: Store, prepared: PreparedGraphModel, before: str, journal: Journal) -> None:
    """The drift since an earlier night as facts, once; a line where that night's files are gone."""
    told = store.read(MANIFESTS).where(F.col("split_id") == prepared.model.model_id)
    if not told.where(F.col("detail") == f"since {before}").isEmpty():
        return
    try:
        report_drift(store, prepared, before, journal)
    except ConfigError as error:
        journal.say(f"no drift since {before}: {error.message}")
