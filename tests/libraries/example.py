"""The invented input of docs/presets.md and of the fixed cases (see inputs.py for its form).

Users 1 to 4 have lists and truth: a usual one, one whose list is short, one with a single held-out
item, one with graded relevance. User 5 has no list, user 6 no truth.
"""

from __future__ import annotations

from tests.libraries.inputs import Input

LISTS = {
    "1": [[4, 0.9], [7, 0.8], [2, 0.7], [9, 0.5], [1, 0.3]],
    "2": [[3, 0.6], [8, 0.4]],
    "3": [[5, 0.9], [6, 0.6], [0, 0.4], [3, 0.2]],
    "4": [[1, 0.8], [9, 0.7], [3, 0.5], [7, 0.3], [5, 0.1]],
    "6": [[2, 0.5], [4, 0.4], [6, 0.1]],
}
TRUTH = {
    "1": [[2, 1], [4, 1], [5, 1], [8, 1]],
    "2": [[8, 1], [1, 1]],
    "3": [[0, 1]],
    "4": [[0, 1], [3, 3], [9, 1], [7, 2], [6, 1]],
    "5": [[2, 1], [3, 1]],
}
EXAMPLE: Input = {"lists": LISTS, "truth": TRUTH, "train": {}, "items": 10, "ks": [3, 5]}

SCORES = {
    user: [[item, (7 * item + 3 * int(user)) % 11 + 1.0] for item in range(10)]
    for user in LISTS
    if user != "6"
}
FULL: Input = {
    "lists": {user: sorted(rows, key=lambda row: -row[1]) for user, rows in SCORES.items()},
    "truth": {user: [[item, 1] for item, _ in rows] for user, rows in TRUTH.items()},
    "train": {"1": [9], "2": [9], "3": [9], "4": [8]},
    "items": 10,
    "ks": [3, 5],
}
"""Scores of every item, for libraries whose models score everything."""
