"""Read earlier nights for a report.

It shows values, falls with their causes, and tested differences.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from types import SimpleNamespace
from typing import Any

import pandas as pd

from recbench_spark import reports
from recbench_spark.config import Benchmark
from recbench_spark.core.inputs import OLD_IDENTITY
from recbench_spark.errors import ConfigError
from recbench_spark.models.settings import model_class
from recbench_spark.night.code_provenance import code_changes
from recbench_spark.night.comparisons import name_slice, regression_in_words
from recbench_spark.query.answers import Ask, list_texts, make_query_runner
from recbench_spark.reports.frame_values import is_missing
from recbench_spark.schemas import RUNS, SLICE_COMPARISONS
from recbench_spark.storage.file_tables import FileTables

FILES_IN_WORDS = {
    "lists": "lists",
    "scores": "scores",
    "embeddings": "vectors",
    "predictions": "predictions",
}
"""Contents of a model's files by kind; others are `files`."""

NOT_A_SETTING = ("name", "path", "provenance", "version")
"""Model settings whose change is no cause: places differ every night."""


def read_history(ask: Ask, suite: str, day: date, report: reports.Report) -> pd.DataFrame:
    """Read the last nights' numbers at the report's measure.

    Only the shown nights are read. The driver holds a row for each model, part and night.
    """
    if not report.leaderboards:
        return pd.DataFrame(columns=list(reports.HISTORY_COLUMNS))
    measure = report.leaderboards[0].measure
    until = f"suite = '{suite}' AND logical_date <= DATE '{day}'"
    nights = (
        f"SELECT DISTINCT logical_date FROM runs WHERE {until} AND status = 'succeeded' "
        f"ORDER BY logical_date DESC LIMIT {reports.NIGHTS_SHOWN}"
    )
    return ask(
        f"SELECT {', '.join(reports.HISTORY_COLUMNS)} FROM current_metrics "
        f"WHERE {until} AND {measure_condition(measure.metric, measure.k)} AND slice_key IS NULL "
        f"AND logical_date >= (SELECT MIN(logical_date) FROM ({nights}) AS nights) "
        "ORDER BY logical_date, split_id, run_id"
    )


def measure_condition(metric: str, k: int | None) -> str:
    """Return the SQL condition for a metric and a cut-off."""
    return f"metric = '{metric}' AND {f'k = {k}' if k else 'k IS NULL'}"


def read_compared(ask: Ask, run_ids: Sequence[str], report: reports.Report) -> pd.DataFrame:
    """Read these runs' rows of `current_comparisons` at the report's measure."""
    if not report.leaderboards or not run_ids:
        return pd.DataFrame(columns=list(reports.COMPARED_COLUMNS))
    measure = report.leaderboards[0].measure
    return ask(
        f"SELECT {', '.join(reports.COMPARED_COLUMNS)} FROM current_comparisons "
        f"WHERE run_id IN ({list_texts(run_ids)}) AND {measure_condition(measure.metric, measure.k)}"
    )


def read_falls(
    store: FileTables, benchmark: Benchmark, run_ids: Sequence[str], day: date
) -> list[dict[str, Any]]:
    """Read these runs' regressions on a night, over all users, then in slices."""
    if not benchmark.regressions:
        return []
    slices = read_fallen_slices(store, run_ids, day) if benchmark.regression_slices else []
    return [*read_regressed(make_query_runner(store), run_ids, day), *slices]


def read_regressed(ask: Ask, run_ids: Sequence[str], day: date) -> list[dict[str, Any]]:
    """Read these runs' regressions on a night, deployable models first."""
    columns = ", ".join(f"c.{name}" for name in reports.COMPARED_COLUMNS)
    rows = ask(
        f"SELECT {columns}, r.model_kind FROM current_comparisons AS c "
        "INNER JOIN runs AS r ON r.run_id = c.run_id "
        f"WHERE c.regressed AND c.logical_date = DATE '{day}' AND c.run_id IN ({list_texts(run_ids)})"
    )
    records = [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]
    for row in records:
        row["k"] = None if is_missing(row["k"]) else int(row["k"])
    return sorted(records, key=_order_regressed)


