"""Learning curves: metrics after each further rating by a user."""
