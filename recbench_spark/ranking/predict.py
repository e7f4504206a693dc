"""Ratings predicted for users' truth items.

The models' scores are ratings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.ranking.batch_schemas import USER_PREDICTIONS
from recbench_spark.ranking.batches import read_item_lists
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.scorers import Scorer, UserBlock
from recbench_spark.ranking.scored import user_block
from recbench_spark.ranking.sources import Source
from recbench_spark.storage.blocks import Engine, Rows, Side, Sides, TaskRows, deal_sides
from recbench_spark.storage.packed_blocks import unpack_blocks
from recbench_spark.storage.shared_arrays import flatten_lists

USERS, KNOWN = 0, 1
"""Numbers of the sides: the users, and the model's rows about them."""

USER_COLUMNS = ("user_id", "part", "user_key", "item_ids", "items", "relevance")

PREDICTED = USER_PREDICTIONS.append(pa.field("unknown", pa.int32()))

BATCH_USERS = 1 << 12
"""Users predicted at once."""


@dataclass(frozen=True)
class Predictor:
    """A model as tasks predict with it.

    Attributes:
        source: item scores; None: the rows beside the users are predictions for their items.
        mean: prediction for a pair with an unknown user or item.
        column: what the rows hold beside `user_id`: `vector`, or `bias`, which is added to each score (0
            for other users).
        scale: lowest and highest prediction; None: there are no bounds.
    """

    source: Source | None
    mean: float
    column: str = "vector"
    scale: tuple[float, float] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns in the rows beside the users."""
        if self.source is None:
            return ("user_id", "part", "item_id", "prediction")
        return ("user_id", self.column)


def predict_rows(engine: Engine, users: Rows, predictor: Predictor, known: Rows, tasks: int) -> TaskRows:
    """Predict users' truth items, with one shuffle by user.

    Args:
        engine: the runner.
        users: rows from `part_users.select_part_users`.
        predictor: the model.
        known: the model's rows about users.
        tasks: number of tasks.

    Returns:
        Rows of `PREDICTED`; `unknown`: how many pairs the model does not know.
    """
    sides = [Side(USERS, users, USER_COLUMNS), Side(KNOWN, known, predictor.columns)]
    predict = partial(_predict_sides, predictor=predictor)
    return deal_sides(engine, sides, tasks).then(predict, tuple(PREDICTED.names))


def _predict_sides(sides: Sides, predictor: Predictor) -> pa.Table:
    users, known = (unpack_blocks(sides.pop(number, [])) for number in (USERS, KNOWN))
    if users is None:
        return PREDICTED.empty_table()
    batches = users.to_batches(max_chunksize=BATCH_USERS)
    if predictor.source is None:
        predicted = [_look_up(batch, known, predictor.mean) for batch in batches]
    else:
        scorer = predictor.source.scorer()
        predicted = [_predict_batch(batch, known, predictor, scorer) for batch in batches]
    rows = [_prediction_batch(*one, predictor.scale) for one in zip(batches, predicted, strict=True)]
    return pa.Table.from_batches(rows, PREDICTED)


def _look_up(batch: pa.RecordBatch, pairs: pa.Table | None, mean: float) -> tuple[Floats, Bools]:
    """Return each truth item's stored prediction, and a mask.

    The mask tells where there is one; elsewhere `mean` stands.
    """
    offsets, ids = _flatten_ids(batch)
    prediction_p, known_p = np.full(len(ids), mean), np.zeros(len(ids), bool)
    if pairs is None or not len(ids):
        return prediction_p, known_p
    users, items = _name_users(batch), ids.unique()
    row_k = pc.index_in(_name_users(pairs), users).fill_null(-1).to_numpy()
    item_k = pc.index_in(pairs.column("item_id"), items).fill_null(-1).to_numpy()
    held_k = np.flatnonzero((row_k >= 0) & (item_k >= 0))
    key_k = row_k[held_k].astype(np.int64) * len(items) + item_k[held_k]
    row_p = np.repeat(np.arange(batch.num_rows), np.diff(offsets))
    key_p = row_p * len(items) + pc.index_in(ids, items).to_numpy()
    place_p = pc.index_in(pa.array(key_p), pa.array(key_k)).fill_null(-1).to_numpy()
    known_p = place_p >= 0
    stored_k = pairs.column("prediction").to_numpy()[held_k]
    prediction_p[known_p] = stored_k[place_p[known_p]]
    return prediction_p, known_p


def _flatten_ids(batch: pa.RecordBatch) -> tuple[Ints, pa.Array]:
    column = batch.column("item_ids")
    return column.offsets.to_numpy() - column.offsets[0].as_py(), column.flatten()


def _name_users(rows: pa.RecordBatch | pa.Table) -> pa.Array:
    """Return user and part as one text.

    A part has no NUL in its name.
    """
    column = pc.binary_join_element_wise(rows.column("part"), rows.column("user_id"), "\0")
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _predict_batch(
    batch: pa.RecordBatch, known: pa.Table | None, predictor: Predictor, scorer: Scorer
) -> tuple[Floats, Bools]:
    """Return each truth item's prediction, and which pairs are known."""
    assert predictor.source is not None
    truth = read_item_lists(batch, "items")
    if predictor.column == "vector":
        batch = batch.append_column("vector", _find_known(batch, known, "vector", pa.list_(pa.float32())))
    known_p = _find_known_pairs(batch, truth, scorer)
    prediction_p = np.full(len(known_p), predictor.mean)
    prediction_p[known_p] = _scores(scorer, user_block(batch, predictor.source), truth, known_p)
    if predictor.column == "vector":
        return prediction_p, known_p
    bias_u = _find_known(batch, known, "bias", pa.float64()).fill_null(0.0).to_numpy()
    # An item without training rows has the mean, its prediction: the pair counts as known.
    return prediction_p + np.repeat(bias_u, np.diff(truth.offsets_u)), truth.items_p >= 0


