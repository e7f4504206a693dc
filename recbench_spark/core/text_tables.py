"""Tables of plain text, the same in a terminal and in a pipe.

They are written by hand, and not by rich: programs read them too, so no line depends on a terminal's width.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def align_cells(rows: Sequence[Sequence[str]], right: Collection[int] | None = None) -> list[str]:
    """Return a line for each row, with two blanks between columns.

    Args:
        rows: rows of equal length.
        right: numbers of the columns whose cells end at one place; None: all but the first.

    >>> align_cells([["a", "10"], ["bcd", "9"]])
    ['a    10', 'bcd   9']
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    ends = range(1, len(widths)) if right is None else right
    padded = (
        (cell.rjust(width) if n in ends else cell.ljust(width))
        for row in rows
        for n, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return ["  ".join(next(padded) for _ in widths).rstrip() for _ in rows]
