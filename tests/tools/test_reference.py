"""docs/reference is what the code says, and everything there has a text."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import BaseModel

from recbench_spark.config import Split
from recbench_spark.core.definitions import Definition, DrawEstimator, ExposureEstimator
from recbench_spark.metrics.kernels.about import ABOUT
from recbench_spark.metrics.kernels.texts import ESTIMATOR_TEXTS
from recbench_spark.schemas import TABLES
from recbench_spark.sources.settings import BuiltIn
from tools.reference.pages import FOLDER, list_documented, list_flags, list_parsers, write_pages
from tools.reference.settings import find_silent, read_texts


def test_every_setting_has_a_text() -> None:
    models = list_documented()
    assert len(models) > 60
    assert find_silent([*models, Definition]) == []


def test_every_metric_and_estimator_has_a_text() -> None:
    names = {"holdout", *get_args(ExposureEstimator), *get_args(DrawEstimator)}
    assert set(ESTIMATOR_TEXTS) == names
    for about in ABOUT.values():
        assert about.title and about.formula and about.edges


def test_every_flag_has_a_text() -> None:
    silent = [
        f"{name} {flag.option_strings or flag.dest}"
        for name, parser in list_parsers().items()
        for flag in list_flags(parser)
        if not flag.help
    ]
    assert silent == []


def test_every_column_has_a_text() -> None:
    assert [f"{t.name}.{c.name}" for t in TABLES.values() for c in t.columns if not c.comment] == []


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Text of each page as the code says it now."""
    return write_pages()


def test_pages_are_current(pages: dict[str, str]) -> None:
    stale = [name for name, text in pages.items() if (FOLDER / name).read_text() != text]
    assert stale == [], "run: python -m tools.reference"


def test_questions_are_answered_on_one_page(pages: dict[str, str]) -> None:
    assert "drops bad rows" in pages["configuration.md"]
    assert "nDCG of a user without relevant items" in pages["metrics.md"]
    assert "recall by at most k" in pages["definitions.md"]  # how lenskit differs
    for words in ("(RIG)", "(PE)", "(NMSE)", "(GAUC)", "(DRos)", "(switch-DR)"):
        assert words in pages["metrics.md"]


class Parent(BaseModel):
    """Settings of a test. `first`: the one. `second` maps names; more of it.

    Attributes:
        third: from a section,
            on two lines.
    """

    first: int = 1
    second: int = 2
    third: int = 3
    fourth: int = 4
    """Below the field."""
    silent: int = 5


class Child(Parent):
    """A class that changes one text. `first`: another one."""

    silent: int = 6


def test_texts_come_from_three_places_and_bases() -> None:
    assert read_texts(Parent) == {
        "first": "The one.",
        "second": "`second` maps names; more of it.",
        "third": "From a section, on two lines.",
        "fourth": "Below the field.",
    }
    assert read_texts(Child)["first"] == "Another one." and read_texts(Child)["third"]
    assert find_silent([Parent]) == ["Parent.silent"]


def test_splits_and_readers_have_a_place() -> None:
    splits, readers = ((FOLDER / f"{name}.md").read_text() for name in ("splits", "readers"))
    assert [h for h in get_args(Split.model_fields["holdout"].annotation) if h not in splits] == []
    assert [r for r in get_args(BuiltIn) if f"`{r}`" not in readers] == []
