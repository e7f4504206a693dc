"""Replay models at operating points: rows of `replays`, with intervals.

Passes over the log's parts: one counts slots, some fit the position curve (Newton steps), one adds up the
logged policy, and each model takes one for every POINTS_AT_ONCE points. Every pass returns whole numbers,
so the cut into parts changes no bit. The caller holds sums alone: POINTS_AT_ONCE x replicates x (11 + 6
slots) numbers, and replicates x metrics for each model and point. Nothing grows with queries, ads or pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recbench_spark.auctions.auction_log import AuctionLogParts
from recbench_spark.auctions.kernels.click_estimates import ClickModel, EstimateRules
from recbench_spark.auctions.kernels.counts import UNIT
from recbench_spark.auctions.kernels.mechanism import OperatingPoint
from recbench_spark.auctions.kernels.yields import UNSEEN, LoggedPolicy, ReplayedPolicy
from recbench_spark.auctions.passes import ModelPass, add_up_log
from recbench_spark.auctions.settings import ReplaySettings
from recbench_spark.config import digest
from recbench_spark.core import resampling
from recbench_spark.core.arrays import Floats
from recbench_spark.core.checks import Check
from recbench_spark.core.definitions import VERSION
from recbench_spark.core.revisions import REVISIONS
from recbench_spark.errors import ConfigError

LOGGED = "logged"
"""The logged policy's name among the models."""

FEWEST_QUERIES = 30.0
"""Effective number of queries below which there is no interval."""

POINTS_AT_ONCE = 16
"""Operating points in a pass: all share one draw of the bootstrap weights."""

SAME_CLICKS = 1e-7
"""Largest relative difference between logged clicks and those of the logged model replayed: rounding."""

CASES = {"same_slot": "same", "other_slot": "other"}

LIFTS = {"click_lift": "clicks", "main_line_lift": "main_line_yield", "revenue_lift": "revenue"}
"""Relative differences, each with the metric whose quotient minus 1 it is."""

ReplayRow = dict[str, Any]
"""A row of `replays` without its run id."""

Values = Mapping[str, tuple[float, Floats]]
"""Each metric's value and replicates, (b,)."""


