"""Label held-out rows by place, hash or time.

Each row gets one code. Axis r: rows. `positions` and `hashing` compute a label's inputs; this module has
the rules.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Bools, Floats, Ints

Codes = npt.NDArray[np.int8]
Hashes = npt.NDArray[np.uint64]

NAMES = ("train", "given", "valid", "later", "test")
"""`given`: a row of a held-out user (or item) that the model gets at evaluation and not in training.
`later`: a row after training that is neither trained on nor tested: it comes after the test period, or
`split.targets` asks for another one.
"""

TRAIN, GIVEN, VALID, LATER, TEST = (np.int8(code) for code in range(len(NAMES)))
"""Codes for NAMES; test rows in several parts have TEST and the codes after it."""


def count_share(n_r: Ints, ratio: float) -> Ints:
    """Return floor(ratio n), or 1 if that is 0.

    For a ratio of 0 it is 0.

    >>> count_share(np.array([1, 10, 30]), 0.1).tolist()
    [1, 1, 3]
    """
    if ratio == 0:
        return np.zeros(len(n_r), np.int64)
    # 1e-9: 0.1 * 30 is 3.0000000000000004 in binary, 0.7 * 10 is 6.999999999999999.
    whole: Ints = np.floor(n_r * ratio + 1e-9).astype(np.int64)
    return np.maximum(whole, 1)


def by_position(position_r: Ints, n_r: Ints, test_r: Ints, valid_r: Ints, kept: int) -> Codes:
    """Label rows by position from the owner's last row.

    Args:
        position_r: from 1.
        n_r: the owner's rows.
        test_r: wanted number of the owner's test rows.
        valid_r: wanted number of validation rows, before these.
        kept: number of each owner's rows that stay in train in any case.
    """
    test_r = np.minimum(test_r, n_r - kept)
    valid_r = np.minimum(valid_r, n_r - kept - test_r)
    codes = np.full(len(n_r), TRAIN)
    codes[position_r <= test_r + valid_r] = VALID
    codes[position_r <= test_r] = TEST
    return codes


def by_fold(number_r: Ints, folds: int, fold: int, valid: bool) -> Codes:
    """Label as test if the number modulo `folds` is `fold`.

    The next fold validates.
    """
    fold_r = np.mod(number_r, folds)
    codes = np.full(len(number_r), TRAIN)
    if valid:
        codes[fold_r == (fold + 1) % folds] = VALID
    codes[fold_r == fold] = TEST
    return codes


def by_share(place_r: Floats, train: float, valid: float) -> Codes:
    """Label each row by its own number in [0, 1)."""
    share_r = np.searchsorted([train, train + valid], place_r, side="right")
    codes: Codes = np.array([TRAIN, VALID, TEST])[share_r]
    return codes


def by_time(time_r: Ints, valid: int, test: int, later: int) -> Codes:
    """Label rows by the period in which their time falls.

    Those are validation, test and the later period.
    """
    period_r = np.searchsorted([valid, test, later], time_r, side="right")
    codes: Codes = np.array([TRAIN, VALID, TEST, LATER])[period_r]
    return codes


def by_held_out(codes_r: Codes, place_r: Floats, test: float, valid: float) -> Codes:
    """Label for strong generalisation.

    Held-out users (or items) are tested on rows not given to the model. All others only train.

    Args:
        codes_r: train marks the rows that a held-out user would be given.
        place_r: the user's (or item's) number in [0, 1).
        test: share of users whose rows are tested, the first places.
        valid: share of users for validation, the next places.
    """
    rest = np.where(codes_r == TRAIN, GIVEN, np.where(place_r >= test, VALID, TEST))
    rest[codes_r == LATER] = LATER
    return np.where(place_r < test + valid, rest, TRAIN)


def by_target(codes_r: Codes, asked_r: Bools, owner_r: Ints, time_r: Ints | None) -> Codes:
    """Label rows of events that are never held out.

    They train, or are given where the owner's rows are. In order of time only those before their owner's
    first held-out row do; the others are `later`.

    Args:
        codes_r: labels as if each row could be held out.
        asked_r: rows that can be, (r,).
        owner_r: the rows' owners, from 0.
        time_r: times, for labels in order of time.
    """
    given_r = np.isin(owner_r, owner_r[asked_r & (codes_r == GIVEN)])
    codes_r = np.where(asked_r, codes_r, np.where(given_r, GIVEN, TRAIN))
    if time_r is not None and len(codes_r):
        first_o = np.full(int(owner_r.max()) + 1, np.iinfo(np.int64).max)
        held_r = (codes_r == VALID) | (codes_r >= TEST)
        np.minimum.at(first_o, owner_r[held_r], time_r[held_r])
        codes_r[~asked_r & (time_r >= first_o[owner_r])] = LATER
    return codes_r


def partition_test_rows(codes_r: Codes, card_r: Hashes, parts: int) -> Codes:
    """Divide test rows among `parts` parts by an own hash."""
    card = np.mod(card_r.view(np.int64), parts).astype(np.int8)
    return np.where(codes_r == TEST, TEST + card, codes_r)
