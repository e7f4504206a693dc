"""Tables about splits: rows, items, user blocks, candidates, propensities, manifests."""

from __future__ import annotations

import pyarrow as pa

from recbench_spark.core.columns import (
    BOOLEAN,
    DOUBLE,
    INT,
    ITEM_ID,
    LONG,
    PART,
    SPLIT_ID,
    STRING,
    USER_ID,
    Table,
    TableColumn,
    array_type,
    map_type,
    text_column,
)

MANIFESTS = Table(
    "manifests",
    "Facts about a split: counts, content hashes, overlaps, leakage. One row per fact.",
    (
        SPLIT_ID,
        text_column("part", "train, valid, test ... as in splits, or log for the whole."),
        text_column("fact", "rows, users, items, rejected_rows, duplicates, overlap, content_hash ..."),
        TableColumn("value", DOUBLE, "The count, share, days of age, or microseconds since 1970."),
        TableColumn("detail", STRING, "Text facts: content hash, settings as JSON, times."),
    ),
)

TIME_FACTS = ("newest_event", "oldest_event", "period_begin", "period_end")
"""Facts in `manifests` which are times: microseconds as numbers, and a text in UTC and in the log's zone.
"""

REJECTS = Table(
    "rejects",
    "Rows of a log that could not be used, where dataset.bad_rows is reject.",
    (
        SPLIT_ID,
        text_column("file", "File the row is from."),
        TableColumn("line", STRING, "The line as it stands, or the row as JSON."),
        text_column("reason", "The mistake in it."),
    ),
    partition_by=("split_id",),
)

SPLITS = Table(
    "splits",
    "The log with one label per row.",
    (
        SPLIT_ID,
        USER_ID,
        ITEM_ID,
        TableColumn("rating", DOUBLE, "Rating or relevance; 1 where the log has none.", False),
        TableColumn("event_time", LONG, "Microseconds since 1970 UTC; NULL where the log has no time."),
        text_column("part", "train, given, valid, test, open_loop, later, or a part named in split.parts."),
        TableColumn("attributes", map_type(STRING, STRING), "Further columns kept as slices."),
        TableColumn("signal", BOOLEAN, "True: a trained row whose events are no targets (dataset.events)."),
        TableColumn("strength", DOUBLE, "Weights so far of a held-out pair that is a successive question."),
    ),
    partition_by=("split_id",),
)

ITEMS = Table(
    "items",
    "The catalogue of a split with its dense positions.",
    (
        SPLIT_ID,
        ITEM_ID,
        TableColumn("item_index", INT, "Dense position in item id order: ties fall to the smaller.", False),
        TableColumn("n_train", LONG, "Training interactions of the item.", False),
        text_column("popularity", "head, torso, tail (a third of the training rows each) or cold."),
        TableColumn("attributes", map_type(STRING, STRING), "Columns of the items table kept as slices."),
    ),
    partition_by=("split_id",),
)

HELD_OUT = pa.struct(
    [
        pa.field("item_ids", array_type(STRING)),
        pa.field("items", array_type(INT)),
        pa.field("relevance", array_type(DOUBLE)),
        pa.field("slices", map_type(STRING, array_type(STRING))),
    ]
)

USER_BLOCKS = Table(
    "user_blocks",
    "One row per user: training items and held-out items as arrays, made once for all models.",
    (
        SPLIT_ID,
        USER_ID,
        TableColumn("user_key", LONG, "xxhash64 of the user id.", False),
        TableColumn(
            "train_items", array_type(INT), "item_index of training and given items, ascending.", False
        ),
        TableColumn("train_ratings", array_type(DOUBLE), "Their ratings, in the same order.", False),
        TableColumn("held_out", map_type(STRING, HELD_OUT), "Per part the truth, by item_index.", False),
        TableColumn("closed_items", array_type(INT), "Trained items that are no candidates; NULL: all."),
    ),
    partition_by=("split_id",),
)

CANDIDATES = Table(
    "candidates",
    "Items drawn for a user beside the truth, stored once: the same for every model and night.",
    (
        SPLIT_ID,
        PART,
        text_column("draw", "How they were drawn: weights, number, seed."),
        USER_ID,
        TableColumn("items", array_type(INT), "item_index of the drawn items, in the order drawn.", False),
    ),
    partition_by=("split_id",),
)

PROPENSITIES = Table(
    "propensities",
    "Exposure propensities of items, known or estimated.",
    (
        SPLIT_ID,
        text_column("method", "true, relative_frequency, power_law ..."),
        ITEM_ID,
        TableColumn("propensity", DOUBLE, "Probability that the item is exposed to a user.", False),
    ),
    partition_by=("split_id",),
)

METHOD = text_column(
    "method", "How they were estimated: power_law, relative_frequency ..., with further settings."
)

RATING_PROPENSITIES = Table(
    "rating_propensities",
    "Chances that a user's item was exposed, by the rating: naive Bayes on a random sample.",
    (
        SPLIT_ID,
        METHOD,
        TableColumn("rating", DOUBLE, "Rating in the log.", False),
        TableColumn("propensity", DOUBLE, "Probability that an item of this rating is exposed.", False),
    ),
    partition_by=("split_id",),
)

CELL_PROPENSITIES = Table(
    "cell_propensities",
    "Chances that an item was exposed to a user, by logistic regression on features of both.",
    (
        SPLIT_ID,
        METHOD,
        USER_ID,
        ITEM_ID,
        TableColumn("propensity", DOUBLE, "Probability that the item is exposed to the user.", False),
    ),
    partition_by=("split_id",),
)

POWER_LAWS = Table(
    "power_laws",
    "Fitted laws of item counts, P(n) ~ n^-alpha from xmin on, behind propensities of powers.",
    (
        SPLIT_ID,
        METHOD,
        text_column("fitted_by", "approximate (Clauset's formula) or exact (the zeta likelihood)."),
        TableColumn("alpha", DOUBLE, "The exponent.", False),
        TableColumn("error", DOUBLE, "Standard error of alpha, xmin taken as known."),
        TableColumn("xmin", LONG, "Smallest count of the tail: where the distance is least.", False),
        TableColumn("tail", LONG, "Items of the tail.", False),
        TableColumn("items", LONG, "Items that were shown.", False),
        TableColumn("interactions", LONG, "Rows of the log fitted to.", False),
        TableColumn("users", LONG, "Users of the log fitted to.", False),
        TableColumn("distance", DOUBLE, "Kolmogorov and Smirnov's, between the tail and the law."),
        TableColumn(
            "p", DOUBLE, "Goodness of fit: a small p speaks against a power law; NULL: not requested."
        ),
        TableColumn("replicates", INT, "Simulated laws behind p.", False),
        TableColumn("factor", DOUBLE, "Factor that propensities were multiplied by.", False),
        TableColumn("raised", LONG, "Items whose propensity was raised to the floor.", False),
        TableColumn("lowered", LONG, "Items whose propensity was lowered to 1.", False),
    ),
    partition_by=("split_id",),
)

INTERACTIONS = pa.schema(
    [
        pa.field("user_id", STRING),
        pa.field("item_id", STRING),
        pa.field("rating", DOUBLE),
        pa.field("event_time", LONG),
        pa.field("part", STRING),
        pa.field("attributes", map_type(STRING, STRING)),
    ]
)
"""Schema of every reader's result; `part` is NULL unless the log itself names a row's part."""
