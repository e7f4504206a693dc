"""A whole benchmark file, and the checks across its sections."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from recbench_spark.config.base import Name, Strict
from recbench_spark.config.comparisons import Comparisons, Gate, Paradoxes, Regression
from recbench_spark.config.dataset import CLOSED_LOOP_READERS, TABLE_READERS, Dataset
from recbench_spark.config.evaluation import EXPOSURE_SLICES, Evaluation
from recbench_spark.config.models import ModelConfig, make_model
from recbench_spark.config.searching import SearchSettings
from recbench_spark.config.split import FOLD_HOLDOUTS, Split


class Benchmark(Strict):
    """One benchmark file: one complete protocol.

    `search`: spaces of settings, for `jobs/tune.py`. `board`: the board on which results over all folds are
    entered, a published board or one of your own; without it, the board has the file's name.
    """

    added_later: ClassVar[frozenset[str]] = frozenset({"search", "board"})

    name: Name
    description: str = ""
    dataset: Dataset
    split: Split = Split()
    models: tuple[SerializeAsAny[ModelConfig], ...]
    evaluation: Evaluation = Evaluation()
    headline: Annotated[str, Field(pattern="^[a-z_0-9]+(@[1-9][0-9]{0,8})?$")] = "ndcg@10"
    gates: tuple[Gate, ...] = ()
    comparisons: Comparisons | None = None
    regressions: tuple[Regression, ...] = ()
    paradoxes: Paradoxes | None = None
    ran_by: str | None = None
    search: SearchSettings | None = None
    board: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_headline(cls, document: Any) -> Any:
        evaluation = document.get("evaluation") if isinstance(document, dict) else None
        if isinstance(evaluation, dict) and evaluation.get("task") == "rating":
            return {"headline": "rmse", **document}
        return document

    @model_validator(mode="after")
    def _check_sections(self) -> Benchmark:
        mistakes = (
            *_comparison_mistakes(self),
            *_paradox_mistakes(self),
            *_search_mistakes(self),
            *_open_loop_mistakes(self),
        )
        for wrong, message in mistakes:
            if wrong:
                raise ValueError(message)
        return self

    @field_validator("models", mode="before")
    @classmethod
    def _make_models(cls, models: Any, info: ValidationInfo) -> Any:
        if not isinstance(models, list | tuple):
            return models  # the field's own check refuses it
        where = (info.context or {}).get("where", "benchmark")
        return tuple(make_model(model, f"{where}: models.{n}") for n, model in enumerate(models))

    @field_validator("models")
    @classmethod
    def _check_model_names(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        names = [model.name for model in models]
        if not names or len(set(names)) < len(names):
            raise ValueError("give at least one model, each under a name of its own")
        return models


def _comparison_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """Return what comparisons and regressions need and the rest of the file lacks: (is wrong, message)."""
    comparisons, evaluation = benchmark.comparisons or Comparisons(), benchmark.evaluation
    wanted = bool(benchmark.comparisons or benchmark.regressions)
    compared = comparisons.metrics or evaluation.metrics
    cuts = comparisons.k or (*evaluation.cutoffs, None)
    pinned = any(rule.against == "baseline" for rule in benchmark.regressions)
    names = {model.name for model in benchmark.models}
    unknown = {comparisons.baseline, *(rule.model for rule in benchmark.regressions)} - names - {None}
    strange = [metric for metric in compared if metric not in evaluation.metrics]
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
    """Return settings of the closed and of the open loop that cannot go together: (is wrong, message)."""
    dataset, split = benchmark.dataset, benchmark.split
    given, divided = split.holdout == "given", dataset.closed_loop == "split"
    has_open_loop = dataset.reader in ("world", *CLOSED_LOOP_READERS, *TABLE_READERS)
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


def _search_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """Return what a search needs and the rest of the file lacks: (is wrong, message)."""
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


def _paradox_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """Return what the search for paradoxes needs and the file lacks: (is wrong, message)."""
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
