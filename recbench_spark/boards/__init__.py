"""Leaderboards: published results, searches for settings, and verdicts on how well baselines are tuned."""
