"""docs/presets.md says what the kernels say."""

from __future__ import annotations

from recbench_spark.core.definitions import PRESET_VERSIONS, PRESETS
from tools.presets_table import PAGE, WHAT_DIFFERS, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run: python -m tools.presets_table"


def test_every_preset_has_a_version_and_a_sentence() -> None:
    assert set(PRESETS) == set(PRESET_VERSIONS) == set(WHAT_DIFFERS)
