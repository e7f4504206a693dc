"""The rules of a benchmark file, written slowly from README, ARCHITECTURE and the sections' descriptions.

`meaning(document)` returns the document with its values as the types that they stand for, or raises
`Broken` with the place and the rule. It shares no code with `recbench_spark.config`, except for the list of
model kinds. A file that the product accepts must keep these rules, and its loaded values must have this
meaning; a file that it refuses must break a rule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from functools import cache
from typing import Any
from zoneinfo import available_timezones

from recbench_spark.models.settings import list_kinds

Rule = Callable[[Any, str], Any]

INT = 2**31 - 1
ZONES = available_timezones()
SECRET_WORDS = re.compile(
    r"password|passwd|passphrase|pwd|secret|token|credential|signature|access.?key|api.?key|private.?key",
    re.I,
)


class Unjudged(Exception):  # noqa: N818
    """A document with a part that these rules do not describe; other tests check it."""


class Broken(Exception):  # noqa: N818
    """A rule that the document does not keep; `place` is its key, with dots."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place}: {why}")
        self.place = place


# ------------------------------------------------------------------------------------------- values


def whole(low: float, high: float = INT) -> Rule:
    """Expect a whole number; `5.0` and text of digits are accepted, true is not."""

    def rule(value: Any, place: str) -> int:
        if isinstance(value, bytes):
            value = as_text(value, place)
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]+(_[0-9]+)*(\.0*)?\s*", value):
            value = int(value.strip().split(".")[0])
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Broken(place, f"a whole number is expected: {value!r}")
        if not math.isfinite(value) or value != int(value) or not low <= value <= high:
            raise Broken(place, f"a whole number from {low} to {high} is expected: {value!r}")
        return int(value)

    return rule


def number(
    low: float = -math.inf, high: float = math.inf, *, above: bool = False, below: bool = False
) -> Rule:
    """Expect a finite number; text that spells one is accepted."""

    def rule(value: Any, place: str) -> float:
        if isinstance(value, bytes):
            value = as_text(value, place)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise Broken(place, f"a number is expected: {value!r}") from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Broken(place, f"a number is expected: {value!r}")
        try:
            value = float(value)
        except OverflowError:
            raise Broken(place, "too large for a float") from None
        if not math.isfinite(value) or not low <= value <= high:
            raise Broken(place, f"a finite number from {low} to {high} is expected: {value!r}")
        if (above and value == low) or (below and value == high):
            raise Broken(place, f"{value!r} is the bound itself")
        return value

    return rule


