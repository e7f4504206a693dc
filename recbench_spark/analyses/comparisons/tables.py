"""Tables about two runs: differences, changes, paradoxes, flips."""

from __future__ import annotations

import pyarrow as pa

from recbench_spark.core.columns import (
    BOOLEAN,
    DATE,
    DEFINITION,
    DOUBLE,
    ESTIMATOR,
    INT,
    LONG,
    METRIC,
    PART,
    RUN_ID,
    SPLIT_ID,
    STRING,
    SUITE,
    TIMESTAMP,
    K,
    Table,
    TableColumn,
    array_type,
    text_column,
)

COMPARISONS = Table(
    "comparisons",
    "One row per difference between two runs, at one metric and cut-off, over the users of both.",
    (
        text_column("comparison_id", "Hash of compared runs and settings: all rows of one comparison."),
        SUITE,
        TableColumn("logical_date", DATE, "Night of `run_id`.", False),
        TableColumn("other_date", DATE, "Night of `other_run_id`.", False),
        text_column(
            "kind", "pair: two models of one night; previous, baseline: a model and an earlier night."
        ),
        text_column("model", "Model whose value minus the other's is the difference."),
        text_column(
            "other", "The other model; the baseline where the pair has it; the model itself by night."
        ),
        RUN_ID,
        text_column("other_run_id", "The subtracted run."),
        TableColumn("split_id", STRING, "Split of `run_id`: a night on the same split is not a new look."),
        PART,
        METRIC,
        DEFINITION,
        K,
        ESTIMATOR,
        TableColumn("users", LONG, "Users with a value in both runs.", False),
        TableColumn("value", DOUBLE, "Mean of `run_id` over these users."),
        TableColumn("other_value", DOUBLE, "Mean of `other_run_id` over these users."),
        TableColumn("difference", DOUBLE, "value - other_value."),
        TableColumn("stderr", DOUBLE, "Standard error of the difference, paired by user."),
        TableColumn(
            "ci_low", DOUBLE, "Lower end of its paired bootstrap interval (Student's if users differ)."
        ),
        TableColumn("ci_high", DOUBLE, "Upper end of its interval."),
        TableColumn("p_t", DOUBLE, "Two-sided p of Student's paired t-test."),
        TableColumn("p_randomisation", DOUBLE, "Two-sided p by random signs; NULL where users differ."),
        TableColumn("p_bootstrap", DOUBLE, "Two-sided p of the paired bootstrap; NULL where users differ."),
        TableColumn("p_wilcoxon", DOUBLE, "Wilcoxon's signed-rank test; of pairs, only with the baseline."),
        TableColumn("with_baseline", BOOLEAN, "Whether `other` is the baseline (or the best other model)."),
        TableColumn("family", INT, "Tests of this kind and part over which p_holm and p_bh are adjusted."),
        TableColumn("p_holm", DOUBLE, "p_t by Holm: bounds the chance of any false finding in the family."),
        TableColumn("p_bh", DOUBLE, "p_t by Benjamini and Hochberg: bounds the share of false findings."),
        TableColumn("effect", DOUBLE, "Cohen's d_z: the mean difference over its standard deviation."),
        TableColumn("detectable", DOUBLE, "True difference shown by such a test four times in five."),
        TableColumn("minimum_difference", DOUBLE, "Smallest difference that matters.", False),
        TableColumn(
            "verdict",
            STRING,
            "The interval beside the minimum: better, worse, equivalent; unclear also of too few users.",
        ),
        TableColumn("looks", INT, "Nights of different splits in the sequence, this one included."),
        TableColumn("sequence_users", LONG, "Differences of users over all these nights."),
        TableColumn("sequence_low", DOUBLE, "Lower end of the interval valid at all looks together."),
        TableColumn("sequence_high", DOUBLE, "Upper end of the interval valid at all looks together."),
        TableColumn("allowed_drop", DOUBLE, "Largest fall allowed by the benchmark file; NULL: no rule."),
        TableColumn("regressed", BOOLEAN, "Whether the fall is larger than allowed.", False),
        TableColumn("compared_at", TIMESTAMP, "When it was computed, UTC.", False),
        TableColumn("allowed_rise", DOUBLE, "Largest rise believed by the benchmark file; NULL: no rule."),
        TableColumn("rose", BOOLEAN, "Whether the rise is larger than believed; NULL: of older code."),
        TableColumn(
            "e_value",
            DOUBLE,
            "Evidence for a difference, at all looks: without one, 1 / alpha or more has chance alpha.",
        ),
        TableColumn("e_bh", DOUBLE, "e_value by e-BH over the kind, part and baseline."),
        TableColumn(
            "e_fall", DOUBLE, "Evidence for a fall beyond allowed_drop, by e-BH over all sequential rules."
        ),
        TableColumn(
            "bet_gains", array_type(DOUBLE), "Logarithms of this night's wealth: bets up, then down."
        ),
        TableColumn("fall_gains", array_type(DOUBLE), "The same of bets on a fall beyond allowed_drop."),
    ),
    constraints={"kind_known": "kind IN ('pair', 'previous', 'baseline')"},
)

