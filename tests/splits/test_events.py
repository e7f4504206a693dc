"""Events of a log, split row by row in loops: what is asked, what trains, and with which strength."""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from recbench_spark.config import Dataset, Split
from recbench_spark.splits.labels import label_rows, read_dropped
from recbench_spark.splits.queries import read_attribute
from recbench_spark.splits.rules import make_event_rule, make_rule
from recbench_spark.storage.delta_files import write_file
from recbench_spark.storage.packed_blocks import read_files

SEEDS = range(*map(int, os.environ.get("RECBENCH_EVENT_SEEDS", "0,40").split(",")))
"""Worlds drawn: a few in the suite, as many as one likes by hand."""

WEIGHTS = {"view": 1, "cart": 3, "purchase": 5, "gift": 0.1}
CODES = sorted(WEIGHTS)
LOG = pa.schema({
    "user_id": pa.string(), "item_id": pa.string(), "rating": pa.float64(), "event_time": pa.int64(),
    "event": pa.int8(),
})  # fmt: skip

Row = tuple[str, str, int, str]
"""User, item, time, event."""
Made = tuple[str, str, str, float, int, bool]
"""User, item, part, rating, time, true where it trains and its events are no targets."""


def draw_rows(seed: int) -> list[Row]:
    """Draw rows, many at one time; no pair has two events at once, between which a hash would decide."""
    draw, rows, taken = random.Random(seed), [], set()
    for _ in range(draw.choice([60, 120])):
        user, item = f"u{draw.randrange(5)}", f"i{draw.randrange(8)}"
        time, event = draw.randrange(15), draw.choices(CODES, [2, 2, 4, 6])[0]
        if (user, item, time) not in taken:
            taken.add((user, item, time))
            rows.append((user, item, time, event))
    return rows


def make_dataset(**events: Any) -> Dataset:
    section = {"column": "event", "weights": WEIGHTS, "targets": ["purchase", "gift"], **events}
    return Dataset(name="log", reader="csv", path="log.csv", events=section)  # type: ignore[arg-type]


def label(rows: list[Row], dataset: Dataset, split: Split, cut: Any, pieces: int = 1) -> Any:
    rule = make_rule(split, dataset.duplicates, cut)
    rule = rule.__class__(**{**vars(rule), "events": make_event_rule(dataset, split)})
    made, dropped = list[Made](), Counter[str]()
    for n in range(pieces):
        mine = [row for row in rows if hash_text(row[0]) % pieces == n]
        columns = [*zip(*mine, strict=True)] or [()] * 4
        table = pa.table(
            [*columns[:2], [1.0] * len(mine), columns[2], [CODES.index(one) for one in columns[3]]],
            schema=LOG,
        )
        labelled = label_rows(table, rule)
        assert "event" not in labelled.column_names
        names = ("user_id", "item_id", "part", "rating", "event_time", "signal")
        made += [tuple(one[name] for name in names) for one in labelled.to_pylist()]
        for (_, reason), count in read_dropped(labelled).items():
            dropped[reason] += count
    return sorted(made, key=repr), +dropped


def hash_text(text: str) -> int:
    return sum(text.encode()) * 7


# ------------------------------------------------------------------------------------ the oracle


def hold_out(times: list[tuple[int, str, int]], split: Split) -> dict[int, str]:
    """Return the part of each target row of a user: (time, item, place), in order of time."""
    order, n = sorted(times), len(times)
    if split.holdout == "n_given":
        assert split.n is not None
        test, valid = max(n - split.n, 0), 0
    elif split.holdout == "ratio":
        test, valid = (max(1, int(share * n + 1e-9)) if share else 0 for share in split.ratio[:0:-1])
        test = min(test, n - 1)
        valid = min(valid, n - 1 - test)
    else:
        test = min(1 if split.n is None else split.n, n - 1)
        valid = min((1 if split.n is None else split.n) * split.valid, n - 1 - test)
    return {
        place: "test" if last < test else "valid" if last < test + valid else "train"
        for last, (_, _, place) in enumerate(reversed(order))
    }


