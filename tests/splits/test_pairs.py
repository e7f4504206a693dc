"""Pairs in several rows: one row in each part, and what `repeats` says; beside pandas."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recbench_spark.config import Split
from recbench_spark.errors import ProtocolError
from recbench_spark.splits.audit import PartSummary
from recbench_spark.splits.labels import SplitRule, label_rows, read_dropped
from recbench_spark.splits.manifests import LogRows, refuse_empty_parts
from recbench_spark.splits.pairs import read_fold_part
from recbench_spark.splits.rules import make_rule

LOG = pa.schema(
    {"user_id": pa.string(), "item_id": pa.string(), "rating": pa.float64(), "event_time": pa.int64()}
)
DAY = 86_400_000_000


def to_arrow(log: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(log[LOG.names], LOG, preserve_index=False)


def plan_rule(split: Split, cut: tuple[int, int, int] | None = None, keep: str = "keep_last") -> SplitRule:
    return make_rule(split, keep, cut)  # type: ignore[arg-type]


def label(log: pd.DataFrame, rule: SplitRule, pieces: int = 1) -> pd.DataFrame:
    """Label the log in pieces of whole owners, as tasks do."""
    piece = pd.util.hash_pandas_object(log[rule.owner], index=False) % pieces
    frames = [label_rows(to_arrow(log[piece == n]), rule).to_pandas() for n in range(pieces)]
    made = pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
    return made.astype(dict.fromkeys(("user_id", "item_id", "part"), str))


@cache
def shop(seed: int = 3, users: int = 60, rows: int = 4000) -> pd.DataFrame:
    """A shop: a view is 1, a cart 2, a purchase 3; many come again, some in the same second."""
    draw = np.random.default_rng(seed)
    items = (draw.pareto(1.1, rows) * 4).astype(int) % 90
    days = np.sort(draw.integers(0, 30, rows))
    log = pd.DataFrame({
        "user_id": [f"u{n}" for n in draw.integers(0, users, rows)],
        "item_id": [f"p{n}" for n in items],
        "rating": draw.choice([1.0, 2.0, 3.0], rows, p=[0.7, 0.2, 0.1]),
        "event_time": days * DAY + draw.integers(0, 40, rows) * 1_000_000,
    })  # fmt: skip
    # u0 buys p0 on the first day and on the last one.
    bought = pd.DataFrame({
        "user_id": "u0", "item_id": "p0", "rating": 3.0, "event_time": [5, 29 * DAY + 50_000_000]
    })  # fmt: skip
    return pd.concat([log, bought]).sample(frac=1, random_state=seed, ignore_index=True)


# ------------------------------------------------------------------------------------ pandas


def order_in_pandas(log: pd.DataFrame, split: Split, owner: str) -> pd.Series:
    """Return the part of each row of each owner, in order of time."""
    tie = "item_id" if owner == "user_id" else "user_id"
    rows = log.sort_values([owner, "event_time", tie], kind="stable")
    n = rows.groupby(owner)[tie].transform("size")
    last = rows.groupby(owner).cumcount(ascending=False)
    if split.holdout == "n_given":
        test, valid = (n - split.n).clip(lower=0), 0 * n
    elif split.holdout == "ratio":
        sizes = [np.floor(n * share + 1e-9).clip(lower=1) if share else 0 * n for share in split.ratio]
        test, valid = np.minimum(sizes[2], n - 1), sizes[1]
        valid = np.minimum(valid, n - 1 - test)
    else:
        amount = 1 if split.holdout == "leave_one_out" else split.n
        test = np.minimum(amount, n - 1)
        valid = np.minimum(amount * split.valid, n - 1 - test)
    parts = np.where(last < test, "test", np.where(last < test + valid, "valid", "train"))
    return pd.Series(parts, rows.index).reindex(log.index)


def cut_in_pandas(log: pd.DataFrame, cut: tuple[int, int, int]) -> pd.Series:
    names = np.array(["train", "valid", "test", "later"])
    return pd.Series(names[np.searchsorted(cut, log.event_time, side="right")], log.index)


def settle_in_pandas(log: pd.DataFrame, repeats: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """Keep one row of a pair and part, then settle what training knows: rows, and counts by reason."""
    pair = ["user_id", "item_id"]
    kept = log.sort_values("event_time", kind="stable").drop_duplicates([*pair, "part"], keep="last")
    pairs = pd.MultiIndex.from_frame(kept[pair])
    in_train = pairs.isin(pairs[kept.part.isin(["train", "given"])])
    in_valid = pairs.isin(pairs[kept.part == "valid"]) & (kept.part == "test")
    held = kept.part.isin(["valid", "test"])
    gone = {"drop": held & (in_train | in_valid), "keep": held & False, "only": held & ~in_train}[repeats]
    reason = "new_pairs_dropped" if repeats == "only" else "repeats_dropped"
    counts = {"duplicates_dropped": len(log) - len(kept), reason: int(gone.sum())}
    return kept[~gone], {name: n for name, n in counts.items() if n}


def as_set(rows: pd.DataFrame) -> set[tuple[str, str, str, int]]:
    return set(rows[["user_id", "item_id", "part", "event_time"]].itertuples(index=False, name=None))


def count_all(log: pd.DataFrame, rule: SplitRule) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for (_, reason), n in read_dropped(label_rows(to_arrow(log), rule)).items():
        counts[reason] += n
    return {name: n for name, n in counts.items() if name != "unordered_pairs"}


CUT = (20 * DAY, 25 * DAY, 29 * DAY)
TEMPORAL = [
    (Split(holdout="period", length="4d"), CUT),
    (Split(order="temporal", group="global", ratio=(0.7, 0.1, 0.2)), (*CUT[:2], 30 * DAY)),
    (Split(protocol="TO_RS", ratio=(0.7, 0.1, 0.2)), None),
    (Split(protocol="TO_LS", valid=True), None),
    (Split(order="temporal", holdout="last_n", n=4, valid=True), None),
    (Split(order="temporal", holdout="n_given", n=9), None),
]


@cache
def label_in_pandas(split: Split, cut: tuple[int, int, int] | None) -> pd.Series:
    """Return the part of each row of the shop."""
    return cut_in_pandas(shop(), cut) if cut else order_in_pandas(shop(), split, "user_id")


@pytest.mark.parametrize("pieces", [1, 3, 17])
@pytest.mark.parametrize("repeats", ["drop", "keep", "only"])
@pytest.mark.parametrize(("split", "cut"), TEMPORAL, ids=[split.describe() for split, _ in TEMPORAL])
def test_a_shop_is_split_as_pandas_does(
    split: Split,
    cut: tuple[int, int, int] | None,
    repeats: Literal["drop", "keep", "only"],
    pieces: int,
) -> None:
    log, rule = shop(), plan_rule(split.model_copy(update={"repeats": repeats}), cut)
    assert as_set(label(log, rule, pieces)) == settle_shop(split, cut, repeats)


@cache
def settle_shop(
    split: Split, cut: tuple[int, int, int] | None, repeats: Literal["drop", "keep", "only"]
) -> set[tuple[str, str, str, int]]:
    """Return the shop's rows that stay, after a check of their numbers."""
    log, part = shop(), label_in_pandas(split, cut)
    wanted, counts = settle_in_pandas(log.assign(part=part), repeats)
    rule = plan_rule(split.model_copy(update={"repeats": repeats}), cut)
    assert count_all(log, rule) == counts and len(counts) == 1 + (repeats != "keep")
    # Nothing that is held out decides what trains.
    held = part.isin(["test", "valid", "later"])
    alone = log[~held].sort_values("event_time").drop_duplicates(["user_id", "item_id"], keep="last")
    assert len(wanted[wanted.part == "train"]) == len(alone)
    return as_set(wanted)


