"""The rules of the house, executed: layers, no chance without a hash, a comment on every column."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from recbench_spark.schemas import TABLES

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "recbench_spark"

LAYERS = (
    ({"core"}, {"tables"}),
    ({"engine"}, {"storage"}, {"query"}),
    ({"settings"}, {"runtime"}),
    ({"sources"}, {"splits"}),
    ({"ranking"}, {"metrics"}),
    ({"analyses.sampling"}, {"analyses.exposure"}, {"analyses.comparisons"}),
    ({"graphs"}, {"retrieval"}, {"models"}, {"analyses.curves"}),
    ({"auctions", "boards", "evaluation"}, {"reports"}),
    ({"night"}, {"tuning", "maintenance", "self_tests"}),
    ({"commands"}, {"jobs"}),
)
"""Low to high: a module imports from its own room and from those before it, nothing else.

A room is a folder of the package, and each folder of `analyses` is one. Two kinds of files lie in the
rooms of features, and are rooms by themselves: `tables.py` (columns) and `settings.py` (keys of YAML).
"""

SPREAD = {"tables": {"tables", "schemas"}, "settings": {"settings", "config"}}
"""Rooms that lie in several folders, with the names of their modules or folders."""

TOP = {
    "errors": "core",
    "moved": "core",
    "readers": "core",
    "cli": "commands",
    "__main__": "commands",
}
"""Modules beside the folders, and their rooms."""

UPWARD = {
    ("models/settings.py", "metrics.kernels.about.figure_range"),
    ("config/evaluation.py", "metrics.kernels.about.expand_families"),
}
"""Imports against the layers, when a file has them: published figures, and bundles of metrics."""

WITH_SPARK = {
    "engine": ("platforms", "sessions", "tasks", "versions"),
    "evaluation": ("frame_outputs", "task_devices"),
    "metrics": ("result",),
    "models": ("adapters.frames", "adapters.mllib_als", "adapters.multiprocess_fit"),
    "night": ("night", "standalone_runs"),
    "query": ("sql_guard",),
    "runtime": ("failures", "indexing", "java", "session"),
    "sources": (
        "column_names", "delta_snapshots", "identity", "input_rows", "list_columns", "readers.logs",
        "readers.paths", "stored_embeddings",
    ),
    "storage": (
        "append_names", "arrow_store", "delta_files", "delta_tables", "file_tables", "frame_blocks",
        "spark_places", "spark_types", "store", "table_folders", "table_scans", "table_upkeep",
    ),
}  # fmt: skip
"""Modules that name pyspark, delta or py4j; no other does, not even for its types."""


@cache
def level(room: str) -> int:
    order = [rooms for layer in LAYERS for rooms in layer]
    levels = [n for n, rooms in enumerate(order) if room in rooms]
    assert levels, f"room '{room}' has no level: add it to LAYERS and to ARCHITECTURE.md"
    return levels[0]


def find_room(parts: Sequence[str]) -> str:
    """The room of a module of the package, by the parts of its name below the package."""
    folder = parts[:2] if parts[0] == "analyses" and len(parts) > 2 else parts[:1]
    for room, names in SPREAD.items():
        if parts[0] in names or (len(parts) == len(folder) + 1 and parts[-1] in names):
            return room
    return TOP.get(parts[0], ".".join(folder))


@cache
def module_parts(name: str) -> list[str]:
    """The parts of the longest prefix of a dotted name that is a module of the package."""
    parts = name.split(".")
    while parts and not _is_module(ROOT / PACKAGE, parts):
        parts = parts[:-1]
    folder = (ROOT / PACKAGE).joinpath(*parts) if parts else None
    return [*parts, "__init__"] if folder is not None and folder.is_dir() else parts


def _is_module(folder: Path, parts: Sequence[str]) -> bool:
    place = folder.joinpath(*parts)
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported, wherever in the file it stands."""
    for node in list_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)


