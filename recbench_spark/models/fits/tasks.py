"""One fit as a task: arguments, work, and resulting row.

A task depends on its arguments and the log alone, so it gives the same bits on any host and beside any
other task. It writes its files, and its row of `fits` last, into a folder named by its hash. A second
attempt reads the row there and does nothing.
"""

from __future__ import annotations

import json
import resource
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.core import sums
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.errors import DataError, DivergedError
from recbench_spark.metrics.kernels import predictions as values
from recbench_spark.models.fits.logs import KnownIds, RatingLog, SharedRatingLog, as_text
from recbench_spark.models.rating import registry
from recbench_spark.models.rating.draws import draw_held_out
from recbench_spark.models.rating.interface import Fit, Ratings
from recbench_spark.models.rating.sgd import RatingFactorModel
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.runtime.failures import describe_with_trace
from recbench_spark.storage.leases import hold_folder_lease
from recbench_spark.storage.objects import read_bytes, write_bytes, write_table

Row = dict[str, Any]

VALIDATION = 7919
"""Added to a search's seed when validation rows are drawn, so this draw equals no other one."""

FIT_FILES = "fit_files"
"""Warehouse folder for fits' files, one folder per fit."""

VALIDATION_PART = "validation"
MODEL, PREDICTIONS, USERS, ITEMS, ROW = (
    "model.npz", "predictions.parquet", "users.parquet", "items.parquet", "fit.json",
)  # fmt: skip
"""Names of the files in a fit's folder."""


@dataclass(frozen=True)
class FitTask:
    """A model's fit with one setting, fold and seed.

    Attributes:
        fit_id: hash over everything the numbers depend on.
        model: name in the benchmark file.
        settings: settings of the learner, with `kind`.
        seed: seed of all random draws.
        fold: number of the held-out fold; None if the log's parts say what is held out.
        train: parts to learn from.
        watched: parts to predict without learning from them; empty if a share of `train` is predicted.
        share: share of training rows held out by a hash for validation; 0: none.
        share_seed: seed of that hash.
        threshold: lowest rating of a pair for learners of pairs; None: every rating above 0.
        threads: number of threads for the fit; they change no bit.
        folder: for the files of the fit; None: the task returns its row and writes nothing.
        stored: that folder as the table `fits` stores it, relative to its root.
        whole: true if the model has rows for all users and items in the log, held-out rows included.
        keep: true if the model and its predictions are written, beside the row.
    """

    fit_id: str
    model: str
    settings: dict[str, Any]
    seed: int
    fold: int | None
    train: tuple[str, ...]
    watched: tuple[str, ...]
    share: float = 0.0
    share_seed: int = 0
    threshold: float | None = None
    threads: int = 1
    folder: str | None = None
    keep: bool = True
    stored: str = FIT_FILES
    whole: bool = False

    @property
    def kind(self) -> str:
        """Kind of the learner."""
        return str(self.settings["kind"])

    @property
    def settings_json(self) -> str:
        """The settings as rows of `fits` name them."""
        return json.dumps(name_settings(self.settings, self.whole), sort_keys=True)

    @property
    def dims(self) -> int | None:
        """Number of factors, if the learner has any."""
        dims = self.settings.get("dims", self.settings.get("rank"))
        return None if dims is None else int(dims)

    def place(self, name: str) -> str:
        """Return the path or URI of a fit's file."""
        return f"{self.folder}/{self.fit_id}/{name}"

    @property
    def files(self) -> str | None:
        """The fit's folder as its row stores it.

        None if only the row is stored.
        """
        return f"{self.stored}/{self.fit_id}" if self.folder is not None and self.keep else None


def name_settings(settings: dict[str, Any], whole: bool) -> dict[str, Any]:
    """Return settings which tell fits on all items from others.

    The others count trained items alone.
    """
    return {**settings, "items": "catalogue"} if whole else settings


def fit_one(task: FitTask, files: SharedRatingLog) -> Row:
    """Return the row of a fit made now or earlier.

    A failure raises nothing, because it is a row too. If another run is making the same fit in a common
    folder, this task waits for it.
    """
    with hold_folder_lease(task.folder, task.fit_id, lambda: read_earlier_row(task) is not None):
        return read_earlier_row(task) or _make_row(task, files.open)


