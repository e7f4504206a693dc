"""Check a benchmark file before Spark starts.

Checked are measures, parts, slices, models and gates.
"""

from __future__ import annotations

from collections.abc import Sequence

from recbench_spark.config import Benchmark, Evaluation, ModelConfig, RetrievedModel
from recbench_spark.core.definitions import SAMPLED, Definition
from recbench_spark.errors import ConfigError, nearest
from recbench_spark.metrics.beyond_accuracy import BY_LABELS, DIVERSITY
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.models.rating.interface import RatingModelConfig
from recbench_spark.models.settings import ListsModel, ScoresModel
from recbench_spark.night.measure_checks import check_measures, make_curve_plan
from recbench_spark.night.split import (
    HELD_OUT_PARTS,
    check_events,
    check_open_loop,
    check_repeats,
    list_held_out_parts,
    list_made_parts,
)
from recbench_spark.ranking.request import USER_CANDIDATES, refuse_hashed_ties
from recbench_spark.retrieval.faiss_indexes import load_faiss
from recbench_spark.sources.settings import READERS_WITHOUT_TIMES

TIE_AXES = {"ties": "id", "ndcg_ties": "same", "ap_ties": "same"}
"""Axes for ties, each with its value for cut lists.

Only this value needs no items beyond the end of a list.
"""


def list_model_facts(benchmark: Benchmark) -> set[str]:
    """List the facts models report about themselves."""
    return {fact for model in benchmark.models for fact in model.facts}


def check_benchmark(benchmark: Benchmark) -> None:
    """Check all settings that need no Spark.

    Raises:
        ConfigError: an unknown metric, axis or preset; a setting that needs another one.
    """
    evaluation, reader = benchmark.evaluation, benchmark.dataset.reader
    definition = evaluation.resolve()
    check_measures(benchmark)
    listed = evaluation.candidates_path or benchmark.dataset.lists_negatives
    if definition.candidates == "given" and not listed:
        raise ConfigError(
            "evaluation.candidates_path is missing, and definition.candidates is 'given'",
            "give a table of user_id, item_id",
        )
    _check_item_tables(evaluation)
    if evaluation.exposure and evaluation.exposure.propensities.method == "true" and reader != "world":
        raise ConfigError("only the generated world knows its true propensities", "use another method")
    _check_parts(benchmark)
    check_open_loop(benchmark, definition)
    check_repeats(benchmark, definition)
    check_events(benchmark)
    check_questions(benchmark, definition)
    _check_gates(benchmark)
    for cut in evaluation.slices:
        if cut.of in ("users", "items") and not cut.path:
            raise ConfigError(f"slice {cut.key}: of '{cut.of}' needs 'path'", "give a table with the ids")
        known = benchmark.dataset.attributes
        if cut.of == "log" and benchmark.dataset.is_table and (name := cut.column or cut.key) not in known:
            hint = f"{nearest(name, known)}; dataset.attributes lists what is kept of a log"
            raise ConfigError(f"evaluation.slices.{cut.key}: '{name}' is not in dataset.attributes", hint)
    for model in benchmark.models:
        model.check(reader)
    check_retrieval(benchmark.models, definition)
    _check_ties(benchmark, definition)
    if evaluation.learning_curve is not None:
        make_curve_plan(evaluation, definition)
        for model in benchmark.curve_models:
            make_adapter(model).check_prefixes()


def _check_item_tables(evaluation: Evaluation) -> None:
    """Check that metrics of lists have their tables of items. Raises ConfigError."""
    if DIVERSITY in evaluation.metrics and not evaluation.features:
        raise ConfigError("metric diversity needs evaluation.features", "give a table of item_id, vector")
    labelled = [name for name in evaluation.metrics if name in BY_LABELS]
    if labelled and not evaluation.item_groups:
        hint = "give a table of item_id and labels: {path: TABLE, column: genre}"
        raise ConfigError(f"metric {labelled[0]} needs evaluation.item_groups", hint)


