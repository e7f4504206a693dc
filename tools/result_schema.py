"""Write docs/results.schema.json, the schema of the files in `results/`: python -m tools.result_schema."""

from __future__ import annotations

import json
from pathlib import Path

from recbench_spark.night.result_files import make_schema

PLACE = Path(__file__).resolve().parent.parent / "docs" / "results.schema.json"


def write_schema() -> str:
    """Return the text of the schema."""
    return json.dumps(make_schema(), indent=2) + "\n"


if __name__ == "__main__":
    PLACE.write_text(write_schema(), encoding="utf-8")
