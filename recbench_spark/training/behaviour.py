"""Old import path of `training.model_adapter`, for models of other packages."""

from recbench_spark.training.model_adapter import Behaviour, SplitData, Trained

__all__ = ["Behaviour", "SplitData", "Trained"]
