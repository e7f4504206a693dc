"""Values of rectools: JSON on standard input, JSON on standard output (see inputs.py)."""

import json
import sys
from importlib.metadata import version

import pandas as pd
from rectools.metrics import (
    MAP,
    MRR,
    NDCG,
    AvgRecPopularity,
    CatalogCoverage,
    F1Beta,
    HitRate,
    IntraListDiversity,
    MeanInvUserFreq,
    PairwiseHammingDistanceCalculator,
    Precision,
    Recall,
    Serendipity,
)

given = json.load(sys.stdin)
columns = ["user_id", "item_id"]
lists = [(user, row[0], n + 1) for user, rows in given["lists"].items() for n, row in enumerate(rows)]
truth = [(user, item) for user, rows in given["truth"].items() for item, _ in rows]
frames = pd.DataFrame(lists, columns=[*columns, "rank"]), pd.DataFrame(truth, columns=columns)


def values(names, frames=frames, **options):
    return {
        f"{name}@{k}": float(metric(k=k, **options).calc(*frames))
        for name, metric in names.items()
        for k in given["ks"]
    }


def user_values():
    """Serendipity and intra-list diversity of each user, by features of items."""
    before = pd.DataFrame(given["before"], columns=columns)
    features = pd.DataFrame(given["features"]).rename_axis("item_id")
    distances = PairwiseHammingDistanceCalculator(features)
    result = {}
    for k in given["ks"]:
        rows = Serendipity(k=k).calc_per_user(*frames, before, range(given["items"]))
        diverse = IntraListDiversity(k=k, distance_calculator=distances).calc_per_user(frames[0])
        for name, one in (("serendipity", rows), ("category_diversity", diverse)):
            result |= {f"{name}@{k}@{user}": float(number) for user, number in one.items()}
    return result


if "features" in given:
    results = [{"set": {}, "values": user_values()}]
elif "popularity" in given:
    rows = [(user, item) for item, times in enumerate(given["popularity"]) for user in range(times)]
    known = frames[0], pd.DataFrame(rows, columns=columns)
    share = values({"coverage": CatalogCoverage}, (frames[0], range(given["items"])), normalize=True)
    known_items = values({"novelty": MeanInvUserFreq, "mean_popularity": AvgRecPopularity}, known)
    results = [{"set": {}, "values": known_items | share}]
else:
    metrics = {"ndcg": NDCG, "map": MAP, "mrr": MRR, "hit": HitRate, "f1": F1Beta}
    results = [
        {"set": {}, "values": values({**metrics, "precision": Precision, "recall": Recall})},
        {"set": {"ideal": "min_k_relevant"}, "values": values({"ndcg": NDCG}, divide_by_achievable=True)},
        {"set": {"ap_by": "k"}, "values": values({"map": MAP}, divide_by_k=True)},
        {
            "set": {"precision_by": "min_k_relevant"},
            "values": values({"precision": Precision}, r_precision=True),
        },
    ]
print(json.dumps({"version": version("rectools"), "results": results}))