@pytest.mark.parametrize("pieces", [1, 3, 17])
@pytest.mark.parametrize("of", ["users", "items"])
def test_held_out_users_and_items_of_a_shop_are_those_of_pandas(of: str, pieces: int) -> None:
    """The rows that an owner is tested on, whoever is drawn: as without `held_out`, with train as given."""
    log, owner = shop(), f"{of[:-1]}_id"
    split = Split(protocol="TO_RS", held_out={"of": of, "test": 0.3, "valid": 0.2})
    made = label(log, plan_rule(split), pieces)
    kind = made.groupby(owner).part.agg(lambda parts: "".join(sorted(set(parts) - {"given"})))
    assert set(kind) - {""} == {"test", "valid", "train"}
    kinds = log[owner].map(kind.replace("", "test")).rename("kind")
    part = order_in_pandas(log, split, owner)
    part = kinds.where((part == "test") | (kinds == "train"), "given")
    wanted, _ = settle_in_pandas(log.assign(part=part), "drop")
    assert as_set(made) == as_set(wanted)


@cache
def label_last_rows(split: Split) -> set[tuple[str, str, str, int]]:
    """Return the shop's labels where each pair has its last row alone; the rest is counted."""
    log = shop()
    last = log.sort_values("event_time", kind="stable").drop_duplicates(["user_id", "item_id"], keep="last")
    assert count_all(log, plan_rule(split)) == {"duplicates_dropped": len(log) - len(last)}
    return as_set(label(last, replace(plan_rule(split), duplicates=None)))


