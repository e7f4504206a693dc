"""Define the settings of training by gradients, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from recbench_spark.errors import ConfigError


@dataclass(frozen=True)
class TrainingPlan:
    """TrainingPlan holds the settings of a fit.

    Attributes:
        epochs: largest number of epochs.
        batch: examples of a minibatch, of all processes together.
        rate: learning rate of Adam after the warm-up.
        warm_up: steps in which the rate grows to it, evenly.
        decay: factor by which the rate falls in each epoch after that.
        patience: epochs without a better validation score before the fit stops; 0: never.
        seed: seed of all draws.
        ahead: minibatches made ahead.
        every: steps between checkpoints; 0: only at the end of an epoch.
        weight_decay: times each weight that is added to its gradient (of the mean loss) in each step.
        device: `auto` (a GPU where PyTorch finds one), `cpu` or `cuda`.
        examples: examples of an epoch, drawn anew in each without replacement; 0: all.
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
        """Return the learning rate of a step: gradual warm-up, then exponential decay over all epochs.

        Args:
            number: steps before it, over all epochs.
            steps: steps of an epoch.
        """
        if number < self.warm_up:
            return self.rate * (number + 1) / self.warm_up
        return self.rate * float(self.decay ** ((number - self.warm_up) / max(steps, 1)))
