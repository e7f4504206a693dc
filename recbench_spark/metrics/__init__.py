"""Metrics for rankings and predictions: user values, means, confidence intervals."""
