"""Rules for held-out rows: each one by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from recbench_spark.splits.kernels import labels
from recbench_spark.splits.kernels.labels import GIVEN, LATER, TEST, TRAIN, VALID


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("ratio", ["0.1", "0.29", "0.3", "0.7", "0.05"])
def test_shares_are_those_of_the_decimal_number(ratio: str) -> None:
    n = np.arange(1, 2000)
    wanted = [max(1, int(Fraction(ratio) * rows)) for rows in n.tolist()]
    assert labels.count_share(n, float(ratio)).tolist() == wanted
    assert not labels.count_share(n, 0.0).any()


def test_by_position() -> None:
    """Five rows, two for test, two for validation; of two rows one is test, and one stays."""
    codes = labels.by_position(whole(5, 4, 3, 2, 1), np.full(5, 5), np.full(5, 2), np.full(5, 2), 1)
    assert codes.tolist() == [TRAIN, VALID, VALID, TEST, TEST]
    codes = labels.by_position(whole(2, 1, 1), whole(2, 2, 1), np.full(3, 2), np.full(3, 2), 1)
    assert codes.tolist() == [TRAIN, TEST, TRAIN]
    codes = labels.by_position(whole(2, 1), whole(2, 2), np.full(2, 5), np.zeros(2, int), 0)
    assert codes.tolist() == [TEST, TEST]


def test_by_fold_also_of_negative_numbers() -> None:
    codes = labels.by_fold(whole(-1, 0, 1, 2, 3), 3, 2, True)
    assert codes.tolist() == [TEST, VALID, TRAIN, TEST, VALID]
    assert labels.by_fold(whole(0, 1, 2), 3, 2, False).tolist() == [TRAIN, TRAIN, TEST]


def test_by_share_and_by_time_at_the_bounds() -> None:
    codes = labels.by_share(np.array([0.0, 0.79, 0.8, 0.89, 0.95]), 0.8, 0.1)
    assert codes.tolist() == [TRAIN, TRAIN, VALID, VALID, TEST]
    assert labels.by_share(np.array([0.79, 0.8]), 0.8, 0.0).tolist() == [TRAIN, TEST]
    assert labels.by_time(whole(4, 5, 7, 8, 9), 5, 8, 9).tolist() == [TRAIN, VALID, VALID, TEST, LATER]
    assert labels.by_time(whole(4, 5, 9), 5, 5, 9).tolist() == [TRAIN, TEST, LATER]


def test_held_out_ids() -> None:
    codes = np.array([TRAIN, TEST, TRAIN, TEST, TRAIN, TEST])
    result = labels.by_held_out(codes, np.array([0.0, 0.09, 0.1, 0.29, 0.31, 0.4]), 0.1, 0.2)
    assert result.tolist() == [GIVEN, TEST, GIVEN, VALID, TRAIN, TRAIN]


def test_a_place_on_a_bound_belongs_to_what_follows_it() -> None:
    """Bounds that are exact in binary: shares [0, 1/4) test, [1/4, 3/4) validate, the rest trains."""
    places = np.array([0.25 - 2**-54, 0.25, 0.75 - 2**-53, 0.75])
    result = labels.by_held_out(np.full(4, TEST), places, 0.25, 0.5)
    assert result.tolist() == [TEST, VALID, VALID, TRAIN]
    assert labels.by_share(np.array([0.25, 0.75]), 0.25, 0.5).tolist() == [VALID, TEST]


def test_a_share_is_whole_within_a_billionth_of_a_row() -> None:
    assert labels.count_share(whole(2), 1 - 0.4e-9).tolist() == [2]
    assert labels.count_share(whole(2), 1 - 0.75e-9).tolist() == [1]
    assert labels.count_share(whole(1, 5), 1.0).tolist() == [1, 5]


def test_test_rows_are_assigned_by_the_signed_hash() -> None:
    cards = np.array([0, 1, 2, 2**64 - 1, 5], np.uint64)
    result = labels.partition_test_rows(np.array([TEST, TEST, TEST, TEST, TRAIN]), cards, 3)
    assert result.tolist() == [TEST, TEST + 1, TEST + 2, TEST + 2, TRAIN]
