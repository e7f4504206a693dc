"""A replay file: an auction log, operating points, and models."""

from __future__ import annotations

from datetime import datetime
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AwareDatetime, Field, field_validator, model_validator

from recbench_spark.auctions.kernels.mechanism import OperatingPoint
from recbench_spark.config.evaluation import Bootstrap
from recbench_spark.config.loading import CONF, find_file, read_yaml
from recbench_spark.core.strict_settings import (
    Count,
    Location,
    Name,
    Seed,
    Strict,
    make_error,
    parse,
    require_day_text,
    require_own_names,
)
from recbench_spark.errors import ConfigError, nearest

REPLAYS = CONF / "replays"

AUCTION_COLUMNS = (
    "auction_id", "query_id", "ad_id", "event_time", "bid", "block", "position", "clicked", "quality",
    "probability", "user_id",
)  # fmt: skip
"""Names of a log's columns; bid, block, quality, probability, event_time and user_id may be missing."""

Amount = Annotated[float, Field(ge=0)]
Slots = Annotated[int, Field(ge=0, le=100)]
Exponent = Annotated[float, Field(ge=0, le=10)]


class AuctionWorld(Strict):
    """A generated log whose true click rates are known.

    `ads`: candidates for each query, of which `participants` enter an auction. `zipf`: exponent of the law
    for queries; the query with rank r has a share proportional to r^-zipf.
    """

    auctions: Annotated[int, Field(ge=1, le=10_000_000)] = 20_000
    """Number of auctions."""
    queries: Count = 1000
    """Number of different queries."""
    ads: Annotated[int, Field(ge=2, le=1000)] = 10
    participants: Annotated[int, Field(ge=1, le=100)] = 8
    """Ads that enter an auction."""
    zipf: Annotated[float, Field(ge=0, le=5)] = 1.0
    seed: Seed = 42
    """Seed for the log."""


class AuctionLog(Strict):
    """A log with all participants, one per row.

    A participant is there even if it was not shown.

    `path`: CSV, Parquet or Delta, with its column names under `columns`; or `world`: a generated log.
    `time_unit`: unit of numeric event times. `bad_rows: reject` leaves out auctions with an unusable row
    and keeps these rows in the table `rejects`.
    """

    path: Location | None = None
    columns: dict[str, Location] = {}
    """Standard names, and the log's names for these columns."""
    world: AuctionWorld | None = None
    """Settings for a generated log, in place of `path`."""
    time_unit: Literal["s", "ms", "us"] = "us"
    bad_rows: Literal["fail", "reject"] = "fail"
    """`fail` stops at an unusable row; `reject` drops its auction and keeps the row in the table `rejects`.
    """

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: dict[str, str]) -> dict[str, str]:
        for name in columns:
            if name not in AUCTION_COLUMNS:
                raise make_error(f"no column '{name}' of auctions", nearest(name, AUCTION_COLUMNS))
        return columns

    @model_validator(mode="after")
    def _require_one_source(self) -> AuctionLog:
        if (self.path is None) == (self.world is None):
            raise ValueError("give one of 'path' (a table) and 'world' (a generated log)")
        return self


class ReplayPoint(Strict):
    """One operating point of the mechanism.

    Up to `main_slots` ads with a score of `main_floor` or more stand on the main line, then up to
    `side_slots` with `reserve` or more; score = bid x probability^exponent x quality.
    """

    exponent: Exponent = 1.0
    """Exponent of the probability in the score; 0 ranks by bid and quality alone."""
    main_floor: Amount = 0.0
    """Lowest score on the main line."""
    main_slots: Slots = 1
    """Ads on the main line, at most."""
    reserve: Amount = 0.0
    """Lowest score beside the main line."""
    side_slots: Slots = 0
    """Ads beside the main line, at most."""

    def point(self) -> OperatingPoint:
        """Return the point for the mechanism."""
        return OperatingPoint(**self.model_dump())


class PointGrid(Strict):
    """Operating points as all combinations of lists."""

    exponent: tuple[Exponent, ...] = (1.0,)
    """Exponents of the probability."""
    main_floor: tuple[Amount, ...] = (0.0,)
    """Lowest scores on the main line."""
    main_slots: tuple[Slots, ...] = (1,)
    """Largest numbers of ads on the main line."""
    reserve: tuple[Amount, ...] = (0.0,)
    """Lowest scores beside the main line."""
    side_slots: tuple[Slots, ...] = (0,)
    """Largest numbers of ads beside the main line."""

    def points(self) -> tuple[OperatingPoint, ...]:
        """Return the points in list order, the last list fastest."""
        lists = (self.exponent, self.main_floor, self.main_slots, self.reserve, self.side_slots)
        return tuple(OperatingPoint(*values) for values in product(*lists))


