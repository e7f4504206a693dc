"""Values of recpack: JSON on standard input, JSON on standard output (see inputs.py)."""

import json
import sys
from importlib.metadata import version

from recpack.metrics import NDCGK, CalibratedRecallK, HitK, PrecisionK, RecallK, ReciprocalRankK
from scipy.sparse import csr_matrix

given = json.load(sys.stdin)


def matrix(rows):
    cells = [(int(user), item, value) for user, pairs in rows.items() for item, value in pairs]
    users, items, values = zip(*cells, strict=True)
    shape = (max(map(int, [*given["lists"], *given["truth"]])) + 1, given["items"])
    return csr_matrix((values, (users, items)), shape=shape)


truth = matrix({user: [(item, 1) for item, _ in pairs] for user, pairs in given["truth"].items()})
lists = matrix(given["lists"])


def values(names):
    result = {}
    for name, metric in names.items():
        for k in given["ks"]:
            measured = metric(k)
            measured.calculate(truth, lists)
            result[f"{name}@{k}"] = float(measured.value)
    return result


metrics = {"ndcg": NDCGK, "mrr": ReciprocalRankK, "hit": HitK, "precision": PrecisionK}
metrics |= {"recall": CalibratedRecallK, "calibrated_recall": CalibratedRecallK}
results = [
    {"set": {}, "values": values(metrics)},
    {"set": {"recall_by": "relevant"}, "values": values({"recall": RecallK})},
]
print(json.dumps({"version": version("recpack"), "results": results}))
