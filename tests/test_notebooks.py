"""The notebooks run on a warehouse, and are stored without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.nights import Ran

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
ids = [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_outputs_are_stripped(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert cell.cell_type != "code" or (cell.outputs == [] and cell.execution_count is None)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.full] * (path.stem != "read_leaderboard"))
        for path in NOTEBOOKS
    ],
    ids=ids,
)
def test_a_notebook_runs(path: Path, small_night: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("RECBENCH_WAREHOUSE", small_night.store.root)
    monkeypatch.setenv("RECBENCH_SUITE", "small")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    shown = "".join(str(cell.get("outputs")) for cell in notebook.cells)
    assert "truth" in shown and "image/png" in shown
    assert "'stderr'" not in shown
