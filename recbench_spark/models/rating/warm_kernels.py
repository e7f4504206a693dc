"""Call of each kernel for models of ratings, to compile it."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from recbench_spark.core.extras import MissingPackageError
from recbench_spark.models.rating import registry
from recbench_spark.models.rating.interface import ScoringModel, check_ratings

FEATURES = ("u,i", "u,i,t,iu,ii")
"""Features for Bayesian models, without and with implicit features and days."""


def warm() -> None:
    """Fit six ratings with every learner, one step each.

    Learners that need torch are left out where it is missing.
    """
    users_r, items_r = np.repeat(np.arange(3), 2), np.tile(np.arange(2), 3)
    ratings = check_ratings(users_r, items_r, np.arange(1.0, 7.0), (1, 6), 86_400 * np.arange(6))
    few = {"dims": 2, "epochs": 1, "sweeps": 1, "samples": 2, "burn_in": 0}
    for kind, family in registry.ALL_FAMILIES.items():
        supported = {name: value for name, value in few.items() if name in family.settings.model_fields}
        for features in FEATURES if "features" in family.settings.model_fields else (None,):
            more = {"features": features} if features else {}
            settings = registry.make_settings({"kind": kind, **supported, **more})
            with suppress(MissingPackageError):
                fitted = registry.fit(ratings, settings, 1, ratings)
                if kind == "bayesian_mf":
                    assert isinstance(fitted.model, ScoringModel)
                    fitted.model.score(users_r[:1], items_r)
                elif kind in registry.FAMILIES:
                    fitted.model.predict(users_r, items_r, ratings.times_r)
