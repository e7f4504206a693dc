"""Kernels become machine code also where nothing can be kept on disk."""

from __future__ import annotations

from typing import Any

import numba
import pytest

from recbench_spark.core import compiling


def test_without_a_folder_that_can_be_written_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's installation and no home: numba refuses to cache, and the job goes on."""
    requests: list[bool] = []
    real = numba.njit

    def njit(*given: Any, **options: Any) -> Any:
        requests.append(options.get("cache", False))
        if requests[-1]:
            raise RuntimeError("cannot cache function 'f': no locator available for file 'x.py'")
        return real(*given, **options)

    monkeypatch.setattr(numba, "njit", njit)
    assert compiling.compile_kernel(lambda n: n + 1)(2) == 3 and requests[:2] == [True, False]
