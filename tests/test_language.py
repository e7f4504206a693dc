"""The language of the house, checked: names are the field's words, docstrings are sentences.

The package and its jobs keep all rules; tests and tools keep those of names and docstrings.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from typing import Any

import pytest

from tests.test_architecture import ROOT, collect, list_nodes, parse_files, parse_tests

CLAUSE = {
    *("What", "How", "Where", "Whether", "Which", "Who", "Whom", "Whose", "Of", "As", "See", "From"),
    *("By", "Why", "When", "That"),
}
"""First words that make a clause of a docstring: its first word is a verb, or the name of the thing."""

PARTICIPLE = re.compile("(ed|en|told|made|kept|held|laid|known|found)$")
NOUNS = {
    *("seed", "embed", "need", "feed", "token", "speed", "len", "open", "listen", "fixed", "then", "when"),
}
"""Words that only look like participles; and verbs that end like one."""
VERBS = {"even", "flatten", "shorten", "widen"}

VAGUE = {"found", "told", "asked"}
"""Names of variables that say nothing of what they hold."""

KEPT = {
    # Members of adapters and of their data, which models of other packages define or call.
    *("ranked", "saved", "told", "known_items", "given_rows"),
    # Facts of a check, a gate and a pass, which templates read.
    *("passed", "predicted"),
    # Terms of the field: a paired t test, calibrated recall, the expected best of n, ranks in a sample.
    *(
        "paired_t",
        "calibrated_recall",
        "expected_best",
        "sampled_ranks",
        "required_gain",
        "expected_copies",
    ),
    *("shared_precision_sum", "scored_i"),
    # The checked form of a plan, what a pair of a flip takes away, and a documented member of models.
    *("checked", "removed", "revised"),
}
"""Names that stay, although they begin with a participle."""

LONGEST_FILE = 500
LONG_FILES = {
    "recbench_spark/analyses/exposure/kernels/exposure.py": "estimators, each with its equation",
    "recbench_spark/ranking/kernels/fused.py": "one kernel with the bounds that prove it",
}

STRINGS = {
    "recbench_spark/core/warm.py": "an old path of a module that people run",
}
"""Files that may name modules of this package in strings, with the reason."""

KEPT_IN_TESTS = {
    # Terms of the field: Wilcoxon's signed ranks, expected clicks, weighted AUC, calibrated recall.
    *("signed_rank", "expected_clicks", "weighted_auc", "_calibrated_recall"),
    # The fixture of `shared/data`, child processes, and fields of tables that a fault changes.
    *("shared_data", "children", "stored", "known"),
    # The fused kernel.
    "fused",
}
"""Names of helpers that stay. A test may be named by a whole sentence."""

DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def find_clauses(tree: ast.AST) -> list[int]:
    """Lines of definitions whose docstring begins with a clause."""
    documented = [
        (node, ast.get_docstring(node, clean=False))
        for node in list_nodes(tree)
        if isinstance(node, DOCUMENTED)
    ]
    return [
        getattr(node, "lineno", 1)
        for node, text in documented
        if text and text.split()[0].strip("`*") in CLAUSE
    ]


def find_poor_names(tree: ast.AST) -> list[str]:
    """Names of functions that begin with a participle, or have the word `of`."""
    names = [node.name for node in list_nodes(tree) if isinstance(node, FUNCTIONS)]
    words = {name: name.strip("_").split("_") for name in names}
    return [name for name in names if name not in KEPT and is_poor(words[name])]


def is_poor(words: list[str]) -> bool:
    """True for `of`, and for a participle in front."""
    return "of" in words or bool(PARTICIPLE.search(words[0]) and words[0] not in NOUNS | VERBS)


def find_vague_variables(tree: ast.AST) -> list[str]:
    """`line name` of variables and fields that are named after nothing."""
    return [
        f"{node.lineno} {node.id}"
        for node in list_nodes(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE
    ]


def find_module_strings(tree: ast.AST) -> list[str]:
    """Strings that name a module or class of this package: imports that no checker of layers sees."""
    texts = [
        node for node in list_nodes(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [f"{node.lineno} {node.value}" for node in texts if MODULE.fullmatch(node.value)]


MODULE = re.compile(r"(recbench_spark|jobs)(\.[a-z_]+)+(:\w+)?")


@pytest.mark.parametrize(
    ("find", "source", "expected"),
    [
        (find_clauses, '"""What it does."""\ndef f():\n    """Return it."""\n', [1]),
        (find_clauses, '"""Names."""\nclass A:\n    """Where things are."""\n', [2]),
        (find_poor_names, "def told_rows(): ...\ndef rows_of(): ...\ndef read_rows(): ...\n", 2),
        (find_poor_names, "def embed(): ...\ndef flatten(): ...\ndef _laid_out(): ...\n", 1),
        (find_vague_variables, "found = 1\nrows = found\nfor told in rows: ...\n", 2),
        (find_module_strings, 'a = "recbench_spark.training.als:Als"\nb = "see recbench_spark.store"\n', 1),
    ],
)
def test_the_checks_see_what_they_look_for(find: Any, source: str, expected: Any) -> None:
    places = find(ast.parse(source))
    assert (places if isinstance(expected, list) else len(places)) == expected


def test_docstrings_begin_with_a_verb_or_a_name() -> None:
    assert collect(find_clauses) == []


def test_functions_are_named_by_verbs_or_nouns() -> None:
    assert collect(find_poor_names) == []
    names = {
        node.name
        for _, tree, _ in parse_files()
        for node in list_nodes(tree)
        if isinstance(node, FUNCTIONS)
    }
    assert KEPT - names == set(), "an exception that nothing needs any more"


def test_variables_say_what_they_hold() -> None:
    assert collect(find_vague_variables) == []


def test_tests_and_tools_speak_plainly_too() -> None:
    assert collect(find_clauses, parse_tests) + collect(find_vague_variables, parse_tests) == []
    helpers = [place.split(": ") for place in collect(find_poor_names, parse_tests)]
    poor = {name: file for file, name in helpers if not name.startswith("test_")}
    assert {name: file for name, file in poor.items() if name not in KEPT_IN_TESTS} == {}
    assert KEPT_IN_TESTS - poor.keys() == set(), "an exception that nothing needs any more"


def test_a_class_name_stands_once() -> None:
    places = defaultdict(list)
    for name, tree, _ in parse_files():
        for node in list_nodes(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{name}:{node.lineno}")
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@cache
def list_docstrings(tree: ast.AST) -> list[ast.Constant]:
    """Docstrings of definitions, and texts below an assignment."""
    bodies = [node.body for node in list_nodes(tree) if isinstance(node, DOCUMENTED)]
    values = [line.value for body in bodies for line in body if isinstance(line, ast.Expr)]
    return [one for one in values if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def list_words(name: str, tree: ast.AST) -> set[str]:
    """Words of a file, without its docstrings and comments."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    for one in list_docstrings(tree):
        lines[one.lineno - 1 : one.end_lineno] = [""] * ((one.end_lineno or 0) - one.lineno + 1)
    return set(re.findall(r"\w+", re.sub(r"#.*", "", "\n".join(lines))))


