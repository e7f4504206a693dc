"""Compared runs: user values from results, lists, or a warehouse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.comparisons.comparisons import find_largest
from recbench_spark.analyses.comparisons.differences import HOLDOUT
from recbench_spark.analyses.comparisons.local_comparisons import leaves_unit
from recbench_spark.config import Bootstrap
from recbench_spark.core.checks import Check
from recbench_spark.core.definitions import SAMPLED
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.core.hashing import hash_longs
from recbench_spark.core.metric_names import suggest_metric
from recbench_spark.core.revisions import SHARED, describe_changes
from recbench_spark.errors import ConfigError, nearest, show_value
from recbench_spark.evaluation.evaluate import evaluate
from recbench_spark.evaluation.many_models import is_several
from recbench_spark.evaluation.options import is_single
from recbench_spark.metrics.beyond_accuracy import BY_POPULARITY, OVERALL
from recbench_spark.metrics.result import MODEL, Result, to_arrow
from recbench_spark.schemas import IDS, QUERY_ID, RUNS, TABLES
from recbench_spark.sources.arrow_rows import as_table, encode_ids
from recbench_spark.storage.arrow_store import ArrowStore, needs_no_java
from recbench_spark.storage.file_tables import FileTables, RowReader

POPULAR = "popularity"
"""Name of the training rows counted for popularity metrics, among a result's limits."""

IN_MEMORY = date(1970, 1, 1)
"""Night for results outside all nights."""

COLUMNS = ("user_id", "part", "metric", "definition", "estimator", "ks", "values", "n_relevant")

Largest = dict[tuple[str, str], float | None]


@dataclass(frozen=True)
class ModelRun:
    """One model's user values.

    Attributes:
        name: the model's name in the comparison; each name once.
        run_id: its run's id, or the name.
        night: its run's night.
        values: rows of `user_metrics` without run columns.
        rankings: each user's held-out items; None where `split` says which they are.
        split: the split's name, or a hash of the truth; None where `rankings` hold it.
        kind: the model's kind in a warehouse.
        revisions: code revisions behind the values; None: this process computed them.
    """

    name: str
    run_id: str
    night: date
    values: pa.Table
    rankings: pa.Table | None = None
    split: str | None = None
    kind: str | None = None
    revisions: Mapping[str, int] | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def definitions(self) -> dict[str, set[str]]:
        """Each metric's definitions, for metrics with user values."""
        pairs = (
            self.values.select(["metric", "definition"])
            .group_by(["metric", "definition"], use_threads=False)
            .aggregate([])
        )
        definitions: dict[str, set[str]] = {}
        for row in pairs.to_pylist():
            definitions.setdefault(row["metric"], set()).add(row["definition"])
        return definitions

    @cached_property
    def parts(self) -> set[str]:
        """The split's parts with user values."""
        return set(pc.unique(self.values.column("part")).to_pylist())

    def select(self, figures: Mapping[str, str]) -> pa.Table:
        """Return the figures' rows, with the run's id."""
        rows = self.values
        masks = [
            pc.and_(
                pc.equal(rows.column("metric"), metric), pc.equal(rows.column("definition"), definition)
            )
            for metric, definition in figures.items()
        ]
        chosen = masks[0]
        for mask in masks[1:]:
            chosen = pc.or_(chosen, mask)
        rows = rows.filter(chosen)
        return rows.append_column("run_id", pa.repeat(self.run_id, len(rows)))


# -------------------------------------------------------------------------------------------- sources


def read_tables(
    models: Any, truth: Any, numbers: Mapping[str, Any], options: Mapping[str, Any]
) -> list[ModelRun]:
    """Evaluate models' lists against a truth.

    Args:
        models: names and lists.
        truth: the held-out items.
        numbers: metrics and cut-offs, as options for `evaluate`.
        options: further options for `evaluate`.

    Raises:
        ConfigError: no dict of names and lists.
    """
    if not is_several(models, "lists"):
        hint = "give names and lists: {'als': als, 'popular': popular}"
        raise ConfigError(f"models is {show_value(models)}", hint)
    # Single models' intervals are not shown: those of the differences are.
    every = {"bootstrap": Bootstrap(replicates=0), **numbers, **options}
    result = evaluate(truth, lists=models, **every)
    runs = read_results(result)
    result.release()
    return runs


