"""Define a report's content as frozen dataclasses, without its look."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from recbench_spark.metrics.kernels.about import about_metric
from recbench_spark.reports.beyond_means import BeyondMeans
from recbench_spark.reports.night_facts import VISIBLE_P, ComparedPair, Fall, PlantedFault, Trend
from recbench_spark.reports.retrieval import RetrievalFacts


@dataclass(frozen=True, order=True)
class ReportedMeasure:
    """All that must agree before numbers are ranked together."""

    metric: str
    k: int | None
    definition: str
    estimator: str

    @property
    def label(self) -> str:
        """Name as people write it: `ndcg@10`, or plain `auc`."""
        return self.metric if self.k is None else f"{self.metric}@{self.k}"

    def sort_key(self, value: float) -> float:
        """Return a sort key: smaller is better, NaN is worst."""
        return about_metric(self.metric).sort_key(value)


@dataclass(frozen=True)
class MetricEstimate:
    """A value with its bootstrap interval and its averaged users."""

    value: float
    low: float | None
    high: float | None
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the interval, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def overlaps(self, other: MetricEstimate) -> bool | None:
        """Tell whether closed intervals meet; None if one is missing."""
        if self.interval is None or other.interval is None:
            return None
        return max(self.interval[0], other.interval[0]) <= min(self.interval[1], other.interval[1])


@dataclass(frozen=True)
class Number:
    """One row of `latest_metrics`."""

    suite: str
    logical_date: str
    dataset: str
    split: str
    split_id: str
    model: str
    model_kind: str
    source: str
    run_id: str
    part: str
    measure: ReportedMeasure
    slice_key: str | None
    slice_value: str | None
    estimate: MetricEstimate


@dataclass(frozen=True)
class LeaderboardRow:
    """A model's place on a board, with its values.

    `others` follow the board's `others`, None where not measured. `training_rows`: training items in its
    lists, which other models cannot recommend. `tests`: p of the night's paired tests, by Holm, by other
    model. `trend`: its last nights, None on its first one. `fell`: it regressed on this part.
    """

    position: int
    model: str
    model_kind: str
    source: str
    estimate: MetricEstimate
    others: tuple[MetricEstimate | None, ...]
    overlaps_next: bool | None
    training_rows: int = 0
    trend: Trend | None = None
    fell: bool = False
    tests: Mapping[str, float] = field(default_factory=dict)

    def is_open(self, other: LeaderboardRow) -> bool | None:
        """Tell if an order may be chance: test, else intervals."""
        if other.model in self.tests:
            return self.tests[other.model] >= VISIBLE_P
        return self.estimate.overlaps(other.estimate)

    @property
    def note(self) -> str:
        """A note to compare the row with others, or ""."""
        if not self.training_rows:
            return ""
        return (
            f"{self.model}: {self.training_rows:,} rows of its lists are training items, which are taken "
            "out of those of other models; set training_items: drop in its entry under models"
        )


@dataclass(frozen=True)
class Leaderboard:
    """The models on one held-out part, by one measure."""

    split_id: str
    dataset: str
    split: str
    part: str
    measure: ReportedMeasure
    others: tuple[ReportedMeasure, ...]
    rows: tuple[LeaderboardRow, ...]

    @property
    def reference(self) -> LeaderboardRow:
        """The best model except the truth, or the truth alone."""
        return next((row for row in self.rows if row.model_kind != "truth"), self.rows[0])


@dataclass(frozen=True)
class CurveLine:
    """A model's values at ascending cut-offs."""

    model: str
    ks: tuple[int, ...]
    estimates: tuple[MetricEstimate, ...]


@dataclass(frozen=True)
class CurveFacts:
    """A metric by cut-off, with one line for each model.

    `axis` may name another number. `counts`: users averaged at each of `ks`, shown below, if any.
    """

    part: str
    measure: ReportedMeasure
    ks: tuple[int, ...]
    lines: tuple[CurveLine, ...]
    axis: str = "k"
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class LearningCurveFacts:
    """A part's learning curves, and sentences on crossing models."""

    curve: CurveFacts
    crossings: tuple[str, ...]


