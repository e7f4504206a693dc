"""Values of replay-rec: JSON on standard input, JSON on standard output (see inputs.py)."""

import json
import sys
from importlib.metadata import version

import pandas as pd
from replay.metrics import MAP, MRR, NDCG, HitRate, Precision, Recall, RocAuc

given = json.load(sys.stdin)
columns = ["query_id", "item_id", "rating"]
lists = [(user, item, score) for user, rows in given["lists"].items() for item, score in rows]
truth = [(user, item) for user, rows in given["truth"].items() for item, _ in rows]
frames = pd.DataFrame(lists, columns=columns), pd.DataFrame(truth, columns=columns[:2])
metrics = {"ndcg": NDCG, "map": MAP, "mrr": MRR, "hit": HitRate, "precision": Precision, "recall": Recall}
values = {}
for name, metric in metrics.items():
    result = metric(given["ks"])(*frames)
    values |= {f"{name}@{k}": value for k, value in zip(given["ks"], result.values(), strict=True)}
values["auc"] = next(iter(RocAuc(given["items"])(*frames).values()))
print(json.dumps({"version": version("replay-rec"), "results": [{"set": {}, "values": values}]}))
