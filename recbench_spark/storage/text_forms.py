"""Names of separators and encodings of text files, which settings know too."""

from __future__ import annotations

import codecs

BLANKS = "blanks"
"""Name of a separator: one or several blanks, of which tabs are some."""

WIDE = ("utf-16", "utf-32")
"""Encodings in which the end of a line is more than one byte: no reader of lines finds it."""

TO_UTF8 = "write it in UTF-8: iconv -f UTF-16 -t UTF-8 FILE"
"""Hint for text in such an encoding."""


def is_wide(encoding: str) -> bool:
    """Return whether an encoding is one of WIDE."""
    try:
        return codecs.lookup(encoding).name.startswith(WIDE)
    except LookupError:
        return False
