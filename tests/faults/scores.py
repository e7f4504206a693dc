"""Mutated scores, truth and training rows as frames through `recbench_spark.evaluate`, without a JVM."""

from __future__ import annotations

import recbench_spark
from recbench_spark.config import Bootstrap
from tests.faults import handed
from tests.faults.campaign import Case, Verdict
from tests.faults.frames import Values, as_arrow, asked, judged, overall


def run(case: Case) -> Verdict:
    given = handed.mutated(case, scored=True)

    def found() -> Values:
        truth, scores, train = (as_arrow(columns) for columns in (given.truth, given.lists, given.train))
        none = Bootstrap(replicates=0)
        result = recbench_spark.evaluate(truth, scores=scores, train=train, bootstrap=none, **asked(given))
        return overall(result.metrics.to_pylist())

    return judged(given, found, "scores")
