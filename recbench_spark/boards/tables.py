"""Tables about models: vectors, neighbours, fits, trials, boards, submissions."""

from __future__ import annotations

from recbench_spark.core.columns import (
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    ITEM_ID,
    LONG,
    METRIC,
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
BOARD = text_column("board", "Name of the board: one benchmark, one metric.")
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

TRIALS = Table(
    "trials",
    "One row per setting that a search has tried, on validation rows only.",
    (
        text_column("trial_id", "Hash of search and setting: it is not tried twice."),
        text_column("search_id", "Hash of log, model, space and method; an extended search has a new one."),
        text_column("extends", "The search that this one goes on from; its own id where it is the first."),
        LOG_ID,
        SUITE,
        TableColumn("dataset", STRING, "Name of the dataset."),
        text_column("model", "Name of the model in the benchmark file."),
        text_column("kind", "Learner."),
        TableColumn("number", INT, "Place in the sequence of the search, from 0.", False),
        SETTINGS_JSON,
        TableColumn("searched", map_type(STRING, DOUBLE), "The settings searched; of a choice, its place."),
        TableColumn("space_json", STRING, "The declared space of each setting, as JSON."),
        text_column("method", "sobol (low discrepancy) or random."),
        TableColumn("budget", INT, "Settings that every method of this search is given.", False),
        text_column("status", "succeeded, diverged or failed."),
        TableColumn(
            "metric", STRING, "What is measured on the validation rows, such as ndcg@20; NULL: rmse."
        ),
        TableColumn("value", DOUBLE, "Its value, mean over seeds."),
        TableColumn("spread", DOUBLE, "Standard deviation over seeds; NULL of one seed."),
        TableColumn("fit_ids", array_type(STRING), "The fits behind it; of a ranking, the runs."),
        TableColumn("seconds", DOUBLE, "Seconds of all threads of its fits; of a ranking, of the clock."),
        TableColumn("finished_at", TIMESTAMP, "When it was done, UTC.", False),
        TableColumn(
            "credited_log_id",
            STRING,
            "Hash of log and protocol whose results the search is credited to; NULL: of an old version.",
        ),
    ),
    constraints={"trial_status_known": "status IN ('succeeded', 'diverged', 'failed')"},
)

BOARDS = Table(
    "boards",
    "Results on boards: published, run here, or submitted; `origin` separates them. A later row of one"
    " entry_id replaces an earlier one with less knowledge of its search (view board_entries).",
    (
        text_column("entry_id", "Hash of the row's facts about the run, without those of its search."),
        BOARD,
        text_column("origin", "published (a table of a work), ours (run here), bundle (submitted)."),
        TableColumn("data", STRING, "The data set in words."),
        TableColumn("protocol", STRING, "How it is split, in words."),
        METRIC,
        TableColumn("lower_is_better", BOOLEAN, "Whether smaller is better, as of errors.", False),
        text_column("method", "The one name of the method, for all names in publications."),
        text_column("name", "Its name in the source of the number."),
        TableColumn("value", DOUBLE, "Mean over folds and seeds, or as printed.", False),
        TableColumn(
            "spread_folds", DOUBLE, "Standard deviation over folds; for own results, of means over seeds."
        ),
        TableColumn("spread_seeds", DOUBLE, "Standard deviation over seeds within a fold."),
        TableColumn("folds", INT, "Folds behind the mean; NULL: not known."),
        TableColumn("seeds", INT, "Seeds behind the mean; NULL: not known."),
        TableColumn("part", STRING, "Held-out part, where a protocol has several: probe, quiz, test."),
        TableColumn("ran_by", STRING, "inventor, rival, rerun, ours, or NULL if it is not known."),
        TableColumn("who", STRING, "The person or team, where known."),
        TableColumn("quoted_from", STRING, "The work that the number is quoted from."),
        TableColumn("year", INT, "Year of that work, or of the own run."),
        TableColumn("dims", INT, "Factors."),
        TableColumn("search_space", STRING, "The space searched, as JSON."),
        TableColumn("budget_settings", INT, "How many settings were tried."),
        TableColumn("budget_seconds", DOUBLE, "Seconds spent on them."),
        TableColumn(
            "at_edge", array_type(STRING), "Settings whose best value is on the edge of its space."
        ),
        TableColumn("never_searched", array_type(STRING), "Settings that kept one value throughout."),
        TableColumn("evidence", STRING, "Fits, or the bundle by its digest, that the number comes from."),
        TableColumn("entered_at", TIMESTAMP, "When the row was written, UTC.", False),
        TableColumn(
            "fold_values", map_type(INT, DOUBLE), "Value of each fold, mean over seeds, where known."
        ),
    ),
    constraints={"origin_known": "origin IN ('published', 'ours', 'bundle')"},
)

VERDICTS = Table(
    "verdicts",
    "One row per reason to call a result an under-tuned baseline, or per note that nothing can be said, for"
    " the board at the time of judgement.",
    (
        text_column("entry_id", "The row of `boards` that was judged."),
        BOARD,
        text_column(
            "code",
            "edge, unfinished_search, better_not_used, fewer_settings, better_run_known, "
            "unsearched_setting; of notes never_searched, no_power, better_not_used.",
        ),
        TableColumn("reason", STRING, "The reason in words.", False),
        TableColumn("judged_at", TIMESTAMP, "When the board was judged, UTC.", False),
        TableColumn("under_tuned", BOOLEAN, "False for notes; NULL, from an old version: true."),
    ),
)

SUBMISSIONS = Table(
    "submissions",
    "One row per time that predictions were scored on hidden parts; each look wears out a test set.",
    (
        text_column("submission_id", "Hash of the predictions and the time."),
        BOARD,
        text_column("name", "Name of the submission in its bundle."),
        text_column("who", "The person or team that submitted it."),
        LOG_ID,
        text_column("content", "Hash of the predictions: the same hash is the same submission again."),
        TableColumn("quiz", DOUBLE, "Value on the part quiz, which is shown to the submitter."),
        TableColumn(
            "test", DOUBLE, "Value on the part test, which is hidden; without parts, on all held-out rows."
        ),
        TableColumn("handed_in_at", TIMESTAMP, "When it was scored, UTC.", False),
        TableColumn("entry_id", STRING, "The row of `boards` that it was entered as; NULL: by older code."),
        TableColumn(
            "notes", STRING, "Sentences reported about it: clipped values, training items in lists."
        ),
    ),
)

BOARD_DECISIONS = Table(
    "board_decisions",
    "One row per decision on a row of `boards`; the newest counts. Nothing is deleted.",
    (
        text_column("decision_id", "Hash of entry, decision and time."),
        text_column("entry_id", "The row of `boards` that was decided on."),
        BOARD,
        text_column("decision", "held (implausible: it does not count), accepted, or retracted."),
        TableColumn("reason", STRING, "The reason in words.", False),
        text_column("who", "Who decided; the program, where it held a result back."),
        TableColumn("decided_at", TIMESTAMP, "When it was decided, UTC.", False),
    ),
    constraints={"decision_known": "decision IN ('held', 'accepted', 'retracted')"},
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
