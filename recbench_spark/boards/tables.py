"""Tables about searches and boards: trials, boards, verdicts, submissions."""

from __future__ import annotations

from recbench_spark.core.columns import (
    BOOLEAN,
    DOUBLE,
    INT,
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
from recbench_spark.models.tables import LOG_ID, SETTINGS_JSON

BOARD = text_column("board", "Name of the board: one benchmark, one metric.")


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
