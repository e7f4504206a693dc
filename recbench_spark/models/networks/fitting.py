"""The loop that fits a model by gradients: minibatches made ahead, checkpoints, early stopping, shards.

Everything drawn is a hash of seed, epoch and step, and a checkpoint holds weights, the optimiser's state
and where it was: a fit that was killed goes on to the bits of one that was not (one device of CPU, as many
threads). On a GPU module, optimiser and minibatches lie there, and the module is back on the CPU at the
end. Several processes share each minibatch: losses are sums over examples, gradients are added and
divided by the examples of all.
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
import numpy.typing as npt
import torch
from torch import nn

from recbench_spark.errors import DataError
from recbench_spark.kernels.hashing import stream
from recbench_spark.models.networks.devices import choose_device, move_batch
from recbench_spark.models.networks.plans import TrainingPlan
from recbench_spark.models.rating.shuffling import permutation
from recbench_spark.storage.publish import replace_bytes

Rows = npt.NDArray[np.int64]


class Step(NamedTuple):
    """Where a fit is: epoch from 1, step of the epoch from 0; examples of its minibatch, of all processes
    together (0: as many as a process has)."""

    epoch: int
    step: int
    size: int = 0


class Task(Protocol):
    """What is fitted: a module, its examples, how a minibatch is made, its loss, what it is worth."""

    @property
    def module(self) -> nn.Module:
        """The model."""

    @property
    def examples(self) -> int:
        """Their number."""

    def batch(self, at: Step, row_b: Rows, seed: int) -> Any:
        """A minibatch, made by another thread than the one that computes.

        Args:
            at: where the fit is.
            row_b: (b,) examples, this process's share.
            seed: of what the minibatch draws, the same in all processes.
        """

    def loss(self, batch: Any) -> torch.Tensor:
        """Sum of the loss over a minibatch's examples; its tensors are on the module's device."""

    def worth(self) -> float:
        """What the model is worth on its validation part, wherever the module is: the larger, the better;
        NaN: there is no such part."""


@dataclass(frozen=True)
class WatchedTask:
    """A task whose model is also measured on test rows after each epoch: that is told, and chooses nothing.

    Attributes:
        inner: the task.
        measure: the name of what is measured.
        test: what the module of now is worth on test rows; NaN: there are none.
    """

    inner: Task
    measure: str
    test: Callable[[], float]

    @property
    def module(self) -> nn.Module:
        """See `Task`."""
        return self.inner.module

    @property
    def examples(self) -> int:
        """See `Task`."""
        return self.inner.examples

    def batch(self, at: Step, row_b: Rows, seed: int) -> Any:
        """See `Task`."""
        return self.inner.batch(at, row_b, seed)

    def loss(self, batch: Any) -> torch.Tensor:
        """See `Task`."""
        return self.inner.loss(batch)

    def worth(self) -> float:
        """See `Task`."""
        return self.inner.worth()


class Shard(NamedTuple):
    """One of several processes: its number, how many there are, and its share of each minibatch.

    begin, end: of a minibatch as shares of 1.
    """

    rank: int = 0
    of: int = 1
    begin: float = 0.0
    end: float = 1.0

    def rows(self, row_b: Rows) -> Rows:
        """This process's rows of a minibatch; shares that meet leave no row out."""
        return row_b[math.floor(self.begin * len(row_b)) : math.floor(self.end * len(row_b))]


@dataclass(frozen=True)
class EpochResult:
    """What an epoch told: mean loss, worth, examples a second, share of the time spent waiting; worth on
    test rows where these are watched."""

    epoch: int
    loss: float
    worth: float
    examples_a_second: float
    waited: float
    test: float | None = None


@dataclass
class FitResult:
    """What came of a fit: the epochs, and which was best by the validation part.

    Attributes:
        epochs: one after the other.
        best: number of the best one; its weights are in the module.
        stopped: why it ended.
    """

    epochs: list[EpochResult] = field(default_factory=list)
    best: int = 0
    stopped: str = ""

    @property
    def worth(self) -> float:
        """Of the best epoch."""
        return next((e.worth for e in self.epochs if e.epoch == self.best), -math.inf)

    def on_test(self, measure: str) -> str:
        """What was watched on test rows, in words that say what it is."""
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
    tell: Report = print,
    shard: Shard | None = None,
) -> FitResult:
    """Fit a model; go on from the folder's checkpoint where there is one. Its module ends on the CPU.

    Args:
        task: the model and its examples.
        plan: how.
        folder: of checkpoints; None: none are kept.
        tell: called with a line an epoch.
        shard: of several processes, joined by `torch.distributed`; rank 0 writes.

    Raises:
        ConfigError: the plan asks for a GPU, and there is none.
        DataError: the loss is no number any more; the last good checkpoint is kept.
    """
    return _Fit(task, plan, folder, tell, shard or Shard()).run()