def check_questions(benchmark: Benchmark, definition: Definition) -> None:
    """Check that several questions of a user can be measured.

    Raises:
        ConfigError: a section of the file knows users with one ranking alone; or rows weigh alike, and
            users have one row each, or are compared.
    """
    split, moments, query = benchmark.split, definition.candidates_as_of, benchmark.dataset.query
    if query and (split.successive or moments != "none"):
        what = "split.targets successive" if split.successive else f"definition.candidates_as_of {moments}"
        raise ConfigError(f"{what} has questions of its own beside dataset.query", "leave one of them out")
    if not benchmark.asks_often and moments == "none":
        if definition.weigh == "rows":
            hint = "split.targets: successive, dataset.query, or evaluation.definition.weigh: users"
            raise ConfigError("definition.weigh is rows, and the split asks once for each user", hint)
        return
    hint = "split.targets: all, first or last" if split.successive else "definition.candidates_as_of: none"
    if split.successive and moments != "none":
        hint += ", and definition.candidates_as_of: none"
    for name in _list_single(benchmark, definition):
        hint = "leave dataset.query out" if query else hint
        raise ConfigError(f"{name} is for users who are asked once", hint)
    _check_moments(benchmark, moments)
    if definition.weigh == "rows" and benchmark.comparisons is not None:
        hint = "definition.weigh: users, or leave comparisons out"
        raise ConfigError("definition.weigh is rows, and comparisons are of users", hint)


def _list_single(benchmark: Benchmark, definition: Definition) -> list[str]:
    """List what a file has that knows users with one question alone."""
    evaluation, dataset = benchmark.evaluation, benchmark.dataset
    single = {
        "dataset.events": dataset.query is not None and dataset.events is not None,
        f"reader {dataset.reader}": dataset.query is not None and not dataset.is_table,
        "evaluation.task rating": evaluation.task == "rating",
        f"definition.candidates {definition.candidates}": definition.candidates == "rated"
        or (definition.candidates in SAMPLED and definition.candidates_as_of == "none"),
        "evaluation.exposure": evaluation.exposure is not None,
        "evaluation.learning_curve": evaluation.learning_curve is not None,
        "paradoxes": benchmark.paradoxes is not None,
        "a model of kind retrieved": any(isinstance(model, RetrievedModel) for model in benchmark.models),
    }
    return [name for name, is_set in single.items() if is_set]


def _check_moments(benchmark: Benchmark, moments: str) -> None:
    """Check that a log can say which candidates there were. Raises ConfigError."""
    if moments != "none" and (reader := benchmark.dataset.reader) in READERS_WITHOUT_TIMES:
        message = f"definition.candidates_as_of is '{moments}', and logs of reader '{reader}' have no times"
        raise ConfigError(message, "definition.candidates_as_of: none")
    if moments == "availability" and benchmark.dataset.availability is None:
        message = "definition.candidates_as_of is 'availability', and dataset.availability is missing"
        raise ConfigError(
            message, "availability: {path: a table of item_id, available_from, available_until}"
        )


def check_retrieval(models: Sequence[ModelConfig], definition: Definition) -> None:
    """Check that lists through indexes can be measured.

    This needs no Spark.

    Raises:
        ConfigError: candidates are drawn or given for each user, or ties are not decided by id.
        MissingError: an index needs faiss, and it is not installed.
    """
    retrieved = [model for model in models if isinstance(model, RetrievedModel)]
    if retrieved and definition.candidates in USER_CANDIDATES:
        raise ConfigError(
            f"model {retrieved[0].name}: an index searches the whole catalogue, and "
            f"definition.candidates is '{definition.candidates}'",
            "definition.candidates: unseen",
        )
    for axis, wanted in TIE_AXES.items() if retrieved else ():
        if getattr(definition, axis) != wanted:
            raise ConfigError(
                f"model {retrieved[0].name}: a list ends among tied items, and definition.{axis} is "
                f"'{getattr(definition, axis)}'",
                f"definition.{axis}: {wanted}",
            )
    if any(model.index.kind != "lsh" for model in retrieved):
        load_faiss()