class ReplaySettings(Strict):
    """The section `replay`: operating points, curve, estimates, bootstrap.

    `points`: a list, or a grid. `logged`: the point at which the log was made; with the log's own
    probabilities it must give back the logged clicks, which is checked. `curve`: the position curve.
    `minimum`: impressions below which a pair's own click rate is not used; `shrinkage`: impressions at the
    slot's reference rate added to it. `page_views`: all views, also those without participants. `resample`:
    what the bootstrap draws; `user` needs the column user_id, one user for each auction.
    """

    added_later: ClassVar[frozenset[str]] = frozenset({"resample"})

    points: tuple[ReplayPoint, ...] | PointGrid
    logged: ReplayPoint | None = None
    curve: Literal["conditional", "plain"] = "conditional"
    minimum: Count = 1
    shrinkage: Annotated[float, Field(ge=0)] = 0.0
    page_views: Count | None = None
    bootstrap: Bootstrap = Bootstrap()
    """Resampling for the intervals."""
    resample: Literal["query", "user"] = "query"

    def list_points(self) -> tuple[OperatingPoint, ...]:
        """Return the operating points."""
        if isinstance(self.points, PointGrid):
            return self.points.points()
        return tuple(one.point() for one in self.points)

    @model_validator(mode="after")
    def _check_points(self) -> ReplaySettings:
        points = self.list_points()
        if not points:
            raise ValueError("points: at least one operating point")
        if len(set(points)) < len(points):
            raise ValueError("points: one operating point stands there twice")
        return self


class ReplayModel(Strict):
    """A model to be replayed.

    `path`: a table auction_id, ad_id, probability; or `noise`, for a generated log: how far a model's
    logarithms of click rates lie from the truth. `trained_until`: end of the rows that it was fitted to.
    """

    name: Name
    """The model's name."""
    path: Location | None = None
    noise: Annotated[float, Field(ge=0, le=10)] | None = None
    """For a generated log: how far the logarithms of click rates lie from the truth."""
    trained_until: AwareDatetime | None = None

    @field_validator("trained_until", mode="before")
    @classmethod
    def _require_day_text(cls, time: Any) -> Any:
        return require_day_text(time)

    @model_validator(mode="after")
    def _require_one_source(self) -> ReplayModel:
        if (self.path is None) == (self.noise is None):
            raise ValueError("give one of 'path' (a table) and 'noise' (for a generated log)")
        if self.name == "logged":
            raise ValueError("'logged' is the name of the logged policy")
        return self


class ReplayFile(Strict):
    """A whole replay file."""

    name: Name
    """Name of the suite."""
    log: AuctionLog
    """The auction log."""
    replay: ReplaySettings
    """Settings for the replay."""
    models: Annotated[tuple[ReplayModel, ...], Field(min_length=1)]
    """Models to replay."""

    @model_validator(mode="after")
    def _check_models(self) -> ReplayFile:
        named = [(one.name, one.path or f"noise {one.noise}") for one in self.models]
        require_own_names("models", named)
        if self.log.world is None and any(model.noise is not None for model in self.models):
            raise ValueError("models: 'noise' is for a generated log, give 'path'")
        return self

    def end_training(self, same_log: bool) -> datetime | None:
        """Return the time after which rows are replayed.

        None: all rows (`--same-log`).

        Raises:
            ConfigError: a model does not say what it was fitted to, since its own clicks would flatter it.
        """
        silent = [model.name for model in self.models if model.trained_until is None]
        if same_log:
            return None
        if silent:
            raise ConfigError(
                f"models: {silent[0]} has no trained_until; a model replayed on the rows that it was "
                "fitted to looks better than it is",
                "add trained_until (only later rows are replayed), or --same-log, which marks the results",
            )
        return max(model.trained_until for model in self.models if model.trained_until)


def load_replay(source: str) -> ReplayFile:
    """Load a replay file by path or name.

    Names are those in conf/replays.

    Raises:
        ConfigError: there is no such file, or it has a mistake.
    """
    path = find_file(source, REPLAYS, "replay")
    return parse(ReplayFile, read_yaml(path, "see conf/replays/demo.yaml"), str(path))
