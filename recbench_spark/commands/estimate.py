"""Estimate from biased logs: errors over a whole rating matrix, or the value of a policy.

    python jobs/estimate.py --warehouse DIR --model NAME --matrix PATH --log PATH --propensities PATH
    python jobs/estimate.py --warehouse DIR --model NAME --rounds PATH
    python jobs/estimate.py ... --model random --rounds OBD/bts --reader open_bandit --uniform 80
    python jobs/estimate.py ... --model bts --rounds OBD/random --reader open_bandit --policy-log OBD/bts

Parquet, CSV or Delta. matrix: user_id, item_id, prediction of every cell[, imputed: what a model of
ratings expects there, for DR][, rating: NULL where not known, in place of --log]. log: user_id, item_id,
rating. propensities: propensity by item_id, by user_id and item_id, or by rating (or Coat's
propensities.ascii). MSE and MAE by the naive mean (estimator holdout), IPS, SNIPS and DR, with bootstrap
intervals over users (Schnabel et al., ICML 2016).

rounds: reward, propensity of the logged action, pi_e: the probability that the policy in question takes
it[, q and q_policy: the reward a model expects of that action and of the policy]. In place of pi_e:
--uniform N, --policy PATH (item_id[, position], pi_e), or --policy-log PATH, rounds of that policy whose
shares of items by position estimate it. The policy's value by IPS, clipped IPS, SNIPS and, with q, DM,
DR, switch-DR, DRos. Printed, and written to WAREHOUSE/metrics, checks and runs.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--model", required=True, help="name of the model or policy in the tables")
    source = flags.add_mutually_exclusive_group(required=True)
    source.add_argument("--matrix", metavar="PATH", help="predictions of all cells")
    source.add_argument("--rounds", metavar="PATH", help="logged rounds")
    matrix = flags.add_argument_group("with --matrix")
    matrix.add_argument("--log", metavar="PATH", help="known ratings (default: the matrix's column rating)")
    matrix.add_argument("--propensities", metavar="PATH", help="chances that a rating became known")
    matrix.add_argument("--floor", type=float, help="raise smaller propensities to it, lower others to 1")
    matrix.add_argument("--bootstrap", type=int, help="replicates behind the intervals (1000)")
    rounds = flags.add_argument_group("with --rounds")
    rounds.add_argument("--reader", choices=["table", "open_bandit"], help="how to read rounds (table)")
    policies = rounds.add_mutually_exclusive_group()
    policies.add_argument(
        "--uniform",
        type=int,
        metavar="N",
        help="a policy that chooses each of N items with equal probability",
    )
    policies.add_argument("--policy", metavar="PATH", help="table item_id[, position], pi_e")
    policies.add_argument("--policy-log", metavar="PATH", help="rounds of the policy in question")
    rounds.add_argument("--clip", type=float, help="largest weight of clipped_ips (100)")
    rounds.add_argument("--switch", type=float, help="largest weight trusted by switch_dr (100)")
    rounds.add_argument("--shrink", type=float, help="lambda of dros (100)")
    flags.add_argument("--level", type=float, default=0.95, help="level of the intervals")
    flags.add_argument("--dataset", help="name under which runs are compared (default: the log's path)")
    flags.add_argument("--suite", default="standalone", help="name under which runs are compared")
    flags.add_argument("--logical-date", type=cli.parse_day, help="the day evaluated (default: today)")
    cli.add_engine(flags)
    flags.add_argument("--dry-run", action="store_true", help="check the flags and say what would be done")
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the flags, read the tables, estimate, write and print the results."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import estimate  # noqa: PLC0415

    return estimate.run(args)
