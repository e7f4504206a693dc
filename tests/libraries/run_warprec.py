"""Values of WarpRec's metrics: JSON on standard input, JSON on standard output (see inputs.py).

Users and items are numbered as the input does; WarpRec numbers them in the order of their ids. Its packages
are not initialised, because that imports Ray; the modules of its metrics and of its ties are.
"""

import importlib.util
import json
import sys
import types
from importlib.metadata import version
from pathlib import Path

import torch

if "warprec" not in sys.modules:
    root = Path(importlib.util.find_spec("warprec").submodule_search_locations[0])
    for name in ("", ".data", ".data.entities", ".evaluation", ".utils"):
        package = types.ModuleType(f"warprec{name}")
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[package.__name__] = package

import warprec.evaluation.metrics.accuracy
import warprec.evaluation.metrics.bias
import warprec.evaluation.metrics.coverage
import warprec.evaluation.metrics.diversity
import warprec.evaluation.metrics.fairness  # noqa: F401 (registers the metrics)
from scipy.sparse import csr_matrix
from warprec.data.ranking import top_k_breaking_ties
from warprec.evaluation.metrics.base_metric import BaseMetric
from warprec.utils.registry import metric_registry

given = json.load(sys.stdin)
ks, items = given["ks"], given["items"]
users = sorted(map(int, given["lists"]))
scores, grades = torch.full((len(users), items), -torch.inf), torch.zeros(len(users), items)
for row, user in enumerate(map(str, users)):
    for item, score in given["lists"][user]:
        scores[row, item] = score
    scores[row, given["train"][user]] = -torch.inf
    for item, grade in given["truth"].get(user, []):
        grades[row, item] = grade
binary, discounted = BaseMetric.binary_relevance(grades), BaseMetric.discounted_relevance(grades)
shared = {"ground": grades, "binary_relevance": binary, "discounted_relevance": discounted}
shared |= {"valid_users": BaseMetric.valid_users(grades)}


popularity = torch.tensor(given.get("popularity", [0] * items)).float()


def value(name, k, blocks):
    counts = {"num_users": max(users) + 1, "num_items": items, "item_interactions": popularity}
    metric = metric_registry.get(name, k=k, **counts)
    metric.update(scores, user_indices=torch.tensor(users), **shared, **blocks)
    (values,) = metric.compute().values()
    values = torch.as_tensor(values)
    return float(values[~torch.isnan(values)].mean())


def values(names, seed):
    generator = torch.Generator().manual_seed(seed)
    top_values, top = top_k_breaking_ties(scores, max(ks), generator, torch.tensor(users))
    result = {}
    for k in ks:
        blocks = {f"top_{k}_values": top_values[:, :k], f"top_{k}_indices": top[:, :k]}
        for kind, relevance in (("binary", binary), ("discounted", discounted)):
            blocks[f"top_{k}_{kind}_relevance"] = torch.gather(relevance, 1, top[:, :k])
        result |= {f"{name}@{k}": value(theirs, k, blocks) for name, theirs in names.items()}
    return result


names = {"ndcg": "nDCG", "map": "MAP", "mrr": "MRR", "hit": "HitRate", "precision": "Precision"}
names |= {"recall": "Recall", "f1": "F1"}
first = values(names, 42)
tied = any(len({score for _, score in pairs}) < len(pairs) for pairs in given["lists"].values())
if not tied:
    # Its GAUC leaves equal scores to the sorting routine.
    first["auc"] = value("GAUC", 1, {})
# A user without a list cannot occur: WarpRec's models score every item of every user.
both = {"users": "both"}
results = [
    {"set": both, "values": first},
    {"set": {**both, "gain": "binary"}, "values": values({"ndcg": "nDCGRendle2020"}, 42)},
    {"set": {**both, "tie_seed": 7}, "values": values(names, 7)},
]
if "popularity" in given:
    bias = {"aplt": "APLT", "aclt": "ACLT", "popularity_reo": "PopREO", "popularity_rsp": "PopRSP"}
    counts = {"entropy": "ShannonEntropy", "mean_popularity": "ARP"}
    counts |= {"coverage": "ItemCoverage", "gini": "Gini"}
    results = [{"set": {}, "values": values({**bias, **counts}, 42)}]


def group_values():
    """Numbers of clusters (from 1) and features of items; all users are one cluster."""
    pairs = [(int(user), item) for user, items in given["train"].items() for item in items]
    rows, columns = zip(*pairs, strict=True)
    size = max(users) + 1
    facts = {"num_users": size, "num_items": items, "item_interactions": popularity}
    facts |= {"item_cluster": torch.tensor(given["clusters"]), "user_cluster": torch.ones(size).long()}
    facts["feature_lookup"] = torch.tensor(given["features"]).float()
    facts["train_matrix"] = csr_matrix(([1.0] * len(rows), (rows, columns)), shape=(size, items))
    _, top = top_k_breaking_ties(scores, max(ks), torch.Generator().manual_seed(42), torch.tensor(users))
    result = {}
    for k in ks:
        relevance = torch.gather(binary, 1, top[:, :k])
        blocks = {f"top_{k}_indices": top[:, :k], f"top_{k}_binary_relevance": relevance}
        for name in ("REO", "RSP", "BiasDisparityBD", "SRecall"):
            metric = metric_registry.get(name, k=k, **facts)
            metric.update(scores, user_indices=torch.tensor(users), **shared, **blocks)
            for key, one in metric.compute().items():
                numbers = torch.as_tensor(one).float()
                result[f"{key}@{k}"] = float(numbers[~torch.isnan(numbers)].mean())
    return result


if "clusters" in given:
    results = [{"set": {}, "values": group_values()}]
print(json.dumps({"version": version("warprec"), "results": results}))
