"""Write docs/reference: python -m tools.reference."""

from __future__ import annotations

from tools.reference.pages import FOLDER, write_pages

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in write_pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
