"""Write a MovieLens folder's movie features for graph models.

    python jobs/studies/movie_features.py --data /path/to/ml-1m --out movies.parquet
    recbench nightly --config movielens_1m_graph ... \\
        --set "models.pinsage.features={kind: table, path: movies.parquet}"

A movie is a row with its genres (0 or 1) and its title words, hashed to 32 signed numbers. Degrees in the
whole log are no features, since they would leak held-out rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from jobs.studies.liked_movies import read_movies, write_features
from recbench_spark import cli
from recbench_spark.errors import OK
from recbench_spark.runtime.journal import Journal


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--data", type=Path, required=True, help="ml-100k, ml-1m or ml-latest-small")
    flags.add_argument("--out", type=Path, required=True, help="the Parquet file")
    return flags


def main(args: argparse.Namespace) -> int:
    """Read the folder and write the table."""
    movies = read_movies(args.data)
    features = np.hstack([movies.genres, movies.words])
    write_features(args.out, movies.ids, features)
    Journal().say(f"{args.out}: {len(features):,} movies, {features.shape[1]} numbers each")
    return OK


if __name__ == "__main__":
    cli.run(main, parser())
