"""Run the study of Simpson's paradox: fit models, search settings.

Models are fitted beside each other. Each process holds a seed's log, and fits and ranks one model at a
time. Ranks are stored by the hash of all they depend on, so a run that was killed repeats no finished
fit. `simpson.py` uses it.

Axes: u users, m models, c columns, s strata.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jobs.studies import loop_estimates, loops
from jobs.studies.loop_estimates import Column, EstimatePlan, ModelEstimates
from recbench_spark.boards.search_spaces import Setting, draw_points
from recbench_spark.boards.settings import SearchSettings
from recbench_spark.config import Benchmark, ModelConfig, digest
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.errors import DataError, RecbenchError
from recbench_spark.models.rating.draws import draw_held_out
from recbench_spark.ranking.kernels.rankings import Rankings
from recbench_spark.sources.log_sources import LOOPS
from recbench_spark.splits.pairs import OPEN_LOOP
from recbench_spark.tuning.search import apply_setting

SIZE = re.compile(r"_\d+$")
"""End of a model's name that is one size in its family."""


def name_family(model: str) -> str:
    """Return a model's family: its name without the size.

    >>> name_family("pmf_linear_10"), name_family("popular")
    ('pmf_linear', 'popular')
    """
    return SIZE.sub("", model)


# ------------------------------------------------------------------------------- one seed


def seed_closed_loop(benchmark: Benchmark, seed: int) -> Benchmark:
    """Return a seed's night on the closed loop.

    The seed draws the split and all models.
    """
    split = benchmark.split.model_copy(update={"seed": seed})
    models = tuple(
        model.model_copy(update={"seed": seed}) if "seed" in type(model).model_fields else model
        for model in benchmark.models
    )
    return benchmark.model_copy(update={"split": split, "models": models})


def seed_open_loop(benchmark: Benchmark, seed: int) -> Benchmark:
    """Return the night on the open loop.

    All closed rows train.
    """
    closed = seed_closed_loop(benchmark, seed)
    dataset = closed.dataset.model_copy(update={"closed_loop": "as_given"})
    split = closed.split.model_copy(update={"holdout": "given", "open_loop": "all"})
    evaluation = closed.evaluation.model_copy(update={"parts": (OPEN_LOOP,), "exposure": None})
    changes = {"dataset": dataset, "split": split, "evaluation": evaluation, "paradoxes": None}
    return closed.model_copy(update=changes)


@dataclass(frozen=True)
class SeedWork:
    """Everything a seed's models share.

    Attributes:
        closed: log of the closed loop, with part `test` held out.
        opened: log of the open loop, which tests what all closed rows taught; None: there is none.
        plan: the estimates.
        folder: place of stored ranks; None: nothing is stored.
    """

    closed: loops.LoopLog
    opened: loops.LoopLog | None
    plan: EstimatePlan
    folder: Path | None = None


def prepare_seed(benchmark: Benchmark, seed: int, folder: Path | None = None) -> SeedWork:
    """Label a seed's loops, fit propensities and cut strata.

    Raises:
        ConfigError: a reader that needs Spark.
    """
    closed_night, open_night = seed_closed_loop(benchmark, seed), seed_open_loop(benchmark, seed)
    closed = loops.label_log(loops.read_rows(closed_night.dataset), closed_night)
    has_open_loop = benchmark.dataset.reader in LOOPS
    opened = loops.label_log(loops.read_rows(open_night.dataset), open_night) if has_open_loop else None
    evaluation = closed_night.evaluation
    counts = closed.count_items(loops.TRAIN, loops.TEST), closed.count_items(loops.TRAIN)
    train_r = closed.select(loops.TRAIN).items_r
    most = loop_estimates.MOST_STRATA if has_open_loop else 2  # without a truth two are enough
    chances = loop_estimates.fit_chances(*counts, train_r, seed)
    cuts = loop_estimates.cut_all_strata(chances, *counts, most)
    plan = EstimatePlan(evaluation.resolve(), evaluation.metrics, evaluation.k, chances, cuts)
    return SeedWork(closed, opened, plan, folder)


class ModelResult(NamedTuple):
    """A model's values in both loops.

    Attributes:
        model: its name.
        truth_uc: each user's values in the open loop; None: there is none.
        closed: estimates from the closed loop.
    """

    model: str
    truth_uc: Floats | None
    closed: ModelEstimates