def as_text(value: Any, place: str) -> str:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise Broken(place, "bytes that are no UTF-8") from None
    if not isinstance(value, str):
        raise Broken(place, f"text is expected: {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Broken(place, "text that is not Unicode") from None
    if re.search(r"://[^/@\s:]*:(?!\d+(?:[/,]|$))\S*@|https?://[^/\s@]+@", value):
        raise Broken(place, "a password stands in it")
    if any(SECRET_WORDS.search(word) for word in re.findall(r"[?&;]([^=&;\s]*)=", value)):
        raise Broken(place, "a secret stands in it")
    if re.search(r"A[KS]IA[0-9A-Z]{16}|AIza[\w-]{35}", value):
        raise Broken(place, "a key of a cloud stands in it")
    return value


def text(pattern: str = r"(?s).*") -> Rule:
    def rule(value: Any, place: str) -> str:
        string = as_text(value, place)
        if not re.fullmatch(pattern, string):
            raise Broken(place, f"text of another form is expected: {string[:50]!r}")
        return string

    return rule


NAME = text(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def location(value: Any, place: str) -> str:
    string = as_text(value, place)
    if not string.strip() or "\0" in string:
        raise Broken(place, "a path or a name is expected")
    return string


def source_name(value: Any, place: str) -> str:
    return location(value, place) if as_text(value, place) else ""


TRUE = dict.fromkeys(("true", "yes", "on", "y", "t", "1"), True)
FALSE = dict.fromkeys(("false", "no", "off", "n", "f", "0"), False)


def truth(value: Any, place: str) -> bool:
    """Expect true or false, as YAML and people spell them."""
    if isinstance(value, bytes):
        value = as_text(value, place)
    if isinstance(value, str):
        spelt = value.strip().lower()
        value = {**TRUE, **FALSE}.get(spelt, value)
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    raise Broken(place, f"true or false is expected: {value!r}")


def choice(*known: str) -> Rule:
    def rule(value: Any, place: str) -> str:
        if not (isinstance(value, str) and value in known):
            raise Broken(place, f"one of {', '.join(known)} is expected: {value!r}")
        return value

    return rule


def maybe(rule: Rule) -> Rule:
    return lambda value, place: None if value is None else rule(value, place)


def several(rule: Rule, least: int = 0, most: int = 10**9, *, distinct: bool = True) -> Rule:
    """Expect a list, in the written order; a set has no fixed order."""

    def check(value: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise Broken(place, f"a list is expected: {value!r}")
        entries = tuple(rule(entry, f"{place}.{n}") for n, entry in enumerate(value))
        if not least <= len(entries) <= most:
            raise Broken(place, f"{least} to {most} entries are expected")
        if distinct and any(entries.index(entry) < n for n, entry in enumerate(entries)):
            raise Broken(place, "an entry stands twice")
        return entries

    return check


def mapping(rule: Rule) -> Rule:
    def check(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Broken(place, f"keys and values are expected: {value!r}")
        return {as_text(key, place): rule(entry, f"{place}.{key}") for key, entry in value.items()}

    return check


def section(rules: Mapping[str, Rule], *needed: str) -> Rule:
    """Expect known keys only, with the needed ones among them."""

    def check(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Broken(place, f"a section is expected: {value!r}")
        for key in value:
            if key not in rules:
                raise Broken(f"{place}.{key}", "an unknown key")
        for key in needed:
            if key not in value:
                raise Broken(f"{place}.{key}", "is missing")
        return {key: rules[key](entry, f"{place}.{key}") for key, entry in value.items()}

    return check


def with_rule(rule: Rule, *checks: Callable[[dict[str, Any]], str | None]) -> Rule:
    """Add checks between keys: a function returns what is wrong."""

    def check_all(value: Any, place: str) -> Any:
        meant = rule(value, place)
        for check in checks:
            if wrong := check(meant):
                raise Broken(place, wrong)
        return meant

    return check_all


def a_day(value: Any, place: str) -> date:
    if isinstance(value, datetime):
        if (value.hour, value.minute, value.second, value.microsecond) != (0, 0, 0, 0):
            raise Broken(place, "a day is expected, and this has a time")
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(as_text(value, place).strip()[:10])
    except ValueError:
        raise Broken(place, "a day is expected") from None


def an_instant(value: Any, place: str) -> Any:
    if isinstance(value, date):  # datetimes too
        return value
    string = as_text(value, place)
    if not re.match(r"\s*\d{4}-\d\d-\d\d", string):
        raise Broken(place, "a day or a time is expected")
    return string


def a_start(value: Any, place: str) -> Any:
    """A time, or a text that may have a placeholder."""
    return value if isinstance(value, str) and "{" in value else an_instant(value, place)


def a_zone(value: Any, place: str) -> str:
    string = as_text(value, place)
    if string not in ZONES and not re.fullmatch(r"[+-](0\d|1[0-8]):[0-5]\d", string):
        raise Broken(place, f"a time zone is expected: {string!r}")
    return string


def an_option(value: Any, place: str) -> str:
    if SECRET_WORDS.search(place.rpartition(".")[2]):
        raise Broken(place, "an option that holds a secret")
    return as_text(value, place)


def last_day(value: Any, place: str) -> str:
    """Expect the last day of the log: a day, or the night's."""
    if isinstance(value, date):
        return value.isoformat()
    string = as_text(value, place)
    if string in ("{logical_date}", "{logical_date:%Y-%m-%d}", "{logical_date:%Y%m%d}"):
        return string
    try:
        date.fromisoformat(string)
    except ValueError:
        raise Broken(place, f"a day is expected: {string!r}") from None
    return string


def a_scale(value: Any, place: str) -> tuple[float, float]:
    low, high = several(number(), 2, 2, distinct=False)(value, place)
    if not low < high:
        raise Broken(place, "ends before it begins")
    return low, high


SEED = whole(-(2**63), 2**63 - 1)
COUNT = whole(1)
SHARE = number(0, 1)
OPEN_SHARE = number(0, 1, above=True, below=True)
POSITIVE = number(0, above=True)
NOT_NEGATIVE = number(0)
DURATION = text("[1-9][0-9]{0,11}([smhdw]|mo)")

# ----------------------------------------------------------------------------------------- sections

RANK_METRICS = (
    "hit", "precision", "recall", "calibrated_recall", "f1", "map", "mrr", "ndcg", "auc", "r_precision",
    "rbp", "percentile_rank",
)  # fmt: skip
AXES: dict[str, Rule] = {
    "users": choice("truth", "both", "output"),
    "ndcg_users": choice("same", "truth", "both", "output"),
    "ndcg_ties": choice("same", "expected"),
    "empty_users": choice("leave_out", "zero"),
    "gain": choice("binary", "linear", "exponential", "exponential_above"),
    "negative_grades": choice("clip", "worst", "zero_floor", "signed"),
    "grade_origin": number(),
    "threshold": maybe(number()),
    "discount": choice("log2", "log2_max2", "ln"),
    "ideal": choice("min_k_relevant", "k", "relevant"),
    "precision_by": choice("k", "list", "min_k_relevant"),
    "recall_by": choice("relevant", "min_k_relevant"),
    "ap": choice("precision_at_hits", "mean_precision"),
    "ap_by": choice("min_k_relevant", "relevant", "k", "min_relevant_list", "hits"),
    "ap_ties": choice("same", "last_rank"),
    "map_cut": choice("at_k", "uncut"),
    "mrr_cut": choice("at_k", "uncut"),
    "hit": choice("any", "count"),
    "persistence": OPEN_SHARE,
    "auc_ties": choice("half", "strict", "id_descending"),
    "auc_by": choice("pairs", "listed_pairs", "pairs_and_one"),
    "ties": choice("id", "id_descending", "expected", "optimistic", "pessimistic", "hashed"),
    "tie_seed": whole(0, 2**63 - 1),
    "duplicates": choice("drop", "error"),
    "gaps": choice("keep", "close"),
    "candidates": choice("unseen", "all", "rated", "given", "uniform", "popularity"),
}
PRESETS = (
    "recbench", "recbole", "replay", "mllib", "recommenders", "rectools", "lenskit", "lenskit==2025.8.1",
    "ranx", "cornac", "elliot", "recpack", "warprec", "sklearn", "torchmetrics", "implicit",
)  # fmt: skip

WORLD = section(
    {
        "users": whole(1, 10**9),
        "items": whole(2, 10**8),
        "interactions": whole(1000, 10**8),
        "open_loop": whole(0, 10**9),
        "loop": SHARE,
        "periods": whole(1, 50),
        "seed": SEED,
        "tastes": whole(1, 32),
        "open_items": choice("all", "unseen"),
    }
)


WORLD_DEFAULTS = {
    "users": 1000, "items": 300, "interactions": 60_000, "open_loop": 20_000, "loop": 0.8, "periods": 4,
    "seed": 42, "tastes": 8, "open_items": "all",
}  # fmt: skip


def _dataset_mistakes(dataset: dict[str, Any]) -> str | None:
    reader, unit = dataset["reader"], dataset.get("time_unit", "s")
    if reader != "world" and not dataset.get("path"):
        return "path is missing"
    without_unit = reader in ("world", "coat", "yahoo_r3", "lightgcn") or (
        reader == "netflix" and unit != "timestamp"
    )
    if without_unit and unit != "s":
        return "has no times in a unit"
    if dataset.get("closed_loop") == "split" and reader not in ("coat", "yahoo_r3"):
        return "has no closed loop"
    return _column_mistakes(dataset)


def _column_mistakes(dataset: dict[str, Any]) -> str | None:
    reader, columns, tables = (
        dataset["reader"],
        dataset.get("columns", {}),
        ("csv", "json", "parquet", "delta"),
    )
    if set(columns) - {"user_id", "item_id", "rating", "event_time", "part"}:
        return "no such column of ours"
    names = [name for name in columns.values() if name]
    if "" in (columns.get("user_id"), columns.get("item_id")) or len(set(names)) < len(names):
        return "one column is two of ours, or there are no users or items"
    if reader not in tables and (columns or dataset.get("options")):
        return "has a layout of its own"
    if strange := list_strange_options(dataset):
        return f"no option of this reader: {strange}"
    if reader != "world" and any(
        value != WORLD_DEFAULTS[name] for name, value in dataset.get("world", {}).items()
    ):
        return "is not generated"
    return None


BLANKS_OPTIONS = "sep delimiter encoding charset comment header pathglobfilter"
OPTIONS = {
    "csv": BLANKS_OPTIONS + " quote escape multiline nullvalue timestampformat",
    "json": "encoding charset timestampformat pathglobfilter",
    "parquet": "pathglobfilter",
    "delta": "versionasof timestampasof",
}


def list_strange_options(dataset: dict[str, Any]) -> list[str]:
    """List options that are not read."""
    options = {name.lower(): value for name, value in dataset.get("options", {}).items()}
    blanks = "blanks" in (str(options.get("sep")).lower(), str(options.get("delimiter")).lower())
    known = {*(BLANKS_OPTIONS if blanks else OPTIONS.get(dataset["reader"], "")).split()}
    if dataset.get("time_unit") != "timestamp":
        known -= {"timestampformat"}
    return [name for name in dataset.get("options", {}) if name.lower() not in known]


READERS = (
    "world", "netflix", "coat", "yahoo_r3", "lightgcn", "ncf", "csv", "json", "parquet", "delta",
    *(f"movielens_{size}" for size in ("100k", "1m", "10m", "20m", "25m", "32m", "latest")),
)  # fmt: skip
DATASET = with_rule(
    section(
        {
            "name": NAME,
            "reader": choice(*READERS),
            "path": maybe(location),
            "columns": mapping(source_name),
            "attributes": several(location),
            "options": mapping(an_option),
            "time_unit": choice("s", "ms", "us", "timestamp"),
            "time_zone": a_zone,
            "bad_rows": choice("error", "reject"),
            "duplicates": choice("keep_last", "keep_first", "error"),
            "closed_loop": choice("as_given", "split"),
            "until": maybe(last_day),
            "scale": maybe(a_scale),
            "world": WORLD,
        },
        "name",
        "reader",
    ),
    _dataset_mistakes,
)

HELD_OUT = with_rule(
    section({"of": choice("users", "items"), "test": OPEN_SHARE, "valid": SHARE}),
    lambda held: (
        None if held.get("test", 0.1) + held.get("valid", 0.0) < 1 else "none are left to train on"
    ),
)

PROTOCOLS = {
    "RO_RS": ("random", "ratio", "user"),
    "TO_RS": ("temporal", "ratio", "user"),
    "RO_LS": ("random", "leave_one_out", "user"),
    "TO_LS": ("temporal", "leave_one_out", "user"),
    "netflix": ("temporal", "last_n", "user"),
}


FOLDED = ("folds", "consecutive")


def usual_split(split: Mapping[str, Any]) -> dict[str, Any]:
    """Return the split with its defaults: a protocol's order, holdout and group, and netflix's nine
    rows.
    """
    settings = dict(split)
    order, holdout, group = PROTOCOLS.get(settings.get("protocol") or "", (None, None, None))
    if settings.get("protocol") == "given":
        holdout = "given"
    if settings.get("protocol") == "netflix":
        settings = {"n": 9, "parts": ("probe", "quiz", "test"), **settings}
    settings.setdefault("holdout", holdout or "ratio")
    settings.setdefault("order", order or ("temporal" if settings["holdout"] == "period" else "random"))
    settings.setdefault(
        "group", group or ("global" if settings["holdout"] in (*FOLDED, "period") else "user")
    )
    return {"ratio": (0.8, 0.0, 0.2), "valid": False, "folds": 10, "fold": 0, "window": 0, **settings}


def duration_seconds(duration: str | None) -> int:
    lasts = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "mo": 31 * 86400}
    return int(duration.rstrip("smhdwo")) * lasts[duration.lstrip("0123456789")] if duration else 0


def anchor_mistake(length: str, step: str, start: Any, anchor: str | None) -> str | None:
    counts_days = length.endswith(("d", "w", "mo"))
    if anchor == "calendar" and not counts_days:
        return "anchor calendar goes with d, w, mo"
    if anchor == "last_event" and start is not None:
        return "the period begins with 'start'"
    if (length.endswith("mo") or step.endswith("mo")) and (anchor == "last_event" or not counts_days):
        return "months have no fixed length"
    return None


def split_mistakes(split: dict[str, Any]) -> str | None:  # noqa: PLR0911, PLR0912, C901
    s = usual_split(split)
    holdout, held_out = s["holdout"], s.get("held_out")
    meant = PROTOCOLS.get(s.get("protocol") or "")
    if meant and (s["order"], holdout, s["group"]) != meant:
        return "order, holdout or group are not the protocol's"
    if s.get("protocol") == "given" and holdout != "given":
        return "holdout is not the protocol's"
    if abs(sum(s["ratio"]) - 1) > 1e-6 or s["ratio"][0] == 0 or s["ratio"][2] == 0:
        return "ratio must sum to 1, with train and test"
    if holdout in ("leave_one_out", "last_n", "n_given") and s["group"] != "user":
        return "is per user"
    if s.get("n") is not None and holdout not in ("last_n", "n_given"):
        return "n is of last_n and n_given"
    if holdout in ("last_n", "n_given") and (s.get("n") is None or (holdout == "last_n" and s["n"] == 0)):
        return "needs n"
    if (s["folds"] != 10 or s["fold"] != 0) and holdout not in FOLDED:
        return "folds are of folds"
    if s["fold"] >= s["folds"] or (holdout in FOLDED and s["order"] != "random"):
        return "folds are random, fold below folds"
    if holdout == "consecutive" and s["group"] != "global":
        return "consecutive folds are of the whole file"
    if holdout in FOLDED and s["valid"] and s["folds"] == 2:
        return "nothing to train on"
    if holdout == "n_given" and s["valid"]:
        return "n_given has no valid"
    of_period = ("start", "length", "step", "window", "anchor")
    if holdout != "period" and any(s.get(key) for key in of_period):
        return "start, length, step, window, anchor are of a period"
    if holdout == "period":
        if s["group"] != "global" or s["order"] != "temporal":
            return "a period is temporal and global"
        if not (s.get("start") or s.get("length")) or ((s["valid"] or s["window"]) and not s.get("length")):
            return "a period needs start or length"
        length, step = duration_seconds(s.get("length")), duration_seconds(s.get("step"))
        if max(length, step, length + s["window"] * (step or length)) > 10_000 * 366 * 86_400:
            return "leads out of the calendar"
        mistake = anchor_mistake(
            s.get("length") or "", s.get("step") or "", s.get("start"), s.get("anchor")
        )
        if mistake:
            return mistake
    if held_out and (
        s["group"] != "user" or holdout not in ("ratio", "leave_one_out", "last_n", "n_given")
    ):
        return "held_out is of a user's rows"
    asks_repeats = s.get("repeats", "drop") != "drop"
    if asks_repeats and s["order"] != "temporal" and holdout not in ("consecutive", "given"):
        return "in random order all rows of a pair are in one part"
    if held_out and (s["valid"] or s["ratio"][1] > 0):
        return "validation is held_out.valid"
    return None


def part_names(value: Any, place: str) -> tuple[str, ...]:
    names: tuple[str, ...] = several(NAME, 1, 100)(value, place)
    if {"train", "given", "later", "log"} & set(names):
        raise Broken(place, "a name that is taken")
    return names


SPLIT = with_rule(
    section(
        {
            "protocol": maybe(choice("RO_RS", "TO_RS", "RO_LS", "TO_LS", "netflix", "given")),
            "order": choice("random", "temporal"),
            "holdout": choice(
                "ratio", "leave_one_out", "last_n", "n_given", "folds", "consecutive", "period", "given"
            ),
            "group": choice("user", "global"),
            "ratio": several(SHARE, 3, 3, distinct=False),
            "valid": truth,
            "n": maybe(whole(0)),
            "parts": part_names,
            "folds": whole(2),
            "fold": whole(0, math.inf),
            "start": maybe(a_start),
            "anchor": maybe(choice("calendar", "last_event")),
            "length": maybe(DURATION),
            "step": maybe(DURATION),
            "window": whole(0),
            "held_out": maybe(HELD_OUT),
            "open_loop": choice("unseen", "all"),
            "repeats": choice("drop", "keep", "only"),
            "seed": SEED,
        }
    ),
    split_mistakes,
)

PROVENANCE = section(
    {
        "source": choice("own", "baseline", "rerun", "published"),
        "ran_by": maybe(text()),
        "year": maybe(whole(1990, 2100)),
        "search_space": mapping(several(number(), distinct=False)),
        "budget": maybe(text()),
        "at_edge": several(text()),
    }
)


def figures(value: Any, place: str) -> dict[str, float]:
    """Expect figures such as `ndcg@10: 0.25`: shares are at most 1; errors have no upper bound."""
    values: dict[str, float] = mapping(number())(value, place)
    for figure, value_ in values.items():
        if not re.fullmatch(r"[a-z_0-9]+(@[1-9][0-9]{0,8})?", figure):
            raise Broken(f"{place}.{figure}", "is no figure")
        metric, _, k = figure.partition("@")
        if metric in RANK_METRICS and not 0 <= value_ <= (
            float(k) if metric == "hit" and k else math.inf if metric == "hit" else 1
        ):
            raise Broken(f"{place}.{figure}", "cannot be")
    return values


def switch_place(value: Any, place: str) -> Any:
    return value if value == "auto" else whole(1)(value, place)


STRENGTH = number(0, 1e6, above=True)


def fold_in_mistakes(ridge: dict[str, Any]) -> str | None:
    ratings, biased = ridge.get("targets") == "ratings", ridge.get("bias_regulariser") is not None
    if not ratings and (ridge.get("unobserved_weight") is None or biased):
        return "likes have a weight of all pairs, and no biases"
    stray = {"unobserved_weight", "frequency"} & set(ridge)
    return "ratings have no weight and no frequency" if ratings and stray else None


FOLD_IN = with_rule(
    section(
        {
            "targets": choice("likes", "ratings"),
            "regulariser": STRENGTH,
            "unobserved_weight": maybe(STRENGTH),
            "frequency": number(0, 1),
            "bias_regulariser": maybe(STRENGTH),
        },
        "regulariser",
    ),
    fold_in_mistakes,
)

KIND_RULES: dict[str, tuple[dict[str, Rule], tuple[str, ...]]] = {
    "random": ({"seed": SEED}, ()),
    "popular": ({}, ()),
    "item_knn": (
        {"scores": choice("sum", "centred_mean"), "neighbours": COUNT, "max_history": whole(2)},
        (),
    ),
    "als": (
        {
            "rank": whole(1, 2048),
            "iterations": whole(1, 10_000),
            "regularization": NOT_NEGATIVE,
            "frequency": number(0, 1),
            "alpha": NOT_NEGATIVE,
            "implicit": truth,
            "seed": SEED,
            "items": choice("trained", "catalogue"),
        },
        (),
    ),
    "mllib_als": (
        {
            "rank": whole(1, 2048),
            "iterations": whole(1, 10_000),
            "regularization": NOT_NEGATIVE,
            "alpha": NOT_NEGATIVE,
            "implicit": truth,
            "seed": SEED,
            "items": choice("trained", "catalogue"),
        },
        (),
    ),
    "truth": ({}, ()),
    "switch": ({"first": maybe(NAME), "then": maybe(NAME), "at": switch_place}, ()),
    "embeddings": (
        {
            "users": maybe(location),
            "items": location,
            "similarity": choice("dot", "cosine"),
            "columns": mapping(text()),
            "fold_in": maybe(FOLD_IN),
        },
        ("items",),
    ),
    "scores": ({"path": location, "columns": mapping(text())}, ("path",)),
    "lists": (
        {"path": location, "columns": mapping(text()), "training_items": choice("keep", "drop")},
        ("path",),
    ),
    "published": ({"figures": figures}, ("figures",)),
    "means": (
        {
            "means": choice("global", "users", "items", "items_users", "users_items"),
            "user_shrinkage": NOT_NEGATIVE,
            "item_shrinkage": NOT_NEGATIVE,
        },
        (),
    ),
}
KIND_RULES["tests.outside_model:NewestModel"] = ({"step": number()}, ())
KIND_RULES["recbench_spark.models.settings:MllibAlsModel"] = KIND_RULES["mllib_als"]


@cache
def list_undescribed_kinds() -> set[str]:
    """Return kinds that have no rule here, because their own tests check their settings."""
    return set(list_kinds()) - set(KIND_RULES)


def model(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise Broken(place, "a model is expected")
    kind = value.get("kind")
    if isinstance(kind, str) and kind in list_undescribed_kinds():
        raise Unjudged(kind)
    if not (isinstance(kind, str) and kind in KIND_RULES):
        raise Broken(f"{place}.kind", f"no kind of model: {kind!r}")
    own, needed = KIND_RULES[kind]
    common = {"name": NAME, "version": text(), "provenance": PROVENANCE, "kind": text()}
    meant = dict(section({**common, **own}, "name", *needed)(value, place))
    if kind == "embeddings" and meant.get("users") is None and meant.get("fold_in") is None:
        raise Broken(place, "nothing says how users get vectors")
    if kind == "als" and meant.get("implicit", True) and meant.get("alpha") == 0:
        raise Broken(f"{place}.als", "all pairs are alike")
    if meant.get("fold_in") is not None and meant.get("similarity") == "cosine":
        raise Broken(place, "products alone are folded in")
    return meant


SLICE = with_rule(
    section(
        {
            "key": NAME,
            "of": choice("popularity", "cold_user", "log", "users", "items"),
            "column": maybe(text()),
            "path": maybe(location),
        },
        "key",
        "of",
    ),
    lambda cut: "needs path" if cut["of"] in ("users", "items") and not cut.get("path") else None,
)


def chances_mistakes(chances: dict[str, Any]) -> str | None:
    method = chances.get("method", "power_law")
    tables = chances.get("item_features") or chances.get("user_features")
    if (method == "given") != bool(chances.get("path")):
        return "path goes with given"
    if (method == "logistic_regression") != bool(tables):
        return "features go with logistic_regression"
    if method == "logistic_regression" and chances.get("scale", "as_is") != "as_is":
        return "scale is not for logistic_regression"
    if method in ("given", "true") and (
        chances.get("scale", "as_is") != "as_is" or chances.get("floor") is not None
    ):
        return "scale and floor are not for it"
    return "chances of ratings" if method == "naive_bayes" else None


METHODS = (
    "power_law", "power_above_xmin", "steck", "relative_frequency", "naive_bayes", "logistic_regression",
    "given", "true",
)  # fmt: skip
PROPENSITIES = with_rule(
    section(
        {
            "method": choice(*METHODS),
            "law": choice("approximate", "exact"),
            "scale": choice("as_is", "largest", "interactions"),
            "floor": maybe(number(0, 1, above=True)),
            "path": maybe(location),
            "item_features": maybe(location),
            "user_features": maybe(location),
            "rate": number(0, 1, above=True),
        }
    ),
    chances_mistakes,
)
ESTIMATORS = (
    "ips", "clipped_ips", "snips_user", "snips_global", "ips_pooled", "dm", "dr", "switch_dr", "dros",
    "stratified",
)  # fmt: skip
EXPOSURE = section(
    {
        "propensities": PROPENSITIES,
        "estimators": several(choice(*ESTIMATORS), 1),
        "clip": POSITIVE,
        "switch": POSITIVE,
        "shrink": POSITIVE,
        "strata": section(
            {"kind": choice("equal_mass", "equal_count", "equal_width"), "n": several(whole(2, 10), 1)}
        ),
        "without_most_popular": number(0, 1, below=True),
        "rewards": maybe(location),
    }
)
DRAWS = ("rank_estimate", "least_squares", "monotone_least_squares", "bias_variance", "maximum_likelihood")


def curve_points(value: Any, place: str) -> Any:
    if not isinstance(value, list | tuple):
        return whole(1, 1000)(value, place)
    points = several(whole(1), 1, 1000)(value, place)
    if list(points) != sorted(set(points)):
        raise Broken(place, "points ascend, each once")
    return points


LEARNING_CURVE = with_rule(
    section(
        {
            "given": curve_points,
            "order": choice("time", "hash"),
            "draws": whole(1, 100),
            "seed": SEED,
            "test": choice("common", "rest"),
            "minimum": COUNT,
            "users": choice("fixed", "as_long_as"),
            "rankings": truth,
        },
        "given",
    ),
    lambda curve: (
        "time gives one order"
        if curve.get("order", "time") == "time" and curve.get("draws", 1) > 1
        else None
    ),
)

EVALUATION = section(
    {
        "metrics": several(text(), 1),
        "k": several(whole(1), 1, distinct=False),
        "curve": truth,
        "parts": several(NAME, 1),
        "preset": maybe(choice(*PRESETS)),
        "definition": section(AXES),
        "candidates_path": maybe(location),
        "features": maybe(location),
        "draw": section(
            {
                "n": COUNT,
                "per": choice("user", "positive"),
                "seed": SEED,
                "estimators": several(choice(*DRAWS)),
            }
        ),
        "slices": several(SLICE),
        "bootstrap": section({"replicates": whole(0, 100_000), "level": OPEN_SHARE, "seed": SEED}),
        "user_metrics": truth,
        "multiverse": truth,
        "exposure": maybe(EXPOSURE),
        "uncut": truth,
        "task": choice("ranking", "rating"),
        "learning_curve": maybe(LEARNING_CURVE),
    }
)

GATE = with_rule(
    section(
        {
            "fact": NAME,
            "part": maybe(NAME),
            "above": maybe(number()),
            "below": maybe(number()),
            "action": choice("fail", "warn"),
        },
        "fact",
    ),
    lambda gate: (
        None if (gate.get("above") is None) != (gate.get("below") is None) else "one bound is needed"
    ),
)
COMPARISONS = section(
    {
        "baseline": maybe(NAME),
        "baseline_night": maybe(a_day),
        "metrics": maybe(several(text())),
        "k": maybe(several(maybe(COUNT))),
        "minimum_difference": NOT_NEGATIVE,
        "replicates": whole(1, 100_000),
        "planned_users": whole(2, 10**12),
    }
)
REGRESSION = section(
    {
        "metric": text(),
        "k": maybe(COUNT),
        "drop": NOT_NEGATIVE,
        "part": NAME,
        "model": maybe(NAME),
        "against": choice("previous", "baseline"),
        "certain": truth,
    },
    "metric",
    "drop",
)
AGAINST = choice("all", "best", "baseline")
PARADOXES = section(
    {
        "by": maybe(several(NAME)),
        "metrics": maybe(several(text())),
        "k": maybe(several(maybe(COUNT))),
        "parts": maybe(several(NAME)),
        "replicates": whole(1, 100_000),
        "against": AGAINST,
        "flips": several(choice("items", "users")),
        "flips_against": AGAINST,
    }
)


def skip_section(value: Any, place: str) -> None:
    if value is not None:
        raise Unjudged(place)


BENCHMARK = section(
    {
        "name": NAME,
        "description": text(),
        "dataset": DATASET,
        "split": SPLIT,
        "models": several(model, 1, distinct=False),
        "evaluation": EVALUATION,
        "headline": text("[a-z_0-9]+(@[1-9][0-9]{0,8})?"),
        "gates": several(GATE, distinct=False),
        "comparisons": maybe(COMPARISONS),
        "regressions": several(REGRESSION, distinct=False),
        "paradoxes": maybe(PARADOXES),
        "ran_by": maybe(text()),
        "board": maybe(NAME),
        "search": skip_section,
        "retrieval": skip_section,
    },
    "name",
    "dataset",
    "models",
)

# ------------------------------------------------------------------------------ sections of each other

LIST_METRICS = ("coverage", "gini", "novelty", "mean_popularity", "diversity")
VALUE_METRICS = ("mse", "rmse", "mae", "nmse", "pe", "mean_prediction", "mean_outcome", "logloss", "rig")
WHOLE_METRICS = ("auc", "r_precision", "percentile_rank")
UNCUT_PRESETS = {"cornac": ("map", "mrr")}
PLACES = re.compile(r"\{([A-Za-z_]\w*)(?::([^{}]*))?\}")


def meaning(document: Any) -> dict[str, Any]:
    """Return the document as the types that its values stand for; raise Broken where a rule is not kept."""
    meant: dict[str, Any] = BENCHMARK(document, "benchmark")
    for rule in RULES:
        rule(meant)
    return meant


def _check_models(meant: dict[str, Any]) -> None:
    names = [entry["name"] for entry in meant["models"]]
    if len(set(names)) < len(names):
        raise Broken("benchmark.models", "two of one name")
    if meant["dataset"]["reader"] != "world" and any(entry["kind"] == "truth" for entry in meant["models"]):
        raise Broken("benchmark.models", "only the generated world knows the truth")
    held_out = meant.get("split", {}).get("held_out")
    folds_users = held_out is not None and held_out.get("of", "users") == "users"
    alone = any(entry["kind"] == "embeddings" and entry.get("users") is None for entry in meant["models"])
    if alone and not folds_users:
        raise Broken("benchmark", "item vectors alone rank nobody who trains the model")
    if any(gate["fact"].startswith("drift_") for gate in meant.get("gates", ())):
        raise Broken("benchmark.gates", "a fact that only a model of a graph tells")


def _check_parts(meant: dict[str, Any]) -> None:
    """Check that parts are held out; a log may have its own parts, which only the night knows."""
    split, evaluation = meant.get("split", {}), meant.get("evaluation", {})
    known = {"valid", "probe", "quiz", "test", "open_loop", *usual_split(split).get("parts", ())}
    for part in evaluation.get("parts", ("test",)):
        if part not in known:
            raise Broken("benchmark.evaluation.parts", f"nothing is held out to {part}")
    reader, settings = meant["dataset"]["reader"], usual_split(split)
    if reader in ("csv", "json", "parquet", "delta") or settings["holdout"] == "given":
        return
    made = {*settings.get("parts", ("test",))}
    shares = settings["ratio"][1] if settings["holdout"] == "ratio" else 0
    if shares or settings["valid"] or (settings.get("held_out") or {}).get("valid"):
        made.add("valid")
    of_log = {
        "world": {"open_loop"},
        **dict.fromkeys(("netflix", "coat", "yahoo_r3", "lightgcn", "ncf"), known),
    }
    for part in evaluation.get("parts", ("test",)):
        if part not in made | of_log.get(reader, set()):
            raise Broken("benchmark.evaluation.parts", f"{part} has no row")


def _check_open_loop(meant: dict[str, Any]) -> None:
    """Check which rows of the closed loop train, and that tested pairs are candidates."""
    dataset, split, evaluation = meant["dataset"], meant.get("split", {}), meant.get("evaluation", {})
    reader, given = dataset["reader"], usual_split(split)["holdout"] == "given"
    ranks = evaluation.get("task", "ranking") == "ranking"
    if reader in ("coat", "yahoo_r3"):
        divided = dataset.get("closed_loop") == "split"
        if given == divided and (given or ranks):
            raise Broken("benchmark.dataset.closed_loop", "who divides it?")
    if split.get("open_loop") != "all":
        return
    if reader not in ("world", "coat", "yahoo_r3", "csv", "json", "parquet", "delta"):
        raise Broken("benchmark.split.open_loop", "there is none")
    candidates = evaluation.get("definition", {}).get("candidates", "unseen")
    if ranks and "open_loop" in evaluation.get("parts", ("test",)) and candidates not in ("all", "rated"):
        raise Broken("benchmark.evaluation.definition.candidates", "tested pairs are none")


def _check_task(meant: dict[str, Any]) -> None:
    evaluation = meant.get("evaluation", {})
    if evaluation.get("task") == "rating":
        alone = (
            "curve", "preset", "candidates_path", "features", "multiverse", "exposure", "learning_curve",
        )  # fmt: skip
        if (
            any(evaluation.get(name) for name in alone)
            or evaluation.get("slices")
            or evaluation.get("uncut") is False
        ):
            raise Broken("benchmark.evaluation", "means something only where items are ranked")
        if meant.get("paradoxes") is not None:
            raise Broken("benchmark.paradoxes", "are of rankings")


FOLDING = {"als", "mllib_als", "popular", "item_knn"}
"""Kinds whose learning curves these rules judge; a night names the other kinds that have none."""


def _check_curves(meant: dict[str, Any]) -> None:
    """Check what learning curves and switches need of the other sections."""
    evaluation, held_out = meant.get("evaluation", {}), meant.get("split", {}).get("held_out")
    curve, parts = evaluation.get("learning_curve"), evaluation.get("parts", ("test",))
    switches = [entry for entry in meant["models"] if entry["kind"] == "switch"]
    if curve is None:
        if switches:
            raise Broken("benchmark.models", "a switch needs learning curves")
        return
    place = "benchmark.evaluation.learning_curve"
    metrics = list_metrics(meant)
    too_large = _count_curve_sums(evaluation, len(metrics)) > 1 << 24
    if "ndcg" not in metrics or evaluation.get("user_metrics") is False or too_large:
        raise Broken(place, "needs values of users in ndcg, and sums that a task can hold")
    if (held_out or {"of": ""}).get("of", "users") != "users":
        raise Broken(place, "needs held-out users")
    if meant["split"].get("parts", ("test",)) != ("test",) or set(parts) - {"test", "valid"}:
        raise Broken(place, "is of test and validation users")
    if evaluation.get("definition", {}).get("candidates", "unseen") not in ("unseen", "rated"):
        raise Broken(place, "ranks unseen or rated items")
    curves = [entry for entry in meant["models"] if entry["kind"] not in ("switch", "published")]
    if any(entry["kind"] not in FOLDING for entry in curves):
        raise Unjudged(place)
    if not curves or any(entry.get("regularization") == 0 for entry in curves):
        raise Broken(place, "a model without a curve")
    names, valid = {entry["name"] for entry in curves}, "valid" in parts and bool(held_out.get("valid"))
    for switch in switches:
        _check_switch(switch, names, valid and len(parts) > 1, curve["given"])


def _count_curve_sums(evaluation: dict[str, Any], metrics: int) -> int:
    """Return columns times replicates of one curve."""
    given, cuts = evaluation["learning_curve"]["given"], tuple(evaluation.get("k", (1, 3, 5, 10, 20)))
    points = len(given) if isinstance(given, tuple) else given
    columns = (max(cuts) if evaluation.get("curve") else len(cuts)) + int(evaluation.get("uncut", True))
    return points * metrics * columns * evaluation.get("bootstrap", {}).get("replicates", 1000)


def _check_switch(switch: dict[str, Any], names: set[str], valid: bool, given: Any) -> None:
    points = given if isinstance(given, tuple) else range(1, given + 1)
    pair, at = (switch.get("first"), switch.get("then")), switch.get("at", "auto")
    known = pair == (None, None) or (None not in pair and set(pair) <= names and pair[0] != pair[1])
    if not known or (pair[0] is None and (at != "auto" or len(names) < 2)):
        raise Broken("benchmark.models", "a switch is between two models")
    if not valid if at == "auto" else not points[0] <= at < points[-1]:
        raise Broken("benchmark.models", "no place to switch")


OTHER_NAMES = {"p": "precision", "prec": "precision", "hr": "hit", "rr": "mrr", "ap": "map"}
"""Names of other libraries that a piece of a metric's name may be: docs/reference/metrics.md."""


def list_metrics(meant: dict[str, Any]) -> tuple[str, ...]:
    evaluation = meant.get("evaluation", {})
    rating = evaluation.get("task") == "rating"
    usual = VALUE_METRICS[:3] if rating else (*RANK_METRICS[:3], *RANK_METRICS[4:9], "coverage")
    return tuple(OTHER_NAMES.get(name, name) for name in evaluation.get("metrics", usual))


PRESET_GAINS = {
    **dict.fromkeys(("ranx", "sklearn", "torchmetrics"), "linear"),
    **dict.fromkeys(("elliot", "warprec"), "exponential_above"),
}


def _check_axes_together(preset: str, axes: dict[str, Any], meant: dict[str, Any]) -> None:
    place = "benchmark.evaluation.definition"
    gain = axes.get("gain", PRESET_GAINS.get(preset))
    if axes.get("grade_origin") and gain not in ("linear", "exponential"):
        raise Broken(f"{place}.grade_origin", "the gain has no grades")
    hashed = axes.get("ties", "hashed" if preset == "warprec" else "id") == "hashed"
    if axes.get("tie_seed", 42) != 42 and not hashed:
        raise Broken(f"{place}.tie_seed", "ties are not hashed")
    ids = axes.get("auc_ties", "id_descending" if preset == "replay" else "half") == "id_descending"
    if hashed and ids:
        raise Broken(f"{place}.auc_ties", "hashed ties do not know the order of ids")
    if hashed and any(model.get("kind") not in ("lists", "scores") for model in meant["models"]):
        raise Broken(f"{place}.ties", "only given lists and scores have hashed ties")


def _check_metrics(meant: dict[str, Any]) -> None:
    evaluation = meant.get("evaluation", {})
    rating = evaluation.get("task") == "rating"
    for name in list_metrics(meant):
        if name not in (VALUE_METRICS if rating else (*RANK_METRICS, *LIST_METRICS)):
            raise Broken("benchmark.evaluation.metrics", f"no metric {name}")
    axes = evaluation.get("definition", {})
    _check_axes_together(evaluation.get("preset") or "", axes, meant)
    cut = UNCUT_PRESETS.get(evaluation.get("preset") or "", ())
    for name in list_metrics(meant) if evaluation.get("uncut") is False else ():
        axis = axes.get(f"{name}_cut", "uncut" if name in cut else "at_k")
        if name in WHOLE_METRICS or (name in ("map", "mrr") and axis == "uncut"):
            raise Broken("benchmark.evaluation.uncut", f"{name} is over the whole ranking")
    figures = {figure for model in meant["models"] for figure in model.get("figures", {})}
    for figure in figures:
        _check_figure(figure, "benchmark.models.figures")
    headline = meant.get("headline", "rmse" if rating else "ndcg@10")
    _check_figure(headline, "benchmark.headline")
    k = headline.partition("@")[2]
    if "headline" in meant and headline not in figures and k and int(k) not in cutoffs(meant):
        raise Broken("benchmark.headline", "nothing is measured there")


def _check_figure(figure: str, place: str) -> None:
    """Check `ndcg@10`, `ndcg` or `rmse`: a known metric, at a cut-off where it has one."""
    name, _, k = figure.partition("@")
    if name not in {*RANK_METRICS, *LIST_METRICS, *VALUE_METRICS, "mandcg"}:
        raise Broken(place, "no such metric")
    if k and name in (*WHOLE_METRICS, *VALUE_METRICS):
        raise Broken(place, f"{name} has no cut-off")
    if not k and name not in (*WHOLE_METRICS, *VALUE_METRICS, "map", "mrr", "ndcg", "rbp", "mandcg"):
        raise Broken(place, f"{name} has no value without one")


def _check_log_slices(meant: dict[str, Any]) -> None:
    """Check that a slice of the log is of a column that is kept."""
    dataset = meant["dataset"]
    for cut in meant.get("evaluation", {}).get("slices", ()):
        column = cut.get("column") or cut["key"]
        if (
            cut["of"] == "log"
            and dataset["reader"] in ("csv", "json", "parquet", "delta")
            and column not in dataset.get("attributes", ())
        ):
            raise Broken("benchmark.evaluation.slices", f"{column} is not kept of the log")


def cutoffs(meant: dict[str, Any]) -> set[Any]:
    evaluation = meant.get("evaluation", {})
    ks = evaluation.get("k", (1, 3, 5, 10, 20))
    return {None, *(range(1, max(ks) + 1) if evaluation.get("curve") else ks)}


def _check_exposure(meant: dict[str, Any]) -> None:
    evaluation = meant.get("evaluation", {})
    exposure, definition = evaluation.get("exposure"), evaluation.get("definition", {})
    keys = [cut["key"] for cut in evaluation.get("slices", ())]
    if len(set(keys)) < len(keys):
        raise Broken("benchmark.evaluation.slices", "two of one key")
    if exposure is not None and {"stratum", "most_popular"} & set(keys):
        raise Broken("benchmark.evaluation.slices", "a key that exposure makes")
    if (exposure is not None or evaluation.get("multiverse")) and evaluation.get("uncut") is False:
        raise Broken("benchmark.evaluation.uncut", "all ranks are needed")
    if (
        exposure is not None
        and exposure.get("propensities", {}).get("method") == "true"
        and meant["dataset"]["reader"] != "world"
    ):
        raise Broken("benchmark.evaluation.exposure", "only the world knows its chances")
    if evaluation.get("curve") and max(evaluation.get("k", (20,))) > 10_000:
        raise Broken("benchmark.evaluation.curve", "too long")
    if "diversity" in evaluation.get("metrics", ()) and not evaluation.get("features"):
        raise Broken("benchmark.evaluation.features", "diversity needs them")
    if (
        definition.get("candidates") == "given"
        and not evaluation.get("candidates_path")
        and meant["dataset"]["reader"] != "ncf"
    ):
        raise Broken("benchmark.evaluation.candidates_path", "is missing")


def _check_nights(meant: dict[str, Any]) -> None:
    evaluation, compared = meant.get("evaluation", {}), meant.get("comparisons")
    names = {entry["name"] for entry in meant["models"]}
    rules = meant.get("regressions", ())
    if (compared is not None or rules) and evaluation.get("user_metrics") is False:
        raise Broken("benchmark.comparisons", "need values of users")
    wanted = {(compared or {}).get("baseline"), *(rule.get("model") for rule in rules)} - {None}
    if wanted - names:
        raise Broken("benchmark.comparisons", f"no model {wanted - names}")
    if any(rule.get("against") == "baseline" for rule in rules) and not (compared or {}).get(
        "baseline_night"
    ):
        raise Broken("benchmark.regressions", "need baseline_night")
    curve = ("mandcg",) if evaluation.get("learning_curve") is not None else ()
    compared_metrics = (compared or {}).get("metrics") or (*list_metrics(meant), *curve)
    if (compared is not None or rules) and set(compared_metrics) - {*list_metrics(meant), *curve}:
        raise Broken("benchmark.comparisons.metrics", "not measured")
    cuts = (compared or {}).get("k") or cutoffs(meant)
    parts = evaluation.get("parts", ("test",))
    for rule in rules:
        if (
            rule["metric"] not in compared_metrics
            or rule.get("k") not in cuts
            or rule.get("part", "test") not in parts
        ):
            raise Broken("benchmark.regressions", f"{rule} is not compared")
    searched = meant.get("paradoxes") or {}
    keys = {cut["key"] for cut in evaluation.get("slices", ({"key": "popularity"},))}
    keys |= {"stratum", "most_popular"} if evaluation.get("exposure") is not None else set()
    by = searched.get("by") or (("stratum",) if evaluation.get("exposure") is not None else ("popularity",))
    if meant.get("paradoxes") is not None and (
        set(by) - keys
        or set(searched.get("metrics") or ()) - set(list_metrics(meant))
        or set(searched.get("k") or ()) - cutoffs(meant)
        or set(searched.get("parts") or ()) - set(parts)
    ):
        raise Broken("benchmark.paradoxes", "asks for what is not measured")
    pinned = "baseline" in (searched.get("against"), searched.get("flips_against"))
    if pinned and not (compared or {}).get("baseline"):
        raise Broken("benchmark.paradoxes", "need comparisons.baseline")


def _check_differences(meant: dict[str, Any]) -> None:
    """Check that two values can be as far apart as a difference that matters, or a fall."""
    compared = meant.get("comparisons") or {}
    metrics = compared.get("metrics") or list_metrics(meant)
    if meant.get("comparisons") and compared.get("minimum_difference", 0) > max(
        _width(meant, metric) for metric in metrics
    ):
        raise Broken("benchmark.comparisons.minimum_difference", "no two values are so far apart")
    for rule in meant.get("regressions", ()):
        if rule["drop"] > _width(meant, rule["metric"]):
            raise Broken("benchmark.regressions.drop", "no value falls so far")


def _width(meant: dict[str, Any], metric: str) -> float:
    if metric == "hit":
        return max(meant.get("evaluation", {}).get("k", (20,)))
    if metric in (*RANK_METRICS, "coverage", "gini", "mean_popularity"):
        return 1
    return 2 if metric == "diversity" else math.inf


def _check_placeholders(meant: dict[str, Any]) -> None:
    """Check placeholders: `{logical_date}` and formats of whole days; other braces are Hadoop's."""
    evaluation, exposure = meant.get("evaluation", {}), (meant.get("evaluation", {}).get("exposure") or {})
    chances = exposure.get("propensities", {})
    paths = [meant["dataset"].get("path"), meant["dataset"].get("until"), exposure.get("rewards")]
    paths += list(meant["dataset"].get("options", {}).values())
    paths += [evaluation.get("candidates_path"), evaluation.get("features")]
    paths += [cut.get("path") for cut in evaluation.get("slices", ())]
    paths += [chances.get(name) for name in ("path", "item_features", "user_features")]
    for entry in meant["models"]:
        paths += [entry.get(name) for name in ("path", "users", "items")]
    for place in (match for path in paths if path for match in PLACES.findall(path)):
        name, style = place
        days = re.fullmatch(r"(?:[^%]|%[YymdjGVu])*", style)
        if name != "logical_date" or not days or (style and "%" not in style):
            raise Broken("benchmark", f"a placeholder that is none of a day: {place}")


RULES = (
    _check_models, _check_parts, _check_task, _check_metrics, _check_log_slices, _check_exposure,
    _check_nights, _check_differences, _check_placeholders, _check_open_loop, _check_curves,
)  # fmt: skip
