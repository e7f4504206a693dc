"""Define the settings of `kind: mf_bpr`: matrix factorisation fitted to pairwise ranking."""

from __future__ import annotations

from typing import Literal

from recbench_spark.models.networks.settings import FactorModelConfig


class MfBprModel(FactorModelConfig):
    """MfBprModel is MF-BPR (Rendle et al. 2009): a user's relevant items rank above items it does not have.

    `penalty`: factor of squared lengths; the loss of an example has half of it. `spread`: spread of the
    first random vectors.
    """

    kind: Literal["mf_bpr"]

    @property
    def layers(self) -> int:
        """Return 0: there are no layers over the graph."""
        return 0
