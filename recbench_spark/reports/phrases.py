"""Put definitions, values and conclusions into words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from recbench_spark.core.definitions import Definition
from recbench_spark.metrics.kernels.about import about_metric
from recbench_spark.reports.facts import (
    Agreement,
    Leaderboard,
    LeaderboardRow,
    MetricEstimate,
    ReportedMeasure,
)
from recbench_spark.reports.night_facts import VISIBLE_P

ANY = "*"
"""Any other value on an axis with numbers.

The value replaces the braces.
"""

AXES_IN_WORDS: dict[str, tuple[str, dict[str, str]]] = {
    "users": (
        "Users averaged",
        {
            "truth": "every user with relevant items; a user the model gave nothing counts 0",
            "both": "users with relevant items and a list",
            "output": "users with a list",
        },
    ),
    "ndcg_users": (
        "Users averaged in NDCG",
        {
            "same": "as for the other metrics",
            "truth": "every user with relevant items; a user the model gave nothing counts 0",
            "both": "users with relevant items and a list",
            "output": "users with a list",
        },
    ),
    "empty_users": (
        "Users without relevant items",
        {"leave_out": "left out, and counted in the checks", "zero": "count 0"},
    ),
    "ndcg_ties": (
        "Equal scores in NDCG",
        {"same": "as in the other metrics", "expected": "the mean over all orders"},
    ),
    "gain": (
        "Gain of an item",
        {
            "binary": "1 if relevant",
            "linear": "its relevance r",
            "exponential": "2^r - 1 for relevance r",
            "exponential_above": "2^(r - threshold + 1) - 1 for relevance r of a relevant item, else 0",
        },
    ),
    "negative_grades": (
        "Grades below 0",
        {
            "clip": "count as 0",
            "worst": "the DCG is mapped to [0, 1] between the worst and the best order",
            "zero_floor": "the normalised value is cut at 0",
            "signed": "they are subtracted, and the normalised value can be far below 0",
        },
    ),
    "grade_origin": ("Grade of an item", {"0.0": "its relevance", ANY: "its relevance minus {}"}),
    "threshold": ("Relevant", {"None": "relevance above 0", ANY: "relevance of at least {}"}),
    "gaps": (
        "Ranks that are given",
        {"keep": "are places that the user saw, with gaps", "close": "order a list, without gaps"},
    ),
    "discount": (
        "Discount of a rank",
        {
            "log2": "1 / log2(rank + 1)",
            "log2_max2": "1 / log2(max(rank, 2))",
            "ln": "1 / ln(rank + 1)",
        },
    ),
    "ideal": (
        "Length of the ideal list in NDCG",
        {
            "min_k_relevant": "the smaller of k and the number of relevant items",
            "k": "k, however many items are relevant",
            "relevant": "all relevant items",
            "min_relevant_list": "the smallest of k, the number of relevant items and the list's length",
        },
    ),
    "precision_by": (
        "Precision divides by",
        {
            "k": "k",
            "list": "the length of the list, at most k",
            "min_k_relevant": "the smaller of k and the number of relevant items",
        },
    ),
    "recall_by": (
        "Recall divides by",
        {
            "relevant": "the number of relevant items",
            "min_k_relevant": "the smaller of k and the number of relevant items",
        },
    ),
    "ap": (
        "Average precision is",
        {
            "precision_at_hits": "the sum of the precisions at the hits",
            "mean_precision": "the mean of precision@1 to precision@k",
        },
    ),
    "ap_by": (
        "Average precision divides by",
        {
            "min_k_relevant": "the smaller of k and the number of relevant items",
            "relevant": "the number of relevant items",
            "k": "k",
            "min_relevant_list": "the smaller of the number of relevant items and the list's length",
            "hits": "the number of hits",
        },
    ),
    "ap_ties": (
        "Equal scores in average precision",
        {"same": "as in the other metrics", "last_rank": "all at the last rank of their tie"},
    ),
    "map_cut": (
        "Average precision looks at",
        {"at_k": "the first k", "uncut": "the whole list, whatever k"},
    ),
    "mrr_cut": (
        "The first hit counts",
        {"at_k": "if it is among the first k", "uncut": "wherever it is"},
    ),
    "hit": (
        "Hit is",
        {"any": "1 if any of the first k is relevant", "count": "the number of hits"},
    ),
    "persistence": (
        "In rank-biased precision a reader goes on to the next rank",
        {ANY: "with chance {}"},
    ),
    "auc_ties": (
        "A tie of a relevant with another item in AUC",
        {
            "half": "counts one half",
            "strict": "counts nothing",
            "id_descending": "counts 1 if the relevant item has the larger id, else nothing",
        },
    ),
    "auc_by": (
        "AUC divides by",
        {
            "pairs": "all pairs of a relevant and another ranked item",
            "listed_pairs": "the pairs of a relevant item that is ranked and another ranked item",
            "pairs_and_one": "all pairs, with one more other item than there is",
        },
    ),
    "ties": (
        "Equal scores",
        {
            "id": "the smaller item id comes first",
            "id_descending": "the larger item id comes first",
            "expected": "the mean over all orders",
            "optimistic": "relevant items come first",
            "pessimistic": "relevant items come last",
            "hashed": "the larger hash of seed, user and item comes first",
        },
    ),
    "tie_seed": ("The seed of hashed ties is", {ANY: "{}"}),
    "weigh": (
        "The mean weighs",
        {
            "users": "users alike: a user's queries are averaged first",
            "rows": "all queries alike, and intervals are by user",
        },
    ),
    "duplicates": (
        "An item twice in a list or in the truth",
        {"drop": "is kept once, and counted in the checks", "error": "is refused"},
    ),
    "candidates": (
        "Ranked items",
        {
            "unseen": "all items that are not in the user's training part",
            "all": "all items",
            "rated": "the user's own held-out items only",
            "given": "the given items",
            "uniform": "the truth and unseen items drawn uniformly",
            "popularity": "the truth and unseen items drawn by training popularity",
        },
    ),
    "candidates_as_of": (
        "Of these, candidates are",
        {
            "none": "all, whatever the time",
            "first_seen": "those seen in the log when the row was tested",
            "availability": "those available when the row was tested",
        },
    ),
    "first_seen_in": (
        "An item is seen by",
        {
            "log": "rows of the whole log, up to the moment and with the tested row",
            "train": "training rows alone",
        },
    ),
    "unavailable": (
        "Truth that was no candidate then",
        {"left_out": "is left out, and counted in the checks", "miss": "is not ranked: a miss"},
    ),
    "draw": ("Items drawn", {"": "none", ANY: "{}"}),
    "curve": ("Held-out users are measured after each of their ratings", {ANY: "{}"}),
}
"""Each axis of a definition, with its values, in words."""


def definition_in_words(definition: str) -> tuple[tuple[str, str], ...]:
    """Describe how a definition differs from the defaults.

    An axis is (axis, value) in words.

    >>> definition_in_words("v1;gain=linear")
    (('Gain of an item', 'its relevance r'),)
    """
    pairs = (axis.partition("=") for axis in definition.split(";")[1:])
    return tuple(_axis_in_words(name, value) for name, _, value in pairs)


def _axis_in_words(axis: str, value: str) -> tuple[str, str]:
    title, words = AXES_IN_WORDS.get(axis, (axis, {}))
    return title, words.get(value, words.get(ANY, "{}").replace("{}", value))


def defaults_in_words() -> tuple[tuple[str, str], ...]:
    """Describe every axis's default, as (axis, value) in words."""
    fields = Definition.model_fields.items()
    return tuple(_axis_in_words(name, str(field.default)) for name, field in fields)


