"""All tables by name."""

from __future__ import annotations

from recbench_spark.analyses.comparisons.tables import (
    CHANGES,
    COMPARISONS,
    CURVE_CROSSINGS,
    FLIPS,
    PARADOXES,
)
from recbench_spark.auctions.tables import REPLAYS
from recbench_spark.boards.tables import (
    BOARD_DECISIONS,
    BOARDS,
    SUBMISSIONS,
    TRIALS,
    VERDICTS,
)
from recbench_spark.core.columns import Table
from recbench_spark.graphs.tables import (
    GRAPH_NODES,
    GRAPH_RUNS,
    GRAPH_VECTORS,
    GRAPHS,
    NEAREST_NODES,
    NEIGHBOURHOODS,
)
from recbench_spark.metrics.tables import (
    CURVE_RANKINGS,
    CURVE_VALUES,
    LEARNING_CURVES,
    METRICS,
    MULTIVERSE,
    RANKINGS,
    RETRIEVAL_RUNS,
    USER_METRICS,
)
from recbench_spark.models.tables import EMBEDDINGS, EXPLANATIONS, FITS, SIMILARITIES
from recbench_spark.splits.tables import (
    CANDIDATES,
    CELL_PROPENSITIES,
    ITEMS,
    MANIFESTS,
    POWER_LAWS,
    PROPENSITIES,
    RATING_PROPENSITIES,
    REJECTS,
    SPLITS,
    USER_BLOCKS,
)
from recbench_spark.storage.run_tables import CHECKS, RUNS, SPEED

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        RUNS,
        METRICS,
        USER_METRICS,
        RANKINGS,
        MULTIVERSE,
        CHECKS,
        MANIFESTS,
        REJECTS,
        SPLITS,
        ITEMS,
        USER_BLOCKS,
        CANDIDATES,
        EMBEDDINGS,
        SIMILARITIES,
        EXPLANATIONS,
        PROPENSITIES,
        COMPARISONS,
        PARADOXES,
        FLIPS,
        CHANGES,
        RATING_PROPENSITIES,
        CELL_PROPENSITIES,
        POWER_LAWS,
        SPEED,
        GRAPHS,
        GRAPH_NODES,
        GRAPH_VECTORS,
        GRAPH_RUNS,
        FITS,
        TRIALS,
        BOARDS,
        VERDICTS,
        SUBMISSIONS,
        BOARD_DECISIONS,
        NEIGHBOURHOODS,
        NEAREST_NODES,
        REPLAYS,
        LEARNING_CURVES,
        RETRIEVAL_RUNS,
        CURVE_VALUES,
        CURVE_CROSSINGS,
        CURVE_RANKINGS,
    )
}
RESULT_TABLES = (
    "metrics", "user_metrics", "rankings", "multiverse", "checks", "replays", "learning_curves",
    "curve_values", "curve_rankings", "retrieval_runs",
)  # fmt: skip
"""Tables whose rows become visible by a succeeded row in `runs`."""

ID_TYPE = "recbench.id_type"
"""Column metadata: the stored type of ids, in words."""
