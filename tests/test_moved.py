"""Old import paths: each leads to the module of today, and says so."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from recbench_spark import moved
from recbench_spark.moved import MOVED, PACKAGE

FOLDER = Path(moved.__file__).parent


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


def test_an_old_path_is_started_from_a_zip(tmp_path: Path) -> None:
    place = tmp_path / "package.zip"
    with zipfile.ZipFile(place, "w") as packed:
        for name in ("__init__.py", "moved.py", "night/__init__.py", "night/compile_kernels.py"):
            packed.write(FOLDER / name, f"{PACKAGE}/{name}")
    code = (
        f"import sys; sys.path.insert(0, {str(place)!r}); from {PACKAGE}.moved import MovedModules as M; "
        f"print(M().get_code('{PACKAGE}.runtime.compile_kernels').co_filename)"
    )
    alone = [sys.executable, "-I", "-S", "-c", code]  # no site: this package is also installed there
    ended = subprocess.run(alone, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == str(place / PACKAGE / "night" / "compile_kernels.py")


USER = """
import warnings; warnings.simplefilter("ignore")
import recbench_spark.config.models
from recbench_spark.engine.local import LocalEngine
if __name__ == "__main__":
    print(LocalEngine(FOLDER, workers=2).run_alone(abs, -3))
"""


def test_workers_do_not_import_old_paths(tmp_path: Path) -> None:
    """A second warning, in the process that workers are copied from, ends it where warnings are errors."""
    script = tmp_path / "user.py"
    script.write_text(USER.replace("FOLDER", repr(str(tmp_path))))
    command = [sys.executable, "-W", "error::FutureWarning", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("3\n", "")


def test_other_names_are_no_modules() -> None:
    for name in ("training.model_adaptor", "kernels.hashing", "trainings"):
        with pytest.raises(ModuleNotFoundError, match=name.rpartition(".")[2]):
            import_module(f"{PACKAGE}.{name}")
