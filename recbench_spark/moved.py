"""Old module paths, which work until version 0.4.

Models and notebooks of others import them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any, cast

PACKAGE = __name__.partition(".")[0]

MOVED = {
    "adhoc.compare": "evaluation.compare",
    "adhoc.evaluate": "evaluation.evaluate",
    "adhoc.in_process": "evaluation.in_process",
    "benchmark": "night.run_night",
    "config.models": "models.settings",
    "config.replay": "auctions.settings",
    "data.auction_worlds": "auctions.worlds",
    "data.readers.auctions": "auctions.auctions",
    "evaluation.comparison.comparison": "analyses.comparisons.comparison",
    "evaluation.result": "metrics.result",
    "kernels.arrays": "core.arrays",
    "kernels.comparison.paradoxes": "analyses.comparisons.kernels.paradoxes",
    "kernels.estimators.exposure": "analyses.exposure.kernels.exposure",
    "kernels.metrics.predictions": "metrics.kernels.predictions",
    "kernels.metrics.roc": "metrics.kernels.roc",
    "kernels.simulation.mechanism": "auctions.kernels.mechanism",
    "models.fold_in_settings": "models.prefix_vectors",
    "runtime.compile_kernels": "night.compile_kernels",
    "simulation.auction_log": "auctions.auction_log",
    "simulation.replay": "auctions.replay",
    "training.behaviour": "models.adapters.model_adapter",
    "training.model_adapter": "models.adapters.model_adapter",
    "training.split_data": "models.adapters.split_data",
}
"""Each module's present path, by its path in version 0.2's pages, below the package."""


class MovedModules:
    """Python's last finder: old paths lead to today's modules.

    It does not inherit from `importlib.abc`: loading that takes 10 ms in every process with this package.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec for an old path, else None.

        A folder of old paths has one, too.
        """
        package, _, old = name.partition(".")
        if package != PACKAGE:
            return None
        if old in MOVED:
            return ModuleSpec(name, cast(Any, self))
        is_folder = any(one.startswith(f"{old}.") for one in MOVED)
        return ModuleSpec(name, None, is_package=True) if is_folder else None

    def get_code(self, name: str) -> CodeType | None:
        """Return the code of today's module, for `python -m`."""
        present = f"{PACKAGE}.{MOVED[name.partition('.')[2]]}"
        spec = find_spec(present)
        get_code = getattr(spec and spec.loader, "get_code", None)  # that of a zip is no `InspectLoader`
        return cast(CodeType, get_code(present)) if get_code else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Put today's module at the old path, with a warning.

        The warning names the new path.
        """
        present = f"{PACKAGE}.{MOVED[module.__name__.partition('.')[2]]}"
        warnings.warn(
            f"{module.__name__} is now {present}; the old path ends with 0.4", FutureWarning, stacklevel=2
        )
        sys.modules[module.__name__] = import_module(present)


def add_old_paths() -> None:
    """Let Python find old module paths, as its last resort."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
