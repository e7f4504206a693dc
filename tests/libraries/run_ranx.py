"""Values of ranx: JSON on standard input, JSON on standard output (see inputs.py)."""

import json
import sys
from importlib.metadata import version

from ranx import Qrels, Run, evaluate

given = json.load(sys.stdin)
qrels = Qrels(
    {user: {str(item): int(grade) for item, grade in rows} for user, rows in given["truth"].items()}
)
run = Run({user: {str(item): score for item, score in rows} for user, rows in given["lists"].items()})
ours = {"ndcg": "ndcg", "map": "map", "mrr": "mrr", "hit": "hit_rate"}
ours |= {"precision": "precision", "recall": "recall", "f1": "f1"}


def values(names, uncut):
    requests = {f"{name}@{k}": f"{theirs}@{k}" for name, theirs in names.items() for k in given["ks"]}
    requests |= uncut
    result = evaluate(qrels, run, list(requests.values()), make_comparable=True)
    return {name: float(result[theirs]) for name, theirs in requests.items()}


uncut = {"ndcg": "ndcg", "map": "map", "mrr": "mrr", "r_precision": "r-precision"}
results = [
    {"set": {}, "values": values(ours, uncut)},
    {"set": {"gain": "exponential"}, "values": values({"ndcg": "ndcg_burges"}, {"ndcg": "ndcg_burges"})},
    {"set": {"hit": "count"}, "values": values({"hit": "hits"}, {})},
]
print(json.dumps({"version": version("ranx"), "results": results}))
