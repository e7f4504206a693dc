"""Load and check a benchmark file, changed by `--set`.

Each `--set a.b=value` replaces one value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recbench_spark.config.benchmark import Benchmark
from recbench_spark.core.documents import load_yaml
from recbench_spark.core.own_modules import remember_folder
from recbench_spark.core.strict_settings import parse, shorten
from recbench_spark.errors import ConfigError, nearest

CONF = Path(__file__).resolve().parents[1] / "conf"
"""Named files: in a checkout links to folders in `conf/`, in a wheel copies."""

BENCHMARKS = CONF / "benchmarks"


def load_benchmark(source: str, overrides: Sequence[str] = ()) -> Benchmark:
    """Load a benchmark file by path or name.

    Names are those in conf/benchmarks. Each override `a.b=value` replaces a value.
    """
    path = find_benchmark(source)
    remember_folder(path)
    return make_benchmark(read_yaml(path, "see conf/benchmarks/demo.yaml"), overrides, str(path))


def make_benchmark(document: dict[str, Any], overrides: Sequence[str], where: str) -> Benchmark:
    """Make a benchmark from keys and values.

    Each override `a.b=value` replaces one. Errors call the document `where`.
    """
    for override in overrides:
        _apply_override(document, override)
    return parse(Benchmark, document, where)


def find_benchmark(source: str) -> Path:
    """Return a benchmark file by path or name.

    Names are those in conf/benchmarks.

    Raises:
        ConfigError: there is no such file.
    """
    return find_file(source, BENCHMARKS, "benchmark")


def find_file(source: str, folder: Path, kind: str) -> Path:
    """Return a file by path, or a folder's by name.

    Raises:
        ConfigError: there is no such file; the message names its kind.
    """
    for path in (Path(source), folder / f"{source}.yaml"):
        if _is_file(path):
            return path
    known = [path.stem for path in folder.glob("*.yaml")]
    raise ConfigError(f"no {kind} file '{shorten(source)}'", nearest(source, known))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long for a disk, or the folder may not be read
        return False


def read_yaml(path: Path, example: str) -> dict[str, Any]:
    """Read keys and values from a YAML file.

    Args:
        path: the file's path.
        example: where a correct file is, for the hint.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or holds no keys and values.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not valid YAML: not UTF-8: {error.reason}", "save it as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "check its permissions") from None
    document = load_yaml(text, str(path))
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected keys and values", example)
    return document


def _apply_override(document: dict[str, Any], override: str) -> None:
    """Set one `a.b.0.c=value`, whose value is YAML."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {shorten(key)}: expected KEY=VALUE", "e.g. --set split.seed=7")
    *parents, last = key.split(".")
    place: Any = document
    for step in parents:
        place = _descend(place, step, key)
    value = load_yaml(text, f"--set {shorten(key)}")
    if isinstance(place, list):
        place[_find_entry(place, last, key)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise _section_error(parents[-1], key)


def _section_error(step: str, key: str) -> ConfigError:
    message = f"--set {shorten(key)}: '{shorten(step)}' is not a section of the benchmark file"
    return ConfigError(message, "name a section, then its key: split.seed=7")


def _descend(place: Any, step: str, key: str) -> Any:
    if isinstance(place, list):
        return place[_find_entry(place, step, key)]
    if not isinstance(place, dict) or not isinstance(place.get(step, {}), dict | list):
        raise _section_error(step, key)
    return place.setdefault(step, {})


def _find_entry(place: list[Any], step: str, key: str) -> int:
    """Return a list entry's position by number or name.

    Only models and slices have names.
    """
    names = [entry.get("name", entry.get("key")) for entry in place if isinstance(entry, dict)]
    if step in names:
        return names.index(step)
    if re.fullmatch("[0-9]{1,9}", step) and int(step) < len(place):
        return int(step)
    raise ConfigError(f"--set {shorten(key)}: no entry '{shorten(step)}'", nearest(step, map(str, names)))
