"""Evaluate mutated scores, truth and training rows as frames by `recbench_spark.evaluate`, without a
JVM.
"""

from __future__ import annotations

import recbench_spark
from recbench_spark.config import Bootstrap
from tests.faults import input_tables
from tests.faults.campaign import Case, Verdict
from tests.faults.frames import Values, as_arrow, judge, overall, request_options


def run(case: Case) -> Verdict:
    tables = input_tables.mutate_tables(case, scored=True)

    def evaluate() -> Values:
        truth, scores, train = (as_arrow(columns) for columns in (tables.truth, tables.lists, tables.train))
        no_bootstrap = Bootstrap(replicates=0)
        result = recbench_spark.evaluate(
            truth, scores=scores, train=train, bootstrap=no_bootstrap, **request_options(tables)
        )
        return overall(result.metrics.to_pylist())

    return judge(tables, evaluate, "scores")
