"""Over-estimation in the low range: AUC and RIG rise, and the replay says that clicks fall."""

from __future__ import annotations

import numpy as np
import pytest

from recbench_spark.auctions.kernels.click_estimates import ClickModel, EstimateRules, find_column
from recbench_spark.auctions.kernels.counts import UNIT
from recbench_spark.auctions.kernels.mechanism import OperatingPoint, SlotCounts
from tests.auctions.kernels.oracle import Ad
from tests.auctions.kernels.worlds import make_part
from tests.metrics.kernels.test_anomalies import (
    AUCTIONS,
    BID,
    CTR,
    expected_clicks,
    impressions,
    measure_groups,
)

CALM = {"low": 0.02, "mid": 0.10, "high": 0.42, "top": 0.28}
"""Mixes up the two best ads, which never meet, and is right below."""
EAGER = {"low": 0.06, "mid": 0.10, "high": 0.30, "top": 0.40}
"""Orders all ads, and believes three times too much in the ones hardly anybody clicks."""
ADS = list(CTR)


def make_log() -> list[Ad]:
    """Each auction was run 200 times and showed its two ads in turn, clicked as often as they are."""
    log = []
    for query, pair in enumerate(AUCTIONS):
        for turn in range(200):
            shown, round_ = pair[turn % 2], turn // 2
            for name in pair:
                clicked = int(name == shown and round_ < 100 * CTR[name])
                slot = 0 if name == shown else -1
                log.append(Ad(query, 200 * query + turn, ADS.index(name), BID[name], 0.5, slot, clicked))
    return log


def replay(predicted: dict[str, float]) -> float:
    log = [row._replace(probability=predicted[ADS[row.ad]]) for row in make_log()]
    part, probability = make_part(log, 1)
    model = ClickModel(np.ones(1), np.zeros(1, np.int64), 1, EstimateRules())
    order = part.rank(probability, 1.0)
    sums = part.replay(order, probability, OperatingPoint(), model, SlotCounts(1, 0)).sum(axis=0)
    return float(sums[find_column("same_clicks", 1)][0] / UNIT)


def test_auc_and_rig_rise_and_replayed_clicks_fall() -> None:
    calm, eager = measure_groups(impressions(CALM)), measure_groups(impressions(EAGER))
    assert eager["auc"] > calm["auc"] and eager["rig"] > calm["rig"]
    assert replay(CALM) == pytest.approx(float(200 * expected_clicks(CALM)), abs=1e-6) == 160
    assert replay(EAGER) == pytest.approx(float(200 * expected_clicks(EAGER)), abs=1e-6) == 144
