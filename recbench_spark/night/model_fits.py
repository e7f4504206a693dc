"""Fit a night's models, each once under a lease.

Either runner works. Models in one task are fitted side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from recbench_spark.config import ModelConfig
from recbench_spark.core.strict_settings import shorten
from recbench_spark.errors import is_cancelled
from recbench_spark.models.adapters.fit_files import CHECKPOINTS, keep_copies
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, make_adapter
from recbench_spark.models.adapters.rating_models import RatingAdapter, fit_side_by_side
from recbench_spark.models.fits.tasks import FIT_FILES
from recbench_spark.models.rating.interface import RatingModelConfig
from recbench_spark.night.gates import gate_error
from recbench_spark.night.night import BenchmarkNight, check_model_gates
from recbench_spark.runtime.failures import describe_error, is_java_gone
from recbench_spark.runtime.journal import Journal
from recbench_spark.storage.leases import Lease, Report, hold_lease
from recbench_spark.storage.uris import join_uri


def train_model(night: BenchmarkNight, model: ModelConfig, journal: Journal) -> bool:
    """Train and save a model that is trained here.

    Returns True if anything was done.

    Raises:
        GateError: a gate with action `fail` on one of the model's facts; such a model is not ranked.
    """
    adapter, data = make_adapter(model), replace(night.data, journal=journal)
    if not adapter.learns:
        return False
    adapter.require_runner(data)
    with hold_fit(adapter, data) as owned:
        trained = None if owned is None else adapter.fit(owned)
        if owned is not None and trained is not None:
            adapter.save(trained, owned)
    error = gate_error(check_model_gates(night, model))
    if error is not None:
        raise error
    return trained is not None


def fit_models_in_tasks(
    night: BenchmarkNight, models: Sequence[ModelConfig], journal: Journal
) -> frozenset[str]:
    """Fit the night's rating models side by side.

    Returns their names. A single one is left to its run.
    """
    try:
        kinds = [model for model in models if isinstance(model, RatingModelConfig)]
        adapters = [adapter for adapter in map(make_adapter, kinds) if isinstance(adapter, RatingAdapter)]
        todo = [adapter for adapter in adapters if not adapter.is_saved(night.data)]
        if len(todo) < 2:
            return frozenset()
        names = ", ".join(adapter.settings.name for adapter in todo)
        with journal.stage("fits", f"fit {len(todo)} models side by side: {shorten(names)}") as counts:
            fitted = fit_side_by_side(todo, night.data, journal.say)
            counts["trained"] = len(fitted)
    except (Exception, SystemExit) as error:  # each model's own run raises its error again
        if is_cancelled(error) or is_java_gone(error):
            raise
        journal.say(f"they are fitted one after the other, since this failed: {describe_error(error)}")
        return frozenset()
    return frozenset(fitted)


@contextmanager
def hold_fit(adapter: ModelAdapter[ModelConfig], data: SplitData) -> Iterator[SplitData | None]:
    """Yield the split under the lease for a model's fit.

    None is yielded if the model was fitted before. Two nights at once fit a model once: the second one
    waits. A killed fit leaves its checkpoints to the lease's next owner. A remote warehouse and a catalog
    where Spark writes have no leases: there both nights fit, and the append's name keeps one result. On
    object storage, models with checkpoints have a lease there and one on the driver's host, and copies of
    their checkpoints.
    """
    folder = find_lease_folder(adapter, data)
    if folder is None:
        yield None if adapter.is_saved(data) else data
        return
    target, journal = folder / FIT_FILES / adapter.key(data), data.journal or Journal()
    if data.store.folder is not None:
        with hold_lease(target, partial(adapter.is_saved, data), journal.say) as lease:
            yield None if lease is None else replace(data, lease=lease)
        return
    with _hold_shared_fit(adapter, data, target, journal.say) as lease:
        yield None if lease is None else replace(data, lease=lease)


@contextmanager
def _hold_shared_fit(
    adapter: ModelAdapter[ModelConfig], data: SplitData, target: Path, report: Report
) -> Iterator[Lease | None]:
    """Yield this host's lease for a shared fit.

    The fit also has a lease and checkpoints on object storage.
    """
    is_saved = partial(adapter.is_saved, data)
    place = join_uri(data.store.files_root, FIT_FILES, adapter.key(data), SHARED_WORK)
    used = (target.parents[1],)  # others remove what nobody has touched for a day
    with hold_lease(place, is_saved, report) as shared:
        if shared is None:
            yield None
            return
        with hold_lease(target, is_saved, report, used) as lease:
            if lease is None:
                yield None
                return
            with keep_copies(shared, lease.work / CHECKPOINTS, report):
                yield lease


SHARED_WORK = "work"
"""Folder in a fit's folder for its lease and checkpoint copies."""


def find_lease_folder(adapter: ModelAdapter[ModelConfig], data: SplitData) -> Path | None:
    """Find a fit's lease folder; None without a lease."""
    if not adapter.leased:
        return None
    return data.store.lease_folder(adapter.keeps_checkpoints)