def read_results(models: Any) -> list[ModelRun]:
    """Return the runs in one result, or in named results.

    Raises:
        ConfigError: something else.
    """
    if isinstance(models, Result):
        return _split_result(models)
    if isinstance(models, Mapping) and all(isinstance(one, Result) for one in models.values()):
        return [_make_run(str(name), one) for name, one in models.items()]
    raise ConfigError(
        f"models is {show_value(models)}",
        "give names and lists with a truth, results of evaluate, or runs with warehouse=",
    )


def _make_run(name: str, result: Result) -> ModelRun:
    values = to_arrow(result.user_metrics)
    if MODEL in values.column_names:
        raise ConfigError(f"{name}: a result of several models", "give it alone, or results of one model")
    rankings = None if result.rankings is None else to_arrow(result.rankings)
    run = ModelRun(name, name, IN_MEMORY, values.select(COLUMNS), rankings, result.truth)
    return replace(run, limits=result.limits)


def _split_result(result: Result) -> list[ModelRun]:
    values = to_arrow(result.user_metrics)
    if MODEL not in values.column_names:
        raise ConfigError("a result of one model", "give names and results: {'als': ..., 'popular': ...}")
    rankings = None if result.rankings is None else to_arrow(result.rankings)
    runs = []
    for name in pc.unique(values.column(MODEL)).to_pylist():
        own = values.filter(pc.equal(values.column(MODEL), name)).select(COLUMNS)
        ranked = None if rankings is None else rankings.filter(pc.equal(rankings.column(MODEL), name))
        runs.append(ModelRun(name, name, IN_MEMORY, own, ranked))
    return runs


# ------------------------------------------------------------------------------------------ warehouse


def read_warehouse(models: Any, root: str, suite: str | None) -> tuple[list[ModelRun], Largest]:
    """Read a warehouse's runs, and largest values for metric scales.

    Args:
        models: run ids, MODEL or MODEL@NIGHT; or a dict of names and these.
        root: the warehouse's root.
        suite: the runs' suite; None: all.

    Raises:
        ConfigError: a model without a run; models from several suites; a run without user values.
    """
    texts = _name_runs(models)
    store = _open_store(root)
    rows = choose_runs(store.rows, texts, suite)
    runs = []
    for name, row in rows.items():
        values = store.read_run("user_metrics", row["run_id"])
        values = values.filter(pc.equal(values.column("estimator"), HOLDOUT)).select(COLUMNS)
        if not values.num_rows:
            hint = "a night needs 'user_metrics: true' in the section evaluation of its benchmark file"
            raise ConfigError(f"run {row['run_id']} has no values of users", hint)
        split = str(row["split_id"]).partition(".")[0]
        code = json.loads(row["revisions"] or "{}")
        run = ModelRun(name, row["run_id"], row["logical_date"], values, split=split)
        runs.append(replace(run, kind=row["model_kind"], revisions=code, limits=_read_limits(row)))
    return runs, _find_largest(store, runs)