def format_estimate(estimate: MetricEstimate | None) -> str:
    """Format as `0.3121 [0.3050, 0.3190]`, or without an interval.

    >>> format_estimate(MetricEstimate(0.25, None, None, 4))
    '0.2500'
    """
    value = format_value(estimate)
    if estimate is None or estimate.interval is None:
        return value
    low, high = estimate.interval
    return f"{value} [{format_decimals(low)}, {format_decimals(high)}]"


def format_value(estimate: MetricEstimate | None) -> str:
    """Format with four decimals; a dash without a value."""
    return "–" if estimate is None else format_decimals(estimate.value)


def format_decimals(value: float) -> str:
    """Format with four decimals; NaN is a dash.

    A number they do not show has no sign.

    >>> format_decimals(-0.00001), format_decimals(-0.5)
    ('0.0000', '-0.5000')
    """
    if math.isnan(value):
        return "–"
    text = f"{value:.4f}"
    return text.removeprefix("-") if float(text) == 0 else text


def format_signed(value: float, digits: int = 4) -> str:
    """Format a difference with its sign.

    A difference the digits do not show has none.

    >>> format_signed(0.0312), format_signed(-0.00001)
    ('+0.0312', '0.0000')
    """
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text


def level_in_words(level: float | None) -> str:
    """Describe the intervals by their level."""
    return "bootstrap intervals" if level is None else f"{100 * level:g} % bootstrap intervals"


