"""Values the libraries printed for a small input, and those of Elliot's formulae by hand.

`printed_values.json` holds what each library of the stated version gave for `example.EXAMPLE` (for
cornac and recbole, whose models score every item, `example.FULL`). Elliot is in no package registry:
its cases follow the formulae in the source of version 0.3.1.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbench_spark.core.definitions import PRESET_VERSIONS, make_definition
from recbench_spark.metrics.kernels.accuracy import measure
from tests import oracles
from tests.libraries.example import EXAMPLE, FULL
from tests.libraries.inputs import our_values, pool_precision, ranked, weighted_auc

PRINTED = json.loads(Path(__file__).with_name("printed_values.json").read_text())
SCORE_ALL = ("cornac", "recbole", "warprec", "sklearn", "torchmetrics", "implicit")
CASES = [
    (library, result["set"], result["values"])
    for library, printed in PRINTED.items()
    for result in printed["results"]
]


@pytest.mark.parametrize(("library", "axes", "printed"), CASES, ids=lambda value: str(value)[:40])
def test_presets_give_what_the_libraries_printed(
    library: str, axes: dict[str, Any], printed: dict[str, float]
) -> None:
    given = FULL if library in SCORE_ALL else EXAMPLE
    definition = make_definition("ranx" if library == "trec_eval" else library, axes)
    ours = {**our_values(given, definition), "weighted_auc": weighted_auc(given, definition)}
    ours |= pool_precision(given, definition)
    for name, value in printed.items():
        single = name == "weighted_auc" or library in ("warprec", "torchmetrics")
        tolerance = 1e-6 if single else 1e-9
        assert ours[name] == pytest.approx(value, abs=tolerance), name


def test_the_printed_values_are_of_the_versions_the_presets_name() -> None:
    versions = {name: result["version"] for name, result in PRINTED.items() if name != "trec_eval"}
    named = {name: v for name, v in PRESET_VERSIONS.items() if name not in ("recbench", "elliot")}
    assert versions == named


def test_elliot_by_hand() -> None:
    """Users 1 to 4: hits at ranks 1 and 3; 2; 3; 2 and 3 of the first three."""
    result = measure(
        ranked(EXAMPLE, make_definition("elliot")), ["map", "ndcg"], [3], make_definition("elliot")
    )
    mean_precisions = [(1 + 1 / 2 + 2 / 3) / 3, (1 / 2 + 1 / 3) / 3, (1 / 3) / 3, (1 / 2 + 2 / 3) / 3]
    np.testing.assert_allclose(result["map"][:4, 0], mean_precisions, rtol=1e-12)
    assert np.isnan(result["map"][4:]).all()
    # 2^(r - 0 + 1) - 1 is 3, 7 and 15 for grades 1, 2 and 3.
    log3 = math.log2(3)
    assert result["ndcg"][3, 0] == pytest.approx((3 / log3 + 15 / 2) / (15 + 7 / log3 + 3 / 2))
    assert result["ndcg"][0, 0] == pytest.approx((1 + 1 / 2) / (1 + 1 / log3 + 1 / 2))


def test_elliot_counts_one_more_negative_in_auc() -> None:
    """Six items, relevant ones at ranks 1 and 4, four negatives: (5/5 + (5 - 3 + 1)/5) / 2."""
    rankings = oracles.make_rankings(
        [(dict(zip(range(6), (6.0, 5, 4, 3, 2, 1), strict=True)), {0: 1.0, 3: 1.0})]
    )
    auc = {
        preset: measure(rankings, ["auc"], [], make_definition(preset))["auc"]
        for preset in ("elliot", None)
    }
    assert auc["elliot"].item() == pytest.approx((5 / 5 + 3 / 5) / 2)
    assert auc[None].item() == pytest.approx((4 / 4 + 2 / 4) / 2)


def test_replay_ranks_the_larger_id_first_in_a_tie() -> None:
    rankings = oracles.make_rankings([({1: 0.5, 2: 0.5, 3: 0.5, 4: 0.1}, {2: 1.0})])
    larger = oracles.make_rankings([({1: 0.5, 2: 0.5, 3: 0.5, 4: 0.1}, {3: 1.0})])
    replay = make_definition("replay")
    assert [measure(r, ["mrr"], [3], replay)["mrr"][0, 0] for r in (rankings, larger)] == [1 / 2, 1.0]
    assert [measure(r, ["auc"], [], replay)["auc"].item() for r in (rankings, larger)] == [2 / 3, 1.0]


def test_replay_auc_of_listed_items_only() -> None:
    """User 1 ranks one of two relevant items above one of two others; user 2 none; user 3 no other."""
    users = [
        ({1: 0.9, 2: 0.5, 3: 0.1}, {2: 1.0, 9: 1.0}),
        ({1: 0.5}, {9: 1.0}),
        ({1: 0.5}, {1: 1.0, 2: 1.0}),
    ]
    auc = measure(oracles.make_rankings(users), ["auc"], [], make_definition("replay"))["auc"]
    assert auc[:, 0].tolist() == [1 / 2, 0.0, 1.0]
