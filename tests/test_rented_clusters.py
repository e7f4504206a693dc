"""The wheel beside packages as rented clusters have them: none of theirs changes, the numbers are right."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.environments import UV, make_environment

ROOT = Path(__file__).resolve().parent.parent

RUNTIMES = {
    # Databricks 17.3 LTS.
    "spark_4_0": (
        *("3.12", "pandas==2.2.3", "numpy==2.1.3", "pyarrow==19.0.1", "scipy==1.15.1"),
        *("pyspark==4.0.2", "delta-spark==4.0.1"),
    ),
}
"""The version of Python, and the packages of the runtime."""

NIGHT = [
    *(
        "--logical-date",
        "2026-01-01",
        "--set",
        "dataset.world.users=200",
        "--set",
        "dataset.world.items=100",
    ),
    *("--set", "dataset.world.interactions=5000", "--set", "dataset.world.open_loop=2000"),
    *("--set", "models.als_8={name: als_8, kind: implicit_als, dims: 8}"),
    *("--set", "models.als_32={name: als_32, kind: implicit_als, dims: 16}"),
]
"""Flags of a small night."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    if not UV.exists():
        pytest.skip("no uv: `make setup` installs it")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], check=True)
    return next(folder.glob("*.whl"))


def list_versions(python: Path) -> dict[str, str]:
    """Return the version of each package of an environment."""
    words = [UV, "pip", "list", "--quiet", "--format", "json", "--python", python]
    listed = subprocess.run(words, capture_output=True, text=True, check=True)
    return {package["name"]: package["version"] for package in json.loads(listed.stdout)}


@pytest.mark.slow
@pytest.mark.usefixtures("own_jvm")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_wheel_leaves_the_packages_of_a_runtime_as_they_are(
    runtime: str, wheel: Path, tmp_path: Path
) -> None:
    interpreter, *packages = RUNTIMES[runtime]
    python = make_environment(tmp_path / "env", interpreter, packages)
    before = list_versions(python)
    recipe = ROOT / "conf" / "schedulers" / "install_wheel.sh"
    environment = {**os.environ, "PYTHON": str(python), "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    subprocess.run([recipe, wheel], env=environment, check=True)
    after = list_versions(python)
    assert {name: after[name] for name in before} == before
    assert {"numba", "deltalake", "duckdb", "recbench-spark"} <= after.keys() - before.keys()
    (tmp_path / "truth.csv").write_text("user_id,item_id\n1,10\n2,12\n3,13\n")
    (tmp_path / "lists.csv").write_text("user_id,item_id,rank\n1,10,1\n1,12,2\n2,11,1\n2,12,2\n3,11,1\n")
    words = [
        python,
        "-m",
        "recbench_spark",
        "evaluate",
        "--engine",
        "local",
        "--warehouse",
        "w",
        "--model",
        "m",
    ]
    done = subprocess.run(
        [*words, "--lists", "lists.csv", "--truth", "truth.csv", "--k", "1,2"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    query = "SELECT value FROM metrics WHERE metric = 'recall' AND k = 2 AND slice_key IS NULL"
    words = [
        python,
        "-m",
        "recbench_spark",
        "query",
        "--engine",
        "local",
        "--warehouse",
        "w",
        "--format",
        "csv",
        query,
    ]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["value", str(2 / 3)], done.stderr
    words = [
        python.parent / "recbench",
        "nightly",
        "--engine=spark",
        "--config",
        "demo",
        "--warehouse",
        "n",
        *NIGHT,
    ]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_runtime_that_is_too_old_stays_as_it_is_and_is_named(wheel: Path, tmp_path: Path) -> None:
    """Databricks 15.4 and 16.4 LTS, as far as their pages could be read."""
    packages = ["pandas==1.5.3", "numpy==1.26.4", "pyarrow==14.0.2", "pydantic==1.10.6"]
    python = make_environment(tmp_path / "env", "3.11", packages)
    before = list_versions(python)
    environment = {**os.environ, "PYTHON": str(python)}
    recipe = ROOT / "conf" / "schedulers" / "install_wheel.sh"
    assert (
        subprocess.run([recipe, wheel], env=environment, capture_output=True, check=False).returncode != 0
    )
    assert list_versions(python) == before
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    words = [python.parent / "recbench", "evaluate", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "error: recbench-spark cannot run here: numpy 1.26.4, pandas 1.5.3, pyarrow 14.0.2, "
        "no numba, no scipy, pydantic 1.10.6"
    )