class ModelFailure(NamedTuple):
    """A model without values, and the reason."""

    model: str
    reason: str


_WORK: list[SeedWork] = []
"""This process's work: one entry."""


def _start_process(work: SeedWork) -> None:
    _WORK[:] = [work]


def study_model(model: ModelConfig) -> ModelResult | ModelFailure:
    """Return a model's values, or its failure.

    A failure is a result too, and ends no other model.
    """
    (work,) = _WORK
    place = None if work.folder is None else work.folder / f"{_name_result(model, work)}.npz"
    if place is not None and place.is_file():
        return load_result(place, model.name)
    try:
        result = _make_result(model, work)
    except RecbenchError as error:
        return ModelFailure(model.name, str(error))
    except Exception:  # another library's code
        return ModelFailure(model.name, traceback.format_exc(limit=-1))
    if place is not None:
        save_result(place, result)
    return result


def _name_result(model: ModelConfig, work: SeedWork) -> str:
    logs = (work.closed, work.opened)
    fits = [
        loops.name_fit(model, log.digest(), part, work.plan.definition.threshold)
        for log, part in zip(logs, (loops.TEST, OPEN_LOOP), strict=True)
        if log
    ]
    return digest("simpson", fits, work.plan.digest(), length=32)


def _make_result(model: ModelConfig, work: SeedWork) -> ModelResult:
    """Fit a model to each loop, rank and estimate."""
    truth_uc = None
    if work.opened is not None:
        rankings = rank_model(model, work.opened, OPEN_LOOP, work)
        truth_uc = loop_estimates.measure_users(rankings, work.plan)
    rankings = rank_model(model, work.closed, loops.TEST, work)
    item_p = work.closed.select(loops.TEST).items_r
    return ModelResult(model.name, truth_uc, loop_estimates.estimate_model(rankings, item_p, work.plan))


def save_result(place: Path, result: ModelResult) -> None:
    """Publish a model's values as one file."""
    arrays = {f"estimate {name}": value for name, value in result.closed.estimates.items()}
    arrays |= {name: getattr(result.closed, name) for name in ModelEstimates._fields[1:]}
    if result.truth_uc is not None:
        arrays["truth_uc"] = result.truth_uc
    loops.save_arrays(place, arrays)


def load_result(place: Path, model: str) -> ModelResult:
    """Read a model's values from `save_result`."""
    with np.load(place, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    prefix = "estimate "
    estimates = {n.removeprefix(prefix): value for n, value in arrays.items() if n.startswith(prefix)}
    by_user = (arrays[name] for name in ModelEstimates._fields[1:])
    return ModelResult(model, arrays.get("truth_uc"), ModelEstimates(estimates, *by_user))


def rank_model(model: ModelConfig, log: loops.LoopLog, part: str, work: SeedWork) -> Rankings:
    """Rank a part; an earlier run's fit is not repeated."""
    name = loops.name_fit(model, log.digest(), part, work.plan.definition.threshold)
    place = None if work.folder is None else work.folder / f"{name}.npz"
    stored = None if place is None else loops.load_rankings(place)
    if stored is not None:
        return stored
    fitted = loops.fit_scorer(model, log.select(loops.TRAIN), work.plan.definition.threshold)
    rankings = loops.rank_part(fitted, loops.list_tested(log, part))
    if place is not None:
        loops.save_arrays(place, {name: getattr(rankings, name) for name in loops.ARRAYS})
    return rankings


def run_models(
    models: Sequence[ModelConfig],
    work: SeedWork,
    processes: int,
    function: Callable[[ModelConfig], Any] = study_model,
) -> Iterator[Any]:
    """Study models beside each other, in order.

    One process means this one.
    """
    if processes == 1:
        _start_process(work)
        yield from map(function, models)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_start_process, initargs=(work,)) as pool:
        yield from pool.map(function, models)


# ------------------------------------------------------------------------------- results of a seed


