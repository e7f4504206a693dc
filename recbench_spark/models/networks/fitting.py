"""Train a model by gradients: checkpoints, early stopping, several processes.

Minibatches are made ahead. All draws are hashes of seed, epoch and step, and a checkpoint holds weights,
optimiser state and current step. So a killed fit continues to the same bits (on one CPU device with as many
threads). On a GPU the module, optimiser and minibatches are on the device, and the module is back on the
CPU at the end. Several processes share each minibatch: losses are sums over examples, and gradients are
added and divided by the examples of all.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from recbench_spark.core.arrays import Ints
from recbench_spark.core.hashing import stream
from recbench_spark.errors import DataError
from recbench_spark.models.networks.devices import choose_device, move_batch
from recbench_spark.models.networks.settings import TrainingPlan
from recbench_spark.models.rating.draws import permutation
from recbench_spark.storage.publish import replace_bytes


class Step(NamedTuple):
    """A place in a fit: epoch (from 1), step (from 0).

    `size` is the minibatch's number of examples over all processes; 0: as many as this process has.
    """

    epoch: int
    step: int
    size: int = 0


class Task(Protocol):
    """The input to `fit`: a module, examples, a loss, a score."""

    @property
    def module(self) -> nn.Module:
        """Return the model."""

    @property
    def examples(self) -> int:
        """Return the number of examples."""

    def batch(self, at: Step, row_b: Ints, seed: int) -> Any:
        """Make a minibatch, in another thread than the computing one.

        Args:
            at: place in the fit.
            row_b: (b,) examples, this process's share.
            seed: seed of the minibatch's draws, equal in all processes.
        """

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the summed loss over a minibatch's examples.

        Tensors are on the module's device.
        """

    def worth(self) -> float:
        """Return the model's validation score; larger is better.

        Any device may be used. NaN means there is no validation part.
        """


class Watch(NamedTuple):
    """A score on test rows after each epoch, which chooses nothing.

    A task has it in `watch`, or None.

    Attributes:
        measure: name of the score.
        test: returns the current score on test rows; NaN: there are none.
    """

    measure: str
    test: Callable[[], float]


class Shard(NamedTuple):
    """One process's share of each minibatch.

    Attributes:
        rank: number of the process, from 0.
        processes: number of processes.
        begin: begin of its share, between 0 and 1.
        end: end of its share.
    """

    rank: int = 0
    processes: int = 1
    begin: float = 0.0
    end: float = 1.0

    def rows(self, row_b: Ints) -> Ints:
        """Return this process's rows; all shares together cover a minibatch."""
        return row_b[math.floor(self.begin * len(row_b)) : math.floor(self.end * len(row_b))]


@dataclass(frozen=True)
class EpochResult:
    """An epoch's loss, scores and speed; checkpoints hold them.

    Attributes:
        epoch: number of the epoch, from 1.
        loss: mean loss.
        worth: validation score.
        examples_a_second: speed.
        waited: share of time spent in waiting for minibatches.
        test: score on test rows, where these are watched.
    """

    epoch: int
    loss: float
    worth: float
    examples_a_second: float
    waited: float
    test: float | None = None


@dataclass
class FitResult:
    """A fit's epochs, and the best one by validation score.

    Checkpoints hold its fields.

    Attributes:
        epochs: one after the other.
        best: number of the best epoch; its weights are in the module.
        stopped: reason of the end.
    """

    epochs: list[EpochResult] = field(default_factory=list)
    best: int = 0
    stopped: str = ""

    @property
    def worth(self) -> float:
        """Return the best epoch's validation score."""
        return next((e.worth for e in self.epochs if e.epoch == self.best), -math.inf)

    def on_test(self, measure: str) -> str:
        """Describe the scores on test rows."""
        values = {e.epoch: e.test for e in self.epochs if e.test is not None and not math.isnan(e.test)}
        if not values:
            return "no test rows were watched"
        top = max(values, key=lambda epoch: values[epoch])
        own = f"{values[self.best]:.5f}" if self.best in values else "not watched"
        return (
            f"best epoch by validation {self.best} (test {measure} {own}); best on test would have been "
            f"epoch {top} ({values[top]:.5f}): chosen on test rows, no figure to report"
        )


Report = Callable[[str], None]


def fit(
    task: Task,
    plan: TrainingPlan,
    folder: Path | None = None,
    report: Report = print,
    shard: Shard | None = None,
) -> FitResult:
    """Fit a model; continue from a checkpoint in the folder.

    The module is on the CPU at the end.

    Args:
        task: the model and its examples.
        plan: settings of the training.
        folder: folder for checkpoints; None: none are written.
        report: called with one line for each epoch.
        shard: this process's share, if `torch.distributed` joins several; rank 0 writes.

    Returns:
        The epochs and the best one.

    Raises:
        ConfigError: the plan requires a GPU, and there is none.
        DataError: the loss is not finite any more; the last good checkpoint stays.
    """
    return _Fit(task, plan, folder, report, shard or Shard()).run()


