"""Current numbers of models with several runs on one night.

Each number belongs to one of these runs. A model evaluated again with other metrics has two runs, and each
owns some of the numbers that count (the view `current_metrics`). One run stands for the model and night in
a plan. `gather_rows` moves the rows of all these numbers to it, and `name_owners` puts each number's owner
back into the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.storage.shared_arrays import flatten_lists

WHOLE_RANKING = 0
"""Stands for NULL, the whole ranking, in look-ups by cut-off."""

_NUMBER = ("part", "metric", "definition")


@dataclass(frozen=True, order=True)
class CountedNumber:
    """A number that counts, for a model with several runs.

    Attributes:
        run_id: the run standing for the model and night.
        owner: the run whose number counts.
        part, metric, definition: as in the table `metrics`.
        k: cut-off; WHOLE_RANKING: the whole ranking.
    """

    run_id: str
    owner: str
    part: str
    metric: str
    definition: str
    k: int


def gather_rows(rows: pa.Table, numbers: Sequence[CountedNumber]) -> pa.Table:
    """Gather a model's numbers of one night under one run.

    Rows of runs without shared numbers stay as they are.

    Args:
        rows: rows of `user_metrics`, from any runs.
        numbers: all numbers that count, for each model and night with several runs.
    """
    if not numbers:
        return rows
    shared = pa.array(sorted({run_id for n in numbers for run_id in (n.run_id, n.owner)}))
    owned: dict[tuple[str, ...], list[int]] = {}
    for n in numbers:
        owned.setdefault((n.run_id, n.owner, n.part, n.metric, n.definition), []).append(n.k)
    is_shared = pc.is_in(rows.column("run_id"), value_set=shared)
    shared_rows = rows.filter(is_shared)
    gathered = [_take_cutoffs(shared_rows, *key, ks) for key, ks in owned.items()]
    return pa.concat_tables([rows.filter(pc.invert(is_shared)), *gathered])


def _take_cutoffs(rows: pa.Table, standing: str, *owned: Any) -> pa.Table:
    """Return the owner's rows under another run.

    Only the owned cut-offs stay.
    """
    *key, ks = owned
    for name, value in zip(("run_id", *_NUMBER), key, strict=True):
        rows = rows.filter(pc.equal(rows.column(name), value))
    offsets, k_p = flatten_lists(rows.column("ks").combine_chunks())
    _, value_p = flatten_lists(rows.column("values").combine_chunks())
    # A NULL cut-off, the whole ranking, is NaN among the floats.
    kept_p = np.isin(np.nan_to_num(k_p.astype(np.float64), nan=WHOLE_RANKING), ks)
    bounds = pa.array(np.append(0, np.cumsum(kept_p))[offsets].astype(np.int32))
    columns: dict[str, pa.Array] = {"run_id": pa.repeat(standing, len(rows))}
    for name, flat_p in (("ks", k_p), ("values", value_p)):
        kind = rows.schema.field(name).type
        flat = pa.array(flat_p[kept_p], kind.value_type, from_pandas=True)
        columns[name] = pa.ListArray.from_arrays(bounds, flat, type=kind)
    for name, column in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), column)  # the other rows' type
    return rows.filter(pc.greater(pc.list_value_length(rows.column("ks")), 0))


def name_owners(results: pa.Table, numbers: Sequence[CountedNumber]) -> pa.Table:
    """Rename runs in results to the owners of the numbers.

    `run_id` and `other_run_id` change.

    Args:
        results: with columns run_id, other_run_id, part, metric, definition, k.
        numbers: as in `gather_rows`.
    """
    owners = {(n.run_id, n.part, n.metric, n.definition, n.k): n.owner for n in numbers}
    keys = [row.values() for row in results.select([*_NUMBER, "k"]).to_pylist()] if owners else []
    for name in ("run_id", "other_run_id") if owners else ():
        named = [
            owners.get((run_id, *key, k or WHOLE_RANKING), run_id)
            for run_id, (*key, k) in zip(results.column(name).to_pylist(), keys, strict=True)
        ]
        place = results.column_names.index(name)
        results = results.set_column(place, name, pa.array(named, pa.string()))
    return results