def _check_ties(benchmark: Benchmark, definition: Definition) -> None:
    for model in benchmark.models:
        if not isinstance(model, ListsModel | ScoresModel):
            refuse_hashed_ties(definition, f"model {model.name}")


def check_night(benchmark: Benchmark) -> None:
    """Check a night before Spark starts.

    Errors are those of `check_benchmark` and `check_ranking`.
    """
    check_benchmark(benchmark)
    check_ranking(benchmark)


def check_ranking(benchmark: Benchmark) -> None:
    """Check that all models rank items in a ranking night.

    Raises:
        ConfigError: a model ranks nothing.
    """
    if benchmark.evaluation.task == "ranking":
        for model in benchmark.models:
            if isinstance(model, RatingModelConfig):
                make_adapter(model).check_ranking()


def _check_parts(benchmark: Benchmark) -> None:
    """Refuse a part that neither split nor log can have.

    Raises:
        ConfigError: there is one.
    """
    dataset, split = benchmark.dataset, benchmark.split
    _check_exchanged(benchmark)
    for part in benchmark.evaluation.plain_parts:
        if part not in (known := list_held_out_parts(split)):
            raise ConfigError(
                f"evaluation.parts: the split does not hold out '{part}'", nearest(part, known)
            )
    if not dataset.is_table:  # a table's log may name its rows' parts
        require_parts(benchmark, READER_PARTS.get(dataset.reader, ()))


def _check_exchanged(benchmark: Benchmark) -> None:
    """Refuse exchanged truth where a user has several questions, or candidates of their own."""
    evaluation, definition = benchmark.evaluation, benchmark.definition
    plain = definition.candidates in ("all", "unseen") and definition.candidates_as_of == "none"
    others = (evaluation.exposure, evaluation.learning_curve, benchmark.asks_often)
    if evaluation.parts_exchanged and (evaluation.task == "rating" or not plain or any(others)):
        raise ConfigError(
            f"evaluation.parts: '{evaluation.parts_exchanged[0]}' needs one ranking of all items a user",
            "definition.candidates: unseen or all, without candidates_as_of, exposure and learning_curve",
        )


READER_PARTS = {
    "world": ("open_loop",),
    **dict.fromkeys(("netflix", "coat", "yahoo_r3", "lightgcn", "ncf"), HELD_OUT_PARTS),
}
"""Readers whose logs may name held-out parts, with these parts."""


def require_parts(benchmark: Benchmark, of_log: Sequence[str]) -> None:
    """Check that every evaluated part has rows somewhere.

    These rows come from the split or the log.

    Args:
        benchmark: the file.
        of_log: held-out parts the log itself may name.

    Raises:
        ConfigError: a part has no rows, whatever the log holds; or a model is to see the tested users'
            part valid, and there is none.
    """
    split = benchmark.split
    made = (*list_made_parts(split), *(list_held_out_parts(split) if split.holdout == "given" else ()))
    for part in benchmark.evaluation.plain_parts:
        if part not in made and part not in of_log:
            hint = "split.ratio: [0.7, 0.1, 0.2], or split.valid: true" if part == "valid" else ""
            message = f"evaluation.parts: neither the split nor the log has rows of '{part}'"
            raise ConfigError(message, hint or nearest(part, (*made, *of_log)))
    of_tested_users = split.parts if split.held_out else made
    for model in benchmark.models:
        if model.shows_validation and "valid" not in (*of_tested_users, *of_log):
            message = f"models.{model.name}: history 'with_valid', and users have no rows of the part valid"
            raise ConfigError(message, "history: train, or split.valid: true")


def _check_gates(benchmark: Benchmark) -> None:
    """Refuse a gate on drift where no model reports drift.

    A split has no drift.
    """
    known = list_model_facts(benchmark)
    for gate in benchmark.gates:
        if gate.fact.startswith("drift") and gate.fact not in known:
            hint = nearest(gate.fact, known) if known else "a model of kind graph reports its drift"
            raise ConfigError(f"gates: no model reports the fact '{gate.fact}'", hint)
