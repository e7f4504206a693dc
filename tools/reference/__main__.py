"""Write docs/reference and the views of metrics: python -m tools.reference."""

from __future__ import annotations

from tools.reference.pages import FOLDER, write_pages
from tools.reference.sql import SQL_FOLDER, write_views

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in write_pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    for name, text in write_views().items():
        (SQL_FOLDER / name).write_text(text, encoding="utf-8")
