"""`jobs/studies/inductive.py --data`: held-out movies stay out, genres are no features, neighbours help."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score

from jobs.studies import inductive as study
from jobs.studies.liked_movies import Movies, read_movies
from recbench_spark.errors import DataError
from recbench_spark.models.networks.factors import make_pairs

TASTES, MOVIES, USERS = 3, 90, 60


def write_movies(folder: Path, genre_m: np.ndarray) -> Path:
    """A folder in MovieLens 1M's format: users like movies of their taste, a third of titles tell it."""
    draw, taste_m = np.random.default_rng(3), np.arange(MOVIES) % TASTES
    is_telling = draw.random(MOVIES) < 1 / 3
    movies = [
        f"{2 * m + 1}::{word} No. {m}::{genre_m[m]}"
        for m, word in enumerate(
            ("Crème", "Été", "Noël")[taste_m[m]] if is_telling[m] else "Plain" for m in range(MOVIES)
        )
    ]
    folder.mkdir()
    (folder / "movies.dat").write_text("\n".join(movies) + "\n", encoding="latin-1")
    rows = ["user\titem\trating"]
    for user in range(USERS):
        own = draw.permutation(np.flatnonzero(taste_m == user % TASTES))[:12]
        rows += [f"{user + 1}\t{2 * m + 1}\t{draw.integers(4, 6)}" for m in own]
        disliked = draw.permutation(np.flatnonzero(taste_m != user % TASTES))[:12]
        rows += [f"{user + 1}\t{2 * m + 1}\t{draw.integers(1, 4)}" for m in disliked]
    with gzip.open(folder / "ratings.tsv.gz", "wt") as file:
        file.write("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def by_taste(tmp_path) -> Path:
    names = np.array(["Drama", "Comedy|Romance", "War"])
    return write_movies(tmp_path / "by_taste", names[np.arange(MOVIES) % TASTES])


@pytest.fixture
def by_chance(tmp_path) -> Path:
    draw = np.random.default_rng(8)
    return write_movies(tmp_path / "by_chance", draw.choice(["Drama", "Comedy", "War", "Western"], MOVIES))


def run(*flags: str) -> int:
    return int(study.main(study.parser().parse_args(list(flags))))


def with_others_held_out(movies: Movies, seed: int) -> Movies:
    """Other words, genres and likes of the held-out movies; nothing else moves."""
    draw, held = np.random.default_rng(1), study.assign_parts(movies.pairs, seed) == study.JUDGE
    pairs = movies.pairs
    kept, strange = ~held[pairs.item], np.repeat(np.flatnonzero(held), 5)
    pairs = make_pairs(
        np.concatenate([pairs.user[kept], draw.integers(0, pairs.users, len(strange))]),
        np.concatenate([pairs.item[kept], strange]), pairs.users, pairs.items,
    )  # fmt: skip
    words = np.where(held[:, None], draw.standard_normal(movies.words.shape), movies.words)
    genres = np.where(held[:, None], 1 - movies.genres, movies.genres)
    return Movies(pairs, genres.astype(np.float32), words.astype(np.float32), movies.ids)


@pytest.mark.parametrize("neighbours", study.NEIGHBOURS)
@pytest.mark.parametrize("name", ["mean", "lstm"])
def test_training_knows_nothing_of_what_is_held_out(name, neighbours, by_taste) -> None:
    result = []
    movies = read_movies(by_taste)
    for world in (movies, with_others_held_out(movies, 1)):
        draw = study.draw_movies(world, neighbours, 1)
        net, _ = study.fit_genre_net(name, draw, 1, 3)
        result.append((net.export_weights(), study.predict_genres(net, draw, study.JUDGE)))
    (weights, scores), (others, told_of_others) = result
    assert {key: w.tobytes() for key, w in weights.items()} == {k: w.tobytes() for k, w in others.items()}
    assert scores.shape == told_of_others.shape and not np.allclose(scores, told_of_others)


@pytest.mark.parametrize("neighbours", study.NEIGHBOURS)
def test_a_part_is_attached_to_itself_and_the_parts_before_it(neighbours, by_taste) -> None:
    draw = study.draw_movies(read_movies(by_taste), neighbours, 2)
    for part, graph in enumerate(draw.graphs):
        (csr,) = graph.blocks
        row = np.repeat(draw.part, np.diff(csr.indptr))
        source = draw.part[csr.src[: csr.edges]]
        assert source.max() == row.max() == part
        assert (np.diff(csr.indptr)[draw.part <= part] > 0).all()
    shares = np.bincount(draw.part, minlength=3) / MOVIES
    assert 0.1 < shares[study.JUDGE] < 0.3 and 0.02 < shares[study.CHOOSE] < 0.2


def test_rules_without_training_know_genres_of_training_alone(by_taste) -> None:
    draw = study.draw_movies(read_movies(by_taste), "cosine", 1)
    known = (draw.part == study.TRAIN)[:, None]
    other = draw._replace(label=np.where(known, draw.label, 1 - draw.label))
    for rule in (study.frequencies, study.neighbours_genres):
        assert np.array_equal(rule(draw, study.JUDGE), rule(other, study.JUDGE))


def test_genres_are_no_features(by_taste, by_chance, tmp_path) -> None:
    """Genres that are drawn by chance can only be predicted by a method that reads them."""
    one, other = (study.draw_movies(read_movies(folder), "visits", 1) for folder in (by_taste, by_chance))
    assert np.array_equal(one.features, other.features) and one.label.shape == other.label.shape
    output = tmp_path / "lines.jsonl"
    run("--data", str(by_chance), "--aggregators", "mean,features", "--seeds", "3", "--output", str(output))
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    by_name = {
        name: [x["micro_f1"] for x in lines if x["aggregator"] == name] for name in ("mean", "features")
    }
    assert max(np.mean(result) for result in by_name.values()) < 0.6


def test_neighbours_help_where_they_tell_the_taste(by_taste, tmp_path, capsys) -> None:
    output = tmp_path / "lines.jsonl"
    flags = ("--neighbours", "cosine", "--aggregators", "mean,features", "--seeds", "2")
    assert run("--data", str(by_taste), *flags, "--output", str(output)) == 0
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [(x["seed"], x["aggregator"]) for x in lines] == [
        (seed, name) for seed in (1, 2) for name in ("frequencies", "neighbours_genres", "mean", "features")
    ]
    first = {x["aggregator"]: x["micro_f1"] for x in lines if x["seed"] == 1}
    assert first["neighbours_genres"] > 0.9 > first["frequencies"]
    assert first["mean"] > first["features"] + 0.1
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4 and printed[2].startswith("mean ") and "to features +" in printed[2]


def test_the_threshold_is_the_best_one_and_ties_stay_together() -> None:
    draw = np.random.default_rng(5)
    for _ in range(20):
        score, label = draw.integers(0, 6, (7, 4)) / 8, draw.integers(0, 2, (7, 4))
        threshold, best = study.best_f1(score, label)
        values = {t: f1_score(label, score >= t, average="micro") for t in np.unique(score)}
        assert best == pytest.approx(max(values.values())) == pytest.approx(values[threshold])
        assert study.f1(score >= threshold, label) == pytest.approx(best)


def test_what_cannot_be_judged_is_reported(tmp_path, by_taste) -> None:
    with pytest.raises(DataError, match=r"no ratings.tsv.gz, u.data or ratings.csv"):
        run("--data", str(tmp_path))
    lines = (by_taste / "movies.dat").read_bytes().splitlines(keepends=True)
    (by_taste / "movies.dat").write_bytes(b"".join(lines[:2]))
    with pytest.raises(DataError, match="too few liked movies"):
        run("--data", str(by_taste))