def breaches(path: str, tree: ast.AST) -> list[str]:
    """`path:line: what` for every import of a file that its level does not allow."""
    parts = Path(path).with_suffix("").parts
    if parts == (PACKAGE, "__init__"):
        return []
    own = find_room(parts[1:]) if parts[0] == PACKAGE else parts[0]
    lines = []
    with_spark = parts[0] == "jobs" or ".".join(parts[2:]) in WITH_SPARK.get(parts[1], ())
    for line, name in imports(tree):
        where = f"{path}:{line}"
        top, _, rest = name.partition(".")
        if top in ("pyspark", "delta", "py4j") and not with_spark:
            lines.append(f"{where}: {own} must not import {name}")
        if (top == "jobs" and own != "jobs") or (top == PACKAGE and not _is_allowed(parts, rest)):
            lines.append(f"{where}: {own} must not import {name}")
    return lines


def _is_allowed(own: Sequence[str], name: str) -> bool:
    other = module_parts(name)
    if not other or ("/".join(own[1:]) + ".py", name) in UPWARD:  # no parts: the package's own version
        return True
    if own[0] == "jobs":
        return True
    room, imported = find_room(own[1:]), find_room(other)
    if is_kernel(own[1:]):
        return imported == "core" or (is_kernel(other) and level(imported) <= level(room))
    same_folder = own[1 : 3 if own[1] == "analyses" else 2] == tuple(
        other[: 2 if own[1] == "analyses" else 1]
    )
    return imported == room or same_folder or level(imported) < level(room)


def is_kernel(parts: Sequence[str]) -> bool:
    """A module that knows arrays alone; `core` is what all rooms know."""
    return "kernels" in parts


@cache
def parse_files() -> tuple[tuple[str, ast.Module, int], ...]:
    """Name below the root, syntax tree and number of lines of each file; all checks share one parse."""
    return _parse_all(source_files())


@cache
def parse_tests() -> tuple[tuple[str, ast.Module, int], ...]:
    """Parse tests and tools as `parse_files` parses the package."""
    return _parse_all(sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("tools/**/*.py")]))


def _parse_all(files: list[Path]) -> tuple[tuple[str, ast.Module, int], ...]:
    """Parse without a search for garbage: a million nodes are made, and all of them stay."""
    gc.disable()
    try:
        return tuple(map(_parse_file, files))
    finally:
        gc.freeze()
        gc.enable()