def format_number(value: float | None) -> str:
    """Format counts with thousands separators, others with four digits."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


# ------------------------------------------------------------------------------- conclusions

NOT_SHIPPED = {"truth": "the world's own scores, no model", "published": "published"}
"""Model kinds nobody could deploy tonight, with descriptions."""


def name_model(model: str, kind: str) -> str:
    """Name a model, and say if nobody could deploy it.

    >>> name_model("truth", "truth"), name_model("ours", "als")
    ("truth (the world's own scores, no model)", 'ours')
    """
    return f"{model} ({NOT_SHIPPED[kind]})" if kind in NOT_SHIPPED else model


MAX_REGRESSIONS = 5


def summarise(
    boards: Sequence[Leaderboard],
    agreements: Sequence[Agreement],
    regressions: Sequence[str] = (),
    note: Sequence[str] = (),
) -> tuple[str, ...]:
    """Summarise the main conclusions as sentences.

    The conclusions are regressions, notes, leaders, and the agreement between parts.
    """
    first = (*_describe_regressions(regressions), *note)
    if not boards:
        return (*first, "No succeeded run to show.")
    kinds = map_kinds(boards)
    return (*first, *describe_leaders(boards), *(_describe_agreement(one, kinds) for one in agreements))


def map_kinds(boards: Sequence[Leaderboard]) -> dict[str, str]:
    """Map each ranked model to its kind."""
    return {row.model: row.model_kind for board in boards for row in board.rows}


def describe_leaders(boards: Sequence[Leaderboard]) -> tuple[str, ...]:
    """Describe each board's best models."""
    return tuple(_describe_leader(board, _describe_board(board, boards)) for board in boards)


def _describe_regressions(regressions: Sequence[str]) -> tuple[str, ...]:
    """Describe the first regressions, and count the others."""
    sentences = [f"Regression: {sentence}." for sentence in regressions[:MAX_REGRESSIONS]]
    if rest := len(regressions) - len(sentences):
        what = "regressions stand" if rest > 1 else "regression stands"
        sentences.append(f"{rest} more {what} in the view regressions.")
    return tuple(sentences)


def _describe_board(board: Leaderboard, boards: Sequence[Leaderboard]) -> str:
    """Start a sentence that tells a board from the others."""
    if len(boards) == 1:
        return ""
    same = [other for other in boards if other.part == board.part]
    details = []
    if len({other.split_id for other in same}) > 1:
        details.append(f"split {board.split_id} of {board.dataset}")
    if len({other.measure for other in same}) > 1:
        details.append(f"definition {board.measure.definition}, {board.measure.estimator}")
    return f"On {board.part} ({', '.join(details)}), " if details else f"On {board.part}, "


def _describe_leader(board: Leaderboard, where: str) -> str:
    """Describe the two best deployable models, then rivals.

    Rivals are other models above or level with them.
    """
    rows = [row for row in board.rows if math.isfinite(row.estimate.value)]
    if not rows:
        whom = "every model" if len(board.rows) > 1 else _name(board.rows[0])
        return f"{where}{board.measure.label} is undefined for {whom}."
    candidates = [row for row in rows if row.model_kind not in NOT_SHIPPED] or rows
    leader, others = candidates[0], [row for row in rows if row is not candidates[0]]
    first = all(row.position >= leader.position for row in rows)
    verb = "leads with" if first else "is the best model that could be deployed, with"
    opening = f"{where}{_name(leader)} {verb} {board.measure.label} {format_estimate(leader.estimate)}"
    if not others:
        alone = "no other model has a value" if len(board.rows) > 1 else "there is no other model"
        return f"{opening}; {alone}."
    lead = f", {_describe_lead(board.measure, leader, candidates[1])}" if len(candidates) > 1 else ""
    unshipped = [_describe_unshipped(board.measure, leader, row) for row in others if row not in candidates]
    return " ".join([f"{opening}{lead}.", *unshipped])


