"""The slow oracle of all fold-ins: a refit of each prefix, written with dense matrices.

A refit solves one user after one prefix by `numpy.linalg.solve`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.models.prefix_vectors import (
    ConfidenceFoldIn,
    FoldInSettings,
    PairFoldIn,
    RidgeFoldIn,
    RoundedFolder,
)

Model = tuple[Floats32, Floats, Bools]
"""Vectors and biases of items, and which items the model knows."""


def refit(fold_in: FoldInSettings, model: Model, items: Ints, ratings: Floats) -> Floats | None:
    """Solve for the vector after some rows; None where the model can use none of them."""
    vectors_id, biases_i, known_i = model
    dims = vectors_id.shape[1]
    y_id = vectors_id.astype(np.float64)
    used = (items >= 0) & known_i[items]
    if not isinstance(fold_in, RidgeFoldIn):
        assert isinstance(fold_in, ConfidenceFoldIn | PairFoldIn)
        used &= ratings > 0 if fold_in.threshold is None else ratings >= fold_in.threshold
    y, n = y_id[items[used]], int(used.sum())
    if not n:
        return None
    if isinstance(fold_in, RidgeFoldIn):
        targets, ridge = (
            ratings[used] - biases_i[items[used]],
            [fold_in.regulariser * n**fold_in.frequency] * dims,
        )
        if fold_in.bias_regulariser is not None:
            y, ridge = np.column_stack([y, np.ones(n)]), [*ridge, fold_in.bias_regulariser * n]
        return np.linalg.solve(y.T @ y + np.diag(ridge), y.T @ targets)[:dims]
    if isinstance(fold_in, ConfidenceFoldIn):
        left = (
            y_id.T @ y_id
            + fold_in.alpha * y.T @ y
            + fold_in.regulariser * n**fold_in.frequency * np.eye(dims)
        )
        return np.linalg.solve(left, (1 + fold_in.alpha) * y.sum(axis=0))
    assert isinstance(fold_in, PairFoldIn)
    weight, size = fold_in.unobserved_weight, fold_in.items or int(known_i.sum())
    strength = fold_in.regulariser * (n + weight * size) ** fold_in.frequency
    left = weight * y_id.T @ y_id + y.T @ y + strength * np.eye(dims)
    return np.linalg.solve(left, y.sum(axis=0))


@dataclass(frozen=True)
class RefittingFolder(RoundedFolder):
    """Folder that refits the model for each prefix."""

    fold_in: FoldInSettings
    model: Model

    def solve(self, offsets: Ints, items: Ints, ratings: Floats) -> tuple[Floats, Bools]:
        vectors_pd = np.zeros((len(items), self.model[0].shape[1]))
        known_p = np.zeros(len(items), bool)
        for u in range(len(offsets) - 1):
            for end in range(offsets[u] + 1, offsets[u + 1] + 1):
                rows = slice(offsets[u], end)
                vector = refit(self.fold_in, self.model, items[rows], ratings[rows])
                if vector is not None:
                    vectors_pd[end - 1], known_p[end - 1] = vector, True
        return vectors_pd, known_p
