"""The notebooks hold outputs, show them again, and run on another warehouse."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tests.nights import Ran
from tools.notebooks import NOTEBOOKS, find_differences, list_code, main, needs_warehouse

OF_A_WAREHOUSE = [path for path in NOTEBOOKS if needs_warehouse(path)]
OF_THEIR_OWN = [path for path in NOTEBOOKS if not needs_warehouse(path)]
NIGHT = "a_night_on_your_log"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored(path: Path) -> None:
    cells = list_code(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run: make notebooks"
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs and not [
        one for one in outputs if one.output_type == "error" or one.get("name") == "stderr"
    ]
    places = re.findall(r"/(?:tmp|work|home|root)/[\w./]+", str(outputs))
    assert places == [], "outputs name no place of a machine"


@pytest.mark.full
@pytest.mark.parametrize(
    "path", [path for path in OF_THEIR_OWN if path.stem != NIGHT], ids=lambda path: path.stem
)
def test_cells_show_what_is_stored(path: Path) -> None:
    assert find_differences(path) == []


@pytest.mark.full
def test_a_night_on_an_own_log_shows_what_is_stored(spark: object) -> None:
    (path,) = [path for path in OF_THEIR_OWN if path.stem == NIGHT]
    assert find_differences(path) == []


def test_another_output_is_seen(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("print(1 + 1)")
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="2\n")]
    path = tmp_path / "sum.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    assert find_differences(path) == []
    path.write_text(path.read_text().replace('"2\\n"', '"3\\n"'))
    (line,) = find_differences(path)
    assert line.startswith("sum, code cell 0: stored\n3")


def test_a_check_says_what_it_did_not_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "read_leaderboard"]) == 1, "nothing was compared"
    printed = capsys.readouterr().out
    assert printed.startswith("not compared") and printed.endswith(": read_leaderboard\n")


def test_without_names_all_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[Path] = []
    monkeypatch.setattr("tools.notebooks.store_outputs", run.append)
    assert main([]) == 0 and run == NOTEBOOKS
    assert main(["read_leaderboard"]) == 0 and [path.stem for path in run[len(NOTEBOOKS) :]] == [
        "read_leaderboard"
    ]


def test_an_unknown_notebook_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--check", "read_leaderbord"])
    assert stopped.value.code == 2 and "'read_leaderboard'" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize(
    "path",
    OF_A_WAREHOUSE,
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_on_a_warehouse(
    path: Path, small_night: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("RECBENCH_WAREHOUSE", small_night.store.root)
    monkeypatch.setenv("RECBENCH_SUITE", "small")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    shown = "".join(str(cell.get("outputs")) for cell in notebook.cells)
    assert "truth" in shown and "image/png" in shown
    assert "'stderr'" not in shown
