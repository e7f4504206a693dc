"""The table of replayed auctions."""

from __future__ import annotations

from recbench_spark.core.columns import (
    DEFINITION,
    DOUBLE,
    INT,
    LONG,
    METRIC,
    RUN_ID,
    STRING,
    Table,
    TableColumn,
    text_column,
)

REPLAYS = Table(
    "replays",
    "One row per metric of a model at an operating point, from the replay of a log of auctions; also its"
    " differences to other models, and what the log says about slots.",
    (
        RUN_ID,
        text_column("model", "Model that is replayed; logged is the policy that made the log."),
        TableColumn(
            "other", STRING, "The value is the model's minus this one's at the same point; NULL: its own."
        ),
        TableColumn("point", STRING, "Operating point as text; NULL: what was logged."),
        TableColumn("exponent", DOUBLE, "Power of the predicted probability in the score."),
        TableColumn("main_floor", DOUBLE, "Smallest score of an ad on the main line."),
        TableColumn("main_slots", INT, "Most ads on the main line."),
        TableColumn("reserve", DOUBLE, "Smallest score of an ad in the sidebar."),
        TableColumn("side_slots", INT, "Most ads in the sidebar."),
        METRIC,
        TableColumn(
            "unseen",
            STRING,
            "Clicks of pairs of query and ad that the log never showed: reference (the slot's rate), zero,"
            " or probability (as the model predicts); NULL where it makes no difference.",
        ),
        TableColumn(
            "slot", STRING, "Slot of a reference rate or of the position curve: main 1, side 2 ..."
        ),
        TableColumn("reference_slot", STRING, "First slot of its connected set, where the curve is 1."),
        TableColumn("value", DOUBLE, "Estimate over the whole log; NULL where it is not defined."),
        TableColumn(
            "stderr", DOUBLE, "Standard deviation of its bootstrap replicates over queries or users."
        ),
        TableColumn(
            "ci_low",
            DOUBLE,
            "Lower end of its bootstrap interval; NULL below 30 effective queries or users.",
        ),
        TableColumn("ci_high", DOUBLE, "Upper end of its interval."),
        TableColumn("n", LONG, "Page views: the denominator of yields.", False),
        TableColumn("queries", LONG, "Distinct queries.", False),
        TableColumn(
            "effective_queries",
            DOUBLE,
            "(Sum of auctions)^2 / sum of squares, over the queries or users that are resampled.",
            False,
        ),
        DEFINITION,
        TableColumn(
            "same_log",
            INT,
            "1 where models may have been fitted to the replayed rows, which flatters them.",
        ),
    ),
)
