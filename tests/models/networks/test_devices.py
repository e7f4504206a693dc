"""Devices of fits. There is no GPU in CI: torch's `meta` device, which holds no numbers, shows which
tensors move. It does not notice every tensor that stayed behind, so these are checked one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recbench_spark.errors import ConfigError
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.models.networks import tasks
from recbench_spark.models.networks.devices import choose_device, move_batch
from recbench_spark.models.networks.factors import FactorTask
from recbench_spark.models.networks.fitting import Step, fit
from recbench_spark.models.networks.layers import GraphNetwork
from recbench_spark.models.networks.settings import TrainingPlan
from recbench_spark.models.settings import model_class
from tests.models.networks.test_fitting import factor_task, pair_task

META = torch.device("meta")


def tensors(batch) -> list[torch.Tensor]:
    """All that a minibatch holds, found by another way than `moved` goes."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    return [result for part in batch for result in tensors(part)] if isinstance(batch, tuple | list) else []


def label_task() -> tasks.LabelTask:
    given = pair_task(samples=(3,)).graph_input
    net = GraphNetwork((LayerForm("sage", "mean", 4, 4),), (2,), 5)
    net.initialise(1)
    return tasks.LabelTask(net, given, np.arange(60), np.arange(60) % 2)


def make_task() -> FactorTask:
    task = factor_task(2)
    return FactorTask(task.train, task.held, task.module, 1e-3, 7, groups=2)


MAKERS = {
    "pairs": pair_task,
    "samples": lambda: pair_task(samples=(3, 2)),
    "labels": label_task,
    "LightGCN": lambda: factor_task(2),
    "MF-BPR": lambda: factor_task(0),
    "shared": make_task,
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_minibatch_is_moved_whole_and_the_loss_is_computed_there(name) -> None:
    task = MAKERS[name]()
    batch = task.batch(Step(3, 0, 9), np.arange(9), 1)
    result = move_batch(batch, META)
    assert type(result) is type(batch)
    assert len(tensors(result)) == len(tensors(batch)) >= 3
    assert all(x.is_meta for x in tensors(result)) and not any(x.is_meta for x in tensors(batch))
    assert [x.shape for x in tensors(result)] == [x.shape for x in tensors(batch)]
    task.module.to(META)
    loss = task.loss(result)
    loss.backward()
    assert loss.is_meta and all(w.grad.is_meta for w in task.module.parameters())
    graph = getattr(task.module, "adjacency", None)
    assert graph is None or [x.is_meta for x in tensors(tuple(graph.placed.values()))] == [True] * 3


def test_what_is_no_tensor_stays() -> None:
    ids, x = np.arange(3), torch.ones(2)
    assert move_batch((ids, None, 7, [x, (x,)]), torch.device("cpu")) == (ids, None, 7, [x, (x,)])
    batch = pair_task().batch(Step(1, 0), np.arange(4), 1)
    assert move_batch(batch, META).graph.inputs is batch.graph.inputs


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_fitted(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="no GPU"):
        fit(factor_task(0), TrainingPlan(device="cuda"))
    made = {"name": "m", "kind": "pinsage"}
    settings = model_class("pinsage")
    settings.model_validate({**made, "device": "auto"}).check("world")
    with pytest.raises(ConfigError, match="no GPU"):
        settings.model_validate({**made, "device": "cuda"}).check("world")
    with pytest.raises(ValueError, match="2 processes"):
        settings.model_validate({**made, "device": "cuda", "processes": 2})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("cuda")


def test_checkpoints_know_nothing_of_the_graph_that_layers_sum_over() -> None:
    assert list(factor_task(2).module.state_dict()) == ["vectors"]
