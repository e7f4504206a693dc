"""A whole benchmark file, and the checks across its sections."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from recbench_spark.analyses.comparisons.settings import Comparisons, Gate, Paradoxes, Regression
from recbench_spark.boards.settings import SearchSettings
from recbench_spark.config.evaluation import EXPOSURE_SLICES, Evaluation
from recbench_spark.core.definitions import Definition
from recbench_spark.core.strict_settings import Name, Strict, require_own_names
from recbench_spark.models.settings import (
    EmbeddingsModel,
    ItemKnnModel,
    ListsModel,
    ModelConfig,
    PublishedModel,
    RandomModel,
    RetrievedModel,
    ScoresModel,
    SwitchModel,
    make_model,
)
from recbench_spark.retrieval.settings import Retrieval
from recbench_spark.sources.settings import CLOSED_LOOP_READERS, Dataset
from recbench_spark.splits.settings import FOLD_HOLDOUTS, Split


class Benchmark(Strict):
    """One benchmark file: one complete protocol.

    `search`: spaces of settings, for `recbench tune`. `board`: the board which receives results over all
    folds, a published one or your own; without it, the board has the file's name.
    """

    added_later: ClassVar[frozenset[str]] = frozenset({"search", "board", "retrieval"})

    name: Name
    """Name of the suite in tables and reports."""
    description: str = ""
    """Description of the benchmark, in words."""
    dataset: Dataset
    """The log, and how to read it."""
    split: Split = Split()
    """Rows that train and rows that test."""
    retrieval: Retrieval | None = None
    """Indexes through which models are measured too."""
    models: tuple[SerializeAsAny[ModelConfig], ...]
    """Models, each under a name of its own."""
    evaluation: Evaluation = Evaluation()
    """Metrics, cut-offs, parts, and the definition behind the metrics."""
    headline: Annotated[str, Field(pattern="^[a-z_0-9]+(@[1-9][0-9]{0,8})?$")] = "ndcg@10"
    """Figure that reports show first."""
    gates: tuple[Gate, ...] = ()
    """Bounds on facts of the data, which can fail a night."""
    comparisons: Comparisons | None = None
    """Tests between models and between nights."""
    regressions: tuple[Regression, ...] = ()
    """Falls that end the job with exit code 4."""
    paradoxes: Paradoxes | None = None
    """Search for cases where parts and whole disagree."""
    ran_by: str | None = None
    """Person or team who ran the file, for boards."""
    search: SearchSettings | None = None
    board: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_headline(cls, document: Any) -> Any:
        evaluation = document.get("evaluation") if isinstance(document, dict) else None
        if isinstance(evaluation, dict) and evaluation.get("task") == "rating":
            return {"headline": "rmse", **document}
        return document

    @model_validator(mode="before")
    @classmethod
    def _fill_candidates(cls, document: Any) -> Any:
        """Rank all items by default if tests may repeat training."""
        if not isinstance(document, dict):
            return document
        split, evaluation = (document.get(name) or {} for name in ("split", "evaluation"))
        if not (isinstance(split, dict) and isinstance(evaluation, dict)):
            return document
        definition, rates = evaluation.get("definition") or {}, evaluation.get("task") == "rating"
        if split.get("repeats", "drop") == "drop" or rates or not isinstance(definition, dict):
            return document
        filled = {**evaluation, "definition": {"candidates": "all", **definition}}
        return {**document, "evaluation": filled}

    @model_validator(mode="after")
    def _check_sections(self) -> Benchmark:
        mistakes = (
            *_comparison_mistakes(self),
            *_paradox_mistakes(self),
            *_search_mistakes(self),
            *_open_loop_mistakes(self),
            *_fold_in_mistakes(self),
            *_curve_mistakes(self),
            *_retrieval_mistakes(self),
            *_history_mistakes(self),
            *(mistake for switch in self.switches for mistake in _switch_mistakes(self, switch)),
        )
        for wrong, message in mistakes:
            if wrong:
                raise ValueError(message)
        return self

    @property
    def definition(self) -> Definition:
        """The metric definition.

        Only lists from another system can have ranks with gaps.
        """
        definition = self.evaluation.resolve()
        lists = any(isinstance(model, ListsModel) for model in self.models)
        return definition if lists else definition.without_ranks()

    @property
    def switches(self) -> tuple[SwitchModel, ...]:
        """The models which switch between others."""
        return tuple(model for model in self.models if isinstance(model, SwitchModel))

    @property
    def curve_models(self) -> tuple[ModelConfig, ...]:
        """The models with a learning curve of their own."""
        return tuple(
            model for model in self.models if model.measured and not isinstance(model, SwitchModel)
        )

    @field_validator("split")
    @classmethod
    def _localise_start(cls, split: Split, info: ValidationInfo) -> Split:
        dataset = info.data.get("dataset")
        return split.localise(dataset.zone) if dataset else split

    @field_validator("models", mode="before")
    @classmethod
    def _make_models(cls, models: Any, info: ValidationInfo) -> Any:
        if not isinstance(models, list | tuple):
            return models  # the field's own check refuses it
        where = (info.context or {}).get("where", "benchmark")
        made = tuple(make_model(model, f"{where}: models.{n}") for n, model in enumerate(models))
        return made + make_retrieved_models(info.data.get("retrieval"), made)

    @field_validator("models")
    @classmethod
    def _check_model_names(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        if not models:
            raise ValueError("give at least one model")
        require_own_names("models", [(model.name, f"kind {model.kind}") for model in models])
        return models


WITHOUT_VECTORS = (ItemKnnModel, ListsModel, PublishedModel, RandomModel, ScoresModel, SwitchModel)
"""Models whose scores no index can hold."""


def make_retrieved_models(
    retrieval: Retrieval | None, models: tuple[ModelConfig, ...]
) -> tuple[ModelConfig, ...]:
    """Return a model for each index and model in `retrieval`.

    A model's name is `model.index`. A document written from a benchmark already holds these models; they
    are not made again.
    """
    if retrieval is None:
        return ()
    known = {model.name: model for model in models}
    unknown = [name for name in retrieval.models if name not in known]
    if unknown:
        raise ValueError(f"retrieval.models: no model '{unknown[0]}' in this file")
    return tuple(
        RetrievedModel(
            name=f"{name}.{index.name}",
            kind="retrieved",
            version=known[name].version,
            base=known[name],
            index=index,
            length=retrieval.length,
        )
        for name in retrieval.models
        for index in retrieval.indexes
        if not isinstance(known.get(f"{name}.{index.name}"), RetrievedModel)
    )


def _retrieval_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """Return mistakes in lists through indexes: (is wrong, message)."""
    retrieval, evaluation = benchmark.retrieval, benchmark.evaluation
    retrieved = [model for model in benchmark.models if isinstance(model, RetrievedModel)]
    if not retrieved:
        return []
    longest, length = max(evaluation.cutoffs), min(model.length for model in retrieved)
    without_vectors = [model.base.name for model in retrieved if isinstance(model.base, WITHOUT_VECTORS)]
    return [
        (
            bool(without_vectors),
            f"retrieval.models: the scores of '{''.join(without_vectors[:1])}' are no products of vectors\n"
            "  hint: a model such as als or embeddings",
        ),
        (evaluation.task == "rating", "retrieval is of rankings: evaluation.task is 'rating'"),
        (
            evaluation.uncut,
            "retrieval: lists end, so metrics over the whole ranking have no value\n"
            "  hint: evaluation.uncut: false",
        ),
        (
            length < longest,
            f"retrieval.length {length} is shorter than the largest cut-off, {longest}",
        ),
        (
            retrieval is not None and retrieval.recall is not None and "valid" not in evaluation.parts,
            "retrieval.recall: an index is chosen on the part valid: add it to evaluation.parts",
        ),
        (
            benchmark.split.held_out is not None and evaluation.learning_curve is not None,
            "retrieval: lists through an index have no learning curves: leave one of the sections out",
        ),
    ]


def _history_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """Return models which see measured rows: (is wrong, message)."""
    return [
        (
            model.shows_validation and "valid" in benchmark.evaluation.parts,
            f"models.{model.name}: history 'with_valid' shows the part valid, which evaluation.parts "
            "measures\n  hint: evaluation.parts: [test], or history: train",
        )
        for model in benchmark.models
    ]


def _comparison_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """Return mistakes in comparisons and regressions: (is wrong, message)."""
    comparisons, evaluation = benchmark.comparisons or Comparisons(), benchmark.evaluation
    wanted = bool(benchmark.comparisons or benchmark.regressions)
    compared = comparisons.metrics or evaluation.all_metrics
    cuts = comparisons.k or (*evaluation.cutoffs, None)
    pinned = any(rule.against == "baseline" for rule in benchmark.regressions)
    names = {model.name for model in benchmark.models}
    unknown = {comparisons.baseline, *(rule.model for rule in benchmark.regressions)} - names - {None}
    strange = [metric for metric in compared if metric not in evaluation.all_metrics]
    strays = [str(k) for k in comparisons.k or () if k not in (*evaluation.cutoffs, None)]
    uncompared = [
        f"{rule.metric}@{rule.k or 'all'} of {rule.part}"
        for rule in benchmark.regressions
        if rule.metric not in compared or rule.k not in cuts or rule.part not in evaluation.parts
    ]
    return [
        (wanted and not evaluation.user_metrics, "comparisons need evaluation.user_metrics: true"),
        (bool(unknown), f"comparisons: no model '{next(iter(unknown), '')}' in this file"),
        (bool(strange), f"comparisons: {', '.join(strange)} not in evaluation.metrics"),
        (bool(strays), f"comparisons.k: {', '.join(strays)} not in evaluation.k"),
        (bool(uncompared), f"regressions: {', '.join(uncompared)} is not compared"),
        (
            pinned and comparisons.baseline_night is None,
            "regressions against 'baseline' need comparisons.baseline_night",
        ),
    ]


def _open_loop_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """Return conflicts between closed and open loop: (is wrong, message)."""
    dataset, split = benchmark.dataset, benchmark.split
    given, divided = split.holdout == "given", dataset.closed_loop == "split"
    has_open_loop = dataset.is_table or dataset.reader in ("world", *CLOSED_LOOP_READERS)
    return [
        (given and divided, "dataset.closed_loop 'split' needs a split.holdout other than 'given'"),
        (
            dataset.reader in CLOSED_LOOP_READERS
            and not given
            and not divided
            and benchmark.evaluation.task != "rating",
            f"all closed rows of reader '{dataset.reader}' train, so the split has no test rows: give "
            "dataset.closed_loop: split, or split.protocol: given",
        ),
        (
            split.open_loop == "all" and not has_open_loop,
            f"split.open_loop 'all': reader '{dataset.reader}' has no open loop",
        ),
    ]


def _curve_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """Return mistakes around learning curves: (is wrong, message)."""
    split, parts = benchmark.split, benchmark.evaluation.parts
    if benchmark.evaluation.learning_curve is None:
        return []
    where = "evaluation.learning_curve"
    strays = [part for part in parts if part not in ("test", "valid")]
    return [
        (
            not split.holds_out_users,
            f"{where} needs users held out from training\n  hint: split.held_out: {{of: users, test: 0.1}}",
        ),
        (split.parts != ("test",), f"{where}: split.parts divides the rows of a user: leave it out"),
        (bool(strays), f"{where}: part '{''.join(strays[:1])}' is of no held-out users: test, valid"),
        (not benchmark.curve_models, f"{where}: the file has no model that ranks"),
    ]


def _switch_mistakes(benchmark: Benchmark, switch: SwitchModel) -> list[tuple[bool, str]]:
    """Return mistakes around a switch: (is wrong, message)."""
    curve, where = benchmark.evaluation.learning_curve, f"models.{switch.name}"
    if curve is None:
        return [(True, f"{where}: a switch needs evaluation.learning_curve")]
    known = [model.name for model in benchmark.curve_models]
    unknown = [name for name in (switch.first, switch.then) if name is not None and name not in known]
    held_out = benchmark.split.held_out
    valid = "valid" in benchmark.evaluation.parts and held_out is not None and held_out.valid > 0
    return [
        (
            bool(unknown),
            f"{where}: no model '{''.join(unknown[:1])}' that ranks\n  hint: {', '.join(known)}",
        ),
        (switch.first is None and len(known) < 2, f"{where}: there are no two models to switch between"),
        (
            switch.at == "auto" and not valid,
            f"{where}: 'at: auto' chooses on validation users, and there are none\n"
            "  hint: split.held_out.valid above 0, and evaluation.parts: [valid, test]",
        ),
        (
            switch.at == "auto" and benchmark.evaluation.parts == ("valid",),
            f"{where}: 'at: auto' needs users to measure, too: add test to evaluation.parts",
        ),
        (
            switch.at != "auto" and not curve.points[0] <= switch.at < curve.points[-1],
            f"{where}: 'at' is {switch.at}, and the points are {curve.points[0]} to {curve.points[-1]}\n"
            "  hint: a point before the last one",
        ),
    ]


def _search_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """Return mistakes in the search: (is wrong, message)."""
    search = benchmark.search
    if search is None:
        return []
    names = {model.name for model in benchmark.models}
    unknown = [name for name in search.spaces if name not in names]
    fold_count = benchmark.split.folds if benchmark.split.holdout in FOLD_HOLDOUTS else 1
    return [
        (bool(unknown), f"search.spaces: no model '{unknown[0] if unknown else ''}' in this file"),
        (search.fold >= fold_count, f"search.fold: no fold {search.fold} in this split"),
    ]


def _fold_in_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """Return item vectors without users to rank: (is wrong, message).

    A model with item vectors alone needs a split with held-out users.
    """
    alone = [m for m in benchmark.models if isinstance(m, EmbeddingsModel) and m.users is None]
    return [
        (
            not benchmark.split.holds_out_users,
            f"model {model.name}: without users it ranks only users of split.held_out: {{of: users}}",
        )
        for model in alone
    ]


def _paradox_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """Return mistakes in the search for paradoxes: (is wrong, message)."""
    paradoxes, evaluation = benchmark.paradoxes, benchmark.evaluation
    if paradoxes is None:
        return []
    if evaluation.task == "rating":
        return [(True, "paradoxes are of rankings: evaluation.task is 'rating'")]
    keys = (*(cut.key for cut in evaluation.slices), *(EXPOSURE_SLICES if evaluation.exposure else ()))
    cuts = [k for k in paradoxes.k or () if k not in (*evaluation.cutoffs, None)]
    unknown = {
        "by": [key for key in paradoxes.keys(evaluation) if key not in keys],
        "metrics": [metric for metric in paradoxes.metrics or () if metric not in evaluation.metrics],
        "k": list(map(str, cuts)),
        "parts": [part for part in paradoxes.parts or () if part not in evaluation.parts],
    }
    pinned = "baseline" in (paradoxes.against, paradoxes.flips_against)
    named = benchmark.comparisons is not None and benchmark.comparisons.baseline is not None
    missing = [(key, ", ".join(name or "''" for name in names)) for key, names in unknown.items()]
    return [
        *((bool(names), f"paradoxes.{key}: {names} not in evaluation") for key, names in missing),
        (pinned and not named, "paradoxes against 'baseline' need comparisons.baseline"),
    ]