@dataclass(frozen=True, eq=False)
class Replayer:
    """A log, its facts about slots, and a replay's settings.

    Attributes:
        log: the log in parts.
        settings: the section `replay`.
        clicks: position curve and rules for estimates.
        logged: the log's sums, and its replicates'.
        effective_queries: (sum of auctions)^2 / sum of squares over queries, or over users if the bootstrap
            draws users.
        queries: number of queries.
    """

    log: AuctionLogParts
    settings: ReplaySettings
    clicks: ClickModel
    logged: tuple[LoggedPolicy, LoggedPolicy]
    effective_queries: float
    queries: int

    @classmethod
    def from_log(cls, log: AuctionLogParts, settings: ReplaySettings) -> Replayer:
        """Count slots, fit the curve, add up the logged policy.

        Raises:
            ConfigError: an operating point has slots that the log never filled; or users are resampled, and
                the log has none. DataError: an auction without a user, or with two.
        """
        slots = log.facts.slots
        for point in settings.list_points():
            slots.check(point)
        chosen = settings.model_dump(mode="json", include={"curve", "resample", "bootstrap"})
        name = digest(REVISIONS["replays"], chosen)
        queries, units, set_s, log_theta, sums, boot = log.keep(name, lambda: add_up_log(log, settings))
        plain = log_theta if settings.curve == "plain" else None
        main = slots.main if log.facts.has_blocks else len(slots)
        views = _count_views(settings.page_views, int(sums[0] / UNIT))
        logged = [LoggedPolicy.from_sums(each, set_s, views, main, plain) for each in (sums, boot)]
        rules = EstimateRules(settings.minimum, settings.shrinkage)
        auctions, squares, _ = map(int, units)
        return cls(
            log, settings, ClickModel(np.exp(log_theta), set_s, main, rules), (logged[0], logged[1]),
            auctions**2 / squares, int(queries[2]),
        )  # fmt: skip

    def replay(self, model: str, points: Sequence[OperatingPoint]) -> Iterator[ReplayedModel]:
        """Yield a model's estimates at each point.

        Args:
            model: the model's name.
            points: operating points; neighbours with one exponent share one sort.
        """
        for first in range(0, len(points), POINTS_AT_ONCE):
            batch = tuple(points[first : first + POINTS_AT_ONCE])
            by_user, boot = self.settings.resample == "user", self.settings.bootstrap
            work = ModelPass(model, batch, self.clicks, self.log.facts.slots, boot, by_user)
            count_showings = work.count_showings if by_user else None
            for sums, drawn in zip(*self.log.add(work, count_showings), strict=True):
                yield ReplayedModel(
                    ReplayedPolicy(sums, self.logged[0]), ReplayedPolicy(drawn, self.logged[1]), self.log
                )

    def measure_log(self) -> Values:
        """Return the logged policy's metrics."""
        return _join_values(self.log, *(one.measure() for one in self.logged))

    @property
    def definition(self) -> str:
        """The numbers' definition.

        The text names the defaults' version, and each changed setting.
        """
        settings = self.settings
        words = [VERSION, f"curve={settings.curve}"]
        words += [f"minimum={settings.minimum}"] if settings.minimum > 1 else []
        words += [f"shrinkage={settings.shrinkage:g}"] if settings.shrinkage else []
        words += [f"page_views={settings.page_views}"] if settings.page_views else []
        words += ["resample=user"] if settings.resample == "user" else []
        return ";".join(words)

    def log_rows(self) -> list[ReplayRow]:
        """Return the logged policy's metrics, reference rates and position curve."""
        rows = [self._row(LOGGED, None, name, value) for name, value in self.measure_log().items()]
        whole, boot = self.logged
        theta, slots, blocks = self.clicks.theta_s, self.log.facts.slots, self.log.facts.has_blocks
        names = [f"main {s + 1}" if blocks else str(s + 1) for s in range(slots.main)]
        names += [f"side {s + 1}" for s in range(slots.side if blocks else 0)]
        for s, slot in enumerate(names):
            rate = (float(whole.reference[s]), boot.reference[:, s])
            with np.errstate(over="ignore"):
                curve = (float(theta[s]), theta[s] * np.exp(boot.curve_shift[:, s]))
            first = names[self.clicks.set_s[s]]
            rows.append({**self._row(LOGGED, None, "reference_rate", rate), "slot": slot})
            curve_row = self._row(LOGGED, None, "position_curve", curve)
            rows.append({**curve_row, "slot": slot, "reference_slot": first})
        return rows

    def model_rows(
        self, model: str, point: OperatingPoint, by_unseen: Mapping[str, Values], cases: Mapping[str, float]
    ) -> list[ReplayRow]:
        """Return a model's metrics at a point, and its cases.

        Each rule for unseen pairs has a row.
        """
        rows = [
            {**self._row(model, point, name, value), "unseen": unseen}
            for unseen, values in by_unseen.items()
            for name, value in values.items()
        ]
        nowhere = np.zeros(0)
        return rows + [self._row(model, point, name, (value, nowhere)) for name, value in cases.items()]

    def difference_rows(
        self,
        values: Mapping[tuple[str, OperatingPoint], Values],
        models: Sequence[str],
        points: Sequence[OperatingPoint],
    ) -> list[ReplayRow]:
        """Return differences between models, and to the logged policy.

        All differences use the same bootstrap weights.
        """
        rows, logged = [], self.measure_log()
        for point in points:
            known = {LOGGED: logged} | {model: values[model, point] for model in models}
            pairs = [(one, LOGGED) for one in models]
            pairs += [(one, other) for n, one in enumerate(models) for other in models[:n]]
            for one, other in pairs:
                rows += [
                    {**self._row(one, point, name, value), "other": other, "unseen": UNSEEN[0]}
                    for name, value in compare_values(known[one], known[other]).items()
                ]
        return rows

    def _row(
        self, model: str, point: OperatingPoint | None, metric: str, value: tuple[float, Floats]
    ) -> ReplayRow:
        row: ReplayRow = {
            "model": model,
            "metric": metric,
            "definition": self.definition,
            "n": round(float(self.logged[0].views)),
            "queries": self.queries,
            "effective_queries": self.effective_queries,
            **self._describe_value(value),
        }
        return row | ({"point": point.describe(), **vars(point)} if point else {})

    def _describe_value(self, value: tuple[float, Floats]) -> dict[str, float | None]:
        """Return value, standard error and interval.

        With too few queries, the latter two are NULL.
        """
        number, replicates = value
        row: dict[str, float | None] = {"value": number if np.isfinite(number) else None}
        finite = replicates[np.isfinite(replicates)]
        if len(finite) < 2 or self.effective_queries < FEWEST_QUERIES:
            return row
        low, high = resampling.percentile_interval(finite[:, None], self.settings.bootstrap.level)
        return row | {
            "stderr": float(finite.std(ddof=1)),
            "ci_low": float(low[0]),
            "ci_high": float(high[0]),
        }


@dataclass(frozen=True, eq=False)
class ReplayedModel:
    """A model's sums at a point, and its replicates'."""

    whole: ReplayedPolicy
    boot: ReplayedPolicy
    log: AuctionLogParts

    def values(self, unseen: str) -> Values:
        """Return the metrics, treating unseen pairs as in UNSEEN."""
        largest = self.log.facts.largest_bid
        measured = (one.measure(unseen, largest or 1.0) for one in (self.whole, self.boot))
        values = _join_values(self.log, *measured)
        return {
            name: one
            for name, one in values.items()
            if largest is not None or not name.startswith("revenue")
        }

    def cases(self) -> dict[str, float]:
        """Return each case's share of shown ads, and its clicks."""
        shown = float(self.whole.column("shown"))
        unseen = self.whole.column("unseen")
        reference = self.whole.logged.reference
        cases = {}
        for case, name in CASES.items():
            cases[f"share_{case}"] = float(self.whole.column(name)) / shown if shown else np.nan
            cases[f"clicks_{case}"] = float(self.whole.column(f"{name}_clicks"))
        cases["share_unseen"] = float(unseen.sum()) / shown if shown else np.nan
        cases["clicks_unseen"] = float((unseen * reference).sum())
        return cases


