"""A log that flags name instead of a benchmark file: `--log`, `--reader`, `--columns`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from recbench_spark.errors import ConfigError
from recbench_spark.stored_files import text_separator


def log_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The flags as the section `dataset` of a benchmark file.

    Raises:
        ConfigError: --columns is no list of ours=theirs.
    """
    pairs = [pair.partition("=") for pair in args.columns.split(",") if pair]
    if not all(ours and theirs for ours, _, theirs in pairs):
        raise ConfigError(f"--columns {args.columns}: expected ours=theirs,...", "e.g. user_id=userId")
    return {
        "name": re.sub(r"[^A-Za-z0-9_.-]", "_", Path(args.log).name.lstrip("._-"))[:64] or "log",
        "reader": args.reader or reader_of(args.log),
        "path": args.log,
        "columns": {ours: theirs for ours, _, theirs in pairs},
    }


def reader_of(path: str) -> str:
    """The reader meant by a path's name or content."""
    if Path(path, "_delta_log").is_dir():
        return "delta"
    return "csv" if text_separator(path) else "parquet"
