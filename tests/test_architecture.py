"""The rules of the house, executed: layers, no chance without a hash, a comment on every column."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from recbench_spark.schemas import TABLES

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "recbench_spark"

LAYERS = (
    {"errors"},
    {"definitions", "config", "placeholders", "revisions"},
    {"kernels"},
    {"models"},
    {"schemas", "randomness", "indexing", "blocks", "delta_files", "shared_files", "journal", "session"},
    {"data", "protocol", "training", "evaluation", "store", "reports"},
    {"steps", "evaluator", "benchmark", "cli"},
    {"jobs"},
)
"""Low to high: a module imports from layers below its own, and from itself."""

STAGES = LAYERS[5]
"""They talk through tables, never through imports of one another."""

WITHOUT_SPARK = {*set().union(*LAYERS[:4]), "shared_files", "journal"}


def layer(module: str) -> int:
    found = [n for n, names in enumerate(LAYERS) if module in names]
    assert found, f"module '{module}' has no layer: add it to LAYERS and to ARCHITECTURE.md"
    return found[0]


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)


def breaches(file: Path, root: Path) -> list[str]:
    """`path:line: what` for every import of a file that its layer does not allow."""
    parts = file.relative_to(root).with_suffix("").parts
    own = parts[1] if parts[0] == PACKAGE else parts[0]
    if own == "__init__":
        return []
    found = []
    for line, name in imports(ast.parse(file.read_text(encoding="utf-8"))):
        where = f"{file.relative_to(root)}:{line}"
        top, _, rest = name.partition(".")
        if top in ("pyspark", "delta", "py4j") and own in WITHOUT_SPARK:
            found.append(f"{where}: {own} must not import {name}")
        if top == "jobs" or (top == PACKAGE and not _allowed(own, rest.split(".")[0])):
            found.append(f"{where}: {own} must not import {name}")
    return found


def _allowed(own: str, other: str) -> bool:
    if other in ("", own, "__version__", "evaluate", "evaluate_predictions"):
        return True
    if layer(other) == layer(own):
        return own not in STAGES
    return layer(other) < layer(own)


def source_files() -> list[Path]:
    return sorted([*(ROOT / PACKAGE).rglob("*.py"), *(ROOT / "jobs").rglob("*.py")])


def test_layers() -> None:
    assert [breach for file in source_files() for breach in breaches(file, ROOT)] == []


def test_every_module_has_a_layer_and_every_layer_its_modules() -> None:
    folder = ROOT / PACKAGE
    modules = {
        path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    listed = set().union(*LAYERS)
    assert modules - {"__init__"} | {"jobs"} == listed


@pytest.mark.parametrize(
    ("place", "line", "allowed"),
    [
        ("kernels/metrics/predictions.py", "import pyspark.sql", False),
        ("kernels/metrics/predictions.py", "from pyspark.sql import functions", False),
        ("kernels/metrics/predictions.py", "from recbench_spark.errors import DataError", True),
        ("kernels/metrics/predictions.py", "from recbench_spark import schemas", False),
        ("models/item_knn.py", "from recbench_spark.kernels import values", True),
        ("protocol/splits.py", "from recbench_spark.data.readers import read_log", False),
        ("protocol/splits.py", "from recbench_spark.protocol import catalogue", True),
        ("store.py", "def f():\n    from recbench_spark.steps import night", False),
        ("steps/night.py", "from recbench_spark.data import identity", True),
        ("benchmark.py", "from jobs import nightly", False),
        ("config/", "import delta.tables", False),
    ],
)
def test_the_checker_itself(tmp_path: Path, place: str, line: str, allowed: bool) -> None:
    file = tmp_path / PACKAGE / place
    file.parent.mkdir(parents=True)
    file.write_text(f'"""A module."""\n\n{line}\n')
    found = breaches(file, tmp_path)
    number = 2 + line.count("\n") + 1
    assert [text.partition(": ")[0] for text in found] == (
        [] if allowed else [f"{PACKAGE}/{place}:{number}"]
    )


# ------------------------------------------------------------------------------ other house rules


def random_calls(source: str) -> list[int]:
    """Lines that draw by chance: `F.rand()`, `frame.sample(...)`, `randomSplit`; not `rng.random`."""
    names = {"rand", "randn", "sample", "randomSplit", "sampleBy", "shuffle", "uuid"}
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    called = ((call, call.func) for call in calls)
    return [call.lineno for call, f in called if isinstance(f, ast.Attribute) and f.attr in names]


def test_nothing_is_drawn_by_chance() -> None:
    assert random_calls("x = 1\ny = frame.sample(0.1)\nz = F.rand(seed=3)\n") == [2, 3]
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in source_files()
        for line in random_calls(file.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_table_and_column_says_what_it_means(table) -> None:
    assert table.comment.endswith(".")
    assert len(table.names) == len(set(table.names))
    for column in table.columns:
        assert len(column.comment) > len(column.name) and column.comment.endswith((".", "..."))
    assert set(table.partition_by) | set(table.cluster_by) <= set(table.names)


def tracked_texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=False, text=True,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file():
            yield name, path.read_text(encoding="utf-8", errors="replace")


def test_tracked_files_name_no_registry_and_no_folder_of_this_machine() -> None:
    # Spelt in pieces, or this file would break its own rule.
    registries = ["py" + "pi.org", "python" + "hosted.org", "repo1.maven" + ".org", "conda" + ".anaconda"]
    wrong = re.compile(
        "|".join([*map(re.escape, registries), r"index-" + "url +http", "(?<![.\\w])/wor" + "k/"])
    )
    insecure = re.compile("http" + "://(?!www\\.w3\\.org/|localhost|127\\.0\\.0\\.1)")
    found = [
        f"{name}: {match[0]}"
        for name, text in tracked_texts()
        for pattern in (wrong, insecure)
        for match in pattern.finditer(text)
    ]
    assert found == []
