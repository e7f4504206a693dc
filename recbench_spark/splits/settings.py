"""Settings in the section `split`: order, holdout and group.

A protocol names a combination.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from recbench_spark.core.strict_settings import (
    CALENDAR_UNITS,
    INT,
    MAX_SECONDS,
    Duration,
    Name,
    Seed,
    Share,
    Strict,
    make_error,
    parse_duration,
    require_day_text,
    seconds,
)

PROTOCOLS: dict[str, dict[str, Any]] = {
    "RO_RS": {"order": "random", "holdout": "ratio", "group": "user"},
    "TO_RS": {"order": "temporal", "holdout": "ratio", "group": "user"},
    "RO_LS": {"order": "random", "holdout": "leave_one_out", "group": "user"},
    "TO_LS": {"order": "temporal", "holdout": "leave_one_out", "group": "user"},
    "netflix": {"order": "temporal", "holdout": "last_n", "group": "user"},
    "given": {"holdout": "given"},
}
"""Short names for combinations, the codes in papers: random or temporal order; ratio or leave one out."""

NETFLIX = {"n": 9, "parts": ("probe", "quiz", "test")}
"""Rows per user that the Netflix prize held out, and their parts; both can be replaced."""

FOLD_HOLDOUTS = ("folds", "consecutive")
"""Holdouts that cut a log into folds without overlap, each of them the test part once."""

HOLDOUT_KEYS: dict[str, tuple[str, ...]] = {
    "n": ("last_n", "n_given"),
    "folds": FOLD_HOLDOUTS,
    "fold": FOLD_HOLDOUTS,
    **dict.fromkeys(("start", "length", "step", "window", "anchor"), ("period",)),
}
"""Keys of a split that mean something only with these holdouts."""


class HeldOut(Strict):
    """Strong generalisation: users (or items) held out from training.

    A hashed share of them does not train the model. Some of their rows are `given`; the rest is held out by
    the split's order and holdout.
    """

    of: Literal["users", "items"] = "users"
    """Hold out users, or items."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share for the test part."""
    valid: Share = 0.0
    """Share for the validation part."""

    @model_validator(mode="after")
    def _check_held_out_shares(self) -> HeldOut:
        if self.test + self.valid >= 1:
            raise ValueError("test and valid must leave some to train on")
        return self


