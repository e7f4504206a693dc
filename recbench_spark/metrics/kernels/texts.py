"""Metric texts for readers: full name, formula, edge rule, source."""

from __future__ import annotations

from dataclasses import dataclass

NO_RELEVANT = "A user without relevant items is left out and counted, or counts 0 (`empty_users: zero`)."
NO_LIST = "A user with relevant items and no list counts 0 (`users` says who counts)."
EDGE = f"{NO_RELEVANT} {NO_LIST}"
"""Edge rules shared by all rank metrics."""

NO_ROWS = "No value without a list."
NO_BINARY = "No value for outcomes other than 0 and 1, nor where all outcomes are equal."
ROC = "Hanley and McNeil 1982, The meaning and use of the area under a ROC curve"
YI = "Yi, Chen, Li, Sett and Yan 2013, Predictive model performance: offline and online evaluations"


@dataclass(frozen=True)
class MetricText:
    """A metric in words, for people who read its number.

    Attributes:
        title: the full name.
        formula: how a value is computed, under the default definition.
        edges: what happens where the formula has no value.
        source: the publication, if there is one.
    """

    title: str
    formula: str
    edges: str
    source: str = ""


TEXTS: dict[str, MetricText] = {
    "ndcg": MetricText(
        "normalised discounted cumulative gain (nDCG)",
        "DCG / ideal DCG; DCG is the sum of gain / log2(rank + 1) over the first k ranks; the ideal list"
        " has the relevant items first.",
        "nDCG of a user without relevant items has no value: the user is left out and counted, or counts 0"
        " (`empty_users: zero`), also where it has gains above 0 (`grade_origin`) and no rating from"
        f" `threshold` on. {NO_LIST}",
        "Järvelin and Kekäläinen 2002, Cumulated gain-based evaluation of IR techniques",
    ),
    "mandcg": MetricText(
        "mean of average nDCG along a learning curve (MANDCG)",
        "Mean over users; a user's value is the mean nDCG over the points of the learning curve.",
        "A point without a value is left out with its weight; a user without a point is left out.",
    ),
    "recall": MetricText("recall", "hits among the first k / relevant items of the user.", EDGE),
    "calibrated_recall": MetricText(
        "calibrated recall", "hits among the first k / min(k, relevant): 1 can be reached at every k.", EDGE
    ),
    "precision": MetricText(
        "precision", "hits among the first k / k. A list shorter than k is still divided by k.", EDGE
    ),
    "f1": MetricText("F1: harmonic mean of precision and recall", "2 P R / (P + R).", EDGE),
    "map": MetricText(
        "mean average precision (MAP)",
        "Sum of the precisions at the hits among the first k / min(k, relevant).",
        EDGE,
        "Buckley and Voorhees 2000, Evaluating evaluation measure stability",
    ),
    "mrr": MetricText(
        "mean reciprocal rank (MRR)",
        "1 / rank of the first relevant item; 0 where it is beyond k.",
        EDGE,
        "Voorhees 1999, The TREC-8 question answering track report",
    ),
    "hit": MetricText(
        "hit rate (HR)", "1 if any relevant item is among the first k, else 0; or their number.", EDGE
    ),
    "auc": MetricText(
        "area under the ROC curve (AUC)",
        "Share of pairs (relevant item, other item) in the right order; ties count half."
        " For predictions: the same over all rows.",
        "A user without such a pair has no value. An unranked relevant item loses to every other"
        " ranked item.",
        ROC,
    ),
    "r_precision": MetricText(
        "R-precision",
        "Share of relevant items among the first R ranks, R = relevant items of the user.",
        EDGE,
    ),
    "rbp": MetricText(
        "rank-biased precision (RBP)",
        "(1 - p) times the sum of p^(rank - 1) over relevant items; p is the persistence.",
        EDGE,
        "Moffat and Zobel 2008, Rank-biased precision for measurement of retrieval effectiveness",
    ),
    "percentile_rank": MetricText(
        "percentile rank",
        "Mean of (rank - 1) / (candidates - 1) of the relevant items; random order gives 1/2.",
        f"An unranked item counts 1. {NO_RELEVANT}",
        "Hu, Koren and Volinsky 2008, Collaborative filtering for implicit feedback datasets",
    ),
    "coverage": MetricText(
        "catalogue coverage",
        "Items in at least one list up to k / items of the catalogue.",
        "0 without lists.",
    ),
    "gini": MetricText(
        "Gini coefficient of the items' numbers of lists",
        "sum_j (2 j - n - 1) t_j / (n sum t) over the n items in ascending order of their numbers t.",
        "No value if nothing was listed. Items never listed count 0.",
        "Fleder and Hosanagar 2009, Blockbuster culture's next rise or fall",
    ),
    "novelty": MetricText(
        "novelty (surprisal, in bits)",
        "Mean -log2 p over the first k entries; p is the share of training users with the item.",
        f"{NO_ROWS} An item nobody has counts as if one user had it.",
        "Zhou et al. 2010, Solving the apparent diversity-accuracy dilemma of recommender systems",
    ),
    "mean_popularity": MetricText(
        "mean popularity",
        "Share of training users with an item, averaged over the first k entries.",
        NO_ROWS,
        "Yin et al. 2012, Challenging the long tail recommendation",
    ),
    "diversity": MetricText(
        "intra-list diversity",
        "1 - mean cosine over pairs among the first k items.",
        "No value for fewer than two entries. An item without features has cosine 0 with all.",
        "Ziegler et al. 2005, Improving recommendation lists through topic diversification",
    ),
    "rmse": MetricText(
        "root mean squared error (RMSE)",
        "Square root of mean (prediction - outcome)^2.",
        "No value without rows.",
    ),
    "mse": MetricText(
        "mean squared error (MSE)", "Mean of (prediction - outcome)^2.", "No value without rows."
    ),
    "mae": MetricText(
        "mean absolute error (MAE)", "Mean of |prediction - outcome|.", "No value without rows."
    ),
    "nmse": MetricText(
        "normalised mean squared error (NMSE)",
        "MSE / (g (1 - g)), g = mean outcome; 1 is no better than always predicting g.",
        NO_BINARY,
    ),
    "logloss": MetricText(
        "logarithmic loss (log-loss)",
        "Mean of -y ln p - (1 - y) ln(1 - p).",
        "Probabilities are clipped to 2^-52 .. 1 - 2^-52. No value for outcomes other than 0 and 1.",
    ),
    "rig": MetricText(
        "relative information gain (RIG)",
        "1 - log-loss / H(g), H the entropy of the mean outcome g; 0: no better than always predicting g.",
        NO_BINARY,
        YI,
    ),
    "pe": MetricText(
        "prediction error (PE)",
        "mean prediction / mean outcome - 1: 0 is best, above it predictions are too high.",
        "No value if all outcomes are 0.",
        YI,
    ),
    "gauc": MetricText(
        "group AUC (GAUC): the AUC within users",
        "Sum over users of AUC x positives / sum of positives.",
        "Users with one kind of outcome are left out.",
        "Zhu et al. 2017, Optimized cost per click in Taobao display advertising",
    ),
    "pauc": MetricText(
        "partial AUC (pAUC)",
        "Area under the ROC curve between two false-positive rates, divided by their difference.",
        "No value without positives or without negatives.",
        "McClish 1989, Analyzing a portion of the ROC curve",
    ),
    "calibration_error": MetricText(
        "expected calibration error (ECE)",
        "Sum over equal-mass bins: (rows in the bin / rows) |mean prediction - mean outcome|.",
        "No value without rows, nor for outcomes other than 0 and 1. Rows with equal predictions share a"
        " bin: among n sorted predictions those at places n b / bins (rounded down, from 0) are edges. An"
        " edge belongs to the bin above it, and equal edges are one, so there may be fewer bins.",
        "Naeini, Cooper and Hauskrecht 2015, Obtaining well calibrated probabilities",
    ),
    "tpr": MetricText(
        "true-positive rate (TPR)",
        "Positives predicted at or above a threshold / positives.",
        "No value without positives.",
    ),
    "fnr": MetricText("false-negative rate (FNR)", "1 - TPR.", "No value without positives."),
    "fpr": MetricText(
        "false-positive rate (FPR)",
        "Negatives predicted at or above a threshold / negatives.",
        "No value without negatives.",
    ),
    "tnr": MetricText("true-negative rate (TNR)", "1 - FPR.", "No value without negatives."),
    "mean_prediction": MetricText(
        "mean prediction",
        "Mean of the predictions, to be read beside the mean outcome.",
        "No value without rows.",
    ),
    "mean_outcome": MetricText(
        "mean outcome, the base rate", "Mean outcome: a fact about the data.", "No value without rows."
    ),
}
"""Texts by metric name, in report order."""


