"""Count words, "of" and "that" in prose: python -m tools.prose_rates [--worst N] [PATH ...].

One line each for docstrings, comments and pages: words, and "of" and "that" a hundred words. Without a
path: the package, its jobs, and the pages that people write. Code and addresses of links are no prose.
`--worst N` lists the N files with the highest rates; `wc` counts the words of pages as `wc -w` does.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
CODE = re.compile(r"^```.*?^```$|^(?: {4}[^\n]*\n)+|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\([^)]*\)")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
MOST = {"of": 3.0, "that": 0.8}
"""Most words of a kind among a hundred words of pages."""

FEWEST_WORDS = 150
"""Files with fewer words are not listed as the worst: one sentence decides their rates."""

WRITTEN = {"reference", "presets.md"}
"""Folders and pages of docs that tools write."""

WRITTEN_BLOCK = re.compile(r"<!-- written by .*?<!-- end -->", re.DOTALL)
"""A block of a page that a tool writes."""

Prose = tuple[str, Path, str]
"""A kind, a file, and the text of this kind in it."""


@dataclass
class Rates:
    """Words of a text, and those that a chain of words needs."""

    words: int
    of: int
    that: int

    @classmethod
    def count(cls, text: str) -> Rates:
        """Count the words of a text."""
        words = [word.lower() for word in WORD.findall(text)]
        return cls(len(words), words.count("of"), words.count("that"))

    def per_hundred(self) -> tuple[float, float]:
        """Return "of" and "that" a hundred words."""
        hundred = max(self.words, 1) / 100
        return self.of / hundred, self.that / hundred

    def excess(self) -> float:
        """Return by how much the worse rate is above its bound, as a quotient."""
        return max(rate / most for rate, most in zip(self.per_hundred(), MOST.values(), strict=True))


def list_pages() -> list[Path]:
    """Return the pages that people write, without the list of changes."""
    pages = [
        path
        for path in ROOT.glob("docs/**/*.md")
        if path.relative_to(ROOT / "docs").parts[0] not in WRITTEN
    ]
    return sorted([*pages, *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING"))])


def read_code(path: Path) -> Iterator[Prose]:
    """Yield the docstrings and the comments of a file of Python."""
    text = path.read_text()
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED)]
    yield "docstrings", path, "\n".join(ast.get_docstring(node) or "" for node in nodes)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    yield "comments", path, "\n".join(comments)


def read_page(path: Path) -> str:
    """Return a page without the blocks that tools write."""
    return WRITTEN_BLOCK.sub("", path.read_text())


def read_prose(paths: list[Path]) -> Iterator[Prose]:
    """Yield the prose of files, and of all files of Python and all pages below folders."""
    for path in paths:
        if path.is_dir():
            yield from read_prose(sorted([*path.rglob("*.py"), *path.rglob("*.md")]))
        elif path.suffix == ".py":
            yield from read_code(path)
        else:
            yield "pages", path, LINK.sub("]", CODE.sub("", read_page(path)))


def main() -> None:
    """Print the rates of each kind, then the worst files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="list the N worst files")
    args = parser.parse_args()
    paths = args.paths or [ROOT / "recbench_spark", ROOT / "jobs", *list_pages()]
    prose = list(read_prose(paths))
    for kind in ("docstrings", "comments", "pages"):
        print_line(kind, Rates.count("\n".join(text for one, _, text in prose if one == kind)))
    total = sum(len(read_page(path).split()) for kind, path, _ in prose if kind == "pages")
    print(f"wc: {total:,} words of pages")
    counted = [(Rates.count(text), f"{path} ({kind})") for kind, path, text in prose]
    worst = sorted(
        (one for one in counted if one[0].words >= FEWEST_WORDS), key=lambda one: -one[0].excess()
    )
    for rates, name in worst[: args.worst]:
        print_line(name, rates)


def print_line(name: str, rates: Rates) -> None:
    """Print one line of the table."""
    of, that = rates.per_hundred()
    print(f"{of:5.2f} of  {that:5.2f} that  {rates.words:7,} words  {name}")


if __name__ == "__main__":
    main()
