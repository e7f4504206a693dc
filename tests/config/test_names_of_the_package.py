"""Names of `recbench_spark.config` are imported when they are first used, each from its own module."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from recbench_spark import config

FILE = Path(str(config.__file__))


def list_names() -> list[tuple[str, str]]:
    """Modules and names of the imports that type checkers read."""
    imports = [node for node in ast.walk(ast.parse(FILE.read_text())) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if node.module and node.module.startswith("recbench_spark.config.")]
    return [(str(node.module), alias.name) for node in ours for alias in node.names]


def test_each_name_is_that_of_its_module() -> None:
    names = list_names()
    assert sorted(name for _, name in names) == sorted(config.__all__)
    for module, name in names:
        assert getattr(config, name) is getattr(import_module(module), name), name
    with pytest.raises(AttributeError, match="no attribute 'Bootstraps'"):
        _ = config.Bootstraps


def test_a_call_loads_no_settings_of_nights() -> None:
    module = "recbench_spark.config.benchmark"
    code = f"import sys, recbench_spark.adhoc.local_engine; print('{module}' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
