"""Values of lenskit: JSON on standard input, JSON on standard output (see inputs.py)."""

import json
import sys
import warnings
from importlib.metadata import version

from lenskit.data import ItemList, ItemListCollection
from lenskit.metrics import RunAnalysis
from lenskit.metrics.ranking import NDCG, RBP, AveragePrecision, Hit, Precision, Recall, RecipRank

# 0 / 0 for users without truth.
warnings.simplefilter("ignore")
given = json.load(sys.stdin)
outputs, test = ItemListCollection(["user_id"]), ItemListCollection(["user_id"])
for user, rows in given["lists"].items():
    scores = [score for _, score in rows]
    outputs.add(ItemList([item for item, _ in rows], scores=scores, ordered=True), user_id=user)
for user, rows in given["truth"].items():
    grades = [float(grade) for _, grade in rows]
    test.add(ItemList([item for item, _ in rows], rating=grades), user_id=user)


def values(lists, names, **options):
    run = RunAnalysis()
    for name, metric in names.items():
        for k in given["ks"]:
            run.add_metric(metric(k, **options), label=f"{name}@{k}")
        if name in ("ndcg", "map", "mrr", "rbp"):
            run.add_metric(metric(**options), label=name)
    return run.measure(lists, test).list_summary()["mean"].to_dict()


metrics = {"ndcg": NDCG, "mrr": RecipRank, "rbp": RBP, "hit": Hit, "precision": Precision, "recall": Recall}
graded = values(outputs, {"ndcg": NDCG}, gain="rating")
# AveragePrecision divides by zero for a user without truth.
with_truth = ItemListCollection(["user_id"])
for (user,), items in outputs:
    if user in given["truth"]:
        with_truth.add(items, user_id=user)
binary = values(outputs, metrics)
precision = {name: value for name, value in binary.items() if name.startswith("precision")}
if version("lenskit") < "2026":
    # A user without truth counts 0 in all metrics, later in precision alone.
    precision = {}
results = [
    {"set": {}, "values": {name: value for name, value in binary.items() if name not in precision}},
    {"set": {"gain": "linear"}, "values": graded},
    {"set": {"empty_users": "leave_out"}, "values": values(with_truth, {"map": AveragePrecision})},
]
if precision:
    results.append({"set": {"users": "output"}, "values": precision})
print(json.dumps({"version": version("lenskit"), "results": results}))