@dataclass(frozen=True)
class SliceFacts:
    """A measure within slices, by model and slice value."""

    part: str
    measure: ReportedMeasure
    key: str
    values: tuple[str, ...]
    rows: tuple[tuple[str, tuple[MetricEstimate | None, ...]], ...]
    left_out: int


@dataclass(frozen=True)
class AgreementRow:
    """A model's place on both parts."""

    model: str
    first_position: int
    second_position: int
    first: MetricEstimate
    second: MetricEstimate


@dataclass(frozen=True)
class Agreement:
    """Two parts, compared by their order of models.

    `reversed_pairs`: pairs in opposite order; `clear`: those whose intervals are separate on both parts, so
    hardly by chance.
    """

    measure: ReportedMeasure
    first_part: str
    second_part: str
    rows: tuple[AgreementRow, ...]
    pairs: int
    reversed_pairs: int
    clear: int


@dataclass(frozen=True)
class CheckRow:
    """A check, and the models it was made for."""

    check: str
    severity: str
    passed: bool
    observed: float | None
    threshold: float | None
    detail: str
    models: tuple[str, ...]


@dataclass(frozen=True)
class ManifestFacts:
    """A split's counts `values[fact][part]`, notes, texts (part, fact, text)."""

    split_id: str
    dataset: str
    split: str
    parts: tuple[str, ...]
    facts: tuple[str, ...]
    notes: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    texts: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class RunFacts:
    """The origin of a number: run, model, settings and code."""

    run_id: str
    model: str
    model_kind: str
    model_version: str
    status: str
    source: str
    ran_by: str
    source_year: int | None
    search_space: str
    budget: str
    at_grid_edge: tuple[str, ...]
    code_version: str
    seconds: float | None
    n_users: int | None
    started_at: str
    config: str
    error: str
    dataset: str = ""


@dataclass(frozen=True)
class DefinitionFacts:
    """A definition, its metrics, and its differences from the defaults."""

    text: str
    metrics: tuple[str, ...]
    differences: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class GroupChange:
    """A user group's portion in the change of a mean.

    `mix`: by its share, `within`: by its own mean; share and mean: before and after, None without users.
    """

    group: str
    share: tuple[float, float]
    mean: tuple[float | None, float | None]
    mix: float
    within: float

    @property
    def size(self) -> float:
        """Size of the contribution, in either direction."""
        return abs(self.mix) + abs(self.within)


@dataclass(frozen=True)
class ChangeFacts:
    """A model's change since its previous night, by user group."""

    part: str
    model: str
    measure: str
    other_date: str
    before: float
    after: float
    key: str
    groups: tuple[GroupChange, ...]

    @property
    def mix(self) -> float:
        """Change of the mean from other group shares."""
        return math.fsum(group.mix for group in self.groups)

    @property
    def within(self) -> float:
        """Change of the mean from other group means."""
        return math.fsum(group.within for group in self.groups)

    @property
    def reach(self) -> float:
        """Length of the longest bar; 1 if nothing moved."""
        return max(max(abs(g.mix), abs(g.within)) for g in self.groups) or 1.0


@dataclass(frozen=True)
class MultiverseFacts:
    """Share of worlds where row beats column, best model first.

    shares: None on the diagonal; lowest and highest: over metrics and protocols.
    """

    part: str
    models: tuple[str, ...]
    shares: tuple[tuple[float | None, ...], ...]
    lowest: tuple[tuple[float | None, ...], ...]
    highest: tuple[tuple[float | None, ...], ...]
    worlds: int
    protocols: int


@dataclass(frozen=True)
class PairFacts:
    """Share of worlds where `model` wins, by protocol (split, candidates)."""

    part: str
    model: str
    other: str
    share: float
    by_protocol: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class DisagreementFacts:
    """Two models ordered differently by strata and whole.

    Differences are model - other. strata: label, share of the truth items, difference.
    """

    part: str
    measure: ReportedMeasure
    key: str
    model: str
    other: str
    kind: str
    certain: bool
    whole: MetricEstimate
    stratified: MetricEstimate
    strata: tuple[tuple[str, float, MetricEstimate], ...]


@dataclass(frozen=True)
class Disagreements:
    """The clearest rows, with (kind, pairs, certain) over `compared` pairs."""

    rows: tuple[DisagreementFacts, ...]
    counts: tuple[tuple[str, int, int], ...]
    compared: int