@cache
def list_nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Nodes of a tree that have parts; all checks share one walk, which takes longer than each of them."""
    nodes = [tree]
    for node in nodes:  # grows meanwhile
        for field in node._fields:
            part = getattr(node, field, None)
            parts = part if isinstance(part, list) else (part,)
            nodes += [child for child in parts if isinstance(child, ast.AST) and child._fields]
    return tuple(nodes)


def _parse_file(file: Path) -> tuple[str, ast.Module, int]:
    text = file.read_text(encoding="utf-8")
    return file.relative_to(ROOT).as_posix(), ast.parse(text), text.count("\n")


def source_files() -> list[Path]:
    return sorted([*(ROOT / PACKAGE).rglob("*.py"), *(ROOT / "jobs").rglob("*.py")])


def collect(find: Callable[[ast.AST], list[Any]], parse: Any = parse_files) -> list[str]:
    """`file: place` for every place that a check finds in the files that `parse` returns."""
    return [f"{name}: {place}" for name, tree, _ in parse() for place in find(tree)]


def test_layers() -> None:
    assert [breach for name, tree, _ in parse_files() for breach in breaches(name, tree)] == []


def test_every_module_has_a_level_and_every_level_its_modules() -> None:
    folder = ROOT / PACKAGE
    files = [path.relative_to(folder).with_suffix("").parts for path in folder.rglob("*.py")]
    rooms = {find_room(parts) for parts in files if parts[-1] != "__init__"}
    assert rooms | {"jobs"} == {room for layer in LAYERS for names in layer for room in names}


def test_no_file_imports_itself_by_way_of_others() -> None:
    graph = {}
    for path, tree, _ in parse_files():
        parts = Path(path).with_suffix("").parts
        names = (name for _, name in imports(tree))
        inside = (module_parts(name.partition(".")[2]) for name in names if name.startswith(f"{PACKAGE}."))
        graph[".".join(parts)] = {f"{PACKAGE}.{'.'.join(module)}" for module in inside if module}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize(
    ("place", "line", "allowed"),
    [
        ("metrics/kernels/accuracy.py", "import pyspark.sql", False),
        ("metrics/kernels/accuracy.py", "from pyspark.sql import functions", False),
        ("metrics/kernels/accuracy.py", "from recbench_spark.errors import DataError", True),
        ("metrics/kernels/accuracy.py", "from recbench_spark import schemas", False),
        (
            "metrics/kernels/accuracy.py",
            "from recbench_spark.analyses.exposure.kernels import exposure",
            False,
        ),
        (
            "analyses/exposure/kernels/exposure.py",
            "from recbench_spark.metrics.kernels import accuracy",
            True,
        ),
        ("ranking/kernels/lists.py", "from recbench_spark.metrics.kernels.accuracy import METRICS", False),
        ("core/hashing.py", "from recbench_spark.ranking.kernels import counting", False),
        ("models/settings.py", "from recbench_spark.metrics.kernels.about import figure_range", True),
        ("retrieval/settings.py", "from recbench_spark.metrics.kernels.about import figure_range", False),
        ("graphs/settings.py", "from recbench_spark.graphs.kernels import forms", True),
        ("graphs/kernels/forms.py", "from recbench_spark.graphs import settings", False),
        ("metrics/kernels/about.py", "from recbench_spark.config import Evaluation", False),
        ("models/cornac.py", "from recbench_spark.core import hashing", True),
        ("splits/rules.py", "from recbench_spark.graphs import build", False),
        ("splits/rules.py", "from recbench_spark.splits import labels", True),
        ("auctions/replay.py", "from recbench_spark.evaluation import measure", False),
        ("auctions/kernels/yields.py", "from recbench_spark.auctions import replay", False),
        ("ranking/scored.py", "from recbench_spark.metrics import accuracy", False),
        ("analyses/comparisons/flips.py", "from recbench_spark.metrics import accuracy", True),
        ("ranking/scored.py", "from recbench_spark.models import cornac", False),
        ("storage/leases.py", "import pyspark", False),
        ("storage/store.py", "def f():\n    from recbench_spark.night import night", False),
        ("night/night.py", "from recbench_spark.sources import identity", True),
        ("evaluation/evaluate.py", "from recbench_spark.night import results", False),
        ("models/adapters/means.py", "from recbench_spark.night import night", False),
        ("night/run_night.py", "from jobs import nightly", False),
        ("night/run_night.py", "from recbench_spark.commands import nightly", False),
        ("config/loading.py", "import delta.tables", False),
        ("reports/build.py", "import pyspark", False),
    ],
)
def test_the_checker_itself(place: str, line: str, allowed: bool) -> None:
    lines = breaches(f"{PACKAGE}/{place}", ast.parse(f'"""A module."""\n\n{line}\n'))
    number = 2 + line.count("\n") + 1
    assert [text.partition(": ")[0] for text in lines] == (
        [] if allowed else [f"{PACKAGE}/{place}:{number}"]
    )


# --------------------------------------------------------------------------------- imports, parameters

ENGINES = {
    *(
        "pyspark",
        "delta",
        "py4j",
        "deltalake",
        "duckdb",
        "obstore",
        "hdfs_native",
        "torch",
        "safetensors",
        "triton",
        "numba",
        "scipy",
    ),
    *("torch_geometric", "matplotlib", "faiss", "cornac", "mlflow"),
}
"""Packages that take long to load, or may be absent: a function may import them where it needs them."""

LAZY_ROOMS = {"commands", "jobs"}
LAZY_FILES = {
    "recbench_spark/__init__.py": "workers that import a kernel do not load the public functions",
    "recbench_spark/evaluation/compared_runs.py": "loads Spark for a warehouse that only Spark reads",
    "recbench_spark/evaluation/evaluation.py": "loads Spark's devices where frames are ranked",
    "recbench_spark/evaluation/input_tables.py": "loads Spark for frames",
    "recbench_spark/evaluation/outputs.py": "loads Spark for frames",
    "recbench_spark/evaluation/evaluate.py": "the call chooses its engine, and loads no other",
    "recbench_spark/night/run_night.py": "loads Spark for steps that it alone does",
    "recbench_spark/night/night.py": "loads Spark for what it alone reads",
    "recbench_spark/cli.py": "loads Spark, to cancel its jobs",
    "recbench_spark/config/evaluation.py": "bundles of metrics need numba and scipy, other settings do not",
    "recbench_spark/models/settings.py": "figures of metrics need numba and scipy, other settings do not",
    "recbench_spark/sources/input_rows.py": "loads Spark for frames, and for paths that it alone reads",
    "recbench_spark/sources/readers/published.py": "loads Spark for text that it alone reads",
    "recbench_spark/sources/opened_logs.py": "loads Spark for inputs of its warehouses",
    "recbench_spark/sources/delta_snapshots.py": "loads Spark for a frame that only Spark reads",
    "recbench_spark/evaluation/task_devices.py": "loads torch, in tasks that have a GPU",
    "recbench_spark/ranking/inputs.py": "loads numba, in tasks",
    "recbench_spark/runtime/failures.py": "loads pyspark, to name its errors",
    "recbench_spark/ranking/known_items.py": "loads Spark for rows that it alone reads",
    "recbench_spark/ranking/kernels/devices.py": "loads triton, where there is a GPU",
    "recbench_spark/ranking/kernels/scorers.py": "loads torch, where scores are multiplied",
    "recbench_spark/models/networks/settings.py": "loads torch, when a device is chosen",
    "recbench_spark/analyses/curves/batched.py": "loads numba, in tasks",
    "recbench_spark/night/split.py": "loads Spark for what it alone can read",
    "recbench_spark/splits/audit.py": "loads numba, in tasks",
    "recbench_spark/splits/labels.py": "loads numba, in tasks",
    "recbench_spark/splits/positions.py": "loads numba, in tasks whose rows have equal times",
    "recbench_spark/storage/blocks.py": "loads numba, in tasks",
    "recbench_spark/storage/table_folders.py": "loads Spark for folders that only Hadoop lists",
    "recbench_spark/models/adapters/split_data.py": "loads Spark for models that read frames",
    "recbench_spark/tuning/fold_fits.py": "loads Spark for models that it fits itself",
    "recbench_spark/runtime/journal.py": "loads rich, where the job writes to a terminal",
}
"""Files whose functions import modules of this package, with the reason."""


def lazy_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that functions import."""
    functions = (node for node in list_nodes(tree) if isinstance(node, ast.FunctionDef))
    inside = {line for function in functions for line in range(function.lineno, function.end_lineno + 1)}
    return (place for place in imports(tree) if place[0] in inside)


