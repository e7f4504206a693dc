"""Self-tests: each fault is one, is seen in a planted shop, and leaves the team's tables alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from jobs.bench.planted_shop import LAST_DAY, describe_shop, write_shop
from jobs.bench.self_tests import add_rules
from recbench_spark import cli
from recbench_spark.commands import nightly
from recbench_spark.commands import self_test as command
from recbench_spark.config import Benchmark, Gate, parse
from recbench_spark.errors import DataError
from recbench_spark.schemas import FITS, SELF_TESTS
from recbench_spark.self_tests import rehearsals, self_test
from recbench_spark.self_tests.faults import FAULTS, NotHereError, SampleFacts, describe_change
from recbench_spark.self_tests.rehearsals import Honest, Rehearsed
from recbench_spark.self_tests.samples import LOG, Sample, draw_sample, point_at, read_labels, write_tables
from recbench_spark.self_tests.scratch_tables import ScratchTables, open_warehouse
from recbench_spark.self_tests.self_test import Plan, SelfTest, probe_sample, run_self_test
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import read_rows, run

DAY = date.fromisoformat(LAST_DAY)
HONEST = Rehearsed()


def make_benchmark(folder: Path, **changes: Any) -> Benchmark:
    """The shop with the rules that `init` writes."""
    made = add_rules(describe_shop(folder), timed=True).model_dump(mode="json", exclude_defaults=True)
    return parse(Benchmark, {**made, **changes}, "tests/self_tests")


def digest_folder(folder: Path, without: tuple[str, ...] = ()) -> str:
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    kept = [one for one in files if one.relative_to(folder).parts[0] not in without]
    return hashlib.sha256(b"".join(str(one).encode() + one.read_bytes() for one in kept)).hexdigest()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    write_shop(folder, users=600)
    run(ArrowStore(str(folder / "warehouse")), make_benchmark(folder), DAY)
    return folder


@pytest.fixture(scope="module")
def store(shop: Path) -> ArrowStore:
    return ArrowStore(str(shop / "warehouse"))


@pytest.fixture(scope="module")
def outcome(shop: Path, store: ArrowStore) -> tuple[SelfTest, str, str]:
    """A self-test of the shop, and digests of the warehouse before and after."""
    before = digest_folder(Path(store.root))
    done = run_self_test(store, make_benchmark(shop), DAY, lambda _: None, users=500)
    return done, before, digest_folder(Path(store.root), (SELF_TESTS.name,))


@pytest.mark.full
def test_every_fault_of_the_shop_is_seen(outcome: tuple[SelfTest, str, str]) -> None:
    seen = {one.fault.name: one.witness for one in outcome[0].findings}
    assert set(seen) == set(FAULTS) and len(seen) >= 20
    assert outcome[0].honest == ()
    assert outcome[0].misses == () and all(seen.values())
    assert seen["random_vectors"] == seen["item_renames"] == "regression"
    assert seen["test_rows_trained"] == seen["twice_delivered"] == "rise"
    assert seen["nan_scores"] == "refused" and seen["half_without"] == "check"
    assert seen["times_hour_late"] == seen["old_truth"] == seen["items_doubled"] == "gate"


@pytest.mark.full
def test_nothing_but_the_table_of_self_tests_is_written(
    outcome: tuple[SelfTest, str, str], store: ArrowStore
) -> None:
    assert outcome[1] == outcome[2]
    rows = read_rows(store, SELF_TESTS, suite="shop")
    assert {row.fault for row in rows} == set(FAULTS) and len({row.self_test_id for row in rows}) == 1
    assert {(row.logical_date, row.users, row.applies, row.seen) for row in rows} == {
        (DAY, 500, True, True)
    }
    assert all(row.changed and row.sentence and row.rule is None for row in rows)


@pytest.fixture(scope="module")
def sample(shop: Path, store: ArrowStore) -> Sample:
    return draw_sample(store, make_benchmark(shop), DAY, 120)


def test_a_sample_is_of_some_users_and_the_same_each_time(
    sample: Sample, shop: Path, store: ArrowStore
) -> None:
    again = draw_sample(store, make_benchmark(shop), DAY, 120)
    assert sample.users == 120 == sample.log.user_id.nunique()
    assert all(table.equals(again.tables[name]) for name, table in sample.tables.items())
    assert {*sample.tables["lists.path"].user_id} <= {*sample.log.user_id}
    assert {*sample.tables["ours.items"].item_id} <= {*sample.log.item_id}
    assert len(sample.tables["before"]) < len(sample.log) and list(sample.older) == ["lists.path"]


def make_honest_world(sample: Sample) -> SampleFacts:
    """The world of a sample whose last three rows of a user are tested, without a night."""
    log = sample.log.sort_values(["user_id", "event_time"])
    is_tested = log.groupby("user_id").cumcount(ascending=False) < 3
    models = tuple(model for model in sample.benchmark.models if model.paths)
    return SampleFacts(sample, log[is_tested], log[~is_tested], models)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_changes_what_it_says(sample: Sample, name: str) -> None:
    world = make_honest_world(sample)
    tables = FAULTS[name].plant(world)
    assert any(describe_change(sample.tables[place], table) for place, table in tables.items())
    assert all([*table.columns] == [*sample.tables[place].columns] for place, table in tables.items())
    again = FAULTS[name].plant(world)
    assert {*tables} == {*again}
    assert name == "nan_scores" or not any(describe_change(tables[one], again[one]) for one in tables)


EXACT: dict[str, Any] = {
    "items_doubled": lambda log: (2 * len(log), log.user_id.nunique(), 2 * log.item_id.nunique()),
    "users_doubled": lambda log: (2 * len(log), 2 * log.user_id.nunique(), log.item_id.nunique()),
}


@pytest.mark.parametrize("name", EXACT)
def test_doubled_ids_are_twice_as_many(sample: Sample, name: str) -> None:
    log = FAULTS[name].plant(make_honest_world(sample))[LOG]
    assert (len(log), log.user_id.nunique(), log.item_id.nunique()) == EXACT[name](sample.log)


def test_shares_and_shifts_are_those_of_the_name(sample: Sample) -> None:
    world, log = make_honest_world(sample), sample.log
    later = FAULTS["times_hour_late"].plant(world)[LOG]
    assert {*(later.event_time - log.event_time)} == {3_600_000_000}
    assert FAULTS["catalogue_cut"].plant(world)[LOG].item_id.nunique() == round(0.6 * log.item_id.nunique())
    assert 0.75 < len(FAULTS["log_fifth_missing"].plant(world)[LOG]) / len(log) < 0.85
    half = FAULTS["half_without"].plant(world)["ours.users"]
    assert len(half) == 60


def test_one_value_of_a_slice_of_users_collapses(
    sample: Sample, shop: Path, store: ArrowStore, tmp_path: Path
) -> None:
    users = pd.DataFrame({"user_id": [f"u{n}" for n in range(600)], "age": [n % 3 for n in range(600)]})
    users.to_csv(tmp_path / "users.csv", index=False)
    cut = {"key": "age", "of": "users", "path": str(tmp_path / "users.csv")}
    evaluation = make_benchmark(shop).evaluation.model_dump(mode="json", exclude_defaults=True)
    file = make_benchmark(shop, evaluation={**evaluation, "slices": [cut]})
    (age_u,) = read_labels(store, file, sample.log)
    assert {*age_u.index} == {*sample.log.user_id}
    assert all(int(user[1:]) % 3 == int(age) for user, age in age_u.items())
    world = make_honest_world(replace(sample, labels=(age_u,)))
    (table,) = FAULTS["slice_collapse"].plant(world).values()
    changed = table[table.score != sample.tables["scores.path"].score].user_id.unique()
    assert len({int(user[1:]) % 3 for user in changed}) == 1 and len(changed) > 20


def test_a_fault_without_its_place_says_why(sample: Sample) -> None:
    bare = replace(make_honest_world(sample), order=())
    log = sample.log.assign(event_time=pd.array([None] * len(sample.log), dtype="Int64"), rating=1.0)
    plain = replace(bare, sample=replace(sample, tables={**sample.tables, LOG: log, "before": log}))
    reasons = {}
    for name, fault in FAULTS.items():
        try:
            fault.plant(plain)
        except NotHereError as reason:
            reasons[name] = str(reason)
    assert reasons["random_vectors"] == "no model of vectors is delivered"
    assert reasons["twice_delivered"] == "no two models of one kind are delivered"
    assert reasons["times_day_late"] == "the log has no times"
    assert reasons["old_truth"] == "the log has no last day to leave out"
    assert reasons["relevance_reversed"] == "all ratings are equal"
    assert reasons["slice_collapse"] == "no model of lists or scores is delivered"
    assert "log_fifth_missing" not in reasons and "test_rows_trained" not in reasons
    random = sample.benchmark.split.model_copy(update={"order": "random"})
    file = sample.benchmark.model_copy(update={"split": random})
    with pytest.raises(NotHereError, match="all rows of a pair are in one part"):
        FAULTS["test_rows_trained"].plant(replace(bare, sample=replace(sample, benchmark=file)))


def test_ratings_cost_no_model_where_only_their_relevance_counts(sample: Sample, shop: Path) -> None:
    def keeps(name: str = "relevance_reversed", without: str = "embeddings", **definition: Any) -> bool:
        given = make_benchmark(shop).model_dump(mode="json", exclude_defaults=True)
        models = [one for one in given["models"] if one["kind"] != without]
        evaluation = {**given["evaluation"], "definition": definition}
        file = make_benchmark(shop, models=models, evaluation=evaluation)
        world = make_honest_world(replace(sample, benchmark=file))
        places = dict.fromkeys(sample.tables, "unread.parquet")
        plan = Plan(
            world, ScratchTables.__new__(ScratchTables), Path(), places, HONEST, HONEST, Honest((), "")
        )
        return plan.keeps_numbers(FAULTS[name].plant(world))

    assert keeps()
    assert not keeps(without="scores")  # users of vectors may be folded in by their ratings
    assert not keeps("times_hour_late") and not keeps("lists_halved")
    assert not keeps(threshold=4.0) and not keeps(gain="linear")


def test_exchanged_truth_moves_tested_items_alone(sample: Sample) -> None:
    world, log = make_honest_world(sample), sample.log
    other = FAULTS["truth_exchanged"].plant(world)[LOG]
    pairs = ["user_id", "item_id"]
    tested = pd.MultiIndex.from_frame(log[pairs]).isin(pd.MultiIndex.from_frame(world.truth[pairs]))
    assert log[~tested].equals(other[~tested]) and not other.duplicated(pairs).any()
    assert (log.user_id == other.user_id).all() and (log.event_time == other.event_time).all()
    assert (log.item_id != other.item_id)[tested].mean() > 0.6
    assert sorted(log.item_id) == sorted(other.item_id)


TRAINED = (
    {"name": "popular", "kind": "popular"},
    {"name": "item_knn", "kind": "item_knn", "neighbours": 20},
    {"name": "als", "kind": "als", "rank": 8, "iterations": 2},
)


def test_fits_are_taken_where_what_they_read_stays(sample: Sample, shop: Path, tmp_path: Path) -> None:
    """A night with the honest fits says what it says with its own, and learnt items can be renamed."""
    file = make_benchmark(shop, models=list(TRAINED), comparisons=None, regressions=[])
    logs = {name: sample.tables[name] for name in (LOG, "before")}
    bare = replace(sample, benchmark=file, older={}, tables=logs)
    places = write_tables(bare.tables, tmp_path / "tables")
    store = open_warehouse(file, tmp_path / "warehouse", 1)
    honest = rehearsals.rehearse(store, point_at(bare, places), DAY)
    world = self_test.make_world(store, bare, honest, file.models)
    faulty = write_tables(FAULTS["truth_exchanged"].plant(world), tmp_path / "faulty")
    stores = [store.copy(tmp_path / name) for name in ("taken", "own")]
    taken, own = (
        rehearsals.rehearse(one, point_at(bare, faulty), DAY, honest=Honest(honest.alarms, "als", night))
        for one, night in zip(stores, (honest.night, None), strict=True)
    )
    assert taken.metrics == own.metrics != honest.metrics and len(own.metrics) > 20
    assert [len(one.rows(FITS, [])) for one in stores] == [1, 2]
    plan = Plan(world, store, tmp_path, places, HONEST, honest, Honest(honest.alarms, "als"))
    renamed = plan.run("item_renames", FAULTS["item_renames"].plant(world))
    moved = {key[0] for key, value in renamed.metrics.items() if honest.metrics[key] != value}
    assert moved == {"popular"}  # the first one with items


def test_a_killed_self_test_leaves_no_row_and_no_scratch(
    shop: Path, store: ArrowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest_folder(Path(store.root), (SELF_TESTS.name,))
    n = 0

    def stop(*args: Any, **more: Any) -> Rehearsed:
        nonlocal n
        n += 1
        if n > 2:
            raise KeyboardInterrupt
        return rehearsals.rehearse(*args, **more)

    monkeypatch.setattr(self_test, "rehearse", stop)
    with pytest.raises(KeyboardInterrupt):
        run_self_test(store, make_benchmark(shop), DAY, lambda _: None, users=60)
    assert digest_folder(Path(store.root), (SELF_TESTS.name,)) == before
    assert not [*Path(store.root).glob("_scratch/*/*")]


def test_a_night_that_is_not_there_is_refused(shop: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no tested user: there is no such night"):
        run_self_test(ArrowStore(str(tmp_path)), make_benchmark(shop), DAY, lambda _: None)


@pytest.mark.full
def test_a_log_alone_says_what_does_not_apply_and_proposes_rules(shop: Path, tmp_path: Path) -> None:
    """Models that the night fits, no rules, few users: the rest runs, and YAML is proposed."""
    bare = make_benchmark(
        shop, models=[{"name": "popular", "kind": "popular"}], gates=[], comparisons=None, regressions=[]
    )
    store = ArrowStore(str(tmp_path / "warehouse"))
    run(store, bare, DAY)
    names = ("random_vectors", "log_fifth_missing", "relevance_reversed", "times_hour_late")
    done = probe_sample(draw_sample(store, bare, DAY, 80), tmp_path / "scratch", faults=names)
    results = {one.fault.name: one for one in done.findings}
    assert not results["random_vectors"].applies
    assert [one.fault.name for one in done.misses] == list(names[1:])
    assert results["log_fifth_missing"].rule.startswith("gates: [{fact: ")
    assert results["times_hour_late"].rule.startswith("gates: [{fact: oldest_event, part: log, moved: ")
    assert results["relevance_reversed"].rule.startswith(("regressions: [{metric: ", "gates: [{fact: "))
    assert done.notes[0].startswith("80 users: below 100")
    lines = command.describe_self_test(done)
    assert lines[0] == "self-test: 0 of 3 faults seen, in a sample of 80 users"
    assert f"  {results['log_fifth_missing'].rule}" in lines


def test_bounds_on_counts_shrink_with_the_sample(sample: Sample) -> None:
    gates = (Gate(fact="rows", part="test", below=900), Gate(fact="newest_age_days", part="log", above=2))
    team = sample.benchmark.model_copy(update={"gates": gates})
    facts = {("test", "rows"): 1800.0, ("log", "newest_age_days"): 1.0}
    part = Rehearsed((), {("test", "rows"): 360.0, ("log", "newest_age_days"): 0.5})
    fitted = self_test.fit_gates(replace(sample, benchmark=team, facts=facts), part).gates
    assert [gate.below or gate.above for gate in fitted] == [180.0, 2.0]


@pytest.mark.contract("self-test")
def test_the_command_prints_a_board_and_writes_the_report_again(
    shop: Path, store: ArrowStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = make_benchmark(shop).model_dump(mode="json", exclude_defaults=True, by_alias=True)
    file = tmp_path / "shop.yaml"
    file.write_text(json.dumps(document))
    flags = [f"--config={file}", f"--warehouse={store.root}", f"--logical-date={DAY}", "--users=60"]
    with pytest.raises(SystemExit) as ended:
        cli.run(command.main, command.parser(), flags)
    assert ended.value.code == 0
    said = capsys.readouterr()
    assert " faults seen, in a sample of 60 users\n" in said.out and "half_without" in said.out
    with pytest.raises(SystemExit) as ended:
        cli.run(nightly.main, nightly.parser(), [*flags[:3], "--self-test", "--engine=spark"])
    assert ended.value.code == 2 and "of one night on this machine" in capsys.readouterr().err
    page = (Path(store.root) / "reports" / f"shop-{DAY}.html").read_text()
    assert "Would a fault have been seen?" in page and "the item vectors are random" in page
