"""Metrics of ranks, of lists and of predictions: one value a user."""

# All at once: whoever asks `about` for a metric finds every registration made.
from recbench_spark.kernels.metrics import accuracy, beyond_accuracy, predictions

__all__ = ["accuracy", "beyond_accuracy", "predictions"]
