"""Fits: continued as if never killed, stopped by NaN, shared by two processes, better than at the start."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed, multiprocessing

from recbench_spark.errors import ConfigError, DataError
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.graphs.kernels.samples import rank_bands
from recbench_spark.models.networks import factors, fitting, tasks
from recbench_spark.models.networks.fitting import EpochResult, FitResult, Shard, Step, Watch, fit
from recbench_spark.models.networks.layers import GraphNetwork
from recbench_spark.models.networks.sequence_networks import make_sequences
from recbench_spark.models.networks.sequence_tasks import SequenceTask
from recbench_spark.models.networks.settings import TrainingPlan
from recbench_spark.models.settings import make_model
from tests.graphs import oracle
from tests.models.networks.worlds import adjacency
from tests.waiting import wait_until

FORM = LayerForm("convolve", "importance", 6, 5)


def pair_task(
    curriculum: bool = True, samples: tuple[int, ...] = (), dtype=torch.float32, dropout: float = 0.3
) -> tasks.PairTask:
    graph = adjacency(oracle.multigraph(), blocks=3, weighted=True)
    net = GraphNetwork((FORM, FORM), (4,), 5)
    net.initialise(1)
    net.to(dtype)
    x = np.random.default_rng(2).standard_normal((60, 5)).astype(np.float32)
    ends = np.random.default_rng(3).integers(0, 55, (2, 90))
    csr = graph.edges_into(np.arange(60))
    band = rank_bands((csr.indptr, csr.src), np.arange(60), (0, 60), (5, 15))
    how = tasks.PairObjective(margin=0.2, negatives=20, curriculum=curriculum, end=60)
    return tasks.PairTask(
        net, tasks.GraphInput(graph, x, samples, dropout=dropout), (ends[0], ends[1]), how, band
    )


def factor_task(layers: int, seed: int = 1) -> factors.FactorTask:
    draw = np.random.default_rng(0)
    user = np.repeat(np.arange(40), 12)
    item = (user % 4) * 10 + draw.integers(0, 10, len(user))  # four tastes
    train, held = factors.split_pairs(factors.make_pairs(user, item, 40, 40), 0.2, 3)
    return factors.FactorTask(train, held, factors.FactorNetwork(train, 8, layers, seed), 1e-3)


def sequence_task(kind: str) -> SequenceTask:
    """A fit with all that is drawn in a step: dropout, negatives and empty places."""
    own = {"dims": 4, "memory": 4, "dropout": 0.3, "loss": "one_negative", "batch": 20}
    draw = np.random.default_rng(0)
    lists = [draw.permutation(15)[:6].tolist() for _ in range(30 if kind == "memn2n" else 100)]
    return SequenceTask(make_sequences(lists, 15), make_model({"name": "m", "kind": kind, **own}, "models"))


def weights(task) -> dict[str, torch.Tensor]:
    return {name: w.detach().clone() for name, w in task.module.state_dict().items()}


def kill_after(task, batches: int):
    """The task, with an interrupt in its n-th loss."""
    plain, count = task.loss, [0]

    def loss(batch):
        count[0] += 1
        if count[0] > batches:
            raise KeyboardInterrupt
        return plain(batch)

    task.loss = loss
    return task


@pytest.mark.parametrize(
    "make",
    [
        pair_task, lambda: pair_task(samples=(3, 2)), lambda: factor_task(2), lambda: factor_task(0),
        *(partial(sequence_task, kind) for kind in ("sasrec", "gru4rec", "memn2n")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("batches", [4, pytest.param(11, marks=pytest.mark.full)])
def test_a_killed_fit_goes_on_to_the_same_bits(make, batches, tmp_path) -> None:
    plan = TrainingPlan(epochs=3, batch=20, rate=0.05, warm_up=3, decay=0.5, every=2)
    whole = make()
    expected = fit(whole, plan, tmp_path / "a", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        fit(kill_after(make(), batches), plan, tmp_path / "b", lambda _: None)
    again, report = make(), []
    result = fit(again, plan, tmp_path / "b", report.append)
    assert report[0].startswith("resuming at epoch")
    assert [e.loss for e in result.epochs] == [e.loss for e in expected.epochs]
    assert all(torch.equal(w, weights(again)[name]) for name, w in weights(whole).items())


def test_an_epoch_of_some_examples_draws_them_anew_and_goes_on_to_the_same_bits(tmp_path) -> None:
    """Each at most once an epoch, other ones in the next; the mean loss is over those that were drawn."""
    plan = TrainingPlan(epochs=3, batch=20, rate=0.05, every=1, examples=50)
    task, drawn, losses = pair_task(), {}, {}
    plain_batch, plain_loss = task.batch, task.loss

    def batch(at, rows, seed):
        drawn.setdefault(at.epoch, []).extend(rows.tolist())
        return at.epoch, plain_batch(at, rows, seed)

    def loss(made):
        result = plain_loss(made[1])
        losses.setdefault(made[0], []).append(float(result.detach()))
        return result

    task.batch, task.loss = batch, loss
    expected = fit(task, plan, tmp_path / "a", lambda _: None)
    assert [len(rows) for rows in drawn.values()] == [len(set(rows)) for rows in drawn.values()] == [50] * 3
    assert set(drawn[1]) != set(drawn[2]) != set(drawn[3]) and max(map(max, drawn.values())) > 50
    assert [e.loss for e in expected.epochs] == [sum(own) / 50 for own in losses.values()]
    with pytest.raises(KeyboardInterrupt):
        fit(kill_after(pair_task(), 5), plan, tmp_path / "b", lambda _: None)
    again = pair_task()
    fit(again, plan, tmp_path / "b", lambda _: None)
    assert all(torch.equal(w, weights(again)[name]) for name, w in weights(task).items())


@pytest.mark.parametrize("examples", [90, 1000])
def test_as_many_examples_as_there_are_or_more_are_all(examples) -> None:
    """The bits of a fit that does not name them."""
    plain, named = pair_task(), pair_task()
    plan = TrainingPlan(epochs=2, batch=20, rate=0.05)
    fit(plain, plan, None, lambda _: None)
    fit(named, replace(plan, examples=examples), None, lambda _: None)
    assert all(torch.equal(w, weights(named)[name]) for name, w in weights(plain).items())


@pytest.mark.parametrize("layers", [0, 2], ids=["MF-BPR", "LightGCN"])
def test_factors_learn_tastes_and_the_best_epoch_is_kept(layers) -> None:
    task = factor_task(layers)
    before = task.worth()
    lines = []
    result = fit(task, TrainingPlan(epochs=30, batch=64, rate=0.05, patience=5), None, lines.append)
    assert task.worth() == result.worth > max(0.85, before)
    assert result.best < 30 and "no better for 5 epochs" in result.stopped
    assert "examples/s" in lines[0] and result.epochs[-1].loss < result.epochs[0].loss


def test_test_rows_that_are_watched_are_told_and_choose_nothing(tmp_path) -> None:
    """A judge that likes the first epoch best; the fit is killed and goes on."""
    plan = TrainingPlan(epochs=6, batch=64, rate=0.005, patience=2)
    alone, report, again = factor_task(2), [], []
    expected = fit(alone, plan, tmp_path / "a", lambda _: None)
    assert expected.best > 1

    def watch():
        task = factor_task(2)
        task.watch = Watch("recall@20", lambda: -float(task.module.vectors.detach().norm()))
        return task

    task = watch()
    result = fit(task, plan, tmp_path / "b", report.append)
    assert (result.best, result.stopped) == (expected.best, expected.stopped)
    assert torch.equal(task.module.vectors, alone.module.vectors)
    values = [e.test for e in result.epochs]
    assert f", test recall@20 {values[0]:.5f} (watched), " in report[0]
    assert report[-1] == (
        f"best epoch by validation {result.best} (test recall@20 {values[result.best - 1]:.5f}); best on "
        f"test would have been epoch 1 ({values[0]:.5f}): chosen on test rows, no figure to report"
    )
    fit(watch(), replace(plan, epochs=2), tmp_path / "c", lambda _: None)
    fit(watch(), plan, tmp_path / "c", again.append)
    assert again[0].startswith("resuming at epoch 3") and again[-1] == report[-1]


def test_a_fit_that_was_not_watched_from_its_start_says_so() -> None:
    rest = (1.0,) * 4
    assert "no test rows" in FitResult([EpochResult(1, *rest), EpochResult(2, *rest, math.nan)], 1).on_test(
        "x"
    )
    result = FitResult([EpochResult(1, *rest), EpochResult(2, *rest, 0.25)], 1).on_test("x")
    assert "1 (test x not watched); best on test would have been epoch 2 (0.25000)" in result


def test_pinsage_learns_its_pairs_and_hard_negatives_grow() -> None:
    task = pair_task()
    assert [task.how.count_hard(e) for e in (1, 2, 5)] == [0, 1, 4]
    assert task.batch(Step(1, 0), np.arange(9), 1).hard is None
    assert task.batch(Step(3, 0), np.arange(9), 1).hard.shape == (9, 2)
    result = fit(task, TrainingPlan(epochs=8, batch=30, rate=0.02), None, lambda _: None)
    assert result.epochs[-1].loss < 0.8 * result.epochs[0].loss


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(tmp_path) -> None:
    task = pair_task()
    plain = task.loss
    plan = TrainingPlan(epochs=3, batch=30)
    fit(task, TrainingPlan(epochs=1, batch=30), tmp_path, lambda _: None)
    good = (tmp_path / "last.safetensors").read_bytes()
    task.loss = lambda batch: plain(batch) * float("nan")
    with pytest.raises(DataError, match="epoch 2, step 0"):
        fit(task, plan, tmp_path, lambda _: None)
    assert (tmp_path / "last.safetensors").read_bytes() == good


def test_the_rate_warms_up_and_decays() -> None:
    plan = TrainingPlan(rate=1.0, warm_up=4, decay=0.5)
    assert [plan.learning_rate(n, 10) for n in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert plan.learning_rate(14, 10) == 0.5 and plan.learning_rate(24, 10) == 0.25


def test_what_means_nothing_is_refused() -> None:
    for wrong in ({"epochs": 0}, {"batch": 0}, {"rate": 0.0}, {"decay": 1.5}, {"examples": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            TrainingPlan(**wrong)
    with pytest.raises(ConfigError, match="margin"):
        tasks.PairObjective(margin=-1, end=3)
    with pytest.raises(DataError, match="features of 5 and a model of 6"):
        given = pair_task().graph_input
        tasks.PairTask(
            GraphNetwork((FORM,), (), 6), given, (np.arange(2), np.arange(2)), tasks.PairObjective(end=3)
        )


def gradients(task, plan: TrainingPlan, shard: Shard) -> np.ndarray:
    """Compute the gradients of one minibatch, as `fit` has them."""
    rows = np.arange(plan.batch)
    loss = task.loss(task.batch(Step(2, 0), shard.rows(rows), 77))
    (loss / plan.batch).backward()
    fitting.sum_gradients(task.module, float(loss.detach()), shard)
    return torch.cat([w.grad.flatten() for w in task.module.parameters()]).double().numpy()


def run_one_process(rank: int, folder: str, name: str) -> None:
    distributed.init_process_group("gloo", f"file://{folder}/{name}", rank=rank, world_size=2)
    shard = Shard(rank, 2, *((0.0, 0.3) if rank == 0 else (0.3, 1.0)))
    result = gradients(pair_task(dtype=getattr(torch, name)), TrainingPlan(batch=37), shard)
    if rank == 0:
        np.save(Path(folder, f"{name}.npy"), result)
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.full
@pytest.mark.parametrize(("name", "least"), [("float64", 1e-12), ("float32", 1e-5)])
def test_two_processes_with_unequal_shards_have_one_processs_gradients(name, least, tmp_path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    multiprocessing.spawn(run_one_process, (str(tmp_path), name), nprocs=2)
    alone = gradients(pair_task(dtype=getattr(torch, name)), TrainingPlan(batch=37), Shard())
    both = np.load(tmp_path / f"{name}.npy")
    assert np.linalg.norm(alone) > 1e-3
    assert np.linalg.norm(both - alone) < least * np.linalg.norm(alone)


def test_minibatches_are_made_while_a_device_computes() -> None:
    task = factor_task(0)

    class Simulated:
        """A device that is not done with a minibatch before the next one of the epoch has begun."""

        module, examples, worth = task.module, 80, staticmethod(lambda: 0.0)
        begun = computed = 0

        def batch(self, at, row_b, seed):
            self.begun += 1
            return task.batch(at, row_b % task.examples, seed)

        def loss(self, batch):
            self.computed += 1
            if self.computed % 10:
                wait_until(lambda: self.begun > self.computed)
            return task.loss(batch)

    device = Simulated()
    result = fit(device, TrainingPlan(epochs=2, batch=8), None, lambda _: None)
    assert device.computed == device.begun == 20
    assert all(0 <= epoch.waited <= 1 for epoch in result.epochs)