def _describe_unshipped(measure: ReportedMeasure, leader: LeaderboardRow, row: LeaderboardRow) -> str:
    """Place a model nobody could deploy."""
    place = "level with" if row.position == leader.position else "below"
    if row.position < leader.position:
        place = "above"
    value = f"{measure.label} {format_estimate(row.estimate)}"
    return f"{_name(row)} is {place} {leader.model} with {value}."


def _name(row: LeaderboardRow) -> str:
    return name_model(row.model, row.model_kind)


def _describe_lead(measure: ReportedMeasure, leader: LeaderboardRow, second: LeaderboardRow) -> str:
    """Describe the best model's lead, in the metric's better direction."""
    if leader.position == second.position:
        return f"level with {_name(second)}"
    gap = measure.sort_key(second.estimate.value) - measure.sort_key(leader.estimate.value)
    # A percentage has no meaning if values can have either sign.
    signed = leader.estimate.value < 0 or about_metric(measure.metric).best == "near 0"
    base = 0.0 if signed else second.estimate.value
    share = f" ({100 * gap / base:.1f} %)" if base > 0 else ""
    size = f"{gap:.4f}{share}" if gap >= 0.00005 else "less than 0.0001"
    return f"{size} better than {_name(second)}; {_judge_order(leader, second)}"


def _judge_order(leader: LeaderboardRow, second: LeaderboardRow) -> str:
    """Say whether an order may be chance.

    The paired test of both decides, where there is one.
    """
    p = leader.tests.get(second.model)
    if p is not None:
        size = "below 0.001" if p < 0.001 else f"{p:.2g}"
        verdict = "does not tell them apart, so this order may be chance"
        verdict = "tells them apart" if p < VISIBLE_P else verdict
        return f"a test user by user {verdict} (p by Holm {size})"
    return {
        True: "their intervals overlap, so this order may be chance",
        False: "their intervals do not overlap",
        None: "there are no intervals to judge this by",
    }[leader.estimate.overlaps(second.estimate)]


def _describe_agreement(agreement: Agreement, kinds: Mapping[str, str]) -> str:
    parts = f"{agreement.second_part} against {agreement.first_part}"
    if not agreement.reversed_pairs:
        return f"{parts}: no pair of models is ordered the other way round."
    moved = max(abs(row.first_position - row.second_position) for row in agreement.rows)
    movers = [row for row in agreement.rows if abs(row.first_position - row.second_position) == moved]
    movers.sort(key=lambda row: kinds.get(row.model) in NOT_SHIPPED)
    mover = name_model(movers[0].model, kinds.get(movers[0].model, ""))
    most = "moves most" if len(movers) == 1 else "moves as far as any"
    alone = agreement.reversed_pairs == 1
    pairs = "pairs" if agreement.pairs > 1 else "pair"
    return (
        f"{parts}: {agreement.reversed_pairs} of {agreement.pairs} {pairs} "
        f"of models {'is' if alone else 'are'} ordered the other way round, {agreement.clear} of them with "
        f"intervals apart on both; {mover} {most}, from place {movers[0].first_position} to "
        f"{movers[0].second_position}."
    )


WEIGHTED_NDCG = (
    "Weighted NDCG (ips, clipped ips, snips) divides by an ideal list made of the relevant items that were "
    "shown; where exposure follows popularity it can be farther from the truth than the holdout. With "
    "right chances ips of sums (precision, DCG) is unbiased"
)


def note_on_estimators(metric: str, names: Iterable[str]) -> str | None:
    """Note the limits of weighted NDCG, if some is shown."""
    shown = [name for name in names if name.startswith(("ips", "clipped ips", "snips"))]
    if metric != "ndcg" or not set(shown) - {"ips pooled"}:
        return None
    better = "ips pooled, DCG and ideal of all users together, converges as users grow"
    offered = better if "ips pooled" in shown else f"{better} (estimator ips_pooled, not requested here)"
    return f"{WEIGHTED_NDCG}, and {offered}."
