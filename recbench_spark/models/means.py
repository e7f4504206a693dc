"""Means of users and items, shrunk towards the mean of all: what every rating model has to beat."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from recbench_spark.config.models import ModelConfig


class MeansModel(ModelConfig):
    """r_ui = mu + b_i + b_u: means of items and users, shrunk.

    b_i = sum_u (r_ui - mu) / (n_i + k_I), then b_u = sum_i (r_ui - mu - b_i) / (n_u + k_U).

    `means`: which deviations there are, in the order in which each takes what the one before has left.
    `item_shrinkage`, `user_shrinkage`: k_I and k_U, how many ratings at the mean each is mixed with.
    Source: Koren and Bell, "Advances in collaborative filtering" (2011), section 5.2.1.
    """

    behaviour: ClassVar[str] = "recbench_spark.training.means:Means"
    kind: Literal["means"]
    means: Literal["global", "users", "items", "items_users", "users_items"] = "items_users"
    user_shrinkage: Annotated[float, Field(ge=0)] = 10.0
    item_shrinkage: Annotated[float, Field(ge=0)] = 25.0
