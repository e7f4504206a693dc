"""Schemas of all tables: columns with comments, keys, layouts.

`user_id` and `item_id` are the original ids, as text, in every table; `item_index` and `user_index` are
dense positions with a meaning only inside one `split_id`.
"""

# ruff: noqa: F403 (a new table or column needs no second line here)

from __future__ import annotations

from recbench_spark.analyses.comparisons import tables as of_comparisons
from recbench_spark.analyses.comparisons.tables import *
from recbench_spark.auctions import tables as of_auctions
from recbench_spark.auctions.tables import *
from recbench_spark.boards import tables as of_boards
from recbench_spark.boards.tables import *
from recbench_spark.core.columns import *
from recbench_spark.core.columns import Table
from recbench_spark.graphs import tables as of_graphs
from recbench_spark.graphs.tables import *
from recbench_spark.metrics import tables as of_metrics
from recbench_spark.metrics.tables import *
from recbench_spark.models import tables as of_models
from recbench_spark.models.tables import *
from recbench_spark.night import tables as of_nights
from recbench_spark.night.tables import *
from recbench_spark.splits import tables as of_splits
from recbench_spark.splits.tables import *

ROOMS = (of_nights, of_metrics, of_splits, of_models, of_comparisons, of_graphs, of_boards, of_auctions)
"""Modules with tables, in the order of pages and lists."""

TABLES: dict[str, Table] = {
    table.name: table for room in ROOMS for table in vars(room).values() if isinstance(table, Table)
}
"""All tables by name."""

RESULT_TABLES = (
    "metrics", "user_metrics", "rankings", "multiverse", "checks", "replays", "learning_curves",
    "curve_values", "curve_rankings", "retrieval_runs", "ceilings",
)  # fmt: skip
"""Tables whose rows become visible by a succeeded row in `runs`."""

ID_TYPE = "recbench.id_type"
"""Column metadata: the stored type of ids, in words."""
