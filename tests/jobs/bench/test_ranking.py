"""The benchmark of ranking runs, checks what it times and keeps what it measured."""

import json

import numpy as np
import pytest

from jobs.bench import ranking
from recbench_spark.errors import ConfigError, DataError

SMALL = ["--users", "40", "--items", "300", "--dims", "4", "--k", "10", "--rounds", "2"]


def run(*flags):
    return ranking.main(ranking.parser().parse_args([*SMALL, *flags]))


@pytest.mark.parametrize("world", ["random", "planted"])
def test_every_system_of_this_process(world, tmp_path, capsys):
    output = tmp_path / "new" / "ranks.jsonl"
    assert run("--world", world, "--output", str(output)) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    systems = ["product", "topk", "ranks", "float32@k", "ranks@k"]
    assert [(row["system"], row["round"]) for row in rows] == [(s, n) for s in systems for n in (0, 1)]
    assert all(row["of_product"] == 1.0 for row in rows if row["system"] == "product")
    assert all(row["users_per_second"] == row["users"] / row["seconds"] for row in rows)
    lines = capsys.readouterr().out
    assert "cut ranks are the full ones" in lines and "agrees on 1.000000" in lines


def test_factors_of_others_and_what_is_missing_of_them(tmp_path, capsys):
    ranking.generate(ranking.parser().parse_args(SMALL)).save(tmp_path)
    assert run("--factors", str(tmp_path), "--systems", "ranks@k") == 0
    assert "40 users x 300 items x 4 dims" in capsys.readouterr().out
    (tmp_path / "lists.npz").unlink()
    with pytest.raises(ConfigError, match=r"has no lists\.npz"):
        run("--factors", str(tmp_path))
    with pytest.raises(ConfigError, match="unknown system 'topp'"):
        run("--systems", "topp")


def test_ranks_that_differ_are_no_benchmark(monkeypatch):
    real = ranking.ranks

    def wrong(world, device, **settings):
        counts = real(world, device, **settings)
        if settings.get("cutoff") is not None:
            np.add(counts.before_p, 1, out=counts.before_p)
        return counts

    monkeypatch.setattr(ranking, "ranks", wrong)
    with pytest.raises(DataError, match="differ in before_p"):
        run()


def test_measurements_become_rows_of_speed(spark, tmp_path):
    output = tmp_path / "ranks.jsonl"
    run("--output", str(output), "--systems", "product,ranks@k")
    row = json.loads(output.read_text().splitlines()[0])
    lists = tmp_path / "lists.jsonl"  # as jobs/bench/lists.py writes them: fewer keys
    lists.write_text(
        json.dumps({key: row[key] for key in row if key not in {"of_product", "device", "measured_at"}})
    )
    warehouse = str(tmp_path / "warehouse")
    assert (
        ranking.main(
            ranking.parser().parse_args(["--record", str(output), str(lists), "--warehouse", warehouse])
        )
        == 0
    )
    result = spark.read.format("delta").load(f"{warehouse}/speed")
    assert result.where("system = 'ranks@k'").count() == 2
    assert result.where("of_product IS NULL").count() == 1
