"""Bayesian matrix factorisation by Gibbs sampling, with several feature sets.

The feature sets are those from the strong baselines. A rating is a factorisation machine over its features:
the overall mean, a bias w_j for each feature j, and v_j . v_l for each pair. `u` is the user, `i` the item,
`t` the day; `iu` is a bag with all items the user rated in training, `ii` a bag with all users who rated
the item, each with weight 1 / sqrt(size). u,i is matrix factorisation; u,i,t timeSVD; u,i,iu SVD++;
u,i,t,iu timeSVD++; u,i,t,iu,ii its flipped form (Rendle, Zhang and Koren 2019, section 3.2).

Priors: the (bias, factors) rows for each kind of feature are normal with a common mean and full precision
matrix, normal-Wishart (Salakhutdinov and Mnih 2008), not independent numbers as in libFM (Rendle 2012). A
row is drawn as a whole anyway, because that mixes faster, and then a full matrix costs nothing more. From
libFM come the biases, the Gamma prior on the noise's precision, and the features. Users, items and days are
drawn as rows (`blocks`), bags number by number (`gibbs`). A prediction is the mean over
samples, each clipped to the scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from recbench_spark.core.arrays import Floats, Floats32, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.models.rating import blocks, gibbs, interface
from recbench_spark.models.rating.blocks import FactorSide, Grouped
from recbench_spark.models.rating.draws import as_unsigned, draw_state, normal_table
from recbench_spark.models.rating.interface import Fit, Ratings
from recbench_spark.models.rating.simd import dot_rows, pad_dims, zero_rows

SECONDS_A_DAY = 86_400
CHUNK = 1 << 14
"""Number of pairs one thread predicts at a time."""

ROWS, ROWS_PRIOR, BAGS, BAGS_PRIOR, PURPOSES = range(5)
NOISE, START = 100, 200
"""Purposes of random draws: each has draws of its own."""


class BayesianSettings(interface.RatingSettings):
    """Settings of the Gibbs sampler.

    Attributes:
        features: features behind a rating; see the module.
        dims: factors per feature, beside its bias.
        samples: sweeps whose predictions are averaged.
        burn_in: sweeps before them.
        keep: number of samples, evenly spread, which the model stores to predict other pairs than the
            watched ones.
        init_sd: standard deviation of the factors at the start.
        mean_strength: weight of the prior mean 0, counted in rows.
        degrees: degrees of freedom in the Wishart prior beyond the length of a row.
        precision: the Wishart prior's scale matrix is this times the unit matrix.
        noise_shape: shape of the Gamma prior on the noise's precision.
        noise_rate: its rate. All priors are in units of the ratings' standard deviation, so no rating
            scale, 0 to 1 or 0 to 1000, needs settings of its own.
    """

    kind: Literal["bayesian_mf"] = "bayesian_mf"
    features: Literal["u,i", "u,i,t", "u,i,iu", "u,i,iu,ii", "u,i,t,iu", "u,i,t,iu,ii"] = "u,i"
    dims: Annotated[int, Field(ge=1, le=1024)] = 32
    samples: Annotated[int, Field(ge=1)] = 128
    burn_in: Annotated[int, Field(ge=0)] = 8
    keep: Annotated[int, Field(ge=0)] = 16
    init_sd: Annotated[float, Field(ge=0)] = 0.1
    mean_strength: Annotated[float, Field(gt=0)] = 2.0
    degrees: Annotated[float, Field(ge=0)] = 0.0
    precision: Annotated[float, Field(gt=0)] = 1.0
    noise_shape: Annotated[float, Field(gt=0)] = 0.5
    noise_rate: Annotated[float, Field(gt=0)] = 0.5


class BayesianMfModel(BayesianSettings, interface.RatingModelConfig):
    """Bayesian matrix factorisation by Gibbs sampling.

    Its `features` make it timeSVD, SVD++ or a similar model.
    """

    kind: Literal["bayesian_mf"]


@dataclass(frozen=True)
class BayesianModel:
    """Predicts ratings by a mean over stored Gibbs samples.

    Each sample has factors for users, items and days, with the sums of their bags.

    Attributes:
        mean: mean of all training ratings.
        spread: their standard deviation, the unit in which factors and biases predict.
        scale: (2,) lowest and highest rating.
        days_t: (t,) days with training ratings, since 1970; length 0 in a model without days.
        factors_u: (samples, users + 1, d) the last row is for unseen users; likewise items and days.
        biases_u: (samples, users + 1); likewise items and days.
    """

    mean: float
    spread: float
    scale: Floats
    days_t: Ints
    factors_u: Floats32
    biases_u: Floats32
    factors_i: Floats32
    biases_i: Floats32
    factors_t: Floats32
    biases_t: Floats32

    kind: ClassVar[str] = "bayesian_samples"

    def predict(self, users_p: Ints, items_p: Ints, times_p: Ints | None = None) -> Floats:
        """Return (p,) the mean over the stored samples.

        Raises DataError if no samples are stored, or if times are missing.
        """
        if not len(self.biases_u):
            raise DataError("the model has kept no samples", "set keep, or watch the pairs during the fit")
        users = interface.indices_with_unseen(users_p, self.biases_u.shape[1] - 1, "user")
        items = interface.indices_with_unseen(items_p, self.biases_i.shape[1] - 1, "item")
        pairs = _PredictedPairs(
            users, items, day_rows(self.days_t, times_p, len(users)), (self.mean, self.spread), self.scale
        )
        total = sum(pairs.scores(self._sides(n)) for n in range(len(self.biases_u)))
        return np.asarray(total / len(self.biases_u))

    def score(self, users_b: Ints, items_i: Ints) -> Floats:
        """Return (b, i) the unclipped mean over the stored samples.

        Clipped scores would tie. The model has no days (`check_ranking`).
        """
        sides = self.factors_u, self.biases_u, self.factors_i, self.biases_i
        return self.mean + self.spread * gibbs.mean_products(sides, users_b, items_i)

    def _sides(self, n: int) -> list[FactorSide]:
        factors = self.factors_u, self.factors_i, self.factors_t
        biases = self.biases_u, self.biases_i, self.biases_t
        return [FactorSide(f[n], b[n]) for f, b in zip(factors, biases, strict=True)]


@dataclass
class SamplerSide:
    """State of one side (users, items or days) in the sampler.

    Attributes:
        own: factors and biases of its rows.
        fixed: sums its bags add; a one-row table if it has no bags.
        merged: `own` and `fixed` together, as other sides use them.
        ratings: ratings sorted by this side.
        a_r: (r,) row of each of these ratings.
        rated: rows with ratings.
        bag: its bags, if any.
        z_jk: (j, 1 + d) factors of the bags' features.
    """

    own: FactorSide
    fixed: FactorSide
    merged: FactorSide
    ratings: Grouped
    a_r: Ints32
    rated: Ints
    bag: gibbs.Bag | None = None
    z_jk: Floats = field(default_factory=lambda: np.zeros((0, 0)))


class Sampler:
    """The Markov chain's state; `sweep` makes one step."""

    def __init__(self, train: Ratings, settings: BayesianSettings, seed: int, threads: int = 1) -> None:
        self.settings, self.seed, self.threads = settings, as_unsigned(seed), threads
        self.length, self.alpha = pad_dims(settings.dims), 1.0
        self.mean = float(train.ratings_r.mean())
        self.spread = float(train.ratings_r.std()) or 1.0
        self.nothing = _zeros(1, self.length)
        self.parts = self._parts(train, seed)
        for part in self.parts:
            self._merge(part)

    def sweep(self, number: int) -> None:
        """Draw each side's prior, rows and bags, then the noise."""
        for at, part in enumerate(self.parts):
            self._draw_rows(part, at, number)
            if part.bag is not None:
                self._draw_bags(part, part.bag, at, number)
        self._draw_noise(number)

    def sides(self) -> list[FactorSide]:
        """Return users, items and days as they predict ratings."""
        merged = [part.merged for part in self.parts]
        return merged if len(merged) == 3 else [*merged, self.nothing]

    def prior(self) -> gibbs.NormalWishart:
        """Return the prior on mean and precision of a side's rows."""
        k, settings = self.settings.dims + 1, self.settings
        return gibbs.NormalWishart(
            np.zeros(k), settings.mean_strength, np.eye(k) / settings.precision, settings.degrees + k
        )

    def residuals(self, part: SamplerSide, others: list[FactorSide]) -> Floats:
        """Return (r,) residuals in units of the spread, in `part`'s order."""
        out = np.zeros(len(part.a_r))

        def work(start: int) -> None:
            _scores([part.merged, *others], (part.a_r, part.ratings.b_r, part.ratings.c_r), start, out)

        blocks.in_threads(work, range(0, len(out), CHUNK), self.threads)
        return part.ratings.targets_r - out

    def others(self, at: int) -> list[FactorSide]:
        """Return the current state of the two other sides."""
        sides = self.sides()
        return sides[:at] + sides[at + 1 :]

    def _draw_rows(self, part: SamplerSide, at: int, number: int) -> None:
        rows = gibbs.row_sums(part.own.factors, part.own.biases, part.rated, self.settings.dims)
        mean, precision = self._draw_prior(len(part.rated), *rows, at * PURPOSES + ROWS_PRIOR, number)
        unrated = np.ones(len(part.own.biases), bool)
        unrated[part.rated] = False
        part.own.factors[:, : self.settings.dims][unrated] = mean[1:]
        part.own.biases[unrated] = mean[0]
        prior = blocks.make_prior(mean, precision, self.alpha, self.length)
        key = blocks.DrawKey(self.seed, at * PURPOSES + ROWS, number)
        b, c = self.others(at)
        blocks.draw_side(
            part.own, part.fixed, b, c, part.ratings, prior=prior, key=key, threads=self.threads
        )
        self._merge(part)

    def _draw_bags(self, part: SamplerSide, bag: gibbs.Bag, at: int, number: int) -> None:
        used = np.flatnonzero(np.diff(bag.starts_j))
        z_nk = part.z_jk[used]
        rows = gibbs.row_sums(z_nk[:, 1:], z_nk[:, 0], np.arange(len(z_nk)), self.settings.dims)
        drawn = self._draw_prior(len(used), *rows, at * PURPOSES + BAGS_PRIOR, number)
        prior, draw = (
            gibbs.BagPrior(*drawn, self.alpha),
            gibbs.FeatureDraw(self.seed, at * PURPOSES + BAGS, number),
        )
        others = self.others(at)
        e_r = self.residuals(part, others)
        for k in range(self.settings.dims + 1):
            o_r = _other_factors(part, others, k)
            gibbs.draw_bag_factor(bag, part.ratings.starts_a, o_r, e_r, part.z_jk, k, prior, draw)
        self._merge(part)

    def _draw_prior(
        self, count: int, sums: Floats, products: Floats, what: int, number: int
    ) -> tuple[Floats, Floats]:
        state = np.uint64(draw_state(self.seed, what, number, 0))
        return gibbs.draw_normal_wishart(gibbs.update_prior(self.prior(), count, sums, products), state)

    def _draw_noise(self, number: int) -> None:
        e_r = self.residuals(self.parts[0], self.others(0))
        shape = self.settings.noise_shape + len(e_r) / 2
        rate = self.settings.noise_rate + float(np.square(e_r).sum()) / 2
        if not math.isfinite(rate):
            raise DataError(
                f"the chain left all finite numbers in sweep {number + 1}",
                "look for ratings far from all others, or give more init_sd or precision",
            )
        self.alpha = gibbs.draw_gamma(shape, rate, np.uint64(draw_state(self.seed, NOISE, number, 0)))

    def _merge(self, part: SamplerSide) -> None:
        """Compute w + bag bias + v . s and v + s; nothing without bags."""
        if part.bag is None:
            return
        dims, rows = self.settings.dims, slice(0, len(part.bag.weight_a))
        part.fixed.factors[rows, :dims], part.fixed.biases[rows] = gibbs.bag_sums(part.bag, part.z_jk)
        part.merged.factors[:] = part.own.factors + part.fixed.factors
        product = np.einsum("ad,ad->a", part.own.factors, part.fixed.factors)
        part.merged.biases[:] = part.own.biases + part.fixed.biases + product

    def _parts(self, train: Ratings, seed: int) -> list[SamplerSide]:
        features = self.settings.features.split(",")
        keys, sizes = [train.users_r, train.items_r], [train.n_users, train.n_items]
        if "t" in features:
            days = find_days(train, self.settings.features)
            keys.append(np.searchsorted(days, to_days(train.times_r)))
            sizes.append(len(days))
        targets_r = ((train.ratings_r - self.mean) / self.spread).astype(np.float32)
        parts = [self._part(keys, sizes, at, targets_r, seed) for at in range(len(keys))]
        for at, name in enumerate(("iu", "ii")):
            if name in features:
                self._attach_bag(
                    parts[at], gibbs.make_bag(keys[at], keys[1 - at], sizes[at], sizes[1 - at]), at, seed
                )
        return parts

    def _part(
        self, keys: list[Ints], sizes: list[int], at: int, targets_r: Floats32, seed: int
    ) -> SamplerSide:
        others = [key.astype(np.int32) for n, key in enumerate(keys) if n != at]
        factors = zero_rows(sizes[at] + 1, self.length)
        shape, sd = (sizes[at], self.settings.dims), self.settings.init_sd
        factors[:-1, : self.settings.dims] = normal_table(shape, sd, seed, START + at)
        own = FactorSide(factors, np.zeros(sizes[at] + 1, np.float32))
        ratings = blocks.group(keys[at], sizes[at], others, targets_r)
        a_r = keys[at][ratings.order_r].astype(np.int32)
        return SamplerSide(own, self.nothing, own, ratings, a_r, np.unique(keys[at]))

    def _attach_bag(self, part: SamplerSide, bag: gibbs.Bag, at: int, seed: int) -> None:
        """Give a side's rows their bags."""
        part.bag, features = bag, len(bag.starts_j) - 1
        part.z_jk = np.zeros((features, self.settings.dims + 1))
        shape, sd = (features, self.settings.dims), self.settings.init_sd
        part.z_jk[:, 1:] = normal_table(shape, sd, seed, START + 10 + at, np.float64)
        part.fixed, part.merged = (_zeros(len(part.own.biases), self.length) for _ in range(2))


