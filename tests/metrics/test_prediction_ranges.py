"""Predictions in order: no number of ranges changes a bit of AUC, partial AUC or edges. Without a JVM."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from recbench_spark.config import Views
from recbench_spark.engine.local import LocalEngine
from recbench_spark.metrics import prediction_ranges as ranges
from recbench_spark.metrics.kernels import predictions as values
from recbench_spark.metrics.predictions import PredictionOrder
from recbench_spark.sources.input_rows import open_table
from recbench_spark.storage.blocks import return_rows

VIEWS = Views(7, (0.5,), (0.1, 0.6))


def order(rows: pa.Table, tasks: int) -> PredictionOrder:
    sample = ranges.sample_range(rows.column("prediction").to_numpy(), 50)
    deal = partial(ranges.deal_ranges, cuts=ranges.cut_ranges(sample, tasks))
    stored = open_table(LocalEngine(""), rows).rows
    with stored.deal(("prediction", "outcome"), deal, tasks).keep() as dealt:
        assert len(dealt.each(len)) == tasks
        return PredictionOrder.from_ranges(ranges.run_ranges(dealt, return_rows), VIEWS)


@pytest.mark.parametrize("outcomes", [(0.0, 1.0), (1.0, 2.0, 5.0), (0.0,)])
def test_one_three_and_seventeen_ranges_give_the_same_bits(outcomes: tuple[float, ...]) -> None:
    rng = np.random.default_rng(len(outcomes))
    p, y = rng.random(900).round(2), rng.choice(outcomes, 900)
    whole = order(pa.table({"prediction": p, "outcome": y}), 1)
    assert whole.edges.tolist() == values.equal_mass_edges(p, VIEWS.quantiles).tolist()
    for tasks in (3, 17):
        shuffled = rng.permutation(900)
        other = order(pa.table({"prediction": p[shuffled], "outcome": y[shuffled]}), tasks)
        assert other.pairs == whole.pairs
        assert other.edges.tobytes() == whole.edges.tobytes()
        assert repr(other.area) == repr(whole.area)
    assert (whole.area > 0) == (outcomes == (0.0, 1.0))


def test_equal_predictions_share_a_range() -> None:
    cuts = ranges.cut_ranges(np.full(40, 0.5), 8)
    blocks = list(
        ranges.deal_ranges([pa.table({"prediction": [0.5, 0.4, 0.5], "outcome": [1.0] * 3})], cuts)
    )
    assert [len(pa.ipc.open_stream(block).read_all()) for _, block in blocks] == [1, 2]
