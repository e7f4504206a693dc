"""SQL views that are written from what metrics declare."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from recbench_spark.metrics.beyond_accuracy import LIST_METRICS
from recbench_spark.metrics.kernels.about import ABOUT, About
from recbench_spark.metrics.kernels.accuracy import METRICS

SQL_FOLDER = Path(str(resources.files("recbench_spark") / "sql"))
WIDE_CUTOFFS = (1, 5, 10, 20)
"""Cut-offs with a column in `metrics_wide`."""

WIDE_COLUMNS = re.compile(r"(?<=  MAX\(n\) AS n,\n).*(?=\nFROM)", re.DOTALL)
"""Lines of `metrics_wide.sql` with a column of a metric each."""

FACTS = """\
-- Which end of each metric is best, and between which bounds does it lie?
-- `python -m tools.reference` writes this file from the metrics. No bound is NULL, no best end is 'none'.
-- One table of values is one task of Spark, while a SELECT for each metric would be a task each.
WITH facts (metric, best, low, high, depends_on_base_rate) AS (
  VALUES
{rows}
)

SELECT
  metric,
  best,
  CAST(low AS DOUBLE) AS low,
  CAST(high AS DOUBLE) AS high,
  depends_on_base_rate
FROM facts
"""


def write_views() -> dict[str, str]:
    """Return the text of each written file, by its name."""
    rows = ",\n".join(_list_facts(name, about) for name, about in sorted(ABOUT.items()))
    wide = (SQL_FOLDER / "metrics_wide.sql").read_text(encoding="utf-8")
    columns = ",\n".join(_list_wide_columns())
    return {
        "metric_facts.sql": FACTS.format(rows=rows),
        "metrics_wide.sql": WIDE_COLUMNS.sub(lambda _: columns, wide),
    }


def _list_facts(name: str, about: About) -> str:
    low, high = (str(bound) if math.isfinite(bound) else "NULL" for bound in about.bounds)
    return f"    ('{name}', '{about.best}', {low}, {high}, {str(about.depends_on_base_rate).upper()})"


def _list_wide_columns() -> Iterator[str]:
    cuts = dict.fromkeys(LIST_METRICS, "k") | {name: metric.cuts for name, metric in METRICS.items()}
    wide = {name: cuts.get(name, "uncut") for name, about in ABOUT.items() if about.wide}
    for name in (name for name, cut in wide.items() if cut != "uncut"):
        yield from (_column(name, f"= {k}", f"{name}_{k}") for k in WIDE_CUTOFFS)
    for name in (name for name, cut in wide.items() if cut != "k"):
        yield _column(name, "IS NULL", name if wide[name] == "uncut" else f"{name}_full")


def _column(metric: str, k: str, column: str) -> str:
    return f"  MAX(CASE WHEN metric = '{metric}' AND k {k} THEN value END) AS {column}"
