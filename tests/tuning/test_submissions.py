"""Bundles that should not lead a board: true ratings, perfect lists, other scales, edited facts."""

from __future__ import annotations

import io
import json
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from recbench_spark import reports
from recbench_spark.commands import bundle as job
from recbench_spark.commands.board import board_facts
from recbench_spark.commands.bundle import add_flag_facts, run_ranking_model
from recbench_spark.config import parse
from recbench_spark.config.benchmark import Benchmark
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.query.answers import make_query_runner
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import BOARD_DECISIONS, BOARDS, SPLITS, SUBMISSIONS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.tuning.board_update import read_shown_fits, update_board
from recbench_spark.tuning.decisions import RETRACTED, decide_on_entry
from recbench_spark.tuning.fold_fits import run_plan
from recbench_spark.tuning.folds import open_folded_log
from recbench_spark.tuning.submissions import FACTS_FILE, pack_bundle, score_bundle
from tests.nights import TINY, run
from tests.tuning.test_fold_fits import benchmark, make_fits, never, write_log

MODELS = [
    {"name": "means", "kind": "means"},
    {"name": "sgd", "kind": "sgd_mf", "dims": 2, "epochs": 3, "rates": 0.02},
]
FLAGS = ["pack", "--config", "c", "--warehouse", "w", "--output", "o", "--name", "theirs", "--lists", "l"]


class Board:
    """A small benchmark over folds with two models of ours, and a way to hand predictions in."""

    def __init__(self, folder: Path) -> None:
        self.store, self.folder = ArrowStore(str(folder / "w")), folder
        self.one = benchmark(write_log(folder), MODELS)
        fits = make_fits(self.store, self.one)
        self.log = fits.log
        run_plan(self.store, fits.over_folds(self.one.models), Journal(io.StringIO()))
        self.truth = duckdb.sql(
            "SELECT user_id, item_id, part::INT AS fold, rating::DOUBLE AS prediction "
            f"FROM read_parquet({list(self.log.files.shared.files)})"
        ).to_arrow_table()
        self.notes: list[str] = []

    def pack(self, name: str, prediction: str, *flags: str, who: str = "them") -> Path:
        """Predictions made of the true ratings, packed."""
        place = self.folder / name
        facts = {
            "name": name, "task": "predictions", "who": who, "method": name, "benchmark": "tiny",
            "log_id": self.log.log_id, "split": self.log.split,
        }  # fmt: skip
        args = job.parser().parse_args([*FLAGS, *flags])
        truth = self.truth  # noqa: F841 (of the query)
        rows = duckdb.sql(f"SELECT * REPLACE ({prediction} AS prediction) FROM truth").to_arrow_table()
        pack_bundle(rows, place, add_flag_facts(facts, args))
        return place

    def score(self, place: Path, accepted: tuple[str, str] | None = None) -> Any:
        self.notes.clear()
        return score_bundle(
            self.store, self.one, self.log, place, never, accepted=accepted, report=self.notes.append
        )

    def update(self) -> Any:
        return update_board(self.store, self.one, self.log)


@pytest.fixture(scope="module")
def board(tmp_path_factory) -> Board:
    return Board(tmp_path_factory.mktemp("handed_in"))


TRUE, MEAN = "prediction", "3.0::DOUBLE"


