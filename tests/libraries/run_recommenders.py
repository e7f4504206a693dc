"""Values of recommenders: JSON on standard input, JSON on standard output (see inputs.py)."""

import json
import sys
from importlib.metadata import version

import pandas as pd
from recommenders.evaluation import python_evaluation as evaluation

given = json.load(sys.stdin)
columns = ["userID", "itemID"]
lists = [(user, item, score) for user, rows in given["lists"].items() for item, score in rows]
truth = [(user, item, float(grade)) for user, rows in given["truth"].items() for item, grade in rows]
frames = (
    pd.DataFrame(truth, columns=[*columns, "rating"]),
    pd.DataFrame(lists, columns=[*columns, "prediction"]),
)


def values(name, metric, **options):
    return {f"{name}@{k}": float(metric(*frames, k=k, **options)) for k in given["ks"]}


plain = values("ndcg", evaluation.ndcg_at_k) | values("map", evaluation.map_at_k)
plain |= values("precision", evaluation.precision_at_k) | values("recall", evaluation.recall_at_k)
results = [
    {"set": {}, "values": plain},
    {"set": {"ap_by": "relevant"}, "values": values("map", evaluation.map)},
    {"set": {"gain": "linear"}, "values": values("ndcg", evaluation.ndcg_at_k, score_type="raw")},
    {"set": {"gain": "exponential"}, "values": values("ndcg", evaluation.ndcg_at_k, score_type="exp")},
]
print(json.dumps({"version": version("recommenders"), "results": results}))
