"""Names of separators and encodings, which settings know too."""

from __future__ import annotations

import codecs

BLANKS = "blanks"
"""Name of a separator: one or several blanks; tabs are blanks, too."""

WIDE = ("utf-16", "utf-32")
"""Encodings with more than one byte at the end of a line: no reader of lines finds it."""

TO_UTF8 = "write it in UTF-8: iconv -f UTF-16 -t UTF-8 FILE"
"""Hint for text in such an encoding."""


def is_wide(encoding: str) -> bool:
    """Check whether an encoding is one of WIDE."""
    try:
        return codecs.lookup(encoding).name.startswith(WIDE)
    except LookupError:
        return False
