"""Study Simpson's paradox in offline evaluation.

    python jobs/studies/simpson.py --set dataset.path=/path/to/coat --folder FOLDER --table simpson.csv
    python jobs/studies/simpson.py --set dataset.path=/path/to/coat --folder FOLDER --tuned
    python jobs/studies/simpson.py --config movielens_1m_strata --pairs wmf:bpr --set dataset.path=/ml-1m

Does an estimate order 104 models like an open loop? For each seed, all models in a benchmark file are
fitted twice: to all rows in the closed loop, and ranked on the open loop (the truth); to 80 % of them,
and ranked on the rest. Holdout, IPS, SNIPS and stratified estimates are compared with the truth by
Kendall's tau-b, and each with the holdout: by Steiger's test, over families of models, over users. With
`--tuned`, settings from section `search` are chosen first on a part of the training rows. Ranks are kept
in FOLDER: a run that was killed goes on there. No Java starts, and the numbers are those of nights
(docs/measured/simpson_study.md).
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.studies import loop_estimates as estimates
from jobs.studies import simpson_findings as findings
from jobs.studies import simpson_runs
from recbench_spark import cli
from recbench_spark.config import Benchmark, ModelConfig, load_benchmark
from recbench_spark.errors import OK, ConfigError, DataError
from recbench_spark.runtime.journal import Journal
from recbench_spark.storage.publish import replace_text

LEVEL = 0.05
TWO = estimates.name_strata(estimates.PUBLISHED, "equal_width", 2)
SHOWN = (
    estimates.HOLDOUT,
    f"ips {estimates.PUBLISHED}, {estimates.MISKEYED}",
    f"ips {estimates.PUBLISHED}",
    f"ips {estimates.OURS}",
    f"snips_user {estimates.PUBLISHED}",
    f"snips_user {estimates.OURS}",
    TWO,
    estimates.name_strata(estimates.OURS, "equal_mass", 2),
    estimates.name_strata(estimates.OURS, "equal_count", 2),
    f"Q1 of {TWO}",
    f"Q2 of {TWO}",
)
"""Estimators in the first table."""

KINDS = (
    (estimates.PUBLISHED, "equal_width"),
    (estimates.OURS, "equal_mass"),
    (estimates.OURS, "equal_count"),
)
PUBLISHED_TAUS = {
    "ndcg": (0.202, 0.225, 0.283), "ndcg@100": (0.327, 0.360, 0.393), "ndcg@30": (0.165, 0.159, 0.213),
    "ndcg@10": (0.121, 0.165, 0.219), "ndcg@5": (-0.040, 0.051, 0.116),
}  # fmt: skip
"""Coat, one split in the paper: tau-b of holdout, IPS and two strata with the open loop."""


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    usual, seeds, cores = "coat_debiased", tuple(range(123, 133)), os.cpu_count() or 1
    flags.add_argument("--config", default=usual, help="benchmark file, or its name (coat_debiased)")
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    of_seeds = "of splits and models (123 to 132)"
    flags.add_argument("--seeds", type=cli.parse_cutoffs, default=seeds, help=of_seeds)
    flags.add_argument("--processes", type=cli.parse_count, default=cores, help="fits at once")
    flags.add_argument("--replicates", type=cli.parse_count, default=1000, help="of the bootstraps (1000)")
    of_tuned = "choose settings on a part of the training rows"
    flags.add_argument("--tuned", action="store_true", help=of_tuned)
    flags.add_argument("--pairs", default="gmf:svd", help="families to compare, A:B,C:D (gmf:svd)")
    flags.add_argument("--folder", type=Path, help="keeps the ranks of each model, so that a run goes on")
    flags.add_argument("--table", type=Path, help="file of all numbers, .csv")
    return flags


def main(args: argparse.Namespace) -> int:
    """Run all seeds, and print how the paper's claims fare."""
    benchmark = load_benchmark(args.config, args.set)
    check_study(benchmark, parse_pairs(args.pairs))
    parts, journal = [], Journal()
    for seed in args.seeds:
        parts.append(study_seed(benchmark, seed, args, journal))
        if args.table:  # after each seed, so a forced end keeps the finished ones
            replace_text(args.table, pd.concat(parts, ignore_index=True).to_csv(index=False))
    print_study(pd.concat(parts, ignore_index=True))
    return OK


