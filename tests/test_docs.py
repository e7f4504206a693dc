"""The pages of docs: links lead somewhere, commands have their flags, blocks of YAML and Python work."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from recbench_spark.commands.dispatch import list_commands, make_parser
from recbench_spark.config import load_benchmark
from recbench_spark.core.definitions import PRESETS
from recbench_spark.models.rating.interface import Ratings
from recbench_spark.models.settings import MODELS
from tools.reference.markdown import make_anchor

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("**/*.md"), *ROOT.glob("*.md")])
TAUGHT = sorted(
    [ROOT / "README.md", *(p for f in ("start", "how_to", "explain") for p in DOCS.glob(f"{f}/*.md"))]
)
"""Pages whose commands must have the flags that stand there; others hold commands as they were measured."""

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)( {4}\S.*\n(?: {4}.*\n)*)")
LINK = re.compile(r"\]\(([^)\s#]*)(#[^)\s]+)?\)")
MOST_WORDS = 900


def list_anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    text = FENCED.sub("", path.read_text())
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {make_anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)) for title in titles}


def find_dead_links(path: Path) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading."""
    dead = []
    for target, anchor in LINK.findall(FENCED.sub("", path.read_text())):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        place = (path.parent / target).resolve() if target else path
        if not place.is_file() or (place.suffix == ".md" and anchor and not has_anchor(place, anchor[1:])):
            dead.append(f"{path.relative_to(ROOT)}: {target}{anchor}")
    return dead


def has_anchor(page: Path, anchor: str) -> bool:
    """True if a heading of the page, or a name that mkdocstrings documents there, has this anchor."""
    return anchor in list_anchors(page) or f"\n::: {anchor}\n" in page.read_text()


def test_links_lead_to_a_page_and_a_heading(tmp_path: Path) -> None:
    assert [dead for page in PAGES if page.name != "CHANGELOG.md" for dead in find_dead_links(page)] == []
    bad = ROOT / "docs" / "index.md"
    assert not has_anchor(bad, "no-such-heading") and has_anchor(bad, "recbench-spark")


def test_paths_of_pages_exist_wherever_they_are_named() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = [
        name for name in files.stdout.split() if name.endswith((".md", ".py", ".yaml", ".conf", ".ipynb"))
    ]
    missing = [
        f"{name}: {path}"
        for name in texts
        if name not in ("CHANGELOG.md", "tests/test_docs.py") and (ROOT / name).is_file()
        for path in re.findall(r"\bdocs/[\w/]+\.(?:md|png|json|jsonl)\b", (ROOT / name).read_text())
        if not (ROOT / path).exists() and path not in WRITTEN
    ]
    assert missing == []


def test_every_notebook_is_named_by_a_page_and_every_named_one_is_there() -> None:
    texts = "".join(page.read_text() for page in PAGES if page.name != "CHANGELOG.md")
    named = set(re.findall(r"\bnotebooks/(\w+)\.ipynb", texts))
    assert named == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}


WRITTEN = {"docs/pinsage_study.md"}
"""Pages that an example of a command would write."""


def test_the_site_shows_every_page() -> None:
    settings = re.sub(r"!ENV .*", "''", (ROOT / "mkdocs.yml").read_text())
    listed = re.findall(r"^ +- (\S+\.md)$", settings[settings.index("\nnav:") :], flags=re.MULTILINE)
    assert sorted(listed) == sorted(str(p.relative_to(DOCS)) for p in DOCS.glob("**/*.md"))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= MOST_WORDS


# ------------------------------------------------------------------------------- commands


