"""Rankings, metrics and their confidence intervals, computed from held-out items and models."""
