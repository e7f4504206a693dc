"""Search for settings, fit over folds, and update boards.

Submissions are here too.
"""
