"""Leaderboards that make baselines better: published results, searches, verdicts on tuning. All pure."""
