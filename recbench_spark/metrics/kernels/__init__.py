"""Metrics computed on arrays: one value per user."""

# All modules are imported together: `about` then has every registration.
from recbench_spark.metrics.kernels import (
    accuracy,
    beyond_accuracy,
    calibration,
    item_groups,
    learning_curves,
    predictions,
    roc,
    serendipity,
)

__all__ = [
    "accuracy", "beyond_accuracy", "calibration", "item_groups", "learning_curves", "predictions", "roc",
    "serendipity",
]  # fmt: skip
