"""The command `recbench`: every job, its help, the nearest name, versions and completion. No JVM."""

from __future__ import annotations

import ast
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from recbench_spark import __version__, cli
from recbench_spark.commands import completion, dispatch, replay
from recbench_spark.core.extras import CORE, EXTRAS, install_command, list_packages

ROOT = Path(__file__).resolve().parent.parent


def run(*words: str, code: str = "", cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "recbench_spark"]
    return subprocess.run(
        [sys.executable, *start, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(cwd)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_job_is_a_command_with_a_summary() -> None:
    commands = dispatch.list_commands()
    assert commands.keys() >= {"nightly", "evaluate", "completion"}
    assert all(commands.values()) and "dispatch" not in commands
    lines = dispatch.describe_commands().splitlines()
    assert [line.split() for line in lines if line.startswith("  evaluate ")] == [
        ["evaluate", *commands["evaluate"].split()]
    ]


def test_a_reader_that_leaves_gets_no_trace() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "recbench_spark", "--version"]
    done = subprocess.run(words, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_help_of_all_and_of_one_and_wrong_names() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout == dispatch.describe_commands() + "\n"
    assert run().returncode == 2
    done = run("nightli")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no command 'nightli'\n  hint: did you mean 'nightly'?")
    done = run("evaluate", "--help")
    assert done.stdout.startswith("usage: recbench evaluate [-h]")
    assert "    recbench evaluate --warehouse DIR --model NAME --lists PATH" in done.stdout
    assert "jobs/" not in done.stdout


LOADED = """
import sys
from recbench_spark.commands import dispatch
heavy = {"numpy", "pandas", "pyarrow", "pyspark", "torch", "numba", "duckdb", "matplotlib"}
try:
    for name in dispatch.list_commands():
        dispatch.make_parser(name)
    dispatch.main()
except SystemExit:
    loaded = sorted(heavy & set(sys.modules))
    assert not loaded, loaded
"""


@pytest.mark.parametrize("words", [("--help",), ("evaluate", "--help"), ("nightly", "--help")])
def test_help_loads_nothing_that_takes_long(words: tuple[str, ...]) -> None:
    done = run(*words, code=LOADED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: recbench")


def test_a_flag_is_added_in_one_file(tmp_path: Path) -> None:
    """Help, completion and the work have a flag that the module of its command adds."""
    shutil.copytree(ROOT / "recbench_spark", tmp_path / "recbench_spark")
    module = tmp_path / "recbench_spark" / "commands" / "query.py"
    text = module.read_text()
    assert text.count("    return flags\n") == 1
    text = text.replace("    return flags\n", '    add("--aloud", help="say so")\n    return flags\n')
    (main,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == "main")
    lines = text.splitlines()
    lines.insert(main.body[1].lineno - 1, "    print(args.aloud)")
    module.write_text("\n".join(lines))
    assert "say so" in run("query", "--help", cwd=tmp_path).stdout
    assert "--aloud" in run("completion", "bash", cwd=tmp_path).stdout
    assert run("query", "--aloud", "here", "--list", cwd=tmp_path).stdout.startswith("here\ntables:")


def test_errors_name_the_command_that_runs_and_not_a_file_of_jobs(tmp_path: Path) -> None:
    (tmp_path / "beside" / "empty").mkdir(parents=True)  # no other warehouse lies beside it
    done = run("query", "--warehouse", str(tmp_path / "beside" / "empty"), "leaderboard")
    assert done.returncode == 2 and done.stderr.endswith("  hint: run recbench nightly first\n")


def test_versions_of_all_parts() -> None:
    lines = dict(line.split(maxsplit=1) for line in dispatch.describe_versions().splitlines())
    assert lines["recbench-spark"] == __version__ and lines["Python"] == sys.version.split()[0]
    assert lines["pyspark"] == version("pyspark") and lines["numpy"] == version("numpy")
    assert lines.keys() >= {"Java", *CORE, *(name for extra in EXTRAS for name in list_packages(extra))}
    missing = dispatch.find_version("no-such-package", "zoo")
    assert missing == f"not installed: {install_command('zoo')}"


def complete(script: str, *words: str) -> list[str]:
    """Answers of the script for bash after these words, the last of which is unfinished."""
    setting = f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}"
    code = f'{script}\n{setting}\n_recbench\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_completion_of_names_flags_and_paths() -> None:
    script = run("completion", "bash").stdout
    assert complete(script, "recbench", "night") == ["nightly"]
    assert "--split-seeds" in complete(script, "recbench", "nightly", "--")
    assert complete(script, "recbench", "evaluate", "--emb") == ["--embeddings"]
    assert complete(script, "recbench", "evaluate", f"{ROOT}/README") == [f"{ROOT}/README.md"]


def test_scripts_for_zsh_and_fish() -> None:
    flags = {"nightly": completion.list_flags("nightly")}
    assert 'complete -c recbench -n "__fish_seen_subcommand_from nightly" -l split-seeds\n' in (
        completion.write_fish(flags)
    )
    assert run("completion", "zsh").stdout.startswith(completion.ZSH)
    for shell in ("zsh", "fish"):
        if shutil.which(shell):
            done = subprocess.run(
                [shell, "-n"], input=run("completion", shell).stdout, text=True, check=False,
                env={**os.environ},
            )  # fmt: skip
            assert done.returncode == 0


def test_each_command_has_a_file_that_schedules_may_name(monkeypatch, capsys) -> None:
    files = {file.stem.replace("_", "-"): file for file in (ROOT / "jobs").glob("*.py")}
    assert files.keys() == dispatch.list_commands().keys() - {"completion"} | {"recbench"}
    for name, file in files.items():
        words = ["split"] if name == "recbench" else []
        monkeypatch.setattr(sys, "argv", [str(file), *words, "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(file), run_name="__main__")
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: recbench {words[0] if words else name} [-h]")


def test_replay_names_the_places_that_it_takes(capsys) -> None:
    """Its flag is the shared one but for its text: a replay refuses a warehouse in a catalog."""
    assert "catalog" not in dispatch.make_parser("replay").format_help()
    with pytest.raises(SystemExit) as ended:
        cli.run(replay.main, replay.parser(), ["--config", "demo", "--warehouse", "main.results"])
    assert ended.value.code == 2
    assert "neither a folder of this machine nor an object storage" in capsys.readouterr().err
