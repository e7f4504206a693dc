"""Parts with the truth of other users: what a model reaches that knows nothing of a user.

In the part `test_exchanged` about a thousand users of `test` have each other's truth, and candidates and
models as in `test`. Whatever order a user gets, its mean there is that of an order made for somebody else:
what lies above it is said of single users. A number that does not is no verdict, since popularity may be
the best model there is; it is a check, which models that know no users fail by nature. Ranks that know the
truth they are asked for (ties in favour, candidates chosen by it) raise the part's numbers, as a regression
with this part and a `rise` would see. A hash chooses the users and pairs them, so the numbers are the same
in any pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Floats
from recbench_spark.core.definitions import EXCHANGED
from recbench_spark.core.hashing import hash_numbers, place_hashes
from recbench_spark.core.hashing import start as start_hashes
from recbench_spark.storage.blocks import NamedRows
from recbench_spark.storage.packed_blocks import Change
from recbench_spark.storage.shared_arrays import flatten_lists

USERS = 1000
"""Users of a part whose truth is exchanged, about."""

TRUTH = ("item_ids", "items", "relevance")
"""Columns of a user's truth, lists of one length."""


def draw_partners(users: NamedRows, part: str, n_users: int) -> pa.Table:
    """Draw about `USERS` users of a part by hash: their user_key, and the truth of the next one.

    The driver holds these rows. Users without truth have no partner.
    """
    names = ("user_key", "part", *TRUTH)
    share = USERS / max(n_users, 1)
    drawn = users.each(names, partial(_keep_drawn, part=part, share=share))
    rows = pa.concat_tables([table for tables in drawn for table in tables])
    rows = rows.take(np.argsort(_place(rows), kind="stable")).combine_chunks()
    following = rows.take(np.roll(np.arange(len(rows)), -1)).select(TRUTH)
    return following.append_column("user_key", rows.column("user_key"))


def _place(rows: pa.Table) -> Floats:
    keys = rows.column("user_key").to_numpy()
    return place_hashes(hash_numbers(keys, start_hashes(len(keys))))


def _keep_drawn(tables: Iterable[pa.Table], part: str, share: float) -> list[pa.Table]:
    kept = []
    for rows in tables:
        own = rows.filter(pc.equal(rows.column("part"), part))
        has_truth = pc.greater(pc.list_value_length(own.column("items")), 0).to_numpy(zero_copy_only=False)
        kept.append(own.filter(pa.array((_place(own) < share) & has_truth)))
    return kept


def add_exchanged(blocks: pa.Table, select: Change, partners: Mapping[str, pa.Table]) -> pa.Table:
    """Select users from blocks, and add rows of those with partners.

    Items that a user may not be shown leave the partner's truth; a user without any left has no row.

    Args:
        blocks: rows of `user_blocks`.
        select: makes rows of `PART_USERS`.
        partners: part -> what `draw_partners` returns.
    """
    users = select(blocks)
    tables = [users]
    for part, known in partners.items():
        own = users.filter(pc.equal(users.column("part"), part))
        place = pc.index_in(own.column("user_key"), known.column("user_key").combine_chunks())
        own, place = own.filter(pc.is_valid(place)), place.drop_null()
        truth = _drop_masked(known.take(place).combine_chunks(), own.column("masked").combine_chunks())
        changes = {name: truth.column(name) for name in TRUTH}
        changes["part"] = pa.repeat(f"{part}{EXCHANGED}", len(own))
        changes["slices"] = pa.nulls(len(own), own.schema.field("slices").type)
        for name, column in changes.items():
            field = own.schema.field(name)
            own = own.set_column(own.schema.get_field_index(name), field, column.cast(field.type))
        tables.append(own.filter(pc.greater(pc.list_value_length(own.column("items")), 0)))
    return pa.concat_tables(tables)


def _drop_masked(truth: pa.Table, masked: pa.Array) -> pa.Table:
    """Return truth without each user's masked items."""
    offsets, items = flatten_lists(truth.column("items").combine_chunks())
    user_p, (ends, hidden) = np.repeat(np.arange(len(truth)), np.diff(offsets)), flatten_lists(masked)
    hidden_user = np.repeat(np.arange(len(truth)), np.diff(ends))
    kept_p = ~np.isin(user_p << 32 | items.astype(np.int64), hidden_user << 32 | hidden.astype(np.int64))
    ends = np.concatenate([[0], np.cumsum(np.bincount(user_p[kept_p], minlength=len(truth)))])
    lists = {}
    for name in TRUTH:
        values = truth.column(name).combine_chunks().flatten().filter(pa.array(kept_p))
        lists[name] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)
    return pa.table(lists)