def parse_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Parse `gmf:svd,bpr:wmf`.

    Raises:
        ConfigError: another form.
    """
    pairs = [tuple(part.split(":")) for part in text.split(",") if part]
    for pair in pairs:
        if len(pair) != 2 or not all(pair):
            raise ConfigError(f"--pairs {text} is not a list of pairs", "--pairs gmf:svd,bpr:wmf")
    return tuple((first, second) for first, second in pairs)


def check_study(benchmark: Benchmark, pairs: Sequence[tuple[str, str]]) -> None:
    """Check models and pairs before anything is fitted.

    Raises:
        ConfigError: a pair names no family in the file, a model cannot be fitted here, or the file's
            night would not rank all items.
    """
    candidates = benchmark.evaluation.resolve().candidates
    if candidates != "all":
        raise ConfigError(
            f"the study ranks all items, and definition.candidates is '{candidates}'",
            "--set evaluation.definition.candidates=all",
        )
    families = {simpson_runs.name_family(model.name) for model in benchmark.models}
    for name in (name for pair in pairs for name in pair):
        if name not in families:
            raise ConfigError(f"--pairs: no family '{name}'", f"families: {', '.join(sorted(families))}")
    for model in benchmark.models:
        model.check(benchmark.dataset.reader)


def study_seed(benchmark: Benchmark, seed: int, args: argparse.Namespace, journal: Journal) -> pd.DataFrame:
    """Return all findings of a seed as rows.

    The column `table` says which kind they are.
    """
    start = time.monotonic()
    work = simpson_runs.prepare_seed(benchmark, seed, args.folder)
    models = simpson_runs.seed_closed_loop(benchmark, seed).models
    if args.tuned:
        models = tune_models(benchmark, models, work, args, journal)
    outcomes = []
    for outcome in simpson_runs.run_models(models, work, args.processes):
        outcomes.append(outcome)
        if len(outcomes) % 20 == 0 or len(outcomes) == len(models):
            journal.say(f"seed {seed}: {len(outcomes)} of {len(models)} models")
    results = simpson_runs.collect_results(outcomes, work)
    for failure in results.failures:
        journal.say(f"seed {seed}: model {failure.model} failed: {failure.reason}")
    tables = find_all(results, work.plan.columns, args) | {"strata": findings.list_strata(work)}
    # Linux counts KiB. Among finished processes this is the largest one; this process goes on.
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = max(resource.getrusage(kind).ru_maxrss for kind in kinds) / (1 << 20)
    journal.say(f"seed {seed}: {time.monotonic() - start:.0f} s, largest process {peak:.2f} GiB")
    rows = [pd.DataFrame(rows).assign(table=name, seed=seed) for name, rows in tables.items() if rows]
    return pd.concat(rows, ignore_index=True)


def tune_models(
    benchmark: Benchmark,
    models: Sequence[ModelConfig],
    work: simpson_runs.SeedWork,
    args: argparse.Namespace,
    journal: Journal,
) -> tuple[ModelConfig, ...]:
    """Choose the best settings of each family, and name them.

    Returns the models with these.

    Raises:
        ConfigError: the file has no section `search`.
    """
    if benchmark.search is None:
        raise ConfigError(f"{args.config}: no section search", "leave --tuned out")
    metric, _, k = benchmark.headline.partition("@")
    headline = estimates.Column(metric, int(k) if k else None)
    best = simpson_runs.search_settings(models, benchmark.search, headline, work, args.processes)
    for name, (setting, value) in best.items():
        chosen = ", ".join(f"{key} {number:g}" for key, number in setting.items())
        journal.say(f"{name}: {chosen}; {headline} {value:.4f} on validation rows")
    return simpson_runs.apply_settings(models, best)


def find_all(
    results: simpson_runs.SeedResults, columns: Sequence[estimates.Column], args: argparse.Namespace
) -> dict[str, list[findings.Row]]:
    """Return the rows for each table of a seed."""
    gains = [str(column) for column in columns if column.metric == "ndcg"]
    pairs = [
        row
        for pair in parse_pairs(args.pairs)
        for row in findings.compare_pairs(results, columns, pair, ("ndcg", "ndcg@10"))
    ]
    values = [
        {"model": model, "column": str(column), "estimator": name, "value": float(value_mc[m, c])}
        for name, value_mc in results.estimates.items()
        if name in (*SHOWN, estimates.ONE)
        for m, model in enumerate(results.models)
        for c, column in enumerate(columns)
    ]
    if results.truth_umc is None:
        return {"pair": pairs, "value": values}
    check_one_stratum(results)
    return {
        "lead": findings.compare_estimators(results, columns, args.replicates),
        "user": findings.resample_users(results, columns, gains, TWO, args.replicates),
        "halves": findings.compare_halves(results, columns),
        "pair": pairs,
        "value": values,
    }


def check_one_stratum(results: simpson_runs.SeedResults) -> None:
    """Check that one stratum is the holdout, bit for bit.

    Raises:
        DataError: it is not.
    """
    if not np.array_equal(
        results.estimates[estimates.ONE], results.estimates[estimates.HOLDOUT], equal_nan=True
    ):
        raise DataError("one stratum is not the holdout", "combine_strata has changed")


# ------------------------------------------------------------------------------- tables


def print_study(rows: pd.DataFrame) -> None:
    """Print all tables.

    A cell is the mean over the seeds and their standard deviation.
    """
    print_strata_sizes(rows[rows.table == "strata"])
    if (rows.table == "lead").any():
        leads = rows[rows.table == "lead"]
        columns = list(dict.fromkeys(leads.column))
        print_agreement(leads, columns)
        print_numbers(leads, [column for column in columns if column.startswith("ndcg")])
        print_limits(rows, [column for column in columns if column.startswith("ndcg")])
        print_adjusted(leads)
        print_claims(leads)
    pairs = rows[rows.table == "pair"]
    for (pair, column), group in pairs.groupby(["pair", "column"], sort=False):
        print_pair(str(pair), str(column), group)


def describe_cell(values: pd.Series) -> str:
    """Describe several seeds' numbers by mean and deviation.

    The standard deviation needs two.
    """
    known = values.dropna()
    if known.empty:
        return ""
    spread = f" ± {known.std(ddof=1):.3f}" if len(known) > 1 else ""
    return f"{known.mean():.3f}{spread}"


def find_median(values: pd.Series) -> str:
    """Return the median of the existing numbers."""
    known = values.dropna()
    return "" if known.empty else f"{known.median():.3f}"


def print_table(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")


def print_strata_sizes(sizes: pd.DataFrame) -> None:
    """Print the two published strata's items and tested pairs."""
    lines = [
        [str(name), describe_cell(group["items"]), describe_cell(group["tested"])]
        for name, group in sizes.groupby("stratum", sort=False)
    ]
    print_table("Strata as published", ["stratum", "items", "tested pairs"], lines)


