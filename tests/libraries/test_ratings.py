"""Our learners of ratings beside other libraries', each in its own environment: `make libraries`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbench_spark.models.rating import als
from recbench_spark.models.rating.interface import Ratings, rmse
from recbench_spark.models.rating.registry import fit, make_settings
from tests.models.rating.worlds import plant_ratings

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = Path(os.environ.get("RECBENCH_LIBRARIES", ROOT / ".venv-libraries"))
pytestmark = pytest.mark.slow


def answer(library: str, folder: Path, arrays: dict[str, Any], **given: Any) -> dict[str, Any]:
    python = ENVIRONMENTS / library / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment of {library} under {ENVIRONMENTS}: run `make libraries`")
    np.savez(folder / "data.npz", **arrays)
    script = Path(__file__).with_name(f"run_{library}.py")
    done = subprocess.run(
        [python, "-W", "ignore", script],
        input=json.dumps({"data": str(folder / "data.npz"), **given}),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def pairs(train: Ratings, test: Ratings) -> dict[str, Any]:
    return {
        "users": train.users_r, "items": train.items_r, "ratings": train.ratings_r,
        "test_users": test.users_r, "test_items": test.items_r,
    }  # fmt: skip


def test_biases_by_descent_are_those_of_surprise(tmp_path) -> None:
    """Without factors nothing is drawn: the same steps in the same order give the same numbers."""
    train, test = plant_ratings()
    order = np.lexsort((train.items_r, train.users_r))
    train = train.rows(order)
    known = np.isin(test.items_r, train.items_r) & np.isin(test.users_r, train.users_r)
    test = test.rows(known)
    theirs = answer(
        "surprise", tmp_path, pairs(train, test), dims=1, epochs=4, rate=0.01, regulariser=0.05, init_sd=0.0
    )
    settings = {"dims": 1, "epochs": 4, "rates": 0.01, "regularisers": 0.05, "init_sd": 0.0}
    ours = fit(train, make_settings({"kind": "sgd_mf", "order": "given", **settings}), 1, test)
    predicted = np.clip(theirs["predicted"], *train.scale)
    assert np.abs(ours.watched_p - predicted).max() < 2e-6


def test_gibbs_is_as_good_as_myfm(tmp_path) -> None:
    train, test = plant_ratings()
    theirs = answer("myfm", tmp_path, pairs(train, test), dims=4, samples=200, burn_in=10)
    settings = {"kind": "bayesian_mf", "dims": 4, "samples": 200, "burn_in": 10}
    ours = [float(fit(train, make_settings(settings), seed, test).rmse_s[-1]) for seed in range(3)]
    other = rmse(np.clip(theirs["predicted"], *train.scale), test.ratings_r)
    assert abs(np.mean(ours) - other) < 0.02, (ours, other)


def test_implicit_als_takes_the_steps_of_implicit(tmp_path) -> None:
    """Ours: (1 - s)^2 over pairs + a s^2 over all + l (|p|^2 + |q|^2). With s' = (1 + a) s that is, up to a
    factor, (1 + a) / a (1 - s')^2 over pairs + s'^2 over the rest + l (1 + a) / a (|p'|^2 + |q'|^2)."""
    train, _ = plant_ratings()
    a, regulariser, dims, sweeps = 0.25, 0.3, 3, 4
    document = {
        "kind": "implicit_als", "dims": dims, "sweeps": sweeps, "unobserved_weight": a,
        "regulariser": regulariser, "frequency": 0.0,
    }  # fmt: skip
    settings = make_settings(document)
    sides, _ = als._start(train, settings, 1, np.ones(len(train), np.float32))
    start = [side.factors[:-1, :dims].astype(float) * np.sqrt(1 + a) for side in sides]
    arrays = {
        "users": train.users_r, "items": train.items_r, "start_users": start[0], "start_items": start[1],
    }  # fmt: skip
    more = {"confidence": (1 + a) / a, "regulariser": regulariser * (1 + a) / a}
    theirs = answer("implicit", tmp_path, arrays, dims=dims, sweeps=sweeps, **more)
    model = fit(train, settings, 1).model
    ours = model.p_ud.astype(float) @ model.q_id.T.astype(float)
    assert np.abs(np.array(theirs["scores"]) / (1 + a) - ours).max() < 1e-4
