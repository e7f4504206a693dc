"""Users' own modules, on no path of Python.

They lie beside a YAML file or in the working folder. `import_own` imports them, and Spark's tasks get their
files (`runtime.session.share_own_modules`).
"""

from __future__ import annotations

import sys
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType
from typing import Any

from recbench_spark.core.extras import MissingPackageError, explain
from recbench_spark.core.strict_settings import shorten
from recbench_spark.errors import ConfigError

PACKAGE = __name__.partition(".")[0]

IMPORTABLE = (
    "module:Class of a module beside the YAML file, in the working folder or on PYTHONPATH;"
    " spark-submit on a cluster: --py-files my_models.py"
)

_beside = list[Path]()
"""Folders of the files read."""

_searched = list[Path]()
"""Folders on Python's path because a module was there."""


def remember_folder(file: Path) -> None:
    """Remember a file's folder, for modules beside it."""
    folder = file.resolve().parent
    if folder not in _beside:
        _beside.append(folder)


def import_own(name: str) -> ModuleType:
    """Import a module, even from a YAML file's folder.

    Python's path comes first, the working folder last.

    Raises:
        ModuleNotFoundError: it is in none of these places.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        root = name.partition(".")[0]
        folder = _find_folder(root) if error.name == root else None
        if folder is None:
            raise
    _searched.append(folder)
    sys.path.append(str(folder))
    invalidate_caches()
    return import_module(name)


def import_attribute(name: str, what: str) -> Any:
    """Return the object at `module:Class`; errors call it `what`.

    Raises:
        ConfigError: its module cannot be imported, or has no such class.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_own(module), attribute)
    except (Exception, SystemExit) as error:  # a user's module may do anything while it is imported
        explained = explain(error)
        if isinstance(explained, MissingPackageError):
            raise ConfigError(f"{what} '{name}': {explained.message}", explained.hint) from error
        reason = _explain_import_error(error, module)
        raise ConfigError(f"{what} '{name}': {reason}", IMPORTABLE) from error


def _explain_import_error(error: BaseException, module: str) -> str:
    """Return in words why a module cannot be imported."""
    if isinstance(error, SystemExit):
        return f"importing {module} ends Python: sys.exit({shorten(str(error.code))})"
    plain = isinstance(error, ImportError | AttributeError | ValueError)
    return str(error) if plain else f"{type(error).__name__}: {error}"


def list_own_modules() -> list[Path]:
    """Return files and folders of imported own modules."""
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.copy().items()}
    places = {
        folder / (f"{name}.py" if Path(file).stem == name else name)
        for folder in _searched
        for name, file in files.items()
        if file and "." not in name and name != PACKAGE and folder in Path(file).resolve().parents[:2]
    }
    return sorted(place for place in places if place.exists())


def _find_folder(root: str) -> Path | None:
    for folder in (*reversed(_beside), Path.cwd()):
        if (folder / f"{root}.py").is_file() or (folder / root).is_dir():
            return folder
    return None