def test_functions_import_only_engines() -> None:
    inside = "def f():\n    import json\n    import torch.nn\n    from recbench_spark import cli\n"
    assert [name for _, name in lazy_imports(ast.parse(inside))] == [
        "json",
        "torch.nn",
        "recbench_spark.cli",
    ]
    files: dict[str, set[str]] = {}
    for name, tree, _ in parse_files():
        if LAZY_ROOMS.isdisjoint(Path(name).parts):
            files[name] = {module.partition(".")[0] for _, module in lazy_imports(tree)} - ENGINES
    assert {name: modules for name, modules in files.items() if modules} == {
        name: {PACKAGE} for name in LAZY_FILES
    }


MOST_POSITIONAL = 5
COMPILED = re.compile(r"compile|jit|intrinsic")
"""Decorators of functions that a compiler reads: it takes no keywords."""


def functions_with_many_parameters(tree: ast.AST) -> list[str]:
    """`line name: n` of functions with too many positional parameters; the others are keyword-only."""
    places = []
    for node in list_nodes(tree):
        if isinstance(node, ast.FunctionDef) and not any(map(_is_compiler, node.decorator_list)):
            names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
            count = len(names) - (names[:1] in (["self"], ["cls"]))
            if count > MOST_POSITIONAL:
                places.append(f"{node.lineno} {node.name}: {count}")
    return places


def _is_compiler(decorator: ast.expr) -> bool:
    return bool(COMPILED.search(ast.unparse(decorator)))


def test_functions_take_few_positional_parameters() -> None:
    many = "def f(a, b, c, d, e, g): ...\nclass A:\n    def h(self, a, b, c, d, e, *, g): ...\n"
    assert functions_with_many_parameters(ast.parse(many)) == ["1 f: 6"]
    assert functions_with_many_parameters(ast.parse(f"@compile_kernel\n{many}")) == []
    assert collect(functions_with_many_parameters) == []


# ------------------------------------------------------------------------------ other house rules


