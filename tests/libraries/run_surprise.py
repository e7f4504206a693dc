"""Matrix factorisation of scikit-surprise: JSON on standard input, JSON on standard output.

In: data (.npz of users, items, ratings, test_users, test_items), dims, epochs, rate, regulariser, init_sd.
Out: seconds an epoch, predictions of the test pairs, unclipped.
"""

import json
import sys
import time

import numpy as np
import pandas as pd
from surprise import SVD, Dataset, Reader

given = json.load(sys.stdin)
data = np.load(given["data"])
frame = pd.DataFrame({name: data[name] for name in ("users", "items", "ratings")})
reader = Reader(rating_scale=(float(data["ratings"].min()), float(data["ratings"].max())))
train = Dataset.load_from_df(frame, reader).build_full_trainset()
model = SVD(
    n_factors=given["dims"],
    n_epochs=given["epochs"],
    lr_all=given["rate"],
    reg_all=given["regulariser"],
    init_std_dev=given["init_sd"],
    random_state=1,
)
started = time.perf_counter()
model.fit(train)
seconds = (time.perf_counter() - started) / given["epochs"]
pairs = zip(data["test_users"].tolist(), data["test_items"].tolist(), strict=True)
predicted = [model.predict(user, item, clip=False).est for user, item in pairs]
print(json.dumps({"seconds": seconds, "predicted": predicted}))
