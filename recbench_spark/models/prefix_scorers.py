"""References to models for learning curves, opened by tasks.

Such models rank users after each given rating.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from recbench_spark.errors import DataError
from recbench_spark.models.fold_in_settings import FoldInSettings
from recbench_spark.models.prefix_vectors import PrefixFolder
from recbench_spark.ranking.kernels.scorers import DotScorer, Scorer
from recbench_spark.ranking.sources import OPEN_MODELS, Source


@dataclass(frozen=True)
class PrefixScorer:
    """Opens a model in a learning-curve task.

    Attributes:
        source: the item side, mapped from one copy per host.
        fold_in: makes prefix vectors; None for a model which scores by history or by item alone.
    """

    source: Source
    fold_in: FoldInSettings | None = None

    def open(self) -> tuple[Scorer, PrefixFolder | None]:
        """Return the scorer and the folder, opened once per worker.

        Only a model with vectors has a folder.
        """
        return self.source.scorer(), None if self.fold_in is None else _open_folder(self)


@lru_cache(maxsize=OPEN_MODELS)
def _open_folder(model: PrefixScorer) -> PrefixFolder:
    scorer = model.source.scorer()
    if model.fold_in is None or not isinstance(scorer, DotScorer):
        raise DataError("only models with item vectors fold users in")
    products = scorer.products
    return model.fold_in.make_folder(products.vectors_id, products.bias_i, products.scored_i)
