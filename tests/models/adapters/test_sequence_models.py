"""`kind: sasrec | gru4rec | memn2n` in a night: ordered, fitted, ranked; later rows change no bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from recbench_spark.engine import local
from recbench_spark.errors import ConfigError, StoreError
from recbench_spark.models.adapters.fit_files import find_weights
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.models.adapters.sequence_models import (
    CHECKPOINT,
    FittedNetwork,
    embed_users,
    explain_listed,
)
from recbench_spark.models.adapters.split_data import COLUMNS, HistoryRule
from recbench_spark.models.networks.fitting import fit
from recbench_spark.models.networks.sequence_networks import make_sequences
from recbench_spark.models.networks.sequence_tasks import SequenceTask
from recbench_spark.models.settings import make_model
from recbench_spark.night.benchmark_checks import check_night
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.schemas import CHECKS, EMBEDDINGS, EXPLANATIONS, RANKINGS, SPLITS, TABLES
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.host_files import digest_content
from recbench_spark.storage.seals import SEAL
from recbench_spark.storage.shared_arrays import SharedRows
from tests.nights import Ran, models, read_rows, read_split, run, small

FIT: dict[str, Any] = {"epochs": 2, "batch": 16, "dims": 4, "memory": 5, "rate": 0.01}
KINDS: dict[str, dict[str, Any]] = {
    "sasrec": {"blocks": 1, "heads": 2},
    "gru4rec": {"loss": "shared_negatives", "negatives": 5},
    "memn2n": {"hops": 2, "linear_epochs": 1, "explain": ["u05", "given", "nobody"]},
}
USERS, ITEMS = 24, 20


def write_log(path: Path, seed: int) -> dict[str, Any]:
    """Rows of users on a circle of items; the seed permutes the rows of the file, and what is tested."""
    draw, later, rows = np.random.default_rng(0), np.random.default_rng(seed), []
    for user in range(USERS):
        first, size = draw.integers(ITEMS), draw.integers(3, 9)
        places = [(n, n // 2, "train") for n in range(size)]
        places += [(9 + later.integers(5), 50, "valid"), (14 + later.integers(5), 99, "test")]
        rows += [(f"u{user:02}", str((first + n) % ITEMS), time, part) for n, time, part in places]
    rows += [("cold", "3", 99, "test"), ("given", "4", 1, "given"), ("given", "5", 2, "test")]
    rows = [rows[n] for n in later.permutation(len(rows))]
    names = ("user_id", "item_id", "event_time", "part")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), path, row_group_size=40)
    return {"name": "log", "reader": "parquet", "path": str(path), "columns": {n: n for n in names}}


def bench(log: dict[str, Any], kinds: dict[str, dict[str, Any]] = KINDS, **more: Any) -> Any:
    fitted = [{"name": kind, "kind": kind, **FIT, **own, **more} for kind, own in kinds.items()]
    evaluation = {"metrics": ["ndcg"], "k": [5], "bootstrap": {"replicates": 10}}
    split = {"protocol": "given"}
    return small(models=[*models("popular"), *fitted], dataset=log, split=split, evaluation=evaluation)


def read_vectors(night: Ran, model: str) -> dict[tuple[str, str], bytes]:
    (settings,) = (m for m in night.benchmark.models if m.name == model)
    key = night.night.data.key(settings)
    rows = read_rows(night.store, EMBEDDINGS, model_id=key)
    return {(row.side, row.id): np.array([*row.vector, row.bias], np.float64).tobytes() for row in rows}


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    place = tmp_path_factory.mktemp("sequences")
    return run(ArrowStore(str(place / "w")), bench(write_log(place / "log.parquet", 1)))


@pytest.mark.full
def test_users_with_a_history_are_ranked_and_others_are_counted(night: Ran) -> None:
    for kind in KINDS:
        run_id = night.outcome.run_ids[kind]
        ranked = night.store.rows(RANKINGS, [("run_id", "=", run_id), ("part", "=", "test")])
        silent = {row["user_id"] for row in ranked if not row["length"]}
        assert silent == {"cold"} and len(ranked) == USERS + 2
        (check,) = night.store.rows(
            CHECKS, [("run_id", "=", run_id), ("check", "=", "test: users without output")]
        )
        assert check["observed"] == 1
    assert f"histories of {USERS} users; " in night.remarks


@pytest.mark.full
def test_the_attention_of_listed_users_is_stored(night: Ran) -> None:
    (settings,) = (m for m in night.benchmark.models if m.name == "memn2n")
    rows = night.store.rows(EXPLANATIONS, [("model_id", "=", night.night.data.key(settings))])
    assert {row["user_id"] for row in rows} == {"u05"}  # who has one item has a query and no memory
    sums = {hop: sum(row["weight"] for row in rows if row["hop"] == hop) for hop in (1, 2)}
    assert sums == {1: pytest.approx(1), 2: pytest.approx(1)}
    train = night.store.rows(SPLITS, [("split_id", "=", night.night.split_id), ("user_id", "=", "u05")])
    past = sorted((r["event_time"], int(r["item_id"])) for r in train if r["part"] == "train")
    expected = [str(item) for _, item in past[-6:-1]][::-1]
    assert [row["item_id"] for row in sorted(rows, key=lambda r: r["place"]) if row["hop"] == 1] == expected
    assert any(row["score_change"] for row in rows)
    (best,) = {row["best_item_id"] for row in rows}
    vectors = read_vectors(night, "memn2n")
    assert len(past) > 6 and best not in {str(item) for _, item in past} and ("item", best) in vectors
    scores = {
        item: np.frombuffer(vectors["user", "u05"]) @ np.frombuffer(vector)
        for (side, item), vector in vectors.items()
        if side == "item" and item not in {str(item) for _, item in past}
    }
    assert best == max(scores, key=lambda item: scores[item])
    assert "explain: 2 of 3 users have no memory" in night.remarks


@pytest.mark.full
def test_the_last_prefix_of_given_rows_is_the_stored_vector(night: Ran) -> None:
    """Curves open the weights that the fit has kept; without them the model is fitted again."""
    data = night.night.data
    index = {row.item_id: row.item_index for row in read_split(night.night, TABLES["items"])}
    for kind in KINDS:
        (settings,) = (m for m in night.benchmark.models if m.name == kind)
        chosen = make_adapter(settings)
        _, folder = chosen.make_prefix_scorer(chosen.load(data), data).open()
        assert folder is not None
        folded = folder.fold(np.array([0, 2]), np.array([index["4"], index["5"]]), np.ones(2))
        one, two = (np.array([*vector, 0.0]).tobytes() for vector in folded.vectors_pd)
        assert one == read_vectors(night, kind)["user", "given"] != two
        weights = Path(find_weights(data, data.key(settings)))
        files = {path.name for path in weights.parent.iterdir()}
        assert chosen.is_saved(data) and files == {weights.name, SEAL}
        weights.rename(weights.with_name("away"))
        assert not chosen.is_saved(data)
        with pytest.raises(StoreError, match="these weights fold users in"):
            chosen.make_fold_in(data)
        weights.with_name("away").rename(weights)


@pytest.mark.full
def test_later_rows_and_the_order_of_a_file_change_no_bit(
    night: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(local, "ROWS_PER_TASK", 50)
        other = run(ArrowStore(str(tmp_path / "w")), bench(write_log(tmp_path / "log.parquet", 2)))
    assert other.night.split_id != night.night.split_id
    for kind in KINDS:
        one, two = read_vectors(night, kind), read_vectors(other, kind)
        assert len(one) > USERS and one == two
    shown = run(night.store, bench(night_log(night), {"sasrec": KINDS["sasrec"]}, history="with_valid"))
    seen, blind = read_vectors(shown, "sasrec"), read_vectors(night, "sasrec")
    changed = {key for key, vector in seen.items() if vector != blind[key]}
    assert {side for side, _ in changed} == {"user"} and len(changed) == USERS
    assert shown.outcome.run_ids["sasrec"] != night.outcome.run_ids["sasrec"]


def night_log(night: Ran) -> dict[str, Any]:
    return night.benchmark.dataset.model_dump(exclude={"world"})


def test_a_log_without_times_is_refused_by_name(night: Ran, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.parquet", 1)
    pq.write_table(pq.read_table(log["path"]).drop(["event_time"]), log["path"])
    del log["columns"]["event_time"]
    outcome = run(night.store, bench(log, {"gru4rec": {}})).outcome
    assert "reads histories in the order of time" in str(outcome.failed)


def test_tasks_compute_vectors_and_attention_user_by_user(tmp_path: Path) -> None:
    """The functions that tasks run, on batches of three users and of one; the last one has no memory."""
    settings: Any = make_model({"name": "m", "kind": "memn2n", **FIT, "hops": 2}, "models")
    lists = [[1, 2, 3, 4, 5, 6, 7], [3, 1, 4], [8]]
    task = SequenceTask(make_sequences(lists, ITEMS), settings)
    fit(task, settings.plan(), tmp_path / "checkpoints", lambda _: None)
    place = tmp_path / CHECKPOINT
    network = FittedNetwork(settings, ITEMS, str(place), place.stat().st_size, digest_content(place))
    rows = label_rows({"a": lists[0], "b": lists[1], "c": lists[2]}, owned={"a": [0, *range(9, ITEMS)]})
    rule = HistoryRule(know_items(tmp_path), None, ("train", "given"), np.ones(ITEMS, bool))
    vectors = embed_users(rows, rule, network)
    alone = [embed_users(rows.filter(pc.equal(rows["user_id"], user)), rule, network) for user in "abc"]
    assert vectors["user_id"].to_pylist() == ["a", "b", "c"] and pa.concat_tables(alone).equals(vectors)
    explain = partial(explain_listed, rows, network=network, listed=("a", "b", "c", "d"))
    explained, table = explain(rule)
    assert explained == 2
    first = [row for row in table.to_pylist() if row["user_id"] == "a" and row["hop"] == 2]
    assert [row["item_id"] for row in first] == ["6", "5", "4", "3", "2"]  # the five before the newest
    assert sum(row["weight"] for row in first) == pytest.approx(1)
    assert set(table["user_id"].to_pylist()) == {"a", "b"}
    assert {row["best_item_id"] for row in first} == {"8"}
    rule.learnt_i[8] = False
    assert set(explain(rule)[1]["user_id"].to_pylist()) == {"b"}, "no item is left for a"


def label_rows(lists: dict[str, list[int]], owned: dict[str, list[int]]) -> pa.Table:
    """Relevant rows of items in the order of time, and irrelevant ones of other items that users have."""
    rows = [(user, str(item), 1.0, n, "train") for user, own in lists.items() for n, item in enumerate(own)]
    rows += [(user, str(item), 0.0, 0, "given") for user, own in owned.items() for item in own]
    return pa.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))


def know_items(folder: Path) -> KnownItems:
    columns = {"item_id": list(map(str, range(ITEMS))), "item_index": range(ITEMS), "n_train": [1] * ITEMS}
    pq.write_table(
        pa.table({name: list(column) for name, column in columns.items()}), folder / "items.parquet"
    )
    return KnownItems(SharedRows(f"items-{folder.name}", (str(folder / "items.parquet"),)), ITEMS)


def test_histories_are_in_the_order_of_time_and_ties_in_that_of_items(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "user_id": ["tied", "tied", "tied", "still", "still", "odd", "one", "none"],
            "item_id": ["7", "3", "9", "2", "1", "x", "5", "5"],
            "rating": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0],
            "event_time": [5, 5, 1, 4, 4, 1, None, 1],
            "part": ["train"] * 8,
        }
    )
    for order in ([0, 1, 2, 3, 4, 5, 6, 7], [6, 1, 7, 4, 3, 2, 5, 0]):
        cut = HistoryRule(know_items(tmp_path), None).cut(rows.take(pa.array(order))).to_pylist()
        users = {row.pop("user_id"): row for row in cut}
        assert users == {
            "tied": {"items": [9, 3, 7], "tied": True, "still": False},
            "still": {"items": [1, 2], "tied": True, "still": True},
            "one": {"items": [5], "tied": False, "still": False},
        }


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("memn2n", {"hops": 0}, "hops"),
        ("memn2n", {"memory": 0}, "memory"),
        ("sasrec", {"memory": 0}, "memory"),
        ("sasrec", {"dims": 5, "heads": 2}, "heads: 5 dims are not divided by 2"),
        ("memn2n", {"epochs": 3, "linear_epochs": 3}, "leave none with the softmax"),
        ("memn2n", {"linear_epochs": 5, "patience": 5}, "patience: 5 ends a fit in its 5 linear epochs"),
        ("gru4rec", {"history": "all"}, "history"),
        ("gru4rec", {"validation": 0.1}, "validation"),
    ],
)
def test_wrong_settings_are_refused_by_name(kind: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(models=[{"name": "m", "kind": kind, **more}])


def test_a_part_that_is_shown_is_not_measured() -> None:
    evaluation = {"metrics": ["ndcg"], "k": [5], "parts": ["valid", "test"]}
    shown = {"name": "m", "kind": "sasrec", "history": "with_valid"}
    with pytest.raises(ConfigError, match=r"models\.m: history 'with_valid' shows the part valid"):
        small(models=[shown], evaluation=evaluation)


@pytest.mark.parametrize(
    "split",
    [{}, {"holdout": "leave_one_out"}, {"held_out": {"of": "users", "test": 0.1, "valid": 0.1}}],
)
def test_a_part_that_does_not_exist_is_not_shown(split: dict[str, Any]) -> None:
    """With `held_out`, the part valid has rows of other users than those that are tested."""
    evaluation = {"metrics": ["ndcg"], "k": [5]}
    shown = {"name": "m", "kind": "gru4rec", "history": "with_valid"}
    with pytest.raises(ConfigError, match=r"models\.m: history 'with_valid', and users have no rows"):
        check_night(small(models=[shown], evaluation=evaluation, split=split))
    more: dict[str, Any] = {"holdout": "leave_one_out", "valid": True}
    check_night(small(models=[shown], evaluation=evaluation, split=more))


def test_readers_without_times_are_refused_before_spark() -> None:
    (model,) = small(models=[{"name": "m", "kind": "memn2n"}]).models
    with pytest.raises(ConfigError, match="logs of reader 'coat' have no times"):
        model.check("coat")
    model.check("parquet")
