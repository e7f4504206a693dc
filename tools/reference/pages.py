"""Make every page of docs/reference."""

from __future__ import annotations

import argparse
import getpass
import inspect
import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from pydantic import BaseModel

import recbench_spark
from recbench_spark import errors
from recbench_spark.analyses.comparisons.comparison import Comparison
from recbench_spark.auctions.settings import ReplayFile
from recbench_spark.commands.dispatch import list_commands, make_parser
from recbench_spark.config import Benchmark
from recbench_spark.config.bundle import Bundle
from recbench_spark.core.definitions import PRESET_VERSIONS, PRESETS, Definition
from recbench_spark.core.metric_names import ALIASES
from recbench_spark.graphs.settings import GraphModel, NeighbourhoodSettings
from recbench_spark.metrics.kernels.about import ABOUT, FAMILIES, About, list_families, place_in_reports
from recbench_spark.metrics.kernels.accuracy import METRICS
from recbench_spark.metrics.kernels.texts import ESTIMATOR_TEXTS
from recbench_spark.metrics.result import Result
from recbench_spark.models.rating.kinds import VectorModel
from recbench_spark.models.settings import MODELS, ModelConfig, list_kinds
from recbench_spark.retrieval.settings import NearestNodes
from recbench_spark.schemas import TABLES
from tools.presets_table import WHAT_DIFFERS
from tools.reference.markdown import make_anchor, write_table
from tools.reference.settings import (
    introduce,
    list_sections,
    list_settings,
    read_texts,
    show_default,
    show_field,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- python -m tools.reference writes this page from the code. -->\n"
FILES: tuple[type[BaseModel], ...] = (ReplayFile, GraphModel, NeighbourhoodSettings, NearestNodes, Bundle)
"""Classes of files beside a benchmark file."""

CODES = (
    ("0", "succeeded, or nothing was left to do"),
    ("1", "failed: the last lines say why, with a hint; `--debug` shows the trace"),
    ("2", "wrong usage or config: a flag, key or value"),
    ("3", "a quality gate failed (`gates`)"),
    ("4", "a metric fell further than a regression allows (`regressions`)"),
    ("5, 6", "a model is too good, or cannot be judged, where `exit_on` says so"),
    ("130, 143", "interrupted (Ctrl-C, SIGTERM): nothing is published; run it again"),
)


@cache
def list_model_classes() -> list[type[ModelConfig]]:
    """Return the classes of all kinds of this package, by kind."""
    own = [MODELS[kind] for kind in list_kinds()]
    return [model for model in own if model.__module__.startswith("recbench_spark.")]


@cache
def list_documented() -> list[type[BaseModel]]:
    """Return all classes whose settings a page describes."""
    roots = (Benchmark, *FILES, *list_model_classes())
    return list(dict.fromkeys(section for root in roots for section in list_sections(root)))


def write_settings(model: type[BaseModel], skip: tuple[str, ...] = ()) -> str:
    """Return the table of a class's settings."""
    texts = read_texts(model)
    rows = [
        (
            f"`{field.alias or name}`",
            link_sections(show_field(field)),
            show_default(field),
            texts.get(name, ""),
        )
        for name, field in model.model_fields.items()
        if name not in skip
    ]
    return write_table(("key", "values", "default", "what it does"), rows)


def link_sections(text: str) -> str:
    """Return the text of a type with links to the sections that it names."""
    for model in list_documented():
        page = "models" if model is ModelConfig else PLACES.get(model.__name__, "")
        target = f"{page}.md" if model is ModelConfig else f"{page}.md#{make_anchor(model.__name__)}"
        text = text.replace(f"[{model.__name__}]", f"[{model.__name__}]({target})")
    return text


def make_configuration() -> str:
    """Return the page of a benchmark file."""
    parts = [
        "# Configuration: the benchmark file\n",
        "One YAML file is one complete protocol. `--set section.key=value` on the command line replaces a"
        " key. An unknown key is an error that names the nearest known one.\n",
    ]
    return "\n".join([*parts, *(_write_section(model) for model in _list_inner_sections(Benchmark))])


def make_files() -> str:
    """Return the page of all other files and sections of commands."""
    parts = ["# Other files: replays, graphs, bundles\n"]
    models = [model for root in FILES for model in _list_inner_sections(root)]
    fresh = [model for model in dict.fromkeys(models) if PLACES[model.__name__] == "files"]
    return "\n".join([*parts, *map(_write_section, fresh)])


def _list_inner_sections(root: type[BaseModel]) -> list[type[BaseModel]]:
    return [model for model in list_sections(root) if model is not ModelConfig]


def _write_section(model: type[BaseModel]) -> str:
    return f"## {model.__name__}\n\n{introduce(model)}\n\n{write_settings(model)}"


def make_models() -> str:
    """Return the page of all kinds of models."""
    shared = list_settings(ModelConfig)
    parts = [
        "# Models\n",
        "An entry of `models:` names a `kind`; `kind: my_package.module:MyModel` is a class of your own"
        " ([how](../how_to/bring_your_model.md)). All kinds have these keys:\n",
        write_settings(ModelConfig),
    ]
    for model in list_model_classes():
        kind = model.model_fields["kind"].annotation.__args__[0]  # type: ignore[union-attr]
        own = [name for name in list_settings(model) if name not in shared]
        table = write_settings(model, tuple(shared)) if own else "No further keys.\n"
        parts.append(f"## {kind}\n\n{introduce(model)}\n\n{table}")
    inner = [model for model in list_documented() if PLACES[model.__name__] == "models"]
    return "\n".join([*parts, *map(_write_section, inner)])


def _place_sections() -> dict[str, str]:
    """Return the page of each section by its name: the first page that has it."""
    places: dict[str, str] = {}
    pages = (
        ("configuration", (Benchmark,)),
        ("files", FILES),
        ("models", tuple(list_model_classes())),
    )
    for page, roots in pages:
        for root in roots:
            for model in list_sections(root):
                is_kind = page == "models" and model is root
                places.setdefault(model.__name__, "" if is_kind else page)
    return places


PLACES = _place_sections()


def make_metrics() -> str:
    """Return the page of metrics and estimators."""
    parts = [
        "# Metrics\n",
        "## What a metric does for a user without relevant items\n",
        "nDCG, recall, MAP, MRR and the other metrics of ranks have no value for such a user. The default"
        " leaves the user out and counts it in a check; `empty_users: zero` gives it 0. A user with"
        " relevant items and no list counts 0 ([`users`](definitions.md#users),"
        " [`empty_users`](definitions.md#empty_users)).\n",
        "## Names\n",
        "Names are read as people write them: `NDCG@10`, `HR`, `hit_rate`. A number is a mean over users"
        " unless its formula says otherwise, with a 95 % interval of a bootstrap over users. An axis is one"
        " of the [definition](definitions.md), and changes the formula.\n",
        "## Families\n",
        "`metrics: [ndcg, {family: popularity}]` in a benchmark file, the same in a call, and `--metrics"
        " ndcg,family:popularity` take all metrics of a family whose inputs are given; a line says what is"
        " left out. A report has a table for each family beyond accuracy.\n",
        write_table(
            ("family", "what it is for", "metrics"),
            [(f"`{n}`", FAMILIES[n], ", ".join(map(_name_needs, of))) for n, of in list_families().items()],
        ),
        "What none of them shows: whether people are glad of what they see, why a group is shown less (its"
        " items may be fewer, worse, or unknown to the log), and whether an equal share is a fair one."
        " Held-out rows are what an earlier recommender showed; a group that it hid has no truth to be"
        " found. The tables `user_spreads`, `group_gaps`, `preferences` and `fronts` say who wins and who"
        " loses.\n",
        *map(_write_metric, _sort_metrics(ABOUT)),
        "## Estimators\n",
        "The column `estimator` says how a number is corrected for exposure or for drawn candidates"
        " ([exposure bias](../explain/exposure_bias.md)).\n",
        write_table(
            ("estimator", "in full", "what it does", "source"),
            [(f"`{n}`", t.title, t.meaning, t.source) for n, t in ESTIMATOR_TEXTS.items()],
        ),
    ]
    return "\n".join(parts)


def _name_needs(name: str) -> str:
    needs = [need for need in ABOUT[name].needs if need not in ("train", "uncut")]
    return f"[{name}](#{name})" + (f" (needs {', '.join(needs)})" if needs else "")


def _sort_metrics(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (place_in_reports(name), name))


def _write_metric(name: str) -> str:
    about = ABOUT[name]
    axes = METRICS[name].axes if name in METRICS else ()
    also = [f"`{alias}`" for alias, ours in ALIASES.items() if ours == name]
    rows = [
        ("formula", about.formula),
        ("edge rule", about.edges),
        ("best", _write_best(about)),
        ("axes", ", ".join(f"[`{axis}`](definitions.md#{axis})" for axis in axes)),
        ("also read", ", ".join(also)),
        ("source", about.source),
    ]
    lines = [f"- **{label}**: {content}" for label, content in rows if content]
    return f"## {name}\n\n{about.title[0].upper()}{about.title[1:]}.\n\n" + "\n".join(lines) + "\n"


def _write_best(about: About) -> str:
    low, high = about.bounds
    best = {"large": "large", "small": "small", "near 0": "near 0", "none": "no end; a fact of the data"}
    text = f"{best[about.best]}; values from {low:g} to {high:g}"
    for axis, value, (least, most) in about.wider:
        text += f"; with `{axis}: {value}` from {least:g} to {most:g}"
    return text


def make_definitions() -> str:
    """Return the page of axes and presets."""
    texts = read_texts(Definition)
    axes = [
        f"## {name}\n\n{texts[name]}\n\nValues: {show_field(field)}. Default: {show_default(field)}.\n"
        for name, field in Definition.model_fields.items()
    ]
    parts = [
        "# Definitions: axes and presets\n",
        "A definition has one value for each axis. `--set definition.AXIS=VALUE`, or"
        " `evaluation.definition: {AXIS: VALUE}`, changes one; `--preset NAME`, or `evaluation.preset`,"
        " takes those of a library. [One input, every library's numbers](../presets.md)"
        " shows what they change.\n",
        *axes,
        "## Presets\n",
        *map(_write_preset, PRESETS),
    ]
    return "\n".join(parts)


def _write_preset(name: str) -> str:
    """Return how the metrics of a library are different, axis by axis."""
    rows = [
        (
            f"[`{axis}`](#{axis})",
            f"`{value}`",
            show_default(Definition.model_fields[axis]).replace('"', ""),
            ", ".join(m for m in _sort_metrics(METRICS) if axis in METRICS[m].axes),
        )
        for axis, value in PRESETS[name].items()
    ]
    head = ("axis", "value there", "value here", "metrics that it changes")
    table = f"\n{write_table(head, rows)}" if rows else ""
    return (
        f"### {name}: how its metrics are different\n\nVersion {PRESET_VERSIONS[name]}, `preset: {name}`."
        f" {WHAT_DIFFERS[name]}\n{table}"
    )


def make_tables() -> str:
    """Return the page of tables, columns and views."""
    parts = [
        "# Tables and views\n",
        'The tables are Delta tables under the warehouse; `recbench query --warehouse DIR "SELECT ..."`'
        " asks them in SQL. A number is visible when `runs` has a succeeded row for it.\n",
        "## Views\n",
        write_table(("view", "the question that it answers"), _describe_sql("sql")),
        "## Ready-made questions\n",
        write_table(("question", "in words"), _describe_sql("sql/queries")),
    ]
    return "\n".join([*parts, *(_write_columns(name) for name in TABLES)])


def _describe_sql(folder: str) -> list[tuple[str, str]]:
    files = sorted((ROOT / "recbench_spark" / folder).glob("*.sql"))
    return [(f"`{path.stem}`", path.read_text().partition("\n")[0].removeprefix("-- ")) for path in files]


def _write_columns(name: str) -> str:
    table = TABLES[name]
    rows = [
        (f"`{column.name}`", str(column.type), "yes" if column.nullable else "no", column.comment)
        for column in table.columns
    ]
    return f"## {name}\n\n{table.comment}\n\n{write_table(('column', 'type', 'NULL', 'meaning'), rows)}"


def list_parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command."""
    return {name: make_parser(name) for name in list_commands()}


def list_flags(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the flags of a command, without those that all commands have."""
    shared = ("--help", "--version", "--debug")
    return [
        action
        for action in parser._actions  # argparse has no public list of them
        if not set(shared) & set(action.option_strings)
    ]


def make_commands() -> str:
    """Return the page of commands and flags."""
    parts = [
        "# Commands\n",
        "`recbench NAME` and `python -m recbench_spark NAME` are the same; spark-submit takes"
        " `jobs/recbench.py NAME`. All have `--help`, `--version` and `--debug`, which shows the whole"
        " trace of an error.\n",
        write_table(
            ("command", "what it does"),
            [(f"[`{name}`](#{name})", text) for name, text in list_commands().items()],
        ),
        "## Exit codes\n",
        write_table(("code", "meaning"), CODES),
    ]
    return "\n".join([*parts, *(_write_command(name, flags) for name, flags in list_parsers().items())])


def _write_command(name: str, parser: argparse.ArgumentParser) -> str:
    rows = [(_name_flag(flag), _show_default(flag), _describe_flag(flag)) for flag in list_flags(parser)]
    table = write_table(("flag", "default", "what it does"), rows) if rows else ""
    return f"## {name}\n\n```text\n{(parser.description or '').strip()}\n```\n\n{table}"


def _name_flag(flag: argparse.Action) -> str:
    choices = "{" + ",".join(map(str, flag.choices)) + "}" if flag.choices else ""
    value = flag.metavar or choices or ("" if flag.nargs == 0 else flag.dest.upper())
    value = " ".join(value) if isinstance(value, tuple) else value
    return f"`{' '.join([', '.join(flag.option_strings), value]).strip()}`"


def _show_default(flag: argparse.Action) -> str:
    if flag.required:
        return "required"
    if flag.default == getpass.getuser():
        return "you"
    value = list(flag.default) if isinstance(flag.default, tuple) else flag.default
    return "" if value in (None, False, [], argparse.SUPPRESS, "") else f"`{value}`"


def _describe_flag(flag: argparse.Action) -> str:
    text = (flag.help or "").replace("%(default)s", str(flag.default)).replace("%%", "%")
    return text[:1].upper() + text[1:]


def make_errors() -> str:
    """Return the page of errors and remedies."""
    classes = [
        one
        for one in vars(errors).values()
        if inspect.isclass(one)
        and issubclass(one, errors.RecbenchError)
        and one is not errors.FallbackToSpark
    ]
    rows = [
        (f"`{one.__name__}`", str(one.exit_code), (one.__doc__ or "").partition("\n")[0]) for one in classes
    ]
    return "\n".join(
        [
            "# Errors and exit codes\n",
            "A command ends with one sentence that names the problem and its place, and a hint that says"
            " what to do. Python functions raise the same as classes of `recbench_spark.errors`, with the"
            " attributes `message` and `hint`.\n",
            write_table(("error", "exit code", "when"), rows),
            "## Exit codes\n",
            write_table(("code", "meaning"), CODES),
            "Many nights of one command (`--dates`) end with the smallest code that is not 0."
            " [Results as JSON](results.md) has the same code in `exit_code`.\n",
        ]
    )


def make_python() -> str:
    """Return the page of the Python API; on the site mkdocstrings fills in signatures and docstrings."""
    rows = [(f"[`{path.rpartition('.')[2]}`](#{path})", text) for path, text in describe_functions()]
    blocks = [f"::: {path}\n" for path, _ in describe_functions()]
    return "\n".join(
        [
            "# Python\n",
            "`import recbench_spark` loads nothing heavy; a function loads what it needs. The site has the"
            " signature and the docstring of each name, and `help(recbench_spark.evaluate)` prints them.\n",
            write_table(("name", "what it does"), rows),
            *blocks,
        ]
    )


def describe_functions() -> list[tuple[str, str]]:
    """Return the path of each public function and class, and the first line of its docstring."""
    names = [name for name in recbench_spark.__all__ if not name.startswith("_")]
    functions = [getattr(recbench_spark, name) for name in names]
    public = [*functions, Result, Comparison, VectorModel]
    summaries = [(inspect.getdoc(one) or "").partition("\n")[0] for one in public]
    paths = [f"{one.__module__}.{one.__name__}" for one in public]
    return list(zip(paths, summaries, strict=True))


def make_index() -> str:
    """Return the first page."""
    rows = [
        ("[configuration](configuration.md)", "every section and key of a benchmark file"),
        ("[models](models.md)", "every kind of model and its settings"),
        ("[other files](files.md)", "replays of auctions, graphs, neighbourhoods, bundles"),
        ("[metrics](metrics.md)", "formula, edge rule and source of every metric and estimator"),
        ("[definitions](definitions.md)", "axes in which libraries differ, and presets"),
        ("[splits](splits.md)", "every split with a picture"),
        ("[readers](readers.md)", "formats of logs"),
        ("[tables](tables.md)", "tables, columns, views and ready-made questions"),
        ("[commands](commands.md)", "commands and flags"),
        ("[errors](errors.md)", "errors and exit codes"),
        ("[Python](python.md)", "functions for notebooks"),
        ("[results as JSON](results.md)", "files that a night writes for programs"),
    ]
    return "# Reference\n\n" + write_table(("page", "what it holds"), rows)


PAGES: dict[str, Callable[[], str]] = {
    "index": make_index,
    "configuration": make_configuration,
    "models": make_models,
    "files": make_files,
    "metrics": make_metrics,
    "definitions": make_definitions,
    "tables": make_tables,
    "commands": make_commands,
    "errors": make_errors,
    "python": make_python,
}


def write_pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    os.environ["COLUMNS"] = "100"
    return {f"{name}.md": f"{NOTE}\n{make()}".rstrip() + "\n" for name, make in PAGES.items()}
