"""Tables of many fits: fits, trials of searches, boards of benchmarks, what was handed in."""

from __future__ import annotations

from pyspark.sql import types as T

from recbench_spark.schemas.base import (
    BOOLEAN,
    DOUBLE,
    INT,
    LONG,
    METRIC,
    STRING,
    SUITE,
    TIMESTAMP,
    Column,
    Table,
    array_of,
    text_id,
)

FIT_ID = text_id("fit_id", "Hash of log, settings, seed, fold and parts: same name, same numbers.")
LOG_ID = text_id("log_id", "Hash of the log's identity and the split's settings, folds taken together.")
BOARD = text_id("board", "Name of the board: one benchmark, one metric.")
OF_SETTINGS = Column("settings_json", STRING, "The learner's settings, as JSON, defaults among them.")

FITS = Table(
    "fits",
    "One row a fit: a model with one setting, on one fold, from one seed. Failures are rows too.",
    (
        FIT_ID,
        LOG_ID,
        SUITE,
        Column("dataset", STRING, "Name of the dataset."),
        Column("split", STRING, "The protocol in words; of folds, without the one held out."),
        text_id("purpose", "benchmark, search, or figure: what the fit was made for."),
        text_id("model", "Name of the model in the benchmark file."),
        text_id("kind", "Learner: sgd_mf, bayesian_mf ..."),
        OF_SETTINGS,
        Column("dims", INT, "Factors; NULL where the learner has none."),
        Column("seed", LONG, "Seed of all draws.", False),
        Column("fold", INT, "Fold held out; NULL where the log or a share says what is."),
        Column("parts", array_of(STRING), "Parts predicted; validation: a share of the training rows."),
        text_id("status", "succeeded, diverged (its numbers left all bounds), or failed."),
        Column("error", STRING, "Why it diverged or failed."),
        Column("rmse", DOUBLE, "Root mean squared error over all rows predicted."),
        Column("mae", DOUBLE, "Mean absolute error over the same."),
        Column("rmse_by_part", T.MapType(STRING, DOUBLE), "RMSE of each part predicted."),
        Column("rmse_by_step", array_of(DOUBLE), "RMSE after each epoch, sweep or sample, on these rows."),
        Column("n_train", LONG, "Rows learnt from."),
        Column("n_watched", LONG, "Rows predicted."),
        Column("steps", INT, "Epochs or sweeps made."),
        Column("seconds", DOUBLE, "Wall-clock seconds of the task, reading the log included."),
        Column("cpu_seconds", DOUBLE, "Seconds of all its threads."),
        Column("peak_bytes", LONG, "Largest resident memory of its process, the mapped log included."),
        Column("threads", INT, "Threads it was given."),
        Column("host", STRING, "Where it ran."),
        Column(
            "files",
            STRING,
            "Folder of what it made, below the warehouse (after 'scratch:', below spark.recbench.scratch);"
            " absolute in older rows, of which only the end fit_files/ID counts; NULL: nothing was kept.",
        ),
        Column("code_version", STRING, "Version of recbench-spark."),
        Column("started_at", TIMESTAMP, "Start of the task, UTC."),
        Column("finished_at", TIMESTAMP, "End of the task, UTC."),
    ),
    constraints={"fit_status_known": "status IN ('succeeded', 'diverged', 'failed')"},
)

TRIALS = Table(
    "trials",
    "One row a setting that a search has tried, on validation rows only.",
    (
        text_id("trial_id", "Hash of search and setting: it is not tried twice."),
        text_id("search_id", "Hash of log, model, space and method; an extended search has a new one."),
        text_id("extends", "The search that this one goes on from; its own id where it is the first."),
        LOG_ID,
        SUITE,
        Column("dataset", STRING, "Name of the dataset."),
        text_id("model", "Name of the model in the benchmark file."),
        text_id("kind", "Learner."),
        Column("number", INT, "Place in the sequence of the search, from 0.", False),
        OF_SETTINGS,
        Column("searched", T.MapType(STRING, DOUBLE), "The settings searched; of a choice, its place."),
        Column("space_json", STRING, "The declared space of each setting, as JSON."),
        text_id("method", "sobol (low discrepancy) or random."),
        Column("budget", INT, "Settings that every method of this search is given.", False),
        text_id("status", "succeeded, diverged or failed."),
        Column("metric", STRING, "What is measured on the validation rows, such as ndcg@20; NULL: rmse."),
        Column("value", DOUBLE, "Its value, mean over seeds."),
        Column("spread", DOUBLE, "Standard deviation over seeds; NULL of one seed."),
        Column("fit_ids", array_of(STRING), "The fits behind it; of a ranking, the runs."),
        Column("seconds", DOUBLE, "Seconds of all threads of its fits; of a ranking, of the clock."),
        Column("finished_at", TIMESTAMP, "When it was done, UTC.", False),
        Column(
            "credited_log_id",
            STRING,
            "Hash of log and protocol whose results the search is credited to; NULL: of an old version.",
        ),
    ),
    constraints={"trial_status_known": "status IN ('succeeded', 'diverged', 'failed')"},
)

