"""Values of scikit-learn: JSON on standard input, JSON on standard output (see inputs.py)."""

import json
import sys
from importlib.metadata import version

from sklearn.metrics import label_ranking_average_precision_score, ndcg_score, roc_auc_score

given = json.load(sys.stdin)
rows = []
for user, pairs in given["lists"].items():
    grades, train = dict(given["truth"].get(user, [])), set(given["train"][user])
    scores = [(item, score) for item, score in pairs if item not in train]
    rows.append(([grades.get(item, 0) for item, _ in scores], [score for _, score in scores]))


def mean(metric, chosen, **options):
    return sum(metric([truth], [scores], **options) for truth, scores in chosen) / len(chosen)


def auc(truth, scores):
    return roc_auc_score([grade > 0 for grade in truth[0]], scores[0])


def precision_at_relevant(truth, scores):
    return label_ranking_average_precision_score([[grade > 0 for grade in truth[0]]], scores)


with_truth = [(truth, scores) for truth, scores in rows if any(truth)]
ndcg = {f"ndcg@{k}": mean(ndcg_score, rows, k=k) for k in given["ks"]}
others = {"auc": mean(auc, with_truth), "map": mean(precision_at_relevant, with_truth)}
results = [
    {"set": {}, "values": {**ndcg, "ndcg": mean(ndcg_score, rows)}},
    {"set": {"ap_ties": "last_rank", "empty_users": "leave_out"}, "values": others},
]
print(json.dumps({"version": version("scikit-learn"), "results": results}))