def _make_row(task: FitTask, open_log: Callable[[], RatingLog]) -> Row:
    started, facts = datetime.now(UTC), _facts(task)
    with measure_resources(facts):
        try:
            log = open_log()
            facts |= run_fit(task, log) | {"status": "succeeded"}
        except Exception as error:  # keeps the task's seconds and memory; ends no other task
            diverged = isinstance(error, DivergedError | FloatingPointError)
            facts |= {"status": "diverged" if diverged else "failed", "error": _describe_error(error)}
    facts |= {"started_at": started.isoformat(), "finished_at": datetime.now(UTC).isoformat()}
    if task.folder is not None and facts["status"] != "failed":
        write_bytes(task.place(ROW), json.dumps(facts).encode())
    return facts


def run_fit(task: FitTask, log: RatingLog) -> Row:
    """Fit, measure and write files; return a row's numbers.

    Raises:
        DataError: an empty part, ratings outside the scale, or ratings the learner cannot take.
        DivergedError: the fit gave numbers which are not finite.
    """
    train_r, watched_r = choose_rows(task, log)
    if not len(train_r) or not len(watched_r):
        empty = ", ".join(task.watched if len(train_r) else task.train) or VALIDATION_PART
        raise DataError(
            f"part {empty} has no rows", "use fewer folds, another share, or a log with more rows"
        )
    known = find_known(task, log, watched_r)
    train, watched = log.ratings(train_r, known), log.ratings(watched_r, known)
    settings = registry.make_settings(task.settings, f"model {task.model}")
    fit = registry.fit(train, settings, task.seed, watched, task.threads)
    if not np.isfinite(fit.watched_p).all():
        raise DivergedError("predictions are not finite", "lower the learning rates")
    if task.folder is not None and task.keep:
        _write(task, log, fit, train, watched_r, known=known)
    parts, users_p = (log.arrays[name][watched_r] for name in ("parts", "users"))
    predicted = fit.watched_p, watched.ratings_r, users_p
    by_part = {
        log.parts[code]: measure_errors(*(column[parts == code] for column in predicted))
        for code in np.unique(parts)
    }
    whole = measure_errors(*predicted)
    curve = [float(x) for x in fit.rmse_s]
    return {
        "n_train": len(train), "n_watched": len(watched), "steps": fit.steps, "rmse_by_step": curve,
        "rmse": whole["rmse"], "mae": whole["mae"],
        "rmse_by_part": {part: error["rmse"] for part, error in by_part.items()},
    }  # fmt: skip


def choose_rows(task: FitTask, log: RatingLog) -> tuple[Ints, Ints]:
    """Return the row numbers to learn from, and to predict.

    No row is in both.
    """
    train_r = log.find_rows(task.train)
    known = None if task.whole else log.list_known(train_r)
    if known is not None:
        train_r = log.sort_rows(train_r, known)
    if registry.learns_relevant(task.settings):
        ratings_r = log.arrays["ratings"][train_r]
        train_r = train_r[mark_relevant(ratings_r, task.threshold)]
    if not task.share:
        return train_r, log.find_rows(task.watched)
    out = draw_held_out(log.ratings(train_r, known), task.share, task.share_seed + VALIDATION)
    return train_r[~out], train_r[out]


def find_known(task: FitTask, log: RatingLog, watched_r: Ints) -> KnownIds | None:
    """Return the users and items in the training rows.

    Relevant or not, they count; None: the whole log's.
    """
    if task.whole:
        return None
    return log.list_known(np.setdiff1d(log.find_rows(task.train), watched_r, assume_unique=True))


def measure_errors(predicted_p: Floats, ratings_p: Floats, users_p: Ints) -> dict[str, float]:
    """Return rmse and mae, summed as in a night.

    Sums are exact by user, then over users. Users are the log's: in a fit, all users unknown to training
    share one number.
    """
    return name_errors(sum_errors(predicted_p, ratings_p, users_p))