BOARDS = Table(
    "boards",
    "Results on boards: published, ours, or handed in. Told apart by `origin`, never mixed. A later row of"
    " one entry_id replaces an earlier one: what is known of its search grows (view board_entries).",
    (
        text_id("entry_id", "Hash of what the row says of the run; its search is no part of it."),
        BOARD,
        text_id("origin", "published (a table of a work), ours (run here), bundle (handed in)."),
        Column("data", STRING, "The data set in words."),
        Column("protocol", STRING, "How it is split, in words."),
        METRIC,
        Column("lower_is_better", BOOLEAN, "Whether smaller is better, as of errors.", False),
        text_id("method", "The one name of the method, whatever a work calls it."),
        text_id("name", "What it is called where the number stands."),
        Column("value", DOUBLE, "Mean over folds and seeds, or as printed.", False),
        Column("spread_folds", DOUBLE, "Standard deviation over folds; of ours, of means over seeds."),
        Column("spread_seeds", DOUBLE, "Standard deviation over seeds within a fold."),
        Column("folds", INT, "Folds behind the mean; NULL: not known."),
        Column("seeds", INT, "Seeds behind the mean; NULL: not known."),
        Column("part", STRING, "Held-out part, where a protocol has several: probe, quiz, test."),
        Column("ran_by", STRING, "inventor, rival, rerun, ours, or NULL where it is not known."),
        Column("who", STRING, "The person or team, where known."),
        Column("quoted_from", STRING, "The work that the number is quoted from."),
        Column("year", INT, "Year of that work, or of ours."),
        Column("dims", INT, "Factors."),
        Column("search_space", STRING, "The space searched, as JSON."),
        Column("budget_settings", INT, "How many settings were tried."),
        Column("budget_seconds", DOUBLE, "Seconds spent on them."),
        Column("at_edge", array_of(STRING), "Settings whose best value lies on the edge of its space."),
        Column("never_searched", array_of(STRING), "Settings that kept one value throughout."),
        Column("evidence", STRING, "Fits, or the bundle by its digest, that the number comes from."),
        Column("entered_at", TIMESTAMP, "When the row was written, UTC.", False),
        Column("fold_values", T.MapType(INT, DOUBLE), "Value of each fold, mean over seeds, where known."),
    ),
    constraints={"origin_known": "origin IN ('published', 'ours', 'bundle')"},
)

VERDICTS = Table(
    "verdicts",
    "One row a reason to call a result an under-tuned baseline, or a note that nothing can be said, as the"
    " board stood when it was judged.",
    (
        text_id("entry_id", "The row of `boards` that was judged."),
        BOARD,
        text_id(
            "code",
            "edge, unfinished_search, better_not_used, fewer_settings, better_run_known, "
            "unsearched_setting; of notes never_searched, no_power, better_not_used.",
        ),
        Column("reason", STRING, "The reason in words.", False),
        Column("judged_at", TIMESTAMP, "When the board was judged, UTC.", False),
        Column(
            "under_tuned", BOOLEAN, "False of notes, which accuse nobody; NULL, of an old version: true."
        ),
    ),
)

SUBMISSIONS = Table(
    "submissions",
    "One row a time that predictions were scored on hidden parts: each look wears a test set out.",
    (
        text_id("submission_id", "Hash of the predictions and the time."),
        BOARD,
        text_id("name", "What was handed in, as its bundle calls it."),
        text_id("who", "Who handed it in."),
        LOG_ID,
        text_id("content", "Hash of the predictions: the same hash is the same submission again."),
        Column("quiz", DOUBLE, "Value on the part quiz, which is shown to whoever hands in."),
        Column("test", DOUBLE, "Value on the part test, which is not; else on all that is held out."),
        Column("handed_in_at", TIMESTAMP, "When it was scored, UTC.", False),
        Column("entry_id", STRING, "The row of `boards` that it was entered as; NULL: by older code."),
        Column("notes", STRING, "Sentences told of it: what was clipped, training items in lists."),
    ),
)

BOARD_DECISIONS = Table(
    "board_decisions",
    "One row a decision on a row of `boards`; the newest counts. Nothing is deleted.",
    (
        text_id("decision_id", "Hash of entry, decision and time."),
        text_id("entry_id", "The row of `boards` that it is about."),
        BOARD,
        text_id("decision", "held (implausible: it does not count), accepted, or retracted."),
        Column("reason", STRING, "The reason in words.", False),
        text_id("who", "Who decided; the program, where it held a result back."),
        Column("decided_at", TIMESTAMP, "When it was decided, UTC.", False),
    ),
    constraints={"decision_known": "decision IN ('held', 'accepted', 'retracted')"},
)
