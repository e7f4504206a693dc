"""`jobs/studies/histories.py`: the files and flags that it reads, without a fit."""

from __future__ import annotations

import pytest

from jobs.studies import histories as study


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("ratings.csv", ["userId,movieId,rating,timestamp", "7,1193,5,60", "7,661,3,61"]),
        ("ratings.dat", ["7::1193::5::60", "7::661::3::61"]),
        ("u.data", ["7\t1193\t5\t60", "7\t661\t3\t61"]),
    ],
)
def test_ratings_of_each_layout(name: str, lines: list[str], tmp_path) -> None:
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    rows = study.read_ratings(tmp_path / name)
    assert list(rows.columns) == ["user", "item", "rating", "time"]
    assert rows.to_numpy().tolist() == [[7, 1193, 5, 60], [7, 661, 3, 61]]


def test_the_world_names_its_parts(tmp_path, capsys) -> None:
    words = ["write", "--folder", str(tmp_path), "--users", "30", "--test-users", "10"]
    assert study.main(study.parser().parse_args(words)) == 0
    assert "30 users train and 10 further ones are tested" in capsys.readouterr().out


@pytest.mark.parametrize("ties", ["x", "id,", "1,-2"])
def test_ties_are_ids_or_seeds(ties: str, capsys) -> None:
    with pytest.raises(SystemExit):
        study.parser().parse_args(["ratings", "--ties", ties])
    assert "argument --ties: " in capsys.readouterr().err
    assert study.parser().parse_args(["ratings", "--ties", "id,2"]).ties == ("id", "2")