def find_cut(rows: list[Row], split: Split, dataset: Dataset) -> tuple[int, int, int] | None:
    assert dataset.events is not None
    if split.group == "user":
        return None
    times = sorted(time for _, _, time, event in rows if event in dataset.events.targets)
    test, valid = (int(share * len(times) + 1e-9) for share in split.ratio[:0:-1])
    start = times[len(times) - test]
    return times[len(times) - test - valid] if valid else start, start, times[-1] + 1


def label_slowly(rows: list[Row], dataset: Dataset, split: Split) -> dict[int, str]:
    targets, cut = dataset.events.targets, find_cut(rows, split, dataset)  # type: ignore[union-attr]
    parts: dict[int, str] = {}
    for user in {row[0] for row in rows}:
        own = [(row[2], row[1], place) for place, row in enumerate(rows) if row[0] == user]
        target_rows = [one for one in own if rows[one[2]][3] in targets]
        if cut:
            for time, _, place in own:
                period = sum(time >= one for one in cut)
                parts[place] = ["train", "valid", "test", "later"][period]
                if rows[place][3] not in targets and period:
                    parts[place] = "later"
            continue
        parts |= hold_out(target_rows, split)
        first = min((one[0] for one in target_rows if parts[one[2]] != "train"), default=1 << 60)
        parts |= {
            place: "later" if time >= first else "train"
            for time, _, place in own
            if rows[place][3] not in targets
        }
    return parts


def split_slowly(rows: list[Row], dataset: Dataset, split: Split) -> tuple[list[Made], Counter[str]]:
    events, parts = dataset.events, label_slowly(rows, dataset, split)
    assert events is not None
    counts, best = Counter(f"rows_of_{row[3]}" for row in rows), dict[tuple[str, ...], int]()
    for place, (user, item, time, event) in enumerate(rows):
        key, sign = (user, item, parts[place], event), 1 if dataset.duplicates == "keep_last" else -1
        if key not in best or sign * time > sign * best[key]:
            best[key] = time
    counts["duplicates_dropped"] = len(rows) - len(best)
    known = {
        (user, item, part) for user, item, part, event in best
        if event in events.targets or events.repeats_of == "any"
    }  # fmt: skip
    groups = defaultdict(list)
    for (user, item, part, event), time in best.items():
        trained = (user, item, "train") in known
        again = trained or (part == "test" and (user, item, "valid") in known)
        gone = {"drop": again, "keep": False, "only": not trained}[split.repeats]
        if part in ("valid", "test") and gone:
            counts["repeats_dropped" if split.repeats == "drop" else "new_pairs_dropped"] += 1
            continue
        groups[user, item, part].append((time, event))
    made = []
    for (user, item, part), own in groups.items():
        counts["events_added"] += len(own) - 1
        strength = sum(events.weights[name] for name in sorted(name for _, name in own))
        strength = min(strength, events.cap) if events.cap else strength
        time = max(own)[0] if dataset.duplicates == "keep_last" else min(own)[0]
        signal = part == "train" and not {name for _, name in own} & {*events.targets}
        plain = part in ("valid", "test") and not events.grades
        made.append((user, item, part, 1.0 if plain else float(strength), time, signal))
    return sorted(made, key=repr), +counts


SPLITS: dict[str, dict[str, Any]] = {
    "last": {"protocol": "TO_LS"},
    "last and valid": {"protocol": "TO_LS", "valid": True},
    "shares": {"protocol": "TO_RS", "ratio": [0.6, 0.2, 0.2]},
    "last n": {"order": "temporal", "holdout": "last_n", "n": 2, "valid": True},
    "given": {"order": "temporal", "holdout": "n_given", "n": 2},
    "cut": {"order": "temporal", "group": "global", "ratio": [0.7, 0.1, 0.2]},
    "cut without valid": {"order": "temporal", "group": "global"},
}
EVENTS: list[dict[str, Any]] = [
    {}, {"repeats_of": "any"}, {"cap": 4}, {"grades": True},
    {"targets": ["purchase"], "grades": True, "cap": 2},
]  # fmt: skip