def replay_models(
    log: AuctionLogParts, models: Sequence[str], settings: ReplaySettings
) -> tuple[list[ReplayRow], list[Check]]:
    """Replay models at all operating points.

    The result has rows of `replays`, and checks on the log.

    Args:
        log: the log in parts, with probabilities from the models, and from `logged` if the log has them.
        models: names, in the order in which they are compared.
        settings: the section `replay`.
    """
    replayer = Replayer.from_log(log, settings)
    rows = replayer.log_rows()
    points = sorted(settings.list_points())
    values: dict[tuple[str, OperatingPoint], Values] = {}
    for model in models:
        for point, replayed in zip(points, replayer.replay(model, points), strict=True):
            by_unseen = {unseen: replayed.values(unseen) for unseen in UNSEEN}
            values[model, point] = by_unseen[UNSEEN[0]]
            rows += replayer.model_rows(model, point, by_unseen, replayed.cases())
    rows += replayer.difference_rows(values, models, points)
    return rows, [*_check_log(replayer), *_check_logged_model(replayer)]


def compare_values(one: Values, other: Values) -> dict[str, tuple[float, Floats]]:
    """Return differences in common metrics, and the lifts.

    A lift is a quotient minus 1.
    """
    common = {name: (one[name], other[name]) for name in one if name in other}
    compared = {name: (a[0] - b[0], a[1] - b[1]) for name, (a, b) in common.items()}
    for lift, name in LIFTS.items():
        if name in common:
            (value, replicates), (base, others) = common[name]
            with np.errstate(divide="ignore", invalid="ignore"):
                compared[lift] = (float(np.float64(value) / base - 1), replicates / others - 1)
    return compared


def _count_views(page_views: int | None, auctions: int) -> float:
    """Return the page views per auction.

    Raises:
        ConfigError: fewer views than auctions.
    """
    if page_views is not None and page_views < auctions:
        raise ConfigError(
            f"page_views {page_views:,}: the log has {auctions:,} auctions", "at least as many"
        )
    return page_views / auctions if page_views else 1.0


def _join_values(log: AuctionLogParts, whole: Mapping[str, Floats], drawn: Mapping[str, Floats]) -> Values:
    """Return each metric with its replicates; without blocks there is no main line."""
    return {
        name: (float(value), drawn[name])
        for name, value in whole.items()
        if log.facts.has_blocks or name != "main_line_yield"
    }


def _check_log(replayer: Replayer) -> list[Check]:
    """Return facts which show how trustworthy a replay is."""
    sets = np.unique(replayer.clicks.set_s)
    effective = replayer.effective_queries
    unit = "users" if replayer.settings.resample == "user" else "queries"
    few = f"{unit} count alike; below 30 there is no interval" if effective >= FEWEST_QUERIES else (
        f"too few {unit} for intervals"
    )  # fmt: skip
    no_losers = "the log has no losers: models only reorder what was shown"
    views = "yields are per auction; replay.page_views counts views without participants too"
    checks = [
        Check(f"effective {unit}", effective, None, "info", few),
        Check("connected sets of slots", len(sets), 1.0, "warning", "slots of others have no common value"),
    ]
    if replayer.log.facts.losers == 0:
        checks.append(Check("participants not shown", 0, -1.0, "warning", no_losers))
    if replayer.settings.page_views is None:
        checks.append(Check("views without participants", 0, None, "info", views))
    return checks


def _check_logged_model(replayer: Replayer) -> list[Check]:
    """Check that the logged model gives back the logged clicks.

    The model is replayed at its own point. Minimum and shrinkage change estimates at the same slot too, so
    the check does without them.
    """
    point = replayer.settings.logged
    if point is None or LOGGED not in replayer.log.models:
        return []
    own = point.point()
    replayer.log.facts.slots.check(own)
    exact = replace(replayer, clicks=replace(replayer.clicks, rules=EstimateRules()))
    (replayed,) = exact.replay(LOGGED, [own])
    clicks = float(replayer.logged[0].columns.clicks.sum())
    estimate = replayed.values(UNSEEN[0])["clicks"][0]
    share = replayed.cases()["share_same_slot"]
    detail = (
        f"{estimate:.6g} for {clicks:.6g} clicks, {share:.1%} of its ads at a slot they had: "
        "if it is not 0, another point, exponent or quality made the log"
    )
    error = abs(estimate / clicks - 1) if clicks else 0.0
    return [Check("logged model replayed, error of its clicks", error, SAME_CLICKS, "warning", detail)]
