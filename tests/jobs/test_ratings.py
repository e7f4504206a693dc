"""Flags of the jobs of rating prediction, and what they say before Spark starts."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest

from jobs.bench import ratings as bench
from jobs.studies import ratings as study
from recbench_spark import cli
from recbench_spark.commands import benchmark, board, bundle, tune
from recbench_spark.config import find_benchmark, load_benchmark
from recbench_spark.errors import ConfigError
from recbench_spark.models.rating.registry import FAMILIES

ASKED = ["--config", "movielens_1m_rating", "--set", "dataset.path=/data", "--warehouse", "w"]
FILES = ("movielens_100k", "movielens_latest_small", "movielens_1m", "movielens_10m", "netflix")


def run(job, *flags: str) -> int:
    return int(job.main(job.parser().parse_args(list(flags))))


def test_a_dry_run_names_folds_and_counts_fits(capsys, tmp_path) -> None:
    request = ["--config", "movielens_1m_rating", "--set", f"dataset.path={tmp_path}", "--warehouse", "w"]
    assert run(benchmark, *request, "--dry-run", "--seeds", "1,2", "--models", "means,sgd_mf") == 0
    output = capsys.readouterr().out
    assert "fits        40" in output and "folds       0, 1, 2" in output and "sgd_mf (sgd_mf)" in output
    assert run(benchmark, *request, "--dry-run", "--folds", "3") == 0
    assert "fits        5" in capsys.readouterr().out
    many = [*request, "--set", "split.folds=1000000"]
    assert run(benchmark, *many, "--dry-run") == 0
    output = capsys.readouterr().out
    assert "folds       0, 1, ..., 999999 (1,000,000)\n" in output and len(output) < 2000
    with pytest.raises(ConfigError, match="no fold 1000000") as error:
        run(benchmark, *many, "--dry-run", "--folds", "1000000")
    assert error.value.hint == "this split has folds 0, 1, ..., 999999 (1,000,000)"
    assert run(tune, *request, "--dry-run", "--models", "sgd_mf", "--budget", "3") == 0
    assert "3 settings per method" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("job", "flags", "message"),
    [
        (benchmark, [*ASKED, "--models", "sgd"], "unknown 'sgd'"),
        (benchmark, [*ASKED, "--folds", "10"], "--folds: no fold 10"),
        (tune, [*ASKED, "--models", "bayesian_mf"], "unknown 'bayesian_mf'"),
        (board, ["--config", "movielens_1m_rating", "--set", "dataset.path=/data"], "needs --warehouse"),
        (board, ["--published", "ml10m"], "no published board 'ml10m'"),
        (bundle, ["score", *ASKED], "score needs --bundle"),
        (bundle, ["pack", *ASKED, "--output", "o"], "one of --model, --predictions, --lists"),
        (bundle, ["pack", *ASKED, "--output", "o", "--lists", "l"], "pack needs --name"),
        (study, [*ASKED, "--figure", "setting"], "--figure setting and --vary go together"),
    ],
)
def test_mistakes_are_told_before_spark_starts(job, flags, message) -> None:
    with pytest.raises(ConfigError, match=message):
        run(job, *flags)


@pytest.mark.parametrize("text", ["a", "1,1", "-1", ""])
def test_seeds_are_whole_numbers_each_once(text) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        cli.parse_seeds(text)


def test_sizes_of_a_figure() -> None:
    assert study.sizes("16,128:3") == (study.FactorSize(16, None), study.FactorSize(128, 3))
    for wrong in ("16,", "a", "16:0", "0"):
        with pytest.raises(argparse.ArgumentTypeError):
            study.sizes(wrong)
    assert study.parse_variation("regularisers=0.1,0.2") == ("regularisers", (0.1, 0.2))


def test_the_published_boards_need_no_data(capsys) -> None:
    assert run(board, "--published", "ml10m_rmse") == 0
    output = capsys.readouterr().out
    assert (
        output.count("under-tuned baseline") == 3 and "SGD MF (rerun) reached 0.772 against 0.803" in output
    )


@pytest.mark.parametrize("name", FILES)
def test_the_files_for_rating_prediction_are_benchmarks_over_folds(name) -> None:
    result = load_benchmark(str(find_benchmark(f"{name}_rating")), ["dataset.path=/data"])
    assert result.evaluation.task == "rating" and result.headline == "rmse"
    assert any(model.kind in FAMILIES for model in result.models)
    timed = [model for model in result.models if "t" in getattr(model, "features", "").split(",")]
    assert not (name == "movielens_1m" and timed), "our copy has no times"


def test_the_bench_measures_what_it_says(tmp_path, capsys) -> None:
    data = bench.generate_ratings(3000)
    assert 2500 < len(data["users"]) + len(data["test_users"]) < 3700
    pairs = {*zip(data["users"], data["items"], strict=True)}
    assert not pairs & {*zip(data["test_users"], data["test_items"], strict=True)}
    place = tmp_path / "log.npz"
    np.savez(place, allow_pickle=False, **data)
    for system in ("ours-sgd", "ours-gibbs"):
        given = {
            "data": str(place),
            "dims": 2,
            "system": system,
            "steps": 3,
            **bench.system_settings(system, 3),
        }
        result = bench.run_own(given)
        assert len(json.loads(json.dumps(result))["predicted"]) == len(data["test_users"])
        assert len(result["rmse_s"]) == (3 if system == "ours-sgd" else 2)  # the burn-in has none
    ours = {
        "system": "ours-sgd",
        "dims": 2,
        "seconds": 1.0,
        "rmse": 0.8,
        "rmse_s": [1.0, 0.9, 0.8],
        "steps": 3,
    }
    runs = [ours, {"system": "surprise", "dims": 2, "seconds": 12.0, "rmse": 0.9, "steps": 4}]
    messages = bench.format_table(3000, runs)
    assert "ours-sgd is 12.0 times as fast as surprise" in messages
    assert "RMSE 0.9000: surprise 48.00 s, ours-sgd 2.00 s (2 steps): 24.0 times sooner" in messages
    burnt = bench.format_table(3000, [{**ours, "rmse_s": [0.9, 0.8]}, runs[1]])
    assert "ours-sgd 2.00 s (2 steps): 24.0 times sooner" in burnt
    never = bench.format_table(3000, [ours, {**runs[1], "rmse": 0.7}])
    assert "ours-sgd not within 3 steps" in never
    with pytest.raises(ConfigError, match="no environment"):
        cli.find_library_python("surprise", tmp_path)
