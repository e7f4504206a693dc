"""Tables about models: vectors, neighbours, explanations, fits."""

from __future__ import annotations

from recbench_spark.core.columns import (
    DOUBLE,
    FLOAT,
    INT,
    ITEM_ID,
    LONG,
    STRING,
    SUITE,
    TIMESTAMP,
    Table,
    TableColumn,
    array_type,
    map_type,
    text_column,
)

FIT_ID = text_column("fit_id", "Hash of log, settings, seed, fold and parts: same name, same numbers.")
LOG_ID = text_column("log_id", "Hash of the log's identity and the split's settings, folds taken together.")
SETTINGS_JSON = TableColumn(
    "settings_json", STRING, "The learner's settings, as JSON, defaults among them, and `items: catalogue`."
)

FITS = Table(
    "fits",
    "One row per fit: a model with one setting, on one fold, from one seed. Failures are rows too.",
    (
        FIT_ID,
        LOG_ID,
        SUITE,
        TableColumn("dataset", STRING, "Name of the dataset."),
        TableColumn("split", STRING, "The protocol in words; of folds, without the one held out."),
        text_column("purpose", "Purpose of the fit: benchmark, search, or figure."),
        text_column("model", "Name of the model in the benchmark file."),
        text_column("kind", "Learner: sgd_mf, bayesian_mf ..."),
        SETTINGS_JSON,
        TableColumn("dims", INT, "Factors; NULL where the learner has none."),
        TableColumn("seed", LONG, "Seed of all draws.", False),
        TableColumn("fold", INT, "Fold held out; NULL if the log or a share defines the held-out rows."),
        TableColumn(
            "parts", array_type(STRING), "Parts predicted; validation: a share of the training rows."
        ),
        text_column("status", "succeeded, diverged (its numbers left all bounds), or failed."),
        TableColumn("error", STRING, "Why it diverged or failed."),
        TableColumn("rmse", DOUBLE, "Root mean squared error over all rows predicted."),
        TableColumn("mae", DOUBLE, "Mean absolute error over the same."),
        TableColumn("rmse_by_part", map_type(STRING, DOUBLE), "RMSE of each part predicted."),
        TableColumn(
            "rmse_by_step", array_type(DOUBLE), "RMSE after each epoch, sweep or sample, on these rows."
        ),
        TableColumn("n_train", LONG, "Rows learnt from."),
        TableColumn("n_watched", LONG, "Rows predicted."),
        TableColumn("steps", INT, "Epochs or sweeps made."),
        TableColumn("seconds", DOUBLE, "Wall-clock seconds of the task, reading the log included."),
        TableColumn("cpu_seconds", DOUBLE, "Seconds of all its threads."),
        TableColumn("peak_bytes", LONG, "Largest resident memory of its process, the mapped log included."),
        TableColumn("threads", INT, "Threads it was given."),
        TableColumn("host", STRING, "Where it ran."),
        TableColumn(
            "files",
            STRING,
            "Folder of its files, below the warehouse (after 'scratch:', below spark.recbench.scratch);"
            " absolute in older rows, of which only the end fit_files/ID counts; NULL: nothing was kept.",
        ),
        TableColumn("code_version", STRING, "Version of recbench-spark."),
        TableColumn("started_at", TIMESTAMP, "Start of the task, UTC."),
        TableColumn("finished_at", TIMESTAMP, "End of the task, UTC."),
    ),
    constraints={"fit_status_known": "status IN ('succeeded', 'diverged', 'failed')"},
)

EMBEDDINGS = Table(
    "embeddings",
    "Vectors of trained models.",
    (
        text_column("model_id", "Hash of the split and the model's settings."),
        text_column("side", "user or item."),
        text_column("id", "Original user or item id."),
        TableColumn("vector", array_type(FLOAT), "Embedding, float32.", False),
        TableColumn("bias", DOUBLE, "Added to the score; 0 where the model has none.", False),
    ),
    partition_by=("model_id", "side"),
)

EXPLANATIONS = Table(
    "explanations",
    "Attention of listed users: the weight of each item of the memory in each hop.",
    (
        text_column("model_id", "Hash of the split and the model's settings."),
        text_column("user_id", "Original user id."),
        text_column("best_item_id", "Item that is explained: the best one that the user does not have."),
        text_column("item_id", "Item of the memory."),
        TableColumn("place", INT, "Items between it and the query, the user's newest item.", False),
        TableColumn("hop", INT, "Number of the hop, from 1.", False),
        TableColumn("weight", DOUBLE, "Weight of the item in this hop; a hop's weights sum to 1.", False),
        TableColumn(
            "score_change",
            DOUBLE,
            "Change of the best item's score if this item is taken out of the memory; equal in all hops.",
            False,
        ),
    ),
    partition_by=("model_id",),
)

SIMILARITIES = Table(
    "similarities",
    "Item-to-item weights of neighbourhood models.",
    (
        text_column("model_id", "Hash of the split and the model's settings."),
        ITEM_ID,
        text_column("neighbour_id", "Item whose presence in the history raises the score of item_id."),
        TableColumn("weight", DOUBLE, "Added to the score per interaction with the neighbour.", False),
    ),
    partition_by=("model_id",),
)
