"""Mutants outside the kernels: where they are drawn, and which tests try them."""

from __future__ import annotations

from pathlib import Path

from tools.mutants import draw, list_nearest_tests, stages


def write(root: Path, **imports: str) -> None:
    """A tree of files, `folder__name`, each of which imports one module."""
    for name, module in imports.items():
        file = root / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"from recbench_spark.{module} import it\n")


def test_packages_are_drawn_by_the_seed_alone() -> None:
    patterns = ["query/*.py", "storage/u*.py"]
    drawn = draw(patterns, 1, 20, None)
    assert {mutant.path.partition("/")[0] for mutant in drawn} == {"query", "storage"}
    assert drawn == draw(patterns[::-1], 1, 20, None) and drawn != draw(patterns, 2, 20, None)


def test_a_file_is_tried_by_what_imports_it_and_then_by_its_folder(tmp_path: Path) -> None:
    write(tmp_path, tests__query__test_a="storage.rows", tests__test_b="storage.rows")
    write(tmp_path, recbench_spark__storage__rows="storage.names", tests__storage__test_rows="errors")
    tests = "tests/query/test_a.py tests/test_b.py"
    own = "tests/storage/test_rows.py"
    assert list(stages("storage/rows.py", tmp_path)) == [own, tests, "tests/storage"]
    assert list(stages("storage/names.py", tmp_path)) == [tests, "tests/storage"]
    assert list(stages("night/night.py", tmp_path)) == []


def test_files_that_import_each_other_end() -> None:
    uses = {"a.py": {"b.py"}, "b.py": {"a.py", "c.py"}, "c.py": {"tests/test_c.py"}}
    assert list_nearest_tests("a.py", uses) == ["tests/test_c.py"]
    assert list_nearest_tests("a.py", {"a.py": {"b.py"}, "b.py": {"a.py"}}) == []
