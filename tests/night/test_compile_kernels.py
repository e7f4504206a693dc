"""`compile_kernels` finds the modules that call kernels, and these reach every kernel."""

from __future__ import annotations

import runpy
from collections import Counter
from functools import partial
from importlib import import_module, resources
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from recbench_spark.core import compiling
from recbench_spark.night.compile_kernels import PACKAGE, find_modules

numba = pytest.importorskip("numba")

ROOT = Path(str(resources.files(PACKAGE)))
MARKS = ("@compile_kernel", "@compile_with_python_errors", "= compile_kernel(")


def list_kernels(module: ModuleType) -> list[Any]:
    """Kernels that a module defines."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, numba.core.dispatcher.Dispatcher)
        and value.py_func.__module__ == module.__name__
    ]


def find_files_with_kernels() -> dict[Path, str]:
    """Sources with a compiled function, and their modules."""
    return {
        file: ".".join((PACKAGE, *file.relative_to(ROOT).with_suffix("").parts))
        for file in ROOT.rglob("*.py")
        if file.name != "compiling.py" and any(mark in file.read_text() for mark in MARKS)
    }


def test_every_file_with_kernels_is_imported_by_a_module_that_warms() -> None:
    modules = list(find_modules(ROOT, PACKAGE))
    assert len(modules) == len(set(modules)) > 8 and f"{PACKAGE}.retrieval.kernels.warm_kernels" in modules
    files = [ROOT.parent / f"{module.replace('.', '/')}.py" for module in modules]
    reached = Counter(source for file in files for source in compiling.list_sources(str(file)))
    assert [str(file) for file in find_files_with_kernels() if not reached[str(file)]] == []


def test_the_command_takes_names_of_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for module in find_modules(ROOT, PACKAGE):
        monkeypatch.setattr(f"{module}.warm", partial(calls.append, module))
    monkeypatch.setattr("sys.argv", ["compile_kernels", "metrics", "splits"])
    runpy.run_path(str(ROOT / "night" / "compile_kernels.py"), run_name="__main__")
    assert calls == [f"{PACKAGE}.{room}.kernels.warm_kernels" for room in ("metrics", "splits")]
    monkeypatch.setattr("sys.argv", ["compile_kernels"])
    runpy.run_path(str(ROOT / "night" / "compile_kernels.py"), run_name="__main__")
    assert calls[2:] == list(find_modules(ROOT, PACKAGE))


@pytest.mark.full
@pytest.mark.parametrize("module", find_modules(ROOT, PACKAGE))
def test_a_room_leaves_no_kernel_of_its_own_without_code(module: str) -> None:
    """A kernel without code is at least called by another one."""
    pytest.importorskip("torch")
    import_module(module).warm()
    room = ROOT.parent / module.rpartition(".")[0].replace(".", "/")
    names = [name for file, name in find_files_with_kernels().items() if file.parent == room]
    kernels = [kernel for name in names for kernel in list_kernels(import_module(name))]
    called = [
        kernel.py_func.__globals__.get(name)
        for kernel in kernels
        for name in kernel.py_func.__code__.co_names
    ]
    without_code = [kernel for kernel in kernels if not kernel.signatures]
    assert [kernel.__name__ for kernel in without_code if kernel not in called] == []