@dataclass(frozen=True)
class FlipFacts:
    """Fewest items (users) whose removal turns a verdict; `largest`: some."""

    part: str
    measure: ReportedMeasure
    model: str
    other: str
    kind: str
    removed: int
    out_of: int
    largest: tuple[str, ...]


@dataclass(frozen=True)
class CorrectionColumn:
    """Models by one estimator, with places; None without a value.

    name: the estimator; several with equal estimates for every model share a column, `ips = snips user`.
    agreement: Kendall's tau-b with the open loop, if any. p: one-tailed p of a better agreement than the
    holdout's (`significance.dependent_correlations`); None for the holdout itself, below four models, and
    if it orders them as the holdout does.
    """

    name: str
    estimates: tuple[MetricEstimate | None, ...]
    places: tuple[int | None, ...]
    agreement: float | None
    p: float | None = None


@dataclass(frozen=True)
class CorrectionFacts:
    """One measure by all estimators; `reference`: the open loop's column."""

    part: str
    measure: ReportedMeasure
    models: tuple[str, ...]
    columns: tuple[CorrectionColumn, ...]
    reference: str | None
    note: str | None = None


@dataclass(frozen=True)
class GraphPass:
    """A model's pass over its graph, measured and predicted."""

    layer: int
    aggregator: str
    plan: str
    nodes: int
    edges: int
    projected: int
    shuffled: int
    predicted_bytes: int
    seconds: float
    predicted: float

    @property
    def rate(self) -> float | None:
        """Edges per second."""
        return self.edges / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True)
class GraphFacts:
    """A model's passes in running order, and the cores."""

    model: str
    model_id: str
    cores: int
    passes: tuple[GraphPass, ...]

    @property
    def seconds(self) -> float:
        """Seconds of all passes."""
        return math.fsum(one.seconds for one in self.passes)

    @property
    def predicted(self) -> float:
        """Predicted seconds of all passes."""
        return math.fsum(one.predicted for one in self.passes)

    @property
    def reach(self) -> float:
        """Length of the longest bar."""
        return max(max(one.seconds, one.predicted) for one in self.passes) or 1.0


@dataclass(frozen=True)
class Report:
    """Everything a report shows, in order."""

    suite: str
    logical_date: str
    level: float | None
    models: tuple[str, ...]
    summary: tuple[str, ...]
    leaderboards: tuple[Leaderboard, ...]
    agreements: tuple[Agreement, ...]
    curves: tuple[CurveFacts, ...]
    slices: tuple[SliceFacts, ...]
    multiverse: tuple[MultiverseFacts, ...]
    checks: tuple[CheckRow, ...]
    manifests: tuple[ManifestFacts, ...]
    definitions: tuple[DefinitionFacts, ...]
    defaults: tuple[tuple[str, str], ...]
    runs: tuple[RunFacts, ...]
    sql_lines: tuple[str, ...]
    changes: tuple[ChangeFacts, ...] = ()
    code_changes: tuple[str, ...] = ()
    disagreements: Disagreements | None = None
    flips: tuple[FlipFacts, ...] = ()
    corrections: tuple[CorrectionFacts, ...] = ()
    regressions: tuple[str, ...] = ()
    graphs: tuple[GraphFacts, ...] = ()
    learning_curves: tuple[LearningCurveFacts, ...] = ()
    retrieval: tuple[RetrievalFacts, ...] = ()
    chosen_indexes: tuple[str, ...] = ()
    falls: tuple[Fall, ...] = ()
    compared: tuple[ComparedPair, ...] = ()
    has_rules: bool = False
    doubts: tuple[str, ...] = ()
    self_test: tuple[PlantedFault, ...] = ()
    beyond: BeyondMeans = field(default_factory=BeyondMeans)

    @property
    def failures(self) -> tuple[CheckRow, ...]:
        """Gates that did not pass."""
        return tuple(row for row in self.checks if not row.passed and row.severity == "error")

    @property
    def warnings(self) -> tuple[CheckRow, ...]:
        """Failed checks below an error."""
        return tuple(row for row in self.checks if not row.passed and row.severity != "error")
