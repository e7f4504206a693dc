"""Every table: its columns with their comments, its key, its layout. Column names are spelt here only.

`user_id` and `item_id` are the original ids, as text, in every table; `item_index` and `user_index`
are dense positions that mean something only inside one `split_id`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.errors import SchemaError, nearest

SCHEMA_VERSION = 3
"""Raised when a column is added or changes its meaning; stored as a table property."""

STRING, INT, LONG, DOUBLE, BOOLEAN = (
    T.StringType(),
    T.IntegerType(),
    T.LongType(),
    T.DoubleType(),
    T.BooleanType(),
)
TIMESTAMP, DATE = T.TimestampType(), T.DateType()


def array_of(element: T.DataType) -> T.ArrayType:
    """An array; Delta knows no NOT NULL inside arrays and maps, so elements count as nullable."""
    return T.ArrayType(element)


@dataclass(frozen=True)
class Column:
    """A column: name, type, what it means to the person who queries it."""

    name: str
    type: T.DataType
    comment: str
    nullable: bool = True


@dataclass(frozen=True)
class Table:
    """A table: columns, what one row is, and how its files are laid out."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    constraints: dict[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> T.StructType:
        """The Spark schema, comments included."""
        return T.StructType(
            [T.StructField(c.name, c.type, c.nullable, {"comment": c.comment}) for c in self.columns]
        )

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return [column.name for column in self.columns]


def _key(name: str, comment: str) -> Column:
    return Column(name, STRING, comment, nullable=False)


RUN_ID = _key("run_id", "Attempt of one model on one night; visible once `runs` says succeeded.")
SPLIT_ID = _key("split_id", "Hash of the log's identity and the split's settings.")
USER_ID = _key("user_id", "Original user id, as text.")
ITEM_ID = _key("item_id", "Original item id, as text.")
PART = _key("part", "Held-out part evaluated: valid, test or open_loop.")
METRIC = _key("metric", "Metric, lower case: ndcg, recall, auc ...")
DEFINITION = _key(
    "definition", "Version of the defaults and the axes in which this number differs from them."
)
ESTIMATOR = _key("estimator", "How exposure is corrected for; holdout means it is not.")
K = Column("k", INT, "Cut-off; NULL for a value over the whole ranking.")
SUITE = _key("suite", "Name of the benchmark file.")

RUNS = Table(
    "runs",
    "One row an attempt of one model on one night, written last: what it names becomes visible.",
    (
        RUN_ID,
        _key("run_key", "Hash of configuration, input data and code: same key, same numbers."),
        Column("attempt", INT, "1 for the first run of this key, counted up by --force.", False),
        SUITE,
        Column("logical_date", DATE, "The day evaluated, never the day of the computation.", False),
        _key("model", "Name of the model in the benchmark file."),
        Column("model_kind", STRING, "als, item_knn, embeddings, lists, published ..."),
        Column("model_version", STRING, "Version the team gave the model."),
        Column("dataset", STRING, "Name of the dataset."),
        Column("split", STRING, "Protocol code and seed of the split, e.g. RO_RS 0.8/0/0.2 seed 42."),
        Column("split_id", STRING, SPLIT_ID.comment),
        Column("config_json", STRING, "The settings of this run, without secrets."),
        Column("config_hash", STRING, "Hash of config_json."),
        Column("inputs_json", STRING, "Identity of each input: Delta version, or size and time."),
        Column("code_version", STRING, "Version of recbench-spark."),
        Column(
            "revisions",
            STRING,
            "Revisions of what the numbers come of, as JSON, without those at 1; NULL: all at 1.",
        ),
        Column("source", STRING, "own (the inventor), baseline (a rival), rerun, published."),
        Column("ran_by", STRING, "Who ran it."),
        Column("source_year", INT, "Year of a published figure."),
        Column("search_space", STRING, "Grid searched for each setting, as JSON."),
        Column("budget", STRING, "Settings tried or time spent in the search."),
        Column(
            "at_grid_edge",
            array_of(STRING),
            "Settings whose best value is the smallest or largest one searched.",
        ),
        _key("status", "succeeded or failed."),
        Column("started_at", TIMESTAMP, "Start of the attempt, UTC."),
        Column("finished_at", TIMESTAMP, "End of the attempt, UTC."),
        Column("n_users", LONG, "Users evaluated, in the held-out part that has most."),
        Column("seconds", DOUBLE, "Wall-clock seconds of training and evaluation."),
        Column("error", STRING, "Message of a failed attempt."),
    ),
    constraints={
        "status_known": "status IN ('succeeded', 'failed')",
        "source_known": "source IN ('own', 'baseline', 'rerun', 'published')",
    },
)