def fit_bayesian(
    train: Ratings, settings: BayesianSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Sample, average predictions of watched pairs, store some samples.

    Averages are over all samples. Raises DataError if the features need times and the ratings have none.
    """
    sampler = Sampler(train, settings, seed, threads)
    days_t = (
        find_days(train, settings.features) if "t" in settings.features.split(",") else np.zeros(0, int)
    )
    follower = _RunningMean(train, watched, days_t, sampler)
    stored, wanted = [], set(choose_samples(settings))
    for number in range(settings.burn_in + settings.samples):
        sampler.sweep(number)
        if number >= settings.burn_in:
            follower.add(sampler)
        if number - settings.burn_in in wanted:
            sides = sampler.sides()
            stored.append(
                [x for s in sides for x in (s.factors[:, : settings.dims].copy(), s.biases.copy())]
            )
    tables = [np.stack(tables) for tables in zip(*stored, strict=True)]
    if not stored:
        tables = [np.zeros((0, 1, 1) if n % 2 == 0 else (0, 1), np.float32) for n in range(6)]
    model = BayesianModel(sampler.mean, sampler.spread, np.array(train.scale), days_t, *tables)
    return Fit(model, np.array(follower.rmse_s), follower.mean(), settings.burn_in + settings.samples)


def check_ranking(settings: BayesianSettings, model: str) -> None:
    """Raise ConfigError for models with days or without samples."""
    if "t" in settings.features.split(","):
        raise ConfigError(
            f"model {model}: features '{settings.features}' need a day, and a ranking has none",
            f"features: {settings.features.replace(',t', '')}, or evaluation.task: rating",
        )
    if not settings.keep:
        raise ConfigError(f"model {model}: keep: 0 stores no sample to rank by", "keep: 16")


def choose_samples(settings: BayesianSettings) -> Iterator[int]:
    """Return the numbers of stored samples, evenly spread to the last."""
    keep = min(settings.keep, settings.samples)
    return (settings.samples * (n + 1) // keep - 1 for n in range(keep))


def find_days(ratings: Ratings, features: str) -> Ints:
    """Return the days with ratings, since 1970, ascending."""
    if ratings.times_r is None:
        raise DataError(
            f"the features {features} need times, and this log has no timestamps",
            f"use {','.join(f for f in features.split(',') if f != 't')}, or a log with event times",
        )
    return np.unique(to_days(ratings.times_r))


def to_days(times_p: Ints | None) -> Ints:
    """Convert seconds to whole days since 1970."""
    return np.asarray(times_p, np.int64) // SECONDS_A_DAY


def day_rows(days_t: Ints, times_p: Ints | None, pairs: int) -> Ints:
    """Return each pair's row in `days_t`, unknown days last."""
    if not len(days_t):
        return np.zeros(pairs, np.int64)
    if times_p is None:
        raise DataError("this model knows the day of a rating", "give the times of the pairs to predict")
    days_p = to_days(times_p)
    rows = np.searchsorted(days_t, days_p)
    known = (rows < len(days_t)) & (days_t[np.minimum(rows, len(days_t) - 1)] == days_p)
    return np.where(known, rows, len(days_t))


class _PredictedPairs:
    """Pairs whose ratings every sample predicts."""

    def __init__(
        self, users_p: Ints, items_p: Ints, days_p: Ints, unit: tuple[float, float], scale: Floats
    ) -> None:
        self.keys = tuple(key.astype(np.int32) for key in (users_p, items_p, days_p))
        (self.mean, self.spread), self.scale = unit, scale

    def scores(self, sides: list[FactorSide], threads: int = 1) -> Floats:
        """Return (p,) one sample's clipped predictions."""
        out = np.zeros(len(self.keys[0]))
        sides = [FactorSide(_whole_vectors(side.factors), side.biases) for side in sides]
        blocks.in_threads(lambda at: _scores(sides, self.keys, at, out), range(0, len(out), CHUNK), threads)
        return np.clip(self.mean + self.spread * out, self.scale[0], self.scale[1])


class _RunningMean:
    """Averages the watched pairs' predictions and tracks the error."""

    def __init__(self, train: Ratings, watched: Ratings | None, days_t: Ints, sampler: Sampler) -> None:
        self.watched, self.count, self.rmse_s = watched, 0, list[float]()
        self.total = np.zeros(0 if watched is None else len(watched))
        if watched is not None:
            users = interface.indices_with_unseen(watched.users_r, train.n_users, "user")
            items = interface.indices_with_unseen(watched.items_r, train.n_items, "item")
            days = day_rows(days_t, watched.times_r, len(watched))
            self.pairs = _PredictedPairs(
                users, items, days, (sampler.mean, sampler.spread), np.array(train.scale)
            )

    def add(self, sampler: Sampler) -> None:
        """Add one more sample's predictions."""
        self.count += 1
        if self.watched is not None:
            self.total += self.pairs.scores(sampler.sides(), sampler.threads)
            self.rmse_s.append(interface.rmse(self.mean(), self.watched.ratings_r))

    def mean(self) -> Floats:
        """Return (p,) the mean over the samples so far."""
        return np.asarray(self.total / max(self.count, 1))


def _scores(sides: list[FactorSide], keys: tuple[Ints32, ...], start: int, out: Floats) -> None:
    _fill_scores((sides[0], sides[1], sides[2]), (keys[0], keys[1], keys[2]), start, out)


@compile_kernel
def _fill_scores(
    sides: tuple[FactorSide, FactorSide, FactorSide],
    keys: tuple[Ints32, Ints32, Ints32],
    start: int,
    out: Floats,
) -> None:
    """Sum biases and products of each two sides, for CHUNK pairs."""
    x, y, z = sides
    for p in range(start, min(start + CHUNK, len(out))):
        a, b, c = keys[0][p], keys[1][p], keys[2][p]
        out[p] = np.float64(x.biases[a]) + y.biases[b] + dot_rows(x.factors, a, y.factors, b, 0)
        if len(z.biases) > 1:
            pairs = dot_rows(x.factors, a, z.factors, c, 0) + dot_rows(y.factors, b, z.factors, c, 0)
            out[p] += np.float64(z.biases[c]) + pairs


def _other_factors(part: SamplerSide, others: list[FactorSide], k: int) -> Floats:
    """Return (r,) o_r, the factors beside number k of bag features."""
    if k == 0:
        return np.ones(len(part.a_r))
    b, c = (np.ascontiguousarray(side.factors[:, k - 1], np.float64) for side in others)
    own = np.ascontiguousarray(part.own.factors[:, k - 1], np.float64)
    return _sum_sides((own, b, c), (part.a_r, part.ratings.b_r, part.ratings.c_r))


@compile_kernel
def _sum_sides(sides: tuple[Floats, Floats, Floats], keys: tuple[Ints32, Ints32, Ints32]) -> Floats:
    """Return (r,) the sum of one number per side."""
    (x, y, z), (a_r, b_r, c_r) = sides, keys
    out = np.empty(len(a_r))
    for r in range(len(out)):
        out[r] = x[a_r[r]] + y[b_r[r]] + z[c_r[r]]
    return out


def _zeros(rows: int, length: int) -> FactorSide:
    return FactorSide(zero_rows(rows, length), np.zeros(rows, np.float32))


def _whole_vectors(factors: Floats32) -> Floats32:
    """Return rows as `simd` reads them: contiguous and padded."""
    more = pad_dims(factors.shape[1]) - factors.shape[1]
    return np.ascontiguousarray(np.pad(factors, ((0, 0), (0, more))) if more else factors)
