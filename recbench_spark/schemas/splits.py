"""Tables of splits: labelled rows, items, blocks of users, candidates, propensities, manifests."""

from __future__ import annotations

from pyspark.sql import types as T

from recbench_spark.schemas.base import (
    DOUBLE,
    INT,
    ITEM_ID,
    LONG,
    PART,
    SPLIT_ID,
    STRING,
    USER_ID,
    Column,
    Table,
    array_of,
    text_id,
)

MANIFESTS = Table(
    "manifests",
    "What a split consists of: counts, content hashes, overlaps, leakage. One row a fact.",
    (
        SPLIT_ID,
        text_id("part", "train, valid, test ... as in splits, or log for the whole."),
        text_id("fact", "rows, users, items, rejected_rows, duplicates, overlap, content_hash ..."),
        Column("value", DOUBLE, "The count or share."),
        Column("detail", STRING, "Text facts: content hash, settings as JSON."),
    ),
)

REJECTS = Table(
    "rejects",
    "Rows of a log that could not be used, where dataset.bad_rows is reject.",
    (
        SPLIT_ID,
        text_id("file", "File the row is from."),
        Column("line", STRING, "The line as it stands, or the row as JSON."),
        text_id("reason", "What is wrong with it."),
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
        Column("rating", DOUBLE, "Rating or relevance; 1 where the log has none.", False),
        Column("event_time", LONG, "Microseconds since 1970 UTC; NULL where the log has no time."),
        text_id("part", "train, given, valid, test, open_loop, later, or a part named in split.parts."),
        Column("attributes", T.MapType(STRING, STRING), "Further columns kept as slices."),
    ),
    partition_by=("split_id",),
)

ITEMS = Table(
    "items",
    "The catalogue of a split with its dense positions.",
    (
        SPLIT_ID,
        ITEM_ID,
        Column("item_index", INT, "Dense position in item id order: ties fall to the smaller.", False),
        Column("n_train", LONG, "Training interactions of the item.", False),
        text_id("popularity", "head, torso, tail (a third of the training rows each) or cold."),
        Column("attributes", T.MapType(STRING, STRING), "Columns of the items table kept as slices."),
    ),
    partition_by=("split_id",),
)

HELD_OUT = T.StructType(
    [
        T.StructField("item_ids", array_of(STRING)),
        T.StructField("items", array_of(INT)),
        T.StructField("relevance", array_of(DOUBLE)),
        T.StructField("slices", T.MapType(STRING, array_of(STRING))),
    ]
)

USER_BLOCKS = Table(
    "user_blocks",
    "One row per user: training items and held-out items as arrays, made once for all models.",
    (
        SPLIT_ID,
        USER_ID,
        Column("user_key", LONG, "xxhash64 of the user id.", False),
        Column("train_items", array_of(INT), "item_index of training and given items, ascending.", False),
        Column("train_ratings", array_of(DOUBLE), "Their ratings, in the same order.", False),
        Column("held_out", T.MapType(STRING, HELD_OUT), "Per part the truth, by item_index.", False),
    ),
    partition_by=("split_id",),
)

CANDIDATES = Table(
    "candidates",
    "Items drawn for a user beside the truth, stored once: the same for every model and night.",
    (
        SPLIT_ID,
        PART,
        text_id("draw", "How they were drawn: weights, number, seed."),
        USER_ID,
        Column("items", array_of(INT), "item_index of the drawn items, in the order drawn.", False),
    ),
    partition_by=("split_id",),
)

PROPENSITIES = Table(
    "propensities",
    "Exposure propensities of items, known or estimated.",
    (
        SPLIT_ID,
        text_id("method", "true, relative_frequency, power_law ..."),
        ITEM_ID,
        Column("propensity", DOUBLE, "Probability that the item is exposed to a user.", False),
    ),
    partition_by=("split_id",),
)

METHOD = text_id("method", "How they were found: power_law, relative_frequency ...; further settings.")

RATING_PROPENSITIES = Table(
    "rating_propensities",
    "Chances that a user's item was exposed, by the rating: naive Bayes on a random sample.",
    (
        SPLIT_ID,
        METHOD,
        Column("rating", DOUBLE, "Rating in the log.", False),
        Column("propensity", DOUBLE, "Probability that an item of this rating is exposed.", False),
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
        Column("propensity", DOUBLE, "Probability that the item is exposed to the user.", False),
    ),
    partition_by=("split_id",),
)

POWER_LAWS = Table(
    "power_laws",
    "Fitted laws of item counts, P(n) ~ n^-alpha from xmin on, behind propensities of powers.",
    (
        SPLIT_ID,
        METHOD,
        text_id("fitted_by", "approximate (Clauset's formula) or exact (the zeta likelihood)."),
        Column("alpha", DOUBLE, "The exponent.", False),
        Column("error", DOUBLE, "Standard error of alpha, xmin taken as known."),
        Column("xmin", LONG, "Smallest count of the tail: where the distance is least.", False),
        Column("tail", LONG, "Items of the tail.", False),
        Column("items", LONG, "Items that were shown.", False),
        Column("interactions", LONG, "Rows of the log fitted to.", False),
        Column("users", LONG, "Users of the log fitted to.", False),
        Column("distance", DOUBLE, "Kolmogorov and Smirnov's, between the tail and the law."),
        Column("p", DOUBLE, "Goodness of fit: small speaks against a power law; NULL: not asked for."),
        Column("replicates", INT, "Simulated laws behind p.", False),
        Column("factor", DOUBLE, "What propensities were multiplied by.", False),
        Column("raised", LONG, "Items whose propensity was raised to the floor.", False),
        Column("lowered", LONG, "Items whose propensity was lowered to 1.", False),
    ),
    partition_by=("split_id",),
)

INTERACTIONS = T.StructType(
    [
        T.StructField("user_id", STRING),
        T.StructField("item_id", STRING),
        T.StructField("rating", DOUBLE),
        T.StructField("event_time", LONG),
        T.StructField("part", STRING),
        T.StructField("attributes", T.MapType(STRING, STRING)),
    ]
)
"""What every reader returns; `part` is NULL unless the log itself says where a row belongs."""