def _read_limits(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return identities of the tables behind an evaluation's candidates."""
    inputs = json.loads(row["inputs_json"] or "{}")
    if "truth" not in inputs or row["model_kind"] not in ("scores", "embeddings"):
        return {}
    candidates = json.loads(row["config_json"])["definition"]["candidates"]
    masks = candidates in ("unseen", *SAMPLED)
    limits = {"training items": inputs.get("train")} if masks else {}
    return limits | {name: inputs[name] for name in ("candidates",) if name in inputs}


def _name_runs(models: Any) -> dict[str, str]:
    """Return each run's name, and the text selecting it."""
    listed = () if is_single(models) else models
    texts = dict(listed) if isinstance(listed, Mapping) else {text: text for text in map(_as_text, listed)}
    if not texts or not all(isinstance(text, str) for pair in texts.items() for text in pair):
        hint = "give two or more: ['als', 'popular'], run ids, or MODEL@NIGHT"
        raise ConfigError(f"models is {show_value(models)}", hint)
    return texts


def _as_text(name: Any) -> str:
    return name if isinstance(name, str) else show_value(name)


def _open_store(root: str) -> FileTables:
    if needs_no_java(root):
        return ArrowStore(root, read_only=True)
    from recbench_spark.runtime.session import get_session  # noqa: PLC0415
    from recbench_spark.storage.store import Store as SparkStore  # noqa: PLC0415

    return SparkStore(get_session("recbench-spark compare"), root, read_only=True)


RUN_COLUMNS = [
    *("run_id", "suite", "model", "model_kind", "logical_date", "split_id", "dataset", "finished_at"),
    *("revisions", "inputs_json", "config_json"),
]


def choose_runs(read: RowReader, texts: Mapping[str, str], suite: str | None) -> dict[str, dict[str, Any]]:
    """Return each name's newest row of `runs`, sharing a split.

    Without a common split, the newest rows are returned.

    Raises:
        ConfigError: no run, or runs from several suites.
    """
    filters = [("status", "=", "succeeded"), *([("suite", "=", suite)] if suite else [])]
    rows = sorted(read(RUNS, filters, RUN_COLUMNS), key=_sort_run)
    candidates = {name: _match_runs(text, rows, suite) for name, text in texts.items()}
    splits = [{_split_name(row) for row in group} for group in candidates.values()]
    shared = set.intersection(*splits) if splits else set()
    chosen = {}
    for name, group in candidates.items():
        common = [row for row in group if _split_name(row) in shared]
        chosen[name] = (common or group)[-1]
    if len(shared) > 1:
        common = [row for group in candidates.values() for row in group if _split_name(row) in shared]
        newest = max(common, key=_sort_run)
        at = _split_name(newest)
        chosen = {
            name: [row for row in group if _split_name(row) == at][-1] for name, group in candidates.items()
        }
    return chosen


def _sort_run(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["logical_date"], str(row["finished_at"]), row["run_id"]


def _split_name(row: Mapping[str, Any]) -> str:
    return str(row["split_id"]).partition(".")[0]


def _match_runs(text: str, rows: Sequence[dict[str, Any]], suite: str | None) -> list[dict[str, Any]]:
    """Return the runs named by a text, the newest last."""
    exact = [row for row in rows if row["run_id"] == text]
    if exact:
        return exact
    model, _, night = text.partition("@")
    matching = [
        row for row in rows if row["model"] == model and (not night or str(row["logical_date"]) == night)
    ]
    if not matching:
        known = sorted({f"{row['model']}@{row['logical_date']}" if night else row["model"] for row in rows})
        where = f" in suite {suite}" if suite else ""
        raise ConfigError(f"no run '{text}'{where}", nearest(text, known))
    suites = sorted({row["suite"] for row in matching})
    if len(suites) > 1:
        raise ConfigError(
            f"'{text}' is a model of the suites {', '.join(suites)}", "name one: --suite NAME"
        )
    return matching


def _find_largest(store: FileTables, runs: Sequence[ModelRun]) -> Largest:
    """Return the largest values by metric: they decide sums' bits.

    Where a night scales a metric, all its runs count, as in a night. Other runs' rows are read batch by
    batch, and none is kept.
    """
    largest: Largest = {}
    for run in runs:
        for key, value in find_largest(run.values).items():
            largest[key] = max(value or 0.0, largest.get(key) or 0.0)
    names = {metric for metric, definition in largest if leaves_unit(metric, definition)}
    if not names or store.spark is not None:
        return largest
    table = TABLES["user_metrics"]
    scan = store.dataset(table).to_batches(
        columns=["metric", "definition", "values"], filter=pc.field("metric").isin(sorted(names))
    )
    for batch in scan:
        for (metric, _), value in find_largest(pa.Table.from_batches([batch])).items():
            for key in largest:
                if key[0] == metric:
                    largest[key] = max(value or 0.0, largest[key] or 0.0)
    return largest


# --------------------------------------------------------------------------------------------- checks


def refuse_other_truth(runs: Sequence[ModelRun]) -> None:
    """Refuse runs whose users have other held-out items.

    Raises:
        ConfigError: two runs have two splits, or a user of both has other items or grades.
    """
    last = runs[-1]
    for run in runs[:-1]:
        if run.split != last.split:
            hint = "compare runs of one split: name their nights, MODEL@YYYY-MM-DD"
            raise ConfigError(
                f"{run.name} ({run.night}) is of split {run.split} and {last.name} ({last.night}) of split "
                f"{last.split}: their held-out items differ",
                hint,
            )
        if run.rankings is not None and last.rankings is not None:
            common, other = _count_other_truth(run.rankings, last.rankings)
            if other:
                raise ConfigError(
                    f"{run.name} and {last.name}: held-out items of {other:,} of {common:,} users differ",
                    "evaluate both against one truth",
                )


def refuse_other_limits(runs: Sequence[ModelRun], figures: Mapping[str, str]) -> None:
    """Refuse results with candidates or popularity from other rows.

    Raises:
        ConfigError: two results come from calls with different training rows or candidate tables.
    """
    last, counted = runs[-1], ", ".join(sorted({*figures} & {*BY_POPULARITY}))
    unused = set() if counted else {POPULAR}
    for run in runs[:-1]:
        for name in sorted((run.limits.keys() & last.limits.keys()) - unused):
            if not _hold_equal_pairs(run.limits[name], last.limits[name]):
                what = f"{counted} count" if name == POPULAR else f"their {name} are"
                hint = f"evaluate both with one table {'candidates' if name == 'candidates' else 'train'}"
                raise ConfigError(f"{run.name} and {last.name}: {what} those of other rows", hint)


def _hold_equal_pairs(one: Any, other: Any) -> bool:
    """Tell whether two tables hold equal pairs; None holds none."""
    if one is other or isinstance(one, str) or isinstance(other, str):  # file identities
        return bool(one == other)
    return np.array_equal(_hash_pairs(one), _hash_pairs(other))


def _hash_pairs(table: Any) -> npt.NDArray[np.uint64]:
    if table is None:
        return np.zeros(0, np.uint64)
    rows = as_table(to_arrow(table) if hasattr(table, "toArrow") else table, "train")
    users, items = (encode_ids(rows, name, "train")[1].dictionary_decode() for name in IDS)
    return np.unique(hash_ids(items, hash_ids(users)))


def check_revisions(runs: Sequence[ModelRun]) -> list[Check]:
    """Return a warning for each run from another code revision.

    Runs are compared with the last one. Between models of two kinds only the shared code is compared.
    """
    last = runs[-1]
    checks: list[Check] = []
    for run in runs[:-1]:
        if run.revisions is None or last.revisions is None:
            continue
        sides = [dict(run.revisions), dict(last.revisions)]
        if run.kind != last.kind:
            sides = [{name: side[name] for name in side if name in SHARED} for side in sides]
        changes = describe_changes(*sides)
        if changes:
            nights = f"{run.name} ({run.night}) and {last.name} ({last.night})"
            text = f"{nights} are of other code, {', '.join(changes)}: run them anew in one night"
            checks.append(Check(f"code of {run.name} and {last.name}", len(changes), 0.0, "warning", text))
    return checks


def _count_other_truth(left: pa.Table, right: pa.Table) -> tuple[int, int]:
    """Count users in both tables, and those whose truth differs."""
    one, two = _hash_truth(left), _hash_truth(right)
    common = one.keys() & two.keys()
    return len(common), sum(one[key] != two[key] for key in common)


def _hash_truth(rankings: pa.Table) -> dict[tuple[str, ...], int]:
    """Hash users' items and grades by part and query, in any order."""
    keys = ("user_id", "part", QUERY_ID)
    rows = rankings.select([*keys, "item_ids", "relevance"]).combine_chunks()
    lists = rows.column("item_ids").combine_chunks()
    offsets = lists.offsets.to_numpy() - lists.offsets[0].as_py()
    items, grades = (
        pc.list_flatten(rows.column(name)).combine_chunks() for name in ("item_ids", "relevance")
    )
    hashes = (
        hash_longs(grades.to_numpy().view(np.int64), hash_ids(items))
        if len(items)
        else np.zeros(0, np.uint64)
    )
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes.view(np.uint64), dtype=np.uint64)])
    totals = running[offsets[1:]] - running[offsets[:-1]]
    users = zip(*(rows.column(name).to_pylist() for name in keys), strict=True)
    return dict(zip(users, totals.tolist(), strict=True))


