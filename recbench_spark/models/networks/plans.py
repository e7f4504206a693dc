"""Define the settings for training by gradients, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from recbench_spark.errors import ConfigError


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
