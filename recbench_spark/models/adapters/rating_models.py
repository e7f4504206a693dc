"""Rating models in a night: one task per fit.

A sampler's best prediction is the mean over all its samples, and no stored model can repeat it. So the fit
predicts all held-out pairs as it runs, learns nothing from them, and stores the predictions. Models made
from vectors (SGD, ALS, iALS, logistic) rank by products; models with their own scores (MLP, NeuMF, Bayesian
MF) rank by their weights. The first worker on a host writes the arrays in the model's file, and the numbers
of users and items, as files which all the host's workers map.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from recbench_spark.config import digest
from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.errors import ConfigError, DataError, DivergedError, ProtocolError
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.models.fits import tasks as fit_tasks
from recbench_spark.models.fits.logs import RatingLog, SharedRatingLog, as_text, require_times
from recbench_spark.models.fits.running import count_slots, run_tasks
from recbench_spark.models.fits.table import append_fits
from recbench_spark.models.fits.tasks import FitTask, Row
from recbench_spark.models.prefix_vectors import FoldInSettings
from recbench_spark.models.rating.interface import FOLDING_KINDS, RatingModelConfig, ScoringModel
from recbench_spark.models.rating.kinds import learner_settings
from recbench_spark.models.rating.registry import check_ranking_model, gives_scores, make_stored_model
from recbench_spark.ranking.kernels.scorers import BlockScorer
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.ranking.predict import Predictor
from recbench_spark.ranking.sources import OPEN_MODELS, DotSource, Source, Strings
from recbench_spark.runtime.failures import describe_error
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.blocks import PieceRows, TaskRows
from recbench_spark.storage.objects import read_bytes
from recbench_spark.storage.packed_blocks import read_partition_files
from recbench_spark.storage.shared_arrays import SharedRows

TRAINING_PARTS = ("train", "given", "later")
"""Parts whose pairs are not predicted."""


class RatingAdapter(ModelAdapter[RatingModelConfig]):
    """Fits and ranks the learners in `models.rating`."""

    runs_local: ClassVar[bool] = True
    leased = False  # its task holds the lease of the fit
    folds_prefixes: ClassVar[bool] = True

    def check_ranking(self) -> None:
        """Check that the model ranks items; errors as `ModelAdapter`."""
        check_ranking_model(learner_settings(self.settings), self.settings.name)

    def fit(self, data: SplitData) -> Trained:
        """Fit as one task, which writes a row of `fits`.

        The task reads the log from files.

        Raises:
            ConfigError: features need days, and the log has no times.
            DataError, DivergedError: the error which ended the fit.
        """
        files, name = data.rating_log, self.settings.name
        task = self.make_task(data, files)
        (outcome,) = run_tasks(data.store.engine, [task], partial(fit_tasks.fit_one, files=files), 1)
        if outcome.row is None:
            reason = describe_error(outcome.error or OSError())
            raise DataError(f"model {name}: its process ended: {reason}")
        append_night_fits(data, [outcome.row])
        if outcome.row["status"] != "succeeded":
            kind = DivergedError if outcome.row["status"] == "diverged" else DataError
            message, _, hint = str(outcome.row["error"]).partition("\n  hint: ")
            raise kind(f"model {name}: {message}", hint)
        return self.load(data)

    def save(self, trained: Trained, data: SplitData) -> None:
        """Do nothing: the task has written its files."""

    def saved(self, data: SplitData) -> bool:
        """Return true if a task has written a successful row."""
        row = read_bytes(self._place(data, fit_tasks.ROW))
        return row is not None and b'"status": "succeeded"' in row

    def load(self, data: SplitData) -> Trained:
        """Read vectors and biases, if the model has them."""
        if read_bytes(self._place(data, fit_tasks.USERS)) is None:
            return Trained()
        return Trained(*(self._open_file(data, file) for file in (fit_tasks.USERS, fit_tasks.ITEMS)))

    def source(self, trained: Trained, data: SplitData) -> Source:
        """Return the item vectors, or the model's own scores.

        Raises ConfigError for a model without either.
        """
        if trained.items is not None:
            # The row names the attempt: another one may have left other bits under the same path.
            row = read_bytes(self._place(data, fit_tasks.ROW)) or b""
            return open_item_file(self._place(data, fit_tasks.ITEMS), row.decode(), data.known_items)
        check_ranking_model(learner_settings(self.settings), self.settings.name)
        files = data.rating_log
        return BlockSource(files, data.known_items, self.make_task(data, files))

    def check_prefixes(self) -> None:
        """Raise ConfigError if item vectors alone do not give users."""
        if self.settings.kind not in FOLDING_KINDS:
            self.refuse_prefixes()
        try:
            self.settings.make_fold_in()
        except ConfigError as error:
            raise ConfigError(f"model {self.settings.name}: {error.message}", error.hint) from None

    def make_fold_in(self, data: SplitData) -> FoldInSettings:
        """Return the fit's ridge regression.

        The regression for iALS counts the items in its tables.
        """
        items = data.choose_items(self.settings).n_items
        return self.settings.make_fold_in(items, data.threshold)

    def predict(self, users: Any, data: SplitData) -> TaskRows:
        """Return the fit's predictions; shuffles held-out pairs by user.

        Raises:
            ConfigError: the learner's scores are no ratings.
        """
        self._check_ratings()
        return data.predict(
            users, Predictor(None, data.mean_rating), self._open_file(data, fit_tasks.PREDICTIONS)
        )

    def _check_ratings(self) -> None:
        if gives_scores(learner_settings(self.settings).model_dump()):
            raise ConfigError(
                f"model {self.settings.name}: kind '{self.settings.kind}' does not predict ratings",
                "evaluation.task: ranking, or a learner of ratings (als: implicit: false)",
            )

    # ------------------------------------------------------------------------------------ the task

    def _open_file(self, data: SplitData, name: str) -> PieceRows:
        """Return the rows in one of the fit's files."""
        return PieceRows(data.store.engine, [(self._place(data, name), {})], read_partition_files)

    def _place(self, data: SplitData, name: str) -> str:
        return f"{data.store.files_root}/{fit_tasks.FIT_FILES}/{data.key(self.settings)}/{name}"

    def make_task(self, data: SplitData, files: SharedRatingLog) -> FitTask:
        """Return the fit as a task.

        Raises:
            ConfigError: the learner needs times, and the log has none.
            ProtocolError: there are no rows to learn from, or none to predict.
        """
        settings = learner_settings(self.settings)
        require_times(files, self.settings.name, settings)
        watched = tuple(part for part in files.parts if part not in TRAINING_PARTS)
        if "train" not in files.parts or not watched:
            raise ProtocolError("the split holds nothing to learn from, or nothing to predict", "see split")
        return FitTask(
            fit_id=data.key(self.settings), model=self.settings.name, settings=settings.model_dump(),
            seed=self.settings.seed, fold=None, train=("train",), watched=watched,
            threshold=data.threshold, folder=f"{data.store.files_root}/{fit_tasks.FIT_FILES}",
            stored=data.store.format_path(fit_tasks.FIT_FILES),
            whole=self.settings.items == "catalogue",
        )  # fmt: skip


