"""Users' own modules, on no path of Python.

They lie beside a YAML file or in the working folder. `import_own` imports them, and Spark's tasks get their
files (`runtime.session.share_own_modules`).
"""

from __future__ import annotations

import sys
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType

PACKAGE = __name__.partition(".")[0]

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


def list_own_modules() -> list[Path]:
    """Return files and folders of imported own modules."""
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
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