class _Fit:
    """The state of a fit."""

    def __init__(
        self, task: Task, plan: TrainingPlan, folder: Path | None, tell: Report, shard: Shard
    ) -> None:
        self.task, self.plan, self.tell, self.shard = task, plan, tell, shard
        self.folder, self.device = folder, choose_device(plan.device)
        task.module.to(self.device)
        self.optimiser = make_optimiser(task.module, plan)
        self.examples = min(plan.examples or task.examples, task.examples)
        self.steps = -(-self.examples // plan.batch)
        self.found, self.at, self.total = FitResult(), Step(1, 0), 0.0
        if task.examples < 1:
            raise DataError("no examples to train on", "a lower relevance threshold, or another split")

    def run(self) -> FitResult:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._resume()
        while not self.found.stopped:
            if self.at.epoch > self.plan.epochs:
                self.found.stopped = f"{self.plan.epochs} epochs"
                break
            self._epoch()
        self._take_best()
        if isinstance(self.task, WatchedTask):
            self.tell(self.found.on_test(self.task.measure))
        return self.found

    def _epoch(self) -> None:
        begun, waited, number = time.monotonic(), 0.0, self.at.epoch
        examples = 0
        made = prefetch(self._batches(), self.plan.ahead)
        while True:
            asked = time.monotonic()
            step, size, batch = next(made, (None, 0, None))
            waited += time.monotonic() - asked
            if step is None:
                break
            self._step(Step(number, step), size, batch)
            examples += size
        seconds = max(time.monotonic() - begun, 1e-9)
        loss, speed = self.total / self.examples, examples / seconds
        worth, test = broadcast_score(self.task, self.shard), measure_on_test(self.task, self.shard)
        told = EpochResult(number, loss, worth, speed, waited / seconds, test)
        self._ended(told)

    def _batches(self) -> Iterator[tuple[int, int, Any]]:
        order = permutation(self.task.examples, self.plan.seed, self.at.epoch)[: self.examples]
        for step in range(self.at.step, self.steps):
            rows = order[step * self.plan.batch : (step + 1) * self.plan.batch].astype(np.int64)
            key = np.uint64(self.at.epoch << 32 | step)
            seed = int(stream(np.uint64(self.plan.seed % 2**64), key) >> np.uint64(2))
            at, own = Step(self.at.epoch, step, len(rows)), self.shard.rows(rows)
            yield step, len(rows), self.task.batch(at, own, seed) if len(own) else None

    def _step(self, at: Step, size: int, batch: Any) -> None:
        done = (at.epoch - 1) * self.steps + at.step
        for group in self.optimiser.param_groups:
            group["lr"] = self.plan.learning_rate(done, self.steps)
        self.optimiser.zero_grad()
        value = sum_gradients(self.task.module, self._backward(size, batch), self.shard)
        if not math.isfinite(value):
            kept = "none was kept" if self.folder is None else f"the last good one is in {self.folder}"
            raise DataError(
                f"the loss is {value} in epoch {at.epoch}, step {at.step}; checkpoint: {kept}",
                "a smaller rate, a longer warm-up, or features without huge numbers",
            )
        self.optimiser.step()
        self.total += value
        if self.plan.every and (at.step + 1) % self.plan.every == 0 and at.step + 1 < self.steps:
            self._keep("last", Step(at.epoch, at.step + 1))

    def _backward(self, size: int, batch: Any) -> float:
        """Gradients of this process's share, over a minibatch's size; its loss."""
        if batch is None:  # a share without examples
            return 0.0
        loss = self.task.loss(move_batch(batch, self.device))
        (loss / size).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _ended(self, told: EpochResult) -> None:
        better = not told.worth <= self.found.worth  # without a validation part the last epoch is kept
        self.found.epochs.append(told)
        self.found.best = told.epoch if better else self.found.best
        self.total, self.at = 0.0, Step(told.epoch + 1, 0)
        if self.plan.patience and told.epoch - self.found.best >= self.plan.patience:
            self.found.stopped = f"no better for {self.plan.patience} epochs"
        if better:
            self._keep("best", self.at)
        self._keep("last", self.at)
        best, test = " (best)" if better else "", self._on_test(told)
        self.tell(
            f"epoch {told.epoch}: loss {told.loss:.5f}, validation {told.worth:.5f}{best}{test}, "
            f"{told.examples_a_second:,.0f} examples/s, "
            f"{told.waited:.0%} of the time waiting for minibatches"
        )

    def _on_test(self, told: EpochResult) -> str:
        if told.test is None or not isinstance(self.task, WatchedTask):
            return ""
        return f", test {self.task.measure} {told.test:.5f} (watched)"

    # ------------------------------------------------------------------------- checkpoints

    def _keep(self, name: str, at: Step) -> None:
        if not all(bool(torch.isfinite(w).all()) for w in self.task.module.parameters()):
            raise DataError(f"weights are no numbers any more in epoch {at.epoch}", "a smaller rate")
        if self.folder is None:
            if name == "best":
                self.kept = {key: w.detach().clone() for key, w in self.task.module.state_dict().items()}
            return
        if self.shard.rank == 0:
            note = {"at": list(at), "total": self.total.hex(), "found": asdict(self.found)}
            write_checkpoint(self.folder / f"{name}.safetensors", self.task.module, self.optimiser, note)

    def _resume(self) -> None:
        assert self.folder is not None
        path = self.folder / "last.safetensors"
        if not path.exists():
            return
        note = read_checkpoint(path, self.task.module, self.optimiser)
        kept = note["found"]
        self.found = FitResult([EpochResult(**e) for e in kept["epochs"]], kept["best"], kept["stopped"])
        self.at, self.total = Step(*note["at"]), float.fromhex(note["total"])
        self.tell(f"going on at epoch {self.at.epoch}, step {self.at.step}")

    def _take_best(self) -> None:
        if self.folder is not None:
            wait_for_others(self.shard)
            read_checkpoint(self.folder / "best.safetensors", self.task.module, None)
        elif self.found.epochs:
            self.task.module.load_state_dict(self.kept)
        self.task.module.cpu()


def make_optimiser(module: nn.Module, plan: TrainingPlan) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015); of a module that is `sparse`, of the rows in a minibatch alone."""
    if getattr(module, "sparse", False):
        return torch.optim.SparseAdam(list(module.parameters()), lr=plan.rate)
    weights = module.parameters()
    return torch.optim.Adam(weights, lr=plan.rate, weight_decay=plan.weight_decay, fused=True)


def sum_gradients(module: nn.Module, loss: float, shard: Shard) -> float:
    """Gradients added over all processes, in place; the sum of their losses."""
    if shard.of == 1:
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
    """What the model is worth, as the first process has it: all go by one number, whatever hosts round."""
    worth = task.worth() if shard.rank == 0 else math.nan
    if shard.of == 1:
        return worth
    from torch import distributed  # noqa: PLC0415

    number = torch.tensor([worth], dtype=torch.float64)
    distributed.broadcast(number, 0)
    return float(number)


def measure_on_test(task: Task, shard: Shard) -> float | None:
    """What the model is worth on test rows, where these are watched: by the first process, which tells."""
    return task.test() if isinstance(task, WatchedTask) and shard.rank == 0 else None


def wait_for_others(shard: Shard) -> None:
    """Wait for the other processes."""
    if shard.of > 1:
        from torch import distributed  # noqa: PLC0415

        distributed.barrier()


def prefetch(made: Iterator[Any], size: int) -> Iterator[Any]:
    """What an iterator gives, made by a thread of its own, at most so many ahead; its errors are raised
    here."""
    queue: Queue[Any] = Queue(size)
    over = threading.Event()

    def produce() -> None:
        try:
            for one in made:
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
    """Write weights, the optimiser's state and a note to a safetensors file, whole or not at all."""
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
    """What `write_checkpoint` wrote, into module and optimiser; the note.

    Raises:
        DataError: it is of another model.
    """
    from safetensors import safe_open  # noqa: PLC0415

    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        note: dict[str, Any] = json.loads(file.metadata()["note"])
    weights = {name[8:]: w for name, w in tensors.items() if name.startswith("weights/")}
    try:
        module.load_state_dict(weights)
    except RuntimeError:
        raise DataError(f"{path} is a checkpoint of another model", "remove it to begin anew") from None
    if optimiser is not None:
        states: dict[int, dict[str, Any]] = {}
        for name, w in tensors.items():
            if name.startswith("optimiser/"):
                _, number, key = name.split("/")
                states.setdefault(int(number), {})[key] = w
        if isinstance(optimiser, torch.optim.SparseAdam):  # it counts in whole numbers of Python
            states = {number: {**s, "step": int(s["step"])} for number, s in states.items()}
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": states, "param_groups": groups})
    return note
