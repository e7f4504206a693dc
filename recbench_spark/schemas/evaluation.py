"""Tables of results: rankings, values of users, metrics, other definitions."""

from __future__ import annotations

from pyspark.sql import types as T

from recbench_spark.schemas.base import (
    DEFINITION,
    DOUBLE,
    ESTIMATOR,
    INT,
    LONG,
    METRIC,
    PART,
    RUN_ID,
    STRING,
    USER_ID,
    Column,
    K,
    Table,
    array_of,
)

METRICS = Table(
    "metrics",
    "One row per number: a metric at a cut-off, with its interval. Long form; NULL slice: everyone.",
    (
        RUN_ID,
        PART,
        METRIC,
        DEFINITION,
        K,
        ESTIMATOR,
        Column("slice_key", STRING, "What the slice is by: popularity, cold_user, a column; or NULL."),
        Column("slice_value", STRING, "Which part of the slice: head, torso, tail ...; or NULL."),
        Column("value", DOUBLE, "Mean over the averaged users."),
        Column("stderr", DOUBLE, "Standard error of the mean over users."),
        Column("ci_low", DOUBLE, "Lower end of the bootstrap interval over users."),
        Column("ci_high", DOUBLE, "Upper end of the bootstrap interval over users."),
        Column("n", LONG, "Users (or rows, for value metrics) averaged.", False),
    ),
    constraints={"k_positive": "k IS NULL OR k > 0", "n_not_negative": "n >= 0"},
)

USER_METRICS = Table(
    "user_metrics",
    "One row per user and metric: the values at every cut-off asked for.",
    (
        RUN_ID,
        USER_ID,
        PART,
        METRIC,
        DEFINITION,
        ESTIMATOR,
        Column("ks", array_of(INT), "Cut-offs; NULL element: over the whole ranking."),
        Column("values", array_of(DOUBLE), "Value at each cut-off; NULL: user left out."),
        Column("n_relevant", INT, "Relevant items of the user in this part.", False),
    ),
    partition_by=("run_id",),
)

RANKINGS = Table(
    "rankings",
    "One row per user: where each truth item stands. Every metric of every definition follows from it.",
    (
        RUN_ID,
        USER_ID,
        PART,
        Column("user_key", LONG, "xxhash64 of the user id: draws bootstrap weights.", False),
        Column("item_ids", array_of(STRING), "Truth items, original ids.", False),
        Column("relevance", array_of(DOUBLE), "Grade of each truth item.", False),
        Column(
            "above",
            array_of(LONG),
            "Candidates scored higher; -1: item not ranked; the largest k where the run counts no further.",
            False,
        ),
        Column("tied", array_of(LONG), "Other candidates with the same score.", False),
        Column("before", array_of(LONG), "Those of the tied ones with a smaller item id.", False),
        Column("length", LONG, "Ranked candidates of the user; 0: the model gave nothing.", False),
        Column("drawn", INT, "Negatives drawn uniformly for the user; NULL: not such a draw."),
        Column("pool", LONG, "Items they were drawn from: neither training nor truth of the user."),
        Column("top_items", array_of(STRING), "The first max(k) items, where lists are asked for."),
        Column(
            "slices",
            T.MapType(STRING, array_of(STRING)),
            "Per slice key the label of each truth item.",
        ),
        Column(
            "propensity", array_of(DOUBLE), "Chance of each truth item to be shown; NULL: not asked for."
        ),
    ),
    partition_by=("run_id",),
)

MULTIVERSE = Table(
    "multiverse",
    "One row per world: a metric at a cut-off under one of all defensible definitions.",
    (
        RUN_ID,
        PART,
        METRIC,
        K,
        DEFINITION,
        Column("value", DOUBLE, "Mean over the averaged users."),
        Column("n", LONG, "Users averaged.", False),
    ),
)
