"""Search for settings, fits over folds, submissions, and the update of a leaderboard with their results."""
