"""Turn a night's tables into facts, text and pages.

Facts are frozen dataclasses. `make_report` makes them from the rows of four tables; `leaderboard_text`
and `render_html` show them. Nothing here needs Spark: the tables are pandas frames, from Spark or
`deltalake`.
"""

from recbench_spark.reports.beyond_means import BeyondMeans, make_fronts, make_user_facts
from recbench_spark.reports.boards import BoardFacts, board_text, make_board, pairs_text
from recbench_spark.reports.build import make_report
from recbench_spark.reports.facts import LearningCurveFacts, Report
from recbench_spark.reports.night_facts import Fall
from recbench_spark.reports.nights import (
    COMPARED_COLUMNS,
    HISTORY_COLUMNS,
    NIGHTS_SHOWN,
    add_nights,
    add_tests,
    make_fall,
    make_pairs_compared,
)
from recbench_spark.reports.opening import list_causes
from recbench_spark.reports.page import (
    render_board,
    render_html,
    render_multiverse,
    write_page,
    write_report,
)
from recbench_spark.reports.phrases import NOT_SHIPPED, map_kinds
from recbench_spark.reports.retrieval import RetrievalFacts, choose_indexes, make_retrieval
from recbench_spark.reports.sections import (
    DISAGREEMENTS_SHOWN,
    describe_code_changes,
    describe_flips,
    make_changes,
    make_disagreements,
    make_flips,
    make_graphs,
    make_learning_curves,
    make_multiverse,
    make_pairs,
)
from recbench_spark.reports.text import leaderboard_text, multiverse_text
