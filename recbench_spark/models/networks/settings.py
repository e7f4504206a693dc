"""Settings of models trained by gradients: factor and sequence models."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from recbench_spark.core.strict_settings import Count
from recbench_spark.errors import ConfigError
from recbench_spark.models.fold_in_kinds import FoldInRidge
from recbench_spark.models.settings import LearntItems, ModelConfig
from recbench_spark.sources.settings import READERS_WITHOUT_TIMES

Steps = Annotated[int, Field(ge=0, le=10**9)]


class GradientModel(ModelConfig):
    """Settings shared by all gradient training; see `plans.TrainingPlan`.

    `examples`: examples in an epoch, drawn anew in each (0: all). With fewer examples, validation and
    checkpoints come sooner. The fit ends after `patience` epochs without a better one (0: never).
    `weight_decay` times each weight is added to its gradient in each step. `device`: device for the fit;
    `auto` takes a GPU where PyTorch finds one.
    """

    added_later: ClassVar[frozenset[str]] = frozenset({"weight_decay", "device", "examples"})
    revised: ClassVar[tuple[str, ...]] = ("descent",)

    epochs: Count = 50
    """Most passes over the training examples."""
    examples: Steps = 0
    batch: Count = 2048
    """Examples in a minibatch."""
    rate: Annotated[float, Field(gt=0, le=10)] = 1e-3
    """Learning rate after the warm-up."""
    warm_up: Steps = 0
    """Steps over which the learning rate grows from 0."""
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor on the learning rate after each epoch."""
    patience: Steps = 5
    """Epochs without a better one before the fit ends; 0: never."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    every: Steps = 0
    """Steps between checkpoints within an epoch; 0: only after an epoch."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 42
    """Seed of weights and draws."""

    def check(self, reader: str) -> None:
        """Check that a required GPU exists, before hours are spent."""
        if self.device == "cuda":
            from recbench_spark.models.networks.devices import choose_device  # noqa: PLC0415

            choose_device(self.device)

    def plan(self) -> TrainingPlan:
        """Return the settings as the training loop takes them."""
        shared = {field.name for field in fields(TrainingPlan)} - {"ahead"}
        return TrainingPlan(**{name: getattr(self, name) for name in shared})