class Split(Strict):
    """Division into training and test: order x holdout x group.

    A `protocol` names such a combination. Rows are put in order (random: by hash), inside each user's rows
    or all together, and held out:

    ratio: the last rows; `ratio` holds the shares of train, valid and test.
    leave_one_out: the last row; the last but one for validation if `valid` is true.
    last_n: the last `n` rows; the `n` before them for validation if `valid` is true.
    n_given: all but the first `n` rows.
    folds: fold number `fold` of `folds`, by hash; the next one for validation if `valid` is true.
    consecutive: the same with folds of consecutive rows in the file, equally long: 5 of them are the
      u1 ... u5 of MovieLens 100K.
    period: the rows from `start` on (for `length`), `window` times `step` later; without `start` the
      last `length` of the log, `window` times `step` earlier. Rows after it get the label later.
      Days, weeks (from Monday) and months follow the calendar in `dataset.time_zone`, and the last one
      holds the newest row (`anchor: calendar`, their default). Hours, minutes and seconds end with the
      newest row (`anchor: last_event`), and so do days with 24 hours where the anchor is named.
    given: nothing; the log names the part of each row.

    `parts`: names of the held-out parts, among which test rows are divided by hash.
    `open_loop`: open-loop rows whose pair training knows are left out (unseen), or stay (all).
    `repeats`: held-out rows of pairs (user, item) that training knows are not asked (drop), are asked
    (keep), or nothing else is (only). With keep and only, all items a user trained on are candidates.

    `targets`: of a user's rows in a part held out by a cut in time (holdout `period`, or order `temporal`
    with group `global`), `all` are asked, the `first`, the `last`, or a `random` one by hash; rows that
    `repeats` leaves out are never chosen. Rows not asked get the label later, and manifests count them.
    `successive`: each pair is a question, at its first row in the part, with the user's rows before it
    (equal times: by item) as history and no candidates; users weigh alike, or all questions under
    `definition.weigh: rows`. A model with one vector per user keeps the vector of training. Under
    `dataset.events` earlier rows of other events are history too, by the weights of their pair so far, and
    stay candidates.
    `validation` inside such a cut, with `valid: true`: the rows of the period before (time); each user's
    last training row (last_row); that of a share of users, `valid_users`, whose other rows before the cut
    are given and not trained on (users). Users with one training row keep it. Source: Gusak et al. 2025,
    Time to Split.
    """

    added_later: ClassVar[frozenset[str]] = frozenset(
        {"open_loop", "repeats", "anchor", "targets", "validation", "valid_users"}
    )

    protocol: Literal["RO_RS", "TO_RS", "RO_LS", "TO_LS", "netflix", "given"] | None = None
    """Short name for a combination of order, holdout and group."""
    order: Literal["random", "temporal"] = "random"
    """Order of the rows before they are held out: by hash, or by time; a `period` is temporal."""
    holdout: Literal[
        "ratio", "leave_one_out", "last_n", "n_given", "folds", "consecutive", "period", "given"
    ] = "ratio"
    """Rule for the held-out rows; see the list above."""
    group: Literal["user", "global"] = "user"
    """Hold out inside each user's rows, or over all rows together; `period`, `folds` and `consecutive` are
    global if nothing else is set.
    """
    ratio: tuple[Share, Share, Share] = (0.8, 0.0, 0.2)
    """Shares of train, valid and test, for holdout ratio."""
    valid: bool = False
    """Also hold out a validation part."""
    n: Annotated[int, Field(ge=0, le=INT)] | None = None
    """Rows per user: held out (last_n) or given (n_given)."""
    parts: tuple[Name, ...] = ("test",)
    folds: Annotated[int, Field(ge=2, le=INT)] = 10
    """Number of folds."""
    fold: Annotated[int, Field(ge=0)] = 0
    """Fold for the test part, from 0."""
    start: datetime | str | None = None
    """Begin of the period, such as `2026-01-31` or `{logical_date}`, in `dataset.time_zone` if it has no
    offset; without it the end of the log counts.
    """
    length: Duration | None = None
    """Length of the period: `12h`, `7d`, `2w` or `1mo`; `m` is a minute."""
    anchor: Literal["calendar", "last_event"] | None = None
    """End of a period without `start`: with the newest row's day, week or month, or with that row. By
    default `calendar` for lengths in d, w and mo, and `last_event` for h, m and s.
    """
    step: Duration | None = None
    """Distance between two windows; by default the length."""
    window: Annotated[int, Field(ge=0, le=INT)] = 0
    """Number of the window, from 0."""
    held_out: HeldOut | None = None
    """Share of users (or items) that does not train the model."""
    open_loop: Literal["unseen", "all"] = "unseen"
    repeats: Literal["drop", "keep", "only"] = "drop"
    targets: Literal["all", "first", "last", "random", "successive"] = "all"
    validation: Literal["time", "last_row", "users"] = "time"
    valid_users: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of users that validate, for validation users."""
    seed: Seed = 42
    """Seed for every choice by hash."""

    @model_validator(mode="before")
    @classmethod
    def _fill_protocol(cls, document: Any) -> Any:
        return _expand_protocol(document) if isinstance(document, dict) else document

    @field_validator("ratio")
    @classmethod
    def _check_ratio(cls, ratio: tuple[float, float, float]) -> tuple[float, float, float]:
        if abs(sum(ratio) - 1) > 1e-9 or ratio[0] == 0 or ratio[2] == 0:
            raise ValueError("train, valid, test must sum to 1, with train and test above 0")
        return ratio

    @field_validator("start", mode="before")
    @classmethod
    def _read_start(cls, start: Any) -> Any:
        if isinstance(start, dict):
            raise make_error("a mapping is no time", 'quote a placeholder: start: "{logical_date}"')
        return start if isinstance(start, str) and "{" in start else _parse_time(require_day_text(start))

    @field_validator("parts")
    @classmethod
    def _check_parts(cls, parts: tuple[str, ...]) -> tuple[str, ...]:
        if not parts or len(set(parts)) < len(parts) or {"train", "given", "later", "log"} & set(parts):
            raise ValueError("give held-out parts names of their own; train, given, later, log are taken")
        if len(parts) > 100:
            raise ValueError("at most 100 parts")
        return parts

    @model_validator(mode="after")
    def _check_consistency(self) -> Split:
        for wrong, message in _mistakes(self):
            if wrong:
                raise ValueError(message)
        divides_pairs = self.temporal or self.holdout in ("consecutive", "given")
        if self.asks_repeats and not divides_pairs:
            message = f"repeats '{self.repeats}': in random order all rows of a pair are in one part"
            raise make_error(message, "order: temporal, or leave repeats out")
        return self

    @property
    def temporal(self) -> bool:
        """True if rows are put in order of time."""
        return self.order == "temporal"

    @property
    def asks_repeats(self) -> bool:
        """True if known pairs are asked again.

        Training knows them, so trained items are candidates.
        """
        return self.repeats != "drop"

    @property
    def successive(self) -> bool:
        """True if each row is asked after the rows before it."""
        return self.targets == "successive"

    @property
    def cuts_time(self) -> bool:
        """True if one instant for all users ends training."""
        return self.temporal and self.group == "global" and self.holdout in ("period", "ratio")

    @property
    def gives_rows(self) -> bool:
        """True if users have rows given at evaluation alone."""
        return self.holds_out_users or self.validation == "users"

    @property
    def by_calendar(self) -> bool:
        """True if the period follows the calendar."""
        return _counts_days(self.length) and self.anchor != "last_event"

    def localise(self, zone: tzinfo) -> Split:
        """Return the split with `start` in UTC.

        A time without an offset is in the zone.
        """
        if not isinstance(self.start, datetime) or self.start.tzinfo is not None:
            return self
        return self.model_copy(update={"start": _convert_to_utc(self.start.replace(tzinfo=zone))})

    @property
    def holds_out_users(self) -> bool:
        """True if users are held out, with some rows given."""
        return self.held_out is not None and self.held_out.of == "users"

    def describe(self) -> str:
        """Return the protocol in one short string, for `runs.split`."""
        name = self.protocol or f"{self.order} {self.holdout} {self.group}"
        parts = f"to {'/'.join(self.parts)}" if self.parts != ("test",) else ""
        words = [name, self._describe_amount(), parts]
        if self.held_out:
            valid = f"/{self.held_out.valid:g}" if self.held_out.valid else ""
            words.append(f"of held-out {self.held_out.of} {self.held_out.test:g}{valid}")
        words.append("open loop whole" if self.open_loop == "all" else "")
        words.append(f"repeats {self.repeats}" if self.asks_repeats else "")
        words.append(f"targets {self.targets}" if self.targets != "all" else "")
        share = f" {self.valid_users:g}" if self.validation == "users" else ""
        words.append(f"validation {self.validation}{share}" if self.validation != "time" else "")
        return " ".join(word for word in [*words, f"seed {self.seed}"] if word)

    def _describe_amount(self) -> str:
        valid = "with valid" if self.valid else ""
        begin = self.start or ("last calendar" if self.by_calendar else "last")
        amounts = {
            "ratio": "/".join(f"{share:g}" for share in self.ratio),
            "leave_one_out": valid or "test only",
            **dict.fromkeys(FOLD_HOLDOUTS, f"{self.fold} of {self.folds} {valid}".strip()),
            "period": f"{begin} {self.length or ''} window {self.window} {valid}".strip(),
            "given": "",
        }
        return amounts.get(self.holdout, f"{self.n} {valid}".strip())


def _counts_days(duration: str | None) -> bool:
    """Return whether a duration is in calendar units."""
    return duration is not None and parse_duration(duration)[1] in CALENDAR_UNITS


def _parse_time(start: Any) -> datetime | None:
    """Return a time in UTC, or in no zone.

    The time has no zone if none is given.

    Raises:
        ValueError: it is no time, or UTC has no such time.
    """
    try:
        moment = TypeAdapter(datetime | None).validate_python(start)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from None
    return _convert_to_utc(moment) if moment and moment.tzinfo else moment


def _convert_to_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("no such time in UTC") from None


def _expand_protocol(document: dict[str, Any]) -> dict[str, Any]:
    """Add a protocol's settings, or the matching protocol's name."""
    name = document.get("protocol")
    if name is not None and not (isinstance(name, str) and name in PROTOCOLS):
        return document  # the field's own check refuses it
    meant = PROTOCOLS.get(name or "", {})
    for key, value in meant.items():
        if document.get(key, value) != value:
            raise ValueError(f"protocol {name} means {key} {value}, and {document[key]} is given")
    holdout = document.get("holdout", "ratio")
    order = "temporal" if holdout == "period" else "random"
    group = "global" if holdout in (*FOLD_HOLDOUTS, "period") else "user"
    defaults = {"holdout": holdout, "order": order, "group": group}
    filled = {**(NETFLIX if name == "netflix" else {}), **defaults, **document, **meant}
    if name is None:
        codes = (code for code, own in PROTOCOLS.items() if own.items() <= filled.items())
        filled["protocol"] = next((code for code in codes if code != "netflix"), None)
    return filled


def _mistakes(split: Split) -> list[tuple[bool, str]]:
    """Return contradictions in a split: (is wrong, message)."""
    holdout, per_user = split.holdout, split.group == "user"
    length, step = (seconds(lasts) if lasts else 0 for lasts in (split.length, split.step))
    span = length + split.window * (step or length)
    is_period, counted = holdout == "period", holdout in ("leave_one_out", "last_n", "n_given")
    folded = holdout in FOLD_HOLDOUTS
    strays = [
        key
        for key, holdouts in HOLDOUT_KEYS.items()
        if holdout not in holdouts and getattr(split, key) != type(split).model_fields[key].default
    ]
    valid_period = split.valid and split.validation == "time"
    needs_length = is_period and (valid_period or split.window > 0)
    divides_users = per_user and (counted or holdout == "ratio")
    return [
        (bool(strays), f"{', '.join(strays)}: not for holdout '{holdout}'"),
        (counted and not per_user, f"holdout '{holdout}' is per user: group must be 'user'"),
        (holdout in ("last_n", "n_given") and split.n is None, f"holdout '{holdout}' needs 'n'"),
        (holdout == "last_n" and split.n == 0, "n must be at least 1"),
        (holdout == "n_given" and split.valid, "n_given: instead of 'valid' name parts: [valid, test]"),
        (folded and split.temporal, "folds are random: order must be 'random'"),
        (holdout == "consecutive" and per_user, "consecutive folds are of the whole file: group 'global'"),
        (split.fold >= split.folds, f"fold must be below folds, which is {split.folds}"),
        (folded and split.valid and split.folds == 2, "2 folds leave none to validate on"),
        (max(length, step, span) > MAX_SECONDS, "length, step and window lead out of the calendar"),
        (is_period and (per_user or not split.temporal), "a period is temporal and global"),
        (is_period and not (split.start or split.length), "a period needs 'start' or 'length'"),
        *_anchor_mistakes(split),
        *_target_mistakes(split),
        (needs_length and not split.length, "valid and window need the 'length' of the period"),
        (bool(split.held_out) and not divides_users, HELD_OUT_HOLDOUTS),
        (bool(split.held_out) and (split.valid or split.ratio[1] > 0), HELD_OUT_VALID),
    ]


HELD_OUT_HOLDOUTS = "held_out goes with group 'user' and holdout ratio, leave_one_out, last_n or n_given"
HELD_OUT_VALID = "with held_out, validation is held_out.valid, a share of its own"
HOURS = "anchor calendar goes with a length in d, w or mo: hours have no calendar"
NAMED_START = "anchor last_event: the period begins with 'start'; write its length in h for equal lengths"
MONTHS = "months have no fixed length: they go with anchor calendar and a length in d, w or mo"


def _target_mistakes(split: Split) -> list[tuple[bool, str]]:
    """Return contradictions around targets and validation: (is wrong, message)."""
    by, chosen = f"validation '{split.validation}'", split.validation != "time"
    of_users = split.valid_users != type(split).model_fields["valid_users"].default
    in_time = "holdout 'period', or order 'temporal' with group 'global'"
    return [
        (split.successive and len(split.parts) > 1, "targets 'successive' goes with one of parts"),
        (split.targets != "all" and not split.cuts_time, f"targets '{split.targets}' needs {in_time}"),
        (chosen and not split.cuts_time, f"{by} needs {in_time}"),
        (chosen and not split.valid, f"{by} needs valid: true"),
        (chosen and split.ratio[1] > 0, f"{by} takes no share of time: the second of ratio must be 0"),
        (of_users and split.validation != "users", "valid_users goes with validation users"),
    ]


def _anchor_mistakes(split: Split) -> list[tuple[bool, str]]:
    """Return contradictions around a period's anchor: (is wrong, message)."""
    has_months = any(lasts and lasts.endswith("mo") for lasts in (split.length, split.step))
    return [
        (split.anchor == "calendar" and not _counts_days(split.length), HOURS),
        (split.anchor == "last_event" and split.start is not None, NAMED_START),
        (has_months and not split.by_calendar, MONTHS),
    ]
