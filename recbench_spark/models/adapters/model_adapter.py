"""The interface of all models: fit, save, rank, predict, fold in.

A settings class names its adapter (`models.settings.ModelConfig`); nothing else in the package knows kinds
of models by name. Adapters know tables and, through `Source`, the scorers workers open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.checks import Check
from recbench_spark.core.own_modules import import_attribute
from recbench_spark.engine.versions import is_frame
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.models import prefix_scorers
from recbench_spark.models.adapters.split_data import SplitData
from recbench_spark.models.prefix_vectors import FoldInSettings, make_ridge_fold_in
from recbench_spark.models.rating.interface import Scale
from recbench_spark.models.settings import ModelConfig, name_adapter
from recbench_spark.ranking.inputs import RankingInput, ScoredModel
from recbench_spark.ranking.known_items import share_rows
from recbench_spark.ranking.predict import Predictor
from recbench_spark.ranking.sources import DotSource, Source
from recbench_spark.schemas import EMBEDDINGS, EXPLANATIONS, SIMILARITIES
from recbench_spark.storage.arrow_store import require_session
from recbench_spark.storage.blocks import PieceRows, Rows, TaskRows, rename_results, return_rows
from recbench_spark.storage.file_tables import TaskParts
from recbench_spark.storage.scratch import keep_results

if TYPE_CHECKING:
    from recbench_spark.models.adapters.frames import Frame

__all__ = ["Behaviour", "ModelAdapter", "SplitData", "Trained", "make_adapter"]

Settings = TypeVar("Settings", bound=ModelConfig)

Side = Any
"""Rows of a trained model: task results (`TaskRows`), stored `Rows`, or a Spark frame."""


@dataclass(frozen=True)
class Trained:
    """A trained model as tables; None for a missing side.

    users, items: user_id (item_id), vector, bias. similarities: item_id, neighbour_id, weight.
    explanations: rows of the table `explanations` without the model's name, in Arrow; `load` reads none. A
    fit returns task results (`TaskRows`) or Spark frames; `load` returns `Rows`, or frames.
    """

    users: Side = None
    items: Side = None
    similarities: Side = None
    explanations: pa.Table | None = None


class ModelAdapter(Generic[Settings]):
    """Connects a night with models of one kind; subclasses override.

    `runs_local`: fit and ranking need no Spark; else they raise `FallbackToSpark` on a runner without it.
    `learns`: there is something to fit and to store. `brings_candidates`: the model's own tables decide
    which items are ranked, so no candidates are added. `lists`: the model gives lists, which leave out
    items far from the top. `leased`: one run at a time fits the model; an adapter with its own guard sets
    False. `needs_folder`: the fit maps files of the model, so the warehouse must be a folder.
    `needs_files`: tasks write and map files of the model, so the warehouse must be a folder or an object
    storage. `keeps_checkpoints`: a killed fit continues, so on object storage the fit gets a lease, a
    folder on the driver's host and copies of its checkpoints. `folds_prefixes`: users can be ranked after
    each of their rows, for learning curves.

    The engine calls `is_saved`, `describe` and `prepare_ranking`. Each calls a member with an older name
    (`saved`, `told`, `ranked`), which models in other packages may define instead.
    """

    runs_local: ClassVar[bool] = False
    learns: ClassVar[bool] = True
    leased: ClassVar[bool] = True
    needs_folder: ClassVar[bool] = False
    needs_files: ClassVar[bool] = False
    keeps_checkpoints: ClassVar[bool] = False
    brings_candidates: ClassVar[bool] = False
    lists: ClassVar[bool] = False
    folds_prefixes: ClassVar[bool] = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def reads_grades(self) -> bool:
        """True if more of a rating may count than whether it is relevant."""
        return True

    def require_runner(self, data: SplitData) -> None:
        """Check that this runner can fit and rank such models.

        Raises:
            FallbackToSpark: the runner has no Spark, and the kind needs it.
        """
        if not self.runs_local:
            require_session(data.store, f"model {self.settings.name}: kind '{self.settings.kind}'")

    # -------------------------------------------------------------------------- fit, save, load

    def fit(self, data: SplitData) -> Trained | None:
        """Learn from the training rows; None if nothing is learnt."""
        return None

    def fold_in(self, trained: Trained, data: SplitData) -> Frame | None:
        """Return user_id, vector, bias for users without training rows.

        These users' rows come from `data.given_rows`.
        """
        return None

    def key(self, data: SplitData) -> str:
        """Return the trained model's name.

        The name is the split's id and a hash over all else the model depends on.
        """
        return data.key(self.settings)

    def save(self, trained: Trained, data: SplitData) -> None:
        """Append the model to its tables, once per key.

        Each table gets one commit.
        """
        key = self.key(data)
        if trained.explanations is not None:
            named = trained.explanations.append_column(
                "model_id", pa.repeat(key, len(trained.explanations))
            )
            data.store.append(named, EXPLANATIONS, once=key)
        vectors = {"user": trained.users, "item": trained.items}
        sides = {side: rows for side, rows in vectors.items() if rows is not None}
        near = {"": trained.similarities} if trained.similarities is not None else {}
        for table, parts in ((EMBEDDINGS, sides), (SIMILARITIES, near)):
            if any(map(is_frame, parts.values())):
                data.frames.append_frames(data.store, table, parts, key)
            elif parts:
                named = [_name_part(rows, side, key) for side, rows in parts.items()]
                data.store.append(TaskParts(named), table, once=key)

    def is_saved(self, data: SplitData) -> bool:
        """Return true if the model was trained on this split before.

        By default this calls `saved`, the older name.
        """
        return self.saved(data)

    def saved(self, data: SplitData) -> bool:
        """Return true if the model was trained on this split before."""
        return any(data.store.has(one, "model_id", self.key(data)) for one in (EMBEDDINGS, SIMILARITIES))

    def load(self, data: SplitData) -> Trained:
        """Read the model from its tables, or from external inputs."""
        key, read = self.key(data), data.store.open_rows
        users, items = (
            read(EMBEDDINGS, "model_id", [key], side=side).rename({f"{side}_id": "id"})
            for side in ("user", "item")
        )
        return Trained(users, items, read(SIMILARITIES, "model_id", [key]))

    def facts(self, data: SplitData) -> list[dict[str, Any]]:
        """Return facts the night measured on the model.

        Each row has part, fact (from `settings.facts`) and value.
        """
        return []

    def describe(self) -> str | None:
        """Describe the model for `--dry-run`, and check its files.

        By default this calls `told`, the older name.
        """
        return self.told()

    def told(self) -> str | None:
        """Describe the model for `--dry-run` after checking its files.

        None: the name says it all.
        """
        return None

    # -------------------------------------------------------------------------- rank, predict

    def source(self, trained: Trained, data: SplitData) -> Source:
        """Return the source workers score with: by default, item vectors."""
        assert trained.items is not None
        return self.share_vectors(trained.items, data)

    def share_vectors(self, items: Side, data: SplitData) -> DotSource:
        """Return item vectors as workers map them.

        The vectors lie in stored files, or the catalogue is written with a frame's vectors.

        Raises:
            DataError: no vectors, NULL among them, or vectors of different lengths.
        """
        what = f"model {self.settings.name}"
        if not isinstance(items, PieceRows):
            return cast("DotSource", data.frames.share_frame_vectors(data, items, what))
        lengths = set().union(*items.each(("vector",), _find_lengths))
        dims = lengths.pop() if len(lengths) == 1 else None
        if dims is None:
            raise DataError(f"{what}: no item has a vector, or they are of several lengths", "fit it again")
        rows = share_rows(items, (), data.store.scratch)
        return DotSource(rows, data.n_items, dims, catalogue=data.known_items)

    def open_source(self, trained: Trained, data: SplitData) -> Source:
        """Return the model's source, made once for this split."""
        key = self.key(data)
        if key not in data.sources:
            data.sources[key] = self.source(trained, data)
        return data.sources[key]

    def users(self, trained: Trained, source: Source) -> Side:
        """Return the users' user_id, vector, if the source needs vectors."""
        return trained.users if getattr(source, "dims", 0) else None

    def prepare_ranking(self, users: Any, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """Return the ranking's input and its checks.

        By default this calls `ranked`, the older name.
        """
        self.require_runner(data)
        return self.ranked(users, data)

    def ranked(self, users: Any, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """Return the input to `batched.rank`, and checks on it.

        Checks count the model's unusable rows.

        Args:
            users: rows from `select_part_users`; a Spark frame if the kind does not run local.
            data: the split.
        """
        trained = self.load(data)
        source = self.open_source(trained, data)
        return ScoredModel(source, self.rank_users(trained, source, data)), []

    def rank_users(self, trained: Trained, source: Source, data: SplitData) -> Rows | None:
        """Return user_id, vector for trained and folded-in users.

        The latter are folded in by their given rows.
        """
        known = self.users(trained, source)
        if is_frame(known):
            known = data.frames.FrameRows(known)
        if not (data.folds_users and self.settings.folds_given_rows):
            return cast("Rows | None", known)
        folded = self._fold_users(trained, data)
        return folded if known is None else known.unite(folded, prefix_scorers.VECTORS)

    def _fold_users(self, trained: Trained, data: SplitData) -> PieceRows:
        scorer = self.make_prefix_scorer(trained, data)
        fold = partial(prefix_scorers.fold_given_rows, known=data.known_items, model=scorer)
        folded = data.open_by_user(prefix_scorers.COLUMNS, fold, prefix_scorers.VECTORS)
        return keep_results(data.store.scratch, folded, data.store.engine)

    def predict_products(self, users: Side, data: SplitData, scale: Scale | None = None) -> TaskRows:
        """Predict by vectors, also for held-out users, as `predict`.

        Unknown pairs get the mean.
        """
        trained = self.load(data)
        source = self.open_source(trained, data)
        predictor = Predictor(source, data.mean_rating, scale=scale)
        return data.predict(users, predictor, self.rank_users(trained, source, data))

    def check_ranking(self) -> None:
        """Check, before Spark starts, that the model ranks items.

        Raises:
            ConfigError: it only predicts ratings, with these settings or at all.
        """

    # -------------------------------------------------------------------------- learning curves

    def check_prefixes(self) -> None:
        """Check, before Spark starts, that the model has learning curves.

        Raises:
            ConfigError: this kind cannot rank users after each of their rows, or not with these settings.
        """
        if not self.folds_prefixes:
            self.refuse_prefixes()

    def refuse_prefixes(self) -> NoReturn:
        """Raise ConfigError: this kind of model cannot fold users in."""
        raise ConfigError(
            f"model {self.settings.name}: kind '{self.settings.kind}' cannot fold users in, so it has "
            "no learning curve",
            "leave the model out of a file with evaluation.learning_curve",
        )

    def make_fold_in(self, data: SplitData) -> FoldInSettings | None:
        """Return how to fold prefixes in.

        None: the model scores by history or by item alone.
        """
        return None

    def make_prefix_scorer(self, trained: Trained, data: SplitData) -> prefix_scorers.PrefixScorer:
        """Return the model for learning-curve tasks; `check_prefixes` has passed.

        Args:
            trained: the model, as `load` reads it.
            data: the split.
        """
        return prefix_scorers.PrefixScorer(self.open_source(trained, data), self.make_fold_in(data))

    def predict(self, users: Side, data: SplitData) -> Side:
        """Predict ratings for pairs of users and items.

        Args:
            users: rows from `select_part_users`: one row per user with `items` and `relevance`; a Spark
                frame for a model which does not run local.
            data: the split.

        Returns:
            user_id, part, user_key, prediction, outcome (arrays); unknown: pairs the model does not know.
            These are task results (`TaskRows`), or a frame.

        Raises:
            ConfigError: the model does not predict ratings.
        """
        raise ConfigError(
            f"model {self.settings.name}: kind '{self.settings.kind}' does not predict ratings",
            "evaluation.task: ranking, or a model such as means or als with implicit: false",
        )


class SimilarityAdapter(ModelAdapter[Settings]):
    """Ranks by item vectors, with the setting `similarity`."""

    def source(self, trained: Trained, data: SplitData) -> DotSource:
        """Return the item vectors, with the configured similarity."""
        similarity = self.settings.similarity  # type: ignore[attr-defined]
        return replace(self.share_vectors(trained.items, data), kind=similarity)


class RidgeAdapter(ModelAdapter[Settings]):
    """Folds users in by the section `fold_in` of a model's settings."""

    folds_prefixes: ClassVar[bool] = True

    def check_prefixes(self) -> None:
        """Raise ConfigError if the file describes no fold-in."""
        make_ridge_fold_in(self.settings.name, self.settings.fold_in, None)  # type: ignore[attr-defined]

    def make_fold_in(self, data: SplitData) -> FoldInSettings:
        """Return the ridge regression from the file, on final item vectors."""
        section = self.settings.fold_in  # type: ignore[attr-defined]
        return make_ridge_fold_in(self.settings.name, section, data.threshold)


Behaviour = ModelAdapter
"""The older name, by which other packages' models know the class."""


def make_adapter(settings: ModelConfig) -> ModelAdapter[ModelConfig]:
    """Import a model's adapter class and return its adapter.

    Raises:
        ConfigError: its module cannot be imported, or has no such class.
    """
    adapter = import_attribute(name_adapter(type(settings)), f"model {settings.name}: behaviour")
    return cast("ModelAdapter[ModelConfig]", adapter(settings))


def _name_part(rows: Side, side: str, key: str) -> tuple[TaskRows, dict[str, str]]:
    """Return a fit's rows as a partition of a trained-model table."""
    partition = {"model_id": key} | ({"side": side} if side else {})
    if isinstance(rows, PieceRows):
        columns = (f"{side}_id", "vector", "bias")
        rows = rows.open(columns, return_rows, columns)
    return (rename_results(rows, {"id": f"{side}_id"}) if side else rows), partition


def _find_lengths(tables: Iterable[pa.Table]) -> set[int | None]:
    lengths = (pc.list_value_length(table.column("vector")).unique() for table in tables)
    return {n for some in lengths for n in some.to_pylist()}
