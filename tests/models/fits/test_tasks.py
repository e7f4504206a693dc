"""A fit as a task, without Spark: equal bits however the log lies, failures as rows, nothing done twice."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.errors import ConfigError
from recbench_spark.models.fits import tasks
from recbench_spark.models.fits.logs import SharedRatingLog, index_ids, require_times
from recbench_spark.models.fits.tasks import FitTask, fit_one
from recbench_spark.models.rating import registry
from recbench_spark.models.rating.registry import make_settings
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.objects import read_bytes
from recbench_spark.storage.shared_arrays import SharedRows

SGD = {"kind": "sgd_mf", "dims": 3, "epochs": 5, "rates": 0.02}
ROWS = [(f"u{u}", str(i), float(1 + (u * i) % 5), (u + i) * 86_400_000_000, str((3 * u + i) % 4))
        for u in range(12) for i in range(15) if (u + 2 * i) % 3]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_host_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "host"))


def log_files(folder: Path, pieces: int = 1, rows: list[Any] = ROWS, name: str = "log") -> SharedRatingLog:
    """The rows in so many files, in another order for each number of files."""
    order = np.random.default_rng(pieces).permutation(len(rows))
    files = []
    for piece in range(pieces):
        chosen = [rows[n] for n in order[piece::pieces]]
        columns = zip(*chosen, strict=True) if chosen else [[]] * 5
        names = ("user_id", "item_id", "rating", "event_time", "part")
        types = (pa.string(), pa.string(), pa.float64(), pa.int64(), pa.string())
        arrays = {n: pa.array(list(c), t) for n, c, t in zip(names, columns, types, strict=True)}
        path = folder / f"{name}-{pieces}-{piece}.parquet"
        pq.write_table(pa.table(arrays), path)
        files.append(str(path))
    parts = tuple(sorted({row[4] for row in rows}))
    key = f"{name}-{pieces}-{folder.name}"
    timed = all(row[3] is not None for row in rows)
    ratings = [row[2] for row in rows]
    return SharedRatingLog(
        SharedRows(key, tuple(files)), parts, (min(ratings), max(ratings)), timed, len(rows)
    )


def task(settings: dict[str, Any] = SGD, **changes: Any) -> FitTask:
    full = make_settings(settings).model_dump()
    base = FitTask("f", "ours", full, seed=3, fold=1, train=("0", "2", "3"), watched=("1",))
    return replace(base, **changes)


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: row[key] for key in ("rmse", "mae", "rmse_by_part", "rmse_by_step", "n_train", "n_watched")
    }


@pytest.mark.full
@pytest.mark.parametrize("kind", ["als", *sorted(registry.FAMILIES)])
def test_files_and_their_order_change_no_bit(tmp_path, kind) -> None:
    small = {
        "als": {"implicit": False},
        "bayesian_mf": {"features": "u,i,t,iu,ii", "dims": 2, "samples": 4},
        "rbm": {"epochs": 3},
    }
    requests = task({"kind": kind, **small.get(kind, {})})
    first, *others = (fit_one(requests, log_files(tmp_path, pieces)) for pieces in (1, 3, 17))
    assert first["status"] == "succeeded", first.get("error")
    assert [numbers(row) for row in others] == [numbers(first)] * 2


def test_the_number_is_that_of_plain_arithmetic(tmp_path) -> None:
    row = fit_one(task({"kind": "means", "means": "global"}), log_files(tmp_path))
    train = [Fraction(r) for _, _, r, _, part in ROWS if part != "1"]
    test = [Fraction(r) for _, _, r, _, part in ROWS if part == "1"]
    mean = sum(train) / len(train)
    wanted = (sum((r - mean) ** 2 for r in test) / len(test)) ** 0.5
    assert row["rmse"] == pytest.approx(float(wanted), rel=1e-13)
    assert (row["n_train"], row["n_watched"]) == (len(train), len(test))
    assert row["rmse_by_part"] == {"1": row["rmse"]}


@pytest.mark.parametrize("asked", [["a", "a", "u1", "u1+", "u5+", "zz"], ["a", "zz"]])
def test_errors_count_rows_of_users_without_training(tmp_path, asked: list[str]) -> None:
    """Such users come first, between others and last; then nobody else is asked."""
    test = [(user, str(n), float(1 + n % 5), 0, "1") for n, user in enumerate(asked, 20)]
    rows = [*((*row[:4], "0") for row in ROWS), *test]
    row = fit_one(task({"kind": "means", "means": "global"}, train=("0",)), log_files(tmp_path, rows=rows))
    mean = Fraction(sum(Fraction(row[2]) for row in ROWS), len(ROWS))
    wrong = [abs(Fraction(rating) - mean) for _, _, rating, *_ in test]
    assert row["mae"] == pytest.approx(float(sum(wrong) / len(wrong)), rel=1e-13)
    assert row["rmse"] == pytest.approx(float(sum(w * w for w in wrong) / len(wrong)) ** 0.5, rel=1e-13)
    assert row["rmse_by_part"] == {"1": row["rmse"]} and row["n_watched"] == len(asked)


def test_the_row_says_which_items_were_counted(tmp_path) -> None:
    """Boards have one entry for each setting of a model, by this text."""
    files = log_files(tmp_path)
    rows = [json.loads(fit_one(task(whole=whole), files)["settings_json"]) for whole in (False, True)]
    assert rows[1] == {**rows[0], "items": "catalogue"}


def test_ids_are_in_the_order_of_rankings() -> None:
    place, ids = index_ids(pa.chunked_array([["10", "9"], ["9", "100"]]))
    assert (place.tolist(), ids.tolist()) == ([1, 0, 0, 2], [b"9", b"10", b"100"])
    assert index_ids(pa.chunked_array([["10", "9", "x"]]))[1].tolist() == [b"10", b"9", b"x"]


def test_a_fit_that_was_made_is_not_made_again(tmp_path, monkeypatch) -> None:
    requests, files = task(folder=str(tmp_path / "fits")), log_files(tmp_path)
    made = fit_one(requests, files)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("fitted twice")

    monkeypatch.setattr(registry, "fit", never)
    assert fit_one(replace(requests, model="renamed"), files) == {**made, "model": "renamed"}
    Path(requests.place(tasks.ROW)).write_text(json.dumps(made)[:40])
    assert "fitted twice" in fit_one(requests, files)["error"], "half a row is none"


def test_what_is_kept_is_what_was_measured(tmp_path) -> None:
    requests, files = task(folder=str(tmp_path / "fits")), log_files(tmp_path)
    row = fit_one(requests, files)
    kept = pq.read_table(requests.place(tasks.PREDICTIONS)).to_pandas()
    assert ((kept.rating - kept.prediction) ** 2).mean() ** 0.5 == pytest.approx(row["rmse"], rel=1e-12)
    assert {(r.user_id, r.item_id, r.rating, r.part) for r in kept.itertuples()} == {
        (u, i, r, part) for u, i, r, _, part in ROWS if part == "1"
    }
    model, log = registry.load(requests.place(tasks.MODEL)), files.open()
    users, items = log.arrays["user_ids"].tolist(), log.arrays["item_ids"].tolist()
    at = kept.iloc[5]
    pair = [np.array([ids.index(one.encode())]) for ids, one in ((users, at.user_id), (items, at.item_id))]
    assert model.predict(*pair)[0] == at.prediction
    vectors = pq.read_table(requests.place(tasks.USERS)).to_pandas().set_index("user_id")
    other = pq.read_table(requests.place(tasks.ITEMS)).to_pandas().set_index("item_id")
    u, i = vectors.loc[at.user_id], other.loc[at.item_id]
    score = u.vector.astype(float) @ i.vector.astype(float) + u.bias + i.bias
    assert np.clip(score, 1, 5) == pytest.approx(at.prediction, abs=1e-6)


def test_a_diverged_fit_is_a_row_and_so_is_any_failure(tmp_path, monkeypatch) -> None:
    files = log_files(tmp_path)
    row = fit_one(task({**SGD, "rates": 50.0}, folder=str(tmp_path / "fits")), files)
    assert row["status"] == "diverged" and "epoch 1" in row["error"] and row["seconds"] > 0
    assert read_bytes(f"{tmp_path}/fits/f/{tasks.ROW}") is not None, "it would diverge again"
    failed = fit_one(task(watched=("nowhere",), folder=str(tmp_path / "other")), files)
    assert failed["status"] == "failed" and "no part 'nowhere'" in failed["error"]
    assert read_bytes(f"{tmp_path}/other/f/{tasks.ROW}") is None, "another attempt may succeed"

    def full(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(registry, "fit", full)
    assert "out of memory" in fit_one(task(), files)["error"]


def test_validation_rows_are_drawn_from_training_alone(tmp_path) -> None:
    log = log_files(tmp_path).open()
    train_r, valid_r = tasks.choose_rows(task(share=0.3, watched=()), log)
    both = np.sort(np.concatenate([train_r, valid_r]))
    assert (both == log.find_rows(("0", "2", "3"))).all() and 0.15 < len(valid_r) / len(both) < 0.45
    again = tasks.choose_rows(task(share=0.3, watched=(), seed=99), log)[1]
    other = tasks.choose_rows(task(share=0.3, watched=(), share_seed=4), log)[1]
    assert (again == valid_r).all() and not np.array_equal(other, valid_r)
    row = fit_one(task(share=0.3, watched=()), log_files(tmp_path))
    assert row["parts"] == ["validation"] and row["n_watched"] == len(valid_r)


def test_one_user_one_rating_and_items_that_training_has_not(tmp_path) -> None:
    lone = [("a", str(i), 3.0, 0, "1" if i == 4 else "0") for i in range(6)]
    for kind in sorted(registry.FAMILIES):
        row = fit_one(task({"kind": kind}, train=("0",)), log_files(tmp_path, rows=lone, name=kind))
        assert row["status"] == "succeeded", (kind, row["error"])
        assert row["rmse"] == pytest.approx(0, abs=0.6), "all ratings are 3"
    assert fit_one(task(train=("0",), watched=()), log_files(tmp_path, rows=lone))["status"] == "failed"


def test_a_rating_outside_the_scale_is_named(tmp_path) -> None:
    row = fit_one(task(), replace(log_files(tmp_path), scale=(1.0, 4.0)))
    assert row["status"] == "failed" and "rating 5 in row" in row["error"]


def test_models_of_days_refuse_a_log_without_times_by_name(tmp_path) -> None:
    without = [(u, i, r, None if n == 3 else t, p) for n, (u, i, r, t, p) in enumerate(ROWS)]
    files = log_files(tmp_path, rows=without)
    days = make_settings({"kind": "bayesian_mf", "features": "u,i,t,iu"})
    with pytest.raises(ConfigError, match="model svd: features 'u,i,t,iu' need the time") as error:
        require_times(files, "svd", days)
    assert "features: u,i,iu" in error.value.hint
    require_times(files, "svd", make_settings({"kind": "bayesian_mf", "features": "u,i,iu"}))
    require_times(log_files(tmp_path), "svd", days)
    assert "times" not in files.open().arrays


def test_pairs_alone_count_from_the_threshold_on(tmp_path) -> None:
    log = log_files(tmp_path).open()
    requests = task({"kind": "implicit_als"}, threshold=4.0)
    ratings = log.arrays["ratings"][tasks.choose_rows(requests, log)[0]]
    assert len(ratings) and ratings.min() >= 4


def test_memory_is_that_of_this_fit() -> None:
    facts: dict[str, Any] = {}
    with tasks.measure_resources(facts):
        large = np.ones(25_000_000)
    before = facts["peak_bytes"]
    del large
    with tasks.measure_resources(facts):
        pass
    assert before - facts["peak_bytes"] > 100_000_000, "forgotten between two fits"
    assert facts["seconds"] < 1 and facts["cpu_seconds"] < 1


def test_folders_of_hosts_are_private(tmp_path) -> None:
    log_files(tmp_path).open()
    assert shared_arrays.host_folder().parent == tmp_path / "host"
