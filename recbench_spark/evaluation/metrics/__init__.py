"""From rankings and predictions to values of users, means and intervals."""
