"""Run a night on closed and open loop, as arrays.

The models in a benchmark file are fitted to labelled rows and ranked. No Java starts. Labels, fits and
ranks come from the functions a night calls in its tasks, so the numbers are a night's
(`tests/jobs/test_simpson.py`). One process holds the log, and one model at a time. `simpson.py` uses it.

Axes: r rows, p tested pairs, u users, i items, d dimensions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.config import Benchmark, Dataset, ModelConfig, PopularModel, digest
from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.core.revisions import select_revisions
from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import ConfigError
from recbench_spark.models.fits.logs import index_ids
from recbench_spark.models.rating import registry
from recbench_spark.models.rating.interface import Ratings, ScoringModel, check_ratings
from recbench_spark.models.rating.kinds import learner_settings, model_seed
from recbench_spark.models.rating.means import MeansModel
from recbench_spark.models.rating.sgd import RatingFactorModel
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.rankings import Rankings, mark_relevant
from recbench_spark.ranking.kernels.scorers import BlockScorer, DotScorer, Scorer, UserBlock, count_ranks
from recbench_spark.sources.log_sources import open_raw_log
from recbench_spark.sources.opened_logs import check_log, fill_columns
from recbench_spark.splits.labels import label_rows
from recbench_spark.splits.pairs import OPEN_LOOP
from recbench_spark.splits.rules import make_rule
from recbench_spark.storage.publish import replace_file

TRAIN, VALID, TEST = "train", "valid", "test"
PARTS = (TRAIN, VALID, TEST, OPEN_LOOP)

ARRAYS = ("offsets", "relevance", "above", "tied", "before", "length")
"""Fields of `Rankings`, as stored."""


# ------------------------------------------------------------------------------- the log


def read_rows(dataset: Dataset) -> pa.Table:
    """Read a log as a night does.

    The columns are those of `INTERACTIONS`. A closed row's part is NULL where the split divides the closed
    loop.

    Raises:
        FallbackToSpark: only Spark reads it. ConfigError, DataError: it cannot be read.
    """
    with TemporaryDirectory() as scratch:
        rows = fill_columns(check_log(open_raw_log(dataset), dataset, LocalEngine(scratch)))
        return pa.concat_tables(chain.from_iterable(rows.each(rows.names, list)))


@dataclass(frozen=True)
class LoopLog:
    """A labelled log, sorted by user, item and part.

    Ids are in the order in which rankings sort them.

    Attributes:
        users_r, items_r, ratings_r: (r,) index of user and item, rating.
        parts_r: (r,) the part's place in `PARTS`.
        user_ids, item_ids: ids as bytes.
        scale: lowest and highest rating.
    """

    users_r: Ints
    items_r: Ints
    ratings_r: Floats
    parts_r: Ints
    user_ids: npt.NDArray[Any]
    item_ids: npt.NDArray[Any]
    scale: tuple[float, float]

    def select(self, part: str) -> Ratings:
        """Return a part's rows; users and items stay the log's."""
        chosen = self.parts_r == PARTS.index(part)
        rows = (self.users_r[chosen], self.items_r[chosen], self.ratings_r[chosen])
        sizes = {"n_users": len(self.user_ids), "n_items": len(self.item_ids)}
        return check_ratings(*rows, self.scale, **sizes)

    def count_items(self, *parts: str) -> Ints:
        """Count each item's rows in these parts, (i,)."""
        chosen = np.isin(self.parts_r, [PARTS.index(part) for part in parts])
        return np.bincount(self.items_r[chosen], minlength=len(self.item_ids)).astype(np.int64)

    def digest(self) -> str:
        """Hash all rows, ids and parts."""
        content = hashlib.sha256(repr(self.scale).encode())
        rows = (self.users_r, self.items_r, self.ratings_r, self.parts_r, self.user_ids, self.item_ids)
        for column in rows:
            content.update(np.ascontiguousarray(column).tobytes())
        return content.hexdigest()


def label_log(rows: pa.Table, benchmark: Benchmark) -> LoopLog:
    """Label the rows by a benchmark file's split; see `read_rows`."""
    split, dataset = benchmark.split, benchmark.dataset
    duplicates = None if dataset.duplicates == "error" else dataset.duplicates
    labelled = label_rows(rows, replace(make_rule(split, duplicates), numeric=True))
    users_r, user_ids = index_ids(labelled.column("user_id").cast(pa.string()))
    items_r, item_ids = index_ids(labelled.column("item_id").cast(pa.string()))
    parts = labelled.column("part").cast(pa.string()).to_numpy()
    parts_r = np.array([PARTS.index(part) for part in parts], np.int64)
    ratings_r = labelled.column("rating").to_numpy()
    scale = dataset.scale or (float(ratings_r.min()), float(ratings_r.max()))
    order = np.lexsort((parts_r, items_r, users_r))
    users, items = users_r[order].astype(np.int64), items_r[order].astype(np.int64)
    return LoopLog(users, items, ratings_r[order], parts_r[order], user_ids, item_ids, scale)


# ------------------------------------------------------------------------------- fits and ranks


