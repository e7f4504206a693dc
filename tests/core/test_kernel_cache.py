"""Cached machine code of kernels counts only for the sources that it was made from."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from recbench_spark.core import compiling

SOURCE = """
from recbench_spark.core.compiling import compile_kernel


@compile_kernel
def double(x):
    return x + x
"""


def load_module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def count_hits(file: Path) -> int:
    kernel = load_module(file).double
    assert kernel(2.0) == 4.0
    return sum(kernel.stats.cache_hits.values())


@pytest.fixture
def file(tmp_path: Path, monkeypatch) -> Path:
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")  # else files of NUMBA_CACHE_DIR lie elsewhere
    monkeypatch.setattr(compiling, "digest_sources", lambda file: "one")
    file = tmp_path / "kernel_of_a_test.py"
    file.write_text(SOURCE)
    return file


def test_equal_sources_compile_once(file: Path) -> None:
    assert [count_hits(file), count_hits(file)] == [0, 1]


def test_code_of_other_sources_is_not_used(file: Path, monkeypatch) -> None:
    assert count_hits(file) == 0
    monkeypatch.setattr(compiling, "digest_sources", lambda file: "two")
    assert [count_hits(file), count_hits(file)] == [0, 1]


def test_an_index_that_names_a_class_that_is_gone_is_not_read(file: Path, monkeypatch) -> None:
    assert count_hits(file) == 0
    (index,) = file.parent.rglob("*.nbi")
    with index.open("rb") as handle:
        version = pickle.load(handle)
    index.write_bytes(pickle.dumps(version) + b"cno_such_module\nNoSuchClass\n.")
    monkeypatch.setattr(compiling, "digest_sources", lambda file: "two")
    assert count_hits(file) == 0


def clear_readings() -> None:
    for function in (compiling.digest_sources, compiling.list_imports, compiling.read_source):
        function.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """A package of the same name: `kernels/a.py` imports `kernels/b.py`, which imports `limits.py`."""
    folder = tmp_path / "recbench_spark" / "kernels"
    folder.mkdir(parents=True)
    (folder / "compiling.py").touch()
    (folder / "a.py").write_text("from recbench_spark.kernels import (\n    b,\n    missing,\n)\n")
    (folder / "b.py").write_text("from recbench_spark.limits import LIMIT\n")
    (folder / "c.py").write_text("import math\n")
    (folder.parent / "limits.py").write_text("LIMIT = 1\n")
    monkeypatch.setattr(compiling, "__file__", str(folder / "compiling.py"))
    clear_readings()
    yield folder
    clear_readings()


def test_the_digest_covers_what_a_kernel_imports_and_no_more(package: Path) -> None:
    def digests() -> list[str]:
        clear_readings()
        return [compiling.digest_sources(str(package / name)) for name in ("a.py", "b.py", "c.py")]

    before = digests()
    assert digests() == before and len(set(before)) == 3
    (package.parent / "limits.py").write_text("LIMIT = 2\n")
    after = digests()
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, False, True]


def test_every_kernel_of_the_package_is_read_with_its_imports() -> None:
    from recbench_spark.core import resampling

    names = {Path(file).name for file in compiling.list_sources(resampling.__file__)}
    assert {"resampling.py", "compiling.py", "arrays.py", "hashing.py"} <= names