def _find_known(batch: pa.RecordBatch, known: pa.Table | None, name: str, kind: pa.DataType) -> pa.Array:
    """Return a column of the model's rows, by user.

    NULL for users without a row.
    """
    if known is None:
        return pa.nulls(batch.num_rows, kind)
    place_u = pc.index_in(batch.column("user_id"), known.column("user_id").combine_chunks())
    return known.column(name).take(place_u).combine_chunks().cast(kind)


def _find_known_pairs(batch: pa.RecordBatch, truth: ItemLists, scorer: Scorer) -> Bools:
    """Mark pairs whose user and item the model knows."""
    scored_p = (truth.items_p >= 0) & scorer.scored_i[np.maximum(truth.items_p, 0)]
    if "vector" not in batch.schema.names:
        return np.asarray(scored_p)
    known_u = batch.column("vector").is_valid().to_numpy(zero_copy_only=False)
    return np.asarray(scored_p & np.repeat(known_u, np.diff(truth.offsets_u)))


def _scores(scorer: Scorer, users: UserBlock, truth: ItemLists, known_p: Bools) -> Floats:
    """Return scores for the known pairs, in their order."""
    before_p = np.concatenate([[0], np.cumsum(known_p)])
    return scorer.score_listed(users, ItemLists(before_p[truth.offsets_u], truth.items_p[known_p]))


def _prediction_batch(
    batch: pa.RecordBatch, predicted: tuple[Floats, Bools], scale: tuple[float, float] | None
) -> pa.RecordBatch:
    prediction_p, known_p = predicted
    if scale is not None:  # NaN becomes the highest
        prediction_p = np.fmax(scale[0], np.fmin(scale[1], prediction_p))
    offsets, outcome = flatten_lists(batch.column("relevance"))
    bounds = pa.array(offsets, pa.int32())
    before_p = np.concatenate([[0], np.cumsum(~known_p)])
    columns = {
        **{name: batch.column(name) for name in ("user_id", "part", "user_key")},
        "prediction": pa.ListArray.from_arrays(bounds, pa.array(prediction_p)),
        "outcome": pa.ListArray.from_arrays(bounds, pa.array(outcome)),
        "unknown": pa.array(np.diff(before_p[offsets]), pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns, PREDICTED)
