"""Choose a fit's device, GPU or CPU, and move minibatches there.

No other module moves them.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch

from recbench_spark.errors import ConfigError

T = TypeVar("T")


def choose_device(name: str) -> torch.device:
    """Return the device for a name in settings.

    `auto` is a GPU where there is one.

    Raises:
        ConfigError: a GPU is required, and this process sees none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device: cuda, and PyTorch finds no GPU here",
            "device: auto takes one where there is one, else cpu",
        )
    return torch.device(name)


def move_batch(batch: T, device: torch.device) -> T:
    """Move all tensors in a minibatch to a device.

    Tuples, named tuples and lists may nest at any depth. Other values do not change: dense ids in numpy,
    numbers, None.
    """
    if isinstance(batch, torch.Tensor):
        return cast(T, batch.to(device))
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return cast(T, type(batch)(*(move_batch(part, device) for part in batch)))
    if isinstance(batch, tuple | list):
        parts: Any = [move_batch(part, device) for part in batch]
        return cast(T, type(batch)(parts))
    return batch
