"""Alternating least squares of implicit, from given factors: JSON on standard input and output.

In: data (.npz of users, items, start_users, start_items), dims, sweeps, confidence, regulariser.
Out: scores of all pairs, user after user.
"""

import json
import sys

import numpy as np
from implicit.als import AlternatingLeastSquares
from scipy import sparse

given = json.load(sys.stdin)
data = np.load(given["data"])
shape = len(data["start_users"]), len(data["start_items"])
confidence = np.full(len(data["users"]), given["confidence"])
pairs = sparse.csr_matrix((confidence, (data["users"], data["items"])), shape=shape)
model = AlternatingLeastSquares(
    factors=given["dims"], regularization=given["regulariser"], iterations=given["sweeps"],
    use_cg=False, use_gpu=False, num_threads=1, dtype=np.float64, alpha=1.0,
)  # fmt: skip
model.user_factors, model.item_factors = data["start_users"], data["start_items"]
model.fit(pairs, show_progress=False)
print(json.dumps({"scores": (model.user_factors @ model.item_factors.T).tolist()}))
