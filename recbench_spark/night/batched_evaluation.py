"""Evaluate a group of models in one pass.

The pass covers all held-out parts.

Each table gets one commit. Tasks write the files for rankings and user values; in a catalog where Spark
writes, Spark appends them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from recbench_spark.config import ModelConfig, digest
from recbench_spark.core.checks import Check
from recbench_spark.engine.versions import read_setting
from recbench_spark.errors import ConfigError, DataError, FallbackToSpark, is_cancelled
from recbench_spark.evaluation import shuffle
from recbench_spark.evaluation.progress import watch_progress
from recbench_spark.evaluation.run_measures import map_user_values
from recbench_spark.evaluation.shuffle import BatchedResult, PassInputs
from recbench_spark.evaluation.task import BatchedWork
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.night.candidates import select_candidates
from recbench_spark.night.night import BenchmarkNight
from recbench_spark.night.run_rows import NightMeasures, RunRows, list_additions, make_run_rows
from recbench_spark.ranking.inputs import GivenRows, RankingInput
from recbench_spark.runtime.failures import is_java_gone
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import RANKINGS, USER_METRICS
from recbench_spark.storage.commits import Addition
from recbench_spark.storage.file_tables import FileTables, TaskFiles
from recbench_spark.storage.objects import measure_files

MODELS_AT_ONCE_SETTING = "spark.recbench.models_at_once"
"""Spark setting: most models in one pass.

0 means the same as 1: each model by itself.
"""

Folders = tuple[str, str]
"""Folders for the files of `rankings` and `user_metrics`.

Tasks write there.
"""

MAX_MODELS = 64
MAX_ITEM_BYTES = 16 << 30
"""Most models in one pass, and most bytes in their item files.

Each host keeps all these files on its disk. A worker maps four at a time and reads one.
"""


@dataclass(frozen=True)
class RankableModel:
    """A model ready to be ranked.

    Attributes:
        run_id: its run's id.
        model: its settings.
        ranked: input for the ranking.
        checks: checks on rows its inputs left out.
        bytes: size of its item files.
    """

    run_id: str
    model: ModelConfig
    ranked: RankingInput
    checks: list[Check]
    bytes: int


@dataclass(frozen=True)
class EvaluationOutcome:
    """A model's checks and seconds, or its error."""

    checks: list[Check]
    seconds: float
    error: Exception | None = None


def read_models_per_pass(night: BenchmarkNight) -> int:
    """Return how many models one pass may have this night.

    The result is 0 where models predict ratings.
    """
    spark = night.store.spark
    text = str((spark and read_setting(spark, MODELS_AT_ONCE_SETTING)) or MAX_MODELS)
    if not text.isdecimal():
        raise ConfigError(
            f"{MODELS_AT_ONCE_SETTING} is '{text}', not a number of models", "0: each model by itself"
        )
    return 0 if night.benchmark.evaluation.task == "rating" else max(int(text), 1)


def open_model(night: BenchmarkNight, model: ModelConfig, run_id: str) -> RankableModel:
    """Open a trained or external model and check its inputs."""
    adapter = make_adapter(model)
    users = night.select_users()
    rows = users if adapter.runs_local else night.open_frame(users)
    ranked, checks = adapter.prepare_ranking(rows, night.data)
    return RankableModel(run_id, model, ranked, checks, _item_bytes(ranked))


def _item_bytes(ranked: RankingInput) -> int:
    """Count the file bytes workers map for a model.

    The result is 0 for files this process cannot see.
    """
    rows = None if isinstance(ranked, GivenRows) else getattr(ranked.source, "rows", None)
    with suppress(OSError):
        return sum(size or 0 for size in measure_files(rows.files)) if rows else 0
    return 0


def group_models(models: Sequence[RankableModel], most: int) -> Iterator[list[RankableModel]]:
    """Yield models in order, in groups.

    Groups are limited by the number of models, and by the bytes of their item files.
    """
    group: list[RankableModel] = []
    for candidate in models:
        full = len(group) == most or sum(other.bytes for other in group) + candidate.bytes > MAX_ITEM_BYTES
        if group and full:
            yield group
            group = []
        group.append(candidate)
    if group:
        yield group


@dataclass(frozen=True)
class PassResult:
    """A model's result and seconds in a pass, or error."""

    result: BatchedResult | None
    seconds: float
    error: Exception | None = None


@dataclass(frozen=True)
class RankedGroup:
    """A group after the pass that ranks its models.

    Attributes:
        group: the models.
        wanted: what the night measures.
        passes: each model's result, or the error that ended it.
        folders: folders where tasks wrote files.
    """

    group: Sequence[RankableModel]
    wanted: NightMeasures
    passes: Sequence[PassResult]
    folders: Folders

    @property
    def ranked(self) -> list[tuple[RankableModel, BatchedResult]]:
        """Models that did not fail, with their results."""
        pairs = zip(self.group, self.passes, strict=True)
        return [(ready, passed.result) for ready, passed in pairs if passed.result]

    def list_files(self) -> list[Addition]:
        """Return the files with rankings and user values.

        Each table gets its files under the group's name.
        """
        name = digest([ready.run_id for ready in self.group], length=32)
        rankings = [file for _, result in self.ranked for file in result.rankings]
        values = [file for _, result in self.ranked for file in result.values]
        return [
            Addition(table, name, TaskFiles(files, folder))
            for table, files, folder in zip(
                (RANKINGS, USER_METRICS), (rankings, values), self.folders, strict=True
            )
        ]


