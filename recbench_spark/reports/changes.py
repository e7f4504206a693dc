"""Collect why numbers moved, from rows of `current_changes`.

Changes are those since the previous night.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from recbench_spark.reports.facts import ChangeFacts, GroupChange

MODELS_PER_PART = 4
GROUPS_PER_KEY = 8
OTHERS = "others"
VISIBLE = 0.00005
"""Smallest change four decimals show."""
OTHER_DIFFERENCES = {
    True: "nothing else differs: log and settings are the same",
    False: "log or settings differ as well; run that night again with this code to tell them apart",
    None: "settings are the same; whether the log is, cannot be known: that code did not identify it by "
    "content; run that night again with this code to tell",
}
"""Sentence on log and settings if the code changed, by `code_alone`."""


def make_changes(changes: pd.DataFrame) -> tuple[ChangeFacts, ...]:
    """Make facts for each model, part and group key.

    The rows have one metric and cut-off. Each part has the models that moved most, each key the groups
    that add most; the others are summed up. A change too small for four decimals is no move: such models
    are left out, and pages leave out such groups.
    """
    facts = []
    for part, rows in changes.groupby("part", sort=True):
        moved = (rows.value - rows.other_value).abs().groupby(rows.model).max()
        moved = moved[moved >= VISIBLE]
        models = moved.sort_values(ascending=False, kind="stable").index[:MODELS_PER_PART]
        for model in models:
            model_rows = rows[rows.model == model]
            definition = model_rows.definition.min()
            chosen = model_rows[model_rows.definition == definition]
            facts += [_make_change(str(part), str(model), str(key), groups.to_dict("records"))
                      for key, groups in chosen.groupby("group_key", sort=False)]  # fmt: skip
    return tuple(facts)


def describe_code_changes(changes: pd.DataFrame) -> tuple[str, ...]:
    """Describe each model whose code changed since its night before.

    Its numbers may not have moved.
    """
    if "code_change" not in changes:
        return ()
    columns = ["model", "other_date", "code_change", "code_alone"]
    rows = changes.loc[changes.code_change.notna(), columns].drop_duplicates()
    rows = rows.sort_values(columns[:3], kind="stable")
    return tuple(_describe_code_change(*row) for row in rows.itertuples(index=False, name=None))


def _describe_code_change(model: str, other_date: object, code: str, alone: Any) -> str:
    rest = OTHER_DIFFERENCES[None if pd.isna(alone) else bool(alone)]
    return f"{model}: the code changed since {str(other_date)[:10]} ({code}); {rest}."


def _make_change(part: str, model: str, key: str, rows: list[dict[Any, Any]]) -> ChangeFacts:
    first = rows[0]
    groups = sorted((_make_group(row) for row in rows), key=lambda g: (-g.size, g.group))
    shown, rest = groups[:GROUPS_PER_KEY], groups[GROUPS_PER_KEY:]
    metric = str(first["metric"]) if pd.isna(first["k"]) else f"{first['metric']}@{int(first['k'])}"
    return ChangeFacts(
        part=part,
        model=model,
        measure=metric,
        other_date=str(first["other_date"])[:10],
        before=float(first["other_value"]),
        after=float(first["value"]),
        key=key,
        groups=(*shown, _sum_groups(rest)) if rest else tuple(shown),
    )


def _make_group(row: dict[Any, Any]) -> GroupChange:
    means = [None if pd.isna(row[name]) else float(row[name]) for name in ("mean_before", "mean_after")]
    return GroupChange(
        str(row["group_value"]),
        (float(row["share_before"]), float(row["share_after"])),
        (means[0], means[1]),
        float(row["mix_change"]),
        float(row["within_change"]),
    )


def _sum_groups(groups: Iterable[GroupChange]) -> GroupChange:
    """Sum the remaining groups up as one, without a mean."""
    rest = list(groups)
    before, after = (math.fsum(group.share[night] for group in rest) for night in (0, 1))
    mix, within = math.fsum(g.mix for g in rest), math.fsum(g.within for g in rest)
    return GroupChange(f"{len(rest)} {OTHERS}", (before, after), (None, None), mix, within)
