"""Result tables: rankings, user values, metrics, other definitions' metrics."""

from __future__ import annotations

from recbench_spark.core.columns import (
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
    K,
    Table,
    TableColumn,
    array_type,
    map_type,
)

RANK_COLUMNS = (
    TableColumn(
        "above",
        array_type(LONG),
        "Candidates scored higher; -1: item not ranked; the largest k where the run counts no further.",
        False,
    ),
    TableColumn("tied", array_type(LONG), "Other candidates with the same score.", False),
    TableColumn("before", array_type(LONG), "Those of the tied ones with a smaller item id.", False),
    TableColumn("length", LONG, "Ranked candidates of the user; 0: the model gave nothing.", False),
)
"""User columns with each truth item's rank."""

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
        TableColumn("slice_key", STRING, "Key of the slice: popularity, cold_user, a column; or NULL."),
        TableColumn("slice_value", STRING, "Value of the slice: head, torso, tail ...; or NULL."),
        TableColumn("value", DOUBLE, "Mean over the averaged users."),
        TableColumn("stderr", DOUBLE, "Standard error of the mean over users."),
        TableColumn("ci_low", DOUBLE, "Lower end of the bootstrap interval over users."),
        TableColumn("ci_high", DOUBLE, "Upper end of the bootstrap interval over users."),
        TableColumn("n", LONG, "Users (or rows: value metrics, `weigh=rows`) averaged.", False),
    ),
    constraints={"k_positive": "k IS NULL OR k > 0", "n_not_negative": "n >= 0"},
)

USER_METRICS = Table(
    "user_metrics",
    "One row per user and metric: the values at every requested cut-off.",
    (
        RUN_ID,
        USER_ID,
        PART,
        METRIC,
        DEFINITION,
        ESTIMATOR,
        TableColumn("ks", array_type(INT), "Cut-offs; NULL element: over the whole ranking."),
        TableColumn(
            "values", array_type(DOUBLE), "Value at each cut-off, mean over queries; NULL: left out."
        ),
        TableColumn("n_relevant", INT, "Relevant items of the user in this part.", False),
    ),
    partition_by=("run_id",),
)

CURVE_VALUES = Table(
    "curve_values",
    "One row per held-out user and metric: the values after each number of given ratings.",
    (
        RUN_ID,
        USER_ID,
        TableColumn("user_key", LONG, "xxhash64 of the user id: draws bootstrap weights.", False),
        PART,
        METRIC,
        DEFINITION,
        TableColumn("given", array_type(INT), "Curve points: numbers of given ratings.", False),
        TableColumn("points", INT, "Points at which the user stands, from the first one on.", False),
        TableColumn("ks", array_type(INT), "Cut-offs; NULL element: over the whole ranking.", False),
        TableColumn(
            "values",
            array_type(array_type(DOUBLE)),
            "For each cut-off the values by `given`, means over draws; NULL: user left out.",
            False,
        ),
        TableColumn("n_relevant", INT, "Relevant rows of the user, given ones included.", False),
    ),
    partition_by=("run_id",),
)

CURVE_RANKINGS = Table(
    "curve_rankings",
    "One row per held-out user, order and point: the rank of each tested item, where the file asks for it.",
    (
        RUN_ID,
        USER_ID,
        TableColumn("user_key", LONG, "xxhash64 of the user id: draws bootstrap weights.", False),
        PART,
        TableColumn("definition", STRING, "Points, order, test and users of the curve.", False),
        TableColumn("draw", INT, "Number of the order by hash, from 0 on; NULL: the order of time."),
        TableColumn("given", INT, "Number of given ratings.", False),
        TableColumn("item_ids", array_type(STRING), "Tested items, original ids.", False),
        TableColumn("relevance", array_type(DOUBLE), "Rating of each tested item.", False),
        *RANK_COLUMNS,
    ),
    partition_by=("run_id",),
)

LEARNING_CURVES = Table(
    "learning_curves",
    "One row per curve point: a metric after so many given ratings, with its interval.",
    (
        RUN_ID,
        PART,
        METRIC,
        K,
        DEFINITION,
        TableColumn("given", INT, "Number of given ratings.", False),
        TableColumn("value", DOUBLE, "Mean over the averaged users; NULL: fewer than ten of them."),
        TableColumn("stderr", DOUBLE, "Standard error of the mean over users."),
        TableColumn("ci_low", DOUBLE, "Lower end of the bootstrap interval over users."),
        TableColumn("ci_high", DOUBLE, "Upper end of the bootstrap interval over users."),
        TableColumn("share_below_zero", DOUBLE, "Share of these users whose value is below 0."),
        TableColumn("n", LONG, "Users averaged.", False),
    ),
    constraints={"given_positive": "given > 0", "n_not_negative": "n >= 0"},
)