def read_page_commands(path: Path) -> list[list[str]]:
    """Return name and flags of each command of this package in the blocks of a page."""
    text = path.read_text()
    blocks = [body for kind, body in FENCED.findall(text) if kind in ("", "text", "bash")]
    blocks += INDENTED.findall(FENCED.sub("", text))
    lines = [line.strip() for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    whole = [re.sub(r"\s#.*", "", line) for line in lines if "$(" not in line and " ... " not in line]
    matches = [(COMMAND.search(line), line) for line in whole]
    return [
        [match[1], *shlex.split(line[match.end() :], comments=True)] for match, line in matches if match
    ]


COMMAND = re.compile(r"(?:(?<=\s)|^)(?:(?:local:///\S*/)?jobs/recbench\.py|recbench) ([\w.]+)(?=\s|$)")


@pytest.mark.parametrize("page", TAUGHT, ids=lambda page: page.stem)
def test_commands_have_the_flags_that_stand_there(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = list_commands()
    for name, *flags in read_page_commands(page):
        assert name in known, name
        if "--help" not in flags:
            parser = make_parser(name)
            try:
                parser.parse_args([flag for flag in flags if flag not in ("...",)])
            except SystemExit:
                pytest.fail(f"{page.name}: {name} {shlex.join(flags)}\n{capsys.readouterr().err}")


def test_commands_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Run:\n\n    recbench query --lost\n\n"
        "```\nspark-submit jobs/recbench.py nightly --a \\\n  b # c\n```\n"
    )
    assert read_page_commands(page) == [["nightly", "--a", "b"], ["query", "--lost"]]
    page.write_text("```\nrecbench maintain.py --migrate\nrecbench --help\n```\n")
    assert read_page_commands(page) == [["maintain.py", "--migrate"]], "no command has this name"


# ------------------------------------------------------------------------------- blocks

WHOLE: dict[str, Any] = {
    "name": "page",
    "dataset": {"name": "world", "reader": "world"},
    "models": [{"name": "popular", "kind": "popular"}, {"name": "als", "kind": "als"}],
}
NOT_RUN = {
    "contributor-2": "tests/test_start.py runs it",
    "graph_platform-6": "tests/test_start.py runs it",
    "nightly_team-6": "tests/test_start.py runs it",
    "researcher-0": "tests/test_start.py runs it",
    "README-2": "tests/test_readme.py runs it",
    "evaluate_tables-3": "tests/test_readme.py runs it",
    "graph_embeddings-2": "a model file of recbench embed, and no benchmark file",
    "embed_a_pyg_model-2": "tests/jobs/test_pyg_lesson.py runs it",
    "embed_a_pyg_model-3": "a model file of recbench embed; tests/jobs/test_pyg_lesson.py runs it",
    "bi-2": "it opens an exported file; tests/jobs/test_export.py runs the questions of the page",
    "duckdb_and_bi-2": "it reads the warehouse of the demo",
    "results-0": "a test below runs it on a file of its own",
}
"""Blocks of YAML and Python that the tests of all pages leave out, and why."""


def list_blocks(kind: str, *, run: bool = True) -> list[Any]:
    """Return the blocks of a kind of all pages, or those of `NOT_RUN`, each with the name of its page."""
    return [
        pytest.param(body, id=f"{page.stem}-{n}")
        for page in PAGES
        for n, (found_kind, body) in enumerate(FENCED.findall(page.read_text()))
        if found_kind == kind and (f"{page.stem}-{n}" not in NOT_RUN) == run
    ]


def test_blocks_that_are_left_out_exist() -> None:
    left_out = [block.id for kind in ("yaml", "python") for block in list_blocks(kind, run=False)]
    assert sorted(left_out) == sorted(NOT_RUN)


@pytest.mark.parametrize("block", list_blocks("yaml"))
def test_sections_are_those_of_a_benchmark_file(block: str, tmp_path: Path) -> None:
    (tmp_path / "page.yaml").write_text(yaml.safe_dump({**WHOLE, **yaml.safe_load(block)}))
    assert load_benchmark(str(tmp_path / "page.yaml"), []).models


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    """Frames under the names that pages use."""
    rng = np.random.default_rng(5)
    users, items = (a.ravel() for a in np.meshgrid(np.arange(12), np.arange(15), indexing="ij"))
    every = pd.DataFrame({"user_id": users, "item_id": items, "score": rng.random(len(users))})
    kind = rng.choice(["train", "truth", "none"], len(every), p=[0.3, 0.3, 0.4])
    ids = ["user_id", "item_id"]
    lists = every[[*ids, "score"]]
    return {
        "truth": every[kind == "truth"][ids],
        "train": every[kind == "train"][ids],
        "lists": lists,
        "als": lists,
        "popular": lists.assign(score=rng.random(len(lists))),
        "scores": every,
        "users": pd.DataFrame({"user_id": range(12), "vector": list(rng.random((12, 4)))}),
        "items": pd.DataFrame({"item_id": range(15), "vector": list(rng.random((15, 4)))}),
        "predictions": every.assign(prediction=every.score, outcome=rng.integers(0, 2, len(every))).drop(
            columns="score"
        ),
    }


@pytest.mark.parametrize("block", list_blocks("python"))
def test_python_runs_as_printed(
    block: str,
    tables: dict[str, pd.DataFrame],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {**tables, "__name__": "page"}
    known = set(MODELS)
    try:
        exec(compile(block, "page", "exec", dont_inherit=True), names)
        if "class MostRated" in block:
            fit_most_rated(names["MostRated"])
    finally:
        for kind in set(MODELS) - known:
            del MODELS[kind]
    printed = capsys.readouterr().out
    assert bool(printed) == ("show()" in block or "print(" in block)


def test_the_block_about_results_names_the_best_model_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [one.values[0] for one in list_blocks("python", run=False) if one.id == "results-0"]
    number = {"metric": "ndcg", "k": 10, "ci_low": 0.1, "ci_high": 0.9}
    values = [("valid", "als", 0.8), ("test", "als", 0.3), ("test", "popular", 0.4)]
    rows = [{**number, "part": part, "model": model, "value": value} for part, model, value in values]
    path = tmp_path / "warehouse" / "demo" / "results" / "night-demo-2026-01-01.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"metrics": rows, "exit_code": 0}))
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "page", "exec", dont_inherit=True), {})
    assert capsys.readouterr().out == "popular 0.4 [0.1, 0.9] 0\n"


