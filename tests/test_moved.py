"""Old import paths: each leads to the module of today, and says so."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from recbench_spark.moved import MOVED, PACKAGE


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_is_the_module_of_today(old: str, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, f"{PACKAGE}.{old}", raising=False)
    with pytest.warns(FutureWarning, match=f"^{PACKAGE}.{old} is now {PACKAGE}.{MOVED[old]};"):
        module = import_module(f"{PACKAGE}.{old}")
    assert module is import_module(f"{PACKAGE}.{MOVED[old]}")
    assert module.__name__ == f"{PACKAGE}.{MOVED[old]}"


def test_a_name_is_imported_from_an_old_path() -> None:
    code = "from recbench_spark.training.model_adapter import Behaviour as B; print(B.__module__)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == f"{PACKAGE}.models.adapters.model_adapter"


def test_other_names_are_no_modules() -> None:
    for name in ("training.model_adaptor", "kernels.hashing", "trainings"):
        with pytest.raises(ModuleNotFoundError, match=name.rpartition(".")[2]):
            import_module(f"{PACKAGE}.{name}")
