"""Evaluate tables of any recommender system, without a config file.

    python jobs/evaluate.py --warehouse DIR --model NAME --lists PATH --truth PATH --k 1,3,10
    python jobs/evaluate.py ... --scores PATH            --truth PATH --train PATH
    python jobs/evaluate.py ... --embeddings USERS ITEMS --truth PATH --train PATH
    python jobs/evaluate.py ... --embeddings ITEMS       --pairs PATH
    python jobs/evaluate.py ... --embeddings WAREHOUSE --model-id ID --truth PATH --train PATH
    python jobs/evaluate.py ... --predictions PATH

Parquet, CSV or Delta. Columns may have the usual names of other libraries; a line tells which were taken.
lists: user_id, item_id, rank (from 1) or score. truth: user_id, item_id
[, relevance]; a user with an empty truth has one row with item NULL. scores: user_id, item_id, score.
embeddings: user_id, vector and item_id, vector[, bias], or a warehouse whose table `embeddings` has the
vectors (of jobs/embed.py, or of a night's model). predictions: user_id, item_id, prediction,
outcome. The metrics are printed and written to WAREHOUSE/metrics, WAREHOUSE/user_metrics ...

Tables of this machine up to 2,000,000 rows are evaluated in this process, others by Spark, with the same
numbers and tables: --engine.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli
from recbench_spark.config import DEFAULT_METRICS, Bootstrap, Views
from recbench_spark.evaluation.options import ENGINES, KINDS, SIMILARITIES, EvaluationRequest


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--model", required=True, help="name of the model in the tables")
    source = flags.add_argument_group("tables of the system (exactly one)").add_mutually_exclusive_group(
        required=True
    )
    source.add_argument("--lists", metavar="PATH", help="ranked lists")
    source.add_argument("--scores", metavar="PATH", help="scores of candidates")
    source.add_argument(
        "--embeddings",
        nargs="+",
        metavar="PATH",
        help="vectors of USERS ITEMS, or with --pairs ITEMS alone, or a WAREHOUSE with a table embeddings",
    )
    source.add_argument("--predictions", metavar="PATH", help="predictions with their outcomes")
    flags.add_argument("--truth", metavar="PATH", help="held-out items (not with --predictions)")
    flags.add_argument(
        "--pairs", metavar="PATH", help="labelled pairs (query_id, item_id): items near an item are ranked"
    )
    flags.add_argument(
        "--train", metavar="PATH", help="training items, which are left out of rankings by scores"
    )
    flags.add_argument(
        "--columns",
        default="",
        help="names of columns: user_id=userId,item_id=movieId; usual names need no flag",
    )
    flags.add_argument("--candidates", metavar="PATH", help="candidates of each user (user_id, item_id)")
    flags.add_argument("--features", metavar="PATH", help="features of items (item_id, vector)")
    flags.add_argument(
        "--similarity", choices=SIMILARITIES, default=EvaluationRequest.similarity, help="of embeddings"
    )
    _add_metric_flags(flags)
    _add_run_flags(flags)
    return flags


def _add_run_flags(flags: cli.Parser) -> None:
    """Add the flags that name the run, choose the engine, and look before the work."""
    flags.add_argument(
        "--model-id",
        metavar="ID",
        help="with --embeddings WAREHOUSE: the model (not needed for a single one)",
    )
    flags.add_argument("--dataset", help="name under which runs are compared (default: the truth's path)")
    flags.add_argument("--suite", default="standalone", help="name under which runs are compared")
    flags.add_argument(
        "--logical-date", type=cli.parse_day, default=None, help="the day evaluated (default: today)"
    )
    flags.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="engine: this process, Spark, or by size (default)",
    )
    flags.add_argument(
        "--dry-run", action="store_true", help="check flags and tables, say what would be done"
    )


def _add_metric_flags(flags: cli.Parser) -> None:
    """Add the flags of metrics and definitions."""
    flags.add_argument(
        "--k", type=cli.parse_cutoffs, default=EvaluationRequest.k, help="cut-offs, e.g. 1,3,10"
    )
    default = ",".join(DEFAULT_METRICS)
    flags.add_argument("--metrics", help=f"comma-separated, such as ndcg@10; default {default}")
    flags.add_argument("--curve", action="store_true", help="keep every cut-off from 1 to the largest k")
    flags.add_argument(
        "--cut", action="store_true", help="rank only up to the largest k: faster, no uncut values"
    )
    flags.add_argument("--preset", help="definition of another library, e.g. recbole, rectools, mllib")
    flags.add_argument(
        "--set", action="append", default=[], metavar="definition.AXIS=VALUE", help="one axis"
    )
    flags.add_argument(
        "--quantiles", type=int, default=Views.quantiles, help="bins of equal mass of predictions"
    )
    flags.add_argument(
        "--thresholds",
        type=cli.parse_numbers,
        default=Views.thresholds,
        help="TPR, FPR ... of predictions from these values on",
    )
    flags.add_argument(
        "--fpr",
        type=cli.parse_numbers,
        default=Views.fpr,
        help="false-positive rates of the partial AUC: 0,0.1",
    )
    flags.add_argument(
        "--slice",
        metavar="COLUMN",
        help="all numbers of predictions again for each value of a column, such as block",
    )
    flags.add_argument(
        "--bootstrap",
        type=int,
        default=Bootstrap().replicates,
        help="replicates behind the intervals (0: none)",
    )


def main(args: argparse.Namespace) -> int:
    """Check the flags, evaluate the tables, write and print the results."""
    # Imported here, so that --help and wrong flags are answered before anything of an evaluation is loaded.
    from recbench_spark.commands.actions.evaluate import evaluate_paths  # noqa: PLC0415

    return evaluate_paths(args, next(name for name in KINDS if getattr(args, name)))
