"""Evaluation of a system's output on either runner.

Tables are dealt by user, counted, ranked and measured. Spark's tasks evaluate Spark tables, and the results
are lazy frames. All other tables are evaluated in this process, which is then the only task, without a
shuffle and without Java.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recbench_spark.core.arrays import Ints
from recbench_spark.core.checks import Check
from recbench_spark.core.definitions import SAMPLED
from recbench_spark.core.ids import IdOverlap
from recbench_spark.errors import DataError
from recbench_spark.evaluation import task_tables
from recbench_spark.evaluation.ground_truth import ArrowCatalogue, check_dropped_rows, empty_train_checks
from recbench_spark.evaluation.input_tables import (
    CheckedTables,
    RunPlace,
    deal_tables,
    open_place,
    read_tables,
)
from recbench_spark.evaluation.options import EvaluationRequest
from recbench_spark.evaluation.outputs import measure_result, open_outputs
from recbench_spark.evaluation.request_checks import (
    EvaluationPlan,
    bundle_checks,
    check_request,
    choose_label_columns,
    drawn_candidates_checks,
    gain_checks,
)
from recbench_spark.evaluation.task_tables import (
    CANDIDATES,
    FEATURES,
    ITEM_VECTORS,
    LISTED,
    TRAIN,
    TRUTH,
    CandidateDraws,
    TaskCatalogue,
)
from recbench_spark.metrics.beyond_accuracy import BY_LABELS, Facts
from recbench_spark.metrics.item_labels import ItemGroups, open_item_groups
from recbench_spark.metrics.kernels.item_groups import HEAD_SHARE
from recbench_spark.metrics.listed import ListedCatalogue
from recbench_spark.metrics.ranking_counts import (
    finish_row_checks,
    gap_checks,
    row_checks,
    truth_in_train_check,
)
from recbench_spark.metrics.result import PART, Result
from recbench_spark.ranking.kernels.scorers import NUMPY_TILES
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.ranking.request import choose_ranked_schema
from recbench_spark.ranking.sources import DotSource
from recbench_spark.schemas import IDS, QUERY_ID
from recbench_spark.sources.dealt_ids import (
    DealtIds,
    add_overlaps,
    apply_both,
    count_overlap,
    deal_table,
    mark_side,
    match_numbers,
)
from recbench_spark.sources.input_rules import name_known_items, report_common_ids, report_unknown_truth
from recbench_spark.splits.popularity import class_bounds, count_items, measure_head
from recbench_spark.storage.blocks import ChangedRows, TaskRows, return_rows
from recbench_spark.storage.scratch import share_results
from recbench_spark.storage.shared_arrays import SharedRows, remove_arrays

CATALOGUE = ("listed", "train", "truth")
"""Columns of `SIDES` whose items make up the catalogue."""

ITEM_OVERLAPS = {
    "train": (("train",), ("truth",)),
    "listed": (("listed",), ("train", "truth")),
    "vectors": (("truth",), ("listed",)),
    "learned": (("truth",), ("train", "listed")),
    "candidates": (("candidates",), CATALOGUE),
    "features": (("features",), CATALOGUE),
}
"""Item overlaps by name: sides in `SIDES` on the left, and on the right."""

USER_OVERLAPS = {name: ((name,), ("truth",)) for name in ("train", "listed", "candidates")}
"""User overlaps with the truth."""


def evaluate(  # noqa: PLR0913
    truth: Any,
    *,
    lists: Any = None,
    scores: Any = None,
    embeddings: tuple[Any, Any] | None = None,
    train: Any = None,
    candidates: Any = None,
    features: Any = None,
    item_groups: Any = None,
    user_groups: Any = None,
    scratch: str | None = None,
    **options: Any,
) -> Result:
    """Evaluate lists, scores, or embeddings against a ground truth.

    See `evaluate.evaluate`. In this process it needs a few times the tables' memory.
    """
    plan = check_request(
        EvaluationRequest(**options), lists=lists, scores=scores, embeddings=embeddings,
        train=train, candidates=candidates, features=features, item_groups=item_groups,
    )  # fmt: skip
    given = {"truth": truth, "train": train, "candidates": candidates, "features": features}
    given |= {"user_groups": user_groups}
    with open_place(truth, scratch) as place:
        return replace(evaluate_at(place, plan, given), limits=plan.name_limits(train, candidates))


def evaluate_at(place: RunPlace, plan: EvaluationPlan, given: Mapping[str, Any]) -> Result:
    """Evaluate a plan's system on tables.

    given: truth, train, candidates, features, or None for each.
    """
    with ExitStack() as kept:
        work = start_evaluation(place, plan, given, kept)
        checks = work.check_all()
        catalogue = work.describe_catalogue() if plan.metric_plan.wants_lists else None
        schema = choose_ranked_schema(plan.metric_plan.request())
        return measure_result(open_outputs(place.engine, work.rank(), schema), plan, catalogue, checks)


def start_evaluation(
    place: RunPlace, plan: EvaluationPlan, given: Mapping[str, Any], kept: ExitStack
) -> DealtEvaluation:
    """Read and deal tables; keep them until the stack ends."""
    tables = read_tables(place, plan, given)
    return DealtEvaluation(place, plan, tables, kept.enter_context(deal_tables(place, tables).keep()), kept)


# ---------------------------------------------------------------------------------- the evaluation


@dataclass(frozen=True)
class DealtEvaluation:
    """An evaluation with dealt tables.

    Attributes:
        place: the runner and its folder.
        plan: the request.
        inputs: the tables.
        dealt: tables of each task's users.
        kept: values to keep until the results are there.
    """

    place: RunPlace
    plan: EvaluationPlan
    inputs: CheckedTables
    dealt: TaskRows
    kept: ExitStack

    def _apply(self, change: Any, names: Sequence[str] = ()) -> TaskRows:
        return self.dealt.then(partial(apply_both, self.dealt.change, change), tuple(names))

    @property
    def tasks(self) -> int:
        """Number of tasks after a shuffle."""
        return 1 if self.place.is_here else self.place.engine.count_tasks(0)

    @cached_property
    def sums(self) -> Mapping[str, int]:
        """Rows and pairs, summed over all tasks."""
        totals: Counter[str] = Counter()
        for sums in self._apply(task_tables.count_rows).each(dict):
            totals.update(sums)
        return totals

    @cached_property
    def users(self) -> TaskRows:
        """Each user once, with the tables that have it."""
        return self._apply(task_tables.count_users, ("id", *task_tables.SIDES[:4]))

    @cached_property
    def items(self) -> TaskRows:
        """Each item once, with its rows in each table.

        Shuffles one row per task and item.
        """
        names = ("id", *task_tables.SIDES)
        counted = self._apply(task_tables.count_items, names)
        if self.place.is_here:
            return self.place.hold(counted)
        dealt = counted.deal(partial(deal_table, name="id", tasks=self.tasks), self.tasks)
        return self.kept.enter_context(dealt.then(_add_counts, names).keep())

    @cached_property
    def item_facts(self) -> ItemFacts:
        """Counts over all items."""
        texts = tuple(side for side, kind in self.inputs.item_kinds.items() if kind == "text")
        return ItemFacts.add_up(self.items.each(partial(_count_items, texts=texts)))

    @cached_property
    def user_overlaps(self) -> Mapping[str, IdOverlap]:
        """User overlaps by name."""
        return _add_overlaps(self.users.each(partial(_count_overlaps, sides=USER_OVERLAPS)))

    @cached_property
    def catalogue(self) -> TaskCatalogue:
        """The catalogue as tasks see it."""
        has_train = self.inputs.has(TRAIN)
        bounds = self.item_facts.find_bounds() if has_train else None
        numeric = self.inputs.numeric
        if numeric is None:
            numeric = self.item_facts.are_numbers
        if self.place.is_here:
            (table,) = self._list_catalogue().each(return_rows)
            ids = task_tables.order_ids(table.column("item_id").combine_chunks(), numeric)
            at = pc.index_in(ids, value_set=table.column("item_id").combine_chunks())
            n_train_i = table.column("n_train").take(at).to_numpy()
            return TaskCatalogue(ArrowCatalogue(ids, n_train_i), bounds)
        shared = share_results(self.place.folder, self._list_catalogue())
        return TaskCatalogue(KnownItems(shared, self.item_facts.items, numeric), bounds)

    def _list_catalogue(self) -> TaskRows:
        change = partial(apply_both, self.items.change, _list_catalogue)
        return self.items.then(change, ("item_id", "n_train"))

    # ------------------------------------------------------------------------------------ checks

    def check_all(self) -> list[Check]:
        """Check all tables against each other."""
        checks = [*self.check_truth(), *self.check_overlaps(), *gain_checks(self.plan, self.inputs.grades)]
        checks += [*bundle_checks(self.plan), *self.check_features(), *self.check_rows()]
        return [*checks, *(self.item_groups.check() if self.item_groups else [])]

    def check_truth(self) -> list[Check]:
        """Check truth and training for duplicates and common pairs."""
        sums, definition = self.sums, self.plan.definition
        checks = [check_dropped_rows(PART, sums["truth dropped"], definition)]
        if not self.inputs.has(TRAIN):
            return checks
        checks.append(check_dropped_rows("train", sums["train dropped"], definition))
        for name in IDS:
            checks += self._report(name, "train", ("train", "truth"), (TRAIN, TRUTH), must=False)
        checks += empty_train_checks(self.inputs.tables[TRAIN].n)
        known = sums["truth trained"], sums["truth pairs"]
        return [*checks, truth_in_train_check(*known, masked=self.plan.masks_truth)]

    def check_overlaps(self) -> list[Check]:
        """Check that the system's ids are known.

        Ids must occur in the truth or, for items, in training or truth. Without training rows, items need
        not occur in the truth: a system may miss all of it and score 0.
        """
        kind, trained = self.plan.kind, self.inputs.has(TRAIN)
        owner = ITEM_VECTORS if self.inputs.has(ITEM_VECTORS) else LISTED
        checks = self._report("user_id", "listed", (kind, "truth"), (LISTED, TRUTH))
        log = "train and truth" if trained else "truth"
        checks += self._report("item_id", "listed", (kind, log), (owner, TRUTH), must=trained)
        if trained or kind == "embeddings":
            known, which = name_known_items(kind), "vectors" if kind == "embeddings" else "learned"
            sides = self._sides("item_id", which, ("truth", known), (TRUTH, owner))
            checks += report_unknown_truth(self.item_facts.overlaps[which], sides, known)
        if self.inputs.has(CANDIDATES):
            for name, right in zip(IDS, ("truth", "catalogue"), strict=True):
                self._report(name, "candidates", ("candidates", right), (CANDIDATES, TRUTH))
        return checks

    def check_features(self) -> list[Check]:
        """Check that features belong to catalogue items."""
        if self.inputs.has(FEATURES):
            self._report("item_id", "features", ("features", "catalogue"), (FEATURES, TRUTH))
        return []

    def check_rows(self) -> list[Check]:
        """Check rows of lists and scores, or record drawn candidates."""
        plan, sums = self.plan, self.sums
        if plan.kind == "embeddings":
            return self._check_draws() if self.draws is not None else []
        users, trained = self.user_overlaps["listed"], self.inputs.has(TRAIN)
        # Without training items the catalogue is unknown, so no item can be called unknown.
        unknown = self.item_facts.lost if trained else 0
        lost = sums["lost queries"] if QUERY_ID in self.inputs.tables[TRUTH].kinds else None
        if lost and lost == sums["queries"]:
            hint = f"both need {QUERY_ID} in one spelling"
            raise DataError(f"{plan.kind} and truth have no user's {QUERY_ID} in common", hint)
        checks = row_checks(sums["listed"], sums["twice"], unknown, users.n[0] - users.common, lost)
        checks += gap_checks(sums.get("gaps"), plan.definition)
        return finish_row_checks(
            checks, plan.definition, sums["trained"] if plan.lists and trained else None
        )

    def _check_draws(self) -> list[Check]:
        draws = self.draws
        assert draws is not None
        count = partial(task_tables.count_drawn, catalogue=self.catalogue, draws=draws)
        counts = [one for one in self._apply(count).each(return_rows) if one is not None]
        users, low, total, high = zip(*counts, strict=True) if counts else ((1,), (0,), (0,), (0,))
        drawn = min(low), sum(total) / sum(users), max(high)
        return drawn_candidates_checks(draws.mode, draws.settings, draws.n_items, drawn)

    def _report(
        self, name: str, which: str, what: tuple[str, str], owners: tuple[int, int], *, must: bool = True
    ) -> list[Check]:
        overlaps = self.user_overlaps if name == "user_id" else self.item_facts.overlaps
        return report_common_ids(
            overlaps[which], self._sides(name, which, what, owners), name, what, must=must
        )

    def _sides(self, name: str, which: str, what: tuple[str, str], owners: tuple[int, int]) -> DealtIds:
        rows, pairs = (self.users, USER_OVERLAPS) if name == "user_id" else (self.items, ITEM_OVERLAPS)
        kinds = [self.inputs.tables[owner].kinds[name][1] for owner in owners]
        return DealtIds(rows, pairs[which], name, (*what, kinds[0], kinds[1]), self.tasks)

    # ----------------------------------------------------------------------------------- ranking

    @cached_property
    def draws(self) -> CandidateDraws | None:
        """Mode and settings of drawn candidates; None: none are drawn."""
        if self.plan.candidates not in SAMPLED:
            return None
        mode, n_items = self.plan.candidates, self.item_facts.items
        running = partial(_sum_weights, self.catalogue.lookup, mode)
        return CandidateDraws(mode, self.plan.draw, n_items, running)

    def rank(self) -> TaskRows:
        """Rank the truth's users: rows of `RANKED_USERS`."""
        request = self.plan.metric_plan.request()
        if self.plan.kind == "embeddings":
            source = replace(self._share_vectors(ITEM_VECTORS), kind=self.plan.similarity)
            work = partial(
                task_tables.rank_vectors, catalogue=self.catalogue, request=request, source=source,
                device=self._choose_device(), draws=self.draws,
            )  # fmt: skip
        else:
            mask = self.plan.kind == "scores" and request.definition.candidates == "unseen"
            work = partial(task_tables.rank_lists, catalogue=self.catalogue, request=request, mask=mask)
        return self._apply(work, choose_ranked_schema(request).names)

    def _choose_device(self) -> Any:
        if self.place.is_here:
            return partial(str, NUMPY_TILES)
        from recbench_spark.evaluation.task_devices import choose_device  # noqa: PLC0415

        return choose_device(self.place.engine)

    def _share_vectors(self, number: int) -> DotSource:
        """Share item vectors with tasks, without items outside the catalogue."""
        table, names = self.inputs.tables[number], ("item_id", "vector", "bias")
        lookup: Any = self.catalogue.lookup
        if table.table is None:
            rows = ChangedRows(table.rows, names, return_rows, names)
            tasks = self.place.engine.count_tasks(table.n)
            dealt = rows.deal(names, partial(deal_table, name="item_id", tasks=tasks), tasks)
            shared = share_results(self.place.folder, dealt.then(return_rows, names))
        else:
            file = Path(self.place.folder) / f"{uuid.uuid4().hex}.parquet"
            pq.write_table(table.table.select(names), file)
            shared = SharedRows(file.stem, (str(file),))
        return DotSource(shared, self.item_facts.items, table.dims, catalogue=lookup)

    def describe_catalogue(self) -> ListedCatalogue:
        """Return the catalogue for list metrics."""
        features = self._share_vectors(FEATURES) if self.inputs.has(FEATURES) else None
        head = measure_head(self.item_facts.histogram, HEAD_SHARE)
        facts = Facts(self.sums["train users"], features, *head)
        return ListedCatalogue(self.catalogue.lookup, self.item_facts.items, facts, self.item_groups)

    @cached_property
    def item_groups(self) -> ItemGroups | None:
        """Labels of the catalogue's items; None: no metric needs them."""
        table = self.plan.item_groups
        if table is None or not {*self.plan.metric_plan.metrics} & {*BY_LABELS}:
            return None
        columns = choose_label_columns(table)
        labels = open_item_groups(self.place.engine, self.place.folder, table, columns)
        if self.place.is_here:
            self.kept.callback(remove_arrays, labels.rows.key)
        return labels.join(self.catalogue.lookup, self.item_facts.items)