class AlsAdapter(RatingAdapter):
    """Fits and ranks `als`, whose vectors also stand in `embeddings`."""

    @property
    def reads_grades(self) -> bool:
        """True if it predicts ratings: else each relevant pair counts alike."""
        return not gives_scores(learner_settings(self.settings).model_dump())

    save, saved, load, source = (
        ModelAdapter.save, ModelAdapter.saved, ModelAdapter.load, ModelAdapter.source,
    )  # fmt: skip

    def fit(self, data: SplitData) -> Trained:
        """Return the vectors in a fit's files, made now or earlier.

        Earlier means beside other fits.
        """
        if not super().saved(data):
            super().fit(data)
        return super().load(data)

    def predict(self, users: Any, data: SplitData) -> TaskRows:
        """Predict products within the scale, also for held-out users.

        Unknown pairs get the mean.
        """
        self._check_ratings()
        return self.predict_products(users, data, data.rating_log.scale)


def open_item_file(place: str, attempt: str, catalogue: KnownItems) -> DotSource:
    """Return the source over a fit's item vector file.

    The driver reads one row of it.

    Args:
        place: path or URI of the file: item_id, vector, bias.
        attempt: text unique to this attempt at the fit.
        catalogue: the items to rank; those missing in the file are not ranked.
    """
    rows = SharedRows(digest(place, attempt, length=32), (place,))
    (vector,) = rows.dataset().head(1, columns=["vector"]).column("vector").to_pylist()
    return DotSource(rows, catalogue.n_items, len(vector), catalogue=catalogue)


def append_night_fits(data: SplitData, rows: Sequence[Row]) -> None:
    """Append rows about a night's fits."""
    facts = {"log_id": data.split_id, "suite": data.suite or "night", "purpose": "night"}
    append_fits(data.store, rows, facts)


