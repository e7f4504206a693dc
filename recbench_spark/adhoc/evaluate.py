"""Evaluate the output of any recommender in one call, without a config file, a split or training.

    import recbench_spark
    result = recbench_spark.evaluate(truth, lists=lists, k=(1, 3, 10))
    result.metrics.show()

Spark frames are evaluated by Spark (`spark_engine`), all other tables in this process (`local_engine`),
with the same bits. For paths the size of the files decides (`engines`). `jobs/evaluate.py` adds a
warehouse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal

from recbench_spark.adhoc.options import ENGINES, EvaluationRequest, require_choice, table_columns
from recbench_spark.config import Bootstrap, CandidateDraw, Views
from recbench_spark.errors import ConfigError, FallbackToSpark, show_value

if TYPE_CHECKING:
    from recbench_spark.adhoc.engines import EngineCalls

SIDES = ("user embeddings", "item embeddings")
"""Names of the two tables of embeddings."""


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
    """Evaluate recommendation lists, scores, or embeddings against a ground truth.

    A table is a frame of Spark, pandas, polars (also lazy), Arrow (also a dataset) or DuckDB, or a path
    (Parquet, CSV, Delta). Either all tables of a call are Spark frames, or none is.

    Args:
        truth: user_id, item_id[, relevance]; a user with an empty truth has one row, item NULL.
        lists: user_id, item_id, and rank (from 1) or score.
        scores: user_id, item_id, score; training items are taken out before the ranking.
        embeddings: (user_id, vector) and (item_id, vector[, bias]); every item is a candidate.
        train: user_id, item_id. These items are no candidates of scores and embeddings; in lists they are
            counted by a check.
        candidates: user_id, item_id, for the definition candidates=given.
        features: item_id, vector: features of the items, for the metric diversity.
        features_name: name of the features in the definition of diversity, since the values depend on them.
        k: cut-offs.
        metrics: names of `kernels.metrics.accuracy.METRICS` and
            `evaluation.metrics.beyond_accuracy.LIST_METRICS`.
        preset: another library's definition.
        definition: single axes (`definitions.Definition`) that replace those of the preset.
        similarity: similarity of two embeddings.
        bootstrap: replicates, level and seed of the intervals, as `Bootstrap` or as keys and values; a
            number of replicates; 0 or False: none.
        uncut: report values over the whole ranking too. With False, ranks are counted only up to the
            largest k, which is several times faster with embeddings of many items.
        draw: number of drawn candidates, per user or per item, and seed, where definition.candidates is
            uniform or popularity (with embeddings). Items are drawn that are neither training nor truth.
        scratch: folder that all Spark executors can read, for embeddings; a local folder by default.
        engine: engine of the evaluation. auto: Spark for Spark frames, this process for other tables, and
            `engines.choose_engine` for paths.

    Returns:
        A `Result` with Spark frames, or a `LocalResult` with Arrow tables.

    Raises:
        ConfigError: not exactly one of lists, scores, embeddings; unknown metric or axis; k below 1; Spark
            frames beside other tables; an engine that cannot read the tables.
        SchemaError: a column is missing, or has a type that holds no ids (`kernels.ids`).
        DataError: NULL, NaN or unusable values, with their number; two tables have no ids in common.
    """
    if scratch is not None and not isinstance(scratch, str | PathLike):
        raise ConfigError(f"scratch is {show_value(scratch)}", "give the path of a folder")
    tables = {"truth": truth, "lists": lists, "scores": scores, "train": train, "candidates": candidates}
    tables |= {"features": features, **_check_pair(embeddings)}
    options: dict[str, Any] = {
        "features_name": features_name, "k": k, "metrics": metrics, "preset": preset,
        "definition": definition, "similarity": similarity, "bootstrap": bootstrap,
        "uncut": uncut, "draw": draw,
    }  # fmt: skip

    def call(calls: EngineCalls, tables: Mapping[str, Any]) -> Any:
        place = {"scratch": scratch} if calls.name == "spark" else {}
        return calls.evaluate(**_pair_embeddings(tables), **options, **place)

    return _call_engine(tables, engine, call)


def _check_pair(embeddings: object) -> dict[str, Any]:
    """Return the two sides of embeddings by name; no entries where the call has no embeddings.

    Raises:
        ConfigError: embeddings are not exactly two tables.
    """
    if embeddings is None:
        return {}
    # A frame is iterable too: it yields the names of its columns.
    sides = embeddings if isinstance(embeddings, tuple | list) else None
    if sides is None or len(sides) != 2 or any(side is None for side in sides):
        what = show_value(embeddings) if sides is None else f"{len(sides)} tables or None"
        raise ConfigError(f"embeddings is {what}", "give two tables: embeddings=(users, items)")
    return dict(zip(SIDES, sides, strict=True))


def evaluate_predictions(
    predictions: Any,
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = None,
    views: Views | None = None,
    engine: Literal["auto", "local", "spark"] = "auto",
    slice_by: str | None = None,
) -> Any:
    """Compute RMSE, log-loss, RIG, AUC and others of predictions: see `spark_engine.evaluate_predictions`.

    Args:
        predictions: user_id, item_id, prediction, outcome: a table of any kind that `evaluate` accepts.
        bootstrap: as in `evaluate`.
        views: bins, thresholds and false-positive rates.
        engine: as in `evaluate`.
        slice_by: a column of few values; all numbers are computed again for the rows of each value.
    """

    checked = make_views(views)

    def call(calls: EngineCalls, tables: Mapping[str, Any]) -> Any:
        return calls.evaluate_predictions(tables["predictions"], bootstrap, checked, slice_by)

    return _call_engine({"predictions": predictions}, engine, call)


def make_views(views: object) -> Views:
    """Return the views of predictions, the default ones for None.

    Raises:
        ConfigError: the argument is no `Views`.
    """
    if views is None:
        return Views()
    if not isinstance(views, Views):
        raise ConfigError(f"views is {show_value(views)}", "give Views(quantiles=10), or leave it out")
    return views


def _pair_embeddings(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables as both engines expect them, with the two sides of embeddings as a pair."""
    sides = tuple(tables[name] for name in SIDES if name in tables)
    others = {name: table for name, table in tables.items() if name not in SIDES}
    return {**others, "embeddings": sides or None}