def sum_errors(predicted_p: Floats, ratings_p: Floats, users_p: Ints) -> sums.Sums:
    """Return the sums behind errors.

    Sums over other users can be added. Rows are in the order of users.
    """
    starts = np.flatnonzero(np.diff(users_p, prepend=-1))
    offsets = np.append(starts, len(users_p)).astype(np.int64)
    return sums.exact_sums(values.user_sums(offsets, predicted_p, ratings_p))


def name_errors(total: sums.Sums) -> dict[str, float]:
    """Return rmse and mae from the sums over all users."""
    metrics = values.from_totals(total.nearest())
    return {name: float(metrics[name]) for name in ("rmse", "mae")}


# ------------------------------------------------------------------------------------------ files


def _write(
    task: FitTask, log: RatingLog, fit: Fit, train: Ratings, watched_r: Ints, *, known: KnownIds | None
) -> None:
    """Write the model, its predictions, and trained sides' vectors.

    Users and items whose training rows are not learnt from have zero vectors in the model, for predictions
    of pairs. In a ranking zeros would look like learnt vectors, so these users get no list.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = registry.save(fit.model, Path(folder) / MODEL)
        write_bytes(task.place(MODEL), place.read_bytes())
    columns = log.with_ids(watched_r) | {"prediction": pa.array(fit.watched_p)}
    write_table(task.place(PREDICTIONS), pa.table(columns))
    if isinstance(fit.model, RatingFactorModel):
        model = fit.model
        sides = {
            USERS: ("user_id", train.users_r, model.p_ud, model.bias_u),
            ITEMS: ("item_id", train.items_r, model.q_id, model.bias_i + model.mean),
        }
        numbers = (None, None) if known is None else known
        for (file, (name, key_r, rows, biases)), number in zip(sides.items(), numbers, strict=True):
            seen = np.unique(key_r)
            ids = log.arrays[f"{name}s"][seen if number is None else number[seen]]
            write_table(task.place(file), name_vectors(as_text(ids), rows[seen], biases[seen], name))


def name_vectors(ids: pa.Array, rows: npt.NDArray[Any], biases: npt.NDArray[Any], name: str) -> pa.Table:
    """Return ids as column `name`, with vector and bias.

    Vectors are (n, d), biases (n,).
    """
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    vectors = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(rows).ravel()))
    return pa.table({name: ids, "vector": vectors, "bias": pa.array(biases)})


def read_earlier_row(task: FitTask) -> Row | None:
    """Return an earlier attempt's row.

    None if it left none, or an incomplete one.
    """
    content = read_bytes(task.place(ROW)) if task.folder is not None else None
    with suppress(ValueError, TypeError):
        row = json.loads(content) if content else {}
        if row.get("files") or not task.keep or row.get("status") == "diverged":
            now = {"files": task.files} if row.get("files") else {}  # older versions wrote an absolute path
            return {**row, "model": task.model, **now} if row else None
    return None


# ------------------------------------------------------------------------------------- facts of a row


def _facts(task: FitTask) -> Row:
    fields = asdict(task)
    row = {name: fields[name] for name in ("fit_id", "model", "seed", "fold", "threads")}
    parts = [VALIDATION_PART] if task.share else list(task.watched)
    learner = {"kind": task.kind, "dims": task.dims, "settings_json": task.settings_json, "parts": parts}
    return row | learner | {"files": task.files, "host": socket.gethostname()}


def _describe_error(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "out of memory\n  hint: use fewer dims, fewer fits at once, or a larger machine"
    return describe_with_trace(error)


@contextmanager
def measure_resources(facts: Row) -> Iterator[None]:
    """Add wall seconds, CPU seconds and peak memory to the facts.

    CPU seconds count all threads; memory is the process's.
    """
    with suppress(OSError):  # Linux resets the peak: a worker makes one fit after another
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    seconds, cpu_seconds = time.monotonic(), time.process_time()
    yield
    facts["seconds"] = time.monotonic() - seconds
    facts["cpu_seconds"] = time.process_time() - cpu_seconds
    facts["peak_bytes"] = peak_bytes()


def peak_bytes() -> int:
    """Return this process's peak resident memory since the last reset.

    Mapped files count.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