@dataclass(frozen=True)
class EstimatorText:
    """An estimator in words: full name, what it computes, source."""

    title: str
    meaning: str
    source: str = ""


ESTIMATOR_TEXTS: dict[str, EstimatorText] = {
    "holdout": EstimatorText("plain holdout", "The metric as it is, without a correction."),
    "ips": EstimatorText(
        "inverse propensity scoring (IPS)",
        "Each relevant item counts 1 / its chance of being shown.",
        "Schnabel et al. 2016, Recommendations as treatments",
    ),
    "clipped_ips": EstimatorText(
        "clipped IPS", "IPS whose weights are cut at `exposure.clip`: less noise, some bias."
    ),
    "snips_user": EstimatorText(
        "self-normalised IPS by user (SNIPS)",
        "Weights are scaled to a mean of 1 within each user.",
        "Swaminathan and Joachims 2015, The self-normalized estimator for counterfactual learning",
    ),
    "snips_global": EstimatorText(
        "self-normalised IPS over all users (SNIPS)", "Weights are scaled to a mean of 1 over all users."
    ),
    "ips_pooled": EstimatorText(
        "IPS pooled over users",
        "All users' weighted gain / ideal gain for a user with the mean number of items.",
    ),
    "dm": EstimatorText("direct method (DM)", "The expected reward of the list by a reward model alone."),
    "dr": EstimatorText(
        "doubly robust estimator (DR)",
        "DM plus the weighted error of the reward model on what was shown.",
        "Dudík, Langford and Li 2011, Doubly robust policy evaluation and learning",
    ),
    "switch_dr": EstimatorText(
        "doubly robust estimator that switches (switch-DR)",
        "DR whose correction is left out where a weight is above `exposure.switch`.",
        "Wang, Agarwal and Dudík 2017, Optimal and adaptive off-policy evaluation in contextual bandits",
    ),
    "dros": EstimatorText(
        "doubly robust estimator with optimistic shrinkage (DRos)",
        "DR whose weights w are shrunk to s w / (w^2 + s), s = `exposure.shrink`.",
        "Su et al. 2020, Doubly robust off-policy evaluation with shrinkage",
    ),
    "stratified": EstimatorText(
        "stratified estimate",
        "Mean over item strata by propensity, each weighted by its share of the relevant items.",
    ),
    "rank_estimate": EstimatorText(
        "rank estimate", "Of drawn candidates: the metric at the expected full rank of the sampled rank."
    ),
    "least_squares": EstimatorText(
        "least squares",
        "Of drawn candidates: the table of values with the least squared error over all ranks.",
    ),
    "monotone_least_squares": EstimatorText(
        "monotone least squares", "Least squares whose values never rise with the rank."
    ),
    "bias_variance": EstimatorText(
        "bias-variance trade-off",
        "Of drawn candidates: least squares with a weight on the variance.",
        "Krichene and Rendle 2020, On sampled metrics for item recommendation",
    ),
    "maximum_likelihood": EstimatorText(
        "maximum likelihood",
        "From drawn candidates: the distribution of full ranks under which sampled ranks are most likely.",
        "Jin et al. 2021, On estimating recommendation evaluation metrics under sampling",
    ),
}
"""Texts by the name in the column `estimator`, in report order."""