# ------------------------------------------------------------------------------------ choice of the engine

EngineCall = Callable[["EngineCalls", Mapping[str, Any]], Any]
"""A function that evaluates tables with the functions of an engine."""


def _call_engine(tables: Mapping[str, Any], engine: str, call: EngineCall) -> Any:
    require_choice("engine", engine, ENGINES)
    present = {name: table for name, table in tables.items() if table is not None}
    spark_names = [name for name, table in present.items() if is_spark_frame(table)]
    path_names = [name for name, table in present.items() if isinstance(table, str | PathLike)]
    if spark_names and len(spark_names) < len(present):
        other = next(name for name in present if name not in spark_names)
        raise ConfigError(
            f"{spark_names[0]} is a frame of Spark and {other} is not",
            "give frames of Spark alone, or none",
        )
    if path_names and len(path_names) == len(present):
        return _evaluate_paths(tables, engine, call)
    from recbench_spark.adhoc.engines import load_engine  # noqa: PLC0415

    if spark_names:
        if engine == "local":
            hint = "convert them to tables of Arrow: frame.toArrow()"
            raise ConfigError("engine local does not read frames of Spark", hint)
        return call(load_engine("spark"), tables)
    if engine == "spark":
        raise ConfigError(
            "engine spark does not read frames of this process",
            "convert them: spark.createDataFrame(frame)",
        )
    return call(load_engine("local"), {**tables, **_read_frames({x: present[x] for x in path_names})})


def is_spark_frame(table: object) -> bool:
    """Return whether a table is a Spark frame (classic or Connect), judged by its class alone."""
    return any(kind.__module__.startswith("pyspark.sql") for kind in type(table).__mro__)


def _evaluate_paths(tables: Mapping[str, Any], engine: str, call: EngineCall) -> Any:
    from recbench_spark.adhoc import engines  # noqa: PLC0415

    paths = {name: fspath(path) for name, path in tables.items() if path is not None}
    sides = [paths[name] for name in SIDES if name in paths]
    if engines.choose_engine(engine, list(paths.values()), sides).engine == "local":
        try:
            return call(engines.load_engine("local"), {**tables, **_read_frames(paths)})
        except FallbackToSpark as error:
            engines.require_spark(engine, error)
    from recbench_spark.data.readers.tables import read_table  # noqa: PLC0415
    from recbench_spark.runtime.session import get_session  # noqa: PLC0415

    spark = get_session("recbench-spark evaluate")
    frames = {name: read_table(spark, path, table_columns(name), name) for name, path in paths.items()}
    return call(engines.load_engine("spark"), {**tables, **frames})


def _read_frames(paths: Mapping[str, Any]) -> dict[str, Any]:
    from recbench_spark.data.arrow_files import read_table  # noqa: PLC0415

    return {name: read_table(fspath(path), table_columns(name), name) for name, path in paths.items()}
