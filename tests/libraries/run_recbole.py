"""Values of recbole: JSON on standard input, JSON on standard output (see inputs.py).

recbole evaluates users that have held-out items; item 0 is its padding and always scores -inf.
"""

import json
import sys
from importlib.metadata import version

import numpy as np
import torch
from recbole.evaluator import Collector, Evaluator

given = json.load(sys.stdin)
metrics = ["NDCG", "MAP", "MRR", "Hit", "Precision", "Recall", "GAUC"]
config = {"metrics": metrics, "topk": given["ks"], "device": "cpu", "metric_decimal_place": 15}
config["eval_args"] = {"mode": {"valid": "full", "test": "full"}}
users = sorted(set(given["truth"]) & set(given["lists"]))
scores = np.full((len(users), given["items"] + 1), -np.inf, dtype=np.float32)
positive = []
for row, user in enumerate(users):
    for item, score in given["lists"][user]:
        scores[row, item + 1] = score
    scores[row, [item + 1 for item in given["train"][user]]] = -np.inf
    positive += [(row, item + 1) for item, _ in given["truth"][user]]
positive_u, positive_i = torch.tensor(positive).T
collector = Collector(config)
collector.eval_batch_collect(torch.tensor(scores), None, positive_u, positive_i)
results = Evaluator(config).evaluate(collector.get_data_struct())
values = {name.replace("gauc", "weighted_auc"): float(value) for name, value in results.items()}
# A user without a list cannot occur: recbole's models score every item of every user.
results = [{"set": {"users": "both"}, "values": values}]
print(json.dumps({"version": version("recbole"), "results": results}))
