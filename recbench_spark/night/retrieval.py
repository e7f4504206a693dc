"""Measure what a night's indexes lose and cost, in `retrieval_runs`.

One pass over the users serves all indexes on one model. A task holds its users, and a batch of them with
their exact lists. The driver gets one row from each task for each run, part and cut-off.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from recbench_spark.config import RetrievedModel
from recbench_spark.core.arrays import Bools, Floats
from recbench_spark.core.streams import Batches
from recbench_spark.evaluation.shuffle import VECTOR, count_tasks
from recbench_spark.evaluation.task import USERS_MEMBER, Member, join_member_rows, read_users
from recbench_spark.models.adapters.retrieved import RetrievedScorer, RetrievedSource
from recbench_spark.night.batched_evaluation import RankableModel
from recbench_spark.night.night import BenchmarkNight
from recbench_spark.ranking.batches import read_item_lists
from recbench_spark.ranking.inputs import VECTOR_ROWS, ScoredModel
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.scorers import Scorer, UserBlock, count_ranks
from recbench_spark.ranking.scored import user_block
from recbench_spark.retrieval.kernels.candidates import measure_recall
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import RETRIEVAL_RUNS
from recbench_spark.storage.blocks import Side, Sides, deal_sides
from recbench_spark.storage.commits import Addition
from recbench_spark.storage.packed_blocks import unpack_blocks

CUTOFFS = (10, 100)
"""Lengths to compare lists at, up to their own length."""
SINGLE_QUERIES = 8
"""Users in a batch who are also searched one by one."""

BATCH_ROWS = pa.schema(
    [
        ("run_id", pa.string()),
        ("part", pa.string()),
        ("k", pa.int32()),
        ("n", pa.int64()),
        ("recall", pa.int64()),
        ("squares", pa.int64()),
        ("short_lists", pa.int64()),
        ("candidates", pa.int64()),
        ("searched", pa.int64()),
        ("seconds", pa.float64()),
        ("single_queries", pa.int64()),
        ("single_seconds", pa.float64()),
        ("build_seconds", pa.float64()),
        ("bytes", pa.int64()),
        ("items", pa.int64()),
        ("cut_items", pa.int64()),
    ]
)
"""Sums over a batch of users in one part.

`recall` and `squares` are in units of 1 / `UNIT`.
"""
UNIT = 2**32
"""Recall is added as whole numbers, so neither batches nor partitions change a bit."""
ONCE = ("build_seconds", "bytes", "items", "cut_items")
"""Facts about an index, repeated in each batch."""


USER_NAMES = ("user_id", "part", "user_key", "masked")
"""User columns for the comparison."""


@dataclass(frozen=True)
class RetrievalTask:
    """The indexes a task compares, by run id.

    All indexes belong to one model. `masks`: whether training items are left out.
    """

    sources: tuple[tuple[str, RetrievedSource], ...]
    masks: bool
    length: int

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """Cut-offs to compare at, or the lists' shorter length."""
        return tuple(k for k in CUTOFFS if k <= self.length) or (self.length,)


def measure_retrieval(night: BenchmarkNight, group: Sequence[RankableModel], journal: Journal) -> Addition:
    """Compare each index's lists with exact lists.

    The users are the same.

    Args:
        night: the night.
        group: opened models whose lists come through an index.
        journal: the job's journal.
    """
    names = ", ".join(ready.model.name for ready in group)
    run_ids = [ready.run_id for ready in group]
    with journal.stage("retrieval", f"compare lists: {names}", run_ids=run_ids):
        by_base: dict[str, list[RankableModel]] = {}
        for ready in group:
            by_base.setdefault(_settings(ready).base.name, []).append(ready)
        rows = [row for models in by_base.values() for row in _measure_base(night, models)]
    return Addition(RETRIEVAL_RUNS, rows=pa.Table.from_pylist(rows, RETRIEVAL_RUNS.arrow_schema))


def _settings(ready: RankableModel) -> RetrievedModel:
    assert isinstance(ready.model, RetrievedModel)
    return ready.model


def _measure_base(night: BenchmarkNight, group: Sequence[RankableModel]) -> list[dict[str, Any]]:
    """Return rows of `retrieval_runs` for indexes on one model."""
    sources, vectors = [], None
    for ready in group:
        assert isinstance(ready.ranked, ScoredModel) and isinstance(ready.ranked.source, RetrievedSource)
        sources.append((ready.run_id, ready.ranked.source))
        vectors = ready.ranked.vectors
    models = {ready.run_id: _settings(ready) for ready in group}
    task = RetrievalTask(
        tuple(sources), night.definition.candidates == "unseen", _settings(group[0]).length
    )
    sides = [Side(USERS_MEMBER, night.select_users(), USER_NAMES)]
    if vectors is not None:
        sides.append(Side(0, vectors, VECTOR_ROWS.names))
    member = Member("", task.sources[0][1], columns=VECTOR if vectors is not None else pa.schema({}))
    engine = night.store.engine
    tasks = count_tasks(engine, [member] * len(group), night.n_rankings)
    dealt = deal_sides(engine, sides, tasks)
    return summarise_batches(dealt.each(partial(compare_sides, task=task, member=member)), models)


# ------------------------------------------------------------------------------- batches


def compare_sides(sides: Sides, task: RetrievalTask, member: Member) -> pa.Table:
    """Sum a task's users by run, part and cut-off."""
    users = read_users(sides, None)
    if users is None:
        return BATCH_ROWS.empty_table()
    batches = join_member_rows(users, member, unpack_blocks(sides.pop(0, [])))
    return add_batches([pa.Table.from_batches(compare_batches(task, batches), BATCH_ROWS)])


