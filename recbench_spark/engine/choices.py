"""A job's choice of its runner, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recbench_spark.errors import ConfigError, FallbackToSpark

Engine = Literal["local", "spark"]


@dataclass(frozen=True)
class EngineChoice:
    """An engine and the reason for it."""

    engine: Engine
    why: str

    def describe(self) -> str:
        """Describe the choice in one line."""
        return f"engine {self.engine}: {self.why}"


def require_spark(requested: str, error: FallbackToSpark) -> EngineChoice:
    """Choose Spark for input that this process cannot read.

    Raises:
        ConfigError: `local` is requested.
    """
    if requested == "local":
        raise ConfigError(f"--engine local: {error.message}", "use --engine spark")
    return EngineChoice("spark", error.message)
