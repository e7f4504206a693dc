"""A model's module is found beside its YAML file and in the working folder, however Python was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recbench_spark.config.loading import load_benchmark
from recbench_spark.core import own_modules
from recbench_spark.errors import ConfigError
from recbench_spark.models.settings import import_class

MODULE = """
from typing import Literal
from {helper} import NUMBER
from recbench_spark.models.rating.kinds import VectorModel


class MostRated(VectorModel):
    kind: Literal["{module}_most_rated"]
    dims: int = NUMBER
"""

FILE = """
name: mine
dataset: {{name: log, reader: world}}
models: [{{name: mine, kind: "{module}:MostRated"}}]
"""


def write_model(folder: Path, module: str) -> Path:
    """Write a module with a sibling, and a benchmark that names it; return the benchmark."""
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(MODULE.format(module=module, helper=f"{module}_helper"))
    (folder / f"{module}_helper.py").write_text("NUMBER = 3\n")
    (folder / "mine.yaml").write_text(FILE.format(module=module))
    return folder / "mine.yaml"


@pytest.fixture(autouse=True)
def _clean_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(own_modules, "_beside", [])
    monkeypatch.setattr(own_modules, "_searched", [])


def test_a_module_beside_the_file_is_found_with_what_it_imports(tmp_path: Path) -> None:
    (model,) = load_benchmark(str(write_model(tmp_path / "a", "beside_file"))).models
    assert getattr(model, "dims", 0) == 3
    names = [place.name for place in own_modules.list_own_modules()]
    assert names == ["beside_file.py", "beside_file_helper.py"]


def test_a_module_in_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "b", "in_working_folder")
    monkeypatch.chdir(tmp_path / "b")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert import_class("in_working_folder:MostRated").__name__ == "MostRated"


def test_a_package_beside_the_file_is_found_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("")
    write_model(tmp_path / "own_package", "inner")
    text = (tmp_path / "own_package" / "inner.py").read_text()
    (tmp_path / "own_package" / "inner.py").write_text(text.replace("from inner", "from own_package.inner"))
    (tmp_path / "mine.yaml").write_text(FILE.format(module="own_package.inner"))
    load_benchmark(str(tmp_path / "mine.yaml"))
    assert own_modules.list_own_modules() == [tmp_path / "own_package"]


def test_a_module_that_is_nowhere_is_an_error_that_says_where_it_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(FILE.format(module="no_such_models"))
    with pytest.raises(ConfigError, match=r"models.0.kind.*no_such_models") as error:
        load_benchmark(str(tmp_path / "mine.yaml"))
    assert "beside the YAML file" in error.value.hint and "--py-files" in error.value.hint


def test_an_error_of_the_module_itself_is_told(tmp_path: Path) -> None:
    path = write_model(tmp_path / "c", "needs_another")
    (tmp_path / "c" / "needs_another_helper.py").write_text("import no_such_library_of_mine\n")
    with pytest.raises(ConfigError, match="no_such_library_of_mine"):
        load_benchmark(str(path))


def test_the_command_finds_it_from_any_folder(tmp_path: Path) -> None:
    path = write_model(tmp_path / "d", "for_the_command")
    command = [sys.executable, "-P", "-c", "from recbench_spark.config.loading import load_benchmark as f; "
               f"print(f({str(path)!r}).models[0].dims)"]  # fmt: skip
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "3", done.stderr