def print_agreement(leads: pd.DataFrame, columns: Sequence[str]) -> None:
    """Print tau-b of each estimator, and its significant seeds.

    A seed is significant if the lead over the holdout is.
    """
    lines = []
    for column in columns:
        of_column = leads[leads.column == column]
        line = [column]
        for name in SHOWN:
            own = of_column[of_column.estimator == name]
            sure = "" if name == estimates.HOLDOUT else f" ({int((own.p < LEVEL).sum())})"
            cell = describe_cell(own.tau)
            line.append(cell + sure if cell else "")
        lines.append(line)
    seeds = leads.seed.nunique()
    title = f"tau-b with the open loop; in parentheses: seeds of {seeds} with p < {LEVEL} (Steiger)"
    print_table(title, ["", *SHOWN], lines)


def print_numbers(leads: pd.DataFrame, columns: Sequence[str]) -> None:
    """Print 2 to 10 strata.

    Shown are mean and standard deviation over the numbers, and how many are significant.
    """
    lines = []
    for column in columns:
        line = [column]
        for propensity, kind in KINDS:
            names = [
                estimates.name_strata(propensity, kind, n) for n in range(2, estimates.MOST_STRATA + 1)
            ]
            own = leads[(leads.column == column) & leads.estimator.isin(names)]
            by_seed = own.groupby("seed")
            spread = by_seed.tau.std(ddof=1).mean()
            sure = by_seed.p.apply(lambda p: (p < LEVEL).sum()).mean()
            line.append(f"{by_seed.tau.mean().mean():.3f} ± {spread:.3f}, {sure:.1f} of {len(names)}")
        lines.append(line)
    title = "2 to 10 strata: mean tau-b, its standard deviation over the numbers, numbers with p < .05"
    print_table(title, ["", *(f"{name}, {kind}" for name, kind in KINDS)], lines)