RANDOM = [
    Split(protocol="RO_RS", ratio=(0.7, 0.1, 0.2)),
    Split(protocol="RO_LS", valid=True),
    Split(holdout="last_n", n=3),
    Split(holdout="n_given", n=5),
    Split(group="global", ratio=(0.7, 0.1, 0.2)),
    Split(holdout="folds", folds=4, valid=True),
    Split(holdout="folds", group="user", folds=4, fold=2),
    Split(protocol="RO_RS", held_out={"test": 0.4}),
]


@pytest.mark.parametrize("pieces", [1, 3, 17])
@pytest.mark.parametrize("split", RANDOM, ids=lambda one: one.describe())
def test_in_random_order_a_pair_is_in_one_part_as_if_it_had_one_row(split: Split, pieces: int) -> None:
    made = label(shop(), plan_rule(split), pieces)
    assert as_set(made) == label_last_rows(split)
    assert not made.duplicated(["user_id", "item_id"]).any()
    if split.protocol == "RO_RS" and not split.held_out:
        sizes = made.groupby("user_id").part.value_counts().unstack(fill_value=0)
        n = sizes.sum(axis=1)
        assert (sizes.test == np.minimum(np.floor(n * 0.2 + 1e-9).clip(lower=1), n - 1)).all()


# ------------------------------------------------------------------------------------ by hand


def rows(*events: tuple[str, str, float, int | None]) -> pd.DataFrame:
    log = pd.DataFrame(list(events), columns=LOG.names)
    return log.astype({"event_time": "Int64"})


def list_parts(made: pd.DataFrame) -> list[tuple[str, str, float]]:
    return sorted(made[["part", "item_id", "rating"]].itertuples(index=False, name=None))


def test_who_buys_again_after_the_cut_keeps_the_earlier_row_in_training() -> None:
    """Before, the row at 9 replaced the one at 1, which trains, and (u, a) was tested as new."""
    log = rows(
        ("u", "a", 3.0, 1), ("u", "b", 1.0, 2), ("u", "a", 4.0, 8), ("u", "a", 5.0, 9), ("u", "c", 1.0, 9)
    )
    cut, split = (8, 8, 20), Split(holdout="period", length="4d")
    trains = [("train", "a", 3.0), ("train", "b", 1.0)]
    wanted = {
        "drop": [("test", "c", 1.0), *trains],
        "keep": [("test", "a", 5.0), ("test", "c", 1.0), *trains],
        "only": [("test", "a", 5.0), *trains],
    }
    for repeats, expected in wanted.items():
        rule = plan_rule(split.model_copy(update={"repeats": repeats}), cut)
        assert list_parts(label(log, rule)) == expected
    first = plan_rule(split.model_copy(update={"repeats": "keep"}), cut, "keep_first")
    assert ("test", "a", 4.0) in list_parts(label(log, first))
    assert read_dropped(label_rows(to_arrow(log), plan_rule(split, cut))) == {
        ("test", "duplicates_dropped"): 1, ("test", "repeats_dropped"): 1
    }  # fmt: skip


def test_a_validation_row_is_known_at_the_test_and_none_to_training() -> None:
    log = rows(
        ("u", "a", 1.0, 1), ("u", "b", 1.0, 5), ("u", "b", 1.0, 9), ("u", "a", 1.0, 5), ("u", "c", 1.0, 9)
    )
    split, cut = Split(holdout="period", length="4d"), (4, 8, 20)
    assert list_parts(label(log, plan_rule(split, cut))) == [
        ("test", "c", 1.0), ("train", "a", 1.0), ("valid", "b", 1.0)
    ]  # fmt: skip
    only = plan_rule(split.model_copy(update={"repeats": "only"}), cut)
    assert list_parts(label(log, only)) == [("train", "a", 1.0), ("valid", "a", 1.0)]