SLICE_COMPARISONS = Table(
    "slice_comparisons",
    "One row per value of a slice that a regression watches: the difference of two runs on its users.",
    (
        text_column("comparison_id", "Hash of compared runs and settings, as in `comparisons`."),
        SUITE,
        TableColumn("logical_date", DATE, "Night of `run_id`.", False),
        TableColumn("other_date", DATE, "Night of `other_run_id`.", False),
        text_column("kind", "pair: tonight's baseline model; previous, baseline: an earlier night."),
        text_column("model", "Model whose value minus the other's is the difference."),
        text_column("other", "The other model; the model itself by night."),
        RUN_ID,
        text_column("other_run_id", "The subtracted run."),
        PART,
        METRIC,
        DEFINITION,
        K,
        text_column("slice_key", "Key of the slice."),
        TableColumn("slice_value", STRING, "Tonight's label; NULL: all values with few users, together."),
        TableColumn("pooled", INT, "How many values these are; NULL: one value."),
        TableColumn("pooled_values", array_type(STRING), "The first 20 of them."),
        TableColumn("users", LONG, "Users of the value with a number in both runs.", False),
        TableColumn("value", DOUBLE, "Mean of `run_id` over these users."),
        TableColumn("other_value", DOUBLE, "Mean of `other_run_id` over these users."),
        TableColumn("difference", DOUBLE, "value - other_value."),
        TableColumn("stderr", DOUBLE, "Standard error of the difference, paired by user."),
        TableColumn("ci_low", DOUBLE, "Lower end of Student's interval of this value alone."),
        TableColumn("ci_high", DOUBLE, "Upper end of its interval."),
        TableColumn(
            "p_t",
            DOUBLE,
            "Two-sided p of Student's paired t-test, by signs where all users moved alike; NULL: too few.",
        ),
        TableColumn("family", INT, "Tests of the rule: its models and values."),
        TableColumn("p_holm", DOUBLE, "p_t by Holm: bounds the chance of any false finding in the family."),
        TableColumn("allowed_drop", DOUBLE, "Largest fall allowed by the rule."),
        TableColumn("regressed", BOOLEAN, "Whether it falls by more, and p_holm is below alpha.", False),
        TableColumn("compared_at", TIMESTAMP, "When it was computed, UTC.", False),
    ),
    constraints={"kind_known": "kind IN ('pair', 'previous', 'baseline')"},
)

COMPARED = (
    text_column("comparison_id", "Hash of compared runs and settings, as in `comparisons`."),
    SUITE,
    TableColumn("logical_date", DATE, "Night of `run_id`.", False),
    text_column("model", "The model."),
    RUN_ID,
    PART,
)
"""First columns of tables beside `comparisons`."""

COMPARED_AT = TableColumn("compared_at", TIMESTAMP, "When it was computed, UTC.", False)

USER_SPREADS = Table(
    "user_spreads",
    "One row per number of a run: how its values spread over users, and who loses against the baseline.",
    (
        *COMPARED,
        METRIC,
        DEFINITION,
        K,
        TableColumn("users", LONG, "Users with a value. Values are rounded to 2^-16 of the scale.", False),
        TableColumn("percents", array_type(INT), "Shares of users, in hundredths.", False),
        TableColumn(
            "percentiles", array_type(DOUBLE), "The smallest value that each share does not exceed.", False
        ),
        TableColumn("percentile_lows", array_type(DOUBLE), "Lower ends of intervals by order statistics."),
        TableColumn("percentile_highs", array_type(DOUBLE), "Upper ends of these intervals."),
        TableColumn("worst_tenth", DOUBLE, "Mean over the tenth of users with the worst values."),
        TableColumn("worst_tenth_low", DOUBLE, "Lower end of Student's interval; NULL: few users."),
        TableColumn("worst_tenth_high", DOUBLE, "Upper end of its interval."),
        TableColumn("zeros", LONG, "Users whose value is 0.", False),
        TableColumn("gini", DOUBLE, "Gini's index of the values over users; NULL: a value is below 0."),
        TableColumn("lorenz", array_type(DOUBLE), "Share of all value of the lowest 0, 10 .. 100 %."),
        TableColumn("other", STRING, "The baseline (or the best other model); NULL: none."),
        TableColumn("other_run_id", STRING, "Run of the baseline."),
        TableColumn("both", LONG, "Users with a value in both runs."),
        TableColumn("winners", LONG, "Those with a better value than in the baseline."),
        TableColumn("losers", LONG, "Those with a worse value."),
        TableColumn("losing_share", DOUBLE, "losers / both."),
        TableColumn("losing_low", DOUBLE, "Lower end of Wilson's interval."),
        TableColumn("losing_high", DOUBLE, "Upper end of its interval."),
        TableColumn("mean_loss", DOUBLE, "Mean size of the losers' differences."),
        COMPARED_AT,
    ),
)