def print_limits(rows: pd.DataFrame, columns: Sequence[str]) -> None:
    """Print how well two halves of the users agree.

    The lead of two strata by three kinds of tests stands beside it.
    """
    leads, users, halves = (rows[rows.table == name] for name in ("lead", "user", "halves"))
    lines = []
    for column in columns:
        lead = leads[(leads.column == column) & (leads.estimator == TWO)]
        user = users[(users.column == column) & (users.estimator == TWO)]
        lines.append(
            [
                column,
                describe_cell(halves[halves.column == column].halves),
                describe_cell(lead.tau - lead.other),
                f"{find_median(lead.p)}; {describe_cell(lead.visible)}",
                f"{find_median(lead.family_below)}; {describe_cell(lead.family_visible)}",
                f"{find_median(user.user_below)}; {describe_cell(user.user_visible)}",
            ]
        )
    head = ["", "halves", "lead of two strata", "Steiger", "families", "users"]
    print_table("Limits: median p; smallest visible lead", head, lines)


def print_adjusted(leads: pd.DataFrame) -> None:
    """Print how many stratified tests stay significant after adjustment."""
    tested = leads.dropna(subset=["adjusted_p"]).groupby("seed")
    lines = [
        [str(n) for n in (seed, len(group), (group.p < LEVEL).sum(), (group.adjusted_p < LEVEL).sum())]
        for seed, group in tested
    ]
    head = ["seed", "tests", f"p < {LEVEL}", "adjusted"]
    print_table("Strata x cut-offs x metrics, adjusted by Benjamini and Hochberg", head, lines)


def print_claims(leads: pd.DataFrame) -> None:
    """Print each of the paper's claims as a seed count.

    Coat's published numbers stand beside it.
    """
    if not (leads.column == "ndcg").any():
        return
    wide = leads[leads.column == "ndcg"].set_index(["seed", "estimator"])
    sure, tau = (wide[name].unstack() for name in ("p", "tau"))
    deep, shallow = (count_leads(leads, names) for names in (("ndcg", "ndcg@100"), ("ndcg@5", "ndcg@10")))
    seeds = len(tau)
    ips, wrong = f"ips {estimates.PUBLISHED}", f"ips {estimates.PUBLISHED}, {estimates.MISKEYED}"
    lines = [
        ["IPS no better than holdout, wrong key", f"{int((~(sure[wrong] < LEVEL)).sum())} of {seeds}"],
        ["IPS no better than holdout, right key", f"{int((~(sure[ips] < LEVEL)).sum())} of {seeds}"],
        ["two strata better, whole list and 100", deep],
        ["two strata better, first 5 and 10", shallow],
        ["Q1 better than holdout", f"{int((sure[f'Q1 of {TWO}'] < LEVEL).sum())} of {seeds}"],
        ["Q1 above two strata", f"{int((tau[f'Q1 of {TWO}'] > tau[TWO]).sum())} of {seeds}"],
        ["Q2 negative", f"{int((tau[f'Q2 of {TWO}'] < 0).sum())} of {seeds}"],
    ]
    print_table(
        "Claims: seeds in which they hold (NDCG of the whole list, p < .05)", ["claim", "seeds"], lines
    )
    for column, published in PUBLISHED_TAUS.items():
        own = leads[leads.column == column]
        cells = [
            describe_cell(own[own.estimator == name].tau) for name in (estimates.HOLDOUT, wrong, ips, TWO)
        ]
        print(
            f"{column}: published {' / '.join(f'{one:.3f}' for one in published)}; here {' / '.join(cells)}"
        )


def count_leads(leads: pd.DataFrame, columns: Sequence[str]) -> str:
    """Count seeds and columns where the published strata lead.

    The lead of the two strata must be significant.
    """
    own = leads[(leads.estimator == TWO) & leads.column.isin(columns)]
    return f"{int((own.p < LEVEL).sum())} of {len(own)}"


def print_pair(pair: str, column: str, rows: pd.DataFrame) -> None:
    """Print a pair of families at each size.

    Shown are mean values, and seeds with adjusted p < .05.
    """
    parts = list(dict.fromkeys(rows.part))
    lines = []
    for size, group in rows.groupby("size", sort=False):
        cells = []
        for part in parts:
            own = group[group.part == part]
            up, down = (
                int(((own.adjusted_p < LEVEL) & (own.difference * way > 0)).sum()) for way in (1, -1)
            )
            cells.append(f"{own['first'].mean():.4f} - {own.second.mean():.4f}, {up} above, {down} below")
        lines.append([str(size), *cells])
    title = f"{pair}, {column}: mean values; seeds of {rows.seed.nunique()} with the first above or below"
    print_table(title, ["size", *parts], lines)


if __name__ == "__main__":
    cli.run(main, parser())