def list_figures(
    runs: list[ModelRun], wanted: tuple[str, ...] | None, part: str | None
) -> tuple[dict[str, str], list[Check]]:
    """Return metric -> definition for common metrics, and checks.

    Checks tell what is left out. The values in `runs` are restricted to the compared parts.

    Raises:
        ConfigError: a metric missing in a run, or under another definition there; no part in common.
    """
    checks = _restrict_parts(runs, part)
    known = [run.definitions for run in runs]
    shared = [name for name in known[-1] if all(name in one for one in known)]
    names = shared if wanted is None else list(wanted)
    for name in names:
        for run in runs:
            if name not in run.definitions:
                reason = ": it is a number of all lists together" if name in OVERALL else ""
                raise ConfigError(
                    f"{run.name} has no values of users of {name}{reason}", suggest_metric(name, shared)
                )
    if not names:
        listed = "; ".join(f"{run.name}: {', '.join(sorted(run.definitions))}" for run in runs)
        raise ConfigError("the runs have no metric in common", listed)
    left_out = sorted({name for one in known for name in one} - set(shared)) if wanted is None else []
    if left_out:
        checks.append(
            Check("metrics of some models alone", len(left_out), None, "info", ", ".join(left_out))
        )
    return {name: _find_definition(name, runs) for name in names}, checks