GROUP_GAPS = Table(
    "group_gaps",
    "One row per number and slice of users: how far the groups' means lie apart.",
    (
        *COMPARED,
        METRIC,
        DEFINITION,
        K,
        text_column("slice_key", "Key of the slice of users."),
        TableColumn("groups", INT, "Values of the slice with at least 30 users.", False),
        TableColumn("few", INT, "Other values of the slice, which do not count.", False),
        TableColumn("mad", DOUBLE, "Mean absolute difference over pairs of groups; NULL: one group."),
        TableColumn("mad_low", DOUBLE, "Lower end of an interval by all pairs together (Bonferroni)."),
        TableColumn("mad_high", DOUBLE, "Upper end of its interval."),
        TableColumn("gap", DOUBLE, "Largest absolute difference of two groups."),
        TableColumn("gap_low", DOUBLE, "Lower end of its interval; above 0: the groups do differ."),
        TableColumn("gap_high", DOUBLE, "Upper end of its interval."),
        TableColumn("worst_group", STRING, "Group with the worst mean."),
        TableColumn("worst_value", DOUBLE, "Mean of the worst group."),
        TableColumn("worst_low", DOUBLE, "Lower end of its interval, by all groups together."),
        TableColumn("worst_high", DOUBLE, "Upper end of its interval."),
        TableColumn("best_group", STRING, "Group with the best mean."),
        TableColumn("best_value", DOUBLE, "Mean of the best group."),
        TableColumn("other", STRING, "The baseline (or the best other model); NULL: none."),
        TableColumn("other_mad", DOUBLE, "mad of the baseline."),
        TableColumn("other_gap", DOUBLE, "gap of the baseline."),
        TableColumn("other_worst", DOUBLE, "worst_value of the baseline, of its own worst group."),
        COMPARED_AT,
    ),
)

PREFERENCES = Table(
    "preferences",
    "One row per model and measure: which ranking of users' relevant items is preferred to the baseline's.",
    (
        *COMPARED,
        text_column(
            "measure",
            "lexiprecision: the best place that differs; lexirecall: the worst one; "
            "recall_paired: mean over places.",
        ),
        text_column("other", "The baseline, or the best other model by the headline."),
        text_column("other_run_id", "Run of the baseline."),
        TableColumn("users", LONG, "Users with relevant items in both runs.", False),
        TableColumn("preferred", LONG, "Users for whom the model is preferred.", False),
        TableColumn("against", LONG, "Users for whom the baseline is.", False),
        TableColumn("value", DOUBLE, "Mean over users: 1 the model, -1 the baseline, 0 neither."),
        TableColumn("stderr", DOUBLE, "Standard error of the mean over users."),
        TableColumn("ci_low", DOUBLE, "Lower end of Student's interval over users."),
        TableColumn("ci_high", DOUBLE, "Upper end of its interval."),
        COMPARED_AT,
    ),
)

FRONTS = Table(
    "fronts",
    "One row per model and front: whether another model is at least as good in every chosen figure.",
    (
        *COMPARED,
        text_column("front", "The figures, such as `ndcg@10, entropy@10`."),
        TableColumn("figures", array_type(STRING), "The figures in order.", False),
        TableColumn("values", array_type(DOUBLE), "The model's value of each.", False),
        TableColumn("on_front", BOOLEAN, "Whether no model is as good in all and better in one.", False),
        TableColumn("dominated_by", array_type(STRING), "Models as good in all, and better in one.", False),
        TableColumn("reference", array_type(DOUBLE), "The worst values: volumes begin there.", False),
        TableColumn("hypervolume", DOUBLE, "Volume that all models of the night dominate together.", False),
        TableColumn("contribution", DOUBLE, "What this volume would lose without the model.", False),
        COMPARED_AT,
    ),
)

