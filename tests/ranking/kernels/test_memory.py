"""A task's share of a GPU, in whole numbers, and copies one step ahead."""

import threading

import numpy as np
import pytest
import torch

from recbench_spark.ranking.kernels import memory

GB = 2**30


def test_a_whole_gpu_is_not_limited():
    assert memory.memory_fraction(1.0, 80 * GB) == 1.0
    assert memory.memory_fraction(2.0, 80 * GB) == 1.0


@pytest.mark.parametrize("tasks", [2, 3, 4, 8])
def test_tasks_that_share_a_gpu_fit_beside_their_contexts(tasks):
    for total in (16 * GB, 80 * GB):
        fraction = memory.memory_fraction(1 / tasks, total)
        assert fraction > 0
        assert tasks * (fraction * total + memory.CONTEXT) <= total * (1 + 1e-12)


def test_a_task_keeps_at_least_half_its_part():
    assert memory.memory_fraction(0.1, 4 * GB) == pytest.approx(0.05)


def test_room_is_what_is_free_and_what_was_reserved_but_within_the_share():
    assert memory.free_room(10 * GB, 16 * GB, 1.0, 3 * GB, 1 * GB) == 12 * GB
    assert memory.free_room(10 * GB, 16 * GB, 0.25, 3 * GB, 1 * GB) == 3 * GB
    assert memory.free_room(0, 16 * GB, 0.25, 5 * GB, 5 * GB) == 0


def test_users_fit_into_four_fifths_of_the_room():
    assert memory.users_at_once(1000, 8.0) == 100
    assert memory.users_at_once(1000, 8.0, fixed=400) == 50
    assert memory.users_at_once(10, 1e9) == 1
    assert memory.users_at_once(0, 0.0) == 1


def test_a_cpu_has_no_limit_to_set():
    device = torch.device("cpu")
    memory.limit_memory(device, 0.25)
    assert memory.device_room(device) is None


def test_copies_do_not_share_memory():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    array.flags.writeable = False
    copy = memory.to_device(array, torch.device("cpu"))
    copy += 1
    assert copy.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert array[0, 0] == 0


def test_ahead_makes_the_next_while_one_is_in_use():
    made, second = [], threading.Event()

    def make(n):
        made.append(n)
        if n == 1:
            second.set()
        return (n * n,)

    pairs = memory.prefetch(make, range(3), torch.device("cpu"))
    assert next(pairs) == (0, (0,))
    assert second.wait(10)
    assert list(pairs) == [(1, (1,)), (2, (4,))]
    assert made == [0, 1, 2]
    assert list(memory.prefetch(make, [], torch.device("cpu"))) == []


def test_an_error_ahead_is_raised_where_it_would_be_used():
    def make(n):
        if n == 1:
            raise torch.OutOfMemoryError("full")
        return (n,)

    pairs = memory.prefetch(make, range(3), torch.device("cpu"))
    assert next(pairs) == (0, (0,))
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        next(pairs)