def test_rows_after_the_period_and_given_parts() -> None:
    """A pair that comes again later changes nothing; a log's own parts follow the same policy."""
    log = rows(("u", "a", 1.0, 1), ("u", "b", 1.0, 9), ("u", "b", 2.0, 30), ("u", "a", 2.0, 30))
    made = label(log, plan_rule(Split(holdout="period", length="4d"), (8, 8, 20)))
    assert list_parts(made) == [
        ("later", "a", 2.0),
        ("later", "b", 2.0),
        ("test", "b", 1.0),
        ("train", "a", 1.0),
    ]
    given_log = to_arrow(log).append_column("part", pa.array(["train", "train", "test", "probe"]))
    rule = plan_rule(Split(protocol="given"))
    kept = label_rows(given_log, rule).to_pandas()
    assert set(kept.part) == {"train"} and len(kept) == 2
    assert len(label_rows(given_log, replace(rule, repeats="keep"))) == 4


def test_work_on_all_folds_names_what_a_row_does_in_each() -> None:
    """Pair a is in all folds; where fold 2 is held out, the row of fold 1 trains."""
    log = to_arrow(rows(*(("u", "a", float(n), n) for n in (1, 2, 3)), ("u", "b", 1.0, 4)))
    log = log.append_column("part", pa.array(["0", "1", "2", "2"]))
    wanted = {
        "drop": [("2", "b", 1.0), (":!2", "a", 3.0), (":2", "a", 2.0)],
        "keep": [("0:", "a", 1.0), ("1:2", "a", 2.0), ("2", "a", 3.0), ("2", "b", 1.0)],
        "only": [("0:", "a", 1.0), ("1:2", "a", 2.0), ("2", "a", 3.0), (":!2", "b", 1.0)],
    }
    for repeats, expected in wanted.items():
        split = Split(holdout="consecutive", folds=3, repeats=repeats)
        rule = replace(plan_rule(split), every_fold=True)
        assert list_parts(label_rows(log, rule).to_pandas()) == expected
        left_out = {("0", "duplicates_dropped"): 1} if repeats == "drop" else {}
        assert read_dropped(label_rows(log, rule)) == left_out


@pytest.mark.parametrize("keep", ["keep_last", "keep_first"])
@pytest.mark.parametrize("repeats", ["drop", "keep", "only"])
def test_each_of_all_folds_has_the_rows_that_it_has_alone(repeats: str, keep: str) -> None:
    log, folds = shop(rows=900), 4
    log = log.assign(event_time=np.random.default_rng(1).permutation(len(log)))
    fold_r = np.arange(len(log)) * folds // len(log)
    split = Split(holdout="consecutive", folds=folds, repeats=repeats)  # type: ignore[arg-type]
    whole = label_rows(
        to_arrow(log).append_column("part", pa.array(fold_r.astype(str))),
        replace(plan_rule(split, keep=keep), every_fold=True),
    ).to_pandas()
    whole = whole.astype({"part": str})
    for fold in range(folds):
        names = np.where(fold_r == fold, "test", "train")
        alone = label_rows(
            to_arrow(log).append_column("part", pa.array(names)), plan_rule(split, keep=keep)
        )
        roles = {part: read_fold_part(part, fold) for part in whole.part.unique()}
        made = [
            (row.user_id, row.item_id, name, row.event_time)
            for row in whole.itertuples()
            for name, plays in zip(("train", "test"), roles[row.part], strict=True)
            if plays
        ]
        assert len(made) == len(set(made)) == len(alone)
        assert set(made) == as_set(alone.to_pandas().astype({"part": str}))


@pytest.mark.parametrize(("repeats", "what"), [("drop", "knows"), ("only", "does not know")])
def test_a_test_part_that_the_policy_empties_is_refused_by_its_name(repeats: Any, what: str) -> None:
    split = Split(protocol="TO_LS", repeats=repeats)
    reason = {"drop": "repeats_dropped", "only": "new_pairs_dropped"}[repeats]
    log = LogRows(9, dropped=Counter({("test", reason): 3}))
    with pytest.raises(ProtocolError, match=f"all 3 are of pairs that training {what}"):
        refuse_empty_parts({"train": PartSummary(6, "0", 1, 2)}, split, log)
    parts = {"train": PartSummary(6, "0", 1, 2), "test": PartSummary(1, "0", 3, 3)}
    refuse_empty_parts(parts, split, log)


