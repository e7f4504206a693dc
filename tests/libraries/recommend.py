"""Train a small model of a library, and save what its own call for recommendations returns.

    PYTHON tests/libraries/recommend.py LIBRARY LOG FOLDER

LOG is Parquet with user_id, item_id, rating. FOLDER gets `own.parquet` or `own.*`, the frame as the library
makes it, and `plain.parquet`: user_id, item_id, rank, from the same call.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

N = 5


def save(folder: Path, own: pd.DataFrame, user: str, item: str, score: str) -> None:
    """Save the frame of the library, and the plain form of it."""
    own.to_parquet(folder / "own.parquet", index=False)
    plain = own.rename(columns={user: "user_id", item: "item_id", score: "score"})
    plain = plain.sort_values(["user_id", "score"], ascending=[True, False], kind="stable")
    plain["rank"] = plain.groupby("user_id").cumcount() + 1
    plain[["user_id", "item_id", "rank"]].to_parquet(folder / "plain.parquet", index=False)


def recommend_lenskit(log: pd.DataFrame, folder: Path) -> None:
    from lenskit import batch
    from lenskit.basic import PopScorer
    from lenskit.data import from_interactions_df
    from lenskit.pipeline import topn_pipeline

    pipe = topn_pipeline(PopScorer(), n=N)
    pipe.train(from_interactions_df(log))
    lists = batch.recommend(pipe, list(log.user_id.unique()), N)
    save(folder, lists.to_df(), "user_id", "item_id", "score")


def recommend_rectools(log: pd.DataFrame, folder: Path) -> None:
    from rectools import Columns
    from rectools.dataset import Dataset
    from rectools.models import PopularModel

    frame = log.rename(columns={"rating": Columns.Weight}).assign(datetime=pd.Timestamp("2020-01-01"))
    data = Dataset.construct(frame)
    model = PopularModel().fit(data)
    own = model.recommend(log.user_id.unique(), data, k=N, filter_viewed=True)
    save(folder, own, "user_id", "item_id", "score")


def recommend_ranx(log: pd.DataFrame, folder: Path) -> None:
    """Save a run: it has no models of its own, so the scores are numbers of ours."""
    from ranx import Run

    rng = np.random.default_rng(3)
    items = sorted(log.item_id.unique())
    scores = {str(user): rng.permutation(len(items)).astype(float) for user in log.user_id.unique()}
    run = Run(
        {user: dict(zip(map(str, items), map(float, own), strict=True)) for user, own in scores.items()}
    )
    save(folder, run.to_dataframe(), "q_id", "doc_id", "score")
    run.save(str(folder / "own.trec"), kind="trec")
    run.save(str(folder / "own.json"), kind="json")


def recommend_implicit(log: pd.DataFrame, folder: Path) -> None:
    """Save the arrays of `recommend` as columns; users and items have the numbers of the matrix."""
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    matrix = csr_matrix((log.rating.astype(np.float32), (log.user_id, log.item_id)))
    model = AlternatingLeastSquares(factors=4, iterations=2, random_state=1, num_threads=1)
    model.fit(matrix, show_progress=False)
    users = np.unique(log.user_id)
    ids, scores = model.recommend(users, matrix[users], N=N)
    own = pd.DataFrame({"user": np.repeat(users, N), "item": ids.ravel(), "score": scores.ravel()})
    save(folder, own, "user", "item", "score")


def recommend_replay(log: pd.DataFrame, folder: Path) -> None:
    from pyspark.sql import SparkSession
    from replay.data.dataset import Dataset, FeatureHint, FeatureInfo, FeatureSchema, FeatureType
    from replay.models import ALSWrap
    from replay.utils.session_handler import State

    builder = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", 2)
    session = builder.getOrCreate()
    State(session)
    category, number = FeatureType.CATEGORICAL, FeatureType.NUMERICAL
    schema = FeatureSchema(
        [
            FeatureInfo("user_id", category, FeatureHint.QUERY_ID),
            FeatureInfo("item_id", category, FeatureHint.ITEM_ID),
            FeatureInfo("rating", number, FeatureHint.RATING),
        ]
    )
    data = Dataset(schema, session.createDataFrame(log))
    own = ALSWrap(rank=4, seed=1).fit_predict(data, k=N).toPandas()
    session.stop()
    save(folder, own, "user_id", "item_id", "rating")


def recommend_recbole(log: pd.DataFrame, folder: Path) -> None:
    """Save the tensors of `full_sort_topk` as columns of RecBole's own names, with the ids of its file."""
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.model.general_recommender import EASE
    from recbole.utils.case_study import full_sort_topk

    (folder / "log").mkdir()
    names = {"user_id": "user_id:token", "item_id": "item_id:token", "rating": "rating:float"}
    log.rename(columns=names).to_csv(folder / "log" / "log.inter", sep="\t", index=False)
    settings = {"data_path": str(folder), "use_gpu": False, "load_col": {"inter": ["user_id", "item_id"]}}
    config = Config(model="EASE", dataset="log", config_dict=settings)
    data = create_dataset(config)
    train, _, test = data_preparation(config, data)
    users = np.arange(1, data.user_num)
    scores, items = full_sort_topk(users, EASE(config, train.dataset), test, N)
    own = pd.DataFrame(
        {
            data.uid_field: np.repeat(data.id2token(data.uid_field, users), N),
            data.iid_field: data.id2token(data.iid_field, items.numpy()).ravel(),
            "score": scores.numpy().ravel(),
        }
    )
    save(folder, own, "user_id", "item_id", "score")


if __name__ == "__main__":
    library, log_path, target = sys.argv[1:]
    globals()[f"recommend_{library}"](pd.read_parquet(log_path), Path(target))