def fit_side_by_side(
    adapters: Sequence[RatingAdapter], data: SplitData, report: Callable[[str], None]
) -> list[str]:
    """Fit models side by side; commit all rows in one append.

    Each fit is a task on one core. The driver holds the tasks and their rows. A failed fit leaves no row
    here: its own run repeats it and reports the reason, and no other fit ends with it.

    Args:
        adapters: models which are not saved yet.
        data: the split.
        report: called with one line for each finished fit.

    Returns:
        The names of the fitted models.
    """
    files, tasks = data.rating_log, dict[str, FitTask]()
    for adapter in adapters:
        with suppress(ConfigError, ProtocolError):  # the model's own run raises it again
            task = adapter.make_task(data, files)
            tasks[task.fit_id] = task
    rows: list[Row] = []
    work, engine = partial(fit_tasks.fit_one, files=files), data.store.engine
    try:
        for outcome in run_tasks(engine, list(tasks.values()), work, count_slots(engine)):
            if outcome.row is not None and outcome.row["status"] == "succeeded":
                rows.append(outcome.row)
                report(
                    f"  {len(rows)} of {len(tasks)}: {outcome.row['model']}, {outcome.row['seconds']:.1f} s"
                )
    finally:  # the files of these fits are published, so nobody else would append their rows
        append_night_fits(data, rows)
    fitted = {row["fit_id"] for row in rows}
    return [adapter.settings.name for adapter in adapters if data.key(adapter.settings) in fitted]


PREFIX = "model."
"""Prefix for the model's own arrays."""


@dataclass(frozen=True)
class BlockSource:
    """A source (`ranking.sources.Source`) over a model's function `score`.

    Users and items without a training pair are not ranked.

    Attributes:
        files: the fit's log, whose order of ids numbers users and items.
        catalogue: the items to rank.
        task: the fit.
    """

    files: SharedRatingLog
    catalogue: KnownItems
    task: FitTask = field(hash=False)

    wants_history: ClassVar[bool] = False
    dims: ClassVar[int] = 0

    @property
    def rows(self) -> SharedRows:
        """Name of the arrays on a host.

        The arrays are built from the log and the fit's file.
        """
        return SharedRows(f"{self.files.shared.key}-{self.task.fit_id}", self.files.shared.files)

    def scorer(self) -> BlockScorer:
        """Return the scorer, as in `Source`."""
        return _block_scorer(self)

    def item_ids(self) -> Strings:
        """Return the item ids, as in `Source`."""
        return self.catalogue.ids()

    def find_users(self, ids: pa.Array) -> Ints:
        """Return each user's number in the model, (n,).

        A user without a training pair has -1.
        """
        arrays = self.rows.arrays(self.build)
        known, texts = arrays["user_ids"], np.array(ids.cast(pa.binary()).to_pylist(), "S")
        place = np.minimum(np.searchsorted(known, texts), len(known) - 1)
        return np.where(known[place] == texts, arrays["user_rows"][place], -1)

    def build(self, rows: ds.Dataset, folder: Path) -> None:
        """Write the model's arrays, numbered user ids, and item numbers.

        Raises:
            DataError: the fit's file is not there.
        """
        content = read_bytes(self.task.place(fit_tasks.MODEL))
        if content is None:
            raise DataError(
                f"{self.task.place(fit_tasks.MODEL)} is not there", "run the night again: it fits the model"
            )
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            for name in file.files:
                shared_arrays.save_array(folder, f"{PREFIX}{name}", file[name])
        log = self.files.open()
        train_r, watched_r = fit_tasks.choose_rows(self.task, log)
        known = fit_tasks.find_known(self.task, log, watched_r)
        users = _number_seen(log.arrays["users"][train_r], log, "user_ids", known and known.users)
        numbers = _number_seen(log.arrays["items"][train_r], log, "item_ids", known and known.items)
        order = np.argsort(log.arrays["user_ids"])
        shared_arrays.save_array(folder, "user_ids", log.arrays["user_ids"][order])
        shared_arrays.save_array(folder, "user_rows", users[order])
        rows_i = np.full(self.catalogue.n_items, -1)
        index = self.catalogue.find(as_text(log.arrays["item_ids"]))[0]
        rows_i[index[index >= 0]] = numbers[index >= 0]
        shared_arrays.save_array(folder, "item_rows", rows_i)


def _number_seen(key_r: npt.NDArray[np.integer], log: RatingLog, ids: str, known: Ints | None) -> Ints:
    """Return each log id's row in the model.

    An id in no given row has -1.
    """
    size = len(log.arrays[ids])
    place = np.full(size, -1)
    numbers = np.arange(size) if known is None else known
    place[numbers] = np.arange(len(numbers))
    seen: Bools = np.bincount(key_r, minlength=size) > 0
    return np.where(seen, place, -1)


@lru_cache(maxsize=OPEN_MODELS)
def _block_scorer(source: BlockSource) -> BlockScorer:
    arrays = source.rows.arrays(source.build)
    own = {name[len(PREFIX) :]: array for name, array in arrays.items() if name.startswith(PREFIX)}
    model = make_stored_model(own, source.task.place(fit_tasks.MODEL))
    assert isinstance(model, ScoringModel)
    return BlockScorer(model.score, arrays["item_rows"])
