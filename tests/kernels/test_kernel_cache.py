"""Cached machine code of kernels counts only for the sources that it was made from."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from types import ModuleType

import pytest

from recbench_spark.kernels import compiling

SOURCE = """
from recbench_spark.kernels.compiling import compile_kernel


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
    pytest.importorskip("numba")
    monkeypatch.setattr(compiling, "digest_sources", lambda: "one")
    file = tmp_path / "kernel_of_a_test.py"
    file.write_text(SOURCE)
    return file


def test_equal_sources_compile_once(file: Path) -> None:
    assert [count_hits(file), count_hits(file)] == [0, 1]


def test_code_of_other_sources_is_not_used(file: Path, monkeypatch) -> None:
    assert count_hits(file) == 0
    monkeypatch.setattr(compiling, "digest_sources", lambda: "two")
    assert [count_hits(file), count_hits(file)] == [0, 1]


def test_an_index_that_names_a_class_that_is_gone_is_not_read(file: Path, monkeypatch) -> None:
    assert count_hits(file) == 0
    (index,) = file.parent.rglob("*.nbi")
    with index.open("rb") as handle:
        version = pickle.load(handle)
    index.write_bytes(pickle.dumps(version) + b"cno_such_module\nNoSuchClass\n.")
    monkeypatch.setattr(compiling, "digest_sources", lambda: "two")
    assert count_hits(file) == 0


def test_the_digest_is_of_the_kernels_as_they_are() -> None:
    assert len(compiling.digest_sources()) == 16
    assert compiling.digest_sources() == compiling.digest_sources()
