"""One call that evaluates what any system handed over: no config file, no split, no training.

    import recbench_spark
    result = recbench_spark.evaluate(truth, lists=lists, k=(1, 3, 10))
    result.metrics.show()

Frames of Spark are evaluated by Spark (`on_spark`), all others in this process (`local`), with the same
bits; paths by whom their size says (`engines`). `jobs/evaluate.py` adds a warehouse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal

from recbench_spark.adhoc.request_checks import EvaluationRequest, require_choice
from recbench_spark.config import Bootstrap, CandidateDraw
from recbench_spark.errors import ConfigError, FallbackToSpark, show_value
from recbench_spark.evaluation.result import LocalResult, Result

if TYPE_CHECKING:
    from recbench_spark.evaluation.metrics.predictions import Views

COLUMNS = {"features": ("item_id", "vector"), "user embeddings": ("user_id", "vector"),
           "item embeddings": ("item_id", "vector")}  # fmt: skip
"""Columns that tables by path must have, where these are not user_id and item_id."""


def evaluate(  # noqa: PLR0913
    truth: Any,
    *,
    lists: Any = None,
    scores: Any = None,
    embeddings: tuple[Any, Any] | None = None,
    train: Any = None,
    candidates: Any = None,
    features: Any = None,
    features_name: str = EvaluationRequest.features_name,
    k: Sequence[int] = EvaluationRequest.k,
    metrics: Sequence[str] = EvaluationRequest.metrics,
    preset: str | None = EvaluationRequest.preset,
    definition: Mapping[str, Any] | None = EvaluationRequest.definition,
    similarity: Literal["dot", "cosine"] = EvaluationRequest.similarity,
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = EvaluationRequest.bootstrap,
    uncut: bool = EvaluationRequest.uncut,
    draw: CandidateDraw | Mapping[str, Any] | None = EvaluationRequest.draw,
    scratch: str | None = None,
    engine: Literal["auto", "local", "spark"] = "auto",
) -> Any:
    """Metrics of lists, of scores, or of embeddings, against a truth.

    A table is a frame of Spark, of pandas, polars (lazy too), Arrow (datasets too) or DuckDB, or a path
    (Parquet, CSV, Delta); all of one call are of Spark, or none is.

    Args:
        truth: user_id, item_id[, relevance]; a user with an empty truth has one row, item NULL.
        lists: user_id, item_id, and rank (from 1) or score.
        scores: user_id, item_id, score: ranked after the training items are taken out.
        embeddings: (user_id, vector) and (item_id, vector[, bias]); every item is a candidate.
        train: user_id, item_id. Taken out of the candidates where we score; counted in lists.
        candidates: user_id, item_id, for definition candidates=given.
        features: item_id, vector: what items are like, for the metric diversity.
        features_name: stands in the definition of diversity, which other vectors would change.
        k: cut-offs.
        metrics: names of `kernels.metrics.accuracy.METRICS` and
            `evaluation.metrics.beyond_accuracy.LIST_METRICS`.
        preset: another library's definition.
        definition: single axes (`definitions.Definition`) that replace the preset's.
        similarity: of embeddings.
        bootstrap: replicates, level and seed of the intervals, as `Bootstrap` or as keys and values; a
            number of replicates; 0 or False: none.
        uncut: also values over the whole ranking; False: ranks are counted up to the largest k alone,
            which is several times faster with embeddings of many items.
        draw: how many candidates are drawn, for whom and by which seed, where definition.candidates is
            uniform or popularity (with embeddings): among the items that are neither training nor truth.
        scratch: folder that all executors of Spark can read, for embeddings; a local one by default.
        engine: who evaluates; auto: Spark its own frames, this process all others, and paths as
            `engines.choose_engine` says.

    Returns:
        `Result` with frames of Spark, or `LocalResult` with tables of Arrow.

    Raises:
        ConfigError: not exactly one of lists, scores, embeddings; unknown metric or axis; k below 1; frames
            of two kinds; an engine that does not take them.
        SchemaError: a column is missing, or of a type that holds no ids (`kernels.ids`). DataError: NULL,
        NaN or unusable values, with their number; ids of two tables that do not meet.
    """
    if scratch is not None and not isinstance(scratch, str | PathLike):
        raise ConfigError(f"scratch is {show_value(scratch)}", "give the path of a folder")
    given = {"truth": truth, "lists": lists, "scores": scores, "train": train, "candidates": candidates}
    given |= {"features": features}
    sides = _check_pair(embeddings)
    asked: dict[str, Any] = {
        "features_name": features_name, "k": k, "metrics": metrics, "preset": preset,
        "definition": definition, "similarity": similarity, "bootstrap": bootstrap,
        "uncut": uncut, "draw": draw,
    }  # fmt: skip

    calls = (
        partial(_on_spark, embeddings, {**asked, "scratch": scratch}),
        partial(_on_this_process, embeddings, asked),
    )
    return _call_engine({**given, **sides}, list(sides), engine, calls)


def _check_pair(embeddings: object) -> dict[str, Any]:
    """Return the two sides of embeddings by what they are; none where none are given.

    Raises:
        ConfigError: not exactly two of them.
    """
    if embeddings is None:
        return {}
    # A frame is iterable too: by the names of its columns.
    sides = embeddings if isinstance(embeddings, tuple | list) else None
    if sides is None or len(sides) != 2 or any(side is None for side in sides):
        what = show_value(embeddings) if sides is None else f"{len(sides)} tables or None"
        raise ConfigError(f"embeddings is {what}", "give two tables: embeddings=(users, items)")
    return dict(zip(("user embeddings", "item embeddings"), sides, strict=True))


def _on_spark(embeddings: object, asked: Mapping[str, Any], tables: Mapping[str, Any]) -> Result:
    from recbench_spark.adhoc import spark_engine  # noqa: PLC0415

    return spark_engine.evaluate(**_pair_embeddings(tables, embeddings), **asked)


def _on_this_process(
    embeddings: object, asked: Mapping[str, Any], tables: Mapping[str, Any]
) -> LocalResult:
    from recbench_spark.adhoc import local_engine  # noqa: PLC0415

    return local_engine.evaluate(**_pair_embeddings(tables, embeddings), **asked)


def evaluate_predictions(
    predictions: Any,
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = None,
    views: Views | None = None,
    engine: Literal["auto", "local", "spark"] = "auto",
) -> Any:
    """RMSE, log-loss, RIG, AUC ... of predictions: see `on_spark.evaluate_predictions`.

    Args:
        predictions: user_id, item_id, prediction, outcome: a table as `evaluate` takes it.
        bootstrap: as in `evaluate`.
        views: bins, thresholds and false-positive rates.
        engine: as in `evaluate`.
    """

    views = make_views(views)

    def on_spark(tables: Mapping[str, Any]) -> Result:
        from recbench_spark.adhoc import spark_engine as there  # noqa: PLC0415

        return there.evaluate_predictions(tables["predictions"], bootstrap, views)

    def in_process(tables: Mapping[str, Any]) -> LocalResult:
        from recbench_spark.adhoc import local_predictions  # noqa: PLC0415

        return local_predictions.evaluate_predictions(tables["predictions"], bootstrap, views)

    return _call_engine({"predictions": predictions}, [], engine, (on_spark, in_process))


def make_views(views: object) -> Views:
    """Return where predictions are looked at. ConfigError for what is no `Views`."""
    from recbench_spark.evaluation.metrics.predictions import Views  # noqa: PLC0415

    if views is None:
        return Views()
    if not isinstance(views, Views):
        raise ConfigError(f"views is {show_value(views)}", "give Views(quantiles=10), or leave it out")
    return views


def _pair_embeddings(tables: Mapping[str, Any], embeddings: object) -> dict[str, Any]:
    """The tables as both engines take them: the two sides of embeddings as a pair."""
    names = ("user embeddings", "item embeddings")
    sides = tuple(tables[name] for name in names) if embeddings is not None else None
    return {**{name: table for name, table in tables.items() if name not in names}, "embeddings": sides}


# ------------------------------------------------------------------------------------ who evaluates

EngineCalls = tuple[Callable[[Mapping[str, Any]], Result], Callable[[Mapping[str, Any]], LocalResult]]
"""What is called with the tables: by Spark, in this process."""


def _call_engine(
    tables: Mapping[str, Any], sides: Sequence[str], engine: str, calls: EngineCalls
) -> Result | LocalResult:
    require_choice("engine", engine, ("auto", "local", "spark"))
    on_spark, in_process = calls
    found = {name: table for name, table in tables.items() if table is not None}
    of_spark = [name for name, table in found.items() if is_spark_frame(table)]
    by_path = [name for name, table in found.items() if isinstance(table, str | PathLike)]
    if of_spark and len(of_spark) < len(found):
        other = next(name for name in found if name not in of_spark)
        raise ConfigError(f"{of_spark[0]} is a frame of Spark and {other} is not", "hand over one kind")
    if of_spark:
        if engine == "local":
            raise ConfigError(
                "engine local, and frames of Spark", "hand over tables of Arrow: frame.toArrow()"
            )
        return on_spark(tables)
    if len(by_path) < len(found):
        if engine == "spark":
            raise ConfigError(
                "engine spark, and frames of this process", "spark.createDataFrame makes frames"
            )
        return in_process({**tables, **{name: _read_frame(name, found[name]) for name in by_path}})
    return _evaluate_paths(tables, sides, engine, calls)


def is_spark_frame(table: object) -> bool:
    """Whether a table is a frame of Spark (classic or Connect), told by its class alone."""
    return any(kind.__module__.startswith("pyspark.sql") for kind in type(table).__mro__)


def _evaluate_paths(
    tables: Mapping[str, Any], sides: Sequence[str], engine: str, calls: EngineCalls
) -> Result | LocalResult:
    from recbench_spark.adhoc import engines  # noqa: PLC0415

    on_spark, in_process = calls
    paths = {name: fspath(path) for name, path in tables.items() if path is not None}
    choice = engines.choose_engine(engine, list(paths.values()), [paths[name] for name in sides])
    if choice.engine == "local":
        try:
            return in_process({**tables, **{name: _read_frame(name, path) for name, path in paths.items()}})
        except FallbackToSpark as error:
            engines.require_spark(engine, error)
    from recbench_spark.data.readers import read_table  # noqa: PLC0415
    from recbench_spark.runtime.session import get_session  # noqa: PLC0415

    read = partial(read_table, get_session("recbench-spark evaluate"))
    return on_spark(
        {**tables, **{name: read(path, _table_columns(name), name) for name, path in paths.items()}}
    )


def _read_frame(name: str, path: str | PathLike[str]) -> Any:
    from recbench_spark.data.arrow_files import read_table  # noqa: PLC0415

    return read_table(fspath(path), _table_columns(name), name)


def _table_columns(name: str) -> tuple[str, ...]:
    return COLUMNS.get(name, ("user_id", "item_id"))