@pytest.mark.parametrize("pieces", [1, 3, 17])
@pytest.mark.parametrize("name", SPLITS)
def test_each_row_is_what_a_loop_says(name: str, pieces: int) -> None:
    for seed in SEEDS:
        rows, draw = draw_rows(seed), random.Random(seed)
        repeats, keep = draw.choice(["drop", "keep", "only"]), draw.choice(["keep_last", "keep_first"])
        split = Split(**{**SPLITS[name], "repeats": repeats})
        dataset = make_dataset(**EVENTS[seed % len(EVENTS)]).model_copy(update={"duplicates": keep})
        made = label(rows, dataset, split, find_cut(rows, split, dataset), pieces)
        assert made == split_slowly(rows, dataset, split), (seed, repeats, keep)


@pytest.mark.parametrize("name", ["RO_RS", "RO_LS"])
def test_in_random_order_targets_are_split_as_if_alone_and_all_else_trains(name: str) -> None:
    for seed in range(10):
        rows, dataset, split = draw_rows(seed), make_dataset(), Split(protocol=name)  # type: ignore[arg-type]
        targets = [row for row in rows if row[3] in ("purchase", "gift")]
        made, _ = label(rows, dataset, split, None, 3)
        alone, _ = label(targets, dataset, split, None)
        held = [one for one in made if one[2] == "test"]
        assert held == [one for one in alone if one[2] == "test"] and held
        trained = {one[:2] for one in made if one[2] == "train"}
        target_rows = {one[:2] for one in held}
        assert trained == {row[:2] for row in rows if row not in targets or row[:2] not in target_rows}
        assert {one[:2] for one in made if one[5]} == trained - {
            one[:2] for one in alone if one[2] == "train"
        }


@pytest.mark.parametrize("repeats", ["drop", "keep"])
@pytest.mark.parametrize(
    "more",
    [
        {"targets": "first"}, {"targets": "last"}, {"targets": "random"},
        {"valid": True, "validation": "last_row"},
        {"valid": True, "validation": "users", "valid_users": 0.5},
    ],
)  # fmt: skip
def test_targets_are_chosen_and_validate_as_if_alone(more: dict[str, Any], repeats: str) -> None:
    split = Split(order="temporal", group="global", repeats=repeats, **more)  # type: ignore[arg-type]
    for seed in range(8):
        rows, dataset = draw_rows(seed), make_dataset()
        cut = find_cut(rows, split, dataset)
        assert cut is not None
        made, _ = label(rows, dataset, split, cut, 3)
        alone, _ = label([row for row in rows if row[3] in ("purchase", "gift")], dataset, split, cut)
        held = ("valid", "test")
        assert [one for one in made if one[2] in held] == [one for one in alone if one[2] in held]
        own = {one[:3] for one in made if one[2] not in held and one[2] != "later" and not one[5]}
        assert own == {one[:3] for one in alone if one[2] not in held and one[2] != "later"}
        whole = split.model_copy(update={"repeats": "keep"})  # a repeat that is left out was held out, too
        labelled, _ = label([row for row in rows if row[3] in ("purchase", "gift")], dataset, whole, cut)
        begins = {one[0]: one[4] for one in labelled if one[2] == "valid"}
        given = {one[0] for one in alone if one[2] == "given"}
        signals = {
            (user, item, "given" if user in given else "train")
            for user, item, time, event in rows
            if event in ("view", "cart") and time < min(cut[0], begins.get(user, cut[0]))
        }
        assert {one[:3] for one in made if one[5]} == signals - own


def test_attributes_are_read_whoever_wrote_the_file(tmp_path: Path) -> None:
    """Parquet names what is within a map, and `deltalake` appends to a table with other names."""
    maps = [[("page", "1")], None, [("genre", "a"), ("page", "2")], [("genre", "b")], []]
    rows = pa.table({"attributes": pa.array(maps, pa.map_(pa.string(), pa.string()))})
    for mode in ("error", "append"):
        write_deltalake(str(tmp_path), rows, mode=mode)  # type: ignore[call-overload]
    write_file(rows, str(tmp_path), {}, ["attributes"])
    files = sorted(map(str, tmp_path.glob("*.parquet")))
    tables = [rows, *read_files(files, ["attributes"])]
    assert len(tables) == 4
    for table in tables:
        assert read_attribute(table, "page").to_pylist() == ["1", None, "2", None, None]
        assert read_attribute(table.slice(1), "genre").to_pylist() == [None, "a", "b", None]
    assert len({str(table.schema.field(0).type.key_type) for table in tables[1:]}) == 1
