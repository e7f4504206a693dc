"""Metrics of rankings and predictions: values per user, means and confidence intervals."""
