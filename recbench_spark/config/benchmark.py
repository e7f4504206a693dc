"""A whole benchmark file, and the checks across its sections."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from recbench_spark.analyses.comparisons.settings import (
    USER_SLICES,
    Comparisons,
    Gate,
    Paradoxes,
    Regression,
    Restated,
)
from recbench_spark.boards.settings import SearchSettings
from recbench_spark.config.evaluation import EXPOSURE_SLICES, Evaluation
from recbench_spark.core.definitions import Definition
from recbench_spark.core.metric_names import split_figure, suggest_metric
from recbench_spark.core.strict_settings import UNITS, Name, Strict, require_own_names, seconds
from recbench_spark.errors import nearest
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

    added_later: ClassVar[frozenset[str]] = frozenset(
        {"search", "board", "retrieval", "restated", "exit_on"}
    )

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
    restated: Restated | None = None
    """Bound on how far numbers may move when a night is made again."""
    exit_on: tuple[Literal["too good", "cannot tell"], ...] = ()
    """Verdicts on models that end the job with exit codes 5 and 6."""
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
        checks = (
            _find_comparison_mistakes,
            _find_paradox_mistakes,
            _find_search_mistakes,
            _find_open_loop_mistakes,
            _find_fold_in_mistakes,
            _find_curve_mistakes,
            _find_retrieval_mistakes,
            _find_history_mistakes,
            _find_switch_mistakes,
        )
        for mistake in chain.from_iterable(find(self) for find in checks):
            raise ValueError(mistake)
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
    def asks_often(self) -> bool:
        """True if users have several questions."""
        return self.split.successive or self.dataset.query is not None

    @property
    def regression_slices(self) -> tuple[str, ...]:
        """Keys of the slices that regressions watch."""
        return tuple(dict.fromkeys(rule.slice for rule in self.regressions if rule.slice))

    @property
    def user_slices(self) -> tuple[str, ...]:
        """Keys of the slices of users."""
        return tuple(cut.key for cut in self.evaluation.slices if cut.of in USER_SLICES)

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


def _find_retrieval_mistakes(benchmark: Benchmark) -> Iterator[str]:
    """Yield mistakes in lists through indexes."""
    retrieval, evaluation = benchmark.retrieval, benchmark.evaluation
    retrieved = [model for model in benchmark.models if isinstance(model, RetrievedModel)]
    if not retrieved:
        return
    for base in (model.base for model in retrieved if isinstance(model.base, WITHOUT_VECTORS)):
        yield (
            f"retrieval.models: the scores of '{base.name}' are no products of vectors\n"
            "  hint: a model such as als or embeddings"
        )
    if evaluation.task == "rating":
        yield "retrieval is of rankings: evaluation.task is 'rating'"
    if evaluation.uncut:
        yield (
            "retrieval: lists end, so metrics over the whole ranking have no value\n"
            "  hint: evaluation.uncut: false"
        )
    longest, length = max(evaluation.cutoffs), min(model.length for model in retrieved)
    if length < longest:
        yield f"retrieval.length {length} is shorter than the largest cut-off, {longest}"
    if retrieval is not None and retrieval.recall is not None and "valid" not in evaluation.parts:
        yield "retrieval.recall: an index is chosen on the part valid: add it to evaluation.parts"
    if benchmark.split.held_out is not None and evaluation.learning_curve is not None:
        yield "retrieval: lists through an index have no learning curves: leave one of the sections out"


def _find_history_mistakes(benchmark: Benchmark) -> Iterator[str]:
    """Yield models which see measured rows."""
    for model in benchmark.models:
        if model.shows_validation and "valid" in benchmark.evaluation.parts:
            yield (
                f"models.{model.name}: history 'with_valid' shows the part valid, which evaluation.parts "
                "measures\n  hint: evaluation.parts: [test], or history: train"
            )


def _find_comparison_mistakes(benchmark: Benchmark) -> Iterator[str]:
    """Yield mistakes in comparisons and regressions."""
    comparisons, evaluation = benchmark.comparisons or Comparisons(), benchmark.evaluation
    compared = comparisons.metrics or evaluation.all_metrics
    if (benchmark.comparisons or benchmark.regressions) and not evaluation.user_metrics:
        yield "comparisons need evaluation.user_metrics: true"
    names = {model.name for model in benchmark.models}
    named = {comparisons.baseline, *(rule.model for rule in benchmark.regressions)}
    for unknown in named - names - {None}:
        yield f"comparisons: no model '{unknown}' in this file"
    strange = [metric for metric in compared if metric not in evaluation.all_metrics]
    if strange:
        yield f"comparisons: {', '.join(strange)} not in evaluation.metrics"
    strays = [str(k) for k in comparisons.k or () if k not in (*evaluation.cutoffs, None)]
    if strays:
        yield f"comparisons.k: {', '.join(strays)} not in evaluation.k"
    cuts = comparisons.k or (*evaluation.cutoffs, None)
    uncompared = [
        f"{rule.metric}@{rule.k or 'all'} of {rule.part}"
        for rule in benchmark.regressions
        if rule.metric not in compared or rule.k not in cuts or rule.part not in evaluation.parts
    ]
    if uncompared:
        yield f"regressions: {', '.join(uncompared)} is not compared"
    yield from _find_front_mistakes(comparisons, evaluation)
    yield from _find_slice_mistakes(benchmark)
    pinned = any(rule.against == "baseline" for rule in benchmark.regressions)
    if pinned and comparisons.baseline_night is None:
        yield "regressions against 'baseline' need comparisons.baseline_night"
    if comparisons.baseline is None and any(rule.against == "model" for rule in benchmark.regressions):
        yield "regressions against 'model' need comparisons.baseline"


def _find_front_mistakes(comparisons: Comparisons, evaluation: Evaluation) -> Iterator[str]:
    """Yield figures of fronts that are not measured."""
    for figure in dict.fromkeys(figure for figures in comparisons.fronts for figure in figures):
        metric, k = split_figure(figure)
        if metric not in evaluation.all_metrics:
            yield f"comparisons.fronts: {figure}\n  hint: {suggest_metric(metric, evaluation.all_metrics)}"
        elif k not in (*evaluation.cutoffs, None):
            yield f"comparisons.fronts: {figure}: {k} is not in evaluation.k"


def _find_slice_mistakes(benchmark: Benchmark) -> Iterator[str]:
    """Yield slices of regressions that cannot be watched."""
    watched, groups = [cut.key for cut in benchmark.evaluation.slices], benchmark.evaluation.item_groups
    if groups and groups.column in benchmark.user_slices:
        yield f"evaluation.item_groups: column '{groups.column}' is the key of a slice of users"
    watched += [groups.column] if groups else []
    for key in benchmark.regression_slices:
        if key not in watched:
            yield f"regressions: no slice '{key}' in evaluation.slices\n  hint: {nearest(key, watched)}"


def _find_open_loop_mistakes(benchmark: Benchmark) -> Iterator[str]:
    """Yield conflicts between closed and open loop."""
    dataset, split = benchmark.dataset, benchmark.split
    given, divided = split.holdout == "given", dataset.closed_loop == "split"
    if given and divided:
        yield "dataset.closed_loop 'split' needs a split.holdout other than 'given'"
    trains_all = dataset.reader in CLOSED_LOOP_READERS and not given and not divided
    if trains_all and benchmark.evaluation.task != "rating":
        yield (
            f"all closed rows of reader '{dataset.reader}' train, so the split has no test rows: give "
            "dataset.closed_loop: split, or split.protocol: given"
        )
    has_open_loop = dataset.is_table or dataset.reader in ("world", *CLOSED_LOOP_READERS)
    if split.open_loop == "all" and not has_open_loop:
        yield f"split.open_loop 'all': reader '{dataset.reader}' has no open loop"


def _find_curve_mistakes(benchmark: Benchmark) -> Iterator[str]:
    """Yield mistakes around learning curves."""
    split, where = benchmark.split, "evaluation.learning_curve"
    if benchmark.evaluation.learning_curve is None:
        return
    if not split.holds_out_users:
        hint = "split.held_out: {of: users, test: 0.1}"
        yield f"{where} needs users held out from training\n  hint: {hint}"
    if split.parts != ("test",):
        yield f"{where}: split.parts divides the rows of a user: leave it out"
    for part in benchmark.evaluation.parts:
        if part not in ("test", "valid"):
            yield f"{where}: part '{part}' is of no held-out users: test, valid"
    if not benchmark.curve_models:
        yield f"{where}: the file has no model that ranks"


def _find_switch_mistakes(benchmark: Benchmark) -> Iterator[str]:
    """Yield mistakes around switches."""
    curve, parts = benchmark.evaluation.learning_curve, benchmark.evaluation.parts
    known, held_out = [model.name for model in benchmark.curve_models], benchmark.split.held_out
    valid = "valid" in parts and held_out is not None and held_out.valid > 0
    for switch in benchmark.switches:
        where = f"models.{switch.name}"
        if curve is None:
            yield f"{where}: a switch needs evaluation.learning_curve"
            return
        for name in (switch.first, switch.then):
            if name is not None and name not in known:
                yield f"{where}: no model '{name}' that ranks\n  hint: {', '.join(known)}"
        if switch.first is None and len(known) < 2:
            yield f"{where}: there are no two models to switch between"
        if switch.at == "auto" and not valid:
            yield (
                f"{where}: 'at: auto' chooses on validation users, and there are none\n"
                "  hint: split.held_out.valid above 0, and evaluation.parts: [valid, test]"
            )
        if switch.at == "auto" and parts == ("valid",):
            yield f"{where}: 'at: auto' needs users to measure, too: add test to evaluation.parts"
        if switch.at != "auto" and not curve.points[0] <= switch.at < curve.points[-1]:
            points = f"the points are {curve.points[0]} to {curve.points[-1]}"
            yield f"{where}: 'at' is {switch.at}, and {points}\n  hint: a point before the last one"


def _find_search_mistakes(benchmark: Benchmark) -> Iterator[str]:
    """Yield mistakes in the search."""
    search, split = benchmark.search, benchmark.split
    if search is None:
        return
    names = {model.name for model in benchmark.models}
    for name in search.spaces:
        if name not in names:
            yield f"search.spaces: no model '{name}' in this file"
    if search.fold >= (split.folds if split.holdout in FOLD_HOLDOUTS else 1):
        yield f"search.fold: no fold {search.fold} in this split"


def _find_fold_in_mistakes(benchmark: Benchmark) -> Iterator[str]:
    """Yield item vectors without users to rank.

    A model with item vectors alone needs a split with held-out users.
    """
    for model in benchmark.models if not benchmark.split.holds_out_users else ():
        if isinstance(model, EmbeddingsModel) and model.users is None:
            yield f"model {model.name}: without users it ranks only users of split.held_out: {{of: users}}"


def _find_paradox_mistakes(benchmark: Benchmark) -> Iterator[str]:
    """Yield mistakes in the search for paradoxes."""
    paradoxes, evaluation = benchmark.paradoxes, benchmark.evaluation
    if paradoxes is None:
        return
    if evaluation.task == "rating":
        yield "paradoxes are of rankings: evaluation.task is 'rating'"
    keys = (*(cut.key for cut in evaluation.slices), *(EXPOSURE_SLICES if evaluation.exposure else ()))
    cuts = [k for k in paradoxes.k or () if k not in (*evaluation.cutoffs, None)]
    unknown = {
        "by": [key for key in paradoxes.keys(evaluation) if key not in keys],
        "metrics": [metric for metric in paradoxes.metrics or () if metric not in evaluation.metrics],
        "k": list(map(str, cuts)),
        "parts": [part for part in paradoxes.parts or () if part not in evaluation.parts],
    }
    for key, names in unknown.items():
        if names:
            listed = ", ".join(name or "''" for name in names)
            yield f"paradoxes.{key}: {listed} not in evaluation"
    named = benchmark.comparisons is not None and benchmark.comparisons.baseline is not None
    if "baseline" in (paradoxes.against, paradoxes.flips_against) and not named:
        yield "paradoxes against 'baseline' need comparisons.baseline"


# ---------------------------------------- logs that grow, and that have perhaps stopped

AGE_FACT = "newest_age_days"
"""Fact: days from the log's newest row to the end of the night's day."""

PERIODS, DAYS = 2, 2.0
"""The allowed age: this many period lengths, or this many days without a period."""


def make_age_gate(split: Split) -> Gate:
    """Return the gate which warns when a log has stopped."""
    length = split.length if split.holdout == "period" else None
    days = PERIODS * seconds(length) / UNITS["d"] if length else DAYS
    return Gate(fact=AGE_FACT, part="log", above=days, action="warn")


def grows(benchmark: Benchmark) -> bool:
    """Return whether a file's log grows.

    A log grows if the file uses `{logical_date}`, or measures the last period in a table. Published data
    sets have readers of their own, and never grow.
    """
    dataset, split = benchmark.dataset, benchmark.split
    texts = (dataset.path, dataset.until, *dataset.options.values(), split.start)
    named = any("{logical_date" in text for text in texts if isinstance(text, str))
    return dataset.is_table and (named or (split.holdout == "period" and split.start is None))


def gates_with_age(benchmark: Benchmark) -> tuple[Gate, ...]:
    """Return a file's gates.

    A growing log also gets the default age gate, unless the file has its own.
    """
    gates = benchmark.gates
    if not grows(benchmark) or any(gate.fact == AGE_FACT for gate in gates):
        return gates
    return (*gates, make_age_gate(benchmark.split))
