"""Tables of runs: attempts, input checks, measured speed."""

from __future__ import annotations

from recbench_spark.core.columns import (
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
    Table,
    TableColumn,
    array_type,
    text_column,
)

RUNS = Table(
    "runs",
    "One row per attempt of one model on one night, written last; it makes the rows of its run visible.",
    (
        RUN_ID,
        text_column("run_key", "Hash of configuration, input data and code: same key, same numbers."),
        TableColumn("attempt", INT, "1 for the first run of this key, counted up by --force.", False),
        SUITE,
        TableColumn("logical_date", DATE, "The day evaluated, never the day of the computation.", False),
        text_column("model", "Name of the model in the benchmark file."),
        TableColumn("model_kind", STRING, "als, item_knn, embeddings, lists, published ..."),
        TableColumn("model_version", STRING, "Version the team gave the model."),
        TableColumn("dataset", STRING, "Name of the dataset."),
        TableColumn("split", STRING, "Protocol code and seed of the split, e.g. RO_RS 0.8/0/0.2 seed 42."),
        TableColumn("split_id", STRING, SPLIT_ID.comment),
        TableColumn("config_json", STRING, "The settings of this run, without secrets."),
        TableColumn("config_hash", STRING, "Hash of config_json."),
        TableColumn(
            "inputs_json",
            STRING,
            "Identity of each input: of its content, or of a Delta table's id and files.",
        ),
        TableColumn("code_version", STRING, "Version of recbench-spark."),
        TableColumn(
            "revisions",
            STRING,
            "Revisions of the code behind the numbers, as JSON, without those at 1; NULL: all at 1.",
        ),
        TableColumn("source", STRING, "own (the inventor), baseline (a rival), rerun, published."),
        TableColumn("ran_by", STRING, "Who ran it."),
        TableColumn("source_year", INT, "Year of a published figure."),
        TableColumn("search_space", STRING, "Grid searched for each setting, as JSON."),
        TableColumn("budget", STRING, "Settings tried or time spent in the search."),
        TableColumn(
            "at_grid_edge",
            array_type(STRING),
            "Settings whose best value is the smallest or largest one searched.",
        ),
        text_column("status", "succeeded or failed."),
        TableColumn("started_at", TIMESTAMP, "Start of the attempt, UTC."),
        TableColumn("finished_at", TIMESTAMP, "End of the attempt, UTC."),
        TableColumn("n_users", LONG, "Users evaluated, in the held-out part that has most."),
        TableColumn("seconds", DOUBLE, "Wall-clock seconds of training and evaluation."),
        TableColumn("error", STRING, "Message of a failed attempt."),
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
        text_column("check", "Name of the check, e.g. duplicate_list_rows."),
        text_column("severity", "info, warning or error."),
        TableColumn("observed", DOUBLE, "The value that was counted or measured."),
        TableColumn("threshold", DOUBLE, "Largest value that passes; NULL: only reported."),
        TableColumn("passed", BOOLEAN, "Whether the observed value is acceptable.", False),
        TableColumn("detail", STRING, "A sentence for the reader."),
    ),
    constraints={"severity_known": "severity IN ('info', 'warning', 'error')"},
)

SELF_TESTS = Table(
    "self_tests",
    "One row per fault that a self-test planted in a sample of a night, and what saw it.",
    (
        text_column("self_test_id", "Name of the self-test."),
        SUITE,
        TableColumn("logical_date", DATE, "The night that was sampled.", False),
        TableColumn("users", LONG, "Users of the sample.", False),
        text_column("fault", "Name of the fault."),
        TableColumn("description", STRING, "What is wrong, in words."),
        TableColumn("applies", BOOLEAN, "Whether it could be planted in this log and these models.", False),
        TableColumn("changed", STRING, "What it changed; or why it does not apply."),
        TableColumn("seen", BOOLEAN, "Whether a rule or a check saw it; NULL: it does not apply."),
        TableColumn("seen_by", STRING, "gate, check, regression, rise, refused or unseen."),
        TableColumn("sentence", STRING, "What the night said."),
        TableColumn("rule", STRING, "Line of YAML that would have seen an unseen fault; NULL: none would."),
        TableColumn("tested_at", TIMESTAMP, "When it was tested, UTC.", False),
    ),
)

SPEED = Table(
    "speed",
    "One row per measurement of a benchmark job. Compare only rows of one machine and one run.",
    (
        text_column("benchmark", "The workload: a world of factors, or lists."),
        text_column("system", "The library that was measured; product: the bare matrix product."),
        TableColumn("users", LONG, "Users of one pass.", False),
        TableColumn("items", LONG, "Items of the catalogue.", False),
        TableColumn("dims", INT, "Dimensions of the vectors; NULL: no vectors."),
        TableColumn("k", INT, "Largest cut-off, or length of the lists.", False),
        TableColumn("round", INT, "Turn of all systems, from 0.", False),
        TableColumn("seconds", DOUBLE, "Wall time of one pass.", False),
        TableColumn("users_per_second", DOUBLE, "Users divided by seconds.", False),
        TableColumn("of_product", DOUBLE, "Its share of the bare product's speed in that turn."),
        TableColumn("device", STRING, "cpu, or the kind of GPU."),
        TableColumn("measured_at", TIMESTAMP, "When it was measured, UTC.", False),
    ),
)