METRICS = Table(
    "metrics",
    "One row a number: a metric at a cut-off, with its interval. Long form; NULL slice: everyone.",
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
    "One row a user and metric: the values at every cut-off asked for.",
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
    cluster_by=("run_id", "user_id"),
)

RANKINGS = Table(
    "rankings",
    "One row a user: where each truth item stands. Every metric of every definition follows from it.",
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
        Column("drawn", INT, "Negatives drawn uniformly for the user; NULL: candidates are no such draw."),
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
    cluster_by=("run_id",),
)

MULTIVERSE = Table(
    "multiverse",
    "One row a world: a metric at a cut-off under one of all defensible definitions.",
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

CHECKS = Table(
    "checks",
    "Findings on inputs and results of a run: exclusions, warnings, quality gates.",
    (
        RUN_ID,
        _key("check", "What was looked at, e.g. duplicate_list_rows."),
        _key("severity", "info, warning or error."),
        Column("observed", DOUBLE, "What was counted or measured."),
        Column("threshold", DOUBLE, "Largest value that passes; NULL: only reported."),
        Column("passed", BOOLEAN, "Whether the observed value is acceptable.", False),
        Column("detail", STRING, "A sentence for the reader."),
    ),
    constraints={"severity_known": "severity IN ('info', 'warning', 'error')"},
)

MANIFESTS = Table(
    "manifests",
    "What a split consists of: counts, content hashes, overlaps, leakage. One row a fact.",
    (
        SPLIT_ID,
        _key("part", "train, valid, test ... as in splits, or log for the whole."),
        _key("fact", "rows, users, items, rejected_rows, duplicates, overlap, content_hash ..."),
        Column("value", DOUBLE, "The count or share."),
        Column("detail", STRING, "Text facts: content hash, settings as JSON."),
    ),
)

REJECTS = Table(
    "rejects",
    "Rows of a log that could not be used, where dataset.bad_rows is reject.",
    (
        SPLIT_ID,
        _key("file", "File the row is from."),
        Column("line", STRING, "The line as it stands, or the row as JSON."),
        _key("reason", "What is wrong with it."),
    ),
    partition_by=("split_id",),
)

SPLITS = Table(
    "splits",
    "The log with one label a row.",
    (
        SPLIT_ID,
        USER_ID,
        ITEM_ID,
        Column("rating", DOUBLE, "Rating or relevance; 1 where the log has none.", False),
        Column("event_time", LONG, "Microseconds since 1970 UTC; NULL where the log has no time."),
        _key("part", "train, given, valid, test, open_loop, later, or a part named in split.parts."),
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
        _key("popularity", "head, torso, tail (a third of the training rows each) or cold."),
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
    "One row a user: training items and held-out items as arrays, made once for all models.",
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
        _key("draw", "How they were drawn: weights, number, seed."),
        USER_ID,
        Column("items", array_of(INT), "item_index of the drawn items, in the order drawn.", False),
    ),
    partition_by=("split_id",),
)

EMBEDDINGS = Table(
    "embeddings",
    "Vectors of trained models.",
    (
        _key("model_id", "Hash of the split and the model's settings."),
        _key("side", "user or item."),
        _key("id", "Original user or item id."),
        Column("vector", array_of(T.FloatType()), "Embedding, float32.", False),
        Column("bias", DOUBLE, "Added to the score; 0 where the model has none.", False),
    ),
    partition_by=("model_id", "side"),
)

SIMILARITIES = Table(
    "similarities",
    "Item-to-item weights of neighbourhood models.",
    (
        _key("model_id", "Hash of the split and the model's settings."),
        ITEM_ID,
        _key("neighbour_id", "Item whose presence in the history raises the score of item_id."),
        Column("weight", DOUBLE, "Added to the score per interaction with the neighbour.", False),
    ),
    partition_by=("model_id",),
)

PROPENSITIES = Table(
    "propensities",
    "Exposure propensities of items, known or estimated.",
    (
        SPLIT_ID,
        _key("method", "true, relative_frequency, power_law ..."),
        ITEM_ID,
        Column("propensity", DOUBLE, "Probability that the item is exposed to a user.", False),
    ),
    partition_by=("split_id",),
)

METHOD = _key("method", "How they were found: power_law, relative_frequency ...; further settings.")

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
        _key("fitted_by", "approximate (Clauset's formula) or exact (the zeta likelihood)."),
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

COMPARISONS = Table(
    "comparisons",
    "One row a difference between two runs, at one metric and cut-off, over the users of both.",
    (
        _key("comparison_id", "Hash of the runs compared and the settings: all rows of one comparison."),
        SUITE,
        Column("logical_date", DATE, "Night of `run_id`.", False),
        Column("other_date", DATE, "Night of `other_run_id`.", False),
        _key("kind", "pair: two models of one night; previous, baseline: a model and an earlier night."),
        _key("model", "Model whose value minus the other's is the difference."),
        _key("other", "The other model; the baseline where the pair has it; the model itself by night."),
        RUN_ID,
        _key("other_run_id", "Run that was subtracted."),
        Column("split_id", STRING, "Split of `run_id`: a night on the same split is no new look."),
        PART,
        METRIC,
        DEFINITION,
        K,
        ESTIMATOR,
        Column("users", LONG, "Users with a value in both runs.", False),
        Column("value", DOUBLE, "Mean of `run_id` over these users."),
        Column("other_value", DOUBLE, "Mean of `other_run_id` over these users."),
        Column("difference", DOUBLE, "value - other_value."),
        Column("stderr", DOUBLE, "Standard error of the difference, paired by user."),
        Column("ci_low", DOUBLE, "Lower end of its paired bootstrap interval (Student's if users differ)."),
        Column("ci_high", DOUBLE, "Upper end of its interval."),
        Column("p_t", DOUBLE, "Two-sided p of Student's paired t-test."),
        Column("p_randomisation", DOUBLE, "Two-sided p by random signs; NULL where users differ."),
        Column("p_bootstrap", DOUBLE, "Two-sided p of the paired bootstrap; NULL where users differ."),
        Column("p_wilcoxon", DOUBLE, "Wilcoxon's signed-rank test; of pairs, only with the baseline."),
        Column("with_baseline", BOOLEAN, "Whether `other` is the baseline (or the best other model)."),
        Column("family", INT, "Tests of this kind and part over which p_holm and p_bh are adjusted."),
        Column("p_holm", DOUBLE, "p_t by Holm: bounds the chance of any false finding in the family."),
        Column("p_bh", DOUBLE, "p_t by Benjamini and Hochberg: bounds the share of false findings."),
        Column("effect", DOUBLE, "Cohen's d_z: the mean difference over its standard deviation."),
        Column("detectable", DOUBLE, "True difference that such a test finds four times in five."),
        Column("minimum_difference", DOUBLE, "Smallest difference that matters.", False),
        Column("verdict", STRING, "better, worse, equivalent or unclear: the interval beside the minimum."),
        Column("looks", INT, "Nights of different splits in the sequence, this one included."),
        Column("sequence_users", LONG, "Differences of users over all these nights."),
        Column("sequence_low", DOUBLE, "Lower end of the interval that holds at all looks together."),
        Column("sequence_high", DOUBLE, "Upper end of the interval that holds at all looks together."),
        Column("allowed_drop", DOUBLE, "Fall that the benchmark file allows; NULL: nothing is asked."),
        Column("regressed", BOOLEAN, "Whether the fall is larger than allowed.", False),
        Column("compared_at", TIMESTAMP, "When it was worked out, UTC.", False),
    ),
    constraints={"kind_known": "kind IN ('pair', 'previous', 'baseline')"},
)

CHANGES = Table(
    "changes",
    "One row a group of users: what it adds to the change of a model's mean since the night before.",
    (
        _key("change_id", "Hash of the runs and what was asked: all rows of one explanation."),
        SUITE,
        Column("logical_date", DATE, "Night of `run_id`.", False),
        Column("other_date", DATE, "Night of `other_run_id`, the model's last one before.", False),
        _key("model", "Model whose two nights these are."),
        RUN_ID,
        _key("other_run_id", "Run of the night before."),
        PART,
        METRIC,
        DEFINITION,
        K,
        ESTIMATOR,
        _key(
            "group_key", "What groups are by: users (stayed, left, joined), n_relevant, a slice of users."
        ),
        _key("group_value", "The group; of n_relevant a range that doubles: 1, 2-3, 4-7 ..."),
        Column("users_before", LONG, "Users of the group who were averaged on the night before.", False),
        Column("users_after", LONG, "Users of the group who are averaged now.", False),
        Column("share_before", DOUBLE, "Their share of all users averaged before.", False),
        Column("share_after", DOUBLE, "Their share of all users averaged now.", False),
        Column("mean_before", DOUBLE, "Mean of the group before; NULL: it had no users."),
        Column("mean_after", DOUBLE, "Mean of the group now; NULL: it has no users."),
        Column("mix_change", DOUBLE, "What the change of the group's share adds to the difference.", False),
        Column("within_change", DOUBLE, "What the change of the group's mean adds to it.", False),
        Column(
            "difference",
            DOUBLE,
            "Both together; over the groups of a key they add up to value - other_value.",
            False,
        ),
        Column("value", DOUBLE, "Mean over all users now, as in `metrics`.", False),
        Column("other_value", DOUBLE, "Mean over all users before.", False),
        Column(
            "code_change",
            STRING,
            "Versions and revisions in which the code of the two runs differs; NULL: in none.",
        ),
        Column(
            "code_alone",
            BOOLEAN,
            "Whether log, settings and other inputs were the same: nothing but the code moved the number.",
        ),
        Column("explained_at", TIMESTAMP, "When it was worked out, UTC.", False),
    ),
)

PARADOX_ID = _key("paradox_id", "Hash of the runs and settings: all rows of one search.")
FOUND_AT = Column("found_at", TIMESTAMP, "When it was worked out, UTC.", False)

PARADOXES = Table(
    "paradoxes",
    "One row a pair of models, metric, cut-off and slice key: whether strata and whole agree.",
    (
        PARADOX_ID,
        SUITE,
        Column("logical_date", DATE, "Night of both runs.", False),
        SPLIT_ID,
        _key("model", "Model that is better in the whole."),
        _key("other", "The other model."),
        RUN_ID,
        _key("other_run_id", "Run of the other model."),
        PART,
        METRIC,
        DEFINITION,
        K,
        _key("slice_key", "What the strata are by: stratum, popularity ..."),
        Column("users", LONG, "Users averaged of `model`, in the whole.", False),
        Column("value", DOUBLE, "Mean of `model` over everyone."),
        Column("other_value", DOUBLE, "Mean of `other` over everyone."),
        Column("difference", DOUBLE, "value - other_value."),
        Column("ci_low", DOUBLE, "Lower end of its paired bootstrap interval over users."),
        Column("ci_high", DOUBLE, "Upper end of its interval."),
        Column("stratified_value", DOUBLE, "Of `model`: means of the strata by their truth items."),
        Column("other_stratified_value", DOUBLE, "Of `other`: means of the strata by their truth items."),
        Column("stratified_difference", DOUBLE, "stratified_value - other_stratified_value."),
        Column("stratified_low", DOUBLE, "Lower end of its interval: sizes are resampled with means."),
        Column("stratified_high", DOUBLE, "Upper end of its interval."),
        Column("labels", array_of(STRING), "The strata.", False),
        Column("sizes", array_of(LONG), "Truth items in each stratum.", False),
        Column("stratum_users", array_of(LONG), "Users of `model` averaged in each stratum.", False),
        Column("differences", array_of(DOUBLE), "Difference in each; NULL element: no users.", False),
        Column("lows", array_of(DOUBLE), "Lower ends of their intervals.", False),
        Column("highs", array_of(DOUBLE), "Upper ends of their intervals.", False),
        _key(
            "kind",
            "Opposing the whole: none, partial (a stratum), reversal (the stratified difference), "
            "full (all strata).",
        ),
        Column("certain", BOOLEAN, "Whether whole and stratified (partial: a stratum) exclude 0.", False),
        Column("opposed_share", DOUBLE, "Share of the strata's truth items that oppose the whole."),
        FOUND_AT,
    ),
    constraints={"kind_known": "kind IN ('none', 'partial', 'reversal', 'full')"},
)

FLIPS = Table(
    "flips",
    "One row a verdict: the smallest set of items, or users, without which the other model leads.",
    (
        PARADOX_ID,
        SUITE,
        Column("logical_date", DATE, "Night of both runs.", False),
        SPLIT_ID,
        _key("model", "Model with the larger sum."),
        _key("other", "The other model."),
        RUN_ID,
        _key("other_run_id", "Run of the other model."),
        PART,
        METRIC,
        DEFINITION,
        K,
        _key("removed_are", "What is removed: items or users."),
        Column("removed", LONG, "How many must go; NULL: no set turns the verdict."),
        Column("out_of", LONG, "How many have truth in this part.", False),
        Column("total", DOUBLE, "Sum over users of `model` minus `other`.", False),
        Column("removed_total", DOUBLE, "What the removed ones add to it: more than all of it."),
        Column("threshold", DOUBLE, "The smallest contribution removed; all larger ones go too."),
        Column("at_threshold", LONG, "How many of those equal to it go."),
        Column("ids", array_of(STRING), "The largest contributors removed, at most 20."),
        Column("contributions", array_of(DOUBLE), "What each of these adds to the total."),
        FOUND_AT,
    ),
    constraints={"removed_known": "removed_are IN ('items', 'users')"},
)

SPEED = Table(
    "speed",
    "One row a measurement of a benchmark job. Compare only rows of one machine and one run.",
    (
        _key("benchmark", "What was measured: a world of factors, or lists."),
        _key("system", "Who was measured; product: the bare matrix product."),
        Column("users", LONG, "Users of one pass.", False),
        Column("items", LONG, "Items of the catalogue.", False),
        Column("dims", INT, "Dimensions of the vectors; NULL: no vectors."),
        Column("k", INT, "Largest cut-off, or length of the lists.", False),
        Column("round", INT, "Turn of all systems, from 0.", False),
        Column("seconds", DOUBLE, "Wall time of one pass.", False),
        Column("users_per_second", DOUBLE, "Users divided by seconds.", False),
        Column("of_product", DOUBLE, "Its share of the bare product's speed in that turn."),
        Column("device", STRING, "cpu, or the kind of GPU."),
        Column("measured_at", TIMESTAMP, "When it was measured, UTC.", False),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        RUNS,
        METRICS,
        USER_METRICS,
        RANKINGS,
        MULTIVERSE,
        CHECKS,
        MANIFESTS,
        REJECTS,
        SPLITS,
        ITEMS,
        USER_BLOCKS,
        CANDIDATES,
        EMBEDDINGS,
        SIMILARITIES,
        PROPENSITIES,
        COMPARISONS,
        PARADOXES,
        FLIPS,
        CHANGES,
        RATING_PROPENSITIES,
        CELL_PROPENSITIES,
        POWER_LAWS,
        SPEED,
    )
}
RESULT_TABLES = ("metrics", "user_metrics", "rankings", "multiverse", "checks")
"""Tables whose rows become visible through a succeeded row of `runs`."""

ID_KIND = "recbench.id"
"""Column metadata: how ids were stored, as `integer`, as `string`, or as `text` of a text file."""

ID_TYPE = "recbench.id_type"
"""Column metadata: the type of ids as it was stored, in words."""

ABSENT = "recbench.absent"
"""Column metadata: the log has no such column, so every value is the same."""

COMPLETE = "recbench.complete"
"""Column metadata: the reader has seen that no value is missing."""

IDS = ("user_id", "item_id")

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


def require(frame: DataFrame, columns: list[str], what: str) -> None:
    """Raise SchemaError naming the missing columns, those there are and the nearest."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise SchemaError(
            f"{what} has no column {', '.join(missing)}; it has {', '.join(frame.columns)}",
            nearest(missing[0], frame.columns),
        )


def with_text_ids(log: DataFrame) -> DataFrame:
    """The log with its ids as text, what is noted of its columns kept."""
    text = {
        name: F.col(name).cast("string").alias(name, metadata=log.schema[name].metadata)
        for name in IDS
        if log.schema[name].dataType != STRING
    }
    return log.select(*(text.get(name, name) for name in log.columns)) if text else log


def conform(frame: DataFrame, table: Table) -> DataFrame:
    """The frame with the table's columns, in its order and types; lacking nullable ones are NULL."""
    require(frame, [c.name for c in table.columns if not c.nullable], f"rows for '{table.name}'")
    return frame.select(
        *(
            (F.col(c.name) if c.name in frame.columns else F.lit(None)).cast(c.type).alias(c.name)
            for c in table.columns
        )
    )
