"""Evaluate any recommender's output in one call.

No config file, split or training is needed.

    import recbench_spark
    result = recbench_spark.evaluate(truth, lists=lists, k=(1, 3, 10))
    result.metrics.show()
    result.pivot()

Spark frames are evaluated by Spark's tasks, all other tables in this process (`evaluation`), with the same
bits. For paths the file size decides (`engines`). `recbench evaluate` adds a warehouse.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from typing import Any, Literal

from recbench_spark.config import Bootstrap, CandidateDraw, Views
from recbench_spark.core.checks import Check
from recbench_spark.core.extras import explain_missing
from recbench_spark.engine.choices import require_spark
from recbench_spark.errors import ConfigError, FallbackToSpark, show_value
from recbench_spark.evaluation import many_models
from recbench_spark.evaluation.options import ENGINES, EvaluationRequest, require_choice, table_columns
from recbench_spark.metrics.result import Result, add_warnings
from recbench_spark.sources.column_names import ColumnNames

COLUMNS_TAKEN = "columns taken"
"""Name of the check on columns taken under other libraries' usual names."""


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
    item_groups: Any = None,
    user_groups: Any = None,
    columns: Mapping[str, Any] | None = None,
    k: Sequence[int] | int = EvaluationRequest.k,
    metrics: Sequence[Any] | str = EvaluationRequest.metrics,
    preset: str | None = EvaluationRequest.preset,
    definition: Mapping[str, Any] | None = EvaluationRequest.definition,
    similarity: Literal["dot", "cosine"] = EvaluationRequest.similarity,
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = EvaluationRequest.bootstrap,
    uncut: bool = EvaluationRequest.uncut,
    draw: CandidateDraw | Mapping[str, Any] | None = EvaluationRequest.draw,
    scratch: str | None = None,
    engine: Literal["auto", "local", "spark"] = "auto",
) -> Result:
    """Evaluate recommendation lists, scores, or embeddings against a ground truth.

    A table is a frame (Spark, pandas, polars, also lazy, Arrow, also a dataset, or DuckDB), a dict of users
    with scored items, or a path (Parquet, CSV, Delta, TREC run or judgements). Either all tables in a call
    are Spark frames, or none is.

    Args:
        truth: user_id, item_id[, relevance]; a user with an empty truth has one row, item NULL. With
            query_id beside user_id, each (user, query) is ranked alone, against its rows in lists, scores
            or candidates, which need the column too; training rows are the user's. Users weigh alike, or
            all queries by definition={"weigh": "rows"}; intervals are by user.
        lists: user_id, item_id, and rank (from 1) or score; with both, the rank decides and the score is
            not read. Several models are a dict of their names and lists; the same holds for scores and
            embeddings.
        scores: user_id, item_id, score; training items are taken out before the ranking.
        embeddings: (user_id, vector) and (item_id, vector[, bias]); every item is a candidate.
        train: user_id, item_id. These items are no candidates for scores and embeddings; in lists a check
            counts them.
        candidates: user_id, item_id, for the definition candidates=given.
        features: item_id, vector: item features for the metric diversity.
        features_name: the features' name in the definition of diversity, since the values depend on them.
        item_groups: item_id, a column of labels such as genre, and perhaps weight: at most 100 groups of
            items. A row has a label or a list of them, and an item may have several rows; its labels weigh
            1 together. Numbers of a group have the column's name as slice_key.
        user_groups: user_id, and columns of labels such as country: every metric of ranks is also given for
            each label's users (slice_key is the column), and `Result.find_gaps` compares them.
        columns: our column names and those in the tables, such as {"user_id": "userId"}; or by table, such
            as {"truth": {"item_id": "movieId"}}. A column not named here is also taken under its usual name
            in other libraries (`sources.column_names`); a line on stderr and a check tell.
        k: cut-offs, or one.
        metrics: names in `metrics.kernels.accuracy.METRICS` and `metrics.beyond_accuracy.LIST_METRICS`, or
            one. `ndcg@10` also names a cut-off; names such as `hit_rate` are understood
            (`metric_names.ALIASES`). `{"family": "popularity"}`, or `"family:popularity"`, stands for all
            metrics in a family (`metrics.kernels.about.FAMILIES`) whose tables are given.
        preset: another library's definition.
        definition: single axes (`definitions.Definition`), replacing those in the preset.
        similarity: how two embeddings are compared.
        bootstrap: replicates, level and seed for the intervals, as `Bootstrap` or as keys and values; a
            number of replicates; 0 or False: none.
        uncut: report values over the whole ranking too. With False, ranks are counted only up to the
            largest k: several times faster for embeddings with many items.
        draw: number of drawn candidates, per user or per item, and seed, where definition.candidates is
            uniform or popularity (with embeddings). Drawn items are neither training nor truth.
        scratch: folder readable by all Spark executors, for embeddings; a local folder by default.
        engine: where to evaluate. auto: Spark for Spark frames, this process for other tables, and
            `engines.choose_engine` for paths.

    Returns:
        A `Result`, with Spark frames or with Arrow tables.

    Raises:
        ConfigError: not exactly one of lists, scores, embeddings; unknown metric or axis; k below 1; Spark
            frames beside other tables; an engine unable to read the tables.
        SchemaError: a column is missing, or its type holds no ids (`core.ids`).
        DataError: NULL, NaN or unusable values, with their number; two tables have no ids in common.
    """
    if scratch is not None and not isinstance(scratch, str | PathLike):
        raise ConfigError(f"scratch is {show_value(scratch)}", "give the path of a folder")
    systems = {"lists": lists, "scores": scores, "embeddings": embeddings}
    tables, models = many_models.name_tables(systems, _check_pair)
    tables |= dict(zip(OTHERS, (truth, train, candidates, features, item_groups, user_groups), strict=True))
    options: dict[str, Any] = {
        "features_name": features_name, "k": k, "metrics": metrics, "preset": preset, "uncut": uncut,
        "definition": definition, "similarity": similarity, "bootstrap": bootstrap, "draw": draw,
    } | {"scratch": scratch}  # fmt: skip

    def call(tables: Mapping[str, Any]) -> Result:
        from recbench_spark.evaluation import evaluation  # noqa: PLC0415

        return many_models.evaluate_each(partial(evaluation.evaluate, **options), tables, models)

    return _call_engine(tables, engine, call, ColumnNames(columns or {}))