def random_calls(tree: ast.AST) -> list[int]:
    """Lines that draw by chance: `F.rand()`, `frame.sample(...)`, `randomSplit`; not `rng.random`."""
    names = {"rand", "randn", "sample", "randomSplit", "sampleBy", "shuffle", "uuid"}
    calls = (node for node in list_nodes(tree) if isinstance(node, ast.Call))
    called = ((call, call.func) for call in calls)
    return [call.lineno for call, f in called if isinstance(f, ast.Attribute) and f.attr in names]


def test_nothing_is_drawn_by_chance() -> None:
    assert random_calls(ast.parse("x = 1\ny = frame.sample(0.1)\nz = F.rand(seed=3)\n")) == [2, 3]
    assert collect(random_calls) == []


LONGEST = 40
"""Lines of a function without its docstring."""


def long_functions(tree: ast.AST) -> list[str]:
    """`line name: lines` of functions that are longer."""
    too_long = []
    for node in list_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            documented = ast.get_docstring(node, clean=False) is not None
            docstring = node.body[0].end_lineno - node.body[0].lineno + 1 if documented else 0
            lines = node.end_lineno - node.lineno + 1 - docstring
            if lines > LONGEST:
                too_long.append(f"{node.lineno} {node.name}: {lines} lines")
    return too_long


def test_functions_are_short() -> None:
    body = "    x = 1\n"
    assert long_functions(ast.parse(f"def f():\n{body * 40}")) == ["1 f: 41 lines"]
    assert long_functions(ast.parse('def f():\n    """A\n    B"""\n' + body * 39)) == []
    in_tools = [place for place in collect(long_functions, parse_tests) if place.startswith("tools/")]
    assert [*collect(long_functions), *in_tools] == []


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_table_and_column_says_what_it_means(table) -> None:
    assert table.comment.endswith(".")
    assert len(table.names) == len(set(table.names))
    for column in table.columns:
        assert len(column.comment) > len(column.name) and column.comment.endswith((".", "..."))
    assert set(table.partition_by) <= set(table.names)


def read_tracked_texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=False, text=True,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and name != "LICENSE":
            yield name, path.read_text(encoding="utf-8", errors="replace")


def test_tracked_files_name_no_registry_and_no_folder_of_this_machine() -> None:
    # Spelt in pieces, or this file would break its own rule.
    registries = ["py" + "pi.org", "python" + "hosted.org", "repo1.maven" + ".org", "conda" + ".anaconda"]
    wrong = re.compile(
        "|".join([*map(re.escape, registries), r"index-" + "url +http", "(?<![.\\w])/wor" + "k/"])
    )
    insecure = re.compile("http" + "://(?!www\\.w3\\.org/|localhost|127\\.0\\.0\\.1)")
    places = [
        f"{name}: {match[0]}"
        for name, text in read_tracked_texts()
        for pattern in (wrong, insecure)
        for match in pattern.finditer(text)
    ]
    assert places == []


def test_numba_is_asked_in_one_place() -> None:
    """`core.compiling` knows what to do where nothing can be written: a read-only installation."""
    places = [
        str(file.relative_to(ROOT))
        for file in (ROOT / PACKAGE).rglob("*.py")
        if re.search(r"\bnjit\b", file.read_text(encoding="utf-8"))
    ]
    assert places == [f"{PACKAGE}/core/compiling.py"]


# --------------------------------------------------------------------------------- handles of Spark

CLASSIC_HANDLES = re.compile(
    r"\b_jvm\b|\b_jsc\b|\bsparkContext\b|\.rdd\b|\b_jdf\b|\b_jrdd\b|\b_jsparkSession\b"
)
"""Handles of a classic session, which one of Spark Connect lacks."""


def test_handles_that_connect_lacks_are_the_engines() -> None:
    """Modules outside of the engine run in every kind of session, and by a client that has no Java."""
    breaking = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*.py")
        if path.relative_to(ROOT / PACKAGE).parts[0] != "engine"
        and CLASSIC_HANDLES.search(path.read_text(encoding="utf-8"))
    ]
    assert breaking == []


NEWER_CALLS = re.compile(
    r"\.(try_cast|applyInArrow|repartitionById|is_valid_utf8)\(|\barrow_udf\b"
    r"|\bDataFrame\.union|[\w)]\[F\."
)
"""Calls that Spark 3.5 or 4.0 lacks; by Connect 3.5 knows no class's own union, and no column as a key."""


