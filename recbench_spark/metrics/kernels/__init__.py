"""Metrics of ranks, of lists and of predictions: one value per user."""

# All modules are imported together, so that `about` has every registration.
from recbench_spark.metrics.kernels import accuracy, beyond_accuracy, learning_curves, predictions, roc

__all__ = ["accuracy", "beyond_accuracy", "learning_curves", "predictions", "roc"]