def read_fallen_slices(store: FileTables, run_ids: Sequence[str], day: date) -> list[dict[str, Any]]:
    """Read the values of slices that fell, of the night's last comparison."""
    filters = [("run_id", "in", list(run_ids)), ("logical_date", "=", day)]
    rows = store.rows(SLICE_COMPARISONS, filters) if run_ids else []
    last = max((row["compared_at"] for row in rows), default=None)
    fallen = [row for row in rows if row["regressed"] and row["compared_at"] == last]
    ids = sorted({row["run_id"] for row in fallen})
    runs = store.rows(RUNS, [("run_id", "in", ids)], ["run_id", "model_kind"]) if ids else []
    kinds = {run["run_id"]: run["model_kind"] for run in runs}
    named = [row | {"slice": name_slice(row), "model_kind": kinds[row["run_id"]]} for row in fallen]
    return sorted(named, key=_order_regressed)


def _order_regressed(row: Mapping[str, Any]) -> tuple[Any, ...]:
    unshipped = row["model_kind"] in reports.NOT_SHIPPED
    return (unshipped, row["model"], row["part"], row["metric"], row["k"] or 0, row["kind"])


def describe_regressions(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Describe regressions in words, with all their numbers."""
    return tuple(regression_in_words(SimpleNamespace(**row)) for row in rows)


def make_falls(store: FileTables, rows: Sequence[Mapping[str, Any]]) -> tuple[reports.Fall, ...]:
    """Return regressions with their causes.

    The driver holds a row of `runs` for each of their runs.
    """
    ids = sorted({row[name] for row in rows for name in ("run_id", "other_run_id")})
    names = ["run_id", "model_kind", "config_json", "inputs_json"]
    runs = {one["run_id"]: one for one in (store.rows(RUNS, [("run_id", "in", ids)], names) if ids else [])}
    pairs = [(row["other_run_id"], row["run_id"]) for row in rows]
    codes = code_changes(store, pairs) if pairs else {}
    falls = []
    for row, pair in zip(rows, pairs, strict=True):
        code = codes.get(pair)
        before, after = (runs.get(run_id, {}) for run_id in pair)
        causes = reports.list_causes(
            list_changed_inputs(before, after),
            list_changed_settings(before, after),
            code.words if code else None,
            str(row["logical_date"])[:10],
            str(row["other_date"])[:10],
        )
        is_shipped = row["model_kind"] not in reports.NOT_SHIPPED
        falls.append(reports.make_fall(dict(row), causes, is_shipped))
    return tuple(falls)


def list_changed_inputs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """List the inputs whose content differs between two runs.

    Inputs have names such as `lists` and `log`. Identities from older code do not describe the content, so
    they say nothing.
    """
    inputs, others = (json.loads(run.get("inputs_json") or "{}") for run in (after, before))
    changed = []
    for name in sorted(inputs.keys() & others.keys()):
        texts = (inputs[name], others[name])
        if texts[0] != texts[1] and not any(OLD_IDENTITY.fullmatch(text) for text in texts):
            is_own = name.startswith("model ")
            files = FILES_IN_WORDS.get(str(after.get("model_kind")), "files")
            changed.append(files if is_own else "log" if name in ("log", "dataset") else name)
    return list(dict.fromkeys(changed))


def list_changed_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """List changed model settings, as `name from a to b`."""
    settings, others = (
        dict(_flatten(json.loads(run.get("config_json") or "{}").get("model", {})))
        for run in (after, before)
    )
    names = sorted(settings.keys() | others.keys(), key=lambda name: (name != "kind", name))
    return [
        f"{name} from {others.get(name, 'none')} to {settings.get(name, 'none')}"
        for name in names
        if settings.get(name) != others.get(name)
    ]


def _flatten(
    settings: Mapping[str, Any], prefix: str = "", paths: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    paths = {*paths, *_list_paths(settings.get("kind"))}
    for name, value in settings.items():
        if name in NOT_A_SETTING or name.endswith("path") or name in paths:
            continue
        if isinstance(value, dict):
            below = [path.removeprefix(f"{name}.") for path in paths if path.startswith(f"{name}.")]
            yield from _flatten(value, f"{prefix}{name}.", below)
        else:
            yield f"{prefix}{name}", str(value)


def _list_paths(kind: object) -> Sequence[str]:
    """List the settings of a model kind that are paths.

    A section of another kind has none.
    """
    try:
        paths = model_class(str(kind)).paths if kind else ()
    except ConfigError:
        return ()
    return paths if isinstance(paths, tuple) else ()  # those of `retrieved` are those of its base
