"""Definitions: defaults, presets, descriptions and the hints of wrong names."""

from __future__ import annotations

import hashlib
import json

import pytest

from recbench_spark.core.definitions import MOMENT_AXES, PRESETS, Definition, axis_values, make_definition
from recbench_spark.errors import ConfigError


@pytest.mark.parametrize("axis", [axis for axis in Definition.model_fields if axis_values(axis)])
def test_the_first_value_of_an_axis_is_its_default(axis: str) -> None:
    assert axis_values(axis)[0] == Definition.model_fields[axis].default


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_name_only_axes_that_differ_from_the_defaults(preset: str) -> None:
    definition = make_definition(preset)
    for axis, value in PRESETS[preset].items():
        assert getattr(definition, axis) == value != Definition.model_fields[axis].default
    assert len(definition.describe().split(";")) == 1 + len(PRESETS[preset])


def test_the_presets_of_the_libraries_are_there() -> None:
    libraries = "recbole replay mllib recommenders rectools lenskit ranx cornac elliot recpack"
    libraries += " warprec sklearn torchmetrics implicit lenskit==2025.8.1"
    assert set(libraries.split()) < set(PRESETS)


def test_description_names_the_axes_that_differ() -> None:
    definition = make_definition("rectools", {"threshold": 4.0})
    assert Definition().describe() == "v1"
    assert definition.describe() == "v1;threshold=4.0;ideal=k;ap_by=relevant"
    assert definition.describe(["ideal", "ties"]) == "v1;ideal=k"


def test_overrides_win_over_the_preset() -> None:
    assert make_definition("rectools", {"ap_by": "k"}).ap_by == "k"


@pytest.mark.parametrize(
    ("preset", "overrides", "hint"),
    [
        ("rectool", {}, "did you mean 'rectools'"),
        (None, {"tie": "id"}, "did you mean 'ties'"),
        (None, {"ties": "optimist"}, "did you mean 'optimistic'"),
    ],
)
def test_wrong_names_are_refused_with_the_nearest(
    preset: str | None, overrides: dict[str, str], hint: str
) -> None:
    with pytest.raises(ConfigError, match=hint):
        make_definition(preset, overrides)


@pytest.mark.parametrize("persistence", [0.0, 1.0, "often"])
def test_persistence_is_a_chance(persistence: object) -> None:
    with pytest.raises(ConfigError, match="definition"):
        make_definition(None, {"persistence": persistence})


@pytest.mark.parametrize("overrides", [{}, {"gain": "binary"}, {"gain": "exponential_above"}])
def test_an_origin_needs_grades(overrides: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"definition\.grade_origin: a gain of '[a-z_]+' has no grades"):
        make_definition(None, {"grade_origin": 3, **overrides})
    signed = make_definition(None, {"grade_origin": 3, "gain": "linear", "negative_grades": "signed"})
    assert signed.describe() == "v1;gain=linear;negative_grades=signed;grade_origin=3.0"


def test_an_axis_that_came_later_enters_no_key_of_older_definitions() -> None:
    later = {"grade_origin", "ndcg_ties", "tie_seed", "draw", "gaps", "weigh", *MOMENT_AXES}
    older = {name for name in Definition.model_fields if name not in later}
    assert Definition().to_settings() == Definition().model_dump(include=older)
    moved = make_definition(None, {"grade_origin": 3, "gain": "linear"})
    assert moved.to_settings() == moved.model_dump(exclude=later - {"grade_origin"})
    torchmetrics = make_definition("torchmetrics")
    assert torchmetrics.gaps == "close"
    assert torchmetrics.to_settings() == torchmetrics.model_dump(exclude=later - {"ndcg_ties", "gaps"})


EARLIER_PRESETS = (
    "recbench", "recbole", "replay", "mllib", "recommenders", "rectools", "lenskit==2025.8.1", "ranx",
    "cornac", "elliot", "recpack",
)  # fmt: skip


def test_earlier_definitions_keep_what_enters_their_keys() -> None:
    """The digest is that of the code of 26 November, before the axes `ndcg_ties` and `tie_seed`."""
    definitions = {name: make_definition(name).without_ranks() for name in EARLIER_PRESETS}
    settings = {name.split("==")[0]: one.to_settings() for name, one in definitions.items()}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    assert digest == "47c0ae1e07044992bbf1d98b8fbe762a8481629803153ae0bc8e26dc55844f44"


def test_axes_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"definition\.tie_seed: ties are 'id'"):
        make_definition(None, {"tie_seed": 1})
    with pytest.raises(ConfigError, match="needs the order of ids"):
        make_definition("warprec", {"auc_ties": "id_descending"})
    with pytest.raises(ConfigError, match=r"definition\.tie_seed"):
        make_definition("warprec", {"tie_seed": -1})
    assert make_definition("warprec", {"tie_seed": 7}).describe(["tie_seed"]) == "v1;tie_seed=7"
