"""Values of cornac: JSON on standard input, JSON on standard output (see inputs.py).

A user without a list is one that the model never met: cornac leaves such users out.
"""

import json
import sys
from importlib.metadata import version

import numpy as np
from cornac.eval_methods import BaseMethod
from cornac.eval_methods.base_method import ranking_eval
from cornac.metrics import AUC, MAP, MRR, NDCG, FMeasure, HitRatio, Precision, Recall
from cornac.models import Recommender

given = json.load(sys.stdin)
# One more user has seen everything, so that every item is known to cornac.
train = [("all", str(item), 1.0) for item in range(given["items"])]
train += [(user, str(item), 1.0) for user in given["lists"] for item in given["train"][user]]
test = [(user, str(i), float(g)) for user, rows in given["truth"].items() for i, g in rows]
method = BaseMethod.from_splits(train_data=train, test_data=test, exclude_unknowns=True)


class Given(Recommender):
    """Gives the scores it was given."""

    def score(self, user_idx, item_idx=None):
        user = {index: name for name, index in method.train_set.uid_map.items()}[user_idx]
        scores = dict(given["lists"][user])
        return np.array([scores[int(item)] for item in method.train_set.iid_map])


model = Given(name="given")
model.fit(method.train_set)


def values(metrics):
    result, _ = ranking_eval(model, list(metrics.values()), method.train_set, method.test_set)
    return {name: float(value) for name, value in zip(metrics, result, strict=True)}


at_k = {"ndcg": NDCG, "hit": HitRatio, "precision": Precision, "recall": Recall, "f1": FMeasure}
cut = values({f"{name}@{k}": metric(k=k) for name, metric in at_k.items() for k in given["ks"]})
# Apart: beside a metric at k cornac sorts the first k only.
uncut = values({"ndcg": NDCG(), "map": MAP(), "mrr": MRR(), "auc": AUC()})
uncut |= {f"{name}@{k}": uncut[name] for name in ("map", "mrr") for k in given["ks"]}
print(json.dumps({"version": version("cornac"), "results": [{"set": {}, "values": cut | uncut}]}))
