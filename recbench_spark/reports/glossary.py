"""Explain a report's terms; a page lists those it uses."""

from __future__ import annotations

from collections.abc import Iterator

from recbench_spark.metrics.kernels.about import ABOUT, About
from recbench_spark.metrics.kernels.predictions import VALUE_METRICS
from recbench_spark.reports.facts import Report, ReportedMeasure


def _describe_metric(about: About) -> str:
    best = " Small is best." if about.best == "small" else ""
    return f"{about.title[0].upper()}{about.title[1:]}: {about.formula}{best}"


METRICS = {
    "dcg": "Discounted cumulative gain (DCG): sum of gain / log2(rank + 1) over the first k ranks.",
    **{name: _describe_metric(about) for name, about in ABOUT.items()},
}
"""A sentence for each metric: the registered ones, and the estimators' DCG."""

TERMS = {
    "interval": (
        "Interval",
        "Range that would hold the mean in most samples of such users, by the bootstrap: users are drawn "
        "again with replacement.",
    ),
    "part": (
        "Part",
        "Rows held out for measuring. valid chooses settings, test judges; open_loop was shown to users at "
        "random.",
    ),
    "users": (
        "Users",
        "Users averaged. Which ones count is a matter of definition, so tables can have different counts.",
    ),
    "rows": ("Rows", "Held-out rows with a prediction. The metric is one value of all of them."),
    "definition": (
        "Definition",
        "Version of the defaults and the axes in which a number differs from them.",
    ),
    "since": ("Since last night", "The value less the same model's value on its last night before."),
    "regression": (
        "Regression",
        "A fall behind an earlier night that is larger than the benchmark file allows.",
    ),
    "truth": (
        "Truth",
        "No model: the generated world's own scores, ranked like a model's. Nobody could ship them; they "
        "are an upper mark.",
    ),
    "tie": ("~", "No paired test tells it from the next model or, without one, their intervals overlap."),
    "holm": (
        "p by Holm",
        "Chance of a difference as large if there were none, raised for the number of tests that are made "
        "together.",
    ),
    "verdict": (
        "Verdict",
        "better and worse: the interval excludes 0; equivalent: it lies within the smallest difference "
        "that matters; unclear: neither, or too few users to show anything.",
    ),
    "open_loop": (
        "Open loop",
        "Items shown without the recommender's choice, each as likely as any other.",
    ),
    "exposure": (
        "Exposure bias",
        "What the deployed recommender did not show cannot be a hit. ips: inverse propensity scoring "
        "weighs a hit by 1 / its chance to be shown; snips divides by the sum of weights; dr, the doubly "
        "robust one, adds a model of outcomes.",
    ),
    "tau": ("tau-b", "Kendall's agreement of two orders: 1 the same, 0 none, -1 the reverse."),
    "slice": ("Slice", "The same measure over a part of the items or users only."),
    "mix": ("Mix", "Change of a mean because other users were averaged."),
    "within": ("Within", "Change of a mean because the same kind of users got other results."),
    "simpson": (
        "Simpson's paradox",
        "One model is better in the whole, the other within the parts of which the whole is made.",
    ),
    "retrieval": ("Recall of an index", "Share of the exact list that the index finds."),
    "check": (
        "Check",
        "A count or share of a run with the largest value that passes; a gate stops a model.",
    ),
    "split": (
        "Split",
        "Which rows are trained on and which are held out. The same hash means the same rows.",
    ),
    "run": ("Run", "One attempt of one model on one night."),
}
"""Terms by key: the term as the page writes it, and its text."""


def explain_term(key: str) -> str:
    """Return a term's or a metric's text, or ""."""
    return TERMS[key][1] if key in TERMS else METRICS.get(key, "")


def list_terms(report: Report) -> tuple[tuple[str, str, str], ...]:
    """Return a page's keys, terms and texts, sorted by term."""
    metrics = {m.metric for board in report.leaderboards for m in (board.measure, *board.others)}
    shown = [(f"metric-{name}", name, METRICS[name]) for name in metrics if name in METRICS]
    shown += [(key, *TERMS[key]) for key in _list_keys(report)]
    return tuple(sorted(shown, key=lambda term: (term[1].lower(), term[0])))


def _list_keys(report: Report) -> Iterator[str]:
    """Yield the term keys of the shown sections."""
    rows = [row for board in report.leaderboards for row in board.rows]
    counted = {name_counted(board.measure) for board in report.leaderboards}
    is_shown: dict[str, object] = {
        "interval": any(row.estimate.interval for row in rows),
        "tie": any(row.overlaps_next for row in rows),
        "truth": any(row.model_kind == "truth" for row in rows),
        "since": any(row.trend for row in rows),
        "regression": report.falls or report.regressions or report.has_rules,
        "open_loop": any(board.part == "open_loop" for board in report.leaderboards),
        **dict.fromkeys(("part", "definition"), report.leaderboards),
        **{kind: kind in counted for kind in ("users", "rows")},
        **dict.fromkeys(("holm", "verdict"), report.compared),
        "exposure": report.corrections,
        "tau": any(column.agreement is not None for one in report.corrections for column in one.columns),
        "slice": report.slices,
        **dict.fromkeys(("mix", "within"), report.changes),
        "simpson": report.disagreements,
        "retrieval": report.retrieval,
        "check": report.checks,
        "split": report.manifests,
        "run": report.runs,
    }
    yield from (key for key, shown in is_shown.items() if shown)


USERS_COUNTED = "users with a value: by the default definition those with a relevant item"
ROWS_COUNTED = "rows with a prediction, not users"


def name_counted(measure: ReportedMeasure) -> str:
    """Name what is averaged: users or rows."""
    return "rows" if measure.metric in VALUE_METRICS else "users"


def explain_users(report: Report) -> tuple[str, ...]:
    """Explain why a page counts different numbers of users.

    Each place has a sentence; there is none if the numbers agree. Boards with prediction metrics count
    rows.
    """
    boards = {board.part: {row.estimate.n for row in board.rows} for board in report.leaderboards}
    of_rows = {board.part for board in report.leaderboards if board.measure.metric in VALUE_METRICS}
    runs = {run.n_users for run in report.runs if run.n_users is not None}
    pairs = {pair.users for pair in report.compared}
    if len({n for counts in (*boards.values(), runs, pairs) for n in counts}) < 2:
        return ()
    sentences = [
        f"Leaderboard of {part}: {_join_counts(n)} {ROWS_COUNTED if part in of_rows else USERS_COUNTED}."
        for part, n in boards.items()
    ]
    if runs:
        sentences.append(
            f"Runs: {_join_counts(runs)} users with held-out rows, relevant or not, in the part that has "
            "most of them."
        )
    if pairs:
        sentences.append(f"Comparisons: {_join_counts(pairs)} users with a value in both runs.")
    if report.slices:
        sentences.append("Slices: users with a relevant item of that slice, so fewer than the leaderboard.")
    return tuple(sentences)


def _join_counts(counts: set[int]) -> str:
    """Return counts as text: one, or the range."""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