class FittedModel(GradientModel):
    """Settings for fits with hashed validation rows and several processes.

    `validation`: share of training rows set aside by hash. The best epoch on them is kept. No held-out row
    is read. `processes` share each minibatch (`models.adapters.multiprocess_fit`): more than one give
    another model, equal to rounding. `device` is that of a single process. `watch`: each epoch's score on
    test rows is reported too, and chooses nothing.
    """

    added_later: ClassVar[frozenset[str]] = GradientModel.added_later | {"processes", "watch"}
    unkeyed: ClassVar[frozenset[str]] = frozenset({"watch"})

    validation: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """Share of training rows set aside by hash; the best epoch on them is kept."""
    processes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Processes which share each minibatch."""
    watch: bool = False
    """Report the score on test rows after each epoch; it chooses nothing."""

    @model_validator(mode="after")
    def _one_gpu(self) -> Self:
        if self.processes > 1 and self.device == "cuda":
            raise ValueError(f"device: cuda, and {self.processes} processes: these compute on CPUs")
        return self


class FactorModelConfig(FittedModel, LearntItems):
    """Settings for user and item vectors, fitted to interactions.

    `negatives`: negatives for each example. `shared`: so many examples share their negatives, which makes
    hundreds of them cheap. `fold_in`: ridge regression to give new users vectors, for learning curves.
    """

    adapter: ClassVar[str] = "factor_models:FactorAdapter"
    added_later: ClassVar[frozenset[str]] = FittedModel.added_later | {"shared", "fold_in", "items"}
    revised: ClassVar[tuple[str, ...]] = ("descent", "trained_items")
    unfitted: ClassVar[frozenset[str]] = frozenset({"fold_in"})

    dims: Annotated[int, Field(ge=1, le=2048)] = 64
    """Length of the vectors."""
    negatives: Annotated[int, Field(ge=1, le=10_000)] = 1
    shared: Count = 1
    penalty: Annotated[float, Field(ge=0)] = 1e-4
    """Factor on squared lengths; an example's loss has half of it."""
    spread: Annotated[float, Field(gt=0)] = 0.1
    """Spread of the first random vectors."""
    fold_in: FoldInRidge | None = None

    @property
    def folds_given_rows(self) -> bool:
        """True if the file describes a fold-in; see `ModelConfig`."""
        return self.fold_in is not None

    @model_validator(mode="after")
    def _check_fold_in(self) -> Self:
        if self.fold_in and self.fold_in.targets != "likes":
            raise ValueError("fold_in.targets: likes; the model knows no ratings")
        return self

    @property
    def groups(self) -> int:
        """Return a minibatch's number of groups with shared negatives.

        0: each example has its own.
        """
        return -(-self.batch // self.shared) if self.shared > 1 else 0


class SequenceModelConfig(GradientModel, LearntItems):
    """Settings for models which read a user's items in time order.

    Each user's last training item is set aside, and the epoch with the best NDCG@10 on these items is kept.

    `validation_users`: users whose last items are ranked, drawn by hash. `memory`: newest items read from a
    history. `history`: rows behind a user's vector when it is ranked, the part train, or also the part
    valid, which published protocols show at the test. `loss`: softmax over all items, softmax over the item
    and `negatives` shared by a minibatch, or binary cross-entropy with one negative per item. `dropout`:
    share of numbers set to 0 in training.
    """

    adapter: ClassVar[str] = "sequence_models:SequenceAdapter"
    added_later: ClassVar[frozenset[str]] = GradientModel.added_later | {"items"}
    revised: ClassVar[tuple[str, ...]] = ("descent", "trained_items", "histories")
    fold_in_revisions: ClassVar[tuple[str, ...]] = ()
    needs_times: ClassVar[bool] = True

    dims: Annotated[int, Field(ge=1, le=2048)] = 64
    """Length of the vectors."""
    memory: Annotated[int, Field(ge=1, le=10_000)] = 200
    history: Literal["train", "with_valid"] = "train"
    loss: Literal["softmax", "shared_negatives", "one_negative"] = "softmax"
    negatives: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Negatives shared by a minibatch, with `loss: shared_negatives`."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    validation_users: Count = 2000
    batch: Count = 128

    @property
    def folds_given_rows(self) -> bool:
        """True: a forward pass over given rows embeds a held-out user."""
        return True

    @property
    def shows_validation(self) -> bool:
        """True if the part valid is shown; see `ModelConfig`."""
        return self.history == "with_valid"

    def hide_validation(self) -> Self:
        """Return the model with `history: train`."""
        return self.model_copy(update={"history": "train"})

    def check(self, reader: str) -> None:
        """Check that the reader's logs have times.

        Errors are as in `ModelConfig.check`.
        """
        super().check(reader)
        if reader in READERS_WITHOUT_TIMES:
            raise ConfigError(
                f"model {self.name}: kind '{self.kind}' reads histories in the order of time, and logs of "
                f"reader '{reader}' have no times",
                "use a log with times, or a kind that needs no order",
            )


class SasRecModel(SequenceModelConfig):
    """SASRec (Kang and McAuley 2018): items attend to earlier items.

    `blocks`: blocks with attention and two dense layers. `heads`: attention heads; they divide `dims`.
    Items have one vector, for reading and for scoring.
    """

    kind: Literal["sasrec"]
    blocks: Annotated[int, Field(ge=1, le=32)] = 2
    heads: Annotated[int, Field(ge=1, le=64)] = 1

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.dims % self.heads:
            raise ValueError(f"heads: {self.dims} dims are not divided by {self.heads}")
        return self


class Gru4RecModel(SequenceModelConfig):
    """GRU4Rec (Hidasi et al. 2016): gated recurrent units, output layer.

    `layers`: recurrent layers. An item has one vector for reading, and another one with a bias for scoring.
    """

    kind: Literal["gru4rec"]
    layers: Annotated[int, Field(ge=1, le=8)] = 1


class MemN2NModel(SequenceModelConfig):
    """An End-to-End Memory Network over a user's past.

    Source: Sukhbaatar et al. 2015. The newest item is the query, and the `memory` items before it are the
    memories.

    `hops`: how often the memories are read. `tying`: an answer's vectors read the next hop's memories
    (adjacent), or all hops share their vectors, and a linear map leads from hop to hop (layer_wise).
    `linear_epochs`: first epochs without the softmax of the attention; none of them is the best epoch.
    `noise`: chance of an empty memory before each item in training: .1 leaves about .09 of the memories
    empty. `explain`: users whose attention goes to the table `explanations`.
    """

    kind: Literal["memn2n"]
    memory: Annotated[int, Field(ge=1, le=10_000)] = 50
    hops: Annotated[int, Field(ge=1, le=32)] = 3
    tying: Literal["adjacent", "layer_wise"] = "layer_wise"
    linear_epochs: Annotated[int, Field(ge=0, le=10**6)] = 0
    noise: Annotated[float, Field(ge=0, lt=1)] = 0.1
    explain: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_linear_epochs(self) -> Self:
        if self.linear_epochs >= self.epochs:
            raise ValueError(
                f"linear_epochs: {self.linear_epochs} of {self.epochs} epochs leave none with the softmax"
            )
        if 0 < self.patience <= self.linear_epochs:
            raise ValueError(
                f"patience: {self.patience} ends a fit in its {self.linear_epochs} linear epochs"
            )
        return self


class MfBprModel(FactorModelConfig):
    """MF-BPR (Rendle et al. 2009): relevant items rank above others.

    `penalty`: factor on squared lengths; an example's loss has half of it. `spread`: spread of the first
    random vectors.
    """

    kind: Literal["mf_bpr"]

    @property
    def layers(self) -> int:
        """Return 0: there are no layers over the graph."""
        return 0


class LightGcnModel(FactorModelConfig):
    """LightGCN (He et al. 2020).

    It is MF-BPR over the mean of 0 to `layers` normalised sums over neighbours. The whole graph is smoothed
    in each minibatch, so fewer and larger minibatches are faster.
    """

    kind: Literal["lightgcn"]
    layers: Annotated[int, Field(ge=1, le=16)] = 3
    """Number of averaged sums over neighbours."""


@dataclass(frozen=True)
class TrainingPlan:
    """Settings of one fit, as the training loop reads them.

    Attributes:
        epochs: largest number of epochs.
        batch: examples in a minibatch, over all processes.
        rate: Adam's learning rate after the warm-up.
        warm_up: steps in which the rate grows to it, evenly.
        decay: factor on the rate in each epoch after the warm-up.
        patience: epochs without a better validation score before the fit stops; 0: never.
        seed: seed of all draws.
        ahead: minibatches made ahead.
        every: steps between checkpoints; 0: only at the end of an epoch.
        weight_decay: in each step, this times a weight is added to its gradient (of the mean loss).
        device: `auto` (a GPU where PyTorch finds one), `cpu` or `cuda`.
        examples: examples in an epoch, drawn anew each time without replacement; 0: all.
    """

    epochs: int = 10
    batch: int = 512
    rate: float = 1e-3
    warm_up: int = 0
    decay: float = 1.0
    patience: int = 0
    seed: int = 42
    ahead: int = 4
    every: int = 0
    weight_decay: float = 0.0
    device: str = "auto"
    examples: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers out of range."""
        least_values = {"epochs": 1, "batch": 1, "warm_up": 0, "patience": 0, "ahead": 1, "examples": 0}
        for name, least in least_values.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: {getattr(self, name)} is less than {least}")
        if not (self.rate > 0 and 0 < self.decay <= 1):
            raise ConfigError(f"rate {self.rate}, decay {self.decay}: above 0, decay at most 1")
        if not self.weight_decay >= 0:
            raise ConfigError(f"weight_decay: {self.weight_decay} is negative")

    def learning_rate(self, number: int, steps: int) -> float:
        """Return a step's learning rate.

        After a gradual warm-up it decays exponentially over all epochs.

        Args:
            number: steps before it, over all epochs.
            steps: steps in an epoch.
        """
        if number < self.warm_up:
            return self.rate * (number + 1) / self.warm_up
        return self.rate * float(self.decay ** ((number - self.warm_up) / max(steps, 1)))