def test_true_ratings_are_held_back_until_accepted_and_can_be_retracted(board) -> None:
    oracle = board.score(board.pack("oracle", TRUE))
    assert oracle.value == 0.0 and board.notes[-1].startswith("held back as implausible: 0.0000 on fold 0")
    worse = board.score(board.pack("constant", MEAN, "--year", "2011", "--dims", "7",
                                   "--search-space", "reg=0.1,0.5"))  # fmt: skip
    assert board.notes == []

    judged = board.update()
    assert not any(verdict.under_tuned for verdict in judged.verdicts.values()), "by nothing that is held"
    assert set(judged.held) == {oracle.entry_id} and oracle.entry_id not in judged.verdicts
    facts = board_facts(board.store, judged, read_shown_fits(board.store, board.log))
    shown = {row.entry.name: row for row in facts.rows}
    assert shown["oracle"].position is None and shown["oracle"].verdict.startswith("held back")
    assert sorted(row.position for row in facts.rows if row.position) == [1, 2, 3]
    text, page = reports.board_text(facts), reports.render_board(facts)
    assert "held back as implausible" in text and oracle.entry_id in text
    assert "held back as implausible" in page and "Held back, accepted and retracted" in page
    assert "2011" in page and "reg" in page and "<td>7</td>" in page
    ask = make_query_runner(board.store)
    best = {row.name: row for row in ask("SELECT * FROM board_best").itertuples()}
    assert "oracle" not in best and best["constant"].position > 1
    assert (best["constant"].year, best["constant"].dims) == (2011, 7)
    assert json.loads(best["constant"].search_space) == {"reg": [0.1, 0.5]}
    (looks,) = ask("SELECT * FROM board_looks").itertuples()
    assert looks.submissions == 2 and looks.best_test == worse.value

    board.score(board.folder / "oracle", ("operator", "a test of ours"))
    assert oracle.entry_id not in board.update().held
    (row,) = board.store.rows(BOARD_DECISIONS, [("decision", "=", "accepted")])
    assert row["who"] == "operator" and row["reason"].startswith(
        "a test of ours (doubted: 0.0000 on fold 0"
    )
    decide_on_entry(board.store, oracle.entry_id, RETRACTED, "these are the ratings", "operator")
    assert oracle.entry_id not in {entry.entry_id for entry in board.update().entries}
    ask = make_query_runner(board.store)
    assert ask("SELECT * FROM board_best WHERE name = 'oracle'").empty
    assert len(board.store.rows(BOARDS, [("name", "=", "oracle")])) == 1, "its history stays"
    with pytest.raises(DataError, match="retracted by operator: these are the ratings"):
        board.score(board.folder / "oracle")
    with pytest.raises(ConfigError, match="no board has such a row"):
        decide_on_entry(board.store, "nothing", RETRACTED, "x", "y")


def test_a_bundle_packed_again_is_the_same_and_another_one_is_refused(board) -> None:
    place = board.pack("again", MEAN)
    files = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in place.iterdir()}
    assert board.pack("again", MEAN) == place
    with pytest.raises(ConfigError, match="again holds another bundle"):
        board.pack("again", TRUE)
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in place.iterdir()} == files
    assert not [path.name for path in board.folder.iterdir() if ".partial" in path.name]
    mine = board.folder / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    board.pack("mine", "2.5::DOUBLE")
    assert sorted(path.name for path in mine.iterdir()) == [
        "bundle.json",
        "notes.txt",
        "predictions.parquet",
    ]
    assert board.score(mine).value > 0


@pytest.mark.parametrize("key", ["who", "method", "name", "dims", "rows", "digest"])
def test_facts_that_were_changed_after_packing_are_refused(board, key: str) -> None:
    place = board.folder / "edited"
    if not place.exists():
        board.pack("edited", "3.25::DOUBLE")
    before = (place / FACTS_FILE).read_text()
    document = json.loads(before)
    document[key] = 3 if key in ("dims", "rows") else "somebody_else"
    (place / FACTS_FILE).write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"bundle\.json was changed after it was packed"):
        board.score(place)
    (place / FACTS_FILE).write_text(before)


def test_the_board_keeps_the_digest_and_an_old_bundle_is_read_with_a_note(board) -> None:
    place = board.pack("old", "2.75::DOUBLE")
    document = json.loads((place / FACTS_FILE).read_text())
    entry = board.score(place)
    assert entry.evidence == f"bundle {document['digest']}" and len(document["digest"]) == 32
    assert len(board.store.rows(BOARDS, [("evidence", "=", entry.evidence)])) == 1
    assert board.score(place).entry_id == entry.entry_id, "a second time is the same row"
    copied = board.pack("copied", "2.75::DOUBLE", who="a copyist")
    with pytest.raises(DataError, match="has the rows of bundle copied already, as old by them"):
        board.score(copied)
    decide_on_entry(board.store, entry.entry_id, RETRACTED, "packed anew", "them")
    old = {key: value for key, value in document.items() if key != "digest"}
    (place / FACTS_FILE).write_text(json.dumps({**old, "format": 1}))
    again = board.score(place)
    assert again.evidence == f"bundle {document['content']}" and "format 1" in board.notes[0]
    (row,) = board.store.rows(SUBMISSIONS, [("entry_id", "=", again.entry_id)])
    assert "format 1" in row["notes"]