# ------------------------------------------------------------------------------------ counts of items


@dataclass(frozen=True)
class ItemFacts:
    """Item counts over all tasks.

    Attributes:
        items: items in the catalogue.
        are_numbers: whether all ids in text files are whole numbers.
        lost: list rows whose item is neither in training nor in the truth.
        overlaps: by the names in ITEM_OVERLAPS.
        histogram: how many items have each number of training rows above 0.
    """

    items: int
    are_numbers: bool
    lost: int
    overlaps: Mapping[str, IdOverlap]
    histogram: Counter[int]

    @classmethod
    def add_up(cls, tasks: Sequence[Any]) -> ItemFacts:
        """Add up the tasks' results of `_count_items`."""
        items, numbers, lost, counts, histograms = zip(*tasks, strict=True)
        total: Counter[int] = Counter()
        for histogram in histograms:
            total.update(histogram)
        return cls(sum(items), all(numbers), sum(lost), _add_overlaps(counts), total)

    def find_bounds(self) -> tuple[int, int]:
        """Return the training counts where torso and head begin."""
        counts = sorted(self.histogram)
        return class_bounds(counts, [self.histogram[count] for count in counts])


def _add_overlaps(tasks: Iterable[Mapping[str, Any]]) -> dict[str, IdOverlap]:
    every = list(tasks)
    return {name: add_overlaps([one[name] for one in every]) for name in every[0]}


