"""Settings of `kind: mf_bpr`: matrix factorisation by pairwise ranking."""

from __future__ import annotations

from typing import Literal

from recbench_spark.models.networks.settings import FactorModelConfig


class MfBprModel(FactorModelConfig):
    """MF-BPR (Rendle et al. 2009): relevant items rank above others.

    `penalty`: factor on squared lengths; an example's loss has half of it. `spread`: spread of the first
    random vectors.
    """

    kind: Literal["mf_bpr"]

    @property
    def layers(self) -> int:
        """Return 0: there are no layers over the graph."""
        return 0
