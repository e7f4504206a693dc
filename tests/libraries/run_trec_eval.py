"""Values of trec_eval through pytrec_eval: JSON on standard input and output (see inputs.py)."""

import json
import sys
from importlib.metadata import version

import pytrec_eval

given = json.load(sys.stdin)
qrels = {user: {str(item): int(grade) for item, grade in rows} for user, rows in given["truth"].items()}
run = {user: {str(item): score for item, score in rows} for user, rows in given["lists"].items()}
names = {"ndcg": "ndcg_cut", "map": "map_cut", "hit": "success", "precision": "P", "recall": "recall"}
cuts = ",".join(map(str, given["ks"]))
measures = {f"{name}.{cuts}" for name in names.values()} | {"ndcg", "map", "recip_rank", "Rprec"}
results = list(pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run).values())
keys = {f"{name}@{k}": f"{key}_{k}" for name, key in names.items() for k in given["ks"]}
keys |= {"ndcg": "ndcg", "map": "map", "mrr": "recip_rank", "r_precision": "Rprec"}
values = {name: sum(user[key] for user in results) / len(results) for name, key in keys.items()}
results = [{"set": {"users": "both"}, "values": values}]
print(json.dumps({"version": version("pytrec-eval-terrier"), "results": results}))
