"""Audit a split: passes over labelled rows give its manifest.

They work on any runner.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from recbench_spark.splits import audit
from recbench_spark.splits.audit import COLUMNS, AuditRequest
from recbench_spark.splits.manifests import LogRows, Manifest, Parts, make_manifest, make_request
from recbench_spark.storage.blocks import Engine, Rows

COUNTED = tuple(name for name in COLUMNS if name != "rating")
"""Columns of labelled rows that are counted by user and item."""


def build_manifest(
    rows: Rows, log: LogRows, settings: str, engine: Engine, *, parts: Parts | None = None
) -> Manifest:
    """Count a labelled log, and make its facts.

    Tasks make two passes: by part, and by user and item, where each task shuffles one row for each id in
    its rows (`audit`). If a user's rows are in several pieces, a third pass shuffles the rows by user. A
    task holds `audit.ROWS_PER_PIECE` rows, and in the third pass all rows of its users.

    Args:
        rows: one split's labelled log.
        log: counts of the rows read.
        settings: the split's settings as JSON.
        engine: the runner.
        parts: the result of `count_parts`; None to compute it here.
    """
    parts = count_parts(rows) if parts is None else parts
    request = make_request(parts, settings)
    return make_manifest(_sum_audit(rows, request, engine), request, log, settings, parts)


def count_parts(rows: Rows) -> Parts:
    """Return each part's rows, content hash and range in time.

    One pass is enough, without a shuffle.
    """
    return audit.merge_parts(rows.each(COLUMNS, audit.summarise_parts))


def _sum_audit(rows: Rows, request: AuditRequest, engine: Engine) -> Counter[Any]:
    """Sum `audit.sum_counts` over all users and items."""
    tasks = engine.count_tasks(sum(request.rows.values()))
    counted = rows.deal(COUNTED, partial(audit.count_in_blocks, request=request, tasks=tasks), tasks)
    sums: Counter[Any] = Counter()
    for one in counted.each(partial(audit.sum_pieces, request=request)):
        sums.update(one)
    if sums["parted"]:
        users = rows.deal(COUNTED, partial(audit.deal_users, tasks=tasks), tasks)
        whole: Counter[Any] = Counter()
        for counts in users.each(partial(audit.count_by_user, request=request)):
            whole.update(counts)
        sums.update({name: whole[name] - sums[name] for name in whole})
    return sums
