"""Leaderboards: published results, searches, and verdicts on baselines."""
