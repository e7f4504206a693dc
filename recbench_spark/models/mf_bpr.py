"""Matrix factorisation fitted to pairwise ranking: the settings of `kind: mf_bpr`."""

from __future__ import annotations

from typing import Literal

from recbench_spark.models.networks.settings import FactorModelConfig


class MfBprModel(FactorModelConfig):
    """MF-BPR (Rendle et al. 2009): a user's relevant items above items it does not have.

    `penalty` is that of squared lengths, an example's half of it; `spread` of the first random vectors.
    """

    kind: Literal["mf_bpr"]

    @property
    def layers(self) -> int:
        """None over the graph."""
        return 0
