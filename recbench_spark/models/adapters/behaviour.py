"""Old import path of `models.adapters.model_adapter`, for models of other packages."""

from recbench_spark.models.adapters.model_adapter import Behaviour, SplitData, Trained

__all__ = ["Behaviour", "SplitData", "Trained"]
