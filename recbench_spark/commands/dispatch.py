"""Start `recbench` subcommands, one per job; help loads nothing else."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module, metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from recbench_spark import __version__
from recbench_spark.core.extras import CORE, EXTRAS, install_command, list_packages
from recbench_spark.errors import FAILED, OK, USAGE, cut_middle, nearest

if TYPE_CHECKING:
    from recbench_spark.cli import Parser

PROGRAM = "recbench"
PARSER = re.compile(r"^def parser\(", re.MULTILINE)
"""Function in every command's module.

Other modules in the folder lack it.
"""


def main() -> NoReturn:
    """Run `recbench` with the given words; exit with its code."""
    try:
        code = _answer(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    sys.exit(code)


def _answer(words: Sequence[str]) -> int:
    """Print the help or the versions, or start a command.

    A started command ends the process itself.
    """
    if not words or words[0] in ("-h", "--help", "help"):
        print(describe_commands())
        return OK if words else USAGE
    if words[0] in ("-V", "--version"):
        print(describe_versions())
        return OK
    name, known = words[0], list_commands()
    if name not in known:
        print(
            f"error: no command '{cut_middle(name, 100)}'\n  hint: {nearest(name, known)}", file=sys.stderr
        )
        return USAGE
    return start_command(name, words[1:])


def start_command(name: str, words: Sequence[str]) -> NoReturn:
    """Run a command, importing its work after parsing its flags."""
    from recbench_spark import cli  # noqa: PLC0415

    sys.argv = [f"{PROGRAM} {name}", *words]
    cli.run(lambda args: int(import_module(name_module(name)).main(args)), make_parser(name))


def name_module(name: str) -> str:
    """Return the module of a command, whose dashes are underscores there."""
    return f"{__package__}.{name.replace('-', '_')}"


def make_parser(name: str) -> Parser:
    """Make a command's parser, without the imports for its work.

    The module runs under the name `flags`, and leaves out the block `if __name__ != "flags"`.
    """
    path = name_module(name)
    loaded = sys.modules.get(path)
    module = vars(loaded) if loaded else runpy.run_module(path, run_name="flags")
    parser: Parser = module["parser"]()
    return parser


def list_commands() -> dict[str, str]:
    """Return each command's first sentence by name, without imports."""
    own, folder = Path(__file__).name, resources.files(__package__ or "")
    files = [file for file in folder.iterdir() if file.name.endswith(".py") and file.name != own]
    texts = {Path(file.name).stem.replace("_", "-"): file.read_text("utf-8") for file in files}
    return {name: _read_summary(text) for name, text in sorted(texts.items()) if PARSER.search(text)}


def _read_summary(text: str) -> str:
    return text.removeprefix('"""').partition("\n")[0].removesuffix('"""').rstrip(".")


def describe_commands() -> str:
    """Return the help text for `recbench`."""
    commands = list_commands()
    width = max(map(len, commands))
    lines = [f"  {name:{width}}  {summary}" for name, summary in commands.items()]
    return "\n".join(
        [
            f"usage: {PROGRAM} COMMAND [FLAGS]",
            "",
            "Exact, leak-free, reproducible evaluation of recommender systems.",
            "",
            *lines,
            "",
            f"{PROGRAM} COMMAND --help lists the flags of a command.",
            f"{PROGRAM} --version prints the versions of all parts.",
        ]
    )


def describe_versions() -> str:
    """Return each part's version.

    For a missing part, the text has the command which installs it.
    """
    rows = [("recbench-spark", __version__), ("Python", sys.version.split()[0]), ("Java", find_java())]
    rows += [(name, find_version(name, "")) for name in CORE]
    rows += [(name, find_version(name, extra)) for extra in EXTRAS for name in list_packages(extra)]
    return "\n".join(f"{name:15} {version}" for name, version in rows)


def find_version(package: str, extra: str) -> str:
    """Return a package's version, or how to install it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return f"not installed: {install_command(extra) if extra else f'pip install {package}'}"


def find_java() -> str:
    """Return the Java version which Spark would start."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        return "not installed; Spark needs Java 17"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} does not start: {error}"
    version = re.search(r'version "([^"]+)"', done.stderr)
    return version[1] if version else f"{java} gives no version"
