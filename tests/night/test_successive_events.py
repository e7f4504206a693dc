"""Successive questions of a log with events: each target row alone, after all rows before it."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.config import Benchmark
from recbench_spark.errors import ProtocolError
from recbench_spark.ranking.part_users import BLOCK_NAMES, select_part_users
from recbench_spark.schemas import ITEMS, MANIFESTS, USER_BLOCKS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.night.test_successive import CUT, draw_log, make_benchmark, read_bits, read_ranks
from tests.nights import Ran, read_rows, run, run_in_pieces, work_in

SEEDS = range(*map(int, os.environ.get("RECBENCH_SUCCESSIVE_EVENT_SEEDS", "0,8").split(",")))
"""Worlds drawn: a few in the suite, as many as one likes by hand."""

WEIGHTS = {"view": 1, "cart": 2.5, "buy": 4, "gift": 0.3}
TARGETS = ("buy", "gift")
VALID = CUT - 30
"""Second where validation begins."""

BLOCKS = pa.schema([field for field in USER_BLOCKS.arrow_schema if field.name in BLOCK_NAMES])

Row = tuple[str, str, float, int, str]
"""User, item, rating, second, event."""


class World:
    """A drawn log with its settings."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed + 500)
        table = draw_log(seed)
        table = table.set_column(
            3, "event_time", pa.array(table.column("event_time").to_numpy() // 1_000_000)
        )
        events = rng.choice(list(WEIGHTS), len(table), p=[0.4, 0.2, 0.3, 0.1])
        rows = [*zip(*(column.to_pylist() for column in table.columns), events.tolist(), strict=True)]
        # Of two rows of one pair, event and time a hash keeps one: the oracle has none.
        self.rows: list[Row] = [*{(user, item, time, event): (user, item, rating, time, event)
                                  for user, item, rating, time, event in rows}.values()]  # fmt: skip
        self.seed, self.valid = seed, seed % 2 == 1
        self.repeats = str(rng.choice(["drop", "drop", "keep", "only"]))
        self.keep = str(rng.choice(["keep_last", "keep_first"]))
        self.events: dict[str, Any] = {"column": "event", "weights": WEIGHTS, "targets": list(TARGETS)}
        self.events |= [{}, {"cap": 3.9}, {"grades": True}, {"grades": True, "cap": 3}][rng.integers(4)]
        self.events |= {"repeats_of": "any"} if rng.random() < 0.4 else {}
        self.threshold = [None, 0.8, 3.5, 3.8][rng.integers(4)]

    def night(self, folder: Path, rows: list[Any], split: dict[str, Any], **dataset: Any) -> Benchmark:
        """Write rows, and return the night of them."""
        folder.mkdir(parents=True, exist_ok=True)
        names = ("user_id", "item_id", "rating", "event_time", "event", "part")
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=False))
        columns["event_time"] = [second * 1_000_000 for second in columns["event_time"]]
        pq.write_table(pa.table(columns), folder / "log.parquet")
        repeats = {"repeats": self.repeats} if self.repeats != "drop" else {}
        dataset |= {"events": self.events, "duplicates": self.keep}
        made = make_benchmark(folder / "log.parquet", self.seed, {**split, **repeats}, **dataset)
        more = {"threshold": self.threshold} | ({"candidates": "all"} if repeats else {})
        definition = {**made.evaluation.definition, **more}
        evaluation = made.evaluation.model_copy(update={"definition": definition})
        return made.model_copy(update={"evaluation": evaluation})

    def ask(self, folder: Path, store: Any = None) -> Ran:
        split = {"holdout": "period", "start": f"1970-01-01T00:01:{CUT - 60:02}Z", "length": "30s"}
        benchmark = self.night(folder, self.rows, {**split, "valid": self.valid, "targets": "successive"})
        return run(store or ArrowStore(str(folder / "warehouse")), benchmark)

    def ask_alone(self, folder: Path) -> Ran:
        """The slow oracle's night: each question is a user of its own, who was given the rows before it."""
        of_users, log = defaultdict(list), []
        for row in self.rows:
            of_users[row[0]].append(row)
        for user, rows in of_users.items():
            rows.sort(key=lambda row: (row[3], row[1]))
            log += [(*row, "train") for row in rows if self.period(row) == "train"]
            for number, question in enumerate(self.list_questions(rows, "test"), 1):
                name = f"{user}|{number}"
                log += [(name, *row[1:], "given") for row in self.list_before(rows, question)]
                truth = [row for row in rows if (row[1], row[3]) == question and row[4] in TARGETS]
                log += [(name, *row[1:], "test") for row in truth]
        return run(
            ArrowStore(str(folder / "warehouse")),
            self.night(folder, log, {"holdout": "given"}, columns={"part": "part"}),
        )

    def period(self, row: Row) -> str:
        ends = ((CUT + 30, "later"), (CUT, "test"), (VALID if self.valid else CUT, "valid"), (0, "train"))
        return next(name for begin, name in ends if row[3] >= begin)

    def list_questions(self, rows: list[Row], part: str) -> list[tuple[str, int]]:
        """Item and time of a part's questions, in order."""
        targets = [row for row in rows if row[4] in TARGETS]
        counted = rows if self.events.get("repeats_of") == "any" else targets
        trained = {row[1] for row in counted if self.period(row) == "train"}
        known = trained | (
            {item for item, _ in self.list_questions(rows, "valid")} if part == "test" else set()
        )
        begin = VALID if self.valid else CUT
        shown = [row for row in counted if row[4] not in TARGETS and row[3] >= begin]
        first: dict[str, int] = {}
        for row in targets:
            if self.period(row) != part:
                continue
            again = row[1] in known or any(one[1] == row[1] and one[3] < row[3] for one in shown)
            if not {"drop": again, "keep": False, "only": row[1] not in trained}[self.repeats]:
                first.setdefault(row[1], row[3])
        return sorted(first.items(), key=lambda one: (one[1], one[0]))

    def list_before(self, rows: list[Row], question: tuple[str, int]) -> list[Row]:
        """Rows before a question: all but targets that are not asked, and those at its time."""
        first = {part: dict(self.list_questions(rows, part)) for part in ("valid", "test")}
        item, time = question
        before = []
        for row in rows:
            part = self.period(row)
            if part == "train" or (row[4] not in TARGETS and row[3] < time):
                before.append(row)
            elif row[4] in TARGETS and part in first and row[1] in first[part]:
                is_first = row[3] == first[part][row[1]]
                if (row[3] < time) or (is_first and row[3] == time and row[1] < item):
                    before.append(row)
        return before