class FittedScorer(NamedTuple):
    """A fitted model that ranks.

    The model has its item side, user vectors (u, d), and the users it knows, (u,).
    """

    scorer: Scorer
    vectors_ud: npt.NDArray[np.float32]
    known_u: Bools


def fit_scorer(model: ModelConfig, train: Ratings, threshold: float | None) -> FittedScorer:
    """Fit a model to the training rows.

    Users and items without one are not ranked, as in a night.

    Raises:
        ConfigError: a kind fitted on Spark alone.
        DivergedError: the fit gave numbers that are not finite.
    """
    if isinstance(model, PopularModel) or (isinstance(model, MeansModel) and model.means == "global"):
        return _score_items(isinstance(model, PopularModel), train)
    settings = learner_settings(model)
    rows = train
    if registry.learns_relevant(settings.model_dump()):
        rows = train.rows(mark_relevant(train.ratings_r, threshold))
    fitted = registry.fit(rows, settings, model_seed(model)).model
    known_i, known_u = (
        np.bincount(key_r, minlength=size) > 0
        for key_r, size in ((rows.items_r, rows.n_items), (rows.users_r, rows.n_users))
    )
    if isinstance(fitted, RatingFactorModel):
        scorer = DotScorer(fitted.q_id, fitted.bias_i + fitted.mean, known_i)
        return FittedScorer(scorer, fitted.p_ud, known_u)
    if not isinstance(fitted, ScoringModel):
        raise ConfigError(
            f"model {model.name}: kind '{model.kind}' ranks nothing", "see docs/how_to/rating_benchmarks.md"
        )
    numbers_i = np.where(known_i, np.arange(rows.n_items), -1)
    no_vectors = np.zeros((rows.n_users, 0), np.float32)
    return FittedScorer(BlockScorer(fitted.score, numbers_i), no_vectors, known_u)


def _score_items(by_count: bool, train: Ratings) -> FittedScorer:
    """Score items by training rows, or all by the mean.

    The mean is that of ratings; every item is ranked.
    """
    counts_i = np.bincount(train.items_r, minlength=train.n_items).astype(np.float64)
    bias_i = counts_i if by_count else np.full(train.n_items, train.ratings_r.mean())
    vectors = [np.zeros((size, 0), np.float32) for size in (train.n_items, train.n_users)]
    return FittedScorer(DotScorer(vectors[0], bias_i), vectors[1], np.ones(train.n_users, bool))


@dataclass(frozen=True)
class TestedPart:
    """A part's tested pairs: users, items and ratings.

    Users have a row in the part.

    Attributes:
        users: (u,) each user's index in the log.
        keys_u: (u,) its id's hash, as in a night's tables.
        truth: each user's items.
        relevance_p: ratings.
    """

    users: Ints
    keys_u: Ints
    truth: ItemLists
    relevance_p: Floats


def list_tested(log: LoopLog, part: str) -> TestedPart:
    """Return a part's tested pairs."""
    rows = log.select(part)
    users, counts = np.unique(rows.users_r, return_counts=True)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    keys_u = hash_ids(pa.array(log.user_ids[users]).cast(pa.string())).view(np.int64)
    return TestedPart(users, keys_u, ItemLists(offsets, rows.items_r), rows.ratings_r)


def rank_part(fitted: FittedScorer, tested: TestedPart) -> Rankings:
    """Rank tested items among all items the model scores.

    Training items stay candidates.
    """
    users, offsets = tested.users, tested.truth.offsets_u
    known_u = fitted.known_u[users]
    vectors_ud = np.ascontiguousarray(fitted.vectors_ud[users])
    block = UserBlock(tested.keys_u, vectors_ud, rows_u=np.where(known_u, users, -1))
    counts = count_ranks(fitted.scorer, block, tested.truth, ItemLists.empty(len(users)))
    known_p = np.repeat(known_u, np.diff(offsets))
    above, tied, before = (
        np.where(known_p, column, unranked)
        for column, unranked in ((counts.above_p, -1), (counts.tied_p, 0), (counts.before_p, 0))
    )
    length = np.where(known_u, counts.candidates_u, 0)
    return Rankings(offsets, tested.relevance_p, above, tied, before, length)


# ------------------------------------------------------------------------------- stored ranks


def name_fit(model: ModelConfig, log_digest: str, part: str, threshold: float | None) -> str:
    """Hash everything a model's ranks depend on.

    `threshold`: smallest relevant rating.
    """
    settings: Mapping[str, Any] = model.model_dump(exclude={"name", "provenance"})
    names = (model.kind, *model.revised, "rankings", "splits", "ids")
    return digest(settings, log_digest, part, threshold, select_revisions(*names), length=32)


def load_rankings(place: Path) -> Rankings | None:
    """Return an earlier run's stored ranks, or None."""
    if not place.is_file():
        return None
    with np.load(place, allow_pickle=False) as arrays:
        return Rankings(*(arrays[name] for name in ARRAYS))


def save_arrays(place: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Publish arrays as one file, whole or not at all."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    replace_file(place, write)