def _find_definition(name: str, runs: Sequence[ModelRun]) -> str:
    definitions = set.intersection(*(run.definitions[name] for run in runs))
    if len(definitions) == 1:
        return next(iter(definitions))
    if definitions:
        raise ConfigError(
            f"{name} is measured under {len(definitions)} definitions: {', '.join(sorted(definitions))}",
            "compare results of one definition",
        )
    for one, two in combinations(runs, 2):
        ours, theirs = one.definitions[name], two.definitions[name]
        if not ours & theirs:
            raise ConfigError(
                f"{name} of {one.name} is of the definition {'; '.join(sorted(ours))} and that of "
                f"{two.name} of {'; '.join(sorted(theirs))}",
                "evaluate both under one definition; metrics= chooses others",
            )
    raise ConfigError(f"{name}: the models have no definition in common", "evaluate all under one")


def _restrict_parts(runs: list[ModelRun], part: str | None) -> list[Check]:
    shared = set.intersection(*(run.parts for run in runs))
    listed = "; ".join(f"{run.name}: {', '.join(sorted(run.parts))}" for run in runs)
    if part is not None and part not in shared:
        raise ConfigError(f"part {show_value(part)} is not in all of the runs", listed)
    if not shared:
        raise ConfigError("the runs are of other parts of their split", listed)
    chosen = {part} if part is not None else shared
    left_out = set().union(*(run.parts for run in runs)) - shared
    for n, run in enumerate(runs):
        mask = pc.is_in(run.values.column("part"), value_set=pa.array(sorted(chosen), pa.string()))
        runs[n] = replace(run, values=run.values.filter(mask))
    detail = ", ".join(sorted(left_out))
    return [Check("parts of some models alone", len(left_out), None, "info", detail)] if left_out else []
