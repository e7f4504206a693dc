"""Learning curves by jobs: the study of five systems on drawn ratings, the bench, and shipped files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jobs.bench import curves as bench
from jobs.bench import spark_curves as spark_bench
from jobs.studies import curves as study
from recbench_spark.commands import nightly
from recbench_spark.config import load_benchmark
from recbench_spark.errors import ConfigError
from recbench_spark.models.prefix_scorers import PrefixScorer
from recbench_spark.night.benchmark_checks import check_benchmark

FLAGS = ["--users", "10", "--points", "4", "--draws", "2", "--dims", "3", "--trials", "3"]


def write_ratings(path: Path) -> Path:
    """Write 40 users with 12 of 30 films each, and one user with 3 films."""
    draw = np.random.default_rng(0)
    rows = [
        (user, film, draw.integers(1, 6), 0 if user == 1 else at)
        for user in range(1, 42)
        for at, film in enumerate(draw.choice(30, 3 if user == 41 else 12, replace=False))
    ]
    pd.DataFrame(rows, columns=["userId", "movieId", "rating", "timestamp"]).to_csv(path, index=False)
    return path


def test_five_systems_have_curves_and_crossings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_ratings(tmp_path / "ratings.csv")
    flags = ["systems", "--ratings", str(path), *FLAGS]
    assert study.main(study.parser().parse_args(flags)) == 0
    first = capsys.readouterr().out
    for candidates in ("unseen", "rated"):
        assert f"candidates: {candidates}; 10 users, 2 orders of their ratings" in first
    for system in ("sgd_mf", "als_wr", "implicit_als", "item_knn", "popular"):
        assert first.count(f"\n| {system} | ") == 2
    assert sum("sign changes" in line for line in first.splitlines()) == 20
    assert len(re.findall(r"MANDCG .* on the other 5 users", first)) == 2
    popular = (
        next(line for line in first.splitlines() if line.startswith("| popular")).strip(" |").split(" | ")
    )
    assert len(set(popular[5:])) == 1  # it does not look at what is given
    assert study.main(study.parser().parse_args(flags)) == 0
    assert capsys.readouterr().out == first
    assert study.main(study.parser().parse_args([*flags, "--order", "time"])) == 0
    assert "10 users, 1 orders" in capsys.readouterr().out


def test_users_with_one_time_are_counted(tmp_path: Path) -> None:
    log = study.read_log(str(write_ratings(tmp_path / "ratings.csv")), ordered=True)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(log.user_r))])
    assert study.count_equal_times(log, bounds, 3) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--users", "41"], "40 users have 5 rows or more, not 41"),
        (["--points", "12"], "0 users have 13 rows or more, not 10"),
    ],
)
def test_points_beyond_the_histories_are_refused(tmp_path: Path, flags: list[str], message: str) -> None:
    path = write_ratings(tmp_path / "ratings.csv")
    with pytest.raises(ConfigError, match=message):
        study.main(study.parser().parse_args(["systems", "--ratings", str(path), *FLAGS, *flags]))
    with pytest.raises(ConfigError, match="systems need a file of ratings"):
        study.main(study.parser().parse_args(["systems", *FLAGS]))
    pd.DataFrame({"user": [1], "item": [2], "rating": [3]}).to_csv(path, index=False)
    with pytest.raises(ConfigError, match="no column 'timestamp'"):
        study.read_log(str(path), ordered=True)


def test_the_bench_takes_turns(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--users", "3", "--items", "80", "--dims", "4", "--points", "5", "--rounds", "1"]
    assert bench.main(bench.parser().parse_args(flags)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["fold-in", "als", "implicit als"]


@pytest.mark.parametrize("kind", spark_bench.FOLD_INS)
def test_both_ways_on_spark_give_the_same_values(spark: Any, tmp_path: Path, kind: str) -> None:
    draw = np.random.default_rng(1)
    vectors = draw.normal(size=(80, 4)).astype(np.float32)
    users, request = bench.draw_users(draw, 40, 80), bench.make_request(3)
    world = spark_bench.store_world(tmp_path, vectors, users, request)
    model = PrefixScorer(world.source, spark_bench.FOLD_INS[kind])
    spark_bench.write_ready(world, model, tmp_path / "ready")
    spark_bench.write_curve(world, model)
    spark_bench.rank_ready(world, tmp_path / "ready")
    rows = pd.read_parquet(tmp_path / "ready_values")
    ready = {key: sorted(values) for key, values in rows.groupby("user_key")["value"]}
    curve = pd.read_parquet(tmp_path / "values")
    assert len(curve) == len(ready) > 30 and len(rows) == 3 * len(curve)
    for key, values in zip(curve["user_key"], curve["values"], strict=True):
        assert sorted(values[0]) == ready[key]
    assert spark_bench.read_heap(spark) > 0


@pytest.mark.parametrize("name", ["movielens_1m_curves", "movielens_latest_small_curves"])
def test_shipped_files_of_curves_are_valid(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both run by one command; the second one over five splits."""
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,2,3.0,4\n")
    place = ["--set", f"dataset.path={tmp_path}", "--warehouse", str(tmp_path / "w")]
    flags = ["--config", name, *place, "--logical-date", "2026-01-01", "--dry-run"]
    check_benchmark(load_benchmark(name, [f"dataset.path={tmp_path}"]))
    assert nightly.main(nightly.parser().parse_args(flags)) == 0
    said = capsys.readouterr().out
    assert "switch (switch)" in said and "negative_grades=signed" in said and "state       to do" in said
    assert nightly.main(nightly.parser().parse_args([*flags, "--split-seeds", "1,2,3,4,5"])) == 0
    assert f"{name}-seed5, 5 of 5" in capsys.readouterr().err
