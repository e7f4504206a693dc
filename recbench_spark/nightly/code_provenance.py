"""Which revisions of the code a number comes of, and whether two runs differ in anything else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from recbench_spark import revisions
from recbench_spark.config import Benchmark, Dataset, ModelConfig, parse
from recbench_spark.definitions import Definition
from recbench_spark.errors import ConfigError
from recbench_spark.inputs import OLD_IDENTITY
from recbench_spark.schemas import RUNS
from recbench_spark.storage.store import Store

STANDALONE = ("ids", "rankings", "metrics", "sampled", "values", "pairs", "exposure")
"""What single evaluations can be made of: those without a night."""


def split_revisions(dataset: Dataset) -> dict[str, int]:
    """What a split, its propensities and its drawn candidates come of."""
    reader = "worlds" if dataset.reader == "world" else dataset.reader
    return revisions.select_revisions("splits", "ids", "candidates", "propensities", reader)


def run_revisions(benchmark: Benchmark, definition: Definition, model: ModelConfig) -> dict[str, int]:
    """What the numbers of a run come of: its split, its model, and how it is measured."""
    evaluation = benchmark.evaluation
    names = [model.kind, *model.revised, "rankings", "metrics"]
    names += ["sampled"] if definition.candidates == "uniform" and evaluation.draw.estimators else []
    names += ["exposure"] if evaluation.exposure else []
    return split_revisions(benchmark.dataset) | revisions.select_revisions(*names)


def format_revisions(revised: dict[str, int]) -> str:
    """As in `runs.revisions`: equal revisions, equal text."""
    return json.dumps(revised, sort_keys=True)


@dataclass(frozen=True)
class CodeChange:
    """Two nights of a model by different code.

    Attributes:
        words: versions and revisions of which one night differs from the other.
        alone: whether log, settings and other inputs were the same, so that nothing but the code moved;
            None: that cannot be known, since older code identified inputs in another way.
    """

    words: str
    alone: bool | None


def code_changes(store: Store, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], CodeChange]:
    """(run before, run now) -> what changed in the code; pairs by the same revisions are left out.

    The driver holds a row of `runs` a run.
    """
    wanted = list(pairs)
    ids = sorted({run_id for pair in wanted for run_id in pair})
    names = ("run_id", "code_version", "revisions", "config_json", "inputs_json")
    rows = store.rows(RUNS, [("run_id", "in", ids)], names) if ids else []
    known = {row["run_id"]: SimpleNamespace(**row) for row in rows}
    found = {
        pair: _compare_code(known[pair[0]], known[pair[1]]) for pair in wanted if known.keys() >= set(pair)
    }
    return {pair: change for pair, change in found.items() if change}


def _compare_code(before: SimpleNamespace, after: SimpleNamespace) -> CodeChange | None:
    words = revisions.describe_changes(_parse_json(before.revisions), _parse_json(after.revisions))
    if not words:
        return None
    versions = f"recbench-spark {before.code_version} -> {after.code_version}"
    return CodeChange(f"{versions}: {', '.join(words)}", _compare_inputs(before, after))


def _parse_json(text: str | None) -> dict[str, Any]:
    """NULL in rows from before there were revisions: all at the first."""
    return json.loads(text) if text else {}


def _compare_inputs(before: SimpleNamespace, after: SimpleNamespace) -> bool | None:
    settings = [_parse_settings(row.config_json) for row in (before, after)]
    if None in settings or settings[0] != settings[1]:
        return False
    return have_same_inputs(_parse_json(before.inputs_json), _parse_json(after.inputs_json))


def have_same_inputs(before: Mapping[str, str], after: Mapping[str, str]) -> bool | None:
    """Return whether two runs read the same; None where their identities cannot be compared.

    Older code knew a table by its version and files by size and time: such a text says nothing of content.

    Args:
        before, after: identities of inputs, by what they are.
    """
    if before.keys() != after.keys():
        return False
    differing = [(before[name], after[name]) for name in before if before[name] != after[name]]
    if all(any(OLD_IDENTITY.fullmatch(text) for text in pair) for pair in differing):
        return None if differing else True
    return False


def _parse_settings(text: str | None) -> Benchmark | None:
    """The settings of a run as this code reads them: what older code did not know has its default."""
    found = _parse_json(text)
    if not found:
        return None
    model = {key: value for key, value in found.pop("model").items() if key != "provenance"}
    try:
        return parse(Benchmark, {"name": "run", **found, "models": [model]}, "runs.config_json")
    except ConfigError:
        return None