@dataclass(frozen=True)
class SeedResults:
    """The values of all of a seed's models with any.

    Attributes:
        models: names.
        truth_umc: values in the open loop; None: there is none.
        holdout_umc: plain values in the closed loop.
        stratum_usmc: values in the strata kept by user.
        sizes_us: each user's tested pairs in these strata.
        keys_u, truth_keys_u: user hashes in the closed and the open loop.
        estimates: (m, c) by the estimator's name.
        failures: models without values.
    """

    models: tuple[str, ...]
    truth_umc: Floats | None
    holdout_umc: Floats
    stratum_usmc: Floats
    sizes_us: Ints
    keys_u: Ints
    truth_keys_u: Ints
    estimates: Mapping[str, Floats]
    failures: tuple[ModelFailure, ...]

    @property
    def truth_mc(self) -> Floats:
        """Means over the open loop's users."""
        assert self.truth_umc is not None
        return np.stack([loop_estimates.average(self.truth_umc[:, m]) for m in range(len(self.models))])


def collect_results(outcomes: Sequence[ModelResult | ModelFailure], work: SeedWork) -> SeedResults:
    """Stack the values of all models.

    Raises:
        DataError: no model has values.
    """
    done = [one for one in outcomes if isinstance(one, ModelResult)]
    failures = tuple(one for one in outcomes if isinstance(one, ModelFailure))
    if not done:
        raise DataError(f"no model has values; {failures[0].model}: {failures[0].reason}", "see the models")
    truth = [one.truth_uc for one in done if one.truth_uc is not None]
    none = np.zeros(0, np.int64)
    return SeedResults(
        tuple(one.model for one in done),
        np.stack(truth, axis=1) if truth else None,
        np.stack([one.closed.holdout_uc for one in done], axis=1),
        np.stack([one.closed.stratum_usc for one in done], axis=2),
        done[0].closed.sizes_us,
        loops.list_tested(work.closed, loops.TEST).keys_u,
        none if work.opened is None else loops.list_tested(work.opened, OPEN_LOOP).keys_u,
        {name: np.stack([one.closed.estimates[name] for one in done]) for name in done[0].closed.estimates},
        failures,
    )


# ------------------------------------------------------------------------------- searches


def hold_rows_out(closed: loops.LoopLog, share: float, seed: int) -> loops.LoopLog:
    """Return the training rows alone, a share as part `valid`.

    A search sees no other row.
    """
    train = closed.select(loops.TRAIN)
    held_r = draw_held_out(train, share, seed)
    parts_r = np.where(held_r, loops.PARTS.index(loops.VALID), loops.PARTS.index(loops.TRAIN)).astype(
        np.int64
    )
    rows = (train.users_r, train.items_r, train.ratings_r, parts_r)
    return loops.LoopLog(*rows, closed.user_ids, closed.item_ids, closed.scale)


def try_model(model: ModelConfig) -> float:
    """Return a model's headline on the validation rows.

    NaN stands for a failed fit.
    """
    (work,) = _WORK
    try:
        rankings = rank_model(model, work.closed, loops.VALID, work)
    except Exception:  # another library's code, or a user's
        return float("nan")
    return float(np.nanmean(loop_estimates.measure_users(rankings, work.plan)[:, 0]))


def search_settings(
    models: Sequence[ModelConfig], search: SearchSettings, headline: Column, work: SeedWork, processes: int
) -> dict[str, tuple[Setting, float]]:
    """Find each searched model's best setting and headline.

    Rows of neither test are read.
    """
    by_name = {model.name: model for model in models}
    trials = [
        (name, setting)
        for name, space in search.spaces.items()
        for setting in draw_points(space, search.budget, search.method, search.seed)
    ]
    plan = replace(work.plan, metrics=(headline.metric,), ks=(headline.k,) if headline.k else ())
    inner = SeedWork(hold_rows_out(work.closed, search.share, search.seed), None, plan, work.folder)
    tried = [apply_setting(by_name[name], setting) for name, setting in trials]
    best: dict[str, tuple[Setting, float]] = {}
    for (name, setting), value in zip(trials, run_models(tried, inner, processes, try_model), strict=True):
        if np.isfinite(value) and value > best.get(name, ({}, -np.inf))[1]:
            best[name] = setting, value
    return best


def apply_settings(
    models: Sequence[ModelConfig], best: Mapping[str, tuple[Setting, float]]
) -> tuple[ModelConfig, ...]:
    """Give a family's sizes the settings chosen for one size.

    The settings are those of the searched size.
    """
    by_family = {name_family(name): setting for name, (setting, _) in best.items()}
    return tuple(
        apply_setting(model, by_family[name_family(model.name)])
        if name_family(model.name) in by_family
        else model
        for model in models
    )