def _count_overlaps(rows: pa.Table, sides: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    number = match_numbers(rows)
    return {name: count_overlap(rows, pair, number) for name, pair in sides.items()}


def _count_items(rows: pa.Table, texts: Sequence[str]) -> tuple[Any, ...]:
    known = _list_catalogue(rows)
    unknown = pc.invert(mark_side(rows, ("train", "truth")))
    lost = pc.sum(rows.column("listed").filter(unknown), min_count=0).as_py()
    from_texts = rows.filter(mark_side(rows, texts)) if texts else rows.slice(0, 0)
    numbers = task_tables.are_numbers(from_texts.column("id"))
    return len(known), numbers, lost, _count_overlaps(rows, ITEM_OVERLAPS), count_items([known])


def _list_catalogue(rows: pa.Table) -> pa.Table:
    known = rows.filter(mark_side(rows, CATALOGUE))
    return pa.table({"item_id": known.column("id"), "n_train": known.column("train")})


def _add_counts(rows: pa.Table) -> pa.Table:
    sums = [(side, "sum") for side in task_tables.SIDES]
    return rows.group_by("id").aggregate(sums).rename_columns(["id", *task_tables.SIDES])


def _sum_weights(lookup: Any, mode: str) -> Ints:
    counts = lookup.counts()
    weights = np.ones(len(counts), np.int64) if mode == "uniform" else counts
    return np.concatenate([[0], np.cumsum(weights)])
