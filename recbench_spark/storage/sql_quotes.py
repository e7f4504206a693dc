"""Quoted texts and names in SQL."""

from __future__ import annotations


def quote_sql(text: str, mark: str = "'") -> str:
    """Return a text between marks, with the marks in it doubled.

    A literal of DuckDB and `deltalake` has the mark `'`, a name of DuckDB `"`, a name of Spark a backtick.
    A literal of Spark has a function of its own (`table_sql.quote_text`): Spark reads backslashes, and 3.5
    leaves a doubled mark out.

    >>> quote_sql("b's")
    "'b''s'"
    """
    return mark + text.replace(mark, 2 * mark) + mark
