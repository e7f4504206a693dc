"""Metrics of ranks, of lists and of predictions: one value a user."""