def test_the_page_shows_the_split_that_the_code_makes() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/splits.md").read_text()
    table = page.split("user  item  time  label  left out\n")[1].split("```")[0]
    shown = [line.split() for line in table.splitlines()]
    log = rows(*((user, item, 1.0, int(time)) for user, item, time, *_ in shown))
    rule = replace(plan_rule(Split(protocol="TO_RS", ratio=(0.5, 0.2, 0.3))), numeric=True)
    stays = {(user, item, part, int(time)) for user, item, time, part, why in shown if why == "-"}
    assert as_set(label(log, rule)) == stays and len(stays) == 7
    reasons = {"duplicate": "duplicates_dropped", "repeat": "repeats_dropped"}
    left_out = Counter((part, reasons[why]) for *_, part, why in shown if why in reasons)
    assert read_dropped(label_rows(to_arrow(log), rule)) == left_out


# ------------------------------------------------------------------------------------ equal times


def test_equal_or_missing_times_keep_the_row_that_a_hash_chooses() -> None:
    """Before, 34 of 34 such pairs kept the higher rating, whatever came last."""
    draw = random.Random(5)
    for time in (None, 7):
        events = [(f"u{n}", "x", rating, time) for n in range(200) for rating in (5.0, 1.0)]
        rule = plan_rule(Split(group="global"))
        kept = label(rows(*events), rule).set_index("user_id").rating
        assert 70 < (kept == 5.0).sum() < 130 and len(kept) == 200
        draw.shuffle(events)
        assert label(rows(*events), rule, 3).set_index("user_id").rating.to_dict() == kept.to_dict()
        counts = read_dropped(label_rows(to_arrow(rows(*events)), rule))
        assert sum(n for (_, why), n in counts.items() if why == "unordered_pairs") == 200


def test_rows_that_are_alike_and_rows_in_order_are_no_matter_of_chance() -> None:
    log = rows(("u", "x", 5.0, None), ("u", "x", 5.0, None), ("u", "y", 5.0, 3), ("u", "y", 1.0, 4))
    rule = plan_rule(Split(group="global"))
    assert set(zip(label(log, rule).item_id, label(log, rule).rating, strict=True)) == {
        ("x", 5.0),
        ("y", 1.0),
    }
    assert {why for _, why in read_dropped(label_rows(to_arrow(log), rule))} == {"duplicates_dropped"}


def test_attributes_do_not_decide_which_rating_stays() -> None:
    """A log read with attributes, with empty ones and without them: the same ratings."""
    log = to_arrow(rows(*((f"u{n}", "x", rating, 7) for n in range(100) for rating in (5.0, 1.0, 1.0))))
    kind = pa.map_(pa.string(), pa.string())
    pages = pa.array([[("page", str(n % 7))] for n in range(len(log))], kind)
    logs = [log, *(log.append_column("attributes", one) for one in (pa.nulls(len(log), kind), pages))]
    rule = plan_rule(Split(group="global"))
    plain, *others = (label_rows(one, rule).to_pandas().sort_values("user_id") for one in logs)
    assert all(other.rating.tolist() == plain.rating.tolist() for other in others)
    assert 30 < (plain.rating == 5.0).sum() < 70


@pytest.mark.parametrize("keep", ["keep_last", "keep_first"])
def test_a_row_without_a_time_is_no_first_and_no_last(keep: str) -> None:
    log = rows(("u", "x", 5.0, None), ("u", "x", 2.0, 1), ("u", "x", 3.0, 9))
    made = label(log, plan_rule(Split(group="global"), keep=keep))
    assert made.rating.tolist() == [3.0 if keep == "keep_last" else 2.0]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from("uv"), st.sampled_from("abc"), st.sampled_from([1.0, 2.0]), st.integers(0, 3)
    ),
    min_size=1, max_size=25,
)  # fmt: skip


@given(EVENTS, st.sampled_from(TEMPORAL), st.sampled_from(["drop", "keep", "only"]), st.randoms())
def test_no_order_of_rows_decides(events: list[Any], split: Any, repeats: Any, shuffler: Any) -> None:
    rule = plan_rule(split[0].model_copy(update={"repeats": repeats}), (1, 2, 3) if split[1] else None)
    names = ["user_id", "item_id", "rating", "event_time", "part"]
    made = label(rows(*events), rule)
    mixed = list(events)
    shuffler.shuffle(mixed)
    again = label(rows(*mixed), rule)
    assert sorted(again[names].to_numpy().tolist()) == sorted(made[names].to_numpy().tolist())
    dropped = sum(count_all(rows(*events), rule).values())
    assert len(made) + dropped == len(events)
