"""Values of torchmetrics: JSON on standard input, JSON on standard output (see inputs.py)."""

import json
import sys
from importlib.metadata import version

import torch
from torchmetrics import retrieval

given = json.load(sys.stdin)
rows = [
    (int(user), score, dict(given["truth"].get(user, [])).get(item, 0))
    for user, pairs in given["lists"].items()
    for item, score in pairs
    if item not in given["train"][user]
]
users, scores, grades = (torch.tensor(column) for column in zip(*rows, strict=True))
# AUROC takes the sigmoid of scores that are not all within [0, 1], which makes large ones equal.
scores = scores / 2 ** torch.ceil(torch.log2(scores.max() + 1))
names = {"map": "MAP", "mrr": "MRR", "precision": "Precision", "recall": "Recall", "hit": "HitRate"}


def value(metric, target):
    return float(metric(scores, target, indexes=users))


values = {}
for k in given["ks"]:
    values[f"ndcg@{k}"] = value(retrieval.RetrievalNormalizedDCG(top_k=k), grades)
    for name, theirs in names.items():
        values[f"{name}@{k}"] = value(getattr(retrieval, f"Retrieval{theirs}")(top_k=k), grades > 0)
values["ndcg"] = value(retrieval.RetrievalNormalizedDCG(), grades)
for name, theirs in {"map": "MAP", "mrr": "MRR", "r_precision": "RPrecision", "auc": "AUROC"}.items():
    values[name] = value(getattr(retrieval, f"Retrieval{theirs}")(), grades > 0)
print(json.dumps({"version": version("torchmetrics"), "results": [{"set": {}, "values": values}]}))
