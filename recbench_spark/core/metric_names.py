"""Metric names in people's spelling: `NDCG`, `hit_rate`, `ndcg@10`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from recbench_spark.errors import ConfigError, nearest

ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("hr", "hit_rate", "hitrate", "hit_ratio", "success"), "hit"),
    **dict.fromkeys(("recip_rank", "reciprocal_rank", "mean_reciprocal_rank", "rr"), "mrr"),
    **dict.fromkeys(("ap", "average_precision", "mean_average_precision"), "map"),
    **dict.fromkeys(("p", "prec"), "precision"),
    **dict.fromkeys(("f1_score", "f1score", "f_score"), "f1"),
    **dict.fromkeys(("ndcg_score", "normalized_dcg", "normalised_dcg", "ndcg_cut"), "ndcg"),
    **dict.fromkeys(("roc_auc", "roc_auc_score"), "auc"),
    **dict.fromkeys(("rprec", "rprecision"), "r_precision"),
    **dict.fromkeys(("item_coverage", "catalog_coverage", "catalogue_coverage"), "coverage"),
    **dict.fromkeys(("itemcoverage", "catalogcoverage"), "coverage"),
    **dict.fromkeys(("gini_index",), "gini"),
    **dict.fromkeys(("shannonentropy", "shannon_entropy"), "entropy"),
    **dict.fromkeys(("popreo", "pop_reo"), "popularity_reo"),
    **dict.fromkeys(("poprsp", "pop_rsp"), "popularity_rsp"),
    **dict.fromkeys(("srecall", "s_recall"), "subtopic_recall"),
    **dict.fromkeys(("arp", "avgrecpopularity"), "mean_popularity"),
    **dict.fromkeys(("meaninvuserfreq", "miuf"), "novelty"),
}
"""Other libraries' names, in small letters with underscores, and ours for the same quantity."""

FAMILY = "family"
"""The key that names a bundle among metrics: `{family: popularity}`, or in a text `family:popularity`."""

Figures = tuple[tuple[str, int], ...]
"""Pairs of a metric and a cut-off, such as `ndcg@10`."""


def translate_name(name: str) -> str:
    """Return our name for a metric.

    An unknown name gets small letters and underscores.

    >>> translate_name("NDCG"), translate_name("Hit-Rate"), translate_name("ndgc")
    ('ndcg', 'hit', 'ndgc')
    """
    plain = re.sub(r"[\s-]+", "_", name.strip()).lower()
    return ALIASES.get(plain, plain)


def read_family(entry: object) -> str | None:
    """Return the family that an entry of metrics names.

    None: the entry is no bundle.

    >>> read_family({"family": "groups"}), read_family("family:groups"), read_family("ndcg")
    ('groups', 'groups', None)
    """
    if isinstance(entry, Mapping) and {*entry} == {FAMILY}:
        return str(entry[FAMILY])
    is_text = isinstance(entry, str) and entry.startswith(f"{FAMILY}:")
    return str(entry).partition(":")[2].strip() if is_text else None


def split_figure(text: str) -> tuple[str, int | None]:
    """Split a text such as `ndcg@10` into metric and cut-off.

    The cut-off is None where the text has none.

    >>> split_figure("HR@10"), split_figure("map")
    (('hit', 10), ('map', None))

    Raises:
        ConfigError: the part behind `@` is no whole number from 1 on.
    """
    name, at, k = text.partition("@")
    if not at:
        return translate_name(name), None
    if not re.fullmatch("[0-9]{1,10}", k.strip()) or not int(k):
        raise ConfigError(f"metric '{text}': '{k}' is no cut-off", f"write {name.strip() or 'ndcg'}@10")
    return translate_name(name), int(k)


def read_figures(names: Sequence[object]) -> tuple[tuple[object, ...], Figures]:
    """Split names with and without cut-offs into metrics and figures.

    Each metric comes once, also with several cut-offs, which give several figures. A metric twice without a
    cut-off, or twice with the same one, stays twice and is refused later.

    >>> read_figures(["ndcg@5", "NDCG@10", "recall"])
    (('ndcg', 'recall'), (('ndcg', 5), ('ndcg', 10)))
    """
    metrics: list[object] = []
    figures: list[tuple[str, int]] = []
    for text in names:
        name, k = split_figure(text) if isinstance(text, str) else (text, None)
        is_new = not isinstance(name, str) or k is None or (name, k) in figures
        if is_new or name not in metrics:
            metrics.append(name)
        if isinstance(name, str) and k is not None:
            figures.append((name, k))
    return tuple(metrics), tuple(figures)


def suggest_metric(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest metric.

    `name` may also be similar to another library's name.

    >>> suggest_metric("hit_rat", ["hit", "ndcg"])
    "did you mean 'hit'? known: hit, ndcg"
    """
    options = list(known)
    others = {alias: ours for alias, ours in ALIASES.items() if ours in options and len(alias) > 3}
    close = difflib.get_close_matches(name.lower(), [*options, *others], n=1, cutoff=0.6)
    return nearest(others.get(close[0], close[0]) if close else name, options)
