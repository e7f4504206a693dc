"""Propensities on Spark: by hand, and the published study's exponents on its own data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression

from recbench_spark.analyses.exposure import logistic
from recbench_spark.analyses.exposure.kernels.power_law import fit
from recbench_spark.analyses.exposure.night_propensity import ExposureLog, method_name, write_propensities
from recbench_spark.commands import propensity
from recbench_spark.config import Propensities, parse
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.schemas import (
    CELL_PROPENSITIES,
    ITEMS,
    POWER_LAWS,
    PROPENSITIES,
    RATING_PROPENSITIES,
    SPLITS,
)
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.store import Store
from tests.nights import read_rows

# a is shown to 4 users, b and c to 2, d to 1, e only in the test part; ratings 5 where the user is odd.
SHOWN = {"a": (1, 2, 3, 4), "b": (1, 2), "c": (3, 4), "d": (1,)}
SPLIT = "s1"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArrowStore:
    made = ArrowStore(str(tmp_path_factory.mktemp("propensities") / "warehouse"))
    rows = [
        (SPLIT, f"u{user}", item, 5.0 if user % 2 else 1.0, "train")
        for item, users in SHOWN.items()
        for user in users
    ]
    # Of ten cells drawn at random two are rated 5 and eight 1.
    rows += [
        (SPLIT, f"u{n % 4 + 1}", "abcde"[n % 5], 5.0 if n < 2 else 1.0, "open_loop") for n in range(10)
    ]
    names = ("split_id", "user_id", "item_id", "rating", "part")
    made.append([dict(zip(names, row, strict=True)) for row in rows], SPLITS)
    items = [(SPLIT, item, n, 0, "tail", None) for n, item in enumerate("abcde")]
    made.append([dict(zip(ITEMS.names, row, strict=True)) for row in items], ITEMS)
    return made


def read_propensities(store: ArrowStore, name: str) -> dict[str, float]:
    rows = read_rows(store, PROPENSITIES, split_id=SPLIT, method=name)
    assert len(rows) == len({row.item_id for row in rows})
    return {row.item_id: row.propensity for row in rows}


def run(store: FileTables, *flags: str) -> None:
    args = propensity.parser().parse_args(["--warehouse", store.root, *flags])
    assert propensity.main(args) == 0


@pytest.mark.contract("propensity")
def test_relative_frequencies_by_hand_through_the_job(
    store: ArrowStore, capsys: pytest.CaptureFixture[str]
) -> None:
    run(store, "--split", SPLIT, "--method", "relative_frequency")
    assert read_propensities(store, "relative_frequency") == {
        "a": 1.0,
        "b": 0.5,
        "c": 0.5,
        "d": 0.25,
        "e": 0.0,
    }
    assert "5 items: propensities 0 to 1" in capsys.readouterr().out


def test_powers_by_hand_scaled_and_clipped_and_written_once(store: ArrowStore) -> None:
    law = fit([1, 2, 4], [1, 2, 1])
    settings = Propensities(scale="largest", floor=0.2)
    rows, items = (store.open_rows(table, "split_id", [SPLIT]) for table in (SPLITS, ITEMS))
    exposed = ExposureLog(store, SPLIT, rows, ("train",), items)
    for _ in range(2):
        first_fit = write_propensities(exposed, settings, replicates=20)
    assert first_fit is not None and (first_fit.alpha, first_fit.xmin) == (law.alpha, law.xmin)
    power = (law.alpha + 1) / 2
    wanted = {item: max(0.2, (len(users) / 4) ** power) for item, users in SHOWN.items()}
    assert settings.name == "power_law;scale=largest;floor=0.2"
    assert read_propensities(store, settings.name) == pytest.approx({**wanted, "e": 0.2})
    (row,) = read_rows(store, POWER_LAWS)
    assert (row.alpha, row.items, row.users, row.interactions) == (law.alpha, 4, 4, 9)
    assert row.lowered == 0 and row.raised == sum(p == 0.2 for p in {**wanted, "e": 0.2}.values())
    assert row.factor == pytest.approx(4**-power) and 0 < row.p <= 1


def test_naive_bayes_by_hand(store: ArrowStore) -> None:
    run(store, "--split", SPLIT, "--method", "naive_bayes")
    rows = read_rows(store, RATING_PROPENSITIES)
    # P(5 | shown) P(shown) / P(5): 5 of 9 rows are 5, 9 of 20 cells are shown, 2 of 10 drawn are 5.
    assert {row.rating: row.propensity for row in rows} == pytest.approx(
        {5.0: (5 / 20) / (2 / 10), 1.0: (4 / 20) / (8 / 10)}
    )


def features(path: Path, key: str, values: np.ndarray) -> str:
    rows = [f"{key[0]}{n},{','.join(map(str, row))}" for n, row in enumerate(values)]
    names = ",".join(f"x{n}" for n in range(values.shape[1]))
    path.write_text("\n".join([f"{key},{names}", *rows]) + "\n")
    return str(path)


def test_logistic_regression_against_sklearn_and_with_cells_drawn(tmp_path: Path) -> None:
    """100 users with one feature, 30 items with two, of whom one item is never shown; 1 in 8 cells is."""
    rng = np.random.default_rng(5)
    of_users, of_items = rng.normal(size=(100, 1)).round(3), rng.normal(size=(30, 2)).round(3)
    logit = 0.7 * of_users + (of_items @ [0.8, -0.5])[None, :] - 2.5
    shown = rng.random(logit.shape) < 1 / (1 + np.exp(-logit))
    shown[:, 7] = False
    store = ArrowStore(str(tmp_path / "w"))
    table = make_rows(shown)
    # Spread over pieces; a cell that is shown twice is one cell.
    pieces = [table.slice(0, 40), table.slice(30, 10), table.slice(40)]
    rows = PieceRows(store.engine, pieces, select_tables)
    tables = {"user_features": features(tmp_path / "users.csv", "user_id", of_users),
              "item_features": features(tmp_path / "items.csv", "item_id", of_items)}  # fmt: skip
    propensities = {}
    for rate in (1.0, 0.3):
        settings = Propensities(method="logistic_regression", rate=rate, **tables)
        write_propensities(ExposureLog(store, SPLIT, rows), settings, cells=rate == 1.0)
        propensities[rate] = read_propensities(store, method_name(store, settings))
    there = np.flatnonzero(shown.any(axis=1))  # who has no row is not a user of the log
    users = len(there)
    cases = np.concatenate([np.repeat(of_users[there], 30, axis=0), np.tile(of_items, (users, 1))], axis=1)
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(cases, shown[there].ravel())
    chance = model.predict_proba(cases)[:, 1].reshape(users, 30)
    mean = chance.mean(axis=0)
    every = {(row["user_id"], row["item_id"]): row["propensity"] for row in store.rows(CELL_PROPENSITIES)}
    wanted = {(f"u{there[u]}", f"i{i}"): p for (u, i), p in np.ndenumerate(chance)}
    assert every == pytest.approx(wanted, rel=1e-4)
    assert propensities[1.0] == pytest.approx({f"i{i}": mean[i] for i in range(30)}, rel=1e-4)
    # Three in ten of 2,486 cells outside the log; with the intercept as fitted values would be tripled.
    drawn = np.array([propensities[0.3][f"i{i}"] for i in range(30)])
    assert np.abs(drawn / mean - 1).max() < 0.25 and abs(drawn.mean() / mean.mean() - 1) < 0.1
    (tmp_path / "users.csv").write_text("user_id,x\nu0,1\n")
    with pytest.raises(DataError, match="ids of user_id without all features"):
        write_propensities(ExposureLog(store, "other", rows), settings)


def make_rows(shown: np.ndarray) -> pa.Table:
    users, items = (
        [f"{kind}{n}" for n in places] for kind, places in zip("ui", np.nonzero(shown), strict=True)
    )
    parts = pa.repeat("train", len(users))
    return pa.table({"user_id": users, "item_id": items, "rating": np.ones(len(users)), "part": parts})


def select_tables(pieces: Iterable[pa.Table], columns: Sequence[str]) -> Iterator[pa.Table]:
    return (piece.select(columns) for piece in pieces)


def test_runners_and_pieces_fit_the_same_bits(spark, tmp_path: Path, monkeypatch: Any) -> None:
    """Few cells are held at once; one feature is constant, another repeats the first a thousandfold."""
    monkeypatch.setattr(logistic, "CELLS_AT_ONCE", 64)
    rng = np.random.default_rng(6)
    shown, of_items = rng.random((40, 13)) < 0.3, rng.normal(size=(13, 1)).round(3)
    repeated = np.hstack([of_items, np.full((13, 1), 7.0), 1e6 + 1000 * of_items])
    path, table = features(tmp_path / "items.csv", "item_id", repeated), make_rows(shown)
    settings = Propensities(method="logistic_regression", rate=0.5, floor=0.3, item_features=path)
    bits = []
    for name, cuts in (("one", 1), ("many", 5), ("spark", 3)):
        store: Any = ArrowStore(str(tmp_path / name), workers=1 + (cuts == 5))
        step = -(-len(table) // cuts)
        pieces = [table.slice(start, step) for start in range(0, len(table), step)]
        if name == "spark":
            store = Store(spark, str(tmp_path / name))
        rows = PieceRows(store.engine, pieces, select_tables)
        write_propensities(ExposureLog(store, SPLIT, rows), settings, cells=True)
        cells = {(r["user_id"], r["item_id"]): r["propensity"] for r in store.rows(CELL_PROPENSITIES)}
        bits.append((read_propensities(store, method_name(store, settings)), cells))
    assert bits[0] == bits[1] == bits[2]
    chances, cells = bits[0]
    assert len(chances) == 13 and min(chances.values()) == 0.3 and len(cells) == 40 * 13
    alone = features(tmp_path / "alone.csv", "item_id", of_items)
    store, other = ArrowStore(str(tmp_path / "one")), settings.model_copy(update={"item_features": alone})
    write_propensities(ExposureLog(store, SPLIT, PieceRows(store.engine, [table], select_tables)), other)
    assert read_propensities(store, method_name(store, other)) == pytest.approx(chances, rel=1e-3)


def test_flags_and_settings_that_contradict_are_refused() -> None:
    flags = ["--warehouse", "w", "--split", "s"]
    for more in (
        ["--reader", "csv"],
        ["--goodness", "-1"],
        ["--given", "p"],
        ["--method", "given"],
        ["--cells"],
    ):
        with pytest.raises(ConfigError):
            propensity.main(propensity.parser().parse_args([*flags, *more]))
    logistic = {"method": "logistic_regression"}
    for wrong in ({"floor": 0.0}, logistic, {"item_features": "f"},
                  {**logistic, "item_features": "f", "scale": "largest"}):  # fmt: skip
        with pytest.raises(ConfigError):
            parse(Propensities, wrong, "file")


@pytest.mark.data
@pytest.mark.slow
def test_the_published_exponents_of_coat(
    spark, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(Store(spark, str(tmp_path)), "--log", str(shared_data / "coat"), "--reader", "coat")
    output = capsys.readouterr().out
    assert "alpha 4.0147929445274" in output and "xmin 28, 82 of 300 items" in output
