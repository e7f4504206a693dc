"""Tables of runs: attempts, findings on their inputs, measured speed."""

from __future__ import annotations

from recbench_spark.schemas.base import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    LONG,
    RUN_ID,
    SPLIT_ID,
    STRING,
    SUITE,
    TIMESTAMP,
    Column,
    Table,
    array_of,
    text_id,
)

RUNS = Table(
    "runs",
    "One row an attempt of one model on one night, written last: what it names becomes visible.",
    (
        RUN_ID,
        text_id("run_key", "Hash of configuration, input data and code: same key, same numbers."),
        Column("attempt", INT, "1 for the first run of this key, counted up by --force.", False),
        SUITE,
        Column("logical_date", DATE, "The day evaluated, never the day of the computation.", False),
        text_id("model", "Name of the model in the benchmark file."),
        Column("model_kind", STRING, "als, item_knn, embeddings, lists, published ..."),
        Column("model_version", STRING, "Version the team gave the model."),
        Column("dataset", STRING, "Name of the dataset."),
        Column("split", STRING, "Protocol code and seed of the split, e.g. RO_RS 0.8/0/0.2 seed 42."),
        Column("split_id", STRING, SPLIT_ID.comment),
        Column("config_json", STRING, "The settings of this run, without secrets."),
        Column("config_hash", STRING, "Hash of config_json."),
        Column(
            "inputs_json",
            STRING,
            "Identity of each input: of its content, or of a Delta table's id and files.",
        ),
        Column("code_version", STRING, "Version of recbench-spark."),
        Column(
            "revisions",
            STRING,
            "Revisions of what the numbers come of, as JSON, without those at 1; NULL: all at 1.",
        ),
        Column("source", STRING, "own (the inventor), baseline (a rival), rerun, published."),
        Column("ran_by", STRING, "Who ran it."),
        Column("source_year", INT, "Year of a published figure."),
        Column("search_space", STRING, "Grid searched for each setting, as JSON."),
        Column("budget", STRING, "Settings tried or time spent in the search."),
        Column(
            "at_grid_edge",
            array_of(STRING),
            "Settings whose best value is the smallest or largest one searched.",
        ),
        text_id("status", "succeeded or failed."),
        Column("started_at", TIMESTAMP, "Start of the attempt, UTC."),
        Column("finished_at", TIMESTAMP, "End of the attempt, UTC."),
        Column("n_users", LONG, "Users evaluated, in the held-out part that has most."),
        Column("seconds", DOUBLE, "Wall-clock seconds of training and evaluation."),
        Column("error", STRING, "Message of a failed attempt."),
    ),
    constraints={
        "status_known": "status IN ('succeeded', 'failed')",
        "source_known": "source IN ('own', 'baseline', 'rerun', 'published')",
    },
)

CHECKS = Table(
    "checks",
    "Findings on inputs and results of a run: exclusions, warnings, quality gates.",
    (
        RUN_ID,
        text_id("check", "What was looked at, e.g. duplicate_list_rows."),
        text_id("severity", "info, warning or error."),
        Column("observed", DOUBLE, "What was counted or measured."),
        Column("threshold", DOUBLE, "Largest value that passes; NULL: only reported."),
        Column("passed", BOOLEAN, "Whether the observed value is acceptable.", False),
        Column("detail", STRING, "A sentence for the reader."),
    ),
    constraints={"severity_known": "severity IN ('info', 'warning', 'error')"},
)

SPEED = Table(
    "speed",
    "One row a measurement of a benchmark job. Compare only rows of one machine and one run.",
    (
        text_id("benchmark", "What was measured: a world of factors, or lists."),
        text_id("system", "Who was measured; product: the bare matrix product."),
        Column("users", LONG, "Users of one pass.", False),
        Column("items", LONG, "Items of the catalogue.", False),
        Column("dims", INT, "Dimensions of the vectors; NULL: no vectors."),
        Column("k", INT, "Largest cut-off, or length of the lists.", False),
        Column("round", INT, "Turn of all systems, from 0.", False),
        Column("seconds", DOUBLE, "Wall time of one pass.", False),
        Column("users_per_second", DOUBLE, "Users divided by seconds.", False),
        Column("of_product", DOUBLE, "Its share of the bare product's speed in that turn."),
        Column("device", STRING, "cpu, or the kind of GPU."),
        Column("measured_at", TIMESTAMP, "When it was measured, UTC.", False),
    ),
)