@pytest.mark.parametrize(
    "seed", [*SEEDS[:2], *(pytest.param(n, marks=pytest.mark.full) for n in SEEDS[2:])]
)
def test_each_target_is_ranked_as_if_it_were_asked_alone(seed: int, tmp_path: Path) -> None:
    try:
        made = run_in_pieces(tmp_path, World(seed).ask, read_bits)
    except ProtocolError as error:  # all test rows are of pairs that training knows
        assert "no test rows" in error.message
        return
    assert {row.value for row in read_rows(made.store, MANIFESTS) if row.fact == "overlap"} <= {0.0}
    ranks = read_ranks(made)
    assert ranks.keys() == {"popular", "item_knn"}
    with work_in(1):
        assert ranks == read_ranks(World(seed).ask_alone(tmp_path / "alone"))


VIEWED: list[Row] = [
    ("u", "a", 1.0, 5, "buy"), ("u", "b", 1.0, 6, "view"), ("u", "c", 1.0, 61, "view"),
    ("u", "c", 1.0, 63, "view"), ("u", "b", 1.0, 64, "buy"), ("u", "d", 1.0, 64, "view"),
    ("u", "c", 1.0, 66, "cart"), ("u", "e", 1.0, 70, "buy"), ("u", "e", 1.0, 71, "gift"),
    ("u", "a", 1.0, 72, "buy"), ("u", "c", 1.0, 75, "buy"), ("u", "f", 1.0, 95, "view"),
    *(("v", item, 1.0, 3, "buy") for item in "abcdef"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("repeats_of", "threshold", "expected"),
    [
        ("targets", None, ["b: abc, no a", "e: abcd, no ab", "c: abcde, no abe"]),
        ("targets", 3.0, ["b: a, no a", "e: abc, no ab", "c: abce, no abe"]),
        ("any", None, ["e: abcd, no a"]),
    ],
)
def test_by_hand(repeats_of: str, threshold: float | None, expected: list[str], tmp_path: Path) -> None:
    """Views at a question's time are not before it."""
    world = World(0)
    world.rows, world.seed, world.valid, world.repeats, world.keep = VIEWED, 0, False, "drop", "keep_last"
    world.events = {"column": "event", "weights": WEIGHTS, "targets": TARGETS, "repeats_of": repeats_of}
    world.threshold = threshold
    made = world.ask(tmp_path)
    items = {row.item_index: row.item_id for row in read_rows(made.store, ITEMS)}
    blocks = made.store.rows(USER_BLOCKS)
    users = select_part_users(
        pa.Table.from_pylist(blocks, BLOCKS), ["test"], threshold, False, successive=True
    )
    spell = [
        f"{row['item_ids'][0]}: {name_items(items, row['history'])}, no {name_items(items, row['masked'])}"
        for row in users.to_pylist()
    ]
    assert spell == expected
    facts = {(row.part, row.fact): row.value for row in read_rows(made.store, MANIFESTS)}
    dropped = {"targets": 1, "any": 3}[repeats_of]
    assert facts["test", "repeats_dropped"] == dropped
    assert (facts["later", "rows_of_view"], facts["test", "unasked_rows"]) == (4, 1)


def name_items(items: dict[int, str], indexes: list[int]) -> str:
    return "".join(sorted(items[index] for index in indexes))