def find_lost_names(tree: ast.AST, known: set[str]) -> list[str]:
    """`line name` of names in backticks in docstrings that nothing has: a rename has left them behind."""
    return [
        f"{document.lineno} {name}"
        for document in list_docstrings(tree)
        for name in re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)`", document.value)
        if not FILE.search(name) and not set(name.split(".")) <= known | NOT_OURS
    ]


FILE = re.compile(r"\.(py|txt|csv|dat|json|jsonl|npy|npz|parquet|yaml|tsv|base)$")
NOT_OURS = {
    # A table's column of ids by its side, and the reader of numbers that Spark calls.
    *("NAME_id", "NAME_index", "parseDouble"),
}


def test_docstrings_name_what_exists() -> None:
    """Tables, columns and settings stand in SQL and YAML, everything else in the code."""
    known = {part for name, _, _ in parse_files() for part in name.removesuffix(".py").split("/")}
    for name, tree, _ in (*parse_files(), *parse_tests()):
        known |= list_words(name, tree)
    texts = [
        *ROOT.glob("conf/**/*.yaml"),
        *ROOT.glob("conf/**/*.conf"),
        *ROOT.glob("recbench_spark/**/*.sql"),
    ]
    known.update(word for path in texts for word in re.findall(r"\w+", path.read_text(encoding="utf-8")))
    assert collect(lambda tree: find_lost_names(tree, known)) == []
    assert find_lost_names(ast.parse('"""Call `a.b` and `a.c`."""'), {"a", "b"}) == ["1 a.c"]


def test_strings_name_modules_in_the_registry_alone() -> None:
    assert {place.partition(":")[0] for place in collect(find_module_strings)} - set(STRINGS) == set()


def test_files_have_a_length_that_can_be_read() -> None:
    assert {name for name, _, lines in parse_files() if lines > LONGEST_FILE} == set(LONG_FILES)