BESIDE_COMPARISONS = (SLICE_COMPARISONS, USER_SPREADS, GROUP_GAPS, PREFERENCES, FRONTS)
"""Tables named by the `comparison_id` of a night's comparison."""

FACTS = ("comparison_id", "suite", "compared_at")
"""Columns that say which comparison a row is of, in tables beside `comparisons`."""


def name_results(table: Table) -> pa.Schema:
    """Return a table's columns that follow from the numbers."""
    return pa.schema([field for field in table.arrow_schema if field.name not in FACTS])


CHANGES = Table(
    "changes",
    "One row per user group: its part in the change of a model's mean since the night before.",
    (
        text_column("change_id", "Hash of the runs and the settings: all rows of one explanation."),
        SUITE,
        TableColumn("logical_date", DATE, "Night of `run_id`.", False),
        TableColumn(
            "other_date",
            DATE,
            "Night of `other_run_id`: the model's last one before, or this one, made again.",
            False,
        ),
        text_column("model", "Model whose two nights these are."),
        RUN_ID,
        text_column("other_run_id", "Run of the night before, or the run that this one replaced."),
        PART,
        METRIC,
        DEFINITION,
        K,
        ESTIMATOR,
        text_column(
            "group_key", "Key of the groups: users (stayed, left, joined), n_relevant, a slice of users."
        ),
        text_column("group_value", "The group; for n_relevant a doubling range: 1, 2-3, 4-7 ..."),
        TableColumn(
            "users_before", LONG, "Users of the group who were averaged on the night before.", False
        ),
        TableColumn("users_after", LONG, "Users of the group who are averaged now.", False),
        TableColumn("share_before", DOUBLE, "Their share of all users averaged before.", False),
        TableColumn("share_after", DOUBLE, "Their share of all users averaged now.", False),
        TableColumn("mean_before", DOUBLE, "Mean of the group before; NULL: it had no users."),
        TableColumn("mean_after", DOUBLE, "Mean of the group now; NULL: it has no users."),
        TableColumn(
            "mix_change", DOUBLE, "Part of the difference due to the group's changed share.", False
        ),
        TableColumn(
            "within_change", DOUBLE, "Part of the difference due to the group's changed mean.", False
        ),
        TableColumn(
            "difference",
            DOUBLE,
            "Both together; over the groups of a key they add up to value - other_value.",
            False,
        ),
        TableColumn("value", DOUBLE, "Mean over all users now, as in `metrics`.", False),
        TableColumn("other_value", DOUBLE, "Mean over all users before.", False),
        TableColumn(
            "code_change",
            STRING,
            "Versions and revisions in which the code of the two runs differs; NULL: in none.",
        ),
        TableColumn(
            "code_alone",
            BOOLEAN,
            "Whether log, settings and other inputs were the same: nothing but the code moved the number. "
            "NULL: the same code, or the run before did not identify its inputs by content.",
        ),
        TableColumn("explained_at", TIMESTAMP, "When it was computed, UTC.", False),
    ),
)

FOUND_AT = TableColumn("found_at", TIMESTAMP, "When it was computed, UTC.", False)

CURVE_CROSSINGS = Table(
    "curve_crossings",
    "One row per pair of learning curves on one night: where to switch from one model to the other.",
    (
        text_column("crossing_id", "Hash of the runs and the settings: all rows of one search."),
        SUITE,
        TableColumn("logical_date", DATE, "Night of both runs.", False),
        SPLIT_ID,
        text_column("model", "One model; the pair is in the order of their names."),
        text_column("other", "The other model."),
        RUN_ID,
        text_column("other_run_id", "Run of the other model."),
        PART,
        METRIC,
        DEFINITION,
        K,
        text_column("first", "First model in the best switching system."),
        text_column("then", "Model used from then on."),
        TableColumn("given", INT, "Largest number of given ratings with the first; 0: never.", False),
        TableColumn("given_low", INT, "Lower end of its percentile interval over users.", False),
        TableColumn("given_high", INT, "Upper end of its interval.", False),
        TableColumn("value", DOUBLE, "Mean of the switching system over the points.", False),
        TableColumn("sign_changes", INT, "How often the difference of the curves changes its sign.", False),
        TableColumn(
            "share_at_ends", DOUBLE, "Share of replicates switching before or behind all points.", False
        ),
        TableColumn(
            "share_holm", DOUBLE, "This share adjusted by Holm over the pairs of the night.", False
        ),
        TableColumn("shown", BOOLEAN, "Whether a crossing is shown: share_holm is below .05.", False),
        FOUND_AT,
    ),
)

