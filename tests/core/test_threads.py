"""Threads of matrix products: one within the context, and as many as before after it."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from recbench_spark.core.threads import one_thread_products


def list_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_products_take_one_thread_within_the_context_alone() -> None:
    """Tasks of Spark that add up replicates took four times the CPU time: their threads waited spinning."""
    with threadpool_limits(limits=2, user_api="blas"):
        before = list_threads()
        with one_thread_products():
            assert set(list_threads()) == {1}
            assert (np.ones((3, 4)) @ np.ones((4, 2)) == 4).all()
        assert list_threads() == before and 2 in before


def test_overlapping_contexts_leave_the_threads_as_they_were() -> None:
    """The first one to begin ends first, as in two threads: the second one must not set its own 1 back."""
    with threadpool_limits(limits=2, user_api="blas"):
        before = list_threads()
        first, second = ExitStack(), ExitStack()
        first.enter_context(one_thread_products())
        second.enter_context(one_thread_products())
        assert set(list_threads()) == {1}
        first.close()
        second.close()
        assert list_threads() == before
        with one_thread_products():
            assert set(list_threads()) == {1}
