"""Rating models in a night: one fit as one task, whose predictions of the held-out pairs are kept.

A sampler's best prediction is the mean over all its samples, which no stored model has; so the pairs of all
held-out parts are watched during the fit, and nothing is learnt of them. What is made of vectors (SGD, ALS,
iALS, logistic) can be ranked with as well.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recbench_spark.checks import Check
from recbench_spark.errors import ConfigError, DataError, DivergedError, ProtocolError
from recbench_spark.evaluation.ranking.rank import RankingInput
from recbench_spark.models.rating.kinds import RatingModelConfig, learner_settings
from recbench_spark.models.rating.registry import IMPLICIT
from recbench_spark.schemas import SPLITS
from recbench_spark.storage.shared_arrays import read_bytes
from recbench_spark.storage.shared_rows import load_parquet, share_rows
from recbench_spark.storage.spark_errors import explain_spark_error
from recbench_spark.training.fits.logs import (
    COLUMNS,
    SharedRatingLog,
    collect_facts,
    find_scale,
    require_times,
)
from recbench_spark.training.fits.running import run_tasks
from recbench_spark.training.fits.table import append_fits
from recbench_spark.training.fits.tasks import (
    FIT_FILES,
    ITEMS,
    PREDICTIONS,
    ROW,
    USERS,
    FitTask,
    fit_one,
)
from recbench_spark.training.model_adapter import Behaviour, SplitData, Trained

TRAINING_PARTS = ("train", "given", "later")
"""Parts of which nothing is predicted."""


class RatingAdapter(Behaviour[RatingModelConfig]):
    """A learner of `models.rating`."""

    leased = False  # its task holds the lease of the fit

    def fit(self, data: SplitData) -> Trained:
        """One task, a row of `fits`; the log goes to it as files.

        Raises:
            ConfigError: features of days on a log without times.
            DataError, DivergedError: as the fit ended.
        """
        files = self._files(data)
        task = self._task(data, files)
        (outcome,) = run_tasks(data.spark, [task], partial(fit_one, files=files), 1)
        if outcome.row is None:
            raise DataError(
                f"model {self.settings.name}: its process ended: {explain_spark_error(outcome.error or OSError())}"
            )
        name = self.settings.name
        facts = {"log_id": data.split_id, "suite": data.suite or "night", "purpose": "night"}
        append_fits(data.store, [outcome.row], facts)
        if outcome.row["status"] != "succeeded":
            kind = DivergedError if outcome.row["status"] == "diverged" else DataError
            message, _, hint = str(outcome.row["error"]).partition("\n  hint: ")
            raise kind(f"model {name}: {message}", hint)
        return self.load(data)

    def save(self, trained: Trained, data: SplitData) -> None:
        """Nothing: the task has written what it made."""

    def saved(self, data: SplitData) -> bool:
        """Whether a task has written its row, which it does last."""
        found = read_bytes(self._place(data, ROW))
        return found is not None and b'"status": "succeeded"' in found

    def load(self, data: SplitData) -> Trained:
        """Vectors and biases, where the model is made of them."""
        if read_bytes(self._place(data, USERS)) is None:
            return Trained()
        read = data.spark.read.parquet
        return Trained(read(self._place(data, USERS)), read(self._place(data, ITEMS)))

    def ranked(self, users: DataFrame, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """By vectors. Raises ConfigError for models of no vectors."""
        if self.load(data).items is None:
            raise ConfigError(
                f"model {self.settings.name}: kind '{self.settings.kind}' predicts pairs and ranks nothing",
                "evaluation.task: rating",
            )
        return super().ranked(users, data)

    def predict(self, users: DataFrame, data: SplitData) -> DataFrame:
        """What was predicted during the fit; a shuffle of the held-out pairs by user.

        Raises:
            ConfigError: a learner whose scores are no ratings.
        """
        if self.settings.kind in IMPLICIT:
            raise ConfigError(
                f"model {self.settings.name}: kind '{self.settings.kind}' does not predict ratings",
                "evaluation.task: ranking, or a learner of ratings such as sgd_mf",
            )
        pairs = load_parquet(data.spark, self._place(data, PREDICTIONS))
        entry = F.struct("item_id", "prediction")
        by_user = pairs.groupBy("user_id", "part").agg(
            F.map_from_entries(F.collect_list(entry)).alias("found")
        )
        joined = users.join(by_user, ["user_id", "part"], "left")
        mean = F.lit(data.mean_rating)

        def of_item(item: Column) -> Column:
            return F.coalesce(F.col("found")[item], mean)

        return joined.select(
            "user_id",
            "part",
            "user_key",
            F.transform("item_ids", of_item).alias("prediction"),
            F.col("relevance").alias("outcome"),
            F.expr("cast(size(filter(item_ids, x -> found[x] is null)) as int)").alias("unknown"),
        )

    # ------------------------------------------------------------------------------------ the task

    def _place(self, data: SplitData, name: str) -> str:
        return f"{data.store.files_root}/{FIT_FILES}/{data.key(self.settings)}/{name}"

    def _files(self, data: SplitData) -> SharedRatingLog:
        rows = data.table(SPLITS).select(*COLUMNS)
        found = collect_facts(rows)
        scale = find_scale(found, data.scale)
        has_times = found["timed"] == found["rows"]
        shared = share_rows(data.store.scratch, rows)
        return SharedRatingLog(shared, tuple(found["parts"]), scale, has_times, found["rows"])

    def _task(self, data: SplitData, files: SharedRatingLog) -> FitTask:
        settings = learner_settings(self.settings)
        require_times(files, self.settings.name, settings)
        watched = tuple(part for part in files.parts if part not in TRAINING_PARTS)
        if "train" not in files.parts or not watched:
            raise ProtocolError("the split holds nothing to learn from, or nothing to predict", "see split")
        return FitTask(
            fit_id=data.key(self.settings), model=self.settings.name, settings=settings.model_dump(),
            seed=self.settings.seed, fold=None, train=("train",), watched=watched,
            threshold=data.threshold, folder=f"{data.store.files_root}/{FIT_FILES}",
            stored=data.store.format_path(FIT_FILES),
        )  # fmt: skip
