"""Record code revisions, and compare two runs' other inputs.

Revisions tell which code produced a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from recbench_spark.config import Benchmark, Dataset, ModelConfig, parse
from recbench_spark.core import revisions
from recbench_spark.core.definitions import Definition
from recbench_spark.core.inputs import OLD_IDENTITY
from recbench_spark.errors import ConfigError
from recbench_spark.ranking.kernels.rankings import list_roundings
from recbench_spark.schemas import RUNS
from recbench_spark.storage.file_tables import FileTables

STANDALONE = ("ids", "rankings", "metrics", "sampled", "values", "pairs", "exposure")
"""Code parts for evaluations without a night."""


def split_revisions(dataset: Dataset) -> dict[str, int]:
    """Return the code revisions behind a split.

    The revisions cover its propensities and drawn candidates too.
    """
    reader = "worlds" if dataset.reader == "world" else dataset.reader
    events = ["events"] if dataset.events else []
    return revisions.select_revisions("splits", "ids", "candidates", "propensities", reader, *events)


def run_revisions(benchmark: Benchmark, definition: Definition, model: ModelConfig) -> dict[str, int]:
    """Return the code revisions behind a run's numbers.

    The revisions cover its split, its model and its metrics.
    """
    evaluation = benchmark.evaluation
    names = [model.kind, *model.revised, "rankings", "metrics"]
    names += ["sampled"] if definition.candidates == "uniform" and evaluation.draw.estimators else []
    names += ["exposure", evaluation.exposure.propensities.method] if evaluation.exposure else []
    names += ["learning_curves"] if evaluation.learning_curve else []
    if definition.threshold is not None and list_roundings(definition.threshold):
        names.append("thresholds")
    if benchmark.split.gives_rows and model.folds_given_rows:
        names += model.fold_in_revisions
    return split_revisions(benchmark.dataset) | revisions.select_revisions(*names)


def format_revisions(revisions_by_name: dict[str, int]) -> str:
    """Format revisions for `runs.revisions`: equal ones give equal text."""
    return json.dumps(revisions_by_name, sort_keys=True)


@dataclass(frozen=True)
class CodeChange:
    """The difference in code between a model's two nights.

    Attributes:
        words: versions and revisions that differ.
        alone: True if log, settings and other inputs were the same, so only the code changed. None:
            unknown, because older code identified inputs in another way.
    """

    words: str
    alone: bool | None


def code_changes(store: FileTables, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], CodeChange]:
    """Map (run before, run now) to its code change.

    Pairs with equal revisions are left out. The driver holds one row of `runs` for each run.
    """
    run_pairs = list(pairs)
    ids = sorted({run_id for pair in run_pairs for run_id in pair})
    names = ("run_id", "code_version", "revisions", "config_json", "inputs_json")
    rows = store.rows(RUNS, [("run_id", "in", ids)], names) if ids else []
    runs = {row["run_id"]: SimpleNamespace(**row) for row in rows}
    changes = {
        pair: _compare_code(runs[pair[0]], runs[pair[1]]) for pair in run_pairs if runs.keys() >= set(pair)
    }
    return {pair: change for pair, change in changes.items() if change}


def _compare_code(before: SimpleNamespace, after: SimpleNamespace) -> CodeChange | None:
    words = revisions.describe_changes(_parse_json(before.revisions), _parse_json(after.revisions))
    if not words:
        return None
    versions = f"recbench-spark {before.code_version} -> {after.code_version}"
    return CodeChange(f"{versions}: {', '.join(words)}", _compare_inputs(before, after))


def _parse_json(text: str | None) -> dict[str, Any]:
    """Parse JSON; rows older than revisions have NULL."""
    return json.loads(text) if text else {}


def _compare_inputs(before: SimpleNamespace, after: SimpleNamespace) -> bool | None:
    settings = [_parse_settings(row.config_json) for row in (before, after)]
    if None in settings or settings[0] != settings[1]:
        return False
    return have_same_inputs(_parse_json(before.inputs_json), _parse_json(after.inputs_json))


def have_same_inputs(before: Mapping[str, str], after: Mapping[str, str]) -> bool | None:
    """Tell whether two runs read the same inputs.

    The result is None where their identities cannot be compared: older code identified a table by its
    version, and files by size and time. Such an identity does not describe the content.

    Args:
        before, after: input identities, by kind of input.
    """
    if before.keys() != after.keys():
        return False
    differing = [(before[name], after[name]) for name in before if before[name] != after[name]]
    if all(any(OLD_IDENTITY.fullmatch(text) for text in pair) for pair in differing):
        return None if differing else True
    return False


def _parse_settings(text: str | None) -> Benchmark | None:
    """Parse a run's settings; a newer setting gets its default."""
    document = _parse_json(text)
    if not document:
        return None
    model = {key: value for key, value in document.pop("model").items() if key != "provenance"}
    try:
        return parse(Benchmark, {"name": "run", **document, "models": [model]}, "runs.config_json")
    except ConfigError:
        return None