RETRIEVAL_RUNS = Table(
    "retrieval_runs",
    "One row per run through an index and cut-off: the share of exact lists, and what the index costs.",
    (
        RUN_ID,
        PART,
        TableColumn("k", INT, "Length of the compared lists.", False),
        TableColumn("recall", DOUBLE, "Mean share of list entries reaching the k-th best exact score."),
        TableColumn("stderr", DOUBLE, "Standard error of the mean over users."),
        TableColumn("n", LONG, "Users with a vector and a candidate.", False),
        TableColumn("short_lists", LONG, "Users whose list has fewer than k items.", False),
        TableColumn("candidates", DOUBLE, "Mean number of items proposed by the index per user."),
        TableColumn("queries_per_second", DOUBLE, "Users a second of one thread, in blocks."),
        TableColumn("single_queries_per_second", DOUBLE, "Users a second of one thread, one by one."),
        TableColumn("build_seconds", DOUBLE, "Seconds in which the index was built, all parts."),
        TableColumn("bytes", LONG, "Bytes of the index's files, all parts.", False),
        TableColumn("items", LONG, "Catalogue items scored by the model.", False),
        TableColumn("cut_items", LONG, "Entries of items that were left out of large buckets; lsh.", False),
        TableColumn("index_kind", STRING, "flat, ivf, hnsw or lsh.", False),
        TableColumn("settings_json", STRING, "Settings of the index.", False),
    ),
    constraints={"k_positive": "k > 0", "n_not_negative": "n >= 0"},
)

RANKINGS = Table(
    "rankings",
    "One row per user, or query: each truth item's rank. Every metric under any definition follows.",
    (
        RUN_ID,
        USER_ID,
        PART,
        TableColumn("user_key", LONG, "xxhash64 of the user id: draws bootstrap weights.", False),
        TableColumn("item_ids", array_type(STRING), "Truth items, original ids.", False),
        TableColumn("relevance", array_type(DOUBLE), "Grade of each truth item.", False),
        *RANK_COLUMNS,
        TableColumn("drawn", INT, "Negatives drawn uniformly for the user; NULL: not such a draw."),
        TableColumn("pool", LONG, "Items they were drawn from: neither training nor truth of the user."),
        TableColumn(
            "top_items",
            array_type(STRING),
            "The items at the first max(k) places, if requested; NULL: an empty place.",
        ),
        TableColumn(
            "slices",
            map_type(STRING, array_type(STRING)),
            "Per slice key the label of each truth item.",
        ),
        TableColumn(
            "propensity", array_type(DOUBLE), "Chance of each truth item to be shown; NULL: not requested."
        ),
        TableColumn("query_id", STRING, "One of several questions about the user; NULL: there is one."),
    ),
    partition_by=("run_id",),
)

CEILINGS = Table(
    "ceilings",
    "One row per number of a pool or a list: what the best order of the ranked candidates would reach.",
    (
        RUN_ID,
        PART,
        METRIC,
        DEFINITION,
        K,
        TableColumn("ceiling", DOUBLE, "Mean over users of the metric of the best order."),
        TableColumn("ceiling_stderr", DOUBLE, "Its standard error over users."),
        TableColumn("ceiling_low", DOUBLE, "Lower end of Student's interval over users."),
        TableColumn("ceiling_high", DOUBLE, "Upper end of its interval."),
        TableColumn("lost", DOUBLE, "What the run's order loses of it: mean distance from its own value."),
        TableColumn("lost_stderr", DOUBLE, "Its standard error over users."),
        TableColumn("lost_low", DOUBLE, "Lower end of Student's interval over users."),
        TableColumn("lost_high", DOUBLE, "Upper end of its interval."),
        TableColumn("reach", DOUBLE, "Mean share of a user's relevant items that are candidates."),
        TableColumn("reach_stderr", DOUBLE, "Its standard error over users."),
        TableColumn("n", LONG, "Users (or rows: `weigh=rows`) averaged.", False),
    ),
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
        TableColumn("value", DOUBLE, "Mean over the averaged users."),
        TableColumn("n", LONG, "Users averaged.", False),
    ),
)