class _Fit:
    def __init__(
        self, task: Task, plan: TrainingPlan, folder: Path | None, report: Report, shard: Shard
    ) -> None:
        self.task, self.plan, self.report, self.shard = task, plan, report, shard
        self.folder, self.device = folder, choose_device(plan.device)
        self.watch: Watch | None = getattr(task, "watch", None)
        task.module.to(self.device)
        self.optimiser = make_optimiser(task.module, plan)
        self.examples = min(plan.examples or task.examples, task.examples)
        self.steps = -(-self.examples // plan.batch)
        self.result, self.at, self.total = FitResult(), Step(1, 0), 0.0
        if task.examples < 1:
            raise DataError("no examples to train on", "use a lower relevance threshold, or another split")

    def run(self) -> FitResult:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._resume()
        while not self.result.stopped:
            if self.at.epoch > self.plan.epochs:
                self.result.stopped = f"{self.plan.epochs} epochs"
                break
            self._run_epoch()
        self._restore_best()
        if self.watch is not None:
            self.report(self.result.on_test(self.watch.measure))
        return self.result

    def _run_epoch(self) -> None:
        start, waited, number = time.monotonic(), 0.0, self.at.epoch
        examples = 0
        batches = prefetch(self._make_batches(), self.plan.ahead)
        while True:
            wait_start = time.monotonic()
            step, size, batch = next(batches, (None, 0, None))
            waited += time.monotonic() - wait_start
            if step is None:
                break
            self._run_step(Step(number, step), size, batch)
            examples += size
        seconds = max(time.monotonic() - start, 1e-9)
        loss, speed = self.total / self.examples, examples / seconds
        worth, test = broadcast_score(self.task, self.shard), None
        if self.watch is not None and self.shard.rank == 0:
            test = self.watch.test()
        result = EpochResult(number, loss, worth, speed, waited / seconds, test)
        self._finish_epoch(result)

    def _make_batches(self) -> Iterator[tuple[int, int, Any]]:
        order = permutation(self.task.examples, self.plan.seed, self.at.epoch)[: self.examples]
        for step in range(self.at.step, self.steps):
            rows = order[step * self.plan.batch : (step + 1) * self.plan.batch].astype(np.int64)
            key = np.uint64(self.at.epoch << 32 | step)
            seed = int(stream(np.uint64(self.plan.seed % 2**64), key) >> np.uint64(2))
            at, own = Step(self.at.epoch, step, len(rows)), self.shard.rows(rows)
            yield step, len(rows), self.task.batch(at, own, seed) if len(own) else None

    def _run_step(self, at: Step, size: int, batch: Any) -> None:
        done = (at.epoch - 1) * self.steps + at.step
        for group in self.optimiser.param_groups:
            group["lr"] = self.plan.learning_rate(done, self.steps)
        self.optimiser.zero_grad()
        own = 0.0  # of a share without examples
        if batch is not None:
            loss = self.task.loss(move_batch(batch, self.device))
            (loss / size).backward()  # type: ignore[no-untyped-call]
            own = float(loss.detach())
        value = sum_gradients(self.task.module, own, self.shard)
        if not math.isfinite(value):
            last = "none was kept" if self.folder is None else f"the last good one is in {self.folder}"
            raise DataError(
                f"the loss is {value} in epoch {at.epoch}, step {at.step}; checkpoint: {last}",
                "use a smaller rate, a longer warm-up, or features without huge numbers",
            )
        self.optimiser.step()
        self.total += value
        if self.plan.every and (at.step + 1) % self.plan.every == 0 and at.step + 1 < self.steps:
            self._save("last", Step(at.epoch, at.step + 1))

    def _finish_epoch(self, result: EpochResult) -> None:
        # Without a validation part the score is NaN, and the last epoch counts as the best.
        better = not result.worth <= self.result.worth
        self.result.epochs.append(result)
        self.result.best = result.epoch if better else self.result.best
        self.total, self.at = 0.0, Step(result.epoch + 1, 0)
        if self.plan.patience and result.epoch - self.result.best >= self.plan.patience:
            self.result.stopped = f"no better for {self.plan.patience} epochs"
        if better:
            self._save("best", self.at)
        self._save("last", self.at)
        best, test = " (best)" if better else "", ""
        if result.test is not None and self.watch is not None:
            test = f", test {self.watch.measure} {result.test:.5f} (watched)"
        self.report(
            f"epoch {result.epoch}: loss {result.loss:.5f}, validation {result.worth:.5f}{best}{test}, "
            f"{result.examples_a_second:,.0f} examples/s, "
            f"{result.waited:.0%} of the time waiting for minibatches"
        )

    # ------------------------------------------------------------------------- checkpoints

    def _save(self, name: str, at: Step) -> None:
        if not all(bool(torch.isfinite(w).all()) for w in self.task.module.parameters()):
            raise DataError(f"weights are no longer finite in epoch {at.epoch}", "use a smaller rate")
        if self.folder is None:
            if name == "best":
                self.best_weights = {
                    key: w.detach().clone() for key, w in self.task.module.state_dict().items()
                }
            return
        if self.shard.rank == 0:
            note = {"at": list(at), "total": self.total.hex(), "found": asdict(self.result)}
            write_checkpoint(self.folder / f"{name}.safetensors", self.task.module, self.optimiser, note)

    def _resume(self) -> None:
        assert self.folder is not None
        path = self.folder / "last.safetensors"
        if not path.exists():
            return
        note = read_checkpoint(path, self.task.module, self.optimiser)
        stored = note["found"]
        self.result = FitResult(
            [EpochResult(**e) for e in stored["epochs"]], stored["best"], stored["stopped"]
        )
        self.at, self.total = Step(*note["at"]), float.fromhex(note["total"])
        self.report(f"resuming at epoch {self.at.epoch}, step {self.at.step}")

    def _restore_best(self) -> None:
        if self.folder is not None:
            if self.shard.processes > 1:
                from torch import distributed  # noqa: PLC0415

                distributed.barrier()
            read_checkpoint(self.folder / "best.safetensors", self.task.module, None)
        elif self.result.epochs:
            self.task.module.load_state_dict(self.best_weights)
        self.task.module.cpu()


def make_optimiser(module: nn.Module, plan: TrainingPlan) -> torch.optim.Optimizer:
    """Make an Adam optimiser (Kingma and Ba 2015).

    For a `sparse` module it updates only a minibatch's rows.
    """
    if getattr(module, "sparse", False):
        return torch.optim.SparseAdam(list(module.parameters()), lr=plan.rate)
    weights = module.parameters()
    return torch.optim.Adam(weights, lr=plan.rate, weight_decay=plan.weight_decay, fused=True)


def sum_gradients(module: nn.Module, loss: float, shard: Shard) -> float:
    """Add all processes' gradients, in place; return their summed losses."""
    if shard.processes == 1:
        return loss
    from torch import distributed  # noqa: PLC0415

    for w in module.parameters():
        dense = torch.zeros_like(w) if w.grad is None else w.grad.to_dense()
        distributed.all_reduce(dense)
        w.grad = dense.to_sparse(1) if getattr(module, "sparse", False) else dense
    total = torch.tensor([loss], dtype=torch.float64)
    distributed.all_reduce(total)
    return float(total)


def broadcast_score(task: Task, shard: Shard) -> float:
    """Return the first process's validation score in all processes.

    So all of them decide alike.
    """
    worth = task.worth() if shard.rank == 0 else math.nan
    if shard.processes == 1:
        return worth
    from torch import distributed  # noqa: PLC0415

    number = torch.tensor([worth], dtype=torch.float64)
    distributed.broadcast(number, 0)
    return float(number)


def prefetch(source: Iterator[Any], size: int) -> Iterator[Any]:
    """Yield an iterator's values while a thread runs it ahead.

    The thread is at most `size` values ahead; its errors are raised here.
    """
    queue: Queue[Any] = Queue(size)
    over = threading.Event()

    def produce() -> None:
        try:
            for one in source:
                queue.put((one, None))
                if over.is_set():
                    return
            queue.put((None, StopIteration()))
        except BaseException as error:
            queue.put((None, error))

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        while True:
            one, error = queue.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield one
    finally:
        over.set()
        while not queue.empty():
            queue.get_nowait()


def write_checkpoint(
    path: Path, module: nn.Module, optimiser: torch.optim.Optimizer, note: dict[str, Any]
) -> None:
    """Write a safetensors checkpoint, completely or not at all.

    The file holds weights, optimiser state and a note.
    """
    from safetensors.torch import save  # noqa: PLC0415

    tensors = {f"weights/{name}": w.detach() for name, w in module.state_dict().items()}
    for number, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{number}/{name}": torch.as_tensor(w) for name, w in state.items()}
    tensors = {name: w.cpu().clone().contiguous() for name, w in tensors.items()}
    content = save(tensors, metadata={"note": json.dumps(note)})
    replace_bytes(path, content)


def read_checkpoint(
    path: Path, module: nn.Module, optimiser: torch.optim.Optimizer | None
) -> dict[str, Any]:
    """Load weights and optimiser state from `write_checkpoint`; return the note.

    Raises:
        DataError: the checkpoint belongs to another model.
    """
    from safetensors import safe_open  # noqa: PLC0415

    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        note: dict[str, Any] = json.loads(file.metadata()["note"])
    weights = {name[8:]: w for name, w in tensors.items() if name.startswith("weights/")}
    try:
        module.load_state_dict(weights)
    except RuntimeError:
        raise DataError(f"{path} is a checkpoint of another model", "remove it to start again") from None
    if optimiser is not None:
        states: dict[int, dict[str, Any]] = {}
        for name, w in tensors.items():
            if name.startswith("optimiser/"):
                _, number, key = name.split("/")
                states.setdefault(int(number), {})[key] = w
        if isinstance(optimiser, torch.optim.SparseAdam):  # it counts in Python's whole numbers
            states = {number: {**s, "step": int(s["step"])} for number, s in states.items()}
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": states, "param_groups": groups})
    return note