PARADOX_ID = text_column("paradox_id", "Hash of the runs and settings: all rows of one search.")

PARADOXES = Table(
    "paradoxes",
    "One row per pair of models, metric, cut-off and slice key: whether strata and whole agree.",
    (
        PARADOX_ID,
        SUITE,
        TableColumn("logical_date", DATE, "Night of both runs.", False),
        SPLIT_ID,
        text_column("model", "The better model in the whole."),
        text_column("other", "The other model."),
        RUN_ID,
        text_column("other_run_id", "Run of the other model."),
        PART,
        METRIC,
        DEFINITION,
        K,
        text_column("slice_key", "Key of the strata: stratum, popularity ..."),
        TableColumn("users", LONG, "Users averaged of `model`, in the whole.", False),
        TableColumn("value", DOUBLE, "Mean of `model` over everyone."),
        TableColumn("other_value", DOUBLE, "Mean of `other` over everyone."),
        TableColumn("difference", DOUBLE, "value - other_value."),
        TableColumn("ci_low", DOUBLE, "Lower end of its paired bootstrap interval over users."),
        TableColumn("ci_high", DOUBLE, "Upper end of its interval."),
        TableColumn("stratified_value", DOUBLE, "Of `model`: means of the strata by their truth items."),
        TableColumn(
            "other_stratified_value", DOUBLE, "Of `other`: means of the strata by their truth items."
        ),
        TableColumn("stratified_difference", DOUBLE, "stratified_value - other_stratified_value."),
        TableColumn("stratified_low", DOUBLE, "Lower end of its interval: sizes are resampled with means."),
        TableColumn("stratified_high", DOUBLE, "Upper end of its interval."),
        TableColumn("labels", array_type(STRING), "The strata.", False),
        TableColumn("sizes", array_type(LONG), "Truth items in each stratum.", False),
        TableColumn("stratum_users", array_type(LONG), "Users of `model` averaged in each stratum.", False),
        TableColumn(
            "differences", array_type(DOUBLE), "Difference in each; NULL element: no users.", False
        ),
        TableColumn("lows", array_type(DOUBLE), "Lower ends of their intervals.", False),
        TableColumn("highs", array_type(DOUBLE), "Upper ends of their intervals.", False),
        text_column(
            "kind",
            "Opposing the whole: none, partial (a stratum), reversal (the stratified difference), "
            "full (all strata).",
        ),
        TableColumn(
            "certain", BOOLEAN, "Whether whole and stratified (partial: a stratum) exclude 0.", False
        ),
        TableColumn("opposed_share", DOUBLE, "Share of truth items in strata opposing the whole."),
        FOUND_AT,
    ),
    constraints={"kind_known": "kind IN ('none', 'partial', 'reversal', 'full')"},
)

FLIPS = Table(
    "flips",
    "One row per verdict: the smallest set of items, or users, without which the other model leads.",
    (
        PARADOX_ID,
        SUITE,
        TableColumn("logical_date", DATE, "Night of both runs.", False),
        SPLIT_ID,
        text_column("model", "Model with the larger sum."),
        text_column("other", "The other model."),
        RUN_ID,
        text_column("other_run_id", "Run of the other model."),
        PART,
        METRIC,
        DEFINITION,
        K,
        text_column("removed_are", "Kind of the removed: items or users."),
        TableColumn("removed", LONG, "How many must go; NULL: no set turns the verdict."),
        TableColumn("out_of", LONG, "How many have truth in this part.", False),
        TableColumn("total", DOUBLE, "Sum over users of `model` minus `other`.", False),
        TableColumn("removed_total", DOUBLE, "Removed part of the total: more than all of it."),
        TableColumn("threshold", DOUBLE, "The smallest contribution removed; all larger ones go too."),
        TableColumn("at_threshold", LONG, "How many of those equal to it go."),
        TableColumn("ids", array_type(STRING), "The largest contributors removed, at most 20."),
        TableColumn("contributions", array_type(DOUBLE), "Part of the total added by each of these."),
        FOUND_AT,
    ),
    constraints={"removed_known": "removed_are IN ('items', 'users')"},
)
