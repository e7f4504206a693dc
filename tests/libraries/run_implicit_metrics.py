"""Values of implicit's `ranking_metrics_at_k`: JSON on standard input and output (see inputs.py).

Its precision is that of all users together: `pooled_precision` of inputs.py.
"""

import json
import sys
from importlib.metadata import version

import numpy as np
from implicit.evaluation import ranking_metrics_at_k
from scipy.sparse import csr_matrix

given = json.load(sys.stdin)
users = max(map(int, [*given["lists"], *given["truth"]])) + 1
lists = {
    int(user): [item for item, _ in pairs if item not in given["train"][user]]
    for user, pairs in given["lists"].items()
}


def matrix(rows):
    pairs = [(int(user), item) for user, items in rows.items() for item in items]
    at = ([user for user, _ in pairs], [item for _, item in pairs])
    return csr_matrix((np.ones(len(pairs), np.float32), at), shape=(users, given["items"]))


class GivenLists:
    """A model whose recommendations are the lists of the input."""

    def recommend(self, userids, user_items, N):  # noqa: N803 (the name is implicit's)
        shown = np.full((len(userids), N), -1, np.int32)
        for row, user in enumerate(userids):
            best = lists.get(int(user), [])[:N]
            shown[row, : len(best)] = best
        return shown, np.ones(shown.shape, np.float32)


train = matrix(given["train"])
truth = matrix({user: [item for item, _ in pairs] for user, pairs in given["truth"].items()})
values = {}
for k in given["ks"]:
    at_k = ranking_metrics_at_k(GivenLists(), train, truth, K=k, show_progress=False, num_threads=1)
    names = {"pooled_precision": "precision", "map": "map", "ndcg": "ndcg"}
    values |= {f"{name}@{k}": float(at_k[theirs]) for name, theirs in names.items()}
print(json.dumps({"version": version("implicit"), "results": [{"set": {}, "values": values}]}))
