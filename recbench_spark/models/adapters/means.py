"""Means of users and items by exact sums.

Tasks hold whole users, and only their sums by item are shuffled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Floats, Ints, Ints32
from recbench_spark.core.hashed_ids import hash_encoded
from recbench_spark.core.ids import encode_texts
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.models.fits.logs import collect_facts, find_scale, to_decimals
from recbench_spark.models.rating.means import MeansModel
from recbench_spark.ranking.predict import Predictor
from recbench_spark.ranking.sources import DotSource
from recbench_spark.splits.labelled_rows import open_labelled
from recbench_spark.storage.blocks import TaskRows
from recbench_spark.storage.packed_blocks import Block, partition_rows
from recbench_spark.storage.scratch import keep_results
from recbench_spark.storage.shared_arrays import SharedRows

COLUMNS = ("user_id", "item_id", "rating", "part")
"""Columns of the labelled rows."""

SUMS = ("item_id", "total", "n")
"""Columns of a task's sums by item."""


class MeansAdapter(ModelAdapter[MeansModel]):
    """Fits the mean model and ranks by its biases.

    Biases hold the overall mean and both sides' deviations.
    """

    runs_local: ClassVar[bool] = True
    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Compute one side's deviations, then the other side's.

        Sums by item are shuffled, no rows. Item biases include the overall mean, so ranking and prediction
        use one number.

        Raises:
            DataError: a rating outside `dataset.scale`.
        """
        if data.scale is not None:
            find_scale(collect_facts(open_labelled(data.store, data.split_id)), data.scale)
        mean, order, by_users = data.mean_rating, self.settings.means, self.settings.user_shrinkage
        if "items" not in order:
            every = data.open_items().open(("item_id", "n_train"), _list_trained, ("item_id", "bias"))
            kept = keep_results(data.store.scratch, every, data.store.engine)
        else:
            first = by_users if order == "users_items" else None
            kept = keep_results(data.store.scratch, self._sum_items(data, mean, first), data.store.engine)
        items = kept.open(("item_id", "bias"), partial(_shift, mean=mean), ("item_id", "vector", "bias"))
        if "users" not in order:
            return Trained(None, items)
        source = None
        if order == "items_users":
            rows = SharedRows(f"{data.key(self.settings)}-biases", kept.files)
            source = DotSource(rows, data.n_items, 0, catalogue=data.known_items)
        find = partial(_find_users, mean=mean, shrinkage=by_users, items=source)
        return Trained(data.open_by_user(COLUMNS, find, ("user_id", "vector", "bias")), items)

    def _sum_items(self, data: SplitData, mean: float, by_users: float | None) -> TaskRows:
        """Return the item deviations, after the users' ones if asked.

        `by_users` is the users' shrinkage; None: without them.
        """
        add = partial(_sum_by_item, mean=mean, shrinkage=by_users)
        tasks = data.store.engine.count_tasks(data.n_items)
        sums = data.open_by_user(COLUMNS, add, SUMS).deal(partial(_deal_items, tasks=tasks), tasks)
        finish = partial(_finish_items, shrinkage=self.settings.item_shrinkage)
        return sums.then(finish, ("item_id", "vector", "bias"))

    def predict(self, users: Any, data: SplitData) -> TaskRows:
        """Predict ratings; an unseen user or item has deviation 0.

        Predictions are clipped to `dataset.scale` if it is given. See `ModelAdapter.predict`.
        """
        trained = self.load(data)
        predictor = Predictor(self.open_source(trained, data), data.mean_rating, "bias", data.scale)
        return data.predict(users, predictor, trained.users)


# ------------------------------------------------------------------------------ what tasks do


def _list_trained(items: pa.Table) -> pa.Table:
    ids = items.filter(pc.greater(items.column("n_train"), 0)).column("item_id")
    return pa.table({"item_id": ids, "bias": np.zeros(len(ids))})


def _shift(items: pa.Table, mean: float) -> pa.Table:
    return _name_biases("item_id", items.column("item_id"), mean + items.column("bias").to_numpy())


def _find_users(rows: pa.Table, mean: float, shrinkage: float, items: DotSource | None) -> pa.Table:
    """Return some users' deviations, after the items' if there are any."""
    users, codes, left = _read_rows(rows, mean)
    if items is not None:
        index = items.catalogue.find(codes.dictionary)[0] if items.catalogue else np.zeros(0)
        left = left - items.rows.arrays(items.build)["bias"][index[codes.indices.to_numpy()]]
    which, totals, n = _add_up(users.indices.to_numpy(), left)
    return _name_biases("user_id", users.dictionary.take(pa.array(which)), _divide(totals, n, shrinkage))


def _sum_by_item(rows: pa.Table, mean: float, shrinkage: float | None) -> pa.Table:
    users, items, left = _read_rows(rows, mean)
    if shrinkage is not None:
        user_r = users.indices.to_numpy()
        which, totals, n = _add_up(user_r, left)
        bias_u = np.zeros(len(users.dictionary))
        bias_u[which] = _divide(totals, n, shrinkage)
        left = left - bias_u[user_r]
    which, totals, n = _add_up(items.indices.to_numpy(), left)
    return pa.table([items.dictionary.take(pa.array(which)), totals, pa.array(n)], list(SUMS))


def _deal_items(tables: Iterable[pa.Table], tasks: int) -> Iterator[Block]:
    for table in tables:
        if len(table):
            hashes = hash_encoded(encode_texts(table.column("item_id")))
            yield from partition_rows(table.combine_chunks(), (hashes % np.uint64(tasks)).astype(np.int32))


def _finish_items(sums: pa.Table, shrinkage: float) -> pa.Table:
    added = sums.group_by("item_id").aggregate([("total", "sum"), ("n", "sum")])
    bias = _divide(added.column("total_sum"), added.column("n_sum").to_numpy(), shrinkage)
    return _name_biases("item_id", added.column("item_id"), bias)


def _read_rows(rows: pa.Table, mean: float) -> tuple[pa.DictionaryArray, pa.DictionaryArray, Floats]:
    """Return user, item and deviation from the mean per training row."""
    train = rows.filter(pc.equal(rows.column("part").cast(pa.string()), "train"))
    users, items = (encode_texts(train.column(name)) for name in COLUMNS[:2])
    return users, items, train.column("rating").to_numpy() - mean


def _add_up(key_r: Ints32, left_r: Floats) -> tuple[Ints, pa.ChunkedArray, Ints]:
    """Return the distinct keys, their exact totals and row counts."""
    rows = pa.table({"key": key_r, "left": to_decimals(left_r)})
    added = rows.group_by("key").aggregate([("left", "sum"), ("left", "count")])
    return added.column("key").to_numpy(), added.column("left_sum"), added.column("left_count").to_numpy()


def _divide(totals: pa.ChunkedArray, n: Ints, shrinkage: float) -> Floats:
    """Return total / (n + shrinkage); Python rounds each total once."""
    quotients: Floats = np.array([float(total) for total in totals.to_pylist()]) / (n + float(shrinkage))
    return quotients


def _name_biases(name: str, ids: pa.Array, bias: Floats) -> pa.Table:
    vectors = pa.array([[]], pa.list_(pa.float32())).take(pa.array([0] * len(ids), pa.int32()))
    return pa.table({name: ids, "vector": vectors, "bias": pa.array(bias, pa.float64())})