@pytest.mark.parametrize(
    ("name", "prediction", "message"),
    [
        (
            "plus_two",
            "5.0::DOUBLE",
            r"predictions is 5\.00, \+\d\.\d\d off; the log's scale is 1 to 5",
        ),
        ("per_cent", "25 * (prediction - 1)", "lie outside the scale"),
        ("nan", "IF(fold = 0, 'NaN'::DOUBLE, 3.0::DOUBLE)", "is not a finite number"),
        ("infinite", "'Infinity'::DOUBLE", "is not a finite number"),
    ],
)
def test_predictions_on_another_scale_are_refused(board, name: str, prediction: str, message: str) -> None:
    place = board.pack(name, prediction)
    with pytest.raises(DataError, match=message):
        board.score(place)
    assert not board.store.rows(BOARDS, [("name", "=", name)])


def test_predictions_a_little_outside_are_clipped_and_counted(board) -> None:
    entry = board.score(board.pack("beyond", "IF(item_id = '3', 5.5::DOUBLE, 3.0::DOUBLE)"))
    assert board.notes[0].startswith("note: 13 of ") and "outside the scale 1 to 5" in board.notes[0]
    assert (
        board.score(board.pack("within", "IF(item_id = '3', 5.0::DOUBLE, 3.0::DOUBLE)")).value
        == entry.value
        and board.notes == []
    )


# ---------------------------------------------------------------------------------------- rankings


@pytest.mark.full
def test_perfect_lists_are_held_back_and_training_items_told(tmp_path) -> None:
    day = date(2026, 1, 1)
    tiny = parse(Benchmark, {**TINY, "headline": "ndcg@5"}, "test")
    store, journal = ArrowStore(str(tmp_path / "w")), Journal(io.StringIO())
    ran = run(store, tiny, day)
    log = open_folded_log(store, tiny, journal)
    labelled = store.read_rows(SPLITS, [("split_id", "=", ran.night.split_id)])
    facts = {"task": "rankings", "who": "them", "benchmark": tiny.name, "log_id": log.log_id,
             "split": log.split}  # fmt: skip
    notes = list[str]()

    def submit(name: str, part: str) -> Any:
        rank = "ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY rating DESC, item_id)"
        rows = labelled  # noqa: F841 (of the query)
        lists = duckdb.sql(
            f"SELECT user_id, item_id, {rank} AS rank FROM rows WHERE part = '{part}' QUALIFY rank <= 10"
        ).to_arrow_table()
        pack_bundle(lists, tmp_path / name, {**facts, "name": name, "method": name})
        notes.clear()
        rank_night = partial(run_ranking_model, store, day, journal)
        return score_bundle(store, tiny, log, tmp_path / name, rank_night, report=notes.append)

    perfect = submit("popular", "test")
    assert perfect.value == 1.0 and notes[-1].startswith("held back as implausible: 1.0000 on part test")
    known = submit("known", "train")
    assert "are training items of their users" in notes[0] and known.value < 0.2
    board = update_board(store, tiny, None)
    assert set(board.held) == {perfect.entry_id}
    assert not any(verdict.under_tuned for verdict in board.verdicts.values())
    names = [(entry.origin, entry.name) for entry in board.entries]
    handed = [("bundle", "known"), ("bundle", "popular")]
    assert sorted(names) == [*handed, ("ours", "item_knn"), ("ours", "popular")]
    ours = next(entry for entry in board.entries if (entry.origin, entry.name) == ("ours", "popular"))
    assert ours.value < 1.0, "lists of the same name do not stand for the model"
