"""Run notebooks and store their outputs, or check them: python -m tools.notebooks [--check] [NAME ...].

Three of them read a warehouse: that of `make demo`, or the one that RECBENCH_WAREHOUSE names. The others
make their own data. One of these needs Java.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib as mpl
import nbformat
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Store or check the outputs of the named notebooks, or of all.

    Returns:
        0, or 1 if `--check` finds a difference or compares none.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    known = [path.stem for path in NOTEBOOKS]
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=[*known, []], help="notebooks (default: all)"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare texts with the stored ones, write nothing"
    )
    args = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    chosen = [path for path in NOTEBOOKS if not args.names or path.stem in args.names]
    if args.check:
        return check_outputs(chosen)
    for path in chosen:
        store_outputs(path)
    return 0


def check_outputs(paths: Sequence[Path]) -> int:
    """Compare the outputs of notebooks that make their own data; print which differ or are left out.

    Returns:
        0, or 1 if some differ or none was compared.
    """
    compared = [path for path in paths if not needs_warehouse(path)]
    left_out = [path.stem for path in paths if needs_warehouse(path)]
    differences = [line for path in compared for line in find_differences(path)]
    if compared:
        print("\n".join(differences) or f"same: {', '.join(path.stem for path in compared)}")
    if left_out:
        print(f"not compared, since what they show depends on a warehouse: {', '.join(left_out)}")
    return 1 if differences or not compared else 0


def needs_warehouse(path: Path) -> bool:
    """Return whether a notebook reads a warehouse, so that its outputs depend on it."""
    return "RECBENCH_WAREHOUSE" in path.read_text()


def store_outputs(path: Path) -> None:
    """Run a notebook in Jupyter's kernel and write it with its outputs."""
    from nbclient import NotebookClient  # noqa: PLC0415

    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, resources=place, record_timing=False).execute()
    for cell in list_code(notebook):
        # Progress and warnings of the machine are no results.
        cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)
    print(path.relative_to(ROOT), f"{path.stat().st_size // 1024} KB")


def list_code(notebook: Any) -> list[Any]:
    """Return the cells that hold code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def find_differences(path: Path) -> list[str]:
    """Return a line for each cell that prints or shows another text than the stored one."""
    notebook = nbformat.read(path, as_version=4)
    cells = list_code(notebook)
    with show_as_notebook():
        shown = list(run_cells([cell.source for cell in cells]))
    return [
        f"{path.stem}, code cell {n}: stored\n{stored}\nnow\n{now}"
        for n, (cell, now) in enumerate(zip(cells, shown, strict=True))
        if (stored := join_texts(cell.outputs)) is not None and stored.split() != now.split()
    ]


@contextmanager
def show_as_notebook() -> Iterator[None]:
    """Show frames as wide as Jupyter's kernel does, whatever the terminal, and draw to nowhere."""
    before = mpl.get_backend()
    mpl.use("agg")
    with pd.option_context("display.max_columns", 20, "display.width", 80):
        yield
    mpl.use(before)


def join_texts(outputs: Sequence[Any]) -> str | None:
    """Return the texts of a cell as stored, None where it shows a picture."""
    if any("image/png" in one.get("data", {}) for one in outputs):
        return None
    return "\n".join(one["text"] if "text" in one else one["data"]["text/plain"] for one in outputs)


def run_cells(sources: Sequence[str]) -> Iterator[str]:
    """Run cells one after another in one namespace; yield what each prints, and its last expression."""
    names: dict[str, Any] = {"__name__": "notebook"}
    for n, source in enumerate(sources):
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(tree, f"cell {n}", "exec"), names)
            value = eval(compile(ast.Expression(last.value), f"cell {n}", "eval"), names) if last else None
        yield "\n".join([printed.getvalue(), "" if value is None else repr(value)])


if __name__ == "__main__":
    sys.exit(main())
