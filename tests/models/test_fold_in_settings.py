"""Settings of a fold-in make the folder of a model in a task; the oracle solves one prefix at a time."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.config import MllibAlsModel, PopularModel, TruthModel
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.models.prefix_scorers import PrefixScorer
from recbench_spark.models.prefix_vectors import ConfidenceFoldIn, FoldInSettings, RidgeFoldIn
from recbench_spark.models.rating.als import AlsModel
from recbench_spark.models.settings import ModelConfig
from recbench_spark.ranking.kernels.scorers import DotScorer
from recbench_spark.ranking.sources import DotSource, HashSource
from recbench_spark.storage.shared_arrays import SharedRows
from tests.one_fold_in import fold_in_explicit, fold_in_implicit

ITEMS, DIMS = 7, 3


def item_rows(tmp_path: Path) -> SharedRows:
    """Vectors of all items but the last one, as a night writes them."""
    draw = np.random.default_rng(3)
    vectors = [draw.normal(size=DIMS).astype(np.float32).tolist() for _ in range(ITEMS - 1)]
    table = pa.table(
        {
            "item_index": pa.array(range(ITEMS), pa.int32()),
            "item_id": [f"i{n}" for n in range(ITEMS)],
            "vector": pa.array([*vectors, None], pa.list_(pa.float32())),
            "bias": pa.array([0.0] * ITEMS),
        }
    )
    pq.write_table(table, tmp_path / "items.parquet")
    return SharedRows(f"fold_in_settings_{tmp_path.name}", (str(tmp_path / "items.parquet"),))


@pytest.mark.parametrize("fold_in", [RidgeFoldIn(0.3), ConfidenceFoldIn(0.3, 2.0, 4.0)])
def test_a_task_folds_prefixes_as_one_solve_each(tmp_path: Path, fold_in: FoldInSettings) -> None:
    model = PrefixScorer(DotSource(item_rows(tmp_path), ITEMS, DIMS), fold_in)
    sent: PrefixScorer = pickle.loads(pickle.dumps(model))
    scorer, folder = sent.open()
    assert isinstance(scorer, DotScorer) and folder is not None
    factors_id = np.asarray(scorer.products.vectors_id, np.float64)
    items, ratings = np.array([0, ITEMS - 1, 2, 3, 4, 5]), np.array([4.0, 5.0, 2.0, 5.0, 4.0, 1.0])
    folded = folder.fold(np.array([0, len(items)]), items, ratings)
    for last in range(len(items)):
        given = np.arange(last + 1)[items[: last + 1] < ITEMS - 1]  # the last item has no vector
        if isinstance(fold_in, ConfidenceFoldIn):
            given = given[ratings[given] >= 4.0]
            one = fold_in_implicit(np.array([0, len(given)]), items[given], np.ones(len(given)),
                                   factors_id, 0.3, alpha=2.0)[0]  # fmt: skip
        else:
            one = fold_in_explicit(
                np.array([0, len(given)]), items[given], ratings[given], factors_id, 0.3
            )[0]
        np.testing.assert_allclose(folded.vectors_pd[last], one, rtol=0, atol=1e-6)
    assert folded.known_p.all()


def test_a_folder_is_made_once_for_a_worker(tmp_path: Path) -> None:
    source = DotSource(item_rows(tmp_path), ITEMS, DIMS)
    assert (
        PrefixScorer(source, RidgeFoldIn(0.3)).open()[1] is PrefixScorer(source, RidgeFoldIn(0.3)).open()[1]
    )
    assert PrefixScorer(source).open()[1] is None


def test_scores_without_vectors_fold_nobody_in(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only models with item vectors"):
        PrefixScorer(HashSource(item_rows(tmp_path), ITEMS, 1), RidgeFoldIn(0.3)).open()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (TruthModel(name="t", kind="truth"), "model t: kind 'truth' cannot fold users in"),
        (AlsModel(name="a", kind="als", regularization=0.0), "model a: als: a regulariser of 0"),
        (MllibAlsModel(name="a", kind="mllib_als", regularization=0.0), "model a: a regulariser of 0"),
    ],
)
def test_models_without_curves_are_named_before_spark(model: ModelConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_adapter(model).check_prefixes()


def test_models_with_curves_pass() -> None:
    for model in (
        AlsModel(name="a", kind="als"),
        MllibAlsModel(name="m", kind="mllib_als"),
        PopularModel(name="p", kind="popular"),
    ):
        make_adapter(model).check_prefixes()
