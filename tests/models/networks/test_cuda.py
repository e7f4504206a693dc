"""Fits on a real GPU beside those on the CPU: the same losses but for rounding, and continued as if never
killed. All skipped where torch sees no GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recbench_spark.models.networks.devices import move_batch
from recbench_spark.models.networks.fitting import Step, fit
from recbench_spark.models.networks.settings import TrainingPlan
from tests.models.networks.test_devices import MAKERS
from tests.models.networks.test_fitting import kill_after, weights

pytestmark = pytest.mark.usefixtures("cuda")


def plan(device: str, **more) -> TrainingPlan:
    return TrainingPlan(epochs=3, batch=20, rate=0.01, warm_up=3, decay=0.5, device=device, **more)


@pytest.mark.parametrize("name", MAKERS)
def test_one_minibatch_has_the_loss_and_the_gradients_of_the_cpu(name) -> None:
    values = {}
    for device in (torch.device("cpu"), torch.device("cuda")):
        task = MAKERS[name]()
        task.module.to(device)
        loss = task.loss(move_batch(task.batch(Step(3, 0, 9), np.arange(9), 1), device))
        loss.backward()
        grads = [w.grad.to_dense().cpu().flatten() for w in task.module.parameters()]
        values[device.type] = float(loss.detach()), torch.cat(grads).double()
    assert values["cuda"][0] == pytest.approx(values["cpu"][0], rel=1e-5)
    least = 1e-5 * values["cpu"][1].norm()
    assert (values["cuda"][1] - values["cpu"][1]).norm() < least


@pytest.mark.parametrize("name", MAKERS)
def test_a_fit_has_the_losses_and_the_scores_of_the_cpu(name) -> None:
    result = {}
    for device in ("cpu", "cuda"):
        task = MAKERS[name]()
        result[device] = fit(task, plan(device), None, lambda _: None)
        assert all(w.device.type == "cpu" for w in task.module.parameters())
    losses = {device: [epoch.loss for epoch in one.epochs] for device, one in result.items()}
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-3)
    scores = {device: [epoch.worth for epoch in one.epochs] for device, one in result.items()}
    assert scores["cuda"] == pytest.approx(scores["cpu"], abs=0.05, nan_ok=True)


@pytest.mark.parametrize("name", MAKERS)
def test_a_killed_fit_continues_on_a_gpu(name, tmp_path) -> None:
    """Sums of atomic additions have an order of their own in each run, so the numbers are close."""
    whole, again, lines = MAKERS[name](), MAKERS[name](), []
    expected = fit(whole, plan("cuda", every=2), tmp_path / "a", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        fit(kill_after(MAKERS[name](), 4), plan("cuda", every=2), tmp_path / "b", lambda _: None)
    result = fit(again, plan("cuda", every=2), tmp_path / "b", lines.append)
    assert lines[0].startswith("resuming at epoch")
    assert [e.loss for e in result.epochs] == pytest.approx([e.loss for e in expected.epochs], rel=1e-4)
    for key, w in weights(whole).items():
        assert torch.allclose(w, weights(again)[key], rtol=1e-3, atol=1e-5)