def compare_batches(task: RetrievalTask, batches: Batches) -> Batches:
    """Yield rows of `BATCH_ROWS`, sums over batches of users.

    Each row is for one part, run and cut-off.
    """
    scorers = [(run_id, source.scorer()) for run_id, source in task.sources]
    for batch in batches:
        for part in sorted(set(batch.column("part").to_pylist())):
            chosen = pa.array([name == part for name in batch.column("part").to_pylist()])
            rows = compare_users(task, scorers, batch.filter(chosen))
            yield pa.RecordBatch.from_pylist([{"part": part, **row} for row in rows], BATCH_ROWS)


def compare_users(
    task: RetrievalTask, scorers: Sequence[tuple[str, Scorer]], batch: pa.RecordBatch
) -> list[dict[str, Any]]:
    """Sum users in one part, by run and cut-off."""
    if "vector" in batch.schema.names:
        batch = batch.filter(batch.column("vector").is_valid())
    rows: list[dict[str, Any]] = []
    masked = read_item_lists(batch, "masked") if task.masks else ItemLists.empty(batch.num_rows)
    exact: Floats | None = None
    users = user_block(batch, task.sources[0][1])
    for run_id, scorer in scorers:
        assert isinstance(scorer, RetrievedScorer)
        if exact is None:
            exact = score_exactly(scorer, users, masked, task.length)
        rows += [{"run_id": run_id, **row} for row in compare_lists(task, scorer, users, masked, exact)]
    return rows


def score_exactly(scorer: RetrievedScorer, users: UserBlock, masked: ItemLists, length: int) -> Floats:
    """Return each user's best exact scores, (users, length).

    The scores are padded with NaN.
    """
    nothing = ItemLists.empty(masked.users)
    settings = CountingSettings(top_k=length)
    scores = count_ranks(scorer.base, users, nothing, masked, settings=settings).top_scores_uk
    assert scores is not None
    return scores


def compare_lists(
    task: RetrievalTask, scorer: RetrievedScorer, users: UserBlock, masked: ItemLists, exact_uk: Floats
) -> list[dict[str, Any]]:
    """Search for all users, and singly; sum by cut-off."""
    started = time.perf_counter()
    lists = scorer.retrieve(users, masked)
    seconds = time.perf_counter() - started
    single = min(SINGLE_QUERIES, masked.users)
    started = time.perf_counter()
    for u in range(single):
        scorer.retrieve(*_take_user(users, masked, u))
    facts = {
        "searched": masked.users,
        "seconds": seconds,
        "single_queries": single,
        "single_seconds": time.perf_counter() - started,
        "candidates": int(lists.proposed_u.sum()),
        "cut_items": sum(part.reader.cut_items for part in scorer.parts),
        "build_seconds": sum(part.seconds for part in scorer.parts),
        "bytes": sum(part.bytes for part in scorer.parts),
        "items": int(np.count_nonzero(scorer.scored_i)),
    }
    rows = []
    for k in task.cutoffs:
        recall_u = measure_recall(lists.scores_uk, exact_uk, k)
        known: Bools = ~np.isnan(recall_u)
        sums = {"n": int(known.sum()), "recall": int(np.rint(recall_u[known] * UNIT).sum())}
        short = int(np.count_nonzero((lists.items_uk[:, :k] < 0).any(axis=1)))
        rows.append(
            {
                "k": k,
                **sums,
                "squares": int(np.rint(recall_u[known] ** 2 * UNIT).sum()),
                "short_lists": short,
                **facts,
            }
        )
    return rows


def _take_user(users: UserBlock, masked: ItemLists, u: int) -> tuple[UserBlock, ItemLists]:
    start, stop = masked.offsets_u[u], masked.offsets_u[u + 1]
    vectors = None if users.vectors_ud is None else users.vectors_ud[u : u + 1]
    one = UserBlock(users.keys_u[u : u + 1], vectors)
    return one, ItemLists(np.array([0, stop - start]), masked.items_p[start:stop])


# ------------------------------------------------------------------------------- rows


KEY = ("run_id", "part", "k")


def add_batches(batches: Sequence[pa.Table]) -> pa.Table:
    """Add all batches by run, part and cut-off.

    Rows are sorted in this order.
    """
    names = [name for name in BATCH_ROWS.names if name not in KEY]
    how = [(name, "max" if name in ONCE else "sum") for name in names]
    added = pa.concat_tables(batches).group_by(KEY).aggregate(how)
    return added.rename_columns([*KEY, *names]).sort_by([(name, "ascending") for name in KEY])


def summarise_batches(
    batches: Sequence[pa.Table], models: Mapping[str, RetrievedModel]
) -> list[dict[str, Any]]:
    """Make rows of `retrieval_runs` from all tasks' sums."""
    rows = []
    for row in add_batches(batches).to_pylist():
        index = models[row["run_id"]].index
        rows.append(
            {
                **{name: row[name] for name in KEY},
                **_make_means(row),
                **{name: row[name] for name in ONCE},
                "index_kind": index.kind,
                "settings_json": json.dumps(index.model_dump(mode="json"), sort_keys=True),
            }
        )
    return rows


def _make_means(row: Mapping[str, Any]) -> dict[str, Any]:
    n, total, squares = row["n"], row["recall"] / UNIT, row["squares"] / UNIT
    mean = total / n if n else None
    variance = max(squares - total**2 / n, 0.0) / (n - 1) if n > 1 else None
    return {
        "recall": mean,
        "stderr": None if variance is None else (variance / n) ** 0.5,
        "n": n,
        "short_lists": row["short_lists"],
        "candidates": _divide(row["candidates"], row["searched"]),
        "queries_per_second": _divide(row["searched"], row["seconds"]),
        "single_queries_per_second": _divide(row["single_queries"], row["single_seconds"]),
    }


def _divide(a: float, b: float) -> float | None:
    return a / b if b else None
