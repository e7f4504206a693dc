"""The counts of prose: what is prose in a page and in a file of Python, and what is not."""

from __future__ import annotations

from pathlib import Path

from tools.prose_rates import Rates, list_pages, read_page, read_prose

MOST_WORDS = 40_000

PAGE = """# The rates of prose

Rates that count, [of a page](of/that.md), `of code`.

    of that

```
of that
```
| of | that |
"""
CODE = '''"""The sum of it."""

x = "of that"  # that comment


def f() -> None:
    """Return that."""
'''


def test_code_and_addresses_are_no_prose(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "code.py").write_text(CODE)
    counts = {kind: Rates.count(text) for kind, _, text in read_prose([tmp_path])}
    assert counts["pages"] == Rates(12, of=3, that=2)
    assert counts["docstrings"] == Rates(6, of=1, that=1)
    assert counts["comments"] == Rates(2, of=0, that=1)


def test_rates_are_of_a_hundred_words() -> None:
    rates = Rates.count("of " * 3 + "word " * 97)
    assert rates.per_hundred() == (3.0, 0.0) and rates.excess() == 1.0
    assert Rates.count("").per_hundred() == (0.0, 0.0)


def test_pages_written_by_hand_keep_the_limits() -> None:
    text = "\n".join(text for _, _, text in read_prose(list_pages()))
    assert Rates.count(text).excess() <= 1
    assert sum(len(read_page(page).split()) for page in list_pages()) <= MOST_WORDS