def _check_pair(embeddings: object) -> tuple[Any, Any]:
    """Return both sides of embeddings.

    Raises:
        ConfigError: embeddings are not exactly two tables.
    """
    # A frame is iterable too: it yields its column names.
    sides = embeddings if isinstance(embeddings, tuple | list) else None
    if sides is None or len(sides) != 2 or any(side is None for side in sides):
        what = show_value(embeddings) if sides is None else f"{len(sides)} tables or None"
        raise ConfigError(f"embeddings is {what}", "give two tables: embeddings=(users, items)")
    return sides[0], sides[1]


def evaluate_predictions(
    predictions: Any,
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = None,
    views: Views | None = None,
    engine: Literal["auto", "local", "spark"] = "auto",
    slice_by: str | None = None,
    *,
    columns: Mapping[str, Any] | None = None,
) -> Result:
    """Compute RMSE, log-loss, RIG, AUC and others from predictions.

    `predictions` says how.

    Args:
        predictions: user_id, item_id, prediction, outcome: any table accepted by `evaluate`.
        bootstrap: as in `evaluate`.
        views: bins, thresholds and false-positive rates.
        engine: as in `evaluate`.
        slice_by: a column with few values; all numbers are computed again for each value's rows.
        columns: as in `evaluate`.
    """

    checked = make_views(views)

    def call(tables: Mapping[str, Any]) -> Result:
        from recbench_spark.evaluation import predictions as work  # noqa: PLC0415

        return work.evaluate_predictions(tables["predictions"], bootstrap, checked, slice_by)

    return _call_engine({"predictions": predictions}, engine, call, ColumnNames(columns or {}))


def make_views(views: object) -> Views:
    """Return prediction views, the default ones for None.

    Raises:
        ConfigError: the argument is no `Views`.
    """
    if views is None:
        return Views()
    if not isinstance(views, Views):
        raise ConfigError(f"views is {show_value(views)}", "give Views(quantiles=10), or leave it out")
    return views


