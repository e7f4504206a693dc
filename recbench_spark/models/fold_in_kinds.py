"""Settings of a model's section `fold_in`.

They say how new users get vectors from fixed item vectors.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recbench_spark.core.strict_settings import Strict

AboveZero = Annotated[float, Field(gt=0, le=1e6)]


class FoldInRidge(Strict):
    """One ridge regression per user on fixed item vectors Y.

    It serves models fitted otherwise. `targets: likes`: x = (w Y'Y + Y_u'Y_u + r (n + w I)^f 1)^-1 Y_u' 1
    over a user's n liked rows and all I items; w is `unobserved_weight`, r is `regulariser`, f is
    `frequency`. `targets: ratings`: x = (Y_u'Y_u + r n 1)^-1 Y_u' (ratings - item biases); with
    `bias_regulariser` a user bias is solved too. No default suits every model: search the settings on the
    part `valid`.
    """

    targets: Literal["likes", "ratings"] = "likes"
    """Target of a user's ridge regression: 1 for liked items, or the ratings."""
    regulariser: AboveZero
    """Weight r of the vector's squared length."""
    unobserved_weight: AboveZero | None = None
    """Weight w of all items beside the liked ones; for likes alone."""
    frequency: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Exponent f of the regulariser's growth with the number of liked rows; for likes alone."""
    bias_regulariser: AboveZero | None = None
    """Weight of the user's squared bias; None: no bias; for ratings alone."""

    @model_validator(mode="after")
    def _check_targets(self) -> Self:
        likes = self.targets == "likes"
        if likes and self.unobserved_weight is None:
            raise ValueError("targets: likes needs unobserved_weight, the weight of all pairs")
        if likes and self.bias_regulariser is not None:
            raise ValueError("bias_regulariser belongs to targets: ratings")
        for name in ("unobserved_weight", "frequency"):
            if not likes and name in self.model_fields_set:
                raise ValueError(f"{name} belongs to targets: likes")
        return self
