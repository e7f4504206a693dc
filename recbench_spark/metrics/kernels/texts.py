"""Estimators in words: full name, what each computes, source."""

from __future__ import annotations

from dataclasses import dataclass


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
