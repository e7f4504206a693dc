"""MAP@3 of Evidently for one user with three items, of which the best is relevant: rows in two orders."""

import json
from importlib.metadata import version

import pandas as pd
from evidently.legacy.calculations.recommender_systems import collect_dataset
from evidently.legacy.metrics.recsys.precision_recall_k import PrecisionRecallCalculation
from evidently.legacy.pipeline.column_mapping import RecomType


def map_at_3(rows):
    columns = (pd.Series(column) for column in zip(*rows, strict=True))
    frame = collect_dataset(*columns, RecomType.RANK, None, False, True)
    return PrecisionRecallCalculation(max_k=3).get_precision_and_recall_dict(frame, 3)["map"][-1]


best_first = [("u", 1, 1), ("u", 0, 2), ("u", 0, 3)]
values = {"best_first": map_at_3(best_first), "worst_first": map_at_3(best_first[::-1])}
print(json.dumps({"version": version("evidently"), "values": values}))