def test_calls_that_older_sparks_lack_are_the_engines() -> None:
    breaking = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*.py")
        if path.relative_to(ROOT / PACKAGE).parts[0] != "engine"
        and NEWER_CALLS.search(path.read_text(encoding="utf-8"))
    ]
    assert breaking == []


def test_a_client_of_connect_can_import_everything() -> None:
    """It has no context, no RDD, no py4j and no delta: only functions and annotations may name them."""
    lacking = re.compile(
        r"^((from|import) (py4j|delta)\b|from pyspark import .*(RDD|SparkContext|TaskContext))",
        re.MULTILINE,
    )
    allowed = {"recbench_spark/engine/sessions.py"}  # inside a try
    breaking = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*.py")
        if lacking.search(path.read_text(encoding="utf-8"))
    }
    assert breaking <= allowed


# --------------------------------------------------------------------------------- where a night writes

WRITING = {"append", "append_missing", "replace_rows"}
"""Methods of a warehouse that add or replace rows."""

WRITERS = {
    "recbench_spark/storage/commits.py": WRITING,
    # It gives lost runs the state `failed`, before a night begins.
    "recbench_spark/night/mending.py": {"replace_rows"},
}
"""Modules of a night that may call them. Steps return rows."""


def test_steps_of_a_night_return_rows() -> None:
    calls = {
        f"{name}: {node.attr}"
        for name, tree, _ in parse_files()
        if name.startswith("recbench_spark/night/") or name == "recbench_spark/storage/commits.py"
        for node in list_nodes(tree)
        if isinstance(node, ast.Attribute) and node.attr in WRITING
        if node.attr != "append" or ast.unparse(node.value).endswith(("store", "warehouse"))
    }
    allowed = {f"{name}: {verb}" for name, verbs in WRITERS.items() for verb in verbs}
    assert calls <= allowed and {f"{name}: append" for name in list(WRITERS)[:1]} <= calls


# --------------------------------------------------------------------------------- kinds of storage

KIND = re.compile(
    r"\b(is_remote|is_object_storage|is_hdfs|is_catalog_schema|may_have_folder|read_scheme)\("
    r'|\.in_catalog\b|\.is_file_storage\b|"://" (not )?in|isinstance\([\w.]*store, |store\.folder is'
)
"""A question which kind of storage a place or a warehouse has."""

KIND_IS_ASKED = {
    "commands": {
        "embed.py": 2,  # a word of a flag may be a URI
        "warehouses.py": 1,  # before a warehouse is opened
    },
    "sources": {  # inputs of users
        "digests.py": 1, "identity.py": 1, "log_sources.py": 2, "stored_embeddings.py": 1,
        "table_pieces.py": 2, "text_lines.py": 1, "text_pieces.py": 1,
    },
    "graphs": {
        "model_inputs.py": 1,  # what the network costs is measured
        "pipeline.py": 1,  # what is published on object storage stays
    },
    "night": {"model_fits.py": 1},  # checkpoints are on this host, and copies of them in the storage
    "query": {"answers.py": 1},  # a warehouse that is open is used again
    "runtime": {"journal.py": 2},  # a log grows in a folder alone
    "models": {"adapters/fit_files.py": 1, "adapters/retrieved.py": 1},  # files that tasks map
    "retrieval": {"nearest_nodes.py": 1},  # likewise
}  # fmt: skip
"""Modules outside `storage` that ask, and how many of their lines do; others call a driver or a store."""


def test_the_kind_of_a_storage_is_asked_by_drivers() -> None:
    lines_by_file = dict[str, int]()
    for file in source_files():
        lines = file.read_text(encoding="utf-8").splitlines()
        n = sum(map(bool, map(KIND.search, lines)))
        if n and PACKAGE in file.parts and "storage" not in file.parts:
            lines_by_file[file.relative_to(ROOT / PACKAGE).as_posix()] = n
    allowed = {f"{room}/{name}": n for room, files in KIND_IS_ASKED.items() for name, n in files.items()}
    assert {name: n for name, n in lines_by_file.items() if n > allowed.get(name, 0)} == {}
    assert sum(lines_by_file.values()) <= 21