def rank_group(night: BenchmarkNight, group: Sequence[RankableModel], journal: Journal) -> RankedGroup:
    """Rank a group of models in one pass.

    Tasks write the files with rankings and user values.

    Args:
        night: the night; drawn candidates are stored already (`candidates.list_missing_draws`).
        group: the models.
        journal: the job's journal.
    """
    names = ", ".join(ready.model.name for ready in group)
    parts = ", ".join(night.benchmark.evaluation.parts)
    runs = [ready.run_id for ready in group]
    wanted = NightMeasures.from_night(night)
    with journal.stage("rankings", f"rank {names}: {parts}", run_ids=runs) as counts:
        folders = night.store.choose_folder(RANKINGS), night.store.choose_folder(USER_METRICS)
        ranked = RankedGroup(
            group, wanted, _pass_with_retry(night, wanted, group, journal, folders), folders
        )
        counts["failed"] = len(group) - len(ranked.ranked)
    return ranked


def measure_group(
    night: BenchmarkNight, ranked: RankedGroup, journal: Journal
) -> tuple[dict[str, EvaluationOutcome], list[Addition]]:
    """Return each run's outcome, and rows of runs that succeeded."""
    names, failed = ", ".join(ready.model.name for ready in ranked.group), dict[str, Exception]()
    runs = [ready.run_id for ready in ranked.group]
    with journal.stage("metrics", f"measure {names}", run_ids=runs) as counts:
        rows_by_run = dict(_collect_run_rows(night, ranked, failed))
        counts["warnings"] = sum(run_rows.warnings for run_rows in rows_by_run.values())
    outcomes = {
        ready.run_id: EvaluationOutcome(
            rows_by_run[ready.run_id].checks if ready.run_id in rows_by_run else [],
            passed.seconds,
            passed.error or failed.get(ready.run_id),
        )
        for ready, passed in zip(ranked.group, ranked.passes, strict=True)
    }
    return outcomes, list_additions(rows_by_run)


# ------------------------------------------------------------------------------- the pass


def _pass_with_retry(
    night: BenchmarkNight,
    wanted: NightMeasures,
    group: Sequence[RankableModel],
    journal: Journal,
    folders: Folders,
) -> list[PassResult]:
    """Run one pass for all models, with a retry.

    A model that fails in it is tried once more by itself.

    Where the whole pass dies, every model is tried by itself.
    """
    try:
        passes = _run_pass(night, wanted, group, journal, folders)
    except Exception as error:
        if ends_night(error, night.store):
            raise
        passes = [PassResult(None, 0.0, error) for _ in group]
    return [
        passed
        if passed.result or len(group) == 1
        else _pass_with_retry(night, wanted, [ready], journal, folders)[0]
        for ready, passed in zip(group, passes, strict=True)
    ]


def _run_pass(
    night: BenchmarkNight,
    wanted: NightMeasures,
    group: Sequence[RankableModel],
    journal: Journal,
    folders: Folders,
) -> list[PassResult]:
    started = time.monotonic()
    members = tuple(shuffle.to_member(ready.run_id, ready.ranked, wanted.request) for ready in group)
    notes = night.store.open_progress_folder()
    values = partial(map_user_values, wanted.plan, wanted.catalogue) if wanted.has_values else None
    candidates = select_candidates(night) if needs_candidates(group) else None
    work = BatchedWork(
        members, wanted.request, wanted.measures, values, folders,
        candidates=candidates and candidates.rule, progress=str(notes or ""),
    )  # fmt: skip
    ranked = [ready.ranked for ready in group]
    inputs = PassInputs(night.select_users(), ranked, night.n_rankings, candidates)
    draw = journal.bar.move if journal.bar else None
    with watch_progress(notes, night.n_rankings * len(group), journal.say, draw):
        results = shuffle.evaluate(night.store.engine, inputs, work)
    wall = time.monotonic() - started
    total = sum(result.seconds for result in results) or 1.0
    return [
        PassResult(None if result.error else result, wall * result.seconds / total, _as_error(result.error))
        for result in results
    ]


def needs_candidates(group: Sequence[RankableModel]) -> bool:
    """Tell whether a model must be given candidates."""
    return any(not make_adapter(ready.model).brings_candidates for ready in group)


def ends_night(error: BaseException, store: FileTables) -> bool:
    """Tell whether no other model can be evaluated here.

    None can be after a cancelled job or a dead Java, or where Spark must run the night.
    """
    falls_back = store.spark is None and isinstance(error, FallbackToSpark)
    return is_cancelled(error) or is_java_gone(error) or falls_back


def _as_error(message: str | None) -> Exception | None:
    return None if message is None else DataError(message)


def _collect_run_rows(
    night: BenchmarkNight, ranked: RankedGroup, failed: dict[str, Exception]
) -> Iterator[tuple[str, RunRows]]:
    """Yield run id and rows of each ranked model.

    An error is noted for its run alone.
    """
    for ready, result in ranked.ranked:
        run = ready.run_id, ready.model
        try:
            yield ready.run_id, make_run_rows(night, ranked.wanted, run, result.measured, ready.checks)
        except Exception as error:
            if ends_night(error, night.store):
                raise
            failed[ready.run_id] = error
