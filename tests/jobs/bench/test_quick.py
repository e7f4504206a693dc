"""Budgets: worse is what is above the kept figure by more than the noise of both; a run, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jobs.bench import quick
from recbench_spark.errors import ConfigError


def runs(*units: float, mib: float = 100.0) -> list[dict[str, float]]:
    return [{"units": x, "seconds": x / 10, "mib": mib} for x in units]


@pytest.mark.parametrize(
    ("units", "mib", "worse"),
    [
        ((10.0, 10.1, 9.9), 100, []),
        ((11.4, 11.5, 11.6), 100, ["time of lists (+15%)"]),
        ((9.0, 11.5, 14.0), 100, []),  # as far apart as that, it may be chance
        ((8.0, 8.0, 8.0), 100, []),
        ((10.0, 10.0, 10.0), 130, ["memory of lists (+30%)"]),
    ],
)
def test_worse_is_beyond_the_noise_of_both(units, mib, worse) -> None:
    kept = {"lists": {"units": [10.0, 0.02], "mib": [100.0, 0.0]}}
    lines, result = quick.compare_figures({"lists": quick.summarise_turns(runs(*units, mib=mib))}, kept)
    assert result == worse and len(lines) == 2
    lines, result = quick.compare_figures({"other": quick.summarise_turns(runs(1.0))}, kept)
    assert not result and all("not kept yet" in line for line in lines)


def test_figures_are_kept_compared_and_not_judged_on_another_processor(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    speed = {"x": 10.0}
    monkeypatch.setattr(quick, "KERNELS", {"x": lambda: None, "y": lambda: None})
    monkeypatch.setattr(quick, "run_one", lambda name: runs(speed.get(name, 1.0))[0])
    flags = ["--kept", str(tmp_path / "kept.json"), "--rounds", "2"]
    with pytest.raises(ConfigError, match="no figures"):
        quick.main(quick.parser().parse_args(flags))
    assert quick.main(quick.parser().parse_args([*flags, "--keep"])) == 0
    assert quick.main(quick.parser().parse_args(flags)) == 0
    speed["x"] = 12.0
    assert quick.main(quick.parser().parse_args(flags)) == 4
    assert "time of x (+20%)" in capsys.readouterr().err
    assert quick.main(quick.parser().parse_args([*flags, "--only", "y"])) == 0
    monkeypatch.setattr(quick, "describe_processor", lambda: "another")
    assert quick.main(quick.parser().parse_args(flags)) == 0 and "not judged" in capsys.readouterr().out
    quick.main(quick.parser().parse_args([*flags, "--keep", "--only", "y"]))
    kept = quick.read_figures(tmp_path / "kept.json")
    assert kept.pop("another").keys() == {"y"}  # the figures of x are those of another processor
    assert [figures.keys() for figures in kept.values()] == [{"x", "y"}]


def test_a_file_of_one_processor_is_read(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text(json.dumps({"processor": "2 x A", "figures": {"x": {}}}))
    assert quick.read_figures(tmp_path / "kept.json") == {"2 x A": {"x": {}}}


def test_a_kernel_is_timed_and_kept_figures_are_of_kernels_there_are() -> None:
    result = quick.measure_kernel(lambda: np.sort(np.arange(1000)))
    assert result.keys() == {"units", "seconds", "mib"} and min(result.values()) > 0
    for figures in quick.read_figures(quick.FIGURES_FILE).values():
        assert figures.keys() == quick.KERNELS.keys()
