"""Which rows of a log are held out: one code per row, from its place, its hash or its time.

Axis r: rows. What a label depends on is computed elsewhere (`positions`, `hashing`); here are the rules.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recbench_spark.kernels.arrays import Floats, Ints

Codes = npt.NDArray[np.int8]
Hashes = npt.NDArray[np.uint64]

NAMES = ("train", "given", "valid", "later", "test")
"""`given`: shown of a held-out user (or item) at evaluation; it does not train the model. `later`: after
the test period, neither trained on nor tested."""

TRAIN, GIVEN, VALID, LATER, TEST = (np.int8(code) for code in range(len(NAMES)))
"""Codes of NAMES; test rows dealt to several parts carry TEST and what follows it."""


def count_share(n_r: Ints, ratio: float) -> Ints:
    """floor(ratio n), but at least one row where the ratio is above 0.

    >>> share(np.array([1, 10, 30]), 0.1).tolist()
    [1, 1, 3]
    """
    if ratio == 0:
        return np.zeros(len(n_r), np.int64)
    # 1e-9: 0.1 * 30 is 3.0000000000000004 in binary, 0.7 * 10 is 6.999999999999999.
    whole: Ints = np.floor(n_r * ratio + 1e-9).astype(np.int64)
    return np.maximum(whole, 1)


def by_position(position_r: Ints, n_r: Ints, test_r: Ints, valid_r: Ints, kept: int) -> Codes:
    """Test, valid, train by position from the end of the owner's order.

    Args:
        position_r: from 1.
        n_r: rows of the owner.
        test_r: test rows asked for of the owner.
        valid_r: validation rows asked for, before these.
        kept: rows of each owner that stay in train whatever is asked for.
    """
    test_r = np.minimum(test_r, n_r - kept)
    valid_r = np.minimum(valid_r, n_r - kept - test_r)
    codes = np.full(len(n_r), TRAIN)
    codes[position_r <= test_r + valid_r] = VALID
    codes[position_r <= test_r] = TEST
    return codes


def by_fold(number_r: Ints, folds: int, fold: int, valid: bool) -> Codes:
    """Test where the number modulo `folds` is `fold`; validation where it is the next one."""
    fold_r = np.mod(number_r, folds)
    codes = np.full(len(number_r), TRAIN)
    if valid:
        codes[fold_r == (fold + 1) % folds] = VALID
    codes[fold_r == fold] = TEST
    return codes


def by_share(place_r: Floats, train: float, valid: float) -> Codes:
    """Each row by a number of its own in [0, 1)."""
    share_r = np.searchsorted([train, train + valid], place_r, side="right")
    codes: Codes = np.array([TRAIN, VALID, TEST])[share_r]
    return codes


def by_time(time_r: Ints, valid: int, test: int, later: int) -> Codes:
    """Each row by its time: where validation, test and what comes after begin."""
    period_r = np.searchsorted([valid, test, later], time_r, side="right")
    codes: Codes = np.array([TRAIN, VALID, TEST, LATER])[period_r]
    return codes


def by_held_out(codes_r: Codes, place_r: Floats, test: float, valid: float) -> Codes:
    """Strong generalisation: others only train, held-out users (or items) only test what is not given.

    Args:
        codes_r: train is what a held-out user would show.
        place_r: a number in [0, 1) of the user (or item).
        test: share of users whose rows are tested, the first places.
        valid: share of users who validate, the next places.
    """
    rest = np.where(codes_r == TRAIN, GIVEN, np.where(place_r >= test, VALID, TEST))
    return np.where(place_r < test + valid, rest, TRAIN)


def partition_test_rows(codes_r: Codes, card_r: Hashes, parts: int) -> Codes:
    """Test rows dealt to `parts` parts by a hash of their own."""
    card = np.mod(card_r.view(np.int64), parts).astype(np.int8)
    return np.where(codes_r == TEST, TEST + card, codes_r)
