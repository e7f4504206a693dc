"""Bayesian matrix factorisation of myfm: JSON on standard input, JSON on standard output.

In: data (.npz of users, items, ratings and test_users, test_items), dims, samples, burn_in.
Out: seconds an iteration, mean predictions of the test pairs.
"""

import json
import sys
import time

import numpy as np
from myfm import MyFMRegressor
from scipy import sparse

given = json.load(sys.stdin)
data = np.load(given["data"])
sizes = [int(max(data[side].max(), data[f"test_{side}"].max())) + 1 for side in ("users", "items")]


def one_hot(users, items):
    rows = np.arange(len(users)).repeat(2)
    columns = np.stack([users, items + sizes[0]], axis=1).ravel()
    return sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(users), sum(sizes)))


model = MyFMRegressor(rank=given["dims"], random_seed=1)
iterations = given["samples"] + given["burn_in"]
train = one_hot(data["users"], data["items"])
started = time.perf_counter()
model.fit(train, data["ratings"], n_iter=iterations, n_kept_samples=given["samples"], group_shapes=sizes)
seconds = (time.perf_counter() - started) / iterations
predicted = model.predict(one_hot(data["test_users"], data["test_items"]))
print(json.dumps({"seconds": seconds, "predicted": predicted.tolist()}))
