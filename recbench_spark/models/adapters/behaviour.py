"""Old import path of `models.adapters.model_adapter`, for other packages' models."""

from recbench_spark.models.adapters.model_adapter import Behaviour, SplitData, Trained

__all__ = ["Behaviour", "SplitData", "Trained"]