# ------------------------------------------------------------------------------------ choice of the engine

OTHERS = ("truth", "train", "candidates", "features", "item_groups", "user_groups")
"""Tables beside the system's."""

EngineCall = Callable[[Mapping[str, Any]], Result]
"""Evaluates tables; these choose the runner."""


def _call_engine(tables: Mapping[str, Any], engine: str, call: EngineCall, columns: ColumnNames) -> Result:
    """Evaluate with the tables' engine.

    Also tells which columns were taken under usual names.
    """
    result = _choose_and_call(tables, engine, call, columns)
    notes = list(dict.fromkeys(columns.notes))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    check = Check(COLUMNS_TAKEN, len(notes), None, "info", "; ".join(notes))
    return add_warnings(replace(result, checks=[*result.checks, check]) if notes else result)


def _choose_and_call(
    tables: Mapping[str, Any], engine: str, call: EngineCall, columns: ColumnNames
) -> Result:
    require_choice("engine", engine, ENGINES)
    present = {name: table for name, table in tables.items() if table is not None or name == "truth"}
    spark_names = [name for name, table in present.items() if is_spark_frame(table)]
    path_names = [name for name, table in present.items() if isinstance(table, str | PathLike)]
    if spark_names and len(spark_names) < len(present):
        other = next(name for name in present if name not in spark_names)
        raise ConfigError(
            f"{spark_names[0]} is a frame of Spark and {other} is not",
            "give frames of Spark alone, or none",
        )
    if path_names and len(path_names) == len(present):
        return _evaluate_paths(present, engine, call, columns)
    if spark_names:
        if engine == "local":
            hint = "convert them to tables of Arrow: frame.toArrow()"
            raise ConfigError("engine local does not read frames of Spark", hint)
        frames = {name: columns.rename_frame(frame, name) for name, frame in present.items()}
        return call(frames)
    if engine == "spark":
        raise ConfigError(
            "engine spark does not read frames of this process",
            "convert them: spark.createDataFrame(frame)",
        )
    frames = {name: table for name, table in present.items() if name not in path_names}
    read = {
        **_convert_frames(frames, columns),
        **_read_frames({x: present[x] for x in path_names}, columns),
    }
    return call(read)


def is_spark_frame(table: object) -> bool:
    """Tell whether a table is a Spark frame, classic or Connect.

    The class of the table alone decides.
    """
    return any(kind.__module__.startswith("pyspark.sql") for kind in type(table).__mro__)


def _evaluate_paths(
    tables: Mapping[str, Any], engine: str, call: EngineCall, columns: ColumnNames
) -> Result:
    from recbench_spark.evaluation import engines  # noqa: PLC0415

    paths = {name: fspath(path) for name, path in tables.items()}
    sides = [path for name, path in paths.items() if name.startswith(many_models.SIDES)]
    if (
        engines.choose_engine(engine, list(paths.values()), sides, truth=paths.get("truth")).engine
        == "local"
    ):
        try:
            return call(_read_frames(paths, columns))
        except FallbackToSpark as error:
            require_spark(engine, error)
    with explain_missing():
        from recbench_spark.engine.sessions import SparkEngine  # noqa: PLC0415
        from recbench_spark.runtime.session import get_session  # noqa: PLC0415
    from recbench_spark.sources.input_rows import open_input  # noqa: PLC0415

    runner = SparkEngine(get_session("recbench-spark evaluate"))
    opened = {
        name: open_input(runner, path, table_columns(name), name, columns) for name, path in paths.items()
    }
    return call(opened)


def _read_frames(paths: Mapping[str, Any], columns: ColumnNames) -> dict[str, Any]:
    from recbench_spark.sources.arrow_files import read_table  # noqa: PLC0415

    return {
        name: read_table(fspath(path), table_columns(name), name, columns) for name, path in paths.items()
    }


def _convert_frames(frames: Mapping[str, Any], columns: ColumnNames) -> dict[str, Any]:
    """Convert this process's frames to Arrow, with our column names."""
    from recbench_spark.sources.arrow_rows import as_table  # noqa: PLC0415

    return {
        name: columns.rename(as_table(many_models.unfold_run(frame, name), name), name)
        for name, frame in frames.items()
    }
