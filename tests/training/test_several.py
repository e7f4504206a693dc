"""A fit on two processes that TorchDistributor starts is that of one."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from recbench_spark.errors import ConfigError
from recbench_spark.models.networks import factors
from recbench_spark.models.networks.fitting import fit
from recbench_spark.models.networks.plans import Plan
from recbench_spark.training.several import fit_on_several, shards
from tests.models.networks.test_fitting import factor_task


def test_shares_meet() -> None:
    found = shards((1, 2, 1))
    assert [(s.begin, s.end) for s in found] == [(0, 0.25), (0.25, 0.75), (0.75, 1)]
    rows = list(range(11))
    assert [row for s in found for row in s.rows(rows)] == rows
    with pytest.raises(ConfigError, match="shares"):
        shards((1, 0))


@pytest.mark.spark
def test_two_processes_of_torch_distributor_fit_what_one_does(spark, tmp_path) -> None:
    plan = Plan(epochs=2, batch=50, rate=0.05)
    alone = factor_task(2)
    expected = fit(alone, plan, tmp_path / "one", lambda _: None)
    found = fit_on_several(partial(factor_task, 2), plan, tmp_path / "two", (1, 3))
    assert [e.loss for e in found.epochs] == pytest.approx([e.loss for e in expected.epochs], rel=1e-5)
    both = factor_task(2)
    from recbench_spark.models.networks.fitting import read_checkpoint

    read_checkpoint(tmp_path / "two" / "best.safetensors", both.module, None)
    assert isinstance(both.module, factors.Factors)
    assert torch.allclose(both.module.vectors, alone.module.vectors, atol=1e-4)