def test_pages_give_the_range_that_the_page_of_presets_has() -> None:
    text = (DOCS / "presets.md").read_text()
    low, high = re.findall(r"^- ndcg@3: from 0(\S+) \(.* to 0(\S+) \(", text, re.MULTILINE)[0]
    libraries = {name.partition("==")[0] for name in PRESETS} - {"recbench"}
    count = {14: "fourteen", 15: "fifteen", 16: "sixteen"}[len(libraries)]
    for page in (ROOT / "README.md", DOCS / "measured" / "index.md"):
        words = " ".join(page.read_text().split())
        assert f"from .{round(float(low) * 1000)} to .{round(float(high) * 1000)}" in words, page
        assert f"{count} libraries" in words and "all but one" in words, page
    assert f"for {count} libraries" in " ".join(
        (DOCS / "how_to" / "evaluate_tables.md").read_text().split()
    )


def fit_most_rated(model: Any) -> None:
    """Fit the class of the page to three ratings: the item with two of them has the largest score."""
    ratings = Ratings(np.array([0, 1, 1]), np.array([2, 2, 0]), np.ones(3), n_users=2, n_items=3)
    vectors = model(name="mine", kind="most_rated").fit(ratings, 1)
    scores = np.asarray(vectors.users_ud) @ np.asarray(vectors.items_id).T
    assert scores.argmax(axis=1).tolist() == [2, 2]


def test_levels_of_headings_have_no_gap() -> None:
    for page in [*DOCS.glob("start/*.md"), *DOCS.glob("explain/*.md"), ROOT / "README.md"]:
        text = FENCED.sub("", page.read_text())
        levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
        assert levels[0] == 1, page.name
        assert all(after <= before + 1 for before, after in pairwise(levels)), page.name
