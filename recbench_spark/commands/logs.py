"""Read the flags that name a log: `--log`, `--reader`, `--columns`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from recbench_spark import cli
from recbench_spark.readers import find_name
from recbench_spark.storage.local_files import bare_name, data_files, has_delta_log, text_separator


def log_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the flags as a benchmark file's section `dataset`.

    Raises:
        ConfigError: --columns is not a list of NAME=COLUMN.
    """
    return {
        "name": re.sub(r"[^A-Za-z0-9_.-]", "_", Path(args.log).name.lstrip("._-"))[:64] or "log",
        "reader": args.reader or guess_reader(args.log),
        "path": args.log,
        "columns": cli.parse_columns(args.columns, "user_id=userId"),
    }


def name_log(path: str) -> str:
    """Return a benchmark name: the log's file name, without endings."""
    stem = bare_name(str(Path(path).absolute()))
    return re.sub(r"[^A-Za-z0-9_-]", "_", re.sub(r"(?<=.)\.\w+$", "", stem).lstrip("._-"))[:64] or "log"


def guess_reader(path: str) -> str:
    """Return the reader which fits a path's name or content."""
    if has_delta_log(path):
        return "delta"
    if text_separator(path):
        return "csv"
    files = [file.name for file in data_files(Path(path))] if Path(path).is_dir() else [path]
    return next(filter(None, map(find_name, files)), "parquet")
